"""Options that several commands share, and the parsing of lengths."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ropetool.cli.checkpoints import Named, parse_checkpoint
from ropetool.errors import UsageError
from ropetool.models.options import EACH

_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([kKmM]?)", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i?B)", re.ASCII | re.IGNORECASE)
_DEVICE = re.compile(r"\d{1,4}|cpu|", re.ASCII)
_BYTES = {f"{p}{i}b": (1024 if i else 1000) ** power for power, p in enumerate("kmgt", 1) for i in ("", "i")}
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


def parse_memory(text: str | dict[int | str, int]) -> dict[int | str, int]:
    """Bytes by device: 3GB, 3GiB or 500MB for each; 0=20GiB,1=20GiB,cpu=30GiB for some GPUs and the processor."""
    if isinstance(text, dict):  # a default, that typer parses too
        return text
    found: dict[int | str, int] = {}
    for part in text.split(","):
        device, _, size = part.strip().rpartition("=")
        number, amount = _DEVICE.fullmatch(device.strip().lower()), _SIZE.fullmatch(size.strip())
        if number is None or amount is None or (not device and "," in text):
            raise typer.BadParameter(f"{text!r} is not a size of memory; write 3GB, 3GiB or 0=20GiB,1=20GiB,cpu=30GiB")
        key = int(device) if device.strip().isdigit() else device.strip().lower() or EACH
        if key in found:
            raise typer.BadParameter(f"{text!r} names {key} twice")
        found[key] = int(float(amount[1]) * _BYTES[amount[2].lower()])
        if not found[key]:
            raise typer.BadParameter(f"{part.strip()!r} is no memory at all; leave the device out")
    return found


MaxMemoryOption = Annotated[
    dict | None,  # type: ignore[type-arg]  # typer takes no generic type
    typer.Option(
        "--max-memory",
        parser=parse_memory,
        metavar="SIZE",
        help="Run models that are larger: 3GB for the whole process (with GPUs: for each), or "
        "0=20GiB,1=20GiB,cpu=30GiB. What has no room is read from disk in every pass.",
    ),
]
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

BUNDLED = "bundled"


def parse_text(text: str | Path) -> Path:
    """A file of text, or the novel that comes with ropetool, by the word ``bundled``."""
    from ropetool.checkpoint.bundled import TEXT, bundled

    if text == BUNDLED:
        return bundled(TEXT)
    if not Path(text).is_file():
        raise typer.BadParameter(f"{text} is no file; give a file of text, or the word {BUNDLED} for the bundled novel")
    return Path(text)


WitnessText = Annotated[
    Path | None,
    typer.Option(
        "--text",
        parser=parse_text,
        metavar="FILE|bundled",
        help="Let the checkpoint read a text in both layouts and with other bases, and see how far it reads: 'bundled' "
        "is the novel that comes with ropetool. The model is run.",
    ),
]


def read_text(path: Path) -> str:
    """A text file; raises `UsageError` where it is not UTF-8: what cannot be read is not to be measured."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"--text {path} is not UTF-8 (byte {error.start} is {error.object[error.start]:#04x}); convert it first"
        ) from error
