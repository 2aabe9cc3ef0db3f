"""What to do when a device runs out of memory: the next way that needs less, and a word about it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch

from ropetool.errors import DeviceMemoryError

Result = TypeVar("Result")
# What is done otherwise (said when it is tried), and how; the first is what was asked for.
Attempt = tuple[str, Callable[[], Result]]
_SAID = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was no room: CUDA's own class, and what the CPU's and Metal's allocators say."""
    if isinstance(error, (DeviceMemoryError, torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)


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
        except (RuntimeError, MemoryError, DeviceMemoryError) as error:
            if not out_of_memory(error):
                raise
            said = next(iter(str(error).splitlines()), type(error).__name__)
    raise DeviceMemoryError(f"out of memory, however it was tried: {said}; give fewer --tokens, or --max-memory")


def release() -> None:
    """Give back what no tensor holds: accelerate's hooks make a model refer to itself, and allocators keep pages."""
    gc.collect()
    with suppress(OSError, AttributeError, TypeError):  # no glibc, no malloc_trim(3)
        ctypes.CDLL(None).malloc_trim(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
