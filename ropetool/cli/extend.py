"""``ropetool extend``."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from ropetool.checkpoint.config import Style
from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import local
from ropetool.cli.options import Destination, DryRun, Json, Quiet, Source, parse_length
from ropetool.cli.sink import Sink
from ropetool.families.methods import Method, Weights

MethodOption = Annotated[Method, typer.Option("--method", help="The scaling method.")]
To = Annotated[int | None, typer.Option("--to", parser=parse_length, metavar="LEN", help="The new length: 32768, 32k.")]
Factor = Annotated[float | None, typer.Option("--factor", help="The factor over the trained length, instead of --to.")]
Original = Annotated[
    int | None,
    typer.Option("--original", parser=parse_length, metavar="LEN", help="The trained length, if config.json lacks it."),
]
StyleOption = Annotated[
    Style, typer.Option("--style", help="Keys of transformers 4, of transformers 5, or both with equal values.")
]
WeightsOption = Annotated[
    Weights, typer.Option("--weights", help="Hard-link the weights, copy them, or leave them out.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace another method's extension instead of refusing.")]


def extend(
    src: Source,
    dst: Destination,
    method: MethodOption,
    to: To = None,
    factor: Factor = None,
    original: Original = None,
    style: StyleOption = Style.DUAL,
    weights: WeightsOption = Weights.LINK,
    replace: Replace = False,
    dry_run: DryRun = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write SRC to DST with a longer context: the rope block and every length that follows it.

    Example: ropetool extend ./SmolLM2-135M ./SmolLM2-135M-32k --method yarn --to 32k
    """
    from ropetool import extend as verb

    sink = Sink(json, quiet)
    planned = partial(
        verb.plan, destination=dst, method=method, to=to, factor=factor, original=original, style=style,
        weights=weights, replace_existing=replace,
    )  # fmt: skip
    extension = planned(local(src, Need.CONFIGS if weights is Weights.NONE else Need.PLAN, sink))
    if dry_run:
        sink.result("extended", extension.result, dry_run=True)
        return
    if src.hub and weights is not Weights.NONE:
        extension = planned(local(src, Need.WEIGHTS, sink))
    total_bytes = sum(shard.size_bytes for shard in extension.checkpoint.shards)
    with sink.bytes_progress("copying", total_bytes) as progress:
        result = verb.apply(extension, progress)
    sink.result("extended", result)
