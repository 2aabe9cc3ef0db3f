"""The spaces that a search for an extension moves in: points of a unit cube, and the settings that each stands for.

A coordinate runs from 0 to 1 over its axis, most of them by the logarithm. LongRoPE's factors, one for each pair, are
spanned by a few knots over the pairs: the logarithm of the factor runs straight from knot to knot and never falls.
That is the constraint of the published search (Ding et al., arXiv:2402.13753, section 3.2: slower pairs are
interpolated at least as much), in fewer numbers: deviations named in docs/search.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ropetool.rope.frequencies import Floats

DIGITS = 4
# Ends of the axes. A ramp's ends in turns within the trained length; factors and bases over what the length asks for.
FAST, SLOW = (2.0, 256.0), (0.125, 16.0)
LEAST_RAMP = 1.5
MOST_FACTOR = 1.5
TEMPERATURES = (0.95, 0.2)
BASE_POWERS = (0.5, 3.0)
KNOTS = 6


def rounded(value: float) -> float:
    """Four significant digits, as numbers are written into a config."""
    return float(f"{value:.{DIGITS}g}")


@dataclass(frozen=True)
class Axis:
    """One setting: its key, its range, and whether equal steps are equal ratios."""

    key: str
    low: float
    high: float
    logarithmic: bool = True

    def value(self, at: float) -> float:
        """The setting at a place from 0 to 1."""
        at = min(max(at, 0.0), 1.0)
        if self.logarithmic:
            return rounded(self.low * (self.high / self.low) ** at)
        return rounded(self.low + (self.high - self.low) * at)

    def place(self, value: float) -> float:
        """Where a setting lies, from 0 to 1; the nearest end for one beyond."""
        if self.logarithmic:
            at = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            at = (value - self.low) / (self.high - self.low)
        return min(max(at, 0.0), 1.0)


def _as_they_are(settings: dict[str, Any]) -> dict[str, Any]:
    return settings


@dataclass(frozen=True)
class Space:
    """Axes whose values are the settings of ``method``, after ``join`` has made of them what the method takes."""

    method: str
    axes: tuple[Axis, ...]
    join: Callable[[dict[str, Any]], dict[str, Any]] = field(default=_as_they_are, repr=False)

    def settings(self, point: Sequence[float] | Floats) -> dict[str, Any]:
        """What a point [D] of the unit cube stands for."""
        return self.join({axis.key: axis.value(float(at)) for axis, at in zip(self.axes, point, strict=True)})

    def point(self, values: Mapping[str, float]) -> Floats:
        """Where settings lie, [D]; ``values`` has one for each axis."""
        return np.array([axis.place(values[axis.key]) for axis in self.axes], dtype=np.float64)

    def without(self, keys: Sequence[str]) -> Space:
        """The same without some of its axes: those settings are left to the method."""
        return Space(self.method, tuple(axis for axis in self.axes if axis.key not in keys), self.join)


def temperature_axis(ratio: float) -> Axis:
    """The attention factor; YaRN's own is 0.1 ln(ratio) + 1 (arXiv:2309.00071, eq. 22)."""
    return Axis("attention_factor", TEMPERATURES[0], 1 + TEMPERATURES[1] * math.log(ratio), logarithmic=False)


def yarn_space(ratio: float) -> Space:
    """YaRN's ramp, attention factor and factor, for a length ``ratio`` times the trained one."""

    def ramp(settings: dict[str, Any]) -> dict[str, Any]:
        fast, slow = settings["beta_fast"], settings["beta_slow"]
        return {**settings, "beta_slow": rounded(min(slow, fast / LEAST_RAMP))}

    axes = (Axis("beta_fast", *FAST), Axis("beta_slow", *SLOW), temperature_axis(ratio), _factor_axis(ratio))
    return Space("yarn", axes, ramp)


def base_space(theta: float, ratio: float) -> Space:
    """A base alone, as NTK-aware scaling sets one: a power of the ratio over ``theta``."""
    least, most = (theta * ratio**power for power in BASE_POWERS)
    return Space("abf", (Axis("base", least, most),))


def llama3_space(ratio: float) -> Space:
    """Llama 3.1's band of turns, and its factor."""

    def band(settings: dict[str, Any]) -> dict[str, Any]:
        low, high = settings["low_freq_factor"], settings["high_freq_factor"]
        return {**settings, "low_freq_factor": rounded(min(low, high / LEAST_RAMP))}

    axes = (Axis("low_freq_factor", 0.25, 8.0), Axis("high_freq_factor", 1.0, 64.0), _factor_axis(ratio))
    return Space("llama3", axes, band)


def _factor_axis(ratio: float) -> Axis:
    return Axis("factor", ratio, ratio * MOST_FACTOR)


def longrope_space(pairs: int, ratio: float, knots: int = KNOTS) -> Space:
    """One factor for each of ``pairs`` rotary pairs, by at most so many knots, and an attention factor.

    The short list, which serves up to the trained length, is all ones: there nothing is to be interpolated.
    """
    places = np.unique(np.linspace(0, pairs - 1, min(knots, pairs)).round())

    def lists(settings: dict[str, Any]) -> dict[str, Any]:
        heights = [math.log(settings.pop(_knot(place))) for place in places]
        slower = np.exp(np.interp(np.arange(pairs), places, np.maximum.accumulate(heights)))
        return {
            "short_factor": [1.0] * pairs,
            "long_factor": [max(1.0, rounded(float(value))) for value in slower],
            **settings,
        }

    axes = tuple(Axis(_knot(place), 1.0, ratio * MOST_FACTOR) for place in places)
    return Space("longrope", (*axes, temperature_axis(ratio)), lists)


def knots_of(space: Space, factors: Sequence[float], attention_factor: float) -> Floats:
    """The point of a longrope space whose factors are nearest: those of its knots, [D]."""
    at = {axis.key: axis for axis in space.axes}
    values = {key: max(1.0, factors[int(key.removeprefix(_KNOT))]) for key in at if key.startswith(_KNOT)}
    return space.point({**values, "attention_factor": attention_factor})


_KNOT = "pair "


def _knot(place: float) -> str:
    return f"{_KNOT}{place:.0f}"
