"""What a power cut may leave: of writes that were not synced, any of the blocks; of names, as far as they got.

One run is watched. At each of its changes the disk may hold, of every file, each block of 4 KiB as it was when the file
was last synced or as at any write since; of directories, the names as after the last sync of one or after any change
since, in their order. That is what file systems with ordered metadata promise (ext4, XFS, btrfs), and no more: data may
be missing from a file that has its name.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.crash.calls import Call, Kind
from tests.crash.killing import FAILED, Outcome, unharmed
from tests.crash.ptrace import GO_ON
from tests.crash.running import traced
from tests.crash.scenes import Scene

BLOCK_BYTES = 4096
END = "the end"
O_TMPFILE = getattr(os, "O_TMPFILE", 0)  # Linux alone has it, and ptrace is of Linux alone


@dataclass(frozen=True)
class Entry:
    """A name: of a file by its inode, of a directory, or of a symbolic link."""

    mode: int
    inode: int = 0
    link: str = ""


Names = Mapping[str, Entry]
State = tuple[str, Names, Mapping[int, bytes]]


def _names(root: Path) -> Names:
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        link = os.readlink(path) if path.is_symlink() else ""
        found[path.relative_to(root).as_posix()] = Entry(status.st_mode, status.st_ino, link)
    return found


class Disk:
    """What was synced of a directory, and what came since; told of every call, keeps some states of a cut there."""

    def __init__(self, root: Path, every: float, rng: random.Random) -> None:
        self.root, self.every, self.rng = root, every, rng
        self.names: list[Names] = [_names(root)]
        self.versions: dict[int, list[bytes]] = {
            entry.inode: [(root / name).read_bytes()]
            for name, entry in self.names[0].items()
            if stat.S_ISREG(entry.mode)
        }
        self.states: list[State] = []

    def observe(self, call: Call, result: int, tid: int) -> None:
        """A call was made: take note of what it changed, or synced."""
        if result < 0 or not call.changes:
            return
        kind = call.row.kind
        if kind is Kind.OPEN:
            self._opened(call, Path(f"/proc/{tid}/fd/{result}"))
        elif call.row.fd is not None and kind in (Kind.WRITE, Kind.SYNC):
            self._written(kind, Path(f"/proc/{tid}/fd/{call.args[call.row.fd] & 0xFFFFFFFF}"))
        if kind in (Kind.OPEN, Kind.NAME, Kind.MODE):
            self.names.append(_names(self.root))
        if self.rng.random() < self.every:
            self.states.append(self.cut(str(call)))

    def _opened(self, call: Call, file: Path) -> None:
        flags = call.args[call.row.flags] if call.row.flags is not None else os.O_TRUNC
        inode = file.stat().st_ino
        if flags & os.O_EXCL or flags & O_TMPFILE == O_TMPFILE or inode not in self.versions:
            self.versions[inode] = [b""]
        elif flags & os.O_TRUNC:
            self.versions[inode].append(b"")

    def _written(self, kind: Kind, file: Path) -> None:
        status = file.stat()
        if stat.S_ISDIR(status.st_mode):
            self.names = [_names(self.root)]
        elif kind is Kind.SYNC:
            self.versions[status.st_ino] = [file.read_bytes()]
        else:
            self.versions.setdefault(status.st_ino, [b""]).append(file.read_bytes())

    def cut(self, where: str) -> State:
        """One of the states that a power cut may leave now."""
        taste = self.rng.choice(("first", "last", "any", "any", "any"))
        names = self._one_of(self.names, taste)
        inodes = {entry.inode for entry in names.values() if stat.S_ISREG(entry.mode)}
        contents = {inode: self._mixed(self.versions[inode], taste) for inode in inodes}
        return f"{where}, {taste} of {len(self.names)} states of names", names, contents

    def _one_of(self, states: list[Names], taste: str) -> Names:
        return states[0] if taste == "first" else states[-1] if taste == "last" else self.rng.choice(states)

    def _mixed(self, versions: list[bytes], taste: str) -> bytes:
        if len(versions) == 1 or taste == "first":
            return versions[0]
        if taste == "last":
            return versions[-1]
        size = len(self.rng.choice(versions))
        blocks = []
        for at in range(0, size, BLOCK_BYTES):
            block = self.rng.choice(versions)[at : at + BLOCK_BYTES]
            blocks.append(block.ljust(min(BLOCK_BYTES, size - at), b"\0")[: size - at])
        return b"".join(blocks)


def _put(root: Path, names: Names, contents: Mapping[int, bytes]) -> None:
    """Make a directory what a state says."""
    for path in root.iterdir():
        shutil.rmtree(path)
    placed: dict[int, Path] = {}
    for name, entry in sorted(names.items()):
        path = root / name
        if entry.link:
            path.symlink_to(entry.link)
        elif stat.S_ISDIR(entry.mode):
            path.mkdir()
            path.chmod(stat.S_IMODE(entry.mode))
        elif entry.inode in placed:
            os.link(placed[entry.inode], path)
        else:
            path.write_bytes(contents[entry.inode])
            path.chmod(stat.S_IMODE(entry.mode))
            placed[entry.inode] = path


def cut_power(scene: Scene, number: int, seed: int) -> Iterator[Outcome]:
    """Run a synced command once; let the power go at about ``number`` of its steps, and recover from each."""
    rng = random.Random(seed)
    changes = sum(call.changes for call in unharmed(scene).calls)
    states: list[State] = []
    while len(states) < 2 * number:
        disk = Disk(scene.root, min(1.0, number / changes), rng)
        done = traced(scene.arguments, scene.root, lambda call: GO_ON, disk.observe, run=scene.run)
        assert done.code == 0, done.err
        scene.clear()
        states += [*disk.states, *(disk.cut(END) for _ in range(1 + number // 8))]
    ends = [state for state in states if state[0].startswith(END)][: number // 4]
    others = [state for state in states if not state[0].startswith(END)]
    for where, names, contents in [*rng.sample(others, number - len(ends)), *ends]:
        _put(scene.root, names, contents)
        how, wrong = scene.after_kill()
        scene.clear()
        if where.startswith(END) and how != "new":
            wrong.append(f"the command had ended well, and the power cut left: {how}")
        yield Outcome(scene.command.name, "a power cut", where, FAILED if wrong else how, "; ".join(wrong))
