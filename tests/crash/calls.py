"""The system calls that touch files: how each names its file, and what kind of step it is. Numbers of Linux, x86-64.

Read from Linux 6.1, arch/x86/entry/syscalls/syscall_64.tbl, and the manual page of each call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

O_WRITING = 0o1 | 0o2 | 0o100  # O_WRONLY, O_RDWR, O_CREAT
REFLINKS = (0x40049409, 0x4020940D)  # FICLONE, FICLONERANGE: linux/fs.h
LOCKS = (5, 6, 7, 36, 37, 38)  # F_GETLK to F_SETLKW, and those of open file descriptions: linux/fcntl.h


class Kind(Enum):
    """What a call does to files, in a word for tables."""

    OPEN = "open"
    READ = "read"
    WRITE = "write"
    SYNC = "sync"
    NAME = "name"  # what changes directories: mkdir, rename, link, unlink
    MODE = "mode"
    LOCK = "lock"
    CLOSE = "close"
    LOOK = "look"


@dataclass(frozen=True)
class Row:
    """One call: the positions of its arguments. ``paths`` are pairs of (directory descriptor or None, path)."""

    name: str
    kind: Kind
    fd: int | None = None
    paths: tuple[tuple[int | None, int], ...] = ()
    size: int | None = None
    vector: bool = False  # argument 1 is an array of struct iovec, whose sizes count
    offset: int | None = None
    flags: int | None = None
    only: tuple[int, ...] = ()  # the values of argument 1 with which it counts


ROWS: Mapping[int, Row] = {
    0: Row("read", Kind.READ, fd=0, size=2),
    17: Row("pread64", Kind.READ, fd=0, size=2, offset=3),
    19: Row("readv", Kind.READ, fd=0, vector=True),
    295: Row("preadv", Kind.READ, fd=0, vector=True, offset=3),
    9: Row("mmap", Kind.READ, fd=4),
    1: Row("write", Kind.WRITE, fd=0, size=2),
    18: Row("pwrite64", Kind.WRITE, fd=0, size=2, offset=3),
    20: Row("writev", Kind.WRITE, fd=0, vector=True),
    296: Row("pwritev", Kind.WRITE, fd=0, vector=True, offset=3),
    40: Row("sendfile", Kind.WRITE, fd=0, size=3),
    326: Row("copy_file_range", Kind.WRITE, fd=2, size=4),
    16: Row("ioctl", Kind.WRITE, fd=0, only=REFLINKS),
    76: Row("truncate", Kind.WRITE, paths=((None, 0),)),
    77: Row("ftruncate", Kind.WRITE, fd=0),
    285: Row("fallocate", Kind.WRITE, fd=0),
    74: Row("fsync", Kind.SYNC, fd=0),
    75: Row("fdatasync", Kind.SYNC, fd=0),
    277: Row("sync_file_range", Kind.SYNC, fd=0),
    306: Row("syncfs", Kind.SYNC, fd=0),
    2: Row("open", Kind.OPEN, paths=((None, 0),), flags=1),
    85: Row("creat", Kind.OPEN, paths=((None, 0),)),
    257: Row("openat", Kind.OPEN, paths=((0, 1),), flags=2),
    82: Row("rename", Kind.NAME, paths=((None, 0), (None, 1))),
    264: Row("renameat", Kind.NAME, paths=((0, 1), (2, 3))),
    316: Row("renameat2", Kind.NAME, paths=((0, 1), (2, 3))),
    87: Row("unlink", Kind.NAME, paths=((None, 0),)),
    263: Row("unlinkat", Kind.NAME, paths=((0, 1),)),
    84: Row("rmdir", Kind.NAME, paths=((None, 0),)),
    83: Row("mkdir", Kind.NAME, paths=((None, 0),)),
    258: Row("mkdirat", Kind.NAME, paths=((0, 1),)),
    86: Row("link", Kind.NAME, paths=((None, 0), (None, 1))),
    265: Row("linkat", Kind.NAME, paths=((0, 1), (2, 3))),
    88: Row("symlink", Kind.NAME, paths=((None, 1),)),
    266: Row("symlinkat", Kind.NAME, paths=((1, 2),)),
    90: Row("chmod", Kind.MODE, paths=((None, 0),)),
    91: Row("fchmod", Kind.MODE, fd=0),
    268: Row("fchmodat", Kind.MODE, paths=((0, 1),)),
    452: Row("fchmodat2", Kind.MODE, paths=((0, 1),)),
    280: Row("utimensat", Kind.MODE, paths=((0, 1),)),
    72: Row("fcntl", Kind.LOCK, fd=0, only=LOCKS),
    73: Row("flock", Kind.LOCK, fd=0),
    3: Row("close", Kind.CLOSE, fd=0),
    4: Row("stat", Kind.LOOK, paths=((None, 0),)),
    5: Row("fstat", Kind.LOOK, fd=0),
    6: Row("lstat", Kind.LOOK, paths=((None, 0),)),
    262: Row("newfstatat", Kind.LOOK, paths=((0, 1),)),
    332: Row("statx", Kind.LOOK, paths=((0, 1),)),
    137: Row("statfs", Kind.LOOK, paths=((None, 0),)),
    21: Row("access", Kind.LOOK, paths=((None, 0),)),
    89: Row("readlink", Kind.LOOK, paths=((None, 0),)),
    217: Row("getdents64", Kind.LOOK, fd=0),
}


@dataclass(frozen=True)
class Call:
    """A call as it is about to be made: the how-many-th on watched files, and on which of them (relative paths)."""

    at: int
    row: Row
    path: str
    args: tuple[int, ...]
    size: int  # the bytes that it asks for (of several, in the first buffer), 0 where it has no size

    @property
    def changes(self) -> bool:
        """Whether it may change something on the disk."""
        if self.row.kind is Kind.OPEN:
            return self.row.flags is None or bool(self.args[self.row.flags] & O_WRITING)
        return self.row.kind not in (Kind.READ, Kind.CLOSE, Kind.LOOK)

    def __str__(self) -> str:
        return f"{self.row.name}({self.path})"
