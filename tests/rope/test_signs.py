"""The signs of a layout in rows: what untrained rows give by chance, and what rows that follow the frequency give."""

import numpy as np
import pytest

from ropetool.rope.pairing import Head, Pairing, index_map
from ropetool.rope.signs import Sign, joined, seen_in_layer, sign_of, signs_of

DIMS = (8, 16, 32, 64, 128)


def curved(rope_dim, pairing, heads=4, noise=0.5, seed=0):
    """One value per row that falls with the frequency, and noise, in rows laid out as ``pairing``."""
    rng = np.random.default_rng(seed)
    of_pair = np.linspace(-1, 1, rope_dim // 2)
    as_half = np.concatenate([of_pair, of_pair]) + noise * rng.normal(size=(heads, rope_dim))
    return (
        as_half
        if pairing is Pairing.HALF
        else as_half[:, index_map((Head(rope_dim, 0, rope_dim),), Pairing.HALF, pairing)]
    )


def layer_signs(q, k):
    return signs_of(seen_in_layer(q, k).measures)


@pytest.mark.parametrize("rope_dim", DIMS)
@pytest.mark.parametrize("pairing", list(Pairing))
def test_rows_that_follow_the_frequency_give_their_layout_away(rope_dim, pairing):
    sign = sign_of(curved(rope_dim, pairing, heads=16, noise=0.3))
    assert (sign.effect > 0) == (pairing is Pairing.HALF)
    assert abs(sign.effect) > 0.4
    assert abs(sign.sigmas) > (2 if rope_dim < 16 else 3 if rope_dim < 32 else 5)


@pytest.mark.parametrize("rope_dim", DIMS)
def test_the_variance_is_that_of_rows_in_random_order(rope_dim):
    """The formula against the draw that it stands for: the same values, of heads that are alike, in another order."""
    rng = np.random.default_rng(1)
    values = curved(rope_dim, Pairing.HALF)
    drawn = np.array([sign_of(values[:, rng.permutation(rope_dim)]).effect for _ in range(4000)])
    expected = sign_of(values).variance ** 0.5
    assert abs(drawn.mean()) < 4 * expected / 4000**0.5
    assert drawn.std() == pytest.approx(expected, rel=0.12)


def test_untrained_rows_are_standard_normal_all_together():
    rng = np.random.default_rng(2)
    sigmas = []
    for _ in range(400):
        groups, rope_dim, inputs = rng.choice([1, 2, 4]), rng.choice(DIMS), rng.choice([32, 128])
        heads = groups * rng.choice([1, 3, 4])
        layers = [
            layer_signs(rng.normal(size=(heads, rope_dim, inputs)), rng.normal(size=(groups, rope_dim, inputs)))
            for _ in range(rng.choice([1, 2, 4]))
        ]
        sigmas.append(joined(sign for signs in layers for sign in signs.values()).sigmas)
    assert np.std(sigmas) == pytest.approx(1, abs=0.12)
    assert abs(np.mean(sigmas)) < 0.2
    assert np.abs(sigmas).max() < 4.5


def test_the_other_layout_gives_the_other_sign():
    """Bit for bit: converting rows swaps the two hypotheses."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(4, 32))
    moved = rows[:, index_map((Head(32, 0, 32),), Pairing.HALF, Pairing.INTERLEAVED)]
    again = moved[:, index_map((Head(32, 0, 32),), Pairing.INTERLEAVED, Pairing.HALF)]
    assert np.array_equal(again, rows)
    assert sign_of(curved(32, Pairing.HALF)).effect > 0.1 > -0.1 > sign_of(curved(32, Pairing.INTERLEAVED)).effect


@pytest.mark.parametrize(
    "rows", [np.ones((2, 32)), np.zeros((2, 32)), np.ones((1, 4)), np.random.default_rng(0).normal(size=(3, 6))]
)
def test_flat_or_few_rows_tell_nothing(rows):
    assert sign_of(rows) is None


def test_a_head_that_is_flat_does_not_weigh():
    values = curved(32, Pairing.HALF)
    assert sign_of(np.vstack([values, np.ones((3, 32))])) == sign_of(values)


def test_scale_and_offset_do_not_count():
    values = curved(32, Pairing.HALF)
    assert sign_of(1e-6 * values + 3).effect == pytest.approx(sign_of(values).effect)


def test_joined_is_the_mean():
    assert joined([Sign(0.2, 0.04), Sign(0.4, 0.12)]) == Sign(pytest.approx(0.3), pytest.approx(0.04))
    assert joined([]) is None
    assert Sign(0.0, 0.0).sigmas == 0


def test_the_cosine_of_q_and_k_is_taken_within_a_group_of_heads():
    """Each k row meets the q rows of its own group; between MLA's parts, which read other inputs, there is none."""
    rng = np.random.default_rng(4)
    k = rng.normal(size=(2, 16, 24))
    lean = np.tile(np.linspace(0, 3, 8), 2)[:, None]
    q = np.repeat(k, 3, axis=0) * lean + rng.normal(size=(6, 16, 24))
    assert layer_signs(q, k)["qk"].effect > 0.5
    assert abs(layer_signs(q[::-1], k)["qk"].effect) < 0.3
    assert "qk" not in layer_signs(q[..., :20], k)
    assert set(layer_signs(q, None)) == {"q"}
