"""The optimiser: it goes downhill, does the same again for a seed, and says what is missing."""

from __future__ import annotations

import builtins

import numpy as np
import pytest

from ropetool.errors import UsageError
from ropetool.rope.optimiser import Optimiser, need_optimiser


def lowest(seed: int, bottom: list[float], generations: int = 12) -> tuple[float, list[np.ndarray]]:
    steps, seen, best = Optimiser(np.full(len(bottom), 0.5), seed), [], np.inf
    for _ in range(generations):
        points = steps.ask()
        if not points:
            break
        values = [float(((point - bottom) ** 2).sum()) for point in points]
        steps.tell(values)
        seen += points
        best = min(best, *values)
    return best, seen


def test_it_finds_the_bottom_of_a_bowl() -> None:
    best, seen = lowest(3, [0.2, 0.9, 0.4])
    assert best < 0.01
    assert all(((point >= 0) & (point <= 1)).all() for point in seen)


def test_one_seed_gives_the_same_points_whatever_else_draws() -> None:
    _, first = lowest(3, [0.2, 0.9, 0.4], 3)
    np.random.default_rng().random(5)
    np.random.random(5)
    _, again = lowest(3, [0.2, 0.9, 0.4], 3)
    _, other = lowest(4, [0.2, 0.9, 0.4], 3)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_single_number_is_optimised_too() -> None:
    best, seen = lowest(1, [0.8])
    assert best < 0.01
    assert all(point.shape == (1,) for point in seen)


def test_what_cannot_be_does_not_stop_it() -> None:
    steps = Optimiser(np.array([0.5, 0.5]), 1)
    points = steps.ask()
    steps.tell([float("inf"), *(float(at) for at in range(1, len(points)))])
    assert steps.ask()


def test_the_missing_package_is_named(monkeypatch) -> None:
    real = builtins.__import__

    def without(name: str, *args, **kwargs):
        if name == "cma":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'ropetool\[search\]'"):
        need_optimiser()
