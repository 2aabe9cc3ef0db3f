"""Copying files with as little work as the file system allows, and several of them side by side.

A copy shares its blocks with the source where the file system can do that (reflinks: btrfs, XFS), is made inside the
kernel where it cannot, and is read and written where the kernel will not. All three give the same bytes.
"""

from __future__ import annotations

import errno
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread
from typing import TypeVar

from ropetool.checkpoint.shards import (
    BUFFER_BYTES,
    Progress,
    Range,
    check_unchanged,
    no_progress,
    stamp_of,
    write_exactly,
)
from ropetool.errors import ShardError

# What one call copies in the kernel: between two of them progress is told, and a stop is heard.
STEP_BYTES = 16 << 20
# More threads than this wait for memory or the disk.
MOST_WORKERS = 8
# linux/fs.h: _IOW(0x94, 9, int); the fcntl module names it from Python 3.14 on.
FICLONE = 0x40049409
# Not between these files, not in this kernel, or forbidden by a sandbox.
NOT_IN_KERNEL = frozenset((errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY, errno.EPERM))

Item = TypeVar("Item")


def copy_file(source: Path, target: Path, progress: Progress = no_progress) -> None:
    """Copy the bytes and the mode of a file; ``target`` must not exist. The source is opened for reading only."""
    with copied(source, target, (), progress):
        pass


@contextmanager
def copied(
    source: Path, target: Path, left_out: Sequence[Range], progress: Progress = no_progress
) -> Iterator[tuple[int, int]]:
    """Copy a file but for the ranges ``left_out``; within, the two open files, for whoever writes those ranges.

    ``target`` must not exist. Its mode is the source's, and its owner may write to it. Raises `SourceChangedError`
    where the source changed meanwhile.
    """
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        stamp = stamp_of(reader.fileno())
        size_bytes = os.fstat(reader.fileno()).st_size
        if _cloned(reader.fileno(), writer.fileno()):
            progress(size_bytes - sum(stop - start for start, stop in left_out))
        else:
            _copy_ranges(reader.fileno(), writer.fileno(), _others(size_bytes, left_out), progress)
        yield reader.fileno(), writer.fileno()
        os.fchmod(writer.fileno(), os.fstat(reader.fileno()).st_mode & 0o7777 | 0o200)
    check_unchanged(source, stamp)


def _cloned(reader: int, writer: int) -> bool:
    """Let the target share all blocks of the source; False where that cannot be: what is wrong, copying will tell."""
    if sys.platform != "linux":
        return False
    import fcntl

    try:
        fcntl.ioctl(writer, FICLONE, reader)
    except OSError:
        return False
    return True


def _others(size_bytes: int, left_out: Sequence[Range]) -> Iterator[Range]:
    """What of a file is in none of the ranges, which do not overlap."""
    at = 0
    for start, stop in sorted(left_out):
        if at < start:
            yield at, start
        at = stop
    if at < size_bytes:
        yield at, size_bytes


def _copy_ranges(reader: int, writer: int, ranges: Iterator[Range], progress: Progress) -> None:
    in_kernel = hasattr(os, "copy_file_range")
    for start, stop in ranges:
        if in_kernel:
            start = _copy_in_kernel(reader, writer, start, stop, progress)
            in_kernel = start == stop
        _copy_through(reader, writer, start, stop, progress)


def _copy_in_kernel(reader: int, writer: int, start: int, stop: int, progress: Progress) -> int:
    """Copy inside the kernel; returns how far that went: less than ``stop`` where the kernel will not."""
    while start < stop:
        try:
            done = os.copy_file_range(reader, writer, min(STEP_BYTES, stop - start), start, start)
        except OSError as error:
            if error.errno in NOT_IN_KERNEL:
                break
            raise
        if done == 0:  # the file ended, or is of a kind that the kernel takes for empty: reading tells which
            break
        start += done
        progress(done)
    return start


def _copy_through(reader: int, writer: int, start: int, stop: int, progress: Progress) -> None:
    """Copy by reading and writing, through one small buffer."""
    buffer = memoryview(bytearray(min(BUFFER_BYTES, stop - start)))
    while start < stop:
        done = os.preadv(reader, [buffer[: stop - start]], start)
        if done == 0:
            raise ShardError(f"a source file ended {stop - start:,} bytes early: it changed while it was read")
        write_exactly(writer, buffer[:done], start)
        start += done
        progress(done)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Stopped(Exception):
    """Ends the work of a thread from within its progress."""


def side_by_side(
    work: Callable[[Item, Progress], None],
    items: Sequence[Item],
    progress: Progress = no_progress,
    workers: int | None = None,
) -> None:
    """Do ``work`` on every item, on as many threads as there are cores (or ``workers``), in any order.

    The work is to call the progress that it is given often: there it stops once another one has failed. ``progress``
    itself is called by one thread at a time. The first error is raised, after all threads have ended; so is Ctrl-C.
    """
    count = min(len(items), workers or min(cores(), MOST_WORKERS))
    if count <= 1:
        for item in items:
            work(item, progress)
        return
    waiting, errors, lock = iter(items), deque[BaseException](), Lock()

    def told(done_bytes: int) -> None:
        with lock:
            if errors:
                raise _Stopped
            progress(done_bytes)

    def run() -> None:
        try:
            while (taken := _next(waiting, lock)) and not errors:
                work(taken[0], told)
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again below, by the thread that asked for the work
            errors.append(error)

    threads = [Thread(target=run) for _ in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException as error:  # Ctrl-C reaches this thread alone
        errors.appendleft(error)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if errors:
        raise errors[0]


def _next(items: Iterator[Item], lock: Lock) -> tuple[Item] | None:
    with lock:
        return next(((item,) for item in items), None)
