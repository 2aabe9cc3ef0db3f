"""The encodings beside RoPE against transformers' own classes, the papers' numbers, and what must hold of each."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPT2Config, GPT2Model, T5Config, Wav2Vec2BertConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding
from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.roformer.modeling_roformer import RoFormerSinusoidalPositionalEmbedding
from transformers.models.t5.modeling_t5 import T5Attention
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import Wav2Vec2BertSelfAttention

from ropetool.errors import EncodingError, PositionError
from ropetool.rope.encodings import (
    LearnedPositions,
    alibi_bias,
    alibi_slopes,
    shaw_scores,
    sinusoidal,
    sinusoidal_shift,
    t5_bias,
    t5_buckets,
)

WIDTHS = (2, 4, 8, 64, 512)
RNG = np.random.default_rng(0)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def causal(scores: np.ndarray) -> np.ndarray:
    return np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)


# --- sinusoidal -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("d", WIDTHS)
def test_the_table_is_the_formula_of_the_paper(d: int) -> None:
    table = sinusoidal(50, d)
    for position in range(50):
        for i in range(d // 2):
            angle = position / math.pow(10000, 2 * i / d)
            assert table[position, 2 * i] == pytest.approx(math.sin(angle), abs=1e-12)
            assert table[position, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-12)


def marian(rows: int, d: int) -> torch.Tensor:
    return MarianSinusoidalPositionalEmbedding(rows, d).create_weight()


def roformer(rows: int, d: int) -> torch.Tensor:
    return RoFormerSinusoidalPositionalEmbedding(rows, d).create_weight()


@pytest.mark.parametrize("theirs", [roformer, marian, create_sinusoidal_positions], ids=lambda f: f.__name__)
@pytest.mark.parametrize("d", WIDTHS)
def test_roformer_marian_and_gptj_have_the_same_table_sines_first(theirs: Callable, d: int) -> None:
    ours = sinusoidal(600, d)
    # GPT-J's is computed in float32: 600 x 2^-24, doubled
    np.testing.assert_allclose(np.concatenate((ours[:, 0::2], ours[:, 1::2]), axis=1), theirs(600, d), atol=8e-5)


def wavelengths_tokens(first_turn: np.ndarray) -> np.ndarray:
    """From the hands (sine, cosine) of every clock at position 1, which no pair has passed a half turn by."""
    return 2 * np.pi / np.arctan2(first_turn[:, 0], first_turn[:, 1])


@pytest.mark.parametrize("d", WIDTHS[1:])
def test_wavelengths_go_from_2_pi_to_just_short_of_10000_times_that(d: int) -> None:
    found = wavelengths_tokens(sinusoidal(2, d)[1].reshape(-1, 2)) / (2 * np.pi)
    np.testing.assert_allclose(found[0], 1.0, rtol=1e-12)
    np.testing.assert_allclose(found[1:] / found[:-1], 10000 ** (2 / d), rtol=1e-9)
    np.testing.assert_allclose(found[-1], 10000 ** (1 - 2 / d), rtol=1e-9)
    assert found[-1] < 10000


@pytest.mark.parametrize(("d", "short_by"), [(512, 1.037), (8, 10.0)])
def test_how_far_the_last_wavelength_is_from_the_one_that_the_paper_names(d: int, short_by: float) -> None:
    last = wavelengths_tokens(sinusoidal(2, d)[1].reshape(-1, 2))[-1]
    assert 10000 * 2 * np.pi / last == pytest.approx(short_by, rel=5e-4)
    assert f"{short_by:g} at d = {d}" in " ".join(str(sinusoidal.__doc__).split())


def test_the_table_of_tensor2tensor_reaches_it() -> None:
    row = M2M100SinusoidalPositionalEmbedding.get_embedding(2, 512)[1].double().numpy().reshape(2, -1).T
    np.testing.assert_allclose(wavelengths_tokens(row)[[0, -1]], [2 * np.pi, 10000 * 2 * np.pi], rtol=1e-5)


@given(k=st.integers(-300, 300), half=st.integers(1, 40))
def test_one_matrix_moves_every_row(k: int, half: int) -> None:
    d = 2 * half
    table, shift = sinusoidal(600, d), sinusoidal_shift(k, d)
    rows = table[max(0, -k) : 600 - max(0, k)]
    moved = table[max(0, k) : 600 - max(0, -k)]
    np.testing.assert_allclose(rows @ shift.T, moved, atol=1e-11)
    # the other direction is another matrix, but for no shift at all
    assert np.allclose(rows @ shift, moved, atol=1e-6) == (k == 0)


@given(j=st.integers(-10_000, 10_000), k=st.integers(-10_000, 10_000), half=st.integers(1, 40))
def test_moving_twice_is_moving_by_the_sum(j: int, k: int, half: int) -> None:
    d = 2 * half
    first, second = sinusoidal_shift(j, d), sinusoidal_shift(k, d)
    np.testing.assert_allclose(first @ second, sinusoidal_shift(j + k, d), atol=1e-10)
    np.testing.assert_allclose(first @ sinusoidal_shift(-j, d), np.eye(d), atol=1e-12)
    np.testing.assert_array_equal(sinusoidal_shift(-j, d), first.T)


# --- learned --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2() -> GPT2Model:
    torch.manual_seed(0)
    return GPT2Model(GPT2Config(n_positions=24, n_embd=32, n_layer=1, n_head=2, vocab_size=40)).eval()


@pytest.mark.parametrize("positions", [list(range(24)), [23, 0, 7, 7], [[5], [6]]])
def test_gpt2_adds_these_rows(gpt2: GPT2Model, positions: list) -> None:
    ours = LearnedPositions(24, 32, gpt2.wpe.weight.detach().numpy())
    at = torch.tensor(positions)
    ids = torch.randint(40, at.shape)
    with torch.no_grad():
        if at.ndim == 1:
            ids, at = ids[None], at[None]
        inputs = gpt2(ids, position_ids=at, output_hidden_states=True).hidden_states[0]
        added = inputs - gpt2.wte(ids)
    np.testing.assert_allclose(ours(positions).reshape(added.shape), added, atol=1e-6)


def test_the_rows_end_where_gpt2s_do(gpt2: GPT2Model) -> None:
    ours = LearnedPositions(24, 32, gpt2.wpe.weight.detach().numpy())
    refused = []
    for position in range(-26, 28):
        try:
            theirs = gpt2.wpe(torch.tensor(position)).detach().numpy()
        except IndexError:
            refused.append(position)
            with pytest.raises(IndexError):
                ours(position)
        else:
            np.testing.assert_array_equal(ours(position), theirs)
    assert refused == [*range(-26, 0), *range(24, 28)]


@pytest.mark.parametrize("position", [24, 25, 1_000_000, -1, -24])
def test_a_position_without_a_row_is_named_with_the_number_of_rows(position: int) -> None:
    with pytest.raises(PositionError, match=f"position {position} .* 24 rows are for positions 0 to 23") as caught:
        LearnedPositions(24, 8)([3, position, 5])
    assert caught.value.fields == {"position": position, "rows": 24}


def test_rows_before_training_are_gpt2s_and_the_same_each_time() -> None:
    first, second = LearnedPositions(1024, 768), LearnedPositions(1024, 768)
    np.testing.assert_array_equal(first.table, second.table)
    assert first.table.std() == pytest.approx(0.01, rel=0.01)
    assert abs(first.table.mean()) < 1e-4
    assert len(np.unique(first.table)) > 700_000
    assert repr(first) == "LearnedPositions(max_len=1024, d=768)"


# --- Shaw -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 3, 4, 9])
@pytest.mark.parametrize("clip", [1, 2, 4])
def test_shaws_scores_are_those_of_wav2vec2_bert(tokens: int, clip: int) -> None:
    torch.manual_seed(clip)
    config = Wav2Vec2BertConfig(
        hidden_size=32, num_attention_heads=2, position_embeddings_type="relative_key",
        left_max_position_embeddings=clip, right_max_position_embeddings=clip, attention_dropout=0.0,
    )  # fmt: skip
    config._attn_implementation = "eager"
    attention = Wav2Vec2BertSelfAttention(config).eval()
    attention.distance_embedding.weight.data.normal_()
    x = torch.randn(3, tokens, 32)
    with torch.no_grad():
        q, k = (f(x).view(3, tokens, 2, 16).transpose(1, 2).numpy() for f in (attention.linear_q, attention.linear_k))
        theirs = attention(x, output_attentions=True)[1].numpy()
    vectors = attention.distance_embedding.weight.detach().numpy()
    np.testing.assert_allclose(softmax(shaw_scores(q, k, vectors) / 4.0), theirs, atol=1e-6)


@given(queries=st.integers(1, 8), keys=st.integers(1, 8), clip=st.integers(0, 4), first=st.integers(0, 9))
def test_shaws_scores_are_the_equation(queries: int, keys: int, clip: int, first: int) -> None:
    q, k, vectors = RNG.normal(size=(2, queries, 6)), RNG.normal(size=(2, keys, 6)), RNG.normal(size=(2 * clip + 1, 6))
    found = shaw_scores(q, k, vectors, first_query=first)
    assert found.shape == (2, queries, keys)
    for head in range(2):
        for i in range(queries):
            for j in range(keys):
                a = vectors[max(-clip, min(clip, j - (i + first))) + clip]
                assert found[head, i, j] == pytest.approx(q[head, i] @ (k[head, j] + a), abs=1e-9)


def test_with_a_cache_the_last_queries_have_the_last_rows() -> None:
    q, k, vectors = RNG.normal(size=(7, 6)), RNG.normal(size=(7, 6)), RNG.normal(size=(5, 6))
    whole = shaw_scores(q, k, vectors)
    np.testing.assert_allclose(shaw_scores(q[5:], k, vectors, first_query=5), whole[5:], atol=1e-12)
    with pytest.raises(EncodingError, match=r"2 queries and 7 keys: name .*; 5 where the queries are the last"):
        shaw_scores(q[5:], k, vectors)


@pytest.mark.parametrize("first", [6, 7, 1000, 2**63 - 1, 2**63, 2**70])
def test_queries_beyond_all_keys_see_them_all_as_farthest(first: int) -> None:
    q, k, vectors = RNG.normal(size=(3, 6)), RNG.normal(size=(4, 6)), RNG.normal(size=(5, 6))
    np.testing.assert_allclose(shaw_scores(q, k, vectors, first_query=first), q @ (k + vectors[0]).T)


# --- T5 -------------------------------------------------------------------------------------------------------------

BUCKETS = ((32, 128), (64, 256), (32, 1000), (8, 20), (12, 40), (4, 3), (36, 64), (128, 2048))
FAR = 3000


def first_distances(buckets: np.ndarray) -> list[int]:
    """The distance that each bucket begins at, of the buckets of 0, 1, 2 ..."""
    return [0, *(np.flatnonzero(np.diff(buckets)) + 1).tolist()]


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), BUCKETS)
def test_buckets_are_t5s(buckets: int, max_distance: int, bidirectional: bool) -> None:
    distances = np.arange(-FAR, FAR + 1)
    theirs = T5Attention._relative_position_bucket(torch.from_numpy(distances), bidirectional, buckets, max_distance)
    ours = t5_buckets(distances, buckets=buckets, max_distance=max_distance, bidirectional=bidirectional)
    np.testing.assert_array_equal(ours, theirs)
    assert set(ours) == set(range(buckets)) - ({buckets // 2} if bidirectional else set())


def test_the_buckets_of_t5_by_their_first_distances() -> None:
    """Raffel et al.: 32 buckets, logarithmic up to 128. With 16 for a direction, 8 x 2^(j/2) rounded up; with 32,
    16 x 8^(j/16)."""
    numbers = {"buckets": 32, "max_distance": 128}
    back = t5_buckets(-np.arange(FAR), bidirectional=True, **numbers)
    assert first_distances(back) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    ahead = t5_buckets(np.arange(FAR), bidirectional=True, **numbers)
    assert (ahead[1:] == back[1:] + 16).all()
    assert ahead[0] == back[0] == 0
    decoder = t5_buckets(-np.arange(FAR), bidirectional=False, **numbers)
    logarithmic = [math.ceil(round(16 * 8 ** (j / 16), 9)) for j in range(16)]
    assert first_distances(decoder) == [*range(16), *logarithmic]
    assert logarithmic[:4] == [16, 19, 21, 24]
    assert (t5_buckets(np.arange(FAR), bidirectional=False, **numbers) == 0).all()


def exactly(distance: int, buckets: int, max_distance: int) -> int:
    """The bucket in whole numbers: ln(n/e) / ln(m/e) (b - e) >= j where n^(b-e) e^j >= m^j e^(b-e)."""
    exact = buckets // 2
    steps = buckets - exact
    if distance < exact:
        return distance
    reached = (j for j in range(steps) if distance**steps * exact**j >= max_distance**j * exact**steps)
    return exact + max(reached)


@pytest.mark.parametrize(("buckets", "max_distance"), [*BUCKETS, (36, 50), (36, 32)])
def test_no_distance_is_rounded_into_another_bucket(buckets: int, max_distance: int) -> None:
    ours = t5_buckets(-np.arange(600), buckets=buckets, max_distance=max_distance, bidirectional=False)
    assert ours.tolist() == [exactly(n, buckets, max_distance) for n in range(600)]


def test_the_one_place_where_float32_may_part_from_the_formula() -> None:
    """Whether it does depends on how the processor rounds a logarithm in float32."""
    theirs = T5Attention._relative_position_bucket(-torch.arange(600), False, 36, 50).numpy()
    ours = t5_buckets(-np.arange(600), buckets=36, max_distance=50, bidirectional=False)
    assert set(np.flatnonzero(theirs != ours)) <= {30}
    assert theirs[30] in (ours[30] - 1, ours[30])
    assert "n = 30 with 36 buckets and a max_distance of 50" in " ".join(str(t5_buckets.__doc__).split())


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize("tokens", [1, 40, 300])
def test_the_bias_is_that_of_t5s_encoder_and_decoder(decoder: bool, tokens: int) -> None:
    torch.manual_seed(0)
    config = T5Config(d_model=32, num_heads=4, is_decoder=decoder)
    attention = T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    with torch.no_grad():
        theirs = attention.compute_bias(tokens, tokens)[0].numpy()
        last = attention.compute_bias(1, tokens, past_seen_tokens=tokens - 1)[0].numpy()
    table = attention.relative_attention_bias.weight.detach().numpy()
    ours = t5_bias(tokens, table, bidirectional=not decoder, max_distance=128)
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(ours[:, -1:], last)
    if tokens > 1:
        other = t5_bias(tokens, table, bidirectional=decoder, max_distance=128)
        assert np.abs(other - theirs).max() > 0.1


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("distance", [-(2**63), 1 - 2**63, 2**63 - 1, 2**63, 2**64 - 1, 200, -128])
def test_the_farthest_distances_are_in_the_last_bucket_of_their_side(distance: int, bidirectional: bool) -> None:
    numbers = {"buckets": 32, "max_distance": 128, "bidirectional": bidirectional}
    last = t5_buckets([-1000, 1000], **numbers)
    kinds = [kind for kind in "bBhHiIlL" if np.iinfo(kind).min <= distance <= np.iinfo(kind).max]
    assert kinds
    for kind in kinds:
        assert t5_buckets(np.array([distance], kind), **numbers) == last[int(distance > 0)], kind


# --- ALiBi ----------------------------------------------------------------------------------------------------------


def test_the_slopes_that_the_paper_names() -> None:
    assert alibi_slopes(8).tolist() == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    np.testing.assert_allclose(alibi_slopes(16), [2 ** (-i / 2) for i in range(1, 17)], rtol=1e-15)


def test_other_numbers_of_heads_take_slopes_between() -> None:
    np.testing.assert_allclose(alibi_slopes(12)[8:], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rtol=1e-15)
    np.testing.assert_array_equal(alibi_slopes(12)[:8], alibi_slopes(8))


@pytest.mark.parametrize("heads", [*range(1, 34), 40, 71, 112, 128])
def test_slopes_and_bias_are_those_of_bloom_and_mpt(heads: int) -> None:
    tokens = 20
    ours = alibi_bias(tokens, heads)
    assert ours.shape == (heads, tokens, tokens)
    bloom = build_alibi_tensor(torch.ones(1, tokens, dtype=torch.long), heads, torch.float32).numpy()
    mpt = build_mpt_alibi_tensor(heads, tokens).numpy()
    for theirs in (bloom, mpt):  # a row for all queries: the same after the softmax, under a causal mask
        np.testing.assert_allclose(theirs[:, 0, 1] - theirs[:, 0, 0], alibi_slopes(heads), rtol=2e-6)
        scores = RNG.normal(size=(heads, tokens, tokens))
        np.testing.assert_allclose(softmax(causal(scores + ours)), softmax(causal(scores + theirs)), atol=2e-6)


def test_the_bias_grows_with_the_distance_by_the_slope() -> None:
    bias = alibi_bias(6, 3)
    for head, slope in enumerate(alibi_slopes(3)):
        for i in range(6):
            for j in range(6):
                assert bias[head, i, j] == pytest.approx(-slope * abs(i - j), abs=1e-15)


# --- what cannot be -------------------------------------------------------------------------------------------------

WIDE_16, WIDE_8 = np.zeros((4, 16)), np.zeros((4, 8))
REFUSED: tuple[tuple[Callable[[], object], str], ...] = (
    (lambda: sinusoidal(8, 7), r"d is 7; it must be even, .* \(6 or 8 would do\)"),
    (lambda: sinusoidal(8, 0), "d is 0; it must be a whole number, 2 or more"),
    (lambda: sinusoidal(0, 8), "seq_len is 0; it must be a whole number, 1 or more"),
    (lambda: sinusoidal(8.0, 8), "seq_len is 8.0; it must be a whole number"),
    (lambda: sinusoidal(True, 8), "seq_len is True"),
    (lambda: sinusoidal_shift(1, 5), "d is 5; it must be even"),
    (lambda: sinusoidal_shift(0.5, 4), "k is 0.5; it must be a whole number"),
    (lambda: LearnedPositions(0, 8), "max_len is 0"),
    (lambda: LearnedPositions(8, 0), "d is 0"),
    (lambda: LearnedPositions(8, 4, np.zeros((9, 4))), r"table has the shape \[9, 4\]; it must be \[8, 4\]"),
    (lambda: LearnedPositions(8, 4)([0.0, 1.0]), "positions are whole numbers, not float64"),
    (lambda: LearnedPositions(8, 4)([True, False]), "positions are whole numbers, not bool"),
    (lambda: shaw_scores(WIDE_8, WIDE_8, np.zeros((4, 8))), r"vectors have the shape \[4, 8\]; .* \[2K \+ 1, d\]"),
    (lambda: shaw_scores(WIDE_8, WIDE_8, np.zeros(8)), r"vectors have the shape \[8\]"),
    (lambda: shaw_scores(WIDE_8, WIDE_16, np.zeros((5, 8))), "q has the width 8, k 16 and the vectors 8"),
    (lambda: shaw_scores(WIDE_8, WIDE_8, np.zeros((5, 16))), "q has the width 8, k 8 and the vectors 16"),
    (lambda: shaw_scores(WIDE_8, WIDE_8, np.zeros((5, 8)), first_query=-1), "first_query is -1"),
    (lambda: shaw_scores(WIDE_8[0], WIDE_8, np.zeros((5, 8))), r"q has the shape \[8\]; .* \[..., queries, d\]"),
    (lambda: shaw_scores(WIDE_8, WIDE_8[0], np.zeros((5, 8))), r"k has the shape \[8\]; it must be \[..., keys, d\]"),
    (lambda: shaw_scores(WIDE_8[0], WIDE_8[0], np.zeros((5, 8))), r"q has the shape \[8\]"),
    (lambda: shaw_scores(WIDE_8.astype(np.int8), WIDE_8, np.zeros((5, 8))), "q is int8; it must be of floating-point"),
    (lambda: shaw_scores(WIDE_8, WIDE_8.astype(bool), np.zeros((5, 8))), "k is bool"),
    (lambda: shaw_scores(WIDE_8, WIDE_8, np.zeros((5, 8), int)), "vectors is int64"),
    (lambda: shaw_scores(np.zeros((2, 4, 8)), np.zeros((3, 4, 8)), np.zeros((5, 8))), r"\[2, 4, 8\] and k \[3, 4, 8\]"),
    (lambda: shaw_scores([[1.0], [1.0, 2.0]], WIDE_8, np.zeros((5, 8))), "q cannot be taken as an array"),
    (
        lambda: LearnedPositions(3, 4, torch.zeros(3, 4, dtype=torch.bfloat16)),
        "table cannot be taken as an array: .* ropetool.models.rotary takes tensors",
    ),
    (lambda: LearnedPositions(3, 4, torch.zeros(3, 4, requires_grad=True)), "table cannot be .* requires grad"),
    (lambda: t5_buckets([2**64], buckets=32, max_distance=128, bidirectional=True), "whole numbers, not object"),
    (lambda: t5_bias(8, np.zeros(32), bidirectional=True, max_distance=128), r"\[32\]; it must be \[buckets, heads\]"),
    (lambda: t5_bias(8, np.zeros((31, 2)), bidirectional=True, max_distance=128), "31 buckets; .* even, and 4 or more"),
    (lambda: t5_bias(8, np.zeros((2, 2)), bidirectional=True, max_distance=128), "2 buckets; .* even, and 4 or more"),
    (lambda: t5_bias(8, np.zeros((1, 2)), bidirectional=False, max_distance=128), "1 buckets; .* 2 or more"),
    (lambda: t5_bias(8, np.zeros((32, 2)), bidirectional=False, max_distance=16), "max_distance is 16, and the first"),
    (lambda: t5_bias(0, np.zeros((32, 2)), bidirectional=True, max_distance=128), "seq_len is 0"),
    (lambda: t5_buckets([0.5], buckets=32, max_distance=128, bidirectional=True), "distances are whole numbers"),
    (lambda: alibi_slopes(0), "heads is 0; it must be a whole number, 1 or more"),
    (lambda: alibi_bias(0, 8), "seq_len is 0"),
    (lambda: alibi_bias(8, 2.0), "heads is 2.0"),
)  # fmt: skip


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_cannot_be_is_refused_with_its_numbers(call: Callable[[], object], said: str) -> None:
    with pytest.raises(EncodingError, match=said) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert caught.value.fields


def test_the_smallest_that_can_be() -> None:
    assert sinusoidal(1, 2).tolist() == [[0.0, 1.0]]
    assert LearnedPositions(1, 1)([]).shape == (0, 1)
    assert t5_bias(3, np.ones((4, 2)), bidirectional=True, max_distance=2).shape == (2, 3, 3)
    assert alibi_bias(1, 1).tolist() == [[[0.0]]]


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert sinusoidal(np.int64(3), np.int32(4)).shape == (3, 4)
    assert LearnedPositions(4, 2)(np.array([1, 3], dtype=np.uint8)).shape == (2, 2)
