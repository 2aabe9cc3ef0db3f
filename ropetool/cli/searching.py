"""``ropetool extend --method auto`` and ``--search``: measure, choose, and write what was chosen."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import Named, local
from ropetool.cli.keeping import check_out
from ropetool.cli.options import parse_text, read_text
from ropetool.cli.sink import Sink
from ropetool.engines.names import EngineName
from ropetool.errors import OutputError, UsageError
from ropetool.families.methods import Method
from ropetool.models.options import Device, DType, MaxMemory

if TYPE_CHECKING:
    from ropetool.extend import Extension
    from ropetool.families.candidates import Candidate
    from ropetool.models.searched import Searched

SearchOption = Annotated[
    bool, typer.Option("--search", help="longrope: search one factor for each pair on the --text, for this model.")
]
TextFile = Annotated[
    Path | None,
    typer.Option(
        "--text", parser=parse_text, metavar="FILE|bundled",
        help="auto, --search: the text to measure on: one half to choose by, the other to report by.",
    ),
]  # fmt: skip
For = Annotated[EngineName | None, typer.Option("--for", help="auto, --search: only what this engine honours.")]
Budget = Annotated[float | None, typer.Option("--budget", metavar="MINUTES", help="auto, --search: default 30.")]
Trials = Annotated[
    int | None,
    typer.Option("--trials", min=4, max=1000, help="auto, --search: read up to so many settings, not as time allows."),
]
Seed = Annotated[int | None, typer.Option("--seed", help="auto, --search: of the optimiser and passkeys; default 7.")]
StudyFile = Annotated[
    Path | None,
    typer.Option("--study", metavar="FILE", help="auto, --search: keep every measurement; the same again resumes."),
]
DeviceOption = Annotated[Device | None, typer.Option("--device", help="auto, --search: where to run.")]
DTypeOption = Annotated[DType | None, typer.Option("--dtype", help="auto, --search: what to compute in.")]


@dataclass(frozen=True)
class Asked:
    """The options of a search, as they were given."""

    text: Path | None = None
    engine: EngineName | None = None
    budget: float | None = None
    trials: int | None = None
    seed: int | None = None
    study: Path | None = None
    device: Device | None = None
    dtype: DType | None = None
    max_memory: MaxMemory | None = None


FLAGS = {
    "text": "--text", "engine": "--for", "budget": "--budget", "trials": "--trials", "seed": "--seed",
    "study": "--study", "device": "--device", "dtype": "--dtype", "max_memory": "--max-memory",
}  # fmt: skip


def wanted(method: Method, search: bool, to: int | None, given: Mapping[str, Any], asked: Asked) -> bool:
    """Whether to search; raises `UsageError` for options of a search without one, and the other way round."""
    if search and method is not Method.LONGROPE:
        raise UsageError(
            f"--search finds the factors of longrope, not of {method.value}; give --method longrope, or no --search"
        )
    if not search and method is not Method.AUTO:
        named = next((flag for name, flag in FLAGS.items() if getattr(asked, name) is not None), None)
        if named:
            raise UsageError(f"{named} is about a search; give --method auto, or --method longrope --search, as well")
        return False
    what = "--search" if search else "--method auto"
    fixed = next(iter(given), None)
    if fixed:
        raise UsageError(f"{what} finds the settings by itself; leave out --{fixed.replace('_', '-')}", key=fixed)
    if to is None:
        raise UsageError(f"{what} needs the new length by --to")
    if asked.text is None:
        raise UsageError(f"{what} measures on a text: give one by --text FILE, twice as long as the new length or more")
    return True


def check_places(src: Named, dst: Path, asked: Asked, out: Path | None) -> None:
    """Raises `OutputError` for places that cannot be written to, or would meet, before the work."""
    for flag, place in (("--out", out), ("--study", asked.study)):
        if place is None:
            continue
        if dst.resolve() in (place.resolve(), *place.resolve().parents):
            raise OutputError(f"{flag} {place} lies in {dst}, which is to be written; name a place outside it")
        check_out(place, [src.path], flag)
    if asked.text is not None:  # after a search of half an hour it would be late
        for flag, parent in (("DST", dst.parent), ("--out", out and out.parent)):
            if parent is not None and parent.is_dir():
                _check_writable(flag, parent)
    files = [("--text", asked.text), ("--study", asked.study), ("--out", out)]
    for at, (flag, place) in enumerate(files):
        for other_flag, other in files[at + 1 :]:
            if place is not None and other is not None and _is_same(place, other):
                raise OutputError(f"{flag} and {other_flag} are both {place}; name a file for each")


def _check_writable(flag: str, directory: Path) -> None:
    """Raises `OutputError` for a directory that takes no file, by one without a name."""
    try:
        tempfile.TemporaryFile(dir=directory).close()
    except OSError as error:
        said = f"{flag} cannot be written: {directory} takes no file ({error.strerror}); name another place"
        raise OutputError(said, path=str(directory)) from error


def _is_same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and os.path.samefile(one, other))


def run(
    src: Named, asked: Asked, length: int, factors: bool, planned: Callable[..., Extension], sink: Sink
) -> tuple[Extension, Searched]:
    """Search; returns what is to be written, and what was found. ``planned`` is `extend.plan`."""
    from ropetool import search as verb

    path = local(src, Need.WEIGHTS, sink)
    text = asked.text
    if text is None:
        raise UsageError("a search measures on a text")
    wish = verb.Wish(
        read_text(text), text.name, length, factors, asked.engine, 30.0 if asked.budget is None else asked.budget,
        asked.trials, 7 if asked.seed is None else asked.seed, asked.study, asked.device or Device.AUTO, asked.dtype,
        asked.max_memory,
    )  # fmt: skip

    def extended(candidate: Candidate) -> verb.Extended:
        result = _plan_of(candidate, planned, path, length)
        told = result.result
        return verb.Extended(
            result.config, result.reading, told.factor, told.theta, told.attention_factor, told.original_length
        )

    try:
        found, candidate = verb.search(path, wish, extended, sink.talk)
    except KeyboardInterrupt:
        if asked.study is not None and asked.study.exists():
            sys.stderr.write(f"{asked.study} keeps what was measured: the same command goes on from there\n")
        raise
    return _plan_of(candidate, planned, path, length), replace(found, checkpoint=str(src))


def _plan_of(candidate: Candidate, planned: Callable[..., Extension], path: Path, length: int) -> Extension:
    """The extension that a candidate stands for."""
    return planned(path, method=candidate.method, to=length, settings=candidate.settings)
