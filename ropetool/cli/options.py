"""Options that several commands share, and the parsing of lengths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ropetool.cli.checkpoints import Named, parse_checkpoint

_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)", re.ASCII)
MOST_TOKENS = 1 << 53  # beyond it a float skips whole numbers
_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}


def parse_length(text: str | int) -> int:
    """A length in tokens: 32768, 32k (x 1024), 1m (x 1024 x 1024)."""
    found = _LENGTH.fullmatch(str(text).strip())
    tokens = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
    if not 1 <= tokens < MOST_TOKENS or tokens != int(tokens):
        raise typer.BadParameter(f"{text!r} is not a length in tokens; write 32768, 32k or 1m")
    return int(tokens)


def parse_lengths(text: str) -> tuple[int, ...]:
    """Lengths separated by commas."""
    return tuple(parse_length(part) for part in text.split(","))


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no talk on stderr.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check everything and show the plan; write nothing.")]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run the Python code that the checkpoint brings (auto_map). It can do whatever you can: read it first.",
    ),
]
KINDS = "Checkpoint directory, one .safetensors file, or a Hub id: org/name, org/name@revision."
Source = Annotated[Named, typer.Argument(parser=parse_checkpoint, metavar="SRC", help=KINDS)]
Destination = Annotated[Path, typer.Argument(metavar="DST", help="Directory to write; must not exist.")]
Checkpoint = Annotated[Named, typer.Argument(parser=parse_checkpoint, metavar="CKPT", help=KINDS)]
Base = Annotated[
    Named | None,
    typer.Option(
        "--base", parser=parse_checkpoint, metavar="CKPT", help="The base model of an adapter that does not name it."
    ),
]
