"""The numbers that a search decides by, held against a plain computation token by token."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ropetool.errors import UsageError
from ropetool.models.objective import bins_for, by_bin, fewer, gain, mean_loss, penalty, student
from ropetool.models.stages import Clock, ladder, planned


def blocks(losses_WT: np.ndarray, block: int) -> list[list[float]]:
    return [[float(row[at : at + block].mean()) for at in range(0, len(row), block)] for row in losses_WT]


@pytest.fixture
def losses() -> np.ndarray:
    return np.random.default_rng(1).random((3, 1023)) + 2


@pytest.mark.parametrize(("trained", "length"), [(256, 1024), (100, 1000), (250, 999), (8, 33), (64, 65)])
def test_bins_and_means_are_those_of_the_tokens(trained, length) -> None:
    bins = bins_for(trained, length)
    rows = np.random.default_rng(2).random((2, length - 1)) + 1
    found = by_bin(blocks(rows, bins.block), bins, length)
    starts = (0, *bins.edges[:-1])
    told = [
        (rows[:, a:b].mean(), rows[:, a:b].size) for a, b in zip(starts, bins.edges, strict=True) if rows[:, a:b].size
    ]
    assert [n for _, n in found] == [n for _, n in told]
    assert [loss for loss, _ in found] == pytest.approx([loss for loss, _ in told])
    assert mean_loss(blocks(rows, bins.block), bins, length) == pytest.approx(rows.mean())
    assert bins.edges[-1] == length


def test_the_edges_of_a_real_model_are_those_that_people_name() -> None:
    assert bins_for(8192, 32768).edges == (1024, 4096, 8192, 12288, 16384, 20480, 24576, 28672, 32768)
    assert len(bins_for(8192, 1 << 20).edges) <= 16


def test_the_penalty_counts_what_is_lost_inside_alone(losses) -> None:
    bins = bins_for(256, 1024)
    plain = losses[:, :256].copy()
    worse, better = losses.copy(), losses.copy()
    worse[:, :32] += 0.8  # the first bin: 32 of 256 tokens
    better[:, :32] -= 0.8
    beyond = losses.copy()
    beyond[:, 256:] += 5
    given = {name: penalty(blocks(x, 32), blocks(plain, 32), bins, 1024)
             for name, x in {"same": losses, "worse": worse, "better": better, "beyond": beyond}.items()}  # fmt: skip
    assert given["worse"] == pytest.approx(0.1)
    assert given["same"] == given["better"] == given["beyond"] == pytest.approx(0, abs=1e-12)


def test_a_gain_is_paired(losses) -> None:
    bins = bins_for(256, 1024)
    noise = np.random.default_rng(3).normal(0, 0.02, losses.shape)
    found = gain(blocks(losses - 0.05 + noise, 32), blocks(losses, 32), bins)
    assert found.mean == pytest.approx(0.05, abs=0.005)
    assert found.low < found.mean < found.high
    assert found.high - found.low < 0.02  # far below the spread of the losses themselves
    assert found.beyond_noise
    assert found.units == 96
    assert not gain(blocks(losses, 32), blocks(losses, 32), bins).beyond_noise


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    bins, draw = bins_for(256, 1024), np.random.default_rng(4)
    covered = 0
    for _ in range(400):
        walk = np.zeros(32)
        for at in range(1, 32):
            walk[at] = 0.5 * walk[at - 1] + draw.normal()
        found = gain([list(-walk)], [[0.0] * 32], bins)
        covered += found.low <= 0 <= found.high
    assert 0.88 <= covered / 400 <= 0.99


def test_too_few_units_say_nothing() -> None:
    bins = bins_for(8, 9)
    found = gain([[1.0, 1.0]], [[2.0, 2.0]], bins)
    assert (found.low, found.high) == (-math.inf, math.inf)


@pytest.mark.parametrize(("freedom", "quantile"), [(4, 2.7764), (9, 2.2622), (31, 2.0395), (255, 1.9693)])
def test_students_quantiles_are_those_of_the_tables(freedom, quantile) -> None:
    assert student(freedom) == pytest.approx(quantile, abs=2e-3)


def test_answers_are_compared_document_by_document() -> None:
    assert not fewer([1, 1, 1, 0], [1, 1, 1, 1])  # one is chance
    assert fewer([1, 1, 0, 0], [1, 1, 1, 1])
    assert not fewer([1, 1, 0, 0], [0, 0, 1, 1])  # as many, others
    assert not fewer([1, 1, 1, 1], [0, 0, 0, 0])


def clocked(whole: float, share: float = 0.2) -> Clock:
    clock = Clock()
    for length in (1024, 4096):
        clock.saw(length, whole * (share * length / 32768 + (1 - share) * (length / 32768) ** 2))
    return clock


def test_the_clock_reckons_with_layers_and_attention() -> None:
    assert clocked(67).seconds(32768) == pytest.approx(67)
    assert clocked(67).seconds(8192) == pytest.approx(67 * (0.05 + 0.05))


def test_cheap_stages_come_first_and_the_budget_holds_them() -> None:
    for whole in (5.0, 67.0, 168.0, 600.0):
        clock = clocked(whole)
        found = planned(clock.seconds, 2400, 8192, 32768, (3, 3), None, True)
        spent = found.trials * found.windows * clock.seconds(found.screen)
        spent += found.held_windows * (2 * whole + clock.seconds(8192)) + 3 * found.documents * whole
        spent += 0 if found.decide == found.screen else 4 * found.decide_windows * clock.seconds(found.decide)
        assert spent <= 2400, whole
        assert found.screen <= found.decide
        assert found.trials >= 4
    assert found.screen < 32768  # what is dear is read short


def test_a_budget_that_cannot_do_is_refused_with_what_could() -> None:
    with pytest.raises(UsageError, match=r"the least that a search needs here is .* minutes") as raised:
        planned(clocked(700).seconds, 600, 8192, 32768, (3, 3), None, True)
    least = raised.value.fields["least_minutes"]
    assert planned(clocked(700).seconds, least * 60 + 1, 8192, 32768, (3, 3), None, True).trials >= 4


def test_a_number_of_trials_plans_the_same_on_any_machine() -> None:
    slow, fast = (planned(clocked(w).seconds, 60, 8192, 32768, (9, 9), 20, True) for w in (1.0, 1e6))
    assert slow == fast
    assert slow.screen == 16384


def test_the_ladder_ends_beyond_the_trained_length() -> None:
    assert ladder(8192, 32768) == (32768, 16384, 12288, 10240)
    assert min(ladder(256, 300)) >= 256
