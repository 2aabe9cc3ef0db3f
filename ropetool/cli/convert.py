"""``ropetool convert``."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from ropetool.cli.options import Destination, DryRun, Json, Quiet, Source
from ropetool.cli.sink import Sink
from ropetool.rope.layout import Pairing

if TYPE_CHECKING:
    from ropetool.convert import Converted

To = Annotated[Pairing, typer.Option("--to", help="The layout to write.")]
From = Annotated[
    Pairing | None,
    typer.Option("--from", help="The layout that the weights have, where you know better than config.json."),
]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="MODEL_TYPE|same",
        help="The class to write the result for, one that rotates the new layout; by default one that can express this "
        "model, if there is any. same: keep the type.",
    ),
]
Verify = Annotated[bool, typer.Option("--verify", help="Prove the result by forward passes; remove it if they fail.")]
Sync = Annotated[bool, typer.Option("--sync", help="Sync to disk, so that the result survives a power cut.")]


def convert(
    src: Source,
    dst: Destination,
    to: To,
    from_: From = None,
    as_: As = None,
    dry_run: DryRun = False,
    verify: Verify = False,
    sync: Sync = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write SRC to DST in the other RoPE layout: the same model, with the rows of q and k in the other order.

    Example: ropetool convert ./Llama-3.1-8B ./Llama-3.1-8B-meta --to interleaved
    """
    from ropetool import convert as verb

    sink = Sink(json, quiet)
    conversion = verb.plan(src, dst, to, from_, as_)
    if dry_run:
        sink.result("converted", verb.preview(conversion), dry_run=True)
        return
    with sink.bytes_progress("copying", conversion.total_bytes) as progress:
        result = verb.apply(conversion, progress, sync=sync)
    if verify:
        _prove(sink, result, src, dst)
    sink.result("converted", result, verified=verify)


def _prove(sink: Sink, result: Converted, src: Source, dst: Destination) -> None:
    """Verify what was just written; a result that fails is removed, and the verdict printed instead."""
    from ropetool.verify import verify

    try:
        verdict = verify(src, dst, talk=sink.talk)
    except BaseException:
        shutil.rmtree(dst, ignore_errors=True)
        raise
    if not verdict.passed:
        shutil.rmtree(dst, ignore_errors=True)
        sink.talk(f"{result.output} did not pass and was removed")
        sink.result("verification", verdict)
        raise typer.Exit(1)
