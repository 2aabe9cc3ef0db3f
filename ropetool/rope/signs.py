"""What trained rows tell of their layout: curves over the frequency that hold in one layout and break in the other.

Training treats the pairs of a head by their frequency: the norms of their q and k rows, and how far a q row points
along its k row, change smoothly from the fastest pair to the slowest. Laid out by the true layout, the rows of a head
lie on such a curve; by the other one, they do not. A measure of one value per row is therefore fitted by a parabola
in the index of the pair, once for each layout, and the share of its variance that one explains more than the other
is the sign. Rows that know no frequency, as those of an untrained model, have a sign of 0 on average, and its variance
is known exactly: that of a random rotation (see `sign_of`).

The curves have one twin: half over a head is interleaved over each half of it. Which of the two it is, if the width of
a head is not believed, is told by angles: the two rows of a pair are nearer to a right angle than a row and its pair's
neighbour, and the same rows of two heads are not (see `right_angles`).

Shapes: H heads, G key-value heads, R rotated rows of a head, M inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from ropetool.rope.pairing import Pairing, pairs

Floats = np.ndarray[Any, np.dtype[Any]]
Indices = np.ndarray[Any, np.dtype[np.int64]]

# A parabola: more bends let the wrong layout follow what it should not (measured: benchmarks/witnesses.py).
DEGREE = 2
_TINY = 1e-12
# Angles between rows are told well by a part of their inputs.
MOST_INPUTS = 1024


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
    basis, _ = np.linalg.qr(np.vander(at, DEGREE + 1, increasing=True))
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


@dataclass(frozen=True)
class Angles:
    """By how much the rows of pairs are nearer to each other than to those of the next pair: a sum, and its squares."""

    total: float = 0.0
    squares: float = 0.0

    @property
    def sigmas(self) -> float:
        """The sum in standard deviations of rows without pairs; negative for pairs at right angles."""
        return self.total / self.squares**0.5 if self.squares else 0.0

    def __add__(self, other: Angles) -> Angles:
        return Angles(self.total + other.total, self.squares + other.squares)


TwinAngles = tuple[Angles, Angles]
_NO_ANGLES = (Angles(), Angles())


class Heads(Protocol):
    """The rows of some heads, [H, R, M]: an array, or what reads a slice of them when it is asked for."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Heads, rows, inputs."""

    def __getitem__(self, some: slice, /) -> Floats:
        """Some of the heads."""


@dataclass
class _Part:
    """What was seen of q, or of k: norms by head, and the angles of each layout and its twin."""

    norms: list[Floats]
    angles: dict[Pairing, TwinAngles]

    def add(self, rows_HRM: Floats) -> Floats:
        """Look at one head, or two; returns the norms of their rows."""
        norms_HR: Floats = np.sqrt(np.einsum("hrm,hrm->hr", rows_HRM, rows_HRM).astype(np.float64))
        self.norms.append(norms_HR)
        rope_dim, cosines_TT = rows_HRM.shape[1], _cosines(rows_HRM)
        for pairing, (own, twin) in list(self.angles.items()):
            width = rope_dim * 2 if pairing is Pairing.INTERLEAVED else rope_dim // 2
            if width % 2 or len(cosines_TT) % width:  # the config's heads are no other ones cut in two
                del self.angles[pairing]
                continue
            twins = right_angles(cosines_TT, width, pairing.other)
            self.angles[pairing] = own + right_angles(cosines_TT, rope_dim, pairing), twin + twins
        return norms_HR


@dataclass(frozen=True)
class Seen:
    """What the rows of a layer show.

    ``measures`` have one value for each rotated row of each head, by name: ``q`` and ``k`` the logarithm of the norm of
    each row, ``qk`` the cosine between a row of q and the row of k that it meets, for heads that read the same inputs.
    ``angles`` are those within the pairs of each layout, and within those of its twin (half over two heads together,
    interleaved over half a head), of q and k; nothing for a layout where a part's heads cannot be so. ``spoiled`` are
    the parts whose values are no numbers, or all zero.
    """

    measures: dict[str, Floats]
    angles: dict[Pairing, dict[str, TwinAngles]]
    spoiled: tuple[str, ...]


