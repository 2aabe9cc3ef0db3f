"""The options of ``convert`` for a conversion in place, which of them go together, and ending an interrupted one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ropetool.checkpoint.lock import claim
from ropetool.cli.checkpoints import Named
from ropetool.cli.sink import Sink
from ropetool.errors import UsageError

InPlace = Annotated[bool, typer.Option("--in-place", help="Rewrite the moved rows of SRC itself, under a journal.")]
BreakLinks = Annotated[
    bool, typer.Option("--break-links", help="In place: copy the files first that are links or have other names.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Finish a conversion of SRC in place that was interrupted.")]
Undo = Annotated[bool, typer.Option("--undo", help="Take such a conversion back: SRC is what it was.")]
Sync = Annotated[
    bool | None,
    typer.Option("--sync/--no-sync", help="Wait for the disk, to survive a power cut. By default only in place."),
]


# What `convert` takes that ends an interrupted conversion: all else was said when that was begun.
_OF_THE_END = frozenset(("src", "resume", "undo", "break_links", "json", "quiet"))


def check_together(given: Mapping[str, Any]) -> None:
    """Raises `UsageError` for options of ``convert`` (``given`` has all, by parameter) that do not go together."""
    dst, in_place = given["dst"], given["in_place"]
    if given["resume"] or given["undo"]:
        other = [name for name, value in given.items() if name not in _OF_THE_END and _is_given(name, value)]
        if other or (given["resume"] and given["undo"]):
            raise UsageError(
                f"--resume and --undo end what was begun, one or the other: give SRC alone, without "
                f"{_option(other[0]) if other else 'the other'}"
            )
        return
    if in_place and dst is not None:
        raise UsageError(f"--in-place writes to SRC itself; leave out {dst}, or leave out --in-place")
    if in_place and given["verify"]:
        raise UsageError("--verify compares with the source, and --in-place leaves none; convert to another directory")
    if not in_place and dst is None:
        raise UsageError("DST is missing: name a directory to write to, or give --in-place to rewrite SRC")
    if not in_place and given["break_links"]:
        raise UsageError("--break-links is for --in-place: a copy shares nothing with SRC")
    if given["to"] is None:
        raise UsageError("--to is missing: give --to half or --to interleaved")


def _is_given(name: str, value: object) -> bool:
    return value is not None if name == "sync" else value not in (None, False)


def _option(name: str) -> str:
    return "DST" if name == "dst" else f"--{name.rstrip('_').replace('_', '-')}"


def alone(src: Named, sink: Sink) -> Path:
    """The directory that is to be changed, from now on this command's; raises `BusyError` where another uses it."""
    if src.hub:
        raise UsageError(f"{src} is a repository at the Hub, which nobody converts in place; give DST, or a local copy")
    if src.path.exists() and not claim(src.path):
        sink.talk(f"the file system of {src} knows no locks: see to it that nothing else uses it until this ends")
    return src.path


def end(src: Named, sink: Sink, *, undo: bool, break_links: bool) -> None:
    """Finish or take back what was interrupted."""
    from ropetool import convert as verb

    path = alone(src, sink)
    with sink.bytes_progress("taking back" if undo else "moving", None) as progress:
        result = (verb.undo if undo else verb.resume)(path, progress, break_links=break_links)
    sink.result("converted", result, undone=undo)
