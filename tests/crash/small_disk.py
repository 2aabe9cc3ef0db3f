"""A disk that is really full: a tmpfs made smaller under the command, and a limit on the size of any file it writes."""

from __future__ import annotations

import resource
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.crash.killing import FAILED, Outcome
from tests.crash.running import plain, ropetool
from tests.crash.scenes import Scene, bytes_of_files

PAGE_BYTES = 4096


@contextmanager
def file_system(place: Path, size_bytes: int = 64 << 20) -> Iterator[str]:
    """A tmpfs at ``place``; yields why there is none, empty where there is one."""
    place.mkdir()
    why = _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "ropetool-test", str(place))
    try:
        yield why
    finally:
        if not why:
            subprocess.run(["umount", "-l", str(place)], check=True, timeout=30)


def _mount(*arguments: str) -> str:
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False, timeout=30)
    except OSError as error:
        return str(error)
    return "" if done.returncode == 0 else f"mount is not permitted: {done.stderr.strip()}"


def used_bytes(place: Path) -> int:
    """Bytes that a file system holds now."""
    lines = subprocess.run(
        ["df", "--output=used", "-B1", str(place)], capture_output=True, text=True, check=True, timeout=30
    ).stdout.split()
    return int(lines[1])


def steps(most_bytes: int, number: int) -> list[int]:
    """``number`` amounts up to ``most_bytes``, whole pages, the small ones closer together."""
    return [max(1, most_bytes * step**2 // number**2 // PAGE_BYTES) * PAGE_BYTES for step in range(1, number + 1)]


def fill_disk(scene: Scene, number: int) -> Iterator[Outcome]:
    """Run the command in a file system (the scene's root) with so much and so much left, up to more than it needs."""
    used = used_bytes(scene.root)
    for left in steps(sum(bytes_of_files(scene.src)) * 5 // 4, number):
        assert not _mount("-o", f"remount,size={used + left}", str(scene.root))
        done = plain(scene.arguments, run=scene.run)
        assert not _mount("-o", f"remount,size={64 << 20}", str(scene.root))
        how, wrong = scene.after_fault(done)
        scene.clear()
        yield Outcome(
            scene.command.name, "a small disk", f"{left} bytes left", FAILED if wrong else how, "; ".join(wrong)
        )


def limit_files(scene: Scene, number: int) -> Iterator[Outcome]:
    """Run the command where no file may be longer than so much: RLIMIT_FSIZE, a disk that is full in mid-file."""
    for limit in steps(max(bytes_of_files(scene.src)) * 5 // 4, number):

        def limited(arguments: Sequence[str], limit: int = limit) -> int:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            return ropetool(arguments)

        done = plain(scene.arguments, run=limited)
        how, wrong = scene.after_fault(done)
        scene.clear()
        yield Outcome(
            scene.command.name, "files limited", f"{limit} bytes a file", FAILED if wrong else how, "; ".join(wrong)
        )
