"""How far two logit tables are apart, and how far rounding alone can put them. The tables lie on disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from ropetool.models.options import DType

ANGLE_TOKENS = 512
# Rows of a table that are in memory at once.
ROWS = 64
# How often the activations round in a layer, about: two norms, seven products, a softmax, two residual sums.
ROUNDINGS = 12.0


@dataclass(frozen=True)
class Difference:
    """How far two logit tables are apart, over all positions and by position."""

    max_abs_diff: float
    relative_diff: float
    mean_kl: float
    top1_agreement: float
    by_position: tuple[Mapping[str, float], ...]
    finite: bool


def on_disk(table_TV: Tensor, file: Path) -> Tensor:
    """The same table, mapped from ``file``, so that it takes memory only while it is read; in float32 or float64."""
    dtype = table_TV.dtype if table_TV.dtype is torch.float64 else torch.float32
    mapped = torch.from_file(str(file), shared=True, size=table_TV.numel(), dtype=dtype).view(table_TV.shape)
    mapped.copy_(table_TV)
    return mapped


def _pieces(*tables: Tensor) -> Iterator[tuple[Tensor, ...]]:
    for start in range(0, len(tables[0]), ROWS):
        yield tuple(table[start : start + ROWS].double() for table in tables)


def spread(table_TV: Tensor) -> float:
    """The standard deviation of a table."""
    count, total, squares = table_TV.numel(), 0.0, 0.0
    for (piece,) in _pieces(table_TV):
        total, squares = total + float(piece.sum()), squares + float(piece.square().sum())
    return math.sqrt(max(squares / count - (total / count) ** 2, 0.0)) if math.isfinite(squares) else math.nan


def compare_logits(a_TV: Tensor, b_TV: Tensor) -> Difference:
    """The distance of two logit tables [T, V]; KL in nats from ``a`` to ``b``, buckets of doubling width."""
    by_token, kl, agreeing, finite = [], 0.0, 0, True
    for a, b in _pieces(a_TV, b_TV):
        by_token.append((a - b).abs().amax(dim=-1))
        log_a, log_b = a.log_softmax(-1), b.log_softmax(-1)
        kl += float((log_a.exp() * (log_a - log_b)).sum())
        agreeing += int((a.argmax(-1) == b.argmax(-1)).sum())
        finite = finite and bool(torch.isfinite(a).all() and torch.isfinite(b).all())
    apart_T = torch.cat(by_token)
    edges = [0, 16]
    while edges[-1] < len(apart_T):
        edges.append(edges[-1] * 2)
    buckets = tuple(
        {"from": start, "to": min(stop, len(apart_T)), "max_abs_diff": float(apart_T[start:stop].max())}
        for start, stop in pairwise(edges)
        if start < len(apart_T)
    )
    largest, width = float(apart_T.max()), spread(a_TV)
    return Difference(
        max_abs_diff=largest,
        relative_diff=largest / width if width else math.inf,
        mean_kl=kl / len(apart_T),
        top1_agreement=agreeing / len(apart_T),
        by_position=buckets,
        finite=finite,
    )


@dataclass(frozen=True)
class Precision:
    """How a number type rounds: unit roundoff, roundings per radian of an angle, how far the control must be off.

    ``margin`` is that distance as a multiple of what rounding makes.
    """

    roundoff: float
    angles: float
    margin: float


# In bfloat16 the angles are made in float32, and only the activations round. In float64 the activations do not, and
# what classes make in float32 in any type does: angles, norms, softmax.
PRECISIONS = {
    DType.FLOAT32: Precision(torch.finfo(torch.float32).eps, 2.0, 100.0),
    DType.FLOAT64: Precision(torch.finfo(torch.float32).eps, 0.5, 100.0),
    DType.BFLOAT16: Precision(torch.finfo(torch.bfloat16).eps, 0.0, 10.0),
}


@dataclass(frozen=True)
class Tolerance:
    """The largest difference that is still rounding, how far off the control must be, and why, in a sentence."""

    allowed: float
    control: float
    reason: str


def rounding(logits_TV: Tensor, dtype: DType, layers: int) -> float:
    """The most that rounding does: spread of the logits x unit roundoff x sqrt(depth) x roundings of a layer.

    An angle of t radians is off by t roundoffs, so the last factor grows with the tokens (1,024 up to 512 of them).
    """
    steps = max(ROUNDINGS, PRECISIONS[dtype].angles * max(len(logits_TV), ANGLE_TOKENS))
    return spread(logits_TV) * PRECISIONS[dtype].roundoff * math.sqrt(layers) * steps


def derived_tolerance(
    logits_TV: Tensor, dtype: DType, layers: int, gap: float, given: float | None = None
) -> Tolerance:
    """What may differ: no more than rounding does, and no more than a share of the distance ``gap`` of the control.

    That distance proves nothing unless it is far beyond what rounding is sure to make (or what is ``given``).
    """
    precision = PRECISIONS[dtype]
    width, most = spread(logits_TV), rounding(logits_TV, dtype, layers)
    least = width * precision.roundoff * math.sqrt(layers) * ROUNDINGS
    if given is not None:
        return Tolerance(given, precision.margin * given, "as given")
    share = gap / precision.margin
    said = (
        f"what {dtype.value} can round over {layers} layers, {len(logits_TV)} positions and logits that spread by "
        f"{width:.3g}"
    )
    if share < most:
        said = f"a {precision.margin:.0f}th of the distance of the wrong layout, {gap:.3g}; less than {said}"
    else:
        said += f"; the wrong layout is {gap:.3g} away"
    return Tolerance(share if share < most else most, precision.margin * least, said)
