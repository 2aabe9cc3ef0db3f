"""A command, the place where it is run, and what may be there after it was killed or failed."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from ropetool.checkpoint import in_place
from ropetool.checkpoint.journal import JOURNAL
from tests.crash.checkpoint import Picture, build, difference, picture
from tests.crash.running import Body, Done, plain, ropetool

SRC, DST, ELSEWHERE = "src", "dst", "elsewhere"
BATCH_BYTES = 40 << 10  # so that the small checkpoint is changed in several batches, as a large one is

Judged = tuple[str, list[str]]


@dataclass(frozen=True)
class Command:
    """A command by its arguments; ``{src}`` and ``{dst}`` are filled in. ``linked`` gives the shards other names.

    A ``synced`` one has to survive a power cut.
    """

    name: str
    arguments: tuple[str, ...]
    in_place: bool = False
    linked: bool = False
    synced: bool = False

    def at(self, root: Path, run: Body = ropetool) -> Scene:
        """The scene of this command in the empty directory ``root``."""
        in_place.BATCH_BYTES = in_place.SYNCED_BATCH_BYTES = BATCH_BYTES
        _import_all(self)
        return InPlace(self, root, run) if self.in_place else Beside(self, root, run)


CONVERT = ("convert", "{src}", "{dst}", "--to", "interleaved", "--quiet")
EXTEND = ("extend", "{src}", "{dst}", "--method", "yarn", "--factor", "4", "--quiet")
IN_PLACE = ("convert", "{src}", "--in-place", "--to", "interleaved", "--quiet")

COMMANDS = (
    Command("convert", CONVERT),
    Command("convert --sync", (*CONVERT, "--sync"), synced=True),
    Command("extend", EXTEND),
    Command("extend --weights copy", (*EXTEND, "--weights", "copy")),
    Command("convert --in-place", IN_PLACE, in_place=True, synced=True),
    Command("convert --in-place --no-sync", (*IN_PLACE, "--no-sync"), in_place=True),
    Command("convert --in-place --break-links", (*IN_PLACE, "--break-links"), in_place=True, linked=True, synced=True),
)


@cache
def _import_all(command: Command) -> None:
    """Run the command once in this process, elsewhere: its children need not import what it imports."""
    with tempfile.TemporaryDirectory() as elsewhere:
        src, dst = build(Path(elsewhere) / SRC), Path(elsewhere) / DST
        for words in (command.arguments, ("convert", "{src}", "--resume"), ("inspect", "{src}")):
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                code = ropetool([word.format(src=src, dst=dst) for word in words])
            assert code == (2 if "--resume" in words else 0), f"{words} ended with {code}"


class Scene(Protocol):
    """A root directory with the source in it; what the command makes of it unharmed is known from one run."""

    command: Command
    root: Path
    src: Path
    run: Body

    @property
    def arguments(self) -> Sequence[str]:
        """The command's arguments here."""

    def clear(self) -> None:
        """Back to the source alone, as it was."""

    def close(self) -> None:
        """Remove what was kept elsewhere."""

    def after_kill(self) -> Judged:
        """Recover; returns in a word how, and everything that is wrong."""

    def after_fault(self, done: Done) -> Judged:
        """What a run came to in which something failed: got round, or refused; and everything that is wrong."""


def bytes_of_files(directory: Path) -> list[int]:
    """The sizes of all files below a directory."""
    return [path.stat().st_size for path in directory.rglob("*") if path.is_file()]


def faults_of_refusal(done: Done) -> Iterator[str]:
    """What is wrong with how a failure is told, if anything: one sentence and exit code 2 are right."""
    lines = done.err.strip().splitlines()
    if done.code != 2 or len(lines) != 1 or not lines[0].startswith("error: ") or "fault of ropetool" in lines[0]:
        yield f"exit code {done.code}, saying {' / '.join(lines)[:300]!r}"


def _must_be(directory: Path, wanted: Picture, what: str) -> Iterator[str]:
    if changed := difference(picture(directory), wanted):
        yield f"{what}: {changed}"


