"""Who uses a directory: kernel locks (flock) on the directory itself, shared to read it and exclusive to change it.

No file is written for them, so a directory that nobody may write to can be read, and a process that died holds nothing.
flock(2): the lock is of the open file, and goes with its last descriptor. A file system without such locks (NFS has
none on a directory: there an exclusive one needs a descriptor open for writing) is read without one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ropetool.errors import BusyError

# Whoever only looks whether a directory is locked holds it for an instant; one that wants it alone waits so long.
PATIENCE_SECONDS = 0.5
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF, errno.EINVAL, errno.ENOSYS)
# What this process has exclusively, by device and inode: to look into it is not to disturb another.
_own: Counter[tuple[int, int]] = Counter()
_shared: list[ExitStack] = []


@dataclass(frozen=True)
class Holder:
    """A process that has a directory, as far as the system tells."""

    pid: int
    command: str
    since: str


@contextmanager
def session() -> Iterator[None]:
    """Within, the directories given to `share` stay shared; afterwards they are free."""
    with ExitStack() as stack:
        _shared.append(stack)
        try:
            yield
        finally:
            _shared.remove(stack)


def share(path: Path) -> None:
    """Keep others from changing the directory of ``path`` until the `session` ends; raises `BusyError` where one does.

    What is not there, or must not be opened, is for its reader to say.
    """
    with ExitStack() as stack:
        with suppress(OSError):
            stack.enter_context(_locked(directory_of(path), fcntl.LOCK_SH))
        if _shared:
            _shared[-1].enter_context(stack.pop_all())


def claim(path: Path) -> bool:
    """Have the directory of ``path`` alone until the `session` ends; see `exclusive`, which this asks."""
    with ExitStack() as stack:
        known = stack.enter_context(exclusive(directory_of(path)))
        if _shared:
            _shared[-1].enter_context(stack.pop_all())
    return known


def refuse_busy(path: Path) -> None:
    """Raises `BusyError` where another process changes the directory of ``path`` now."""
    with suppress(OSError), _locked(directory_of(path), fcntl.LOCK_SH):
        pass


@contextmanager
def exclusive(directory: Path, *, anew: bool = False, patience_seconds: float = PATIENCE_SECONDS) -> Iterator[bool]:
    """Within, no other process has ``directory`` to read or to change; raises `BusyError` where one has it now.

    Yields false where the file system has no such locks. This process may ask twice, unless ``anew``. Raises
    `FileNotFoundError` where the directory is not there, or is no longer once it is free.
    """
    with _locked(directory, fcntl.LOCK_EX, anew, patience_seconds) as known:
        yield known


def directory_of(path: Path) -> Path:
    """``path`` itself, or the directory around a file."""
    return path.parent if path.is_file() else path


@contextmanager
def _locked(directory: Path, how: int, anew: bool = False, patience_seconds: float = 0.0) -> Iterator[bool]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        status = os.fstat(descriptor)
        key = (status.st_dev, status.st_ino)
        if _own[key] and not anew:
            yield True
            return
        known = _take(descriptor, how, directory, patience_seconds)
        if how == fcntl.LOCK_EX and not os.path.samestat(status, os.stat(directory)):
            raise FileNotFoundError(errno.ENOENT, "it was taken away", str(directory))
        owned = int(known and how == fcntl.LOCK_EX)
        _own[key] += owned
        try:
            yield known
        finally:
            _own[key] -= owned
    finally:
        os.close(descriptor)


def _take(descriptor: int, how: int, directory: Path, patience_seconds: float) -> bool:
    """Whether the lock was taken; false where there are none."""
    until = time.monotonic() + patience_seconds
    while True:
        try:
            fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= until:
                raise _busy(descriptor, how, directory) from error
            time.sleep(0.02)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            raise
        else:
            return True


def _busy(descriptor: int, how: int, directory: Path) -> BusyError:
    found = holders(descriptor)
    first = found[0] if found else None
    who = f"process {first.pid} ({first.command}, since {first.since})" if first else "another process"
    others = f" and {len(found) - 1} more" if len(found) > 1 else ""
    does = "has it in use" if how == fcntl.LOCK_EX else "is changing it"
    return BusyError(
        f"{directory} is locked: {who}{others} {does}; wait until that has ended, and run again",
        path=str(directory),
        pid=first.pid if first else None,
        command=first.command if first else None,
        since=first.since if first else None,
    )


def holders(descriptor: int) -> list[Holder]:
    """The processes that have a lock on an open file; none where the system does not tell (it does in /proc/locks).

    proc_locks(5): "1: FLOCK  ADVISORY  WRITE 5433 08:01:7864448 0 EOF". Some file systems (btrfs, overlayfs) show there
    another device than stat does, so without the device's match the inode's has to do.
    """
    status = os.fstat(descriptor)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    except OSError:
        return []
    locks = [line for line in lines if len(line) > 5 and line[1] == "FLOCK" and line[5].endswith(f":{status.st_ino}")]
    exact = [line for line in locks if line[5] == place] or locks
    pids = dict.fromkeys(int(line[4]) for line in exact)
    return [_holder(pid) for pid in pids if pid > 0]


def _holder(pid: int) -> Holder:
    command, since = "of unknown command", "an unknown time"
    with suppress(OSError, ValueError, IndexError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        command = " ".join(words).strip() or command
        # proc_pid_stat(5): field 22 is the start in clock ticks after boot; the second one may have blanks in it.
        ticks = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        booted = next(line for line in Path("/proc/stat").read_text(encoding="ascii").splitlines() if "btime" in line)
        started = int(booted.split()[1]) + ticks / os.sysconf("SC_CLK_TCK")
        since = datetime.fromtimestamp(started).astimezone().isoformat(sep=" ", timespec="seconds")
    return Holder(pid, command, since)
