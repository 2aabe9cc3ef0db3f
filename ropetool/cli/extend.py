"""``ropetool extend``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ropetool.checkpoint.config import Style
from ropetool.checkpoint.hub_id import Need
from ropetool.cli import searching
from ropetool.cli.checkpoints import Named, local
from ropetool.cli.keeping import Out, keep
from ropetool.cli.options import Destination, DryRun, Json, MaxMemoryOption, Quiet, Source, parse_length
from ropetool.cli.sink import Sink
from ropetool.families.methods import Method, Weights

if TYPE_CHECKING:
    from ropetool.extend import Extended, Extension
    from ropetool.models.searched import Searched

MethodOption = Annotated[
    Method,
    typer.Option("--method", help="The scaling method; auto measures which is best, none takes an earlier one back."),
]
To = Annotated[int | None, typer.Option("--to", parser=parse_length, metavar="LEN", help="The new length: 32768, 32k.")]
Factor = Annotated[
    float | None,
    typer.Option("--factor", help="The factor over the trained length, instead of --to (llama3, longrope: beside it)."),
]
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
Base = Annotated[float | None, typer.Option("--base", help="abf: the new base (rope_theta).")]
Factors = Annotated[
    Path | None,
    typer.Option(
        "--factors", metavar="FILE", exists=True, dir_okay=False,
        help="longrope: short and long factors, as JSON or as CSV of two columns.",
    ),
]  # fmt: skip
BetaFast = Annotated[float | None, typer.Option("--beta-fast", help="yarn: pairs that turn more often stay (32).")]
BetaSlow = Annotated[float | None, typer.Option("--beta-slow", help="yarn: pairs that turn less are interpolated (1).")]
Truncate = Annotated[
    bool | None, typer.Option("--truncate/--no-truncate", help="yarn: widen the ramp to whole pairs (so by default).")
]
MScale = Annotated[float | None, typer.Option("--mscale", help="yarn: DeepSeek's weight of the attention factor.")]
MScaleAll = Annotated[float | None, typer.Option("--mscale-all-dim", help="yarn: the same, for the whole head.")]
AttentionFactor = Annotated[
    float | None, typer.Option("--attention-factor", help="yarn, longrope: by default computed from the factor.")
]
Low = Annotated[float | None, typer.Option("--low-freq-factor", help="llama3: below so many turns: interpolated (1).")]
High = Annotated[float | None, typer.Option("--high-freq-factor", help="llama3: above so many turns: kept (4).")]


def extend(
    src: Source,
    dst: Destination,
    method: MethodOption,
    to: To = None,
    factor: Factor = None,
    original: Original = None,
    base: Base = None,
    factors: Factors = None,
    beta_fast: BetaFast = None,
    beta_slow: BetaSlow = None,
    truncate: Truncate = None,
    mscale: MScale = None,
    mscale_all_dim: MScaleAll = None,
    attention_factor: AttentionFactor = None,
    low_freq_factor: Low = None,
    high_freq_factor: High = None,
    search: searching.SearchOption = False,
    text: searching.TextFile = None,
    engine: searching.For = None,
    budget: searching.Budget = None,
    trials: searching.Trials = None,
    seed: searching.Seed = None,
    study: searching.StudyFile = None,
    device: searching.DeviceOption = None,
    dtype: searching.DTypeOption = None,
    max_memory: MaxMemoryOption = None,
    style: StyleOption = Style.DUAL,
    weights: WeightsOption = Weights.LINK,
    replace: Replace = False,
    dry_run: DryRun = False,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write SRC to DST with a longer context: the rope block and every length that follows it.

    Example: ropetool extend ./SmolLM2-135M ./SmolLM2-135M-32k --method yarn --to 32k
    """
    from ropetool import extend as verb

    sink = Sink(json, quiet)
    settings = _given(
        factors, base=base, beta_fast=beta_fast, beta_slow=beta_slow, truncate=truncate, mscale=mscale,
        mscale_all_dim=mscale_all_dim, attention_factor=attention_factor, low_freq_factor=low_freq_factor,
        high_freq_factor=high_freq_factor,
    )  # fmt: skip
    asked = searching.Asked(text, engine, budget, trials, seed, study, device, dtype, max_memory)
    searching.check_places(src, dst, asked, out)
    plan = partial(
        verb.plan, destination=dst, original=original, style=style, weights=weights, replace_existing=replace
    )
    if searching.wanted(method, search, to, _given(None, factor=factor, **settings), asked):
        extension, searched = searching.run(src, asked, to or 0, search, plan, sink)
    else:
        plan = partial(plan, method=method, to=to, factor=factor, settings=settings)
        extension, searched = _planned(src, plan, weights, sink, dry_run), None
    result = extension.result if dry_run else _applied(extension, sink)
    sink.result("extended", result, dry_run=dry_run, searched=searched)
    _keep(out, result, dry_run, searched)


def _given(factors: Path | None, **settings: Any) -> dict[str, Any]:
    """What was given of the settings, the lists of a file of factors among them."""
    from ropetool.checkpoint.factors import read_factors

    given = {key: value for key, value in settings.items() if value is not None}
    return {**given, **(read_factors(factors) if factors else {})}


def _keep(out: Path | None, result: Extended, dry_run: bool, searched: Searched | None) -> None:
    from ropetool.views import jsons

    if out is not None:
        keep(out, jsons.extended(result, dry_run=dry_run, searched=searched))


def _planned(src: Named, plan: Callable[..., Extension], weights: Weights, sink: Sink, dry_run: bool) -> Extension:
    """The plan, by the headers; the weights of one at the Hub are fetched when nothing is left to refuse."""
    extension = plan(local(src, Need.CONFIGS if weights is Weights.NONE else Need.PLAN, sink))
    if src.hub and weights is not Weights.NONE and not dry_run:
        extension = plan(local(src, Need.WEIGHTS, sink))
    return extension


def _applied(extension: Extension, sink: Sink) -> Extended:
    from ropetool import extend as verb

    total_bytes = sum(shard.size_bytes for shard in extension.checkpoint.shards)
    with sink.bytes_progress("copying", total_bytes) as progress:
        return verb.apply(extension, progress)
