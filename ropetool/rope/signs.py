"""What trained rows tell of their layout: curves over the frequency that hold in one layout and break in the other.

Training treats the pairs of a head by their frequency: the norms of their q and k rows, and how far a q row points
along its k row, change smoothly from the fastest pair to the slowest. Laid out by the true layout, the rows of a head
lie on such a curve; by the other one, they do not. A measure of one value per row is therefore fitted by a parabola
in the index of the pair, once for each layout, and the share of its variance that one explains more than the other
is the sign. Rows that know no frequency, as those of an untrained model, have a sign of 0 on average, and its variance
is known exactly: that of a random rotation (see `sign_of`).

Shapes: H heads, G key-value heads, R rotated rows of a head, M inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ropetool.rope.layout import Pairing

Floats = np.ndarray[Any, np.dtype[np.float64]]

# A parabola: more bends let the wrong layout follow what it should not (measured: benchmarks/witnesses.py).
DEGREE = 2
_TINY = 1e-12


@dataclass(frozen=True)
class Sign:
    """How much more of the variance the half layout explains than the interleaved one, from -1 to 1.

    ``variance`` is that of the effect where rows know no frequency.
    """

    effect: float
    variance: float

    @property
    def sigmas(self) -> float:
        """The effect in standard deviations of rows that know no frequency; positive for half."""
        return self.effect / self.variance**0.5 if self.variance > 0 else 0.0


def pair_of_row(rope_dim: int, pairing: Pairing) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The index of the pair, 0 the fastest, that each rotated row of a head belongs to: shape [R]."""
    rows = np.arange(rope_dim)
    return rows % (rope_dim // 2) if pairing is Pairing.HALF else rows // 2


@cache
def _curves(rope_dim: int, pairing: Pairing) -> Floats:
    """The projection of R rows, less their mean, to parabolas in the index of the pair: shape [R, R]."""
    at = (pair_of_row(rope_dim, pairing) + 0.5) / (rope_dim // 2) * 2 - 1
    basis, _ = np.linalg.qr(np.polynomial.legendre.legvander(at, DEGREE))
    projection: Floats = basis[:, 1:] @ basis[:, 1:].T
    return projection


def sign_of(measure_HR: Floats) -> Sign | None:
    """The sign in one value for each rotated row of each head; None where all heads are flat, or too small to tell.

    With S the mean over heads of the outer product of a head's values (less their mean, of unit length), and A the
    difference of the projections, the effect is tr(A S). Where the values know no frequency, S is as if turned by a
    random rotation of N = R - 1 dimensions, and tr(A S) has the variance
    2 tr(A^2) (tr(S^2) - tr(S)^2 / N) / ((N - 1) (N + 2)), tr(A) being 0 (Weingarten's calculus for O(N), second order).
    """
    rope_dim = measure_HR.shape[1]
    if rope_dim // 2 <= DEGREE + 1:
        return None
    centred_HR = measure_HR - measure_HR.mean(axis=1, keepdims=True)
    length_H1 = np.linalg.norm(centred_HR, axis=1, keepdims=True)
    told = length_H1[:, 0] > _TINY * (1 + np.abs(measure_HR).max(initial=0))
    if not told.any():
        return None
    unit_HR = (centred_HR / np.maximum(length_H1, _TINY))[told]
    shape_RR = unit_HR.T @ unit_HR / len(unit_HR)
    apart_RR = _curves(rope_dim, Pairing.HALF) - _curves(rope_dim, Pairing.INTERLEAVED)
    free = rope_dim - 1
    spread = float((shape_RR**2).sum() - np.trace(shape_RR) ** 2 / free)
    variance = 2 * float((apart_RR**2).sum()) * spread / ((free - 1) * (free + 2))
    return Sign(float((apart_RR * shape_RR).sum()), variance)


def joined(signs: Iterable[Sign]) -> Sign | None:
    """The mean of independent signs; None of none."""
    found = tuple(signs)
    if not found:
        return None
    count = len(found)
    return Sign(sum(s.effect for s in found) / count, sum(s.variance for s in found) / count**2)


def _meet(q_HRM: Floats, k_GRM: Floats) -> bool:
    """Whether every q head has a k head that reads the same inputs (MLA's do not)."""
    return q_HRM.shape[2] == k_GRM.shape[2] and len(q_HRM) % len(k_GRM) == 0


def measures_of_layer(q_HRM: Floats | None, k_GRM: Floats | None) -> dict[str, Floats]:
    """One value for each rotated row of each head of a layer, by name.

    * ``q``, ``k``: the logarithm of the norm of each row;
    * ``qk``: the cosine between a row of q and the row of k that it meets, for heads that read the same inputs.
    """
    measures: dict[str, Floats] = {}
    norms = {name: _dots(rows, rows) ** 0.5 for name, rows in (("q", q_HRM), ("k", k_GRM)) if rows is not None}
    for name, norm in norms.items():
        measures[name] = np.log(norm + _TINY)
    if q_HRM is not None and k_GRM is not None and _meet(q_HRM, k_GRM):
        per = len(q_HRM) // len(k_GRM)
        dots_HR = np.concatenate([_dots(q_HRM[i * per : (i + 1) * per], k_RM) for i, k_RM in enumerate(k_GRM)])
        measures["qk"] = dots_HR / (norms["q"] * np.repeat(norms["k"], per, axis=0) + _TINY)
    return measures


def _dots(a_HRM: Floats, b_RM: Floats) -> Floats:
    """The dot product of each row with its partner; summed in the type of the rows, given as float64."""
    dots: Floats = np.einsum("...rm,...rm->...r", a_HRM, b_RM).astype(np.float64)
    return dots


def signs_of(measures: Mapping[str, Floats], rows: int | None = None) -> dict[str, Sign]:
    """The sign in each measure of its first ``rows`` rows (all, if not given), where it has any."""
    signs = {name: sign_of(values[:, :rows]) for name, values in measures.items()}
    return {name: sign for name, sign in signs.items() if sign is not None}
