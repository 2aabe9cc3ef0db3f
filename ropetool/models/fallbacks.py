"""What to do when a device runs out of memory: the next way that needs less, and a word about it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from ropetool.errors import DeviceMemoryError

Result = TypeVar("Result")
# What is done otherwise (said when it is tried), and how; the first is what was asked for.
Attempt = tuple[str, Callable[[], Result]]


def out_of_memory(error: BaseException) -> bool:
    """Whether a device has no memory left: torch's own error, or Metal's, which is known by its words alone."""
    return isinstance(error, (DeviceMemoryError, torch.cuda.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and "MPS backend out of memory" in str(error)
    )


def within_memory(attempts: Sequence[Attempt[Result]], talk: Callable[[str], None]) -> Result:
    """What the first attempt gives that has memory enough.

    Raises `DeviceMemoryError` where none has, and any other error at once.
    """
    said = ""
    for number, (otherwise, attempt) in enumerate(attempts, start=1):
        if number > 1:
            release()
            talk(f"out of memory: {otherwise}")
        try:
            return attempt()
        except (RuntimeError, DeviceMemoryError) as error:
            if not out_of_memory(error):
                raise
            said = str(error).splitlines()[0]
    raise DeviceMemoryError(f"out of memory, however it was tried: {said}; give fewer --tokens, or --max-memory")


def release() -> None:
    """Give back what torch keeps of a device's memory for later."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
