"""The spaces of a search: every point is a setting that can be written, and settings come back from their points."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropetool.rope.frequencies import Yarn, plain_inv_freq, scaling_from_block
from ropetool.rope.spaces import Axis, Space, base_space, knots_of, llama3_space, longrope_space, yarn_space

UNIT = st.floats(0, 1)
ORIGINAL, PAIRS = 4096, 32


@settings(max_examples=60, deadline=None)
@given(point=st.lists(UNIT, min_size=4, max_size=4), ratio=st.floats(1.1, 64))
def test_every_point_of_yarn_is_a_ramp_that_runs_forwards(point, ratio) -> None:
    found = yarn_space(ratio).settings(point)
    assert found["beta_fast"] > found["beta_slow"]
    assert ratio * 0.999 <= found["factor"] <= ratio * 1.501
    block = {"rope_type": "yarn", "original_max_position_embeddings": ORIGINAL, **found}
    assert scaling_from_block(block, 1e4, int(ORIGINAL * ratio)).attention_factor == found["attention_factor"]


@settings(max_examples=60, deadline=None)
@given(point=st.lists(UNIT, min_size=3, max_size=3), ratio=st.floats(1.1, 64))
def test_every_point_of_llama3_is_a_band(point, ratio) -> None:
    found = llama3_space(ratio).settings(point)
    block = {"rope_type": "llama3", "original_max_position_embeddings": ORIGINAL, **found}
    assert scaling_from_block(block, 1e4, ORIGINAL).name == "llama3"


@settings(max_examples=60, deadline=None)
@given(point=st.lists(UNIT, min_size=7, max_size=7), ratio=st.floats(1.1, 64))
def test_factors_never_fall_and_never_speed_a_pair_up(point, ratio) -> None:
    found = longrope_space(PAIRS, ratio).settings(point)
    long = np.array(found["long_factor"])
    assert len(long) == PAIRS
    assert (np.diff(long) >= 0).all()
    assert long.min() >= 1
    assert long.max() <= ratio * 1.501
    assert found["short_factor"] == [1.0] * PAIRS


def test_a_start_comes_back_from_its_point() -> None:
    space, start = yarn_space(4.0), {"beta_fast": 32.0, "beta_slow": 1.0, "attention_factor": 1.139, "factor": 4.0}
    assert space.settings(space.point(start)) == start


def test_the_point_of_factors_gives_them_back_at_the_knots() -> None:
    theta, scaling = 1e5, Yarn(1e5, 4.0, ORIGINAL)
    factors = plain_inv_freq(theta, 2 * PAIRS) / scaling.inv_freq(2 * PAIRS)
    space = longrope_space(PAIRS, 4.0)
    found = space.settings(knots_of(space, list(factors), 1.1))["long_factor"]
    knots = [int(axis.key.removeprefix("pair ")) for axis in space.axes[:-1]]
    assert [found[at] for at in knots] == pytest.approx([factors[at] for at in knots], rel=1e-3)
    assert knots == [0, 6, 12, 19, 25, 31]


def test_more_knots_than_pairs_are_one_each() -> None:
    assert len(longrope_space(4, 2.0).axes) == 5


def test_a_base_lies_between_powers_of_the_ratio() -> None:
    space = base_space(1e4, 4.0)
    assert space.settings([0.0])["base"] == pytest.approx(1e4 * 4**0.5, rel=1e-3)
    assert space.settings([1.0])["base"] == pytest.approx(1e4 * 4**3, rel=1e-3)


def test_an_axis_by_the_logarithm_has_its_middle_at_the_geometric_mean() -> None:
    assert Axis("a", 1.0, 100.0).value(0.5) == 10
    assert Axis("a", 0.0, 100.0, logarithmic=False).value(0.5) == 50
    assert Axis("a", 1.0, 100.0).place(1000.0) == 1.0
    assert math.isclose(Axis("a", 1.0, 100.0).place(10.0), 0.5)


def test_an_axis_can_be_left_out() -> None:
    space: Space = base_space(1e4, 2.0)
    assert space.without(["base"]).axes == ()
