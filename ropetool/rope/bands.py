"""What frequencies mean: wavelengths, turns within a length, and how a score falls with distance. Float64 throughout.

``inv_freq`` is the angle per token of each pair in radians, shape [R/2], as `frequencies` computes it; a pair of
frequency zero does not turn.
"""

from __future__ import annotations

import math

import numpy as np

from ropetool.rope.frequencies import Floats


def wavelengths(inv_freq: Floats) -> Floats:
    """Tokens in which each pair turns once, shape [R/2]; infinite for a pair that does not turn."""
    with np.errstate(divide="ignore"):
        return np.asarray(2 * math.pi / inv_freq, dtype=np.float64)


def turns(inv_freq: Floats, length: int) -> Floats:
    """How often each pair turns within ``length`` tokens, shape [R/2]."""
    return np.asarray(inv_freq * length / (2 * math.pi), dtype=np.float64)


def distances(longest: int, most: int) -> tuple[int, ...]:
    """0, and up to ``most`` whole distances in tokens from 1 to ``longest``, spread evenly on a logarithmic axis."""
    spread = np.geomspace(1, max(longest, 1), most)
    return (0, *(int(distance) for distance in np.unique(np.rint(spread))))


def score_by_distance(inv_freq: Floats, apart: Floats, attention_factor: float = 1.0) -> Floats:
    """The score of a q and a k of equal pairs of unit length, by their distance, per pair; shape [N].

    The mean over the pairs of cos(distance * inv_freq), times ``attention_factor`` squared: cos and sin of both q and
    k have that factor. It is what RoFormer (arXiv:2104.09864, eq. 16) gives for q = k = (1, 0, 1, 0, ...).
    """
    return np.asarray(attention_factor**2 * np.cos(np.outer(apart, inv_freq)).mean(axis=1), dtype=np.float64)


def score_bound(inv_freq: Floats, apart: Floats, attention_factor: float = 1.0) -> Floats:
    """The relative upper bound of any score by distance, shape [N].

    RoFormer (arXiv:2104.09864, section 3.4.3, eq. 37): the mean over j = 1 .. R/2 of |S_j|, S_j the sum of
    exp(i distance inv_freq) over the first j pairs. Deviation: divided by its value at distance 0, (R/2 + 1) / 2, and
    times ``attention_factor`` squared.
    """
    sums = np.cumsum(np.exp(1j * np.outer(apart, inv_freq)), axis=1)
    at_zero = (len(inv_freq) + 1) / 2
    return np.asarray(attention_factor**2 * np.abs(sums).mean(axis=1) / at_zero, dtype=np.float64)
