"""Memory that runs out: tell it from other faults, and go on with half the chunk."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

from ropetool.errors import UnsupportedError

FEWEST_TOKENS = 16
_SAID = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")

Result = TypeVar("Result")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no room: CUDA's own class, and what the CPU's and MPS's allocators raise."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)


def give_back() -> None:
    """Return what no tensor holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def with_room(
    run: Callable[[int], Result], chunk_tokens: int, what: str, talk: Callable[[str], None]
) -> tuple[Result, int]:
    """``run(chunk)``, with half the chunk as often as memory runs out; the result, and the chunk that had room.

    Raises `UnsupportedError` where even `FEWEST_TOKENS` at a time have none.
    """
    while True:
        try:
            return run(chunk_tokens), chunk_tokens
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
        give_back()
        if chunk_tokens <= FEWEST_TOKENS:
            raise UnsupportedError(
                f"out of memory: {what} finds no room even in chunks of {chunk_tokens} tokens; take shorter --lengths, "
                f"another --device or a smaller --dtype",
                chunk_tokens=chunk_tokens,
            )
        chunk_tokens = max(FEWEST_TOKENS, chunk_tokens // 2)
        talk(f"out of memory: {what} starts over in chunks of {chunk_tokens} tokens")
