"""The row grammar against golden maps, and against the reshape that Meta's checkpoints are converted by."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropetool.rope.pairing import (
    Head,
    Keep,
    Pairing,
    closed_blocks,
    index_map,
    pairs,
    rotary_index_map,
    rows_of,
)

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED
BOTH_WAYS = ((HALF, INTERLEAVED), (INTERLEAVED, HALF))
I2H_8 = [0, 2, 4, 6, 1, 3, 5, 7]
H2I_8 = [0, 4, 1, 5, 2, 6, 3, 7]


def plus(offset: int, rows: list[int]) -> list[int]:
    return [offset + row for row in rows]


def meta_to_hf(x: np.ndarray, heads: int) -> np.ndarray:
    """``permute`` of transformers' convert_llama_weights_to_hf.py, as it stands there: interleaved to half."""
    rows, columns = x.shape
    return x.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def hf_to_meta(x: np.ndarray, heads: int) -> np.ndarray:
    """``reverse_hf_permute`` of llama.cpp and others: half to interleaved."""
    rows, columns = x.shape
    return x.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


@st.composite
def heads_of(draw: st.DrawFn) -> Head:
    rope = 2 * draw(st.integers(1, 16))
    before, after = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    return Head(before + rope + after, before, rope)


spans_lists = st.lists(st.one_of(heads_of(), st.integers(0, 9).map(Keep)), min_size=1, max_size=8)
directions = st.sampled_from(BOTH_WAYS)


@pytest.mark.parametrize(("source", "target", "golden"), [(INTERLEAVED, HALF, I2H_8), (HALF, INTERLEAVED, H2I_8)])
def test_eight_rows(source: Pairing, target: Pairing, golden: list[int]) -> None:
    assert rotary_index_map(8, source, target).tolist() == golden


def test_the_pairs_of_eight_rows() -> None:
    assert list(pairs(8, HALF)) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert list(pairs(8, INTERLEAVED)) == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_the_key_rows_of_grouped_query_attention() -> None:
    k = index_map([Head(8, 0, 8)] * 2, HALF, INTERLEAVED)
    assert k.tolist() == [0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]


def test_gpt_neox_fuses_head_by_head_and_turns_a_part() -> None:
    head = Head(16, 0, 8)
    fused = index_map([head, head, Keep(16)] * 2, HALF, INTERLEAVED).tolist()
    block = [*H2I_8, *range(8, 16), *plus(16, H2I_8), *range(24, 32), *range(32, 48)]
    assert fused == block + plus(48, block)
    assert block[:8] == [0, 4, 1, 5, 2, 6, 3, 7]
    assert block[16:24] == [16, 20, 17, 21, 18, 22, 19, 23]


def test_internlm2_fuses_by_key_value_group() -> None:
    head = Head(8, 0, 8)
    fused = index_map([head, head, head, Keep(8)] * 2, HALF, INTERLEAVED).tolist()
    group = [*H2I_8, *plus(8, H2I_8), *plus(16, H2I_8), *range(24, 32)]
    assert fused == group + plus(32, group)
    assert len(fused) == 64


def test_codegen_has_v_in_the_middle_of_each_block() -> None:
    head = Head(8, 0, 8)
    fused = index_map([head, Keep(8), head] * 4, INTERLEAVED, HALF).tolist()
    block = [*I2H_8, *range(8, 16), *plus(16, I2H_8)]
    assert fused == [row for start in (0, 24, 48, 72) for row in plus(start, block)]


def test_the_projections_of_latent_attention() -> None:
    q = index_map([Head(12, 4, 8)] * 2, INTERLEAVED, HALF).tolist()
    assert q == [0, 1, 2, 3, 4, 6, 8, 10, 5, 7, 9, 11, 12, 13, 14, 15, 16, 18, 20, 22, 17, 19, 21, 23]
    kv = index_map([Keep(16), Head(8, 0, 8)], INTERLEAVED, HALF).tolist()
    assert kv == [*range(16), 16, 18, 20, 22, 17, 19, 21, 23]


@given(heads=st.integers(1, 9), half=st.integers(1, 32), columns=st.integers(1, 4))
def test_full_heads_move_as_the_reshape_moves_them(heads: int, half: int, columns: int) -> None:
    x = np.arange(heads * 2 * half * columns).reshape(-1, columns)
    spans = [Head(2 * half, 0, 2 * half)] * heads
    assert (x[index_map(spans, INTERLEAVED, HALF)] == meta_to_hf(x, heads)).all()
    assert (x[index_map(spans, HALF, INTERLEAVED)] == hf_to_meta(x, heads)).all()


