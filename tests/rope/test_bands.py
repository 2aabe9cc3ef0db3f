"""What frequencies mean: against definitions written out, and the inequality of the paper itself."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from ropetool.rope.bands import distances, score_bound, score_by_distance, turns, wavelengths
from ropetool.rope.frequencies import Default, Proportional

WIDTHS = (2, 8, 64, 128)


def test_wavelengths_are_those_of_the_sinusoidal_table():
    found = wavelengths(Default(10000.0).inv_freq(512))
    assert found[0] == pytest.approx(2 * math.pi)
    assert found[-1] == pytest.approx(10000.0 ** (510 / 512) * 2 * math.pi)


def test_a_pair_that_does_not_turn_has_no_wavelength():
    still = Proportional(10000.0, share=0.25).inv_freq(16)
    assert np.isinf(wavelengths(still)).tolist() == [False] * 2 + [True] * 6
    assert turns(still, 1000).tolist()[2:] == [0.0] * 6


@pytest.mark.parametrize("width", WIDTHS)
def test_turns_are_lengths_over_wavelengths(width: int):
    frequencies = Default(500000.0).inv_freq(width)
    assert turns(frequencies, 8192) == pytest.approx(8192 / wavelengths(frequencies))


@pytest.mark.parametrize(("longest", "most"), [(1, 5), (7, 100), (131072, 160), (1 << 40, 160)])
def test_distances_rise_from_none_to_the_longest(longest: int, most: int):
    found = distances(longest, most)
    assert (found[0], found[1], found[-1]) == (0, 1, longest)
    assert all(a < b for a, b in pairwise(found))
    assert len(found) <= most + 1


def rotated(vector: np.ndarray, position: int, frequencies: np.ndarray) -> np.ndarray:
    """Every pair of an interleaved vector, turned by its own 2 x 2 matrix."""
    out = []
    for (x, y), frequency in zip(vector.reshape(-1, 2), frequencies, strict=True):
        angle = position * frequency
        out += [x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)]
    return np.array(out)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("factor", [1.0, 1.1386])
def test_the_score_is_that_of_rotated_vectors(width: int, factor: float):
    frequencies = Default(10000.0).inv_freq(width)
    alike = np.tile([1.0, 0.0], width // 2)
    apart = (0, 1, 5, 97, 1000)
    found = score_by_distance(frequencies, np.array(apart, dtype=float), factor)
    for distance, score in zip(apart, found, strict=True):
        q, k = (factor * rotated(alike, at, frequencies) for at in (distance + 13, 13))
        assert score == pytest.approx(q @ k / (width // 2), abs=1e-9)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_bound_holds_for_any_q_and_k(width: int):
    """RoFormer, eq. 37: |sum h_i exp(i m theta_i)| <= max |h_(i+1) - h_i| * sum |S_(i+1)|, with h_(R/2) = 0."""
    frequencies, draw = Default(10000.0).inv_freq(width), np.random.default_rng(3)
    count = width // 2
    apart = np.array([0.0, 1, 2, 30, 400, 5000])
    relative = score_bound(frequencies, apart)
    assert relative[0] == pytest.approx(1)
    sums = relative * (count + 1) / 2 * count
    for _ in range(50):
        h = draw.standard_normal(count) + 1j * draw.standard_normal(count)
        steps = np.abs(np.diff(np.append(h, 0)))
        scores = np.abs((h * np.exp(1j * np.outer(apart, frequencies))).sum(axis=1))
        assert (scores <= steps.max() * sums + 1e-9).all()


def test_the_bound_is_the_definition_written_out():
    frequencies, distance = Default(10000.0).inv_freq(8), 7
    partial = [abs(sum(np.exp(1j * distance * f) for f in frequencies[: j + 1])) for j in range(4)]
    assert score_bound(frequencies, np.array([7.0]), 2.0)[0] == pytest.approx(4 * sum(partial) / 4 / 2.5)
