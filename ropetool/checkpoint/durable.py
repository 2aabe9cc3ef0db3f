"""Files that appear under their name when they are whole, and that outlast a power cut where that is asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_NEW = ".ropetool-new"
_NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL, errno.ENOSYS)


def beside(path: Path) -> Path:
    """Where a file lies until it takes the name ``path``."""
    return path.with_name(f".{path.name}{_NEW}")


def is_temporary(path: Path) -> bool:
    """Whether a file is one that never got its name, of a run that was killed."""
    return path.name.startswith(".") and path.name.endswith(_NEW)


def sync_directory(directory: Path) -> None:
    """Wait until the names in a directory are on disk."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def publish(path: Path, fill: Callable[[int], None], *, sync: bool, mode: int = 0o666) -> None:
    """Make a file that nobody ever sees half-written: ``fill`` writes into its descriptor; ``path`` must not exist.

    Where the file system can, it has no name until then (open(2), O_TMPFILE), and a process that is killed leaves
    nothing.
    """
    descriptor = _nameless(path.parent, mode)
    if descriptor is None:
        _renamed(path, fill, mode, sync=sync)
        return
    try:
        fill(descriptor)
        if sync:
            os.fsync(descriptor)
        _name(descriptor, path)
    finally:
        os.close(descriptor)
    if sync:
        sync_directory(path.parent)


def reserve(descriptor: int, size_bytes: int) -> None:
    """Give a file its whole size now, so that a full disk is found before anything depends on it."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size_bytes)
        return
    at = os.fstat(descriptor).st_size
    while at < size_bytes:
        at += os.pwrite(descriptor, bytes(min(1 << 20, size_bytes - at)), at)


def _nameless(directory: Path, mode: int) -> int | None:
    """A file without a name in ``directory``; None where the system has no such thing."""
    flag = getattr(os, "O_TMPFILE", None)
    if flag is None or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(directory, flag | os.O_RDWR, mode)
    except OSError as error:
        if error.errno in _NO_NAMELESS:
            return None
        raise


def _name(descriptor: int, path: Path) -> None:
    """Give a nameless file its name. The descriptor of a directory makes Python call linkat, which follows the link."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.link(f"/proc/self/fd/{descriptor}", path, src_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)


def replace(path: Path, fill: Callable[[int], None], mode: int, *, sync: bool) -> None:
    """Put a new file in the place of ``path`` at once; other names of the old one keep it."""

    def with_mode(descriptor: int) -> None:
        fill(descriptor)
        os.fchmod(descriptor, mode)

    _renamed(path, with_mode, 0o600, sync=sync)


def _renamed(path: Path, fill: Callable[[int], None], mode: int, *, sync: bool) -> None:
    """Write a file beside ``path`` and give it that name when it is whole; ``mode`` is the one it is made with."""
    temporary = beside(path)
    with suppress(FileNotFoundError):
        os.unlink(temporary)
    descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)
    try:
        fill(descriptor)
        if sync:
            os.fsync(descriptor)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)
    if sync:
        sync_directory(path.parent)