@given(spans=spans_lists, way=directions)
def test_every_map_is_a_permutation_that_stays_within_its_rotary_spans(spans, way) -> None:
    index = index_map(spans, *way)
    assert sorted(index.tolist()) == list(range(rows_of(spans)))
    start, may_move = 0, set()
    for span in spans:
        if isinstance(span, Head):
            rope = range(start + span.rope_start, start + span.rope_start + span.rope_dim)
            may_move |= set(rope)
            assert set(index[rope.start : rope.stop].tolist()) == set(rope)
        start += span.rows
    assert {r for r in range(len(index)) if index[r] != r} <= may_move


@given(spans=spans_lists, way=directions)
def test_there_and_back_is_the_identity(spans, way) -> None:
    source, target = way
    there, back = index_map(spans, source, target), index_map(spans, target, source)
    assert (there[back] == np.arange(len(there))).all()
    assert (back[there] == np.arange(len(there))).all()


@given(rope_dim=st.integers(1, 64).map(lambda half: 2 * half), way=directions)
def test_twice_the_same_way_is_not_the_identity_from_six_rows_on(rope_dim: int, way) -> None:
    index = rotary_index_map(rope_dim, *way)
    assert (index[index] == np.arange(rope_dim)).all() == (rope_dim <= 4)


@given(rope_dim=st.integers(1, 64).map(lambda half: 2 * half), way=directions)
def test_a_pair_stays_a_pair_with_its_frequency_and_order(rope_dim: int, way) -> None:
    """Pair i of the target holds the very rows of pair i of the source, first slot first."""
    source, target = way
    index = rotary_index_map(rope_dim, source, target)
    moved = [(int(index[a]), int(index[b])) for a, b in pairs(rope_dim, target)]
    assert moved == list(pairs(rope_dim, source))


@given(rope_dim=st.integers(1, 32).map(lambda half: 2 * half), seed=st.integers(0, 2**32 - 1), t=st.integers(1, 999))
def test_turning_before_or_after_the_move_is_the_same(rope_dim: int, seed: int, t: int) -> None:
    """With complex numbers: half pairs are x[:n] + i x[n:], interleaved pairs are x[0::2] + i x[1::2]."""
    x, n = np.random.default_rng(seed).normal(size=rope_dim), rope_dim // 2
    turn = np.exp(1j * t * 10000.0 ** (-np.arange(n) / n))
    turned = (x[:n] + 1j * x[n:]) * turn
    as_half = np.concatenate((turned.real, turned.imag))
    moved = x[rotary_index_map(rope_dim, HALF, INTERLEAVED)]
    turned = (moved[0::2] + 1j * moved[1::2]) * turn
    as_interleaved = np.stack((turned.real, turned.imag), axis=1).ravel()
    np.testing.assert_array_equal(as_interleaved[rotary_index_map(rope_dim, INTERLEAVED, HALF)], as_half)


@given(spans=spans_lists, way=directions)
def test_closed_blocks_cover_exactly_what_moves(spans, way) -> None:
    index = index_map(spans, *way)
    blocks = list(closed_blocks(index))
    covered = [row for start, stop in blocks for row in range(start, stop)]
    assert len(covered) == len(set(covered))
    assert blocks == sorted(blocks)
    assert {r for r in range(len(index)) if index[r] != r} <= set(covered)
    for start, stop in blocks:
        assert sorted(index[start:stop].tolist()) == list(range(start, stop))
        assert index[start] != start or stop - start > 1
        # smallest: no proper prefix of a block maps onto itself
        assert all(max(index[start:middle]) >= middle for middle in range(start + 1, stop))


@given(permutation=st.integers(1, 24).flatmap(lambda n: st.permutations(range(n))))
def test_closed_blocks_of_any_permutation(permutation: list[int]) -> None:
    index = np.array(permutation, dtype=np.int64)
    rebuilt = np.arange(len(index))
    for start, stop in closed_blocks(index):
        rebuilt[start:stop] = start + (index[start:stop] - start)
    assert (rebuilt == index).all()


def test_a_map_to_the_same_layout_moves_nothing() -> None:
    for pairing in Pairing:
        index = index_map([Keep(3), Head(16, 2, 8)], pairing, pairing)
        assert (index == np.arange(19)).all()
        assert list(closed_blocks(index)) == []


@pytest.mark.parametrize(
    ("dim", "start", "rope", "said"),
    [(8, 0, 7, "has 7"), (8, 0, 0, "has 0"), (8, 0, 10, "8 rows"), (8, 2, 8, "8 rows"), (8, -2, 4, "row -2")],
)
def test_an_impossible_head_is_refused_with_its_numbers(dim: int, start: int, rope: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Head(dim, start, rope)


def test_the_layouts_are_each_others_other() -> None:
    assert HALF.other is INTERLEAVED
    assert INTERLEAVED.other is HALF
    assert [p.value for p in Pairing] == ["half", "interleaved"]
