"""Keep a result as a JSON file: where it may be written, and writing it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ropetool.errors import OutputError
from ropetool.models.ranks import rank

Out = Annotated[Path | None, typer.Option("--out", metavar="FILE.json", help="Keep the result as JSON.")]


def check_out(out: Path | None, checkpoints: Iterable[Path], flag: str = "--out") -> None:
    """The result must not land in a checkpoint: those are only read. Called before the work, so that none is lost."""
    if out is None:
        return
    for checkpoint in checkpoints:
        if not checkpoint.exists():
            continue  # whoever opens it says so
        directory = checkpoint if checkpoint.is_dir() else checkpoint.parent
        if directory.resolve() in (out.resolve(), *out.resolve().parents):
            raise OutputError(f"{flag} {out} lies inside the checkpoint {directory}; name a place outside it")
    if not out.resolve().parent.is_dir():
        raise OutputError(f"{out.resolve().parent}, where {out.name} would be, is not a directory")
    if out.is_dir():
        raise OutputError(f"{flag} {out} is a directory; name a file")


def keep(out: Path | None, result: Mapping[str, Any]) -> None:
    """Write the JSON form of a result, where a place for it was given; of several processes the first does."""
    from ropetool.views import jsons

    if out is not None and rank() == 0:
        try:
            out.write_text(jsons.dumps(result) + "\n", encoding="utf-8")
        except OSError as error:  # the result itself is not lost: it is printed before
            sys.stderr.write(f"error: --out {out} cannot be written: {error.strerror}\n")
            raise typer.Exit(2) from error
