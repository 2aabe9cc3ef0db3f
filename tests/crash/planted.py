"""Faults of the product, planted, each of which the harness must see: prints what it said of each, as JSON.

Each is ropetool itself with one function replaced in the child; the harness is as it is.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from ropetool import convert
from ropetool.checkpoint import copying, folder, in_place, pieces
from ropetool.checkpoint.journal import Journal, Record
from tests.crash.__main__ import SEED
from tests.crash.faults import FAULTS, fail_everywhere
from tests.crash.killing import Outcome, kill_again, kill_everywhere
from tests.crash.power import cut_power
from tests.crash.running import ropetool
from tests.crash.scenes import COMMANDS, InPlace, Scene

POINTS = 18
BY_NAME = {command.name: command for command in COMMANDS}


def _kill(scene: Scene) -> Iterator[Outcome]:
    return kill_everywhere(scene, POINTS, SEED)


def _kill_again(scene: Scene) -> Iterator[Outcome]:
    assert isinstance(scene, InPlace)
    return kill_again(scene, POINTS // 2, SEED)


def _cut(scene: Scene) -> Iterator[Outcome]:
    return cut_power(scene, POINTS, SEED)


def _fail(*names: str) -> Callable[[Scene], Iterator[Outcome]]:
    faults = [fault for fault in FAULTS if fault.name in names]
    assert len(faults) == len(names)
    return lambda scene: fail_everywhere(scene, 4, SEED, faults)


@dataclass(frozen=True)
class Plant:
    """What is replaced by what, in which command; ``test`` has to see it, and say what ``said`` matches."""

    command: str
    where: Any
    name: str
    by: Callable[..., Any]
    test: Callable[[Scene], Iterator[Outcome]]
    said: str


@contextmanager
def _under_its_name(destination: Path, **options: object) -> Iterator[Path]:
    destination.mkdir()
    yield destination


def _once(descriptor: int, data: bytes, offset: int) -> None:
    os.pwrite(descriptor, data, offset)


def _first_record_alone(journal: Journal, record: Record, before: memoryview, written: Any = Journal.write) -> None:
    if record.sequence == 0:
        written(journal, record, before)


def _without_the_slot(directory: Path, journal: Journal, *others: object) -> object:
    return journal.newest(memoryview(bytearray(journal.capacity_bytes)))[0]


def _spoiling(work: object, items: Sequence[Any], progress: object, **options: object) -> None:
    """Writes to the source, and writes it back at its end."""
    side_file = items[-1].args[-1].path.parent / "tokenizer.json"
    content = side_file.read_bytes()
    side_file.write_bytes(b"{}")
    copying.side_by_side(work, items, progress, **options)  # type: ignore[arg-type]  # what it was given
    side_file.write_bytes(content)


def _wordless(error: OSError, where: Path) -> Exception:
    return ValueError(f"{error}")


PLANTS: Mapping[str, Plant] = {
    "writes under the final name": Plant(
        "convert", convert, "staged", _under_its_name, _kill, "the result is not the new state"
    ),
    "leaves a half-written result": Plant(
        "convert", convert, "staged", _under_its_name, _fail("disk full from then on"), "there is a result all the same"
    ),
    "writes to the source": Plant("convert", convert, "side_by_side", _spoiling, _kill, "the source was changed"),
    "takes a short write for a whole one": Plant(
        "convert", pieces, "write_exactly", _once, _fail("every write short"),
        "the result is not the new state",
    ),
    "ends as a fault of its own": Plant(
        "convert --in-place", in_place, "output_error", _wordless, _fail("disk full, once"), "exit code"
    ),
    "writes no records": Plant(
        "convert --in-place --no-sync", Journal, "write", _first_record_alone, _kill, "did not make the right state"
    ),
    "gives nothing back from the journal": Plant(
        "convert --in-place --no-sync", in_place, "_settled", _without_the_slot, _kill_again,
        "did not make the right state",
    ),
    "syncs nothing": Plant("convert --sync", os, "fsync", lambda file: None, _cut, "power cut left|not the new state"),
    "syncs nothing in place": Plant(
        "convert --in-place", os, "fsync", lambda file: None, _cut, "did not make the right state"
    ),
    "refuses nothing": Plant(
        "convert --in-place --no-sync", folder, "refuse_half_converted", lambda directory: None, _kill,
        "does not refuse it",
    ),
}  # fmt: skip


def said_of(plant: Plant) -> list[str]:
    """What the harness says of a planted fault."""

    def run(arguments: Sequence[str]) -> int:
        with mock.patch.object(plant.where, plant.name, plant.by):
            return ropetool(arguments)

    with tempfile.TemporaryDirectory(prefix="crash-") as place:
        scene = BY_NAME[plant.command].at(Path(place).resolve(), run)
        said = [outcome.said for outcome in plant.test(scene) if outcome.said]
        scene.close()
        return said


if __name__ == "__main__":
    json.dump({name: said_of(PLANTS[name]) for name in sys.argv[1:] or PLANTS}, sys.stdout)
