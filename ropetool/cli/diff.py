"""``ropetool diff``."""

from __future__ import annotations

from typing import Annotated

import typer

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import Named, local, parse_checkpoint
from ropetool.cli.options import Json, Quiet, TrustRemoteCode
from ropetool.cli.sink import Sink

First = Annotated[Named, typer.Argument(parser=parse_checkpoint, metavar="A", help="The source: a path or a Hub id.")]
Second = Annotated[
    Named, typer.Argument(parser=parse_checkpoint, metavar="B", help="The checkpoint to hold against it, likewise.")
]


def diff(
    a: First, b: Second, trust_remote_code: TrustRemoteCode = False, json: Json = False, quiet: Quiet = False
) -> None:
    """Show what two checkpoints differ in that RoPE depends on: configs, lengths, layout, tensors; exit 1 when they do.

    Example: ropetool diff ./Llama-3.1-8B ./Llama-3.1-8B-meta
    """
    from ropetool import diff as verb

    sink = Sink(json, quiet)
    first, second = (local(named, Need.WEIGHTS, sink) for named in (a, b))
    with sink.bytes_progress("comparing", verb.total_bytes(first)) as progress:
        result = verb.diff(first, second, progress, trust_remote_code=trust_remote_code)
    sink.result("difference", result)
    if not result.same:
        raise typer.Exit(1)
