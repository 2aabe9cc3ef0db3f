"""How far two logit tables are apart, and how far rounding alone can put them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from ropetool.families.reading import Reading
from ropetool.models.options import DType
from ropetool.models.run import torch_dtype

ANGLE_TOKENS = 512


@dataclass(frozen=True)
class Difference:
    """How far two logit tables are apart, over all positions and by position."""

    max_abs_diff: float
    relative_diff: float
    mean_kl: float
    top1_agreement: float
    by_position: tuple[Mapping[str, float], ...]
    finite: bool


def compare_logits(a_TV: Tensor, b_TV: Tensor) -> Difference:
    """The distance of two logit tables [T, V]; KL in nats from ``a`` to ``b``, buckets of doubling width."""
    a, b = a_TV.double(), b_TV.double()
    by_token = (a - b).abs().amax(dim=-1)
    log_a, log_b = a.log_softmax(-1), b.log_softmax(-1)
    kl = (log_a.exp() * (log_a - log_b)).sum(-1).mean()
    edges = [0, 16]
    while edges[-1] < len(a):
        edges.append(edges[-1] * 2)
    buckets = tuple(
        {"from": start, "to": min(stop, len(a)), "max_abs_diff": float(by_token[start:stop].max())}
        for start, stop in pairwise(edges)
        if start < len(a)
    )
    finite = bool(torch.isfinite(a).all() and torch.isfinite(b).all())
    return Difference(
        max_abs_diff=float(by_token.max()),
        relative_diff=float(by_token.max() / a.std()),
        mean_kl=float(kl),
        top1_agreement=float((a.argmax(-1) == b.argmax(-1)).double().mean()),
        by_position=buckets,
        finite=finite,
    )


def derived_tolerance(logits_TV: Tensor, dtype: DType, reading: Reading) -> float:
    """What rounding alone can do: spread of the logits x unit roundoff x sqrt(depth) x a factor for the angles.

    An angle of t radians is off by t roundoffs, so the factor grows with the tokens (1,024 up to 512 of them). In
    bfloat16 the angles are made in float32, and only the activations round, a dozen times per layer.
    """
    layers = reading.config.get("num_hidden_layers") or reading.config.get("n_layer") or 1
    roundoff = torch.finfo(torch_dtype(dtype)).eps
    factor = 12.0 if dtype is DType.BFLOAT16 else 2.0 * max(len(logits_TV), ANGLE_TOKENS)
    return float(logits_TV.double().std()) * roundoff * math.sqrt(layers) * factor
