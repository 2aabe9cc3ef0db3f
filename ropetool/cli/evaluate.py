"""``ropetool evaluate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import Named, local, parse_checkpoint
from ropetool.cli.options import Checkpoint, Json, Quiet, parse_lengths
from ropetool.cli.sink import Sink
from ropetool.models.options import Device, DType

Against = Annotated[
    Named | None,
    typer.Option("--against", parser=parse_checkpoint, metavar="CKPT", help="A checkpoint to run beside it."),
]
Lengths = Annotated[
    str | None, typer.Option("--lengths", metavar="1k,2k,4k", help="Ends of the position bins, in tokens.")
]
Windows = Annotated[
    int, typer.Option("--windows", min=1, help="Read up to so many pieces of the longest length, not one.")
]
TextFile = Annotated[
    Path | None, typer.Option("--text", exists=True, dir_okay=False, help="Text; by default the bundled novel.")
]


def evaluate(
    ckpt: Checkpoint,
    against: Against = None,
    lengths: Lengths = None,
    text: TextFile = None,
    windows: Windows = 1,
    device: Annotated[Device, typer.Option("--device", help="Where to run.")] = Device.AUTO,
    dtype: Annotated[DType | None, typer.Option("--dtype", help="What to compute in; by default as stored.")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure next-token loss by position, to see what an extension gives and what it costs.

    Example: ropetool evaluate ./SmolLM2-135M-32k --against ./SmolLM2-135M --lengths 8k,16k,32k
    """
    from ropetool import evaluate as verb
    from ropetool.checkpoint.bundled import TEXT, bundled

    sink = Sink(json, quiet)
    edges = parse_lengths(lengths) if lengths else None
    words = (text or bundled(TEXT)).read_text(encoding="utf-8", errors="replace")
    path, beside = local(ckpt, Need.WEIGHTS, sink), local(against, Need.WEIGHTS, sink) if against else None
    with sink.steps_progress("tokens") as progress:
        result = verb.evaluate(
            path, words, edges=edges, windows=windows, against=beside, device=device, dtype=dtype,
            progress=progress,
        )  # fmt: skip
    sink.result("evaluation", replace(result, checkpoint=str(ckpt), against=str(against) if against else None))
