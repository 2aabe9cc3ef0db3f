"""The settings that a search for an extension tries first, one row each, and the spaces that it goes on in."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropetool.families.methods import Method
from ropetool.rope.frequencies import ntk_theta
from ropetool.rope.spaces import Space, base_space, llama3_space, rounded, yarn_space

FACTOR = "factor"
# NTK-aware scaling has no exponent for a single pair.
LEAST_WIDTH = 4


@dataclass(frozen=True)
class Candidate:
    """One way to extend: a method and its settings, ``factor`` among them where it is not the ratio of the lengths."""

    method: Method
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """What candidates are made for: ``ratio`` of the new length to the trained one, base, and rotary width R."""

    ratio: float
    theta: float
    rotary_dim: int

    @property
    def temperature(self) -> float:
        """Half of what YaRN adds to the attention factor: 0.05 ln(ratio) + 1."""
        return rounded(0.05 * math.log(self.ratio) + 1)


Row = tuple[Method, Callable[[Model], Mapping[str, Any]]]


def _steeper_base(model: Model) -> Mapping[str, Any]:
    return {"base": rounded(ntk_theta(model.theta, 1.25 * model.ratio, model.rotary_dim))}


# In this order, as far as the budget goes: the default, then each way to depart from it that is in use.
# YaRN (arXiv:2309.00071) with half of its temperature, with its ramp an octave up and down; NTK-aware scaling for the
# length and a quarter beyond it, so that the slowest pairs have room; Llama 3.1's band; linear; dynamic.
FIXED: tuple[Row, ...] = (
    (Method.YARN, lambda model: {}),
    (Method.YARN, lambda model: {"attention_factor": model.temperature}),
    (Method.YARN, lambda model: {"attention_factor": model.temperature, "beta_fast": 64.0, "beta_slow": 2.0}),
    (Method.NTK, lambda model: {}),
    (Method.YARN, lambda model: {"attention_factor": model.temperature, "beta_fast": 16.0, "beta_slow": 0.5}),
    (Method.ABF, _steeper_base),
    (Method.LLAMA3, lambda model: {}),
    (Method.LINEAR, lambda model: {}),
    (Method.DYNAMIC, lambda model: {}),
)
# The method in which a search goes on from each, where it has numbers to tune.
CONTINUES: Mapping[Method, Method] = {
    Method.YARN: Method.YARN,
    Method.NTK: Method.ABF,
    Method.ABF: Method.ABF,
    Method.LLAMA3: Method.LLAMA3,
}
# What a method uses where a candidate sets nothing else: where a search starts from.
YARN_DEFAULTS: Mapping[str, float] = {"beta_fast": 32.0, "beta_slow": 1.0}
LLAMA3_DEFAULTS: Mapping[str, float] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


def fixed(model: Model) -> tuple[Candidate, ...]:
    """The candidates that are tried first, the default method's own among them."""
    rows = (row for row in FIXED if model.rotary_dim >= LEAST_WIDTH or row[0] is not Method.ABF)
    return tuple(Candidate(method, settings(model)) for method, settings in rows)


def space_of(method: Method, model: Model) -> Space | None:
    """Where a search goes on from a candidate of ``method``; None where it has no numbers."""
    spaces: Mapping[Method, Callable[[], Space]] = {
        Method.YARN: lambda: yarn_space(model.ratio),
        Method.ABF: lambda: base_space(model.theta, model.ratio),
        Method.LLAMA3: lambda: llama3_space(model.ratio),
    }
    onward = CONTINUES.get(method)
    return spaces[onward]() if onward else None


def start_of(candidate: Candidate, model: Model) -> dict[str, float]:
    """The value of every axis of `space_of` that a candidate stands for."""
    own = {
        Method.YARN: {**YARN_DEFAULTS, "attention_factor": 0.1 * math.log(model.ratio) + 1, FACTOR: model.ratio},
        Method.LLAMA3: {**LLAMA3_DEFAULTS, FACTOR: model.ratio},
        Method.NTK: {"base": ntk_theta(model.theta, model.ratio, model.rotary_dim)} if model.rotary_dim > 2 else {},
    }
    return {**own.get(candidate.method, {}), **candidate.settings}
