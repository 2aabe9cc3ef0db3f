"""``ropetool convert``."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from ropetool.cli.options import Base, Destination, DryRun, Json, Quiet, Source
from ropetool.cli.sink import Sink
from ropetool.engines.names import EngineName
from ropetool.rope.layout import Pairing

if TYPE_CHECKING:
    from ropetool.convert import Converted

To = Annotated[Pairing, typer.Option("--to", help="The layout to write.")]
From = Annotated[
    Pairing | None,
    typer.Option("--from", help="The layout that the weights have, where you know better than config.json."),
]
For = Annotated[
    EngineName | None,
    typer.Option("--for", help="Write what this engine reads, or refuse where it would read the result wrongly."),
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
    base: Base = None,
    for_: For = None,
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
    conversion = verb.plan(src, dst, to, from_, as_, base=base, engine=for_)
    if dry_run:
        sink.result("converted", verb.preview(conversion), dry_run=True)
        return
    with sink.bytes_progress("copying", conversion.total_bytes) as progress:
        result = verb.apply(conversion, progress, sync=sync)
    ran = verify and _prove(sink, result, src, dst)
    sink.result("converted", result, verified=ran)


def _prove(sink: Sink, result: Converted, src: Source, dst: Destination) -> bool:
    """Verify what was just written; a result that fails is removed, and the verdict printed instead.

    Returns whether it ran: an adapter is held against its source as a file.
    """
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
    if not verdict.tokens:
        sink.talk(f"verified as files; to run it: ropetool verify {src} {dst} --base BASE --base CONVERTED_BASE")
    return verdict.tokens > 0