def seen_in_layer(q_HRM: Heads | None, k_GRM: Heads | None) -> Seen:
    """Look at the rows of a layer, at two heads of q and of k at a time: all of them are never in memory."""
    parts = {name: _Part([], dict.fromkeys(Pairing, _NO_ANGLES)) for name in ("q", "k")}
    cosines: list[Floats] = []
    meet = q_HRM is not None and k_GRM is not None and _meet(q_HRM, k_GRM)
    per = q_HRM.shape[0] // k_GRM.shape[0] if q_HRM is not None and k_GRM is not None and meet else 0
    for first, k_two in _twos(k_GRM):
        norms_k = parts["k"].add(k_two)
        for head, q_two in _twos(q_HRM, first * per, (first + len(k_two)) * per):
            norms_q = parts["q"].add(q_two)
            for at, group in enumerate((head + i) // per - first for i in range(len(q_two))):
                along = np.einsum("rm,rm->r", q_two[at], k_two[group]).astype(np.float64)
                cosines.append(along / (norms_q[at] * norms_k[group] + _TINY))
    for _, q_two in _twos(q_HRM) if not meet else ():
        parts["q"].add(q_two)
    found = {name: part for name, part in parts.items() if part.norms}
    measures = {name: np.log(np.concatenate(part.norms) + _TINY) for name, part in found.items()}
    if meet:
        measures["qk"] = np.stack(cosines)
    angles = {
        pairing: {name: part.angles[pairing] for name, part in found.items()}
        for pairing in Pairing
        if all(pairing in part.angles for part in found.values())
    }
    spoiled = (name for name, part in found.items() if not 0 < np.concatenate(part.norms).sum() < np.inf)
    return Seen(measures, angles, tuple(spoiled))


def _meet(q_HRM: Heads, k_GRM: Heads) -> bool:
    """Whether every q head has a k head that reads the same inputs (MLA's do not)."""
    return q_HRM.shape[2] == k_GRM.shape[2] and q_HRM.shape[0] % k_GRM.shape[0] == 0


def _twos(heads: Heads | None, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Floats]]:
    """The heads from ``start`` on, two at a time and the last one alone, each with the number of the first."""
    if heads is None:
        return
    stop = heads.shape[0] if stop is None else stop
    for at in range(start, stop, 2):
        yield at, heads[at : min(at + 2, stop)]


def signs_of(measures: Mapping[str, Floats], rows: int | None = None) -> dict[str, Sign]:
    """The sign in each measure of its first ``rows`` rows (all, if not given), where it has any."""
    signs = {name: sign_of(values[:, :rows]) for name, values in measures.items()}
    return {name: sign for name, sign in signs.items() if sign is not None}


def _cosines(rows_HRM: Floats) -> Floats:
    """The cosine between each two rows of some heads, from a part of their inputs, without its sign: shape [T, T]."""
    some_TM = rows_HRM[..., :MOST_INPUTS].reshape(-1, min(rows_HRM.shape[2], MOST_INPUTS))
    unit_TM = some_TM / (np.sqrt(np.einsum("tm,tm->t", some_TM, some_TM))[:, None] + _TINY)
    cosines: Floats = np.abs(unit_TM @ unit_TM.T)
    return cosines


@cache
def _rows_of_pairs(rope_dim: int, pairing: Pairing) -> tuple[Indices, Indices]:
    """The first row of every pair, and the second."""
    found = np.array(list(pairs(rope_dim, pairing)))
    return found[:, 0], found[:, 1]


def right_angles(cosines_TT: Floats, rope_dim: int, pairing: Pairing) -> Angles:
    """How the angles within pairs differ from those with the next pair, over heads of ``rope_dim`` of the T rows."""
    first, second = _rows_of_pairs(rope_dim, pairing)
    starts = np.arange(0, len(cosines_TT), rope_dim)[:, None]

    def between(a: Indices, b: Indices) -> Floats:
        picked: Floats = cosines_TT[starts + a, starts + b].astype(np.float64)
        return picked

    within, across = between(first, second), between(second[:-1], first[1:])
    if pairing is Pairing.HALF:  # both rows of a pair are as far from the next one's
        across = (across + between(first[:-1], second[1:])) / 2
    apart = (within[:, 1:] + within[:, :-1]) / 2 - across
    return Angles(float(apart.sum()), float((apart**2).sum()))
