"""Memory that runs out while a text is read: go on with half the chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ropetool.errors import UnsupportedError
from ropetool.models.fallbacks import out_of_memory, release

FEWEST_TOKENS = 16

Result = TypeVar("Result")


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
        release()
        if chunk_tokens <= FEWEST_TOKENS:
            raise UnsupportedError(
                f"out of memory: {what} finds no room even in chunks of {chunk_tokens} tokens; take shorter --lengths, "
                f"another --device or a smaller --dtype",
                chunk_tokens=chunk_tokens,
            )
        chunk_tokens = max(FEWEST_TOKENS, chunk_tokens // 2)
        talk(f"out of memory: {what} starts over in chunks of {chunk_tokens} tokens")
