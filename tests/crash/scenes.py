"""A command, the place where it is run, and what may be there after it was killed or failed."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.crash.checkpoint import Picture, build, difference, picture
from tests.crash.running import Body, Done, plain, ropetool

SRC, DST = "src", "dst"
ONE_LINE = "error: "


@dataclass(frozen=True)
class Command:
    """A command by its arguments; ``{src}`` and ``{dst}`` are filled in."""

    name: str
    arguments: tuple[str, ...]
    in_place: bool = False

    def at(self, root: Path, run: Body = ropetool) -> Scene:
        """The scene of this command in the empty directory ``root``."""
        return Scene(self, root, run)


COMMANDS = (
    Command("convert", ("convert", "{src}", "{dst}", "--to", "interleaved", "--quiet")),
    Command("convert --sync", ("convert", "{src}", "{dst}", "--to", "interleaved", "--sync", "--quiet")),
    Command("extend", ("extend", "{src}", "{dst}", "--method", "yarn", "--factor", "4", "--quiet")),
    Command(
        "extend --weights copy",
        ("extend", "{src}", "{dst}", "--method", "yarn", "--factor", "4", "--weights", "copy", "--quiet"),
    ),
)


@cache
def _import_all(command: Command) -> None:
    """Run the command once in this process, elsewhere: its children need not import what it imports."""
    with tempfile.TemporaryDirectory() as elsewhere, redirect_stdout(io.StringIO()):
        src, dst = build(Path(elsewhere) / SRC), Path(elsewhere) / DST
        assert ropetool([word.format(src=src, dst=dst) for word in command.arguments]) == 0


class Scene:
    """A root directory with the source in it; what the command makes of it unharmed is known from one run."""

    def __init__(self, command: Command, root: Path, run: Body) -> None:
        self.command, self.root, self.run = command, root, run
        self.src, self.dst = root / SRC, root / DST
        _import_all(command)
        build(self.src)
        self.source: Picture = picture(self.src)
        done = plain(self.arguments, run=run)
        assert done.code == 0, done.err
        self.wanted: Picture = picture(self.dst)
        shutil.rmtree(self.dst)

    @property
    def arguments(self) -> Sequence[str]:
        """The command's arguments here."""
        return [word.format(src=self.src, dst=self.dst) for word in self.command.arguments]

    @property
    def needs_bytes(self) -> int:
        """Bytes of all files of the source."""
        return sum(path.stat().st_size for path in self.src.rglob("*") if path.is_file())

    @property
    def largest_file_bytes(self) -> int:
        """Bytes of its largest file."""
        return max(path.stat().st_size for path in self.src.rglob("*") if path.is_file())

    def leftovers(self) -> list[str]:
        """What lies beside source and result."""
        return sorted(path.name for path in self.root.iterdir() if path.name not in (SRC, DST))

    def clear(self) -> None:
        """Back to the source alone."""
        for name in (DST, *self.leftovers()):
            path = self.root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def faults_of_source(self) -> Iterator[str]:
        """What is wrong with the source, if anything."""
        if changed := difference(picture(self.src), self.source):
            yield f"the source was changed: {changed}"

    def faults_of_result(self) -> Iterator[str]:
        """What is wrong with the result, if anything."""
        if changed := difference(picture(self.dst), self.wanted):
            yield f"the result is not the new state: {changed}"

    def after_kill(self) -> tuple[str, list[str]]:
        """Recover and say how: by the next run, which has to remove what a killed one left."""
        faults = list(self.faults_of_source())
        left, whole = self.leftovers(), self.dst.exists()
        faults += self.faults_of_result() if whole else ()
        if not whole:
            again = plain(self.arguments, run=self.run)
            if again.code != 0:
                faults.append(f"the next run ended with {again.code}: {again.err.strip()}")
            faults += self.faults_of_result()
        faults += self.faults_of_source()
        if still := self.leftovers():
            faults.append(f"left behind: {', '.join(still)}")
        return ("new" if whole else "leftovers removed" if left else "old"), faults

    def after_fault(self, done: Done) -> tuple[str, list[str]]:
        """A fault is either got round or told in one sentence, with nothing left of the result."""
        faults = list(self.faults_of_source())
        if done.code == 0:
            faults += self.faults_of_result()
        else:
            faults += self.faults_of_refusal(done)
            if self.dst.exists():
                faults.append("there is a result all the same")
        if left := self.leftovers():
            faults.append(f"left behind: {', '.join(left)}")
        return ("got round" if done.code == 0 else "refused"), faults

    @staticmethod
    def faults_of_refusal(done: Done) -> Iterator[str]:
        """What is wrong with how a failure is told, if anything."""
        lines = done.err.strip().splitlines()
        if done.code != 2 or len(lines) != 1 or not lines[0].startswith(ONE_LINE) or "fault of ropetool" in lines[0]:
            yield f"exit code {done.code}, saying {' / '.join(lines)[:300]!r}"