class Beside:
    """A command that writes its result beside the source, which must stay as it was."""

    def __init__(self, command: Command, root: Path, run: Body) -> None:
        self.command, self.root, self.run = command, root, run
        self.src, self.dst = root / SRC, root / DST
        build(self.src)
        self.source: Picture = picture(self.src)
        done = plain(self.arguments, run=ropetool)
        assert done.code == 0, done.err
        self.wanted: Picture = picture(self.dst)
        shutil.rmtree(self.dst)

    @property
    def arguments(self) -> Sequence[str]:
        """The command's arguments here."""
        return [word.format(src=self.src, dst=self.dst) for word in self.command.arguments]

    def leftovers(self) -> list[str]:
        """What lies beside source and result."""
        return sorted(path.name for path in self.root.iterdir() if path.name not in (SRC, DST))

    def clear(self) -> None:
        """Back to the source alone."""
        for name in (DST, *self.leftovers()):
            path = self.root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing was kept elsewhere."""

    def after_kill(self) -> Judged:
        """The next run has to remove what a killed one left."""
        faults = list(_must_be(self.src, self.source, "the source was changed"))
        left, whole = self.leftovers(), self.dst.exists()
        if not whole:
            again = plain(self.arguments, run=self.run)
            if again.code != 0:
                faults.append(f"the next run ended with {again.code}: {again.err.strip()}")
        faults += _must_be(self.dst, self.wanted, "the result is not the new state")
        faults += _must_be(self.src, self.source, "the source was changed by the next run")
        if still := self.leftovers():
            faults.append(f"left behind: {', '.join(still)}")
        return ("new" if whole else "leftovers removed" if left else "old"), faults

    def after_fault(self, done: Done) -> Judged:
        """A fault is either got round or told in one sentence, with nothing left of the result."""
        faults = list(_must_be(self.src, self.source, "the source was changed"))
        if done.code == 0:
            faults += _must_be(self.dst, self.wanted, "the result is not the new state")
        else:
            faults += faults_of_refusal(done)
            if self.dst.exists() and "is whole" in done.err:  # said too: a power cut may undo its last step
                return "new, and perhaps not on disk", [*faults, *_must_be(self.dst, self.wanted, "it is not whole")]
            if self.dst.exists():
                faults.append("there is a result all the same")
        if left := self.leftovers():
            faults.append(f"left behind: {', '.join(left)}")
        return ("got round" if done.code == 0 else "refused"), faults


class InPlace:
    """A command that changes the source: old, or new, or with a journal from which it becomes either."""

    def __init__(self, command: Command, root: Path, run: Body) -> None:
        self.command, self.root, self.run = command, root, run
        self.src, self.elsewhere = root / SRC, root / ELSEWHERE
        self.kept = Path(tempfile.mkdtemp(prefix="crash-kept-"))  # not below the root, whose calls are watched
        build(self.src)
        if command.linked:
            _link(self.src, self.elsewhere)
        self.old: Picture = picture(self.src)
        self.others: Picture = picture(self.elsewhere)
        self.keep("pristine")
        done = plain(self.arguments, run=ropetool)
        assert done.code == 0, done.err
        self.new: Picture = picture(self.src)
        assert self.new != self.old
        self.clear()

    @property
    def arguments(self) -> Sequence[str]:
        """The command's arguments here."""
        return [word.format(src=self.src) for word in self.command.arguments]

    def ending(self, word: str) -> Sequence[str]:
        """The arguments of what ends an interrupted run: ``--resume`` or ``--undo``."""
        return ["convert", str(self.src), word, "--quiet"]

    def keep(self, name: str) -> None:
        """Keep the state of everything under a name."""
        shutil.rmtree(self.kept / name, ignore_errors=True)
        _copy(self.root, self.kept / name)

    def bring_back(self, name: str) -> None:
        """Back to a state that was kept."""
        for path in self.root.iterdir():
            shutil.rmtree(path)
        _copy(self.kept / name, self.root)

    def clear(self) -> None:
        """Back to the source as it was."""
        self.bring_back("pristine")

    def close(self) -> None:
        """Remove what was kept."""
        shutil.rmtree(self.kept)

    @property
    def is_half(self) -> bool:
        """Whether a journal is there."""
        return (self.src / JOURNAL).exists()

    def after_kill(self) -> Judged:
        """Without a journal it is old or new, and the next run makes it new; with one, `ends_both_ways`."""
        faults = list(_must_be(self.elsewhere, self.others, "what shares its files was changed"))
        if self.is_half:
            return "resumed and undone", [*faults, *self.ends_both_ways()]
        now = picture(self.src)
        if not difference(now, self.new):
            return "new", faults
        changed = difference(now, self.old)
        again = plain(self.arguments, run=self.run)
        if again.code != 0:
            faults.append(f"the next run ended with {again.code}: {again.err.strip()}")
        faults += _must_be(self.src, self.new, "the next run did not make the new state")
        return (f"leftovers removed ({changed})" if changed else "old"), faults

    def ends_both_ways(self) -> Iterator[str]:
        """What is wrong with a half converted directory: all else refuses it, and it can be finished and taken back."""
        for words in (["inspect", str(self.src)], self.arguments):
            done = plain(words, run=self.run)
            if done.code != 2 or "--resume" not in done.err or "--undo" not in done.err:
                yield f"{words[0]} does not refuse it: exit code {done.code}, {done.err.strip()[:200]!r}"
        self.keep("half")
        for word, wanted in (("--resume", self.new), ("--undo", self.old)):
            self.bring_back("half")
            done = plain(self.ending(word), run=self.run)
            if done.code != 0:
                yield f"{word} ended with {done.code}: {done.err.strip()[:300]}"
            yield from _must_be(self.src, wanted, f"{word} did not make the right state")
            yield from _must_be(self.elsewhere, self.others, f"{word} changed what shares its files")

    def after_ends(self, word: str) -> Iterator[str]:
        """What is wrong after ``word`` (the conversion, ``--resume`` or ``--undo``) was killed or came to its end."""
        yield from _must_be(self.elsewhere, self.others, "what shares its files was changed")
        if self.is_half:
            yield from self.ends_both_ways()
            return
        now = picture(self.src)
        wanted = {"--resume": (self.new,), "--undo": (self.old,)}.get(word, (self.old, self.new))
        if all(difference(now, end) for end in wanted):
            yield f"after {word} it is neither half converted nor right: {difference(now, wanted[0])}"

    def after_fault(self, done: Done) -> Judged:
        """A fault is got round, or told in one sentence: it is as it was, or half converted, which is said."""
        faults = list(_must_be(self.elsewhere, self.others, "what shares its files was changed"))
        if done.code == 0:
            return "got round", [*faults, *_must_be(self.src, self.new, "the result is not the new state")]
        faults += faults_of_refusal(done)
        if not self.is_half and "is whole" in done.err:  # said too: a power cut may undo its last step
            return "new, and perhaps not on disk", [*faults, *_must_be(self.src, self.new, "it is not whole")]
        if not self.is_half:
            return "refused", [*faults, *_must_be(self.src, self.old, "it is not as it was")]
        if "--resume" not in done.err or "--undo" not in done.err:
            faults.append(f"it is half converted, and what to do is not said: {done.err.strip()[:300]!r}")
        return "refused, resumed and undone", [*faults, *self.ends_both_ways()]


def _copy(source: Path, target: Path) -> None:
    """Copy a tree, links as links: a symbolic one, and two names of one file."""
    names: dict[int, Path] = {}

    def copy(path: str, place: str) -> str:
        status = os.lstat(path)
        if status.st_ino in names:
            os.link(names[status.st_ino], place)
        else:
            shutil.copy2(path, place, follow_symlinks=False)
            if status.st_nlink > 1:
                names[status.st_ino] = Path(place)
        return place

    shutil.copytree(source, target, symlinks=True, copy_function=copy, dirs_exist_ok=True)


def _link(src: Path, elsewhere: Path) -> None:
    """Give shards other names, one as a symbolic link: as in a cache that other checkpoints use."""
    elsewhere.mkdir()
    for number, shard in enumerate(sorted(src.glob("*.safetensors"))):
        other = elsewhere / f"blob-{number}"
        if number == 0:
            shard.rename(other)
            shard.symlink_to(Path("..") / ELSEWHERE / other.name)
        else:
            os.link(shard, other)
