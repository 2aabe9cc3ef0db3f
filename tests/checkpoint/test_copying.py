"""Copying files whole or in part, whatever the file system can do, and several side by side."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ropetool.checkpoint import copying
from ropetool.checkpoint.copying import copied, copy_file, side_by_side
from ropetool.errors import ShardError

SIZE = 5_000_000
CONTENT = random.Random(1).randbytes(SIZE)
KERNEL = getattr(os, "copy_file_range", None)


def refusing(number: int, after: int = 0) -> Callable[..., int]:
    """A call of the kernel that says no after so many times."""
    calls = []

    def call(*arguments: int) -> int:
        calls.append(arguments)
        if len(calls) > after:
            raise OSError(number, os.strerror(number))
        return KERNEL(*arguments)

    return call


def short(reader: int, writer: int, count: int, start: int, to: int) -> int:
    return KERNEL(reader, writer, min(count, 100_003), start, to)


def clone(writer: int, request: int, reader: int) -> int:
    """What FICLONE does, without sharing blocks."""
    assert request == 0x40049409
    os.pwrite(writer, os.pread(reader, 1 << 30, 0), 0)
    return 0


# What the kernel makes of a copy, and of a clone; None: as it is here.
WAYS: dict[str, tuple[Callable[..., int] | None, Callable[..., int] | None]] = {
    "as it is here": (None, None),
    "clones": (None, clone),
    "short": (short, None),
    "empty": (lambda *arguments: 0, None),
    "stops in the middle": (refusing(errno.EXDEV, 1), None),
    **{f"no copy: {errno.errorcode[n]}": (refusing(n), None) for n in sorted(copying.NOT_IN_KERNEL)},
    **{
        f"no clone: {errno.errorcode[n]}": (short, refusing(n))
        for n in (errno.EOPNOTSUPP, errno.EXDEV, errno.ENOTTY, errno.EINVAL, errno.EPERM, errno.ENOSPC)
    },
}
LEFT_OUT = {
    "nothing": (),
    "the start": ((0, 4097),),
    "the end": ((SIZE - 1, SIZE),),
    "two that touch": ((10, 20), (20, 1_000_000)),
    "in no order": ((3_000_000, 3_000_001), (1, 700_000)),
    "everything": ((0, SIZE),),
}


@pytest.fixture
def kernel(monkeypatch) -> Callable[[str], None]:
    def become(way: str) -> None:
        copy, ioctl = WAYS[way]
        if copy is not None:
            monkeypatch.setattr(os, "copy_file_range", copy)
        if ioctl is not None:
            monkeypatch.setattr(fcntl, "ioctl", ioctl)

    return become


@pytest.mark.parametrize("left_out", LEFT_OUT)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_copying_gives_the_same_bytes(
    way: str, left_out: str, kernel, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(copying, "STEP_BYTES", 1 << 20)
    ranges = LEFT_OUT[left_out]
    (tmp_path / "a").write_bytes(CONTENT)
    kernel(way)
    counted: list[int] = []
    with copied(tmp_path / "a", tmp_path / "b", ranges, counted.append) as (reader, writer):
        for start, stop in ranges:
            os.pwrite(writer, os.pread(reader, stop - start, start)[::-1], start)
    expected = bytearray(CONTENT)
    for start, stop in ranges:
        expected[start:stop] = CONTENT[start:stop][::-1]
    assert (tmp_path / "b").read_bytes() == bytes(expected)
    assert sum(counted) == SIZE - sum(stop - start for start, stop in ranges)
    assert (tmp_path / "a").read_bytes() == CONTENT


def test_a_range_that_is_left_out_is_not_copied(tmp_path: Path) -> None:
    """Else the test above would pass by copying everything."""
    (tmp_path / "a").write_bytes(CONTENT)
    with copied(tmp_path / "a", tmp_path / "b", ((5, 4_000_000),)):
        pass
    copy = (tmp_path / "b").read_bytes()
    assert copy[5:4_000_000] == bytes(3_999_995)
    assert (copy[:5], copy[4_000_000:]) == (CONTENT[:5], CONTENT[4_000_000:])


@pytest.mark.parametrize("in_kernel", [True, False])
@pytest.mark.parametrize("size", [0, 1, 5_000_000])
def test_a_copy_is_the_same_bytes_and_is_counted(size: int, in_kernel: bool, tmp_path: Path, monkeypatch) -> None:
    if not in_kernel:
        monkeypatch.delattr(os, "copy_file_range")
    source, target, counted = tmp_path / "a", tmp_path / "b", []
    source.write_bytes(CONTENT[:size])
    source.chmod(0o440)
    copy_file(source, target, counted.append)
    assert target.read_bytes() == source.read_bytes()
    assert sum(counted) == size
    assert target.stat().st_mode & 0o777 == 0o640, "a copy of a read-only file can be patched"


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_an_error_of_the_disk_is_no_reason_to_try_again(number: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(os, "copy_file_range", refusing(number))
    (tmp_path / "a").write_bytes(b"content")
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        copy_file(tmp_path / "a", tmp_path / "b")
    assert caught.value.errno == number


@pytest.mark.parametrize("way", ["as it is here", "no copy: EXDEV"])
def test_a_source_that_shrinks_while_it_is_copied(way: str, kernel, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(copying, "STEP_BYTES", 1 << 20)
    (tmp_path / "a").write_bytes(CONTENT)
    kernel(way)
    with pytest.raises(ShardError, match=r"a source file ended [\d,]+ bytes early: it changed while"):
        copy_file(tmp_path / "a", tmp_path / "b", lambda done: os.truncate(tmp_path / "a", 1_000_000))


def test_a_copy_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "b").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        copy_file(tmp_path / "a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"old"


# --- side by side ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3, 50, None])
def test_all_work_is_done_once_and_counted(workers: int | None) -> None:
    done: list[int] = []
    counted: list[int] = []

    def work(item: int, progress: Callable[[int], None]) -> None:
        done.append(item)
        progress(item)

    side_by_side(work, range(40), counted.append, workers)
    assert sorted(done) == list(range(40))
    assert sum(counted) == sum(range(40))


def test_it_is_done_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=20)
    side_by_side(lambda item, progress: together.wait() and None, range(3), workers=3)
    with pytest.raises(threading.BrokenBarrierError):
        side_by_side(lambda item, progress: threading.Barrier(2, timeout=0.05).wait() and None, range(2), workers=1)


def test_one_thread_at_a_time_is_told_of_progress() -> None:
    inside: list[int] = []

    def progress(done_bytes: int) -> None:
        inside.append(1)
        assert len(inside) == 1
        time.sleep(0.0005)
        inside.pop()

    side_by_side(lambda item, told: [told(1) for _ in range(20)] and None, range(4), progress, workers=4)


class Planted(BaseException):
    """As Terminated, which is no Exception."""


@pytest.mark.parametrize("kind", [ShardError, OSError, IndexError, StopIteration, KeyboardInterrupt, Planted])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_first_error_is_raised_and_the_others_stop(kind: type[BaseException], workers: int) -> None:
    began: list[int] = []
    steps: list[int] = []

    def work(item: int, progress: Callable[[int], None]) -> None:
        began.append(item)
        if item == 1:
            raise kind("planted")
        for _ in range(200 if item == 0 and workers > 1 else 1):
            progress(1)
            steps.append(item)
            time.sleep(0.01)

    with pytest.raises(kind, match="planted"):
        side_by_side(work, range(40), workers=workers)
    assert set(began) <= {0, 1, 2, 3}
    assert steps.count(0) < 200
    assert threading.active_count() == 1 or all(not t.name.startswith("Thread") for t in threading.enumerate())


def test_an_error_of_progress_itself_is_raised() -> None:
    def refuse(done_bytes: int) -> None:
        raise ShardError("planted")

    with pytest.raises(ShardError, match="planted"):
        side_by_side(lambda item, told: told(1), range(4), refuse, workers=2)
