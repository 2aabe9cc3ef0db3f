"""``ropetool diff``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropetool.cli.options import Json, Quiet, TrustRemoteCode
from ropetool.cli.sink import Sink

First = Annotated[Path, typer.Argument(metavar="A", help="Checkpoint directory, or one .safetensors file.")]
Second = Annotated[Path, typer.Argument(metavar="B", help="The checkpoint to hold against it.")]


def diff(
    a: First, b: Second, trust_remote_code: TrustRemoteCode = False, json: Json = False, quiet: Quiet = False
) -> None:
    """Show what two checkpoints differ in that RoPE depends on: configs, lengths, layout, tensors; exit 1 when they do.

    Example: ropetool diff ./Llama-3.1-8B ./Llama-3.1-8B-meta
    """
    from ropetool import diff as verb

    sink = Sink(json, quiet)
    with sink.bytes_progress("comparing", verb.total_bytes(a)) as progress:
        result = verb.diff(a, b, progress, trust_remote_code=trust_remote_code)
    sink.result("difference", result)
    if not result.same:
        raise typer.Exit(1)
