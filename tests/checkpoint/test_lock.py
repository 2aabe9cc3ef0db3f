"""Kernel locks on directories: who is refused, who is named, and that a dead process holds nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ropetool.checkpoint import lock
from ropetool.checkpoint.lock import claim, exclusive, refuse_busy, session, share
from ropetool.errors import BusyError

HOLDER = """
import sys, time
from pathlib import Path
from ropetool.checkpoint import lock
with lock.session():
    getattr(lock, sys.argv[1])(Path(sys.argv[2]))
    print("has it", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def hold() -> Iterator[Callable[[str, Path], subprocess.Popen[str]]]:
    """Start another process that shares or claims a directory."""
    started: list[subprocess.Popen[str]] = []

    def start(how: str, directory: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, how, str(directory)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "has it\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_who_changes_keeps_readers_out_and_is_named(hold, tmp_path: Path) -> None:
    process = hold("claim", tmp_path)
    for asked in (refuse_busy, share, claim):
        with session(), pytest.raises(BusyError, match="is locked") as caught:
            asked(tmp_path)
        assert caught.value.fields["pid"] == process.pid
        assert "-c" in caught.value.fields["command"]
        assert f"process {process.pid}" in caught.value.message
        assert caught.value.fields["since"].startswith("20")


def test_readers_keep_out_who_would_change_and_not_each_other(hold, tmp_path: Path) -> None:
    first, second = hold("share", tmp_path), hold("share", tmp_path)
    refuse_busy(tmp_path)
    with session():
        share(tmp_path)
    with session(), pytest.raises(BusyError, match=r"and 1 more has it in use") as caught:
        claim(tmp_path)
    assert caught.value.fields["pid"] in (first.pid, second.pid)


@pytest.mark.parametrize("how", ["claim", "share"])
def test_a_dead_process_holds_nothing(how: str, hold, tmp_path: Path) -> None:
    process = hold(how, tmp_path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with exclusive(tmp_path) as known:
        assert known
    assert list(tmp_path.iterdir()) == [], "a lock is no file"


def test_a_session_ends_what_it_held(tmp_path: Path) -> None:
    with session():
        assert claim(tmp_path)
        refuse_busy(tmp_path)  # its own
        share(tmp_path)
    with session():
        share(tmp_path)
    with exclusive(tmp_path) as known:
        assert known


def test_a_file_stands_for_its_directory_and_what_is_not_there_is_not_locked(hold, tmp_path: Path) -> None:
    (tmp_path / "one.safetensors").write_bytes(b"")
    hold("claim", tmp_path)
    with pytest.raises(BusyError):
        refuse_busy(tmp_path / "one.safetensors")
    refuse_busy(tmp_path / "nothing")
    share(tmp_path / "nothing")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF, errno.EOPNOTSUPP])
def test_without_locks_it_is_read_and_whoever_changes_it_is_told(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    refuse_busy(tmp_path)
    with exclusive(tmp_path) as known:
        assert not known


def test_where_the_system_does_not_tell_who_it_is_another_process(
    hold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold("claim", tmp_path)
    monkeypatch.setattr(lock, "holders", lambda descriptor: [])
    with pytest.raises(BusyError, match="another process is changing it") as caught:
        refuse_busy(tmp_path)
    assert caught.value.fields["pid"] is None
