"""RoPE against the classes of transformers, and what must hold of any rotation by position."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXRotaryEmbedding
from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb as apply_neox
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as apply_gptj
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as apply_llama
from transformers.models.roformer.modeling_roformer import (
    RoFormerSelfAttention,
    RoFormerSinusoidalPositionalEmbedding,
)

from ropetool.errors import ConfigError, EncodingError, MethodError, PositionError
from ropetool.rope.encodings import LearnedPositions, alibi_bias, shaw_scores, sinusoidal, t5_bias
from ropetool.rope.frequencies import (
    AdjustedBase,
    Default,
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    NtkAware,
    Proportional,
    Scaling,
    Yarn,
)
from ropetool.rope.pairing import Pairing, rotary_index_map
from ropetool.rope.rotary import apply_rope, rope_cache, shift_cached_keys

PAIRINGS = ("half", "interleaved")
D, TRAINED = 16, 64
SHORT, LONG = tuple(1.0 + 0.01 * i for i in range(D // 2)), tuple(1.0 + i for i in range(D // 2))
# Every method, with the block that transformers reads it from (None where it has no such block).
METHODS: dict[str, tuple[Scaling, dict | None]] = {
    "default": (Default(1e4), {"rope_type": "default"}),
    "linear": (Linear(1e4, 4.0), {"rope_type": "linear", "factor": 4.0}),
    "ntk": (NtkAware(1e4, 4.0), None),
    "abf": (AdjustedBase(1e4, 5e5), None),
    "dynamic": (Dynamic(1e4, 4.0, TRAINED), {"rope_type": "dynamic", "factor": 4.0}),
    "yarn": (
        Yarn(1e4, 4.0, TRAINED), {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
    ),
    "yarn, own attention factor": (
        Yarn(1e4, 4.0, TRAINED, explicit_attention_factor=1.5),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED, "attention_factor": 1.5},
    ),
    "longrope": (
        LongRope(1e4, SHORT, LONG, TRAINED, 4.0),
        {"rope_type": "longrope", "short_factor": list(SHORT), "long_factor": list(LONG), "factor": 4.0,
         "original_max_position_embeddings": TRAINED},
    ),
    "llama3": (
        Llama3(1e4, 8.0, 1.0, 4.0, TRAINED),
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": TRAINED},
    ),
    "proportional": (
        Proportional(1e4, 0.5), {"rope_type": "proportional", "partial_rotary_factor": 0.5}
    ),
}  # fmt: skip
FOLLOW = ("dynamic", "longrope")
RNG = np.random.default_rng(0)


def turned(vector: np.ndarray, position: int, pairing: str, scaling: Scaling = METHODS["default"][0]) -> np.ndarray:
    """One vector [D] at one position, in the words of complex numbers: every pair is one, and is multiplied."""
    d, angles = len(vector), position * scaling.inv_freq(len(vector))
    real, imaginary = (vector[: d // 2], vector[d // 2 :]) if pairing == "half" else (vector[::2], vector[1::2])
    pair = (real + 1j * imaginary) * np.exp(1j * angles)
    return np.concatenate((pair.real, pair.imag)) if pairing == "half" else np.stack((pair.real, pair.imag), 1).ravel()


# --- the tables -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, TRAINED, TRAINED + 1, 4 * TRAINED])
@pytest.mark.parametrize("name", [name for name, (_, block) in METHODS.items() if block])
def test_the_tables_are_those_of_llamas_class(name: str, length: int) -> None:
    scaling, block = METHODS[name]
    config = LlamaConfig(
        hidden_size=4 * D, num_attention_heads=4, head_dim=D,
        max_position_embeddings=TRAINED if name in (*FOLLOW, "default") else 4 * TRAINED,
        rope_parameters={"rope_theta": 1e4, **block},
    )  # fmt: skip
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(length)[None])
    ours = rope_cache(length, D, scaling)
    for mine, theirs in zip(ours, (cos, sin), strict=True):
        assert mine.dtype == np.float32
        assert mine.shape == (length, D // 2)
        # Theirs are angles in float32, so what they lose grows with the position: 4 roundings of an angle of 256.
        np.testing.assert_allclose(mine, theirs[0, :, : D // 2], atol=4 * 2**-24 * max(length, 8))


def test_ntk_aware_is_plain_rope_by_its_base() -> None:
    """The base for theta 10000, head_dim 128 and alpha 4, as the method was published: 40889.942."""
    found, expected = rope_cache(99, 128, NtkAware(1e4, 4.0)), rope_cache(99, 128, 40889.942)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(np.subtract(found, rope_cache(99, 128, 1e4))).max() > 0.1


def test_every_method_is_here_and_says_whether_it_follows_the_length() -> None:
    def all_of(kind: type[Scaling]) -> set[type[Scaling]]:
        return {kind, *(found for sub in kind.__subclasses__() for found in all_of(sub))}

    own = {kind for kind in all_of(Scaling) if kind.__module__ == Scaling.__module__}  # tests plant others
    assert {type(scaling) for scaling, _ in METHODS.values()} == own - {Scaling}
    for scaling, _ in METHODS.values():
        short, long = scaling.inv_freq(D, TRAINED), scaling.inv_freq(D, 4 * TRAINED)
        assert scaling.follows_length == bool(np.any(short != long)), scaling


def test_a_number_is_plain_rope() -> None:
    for base in (10000.0, 10000, np.float32(10000)):
        np.testing.assert_array_equal(rope_cache(9, D, base), rope_cache(9, D, Default(1e4)))


@pytest.mark.parametrize("name", [name for name in METHODS if name not in FOLLOW])
def test_a_longer_table_begins_with_the_shorter_one(name: str) -> None:
    scaling, _ = METHODS[name]
    for short, long in zip(rope_cache(TRAINED, D, scaling), rope_cache(4 * TRAINED, D, scaling), strict=True):
        np.testing.assert_array_equal(short, long[:TRAINED])


@pytest.mark.parametrize("name", FOLLOW)
def test_but_not_where_frequencies_follow_the_length(name: str) -> None:
    scaling, _ = METHODS[name]
    for short, long in zip(rope_cache(TRAINED, D, scaling), rope_cache(4 * TRAINED, D, scaling), strict=True):
        assert np.abs(short - long[:TRAINED]).max() > 0.5


# --- how far angles are off -----------------------------------------------------------------------------------------

LENGTHS, WIDTH = (512, 4096, 131072), 128
SINGLE = 1.0 / (1e4 ** (torch.arange(0, WIDTH, 2, dtype=torch.float) / WIDTH))  # as LlamaRotaryEmbedding has it


def tables(length: int, dtype: torch.dtype) -> np.ndarray:
    cos, sin = (torch.from_numpy(table).to(dtype).double() for table in rope_cache(length, WIDTH, 1e4))
    return torch.atan2(sin, cos).numpy()


def angles(length: int, inv_freq: torch.Tensor, positions: torch.dtype = torch.float) -> np.ndarray:
    return (torch.arange(length).to(positions).float()[:, None] * inv_freq.float()).double().numpy()


WAYS: dict[str, tuple[Callable[[int], np.ndarray], bool]] = {
    "cos and sin to float32": (lambda length: tables(length, torch.float), True),
    "frequencies and angles to float32": (lambda length: angles(length, SINGLE), False),
    "cos and sin to bfloat16": (lambda length: tables(length, torch.bfloat16), True),
    "frequencies to bfloat16": (lambda length: angles(length, SINGLE.bfloat16()), False),
    "positions to bfloat16": (lambda length: angles(length, SINGLE, torch.bfloat16), False),
}


def error_rad(way: str, length: int) -> float:
    """The largest error below a position; tables know no whole turns."""
    found, wraps = WAYS[way][0](length), WAYS[way][1]
    exact = np.arange(length)[:, None] * 1e4 ** (-np.arange(0, WIDTH, 2) / WIDTH)
    apart = found - exact
    return float(np.abs((apart + np.pi) % (2 * np.pi) - np.pi if wraps else apart).max())


@pytest.mark.parametrize("way", WAYS)
def test_the_errors_that_the_docstring_names_are_the_measured_ones(way: str) -> None:
    line = next(line for line in str(rope_cache.__doc__).splitlines() if line.strip().startswith(way))
    assert line.split()[-3:] == [f"{error_rad(way, length):.1e}" for length in LENGTHS]


def test_positions_in_bfloat16_are_other_positions_from_257_on() -> None:
    kept = torch.arange(1000).bfloat16().long()
    assert int((kept != torch.arange(1000)).nonzero()[0]) == 257
    assert int(kept[257]) == 256


# --- the rotation ---------------------------------------------------------------------------------------------------


def llama(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    config = LlamaConfig(hidden_size=4 * D, num_attention_heads=4, head_dim=D, rope_parameters={"rope_theta": 1e4})
    return apply_llama(x, x, *LlamaRotaryEmbedding(config)(x, at[None]))[0]


def neox(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    config = GPTNeoXConfig(
        hidden_size=4 * D, num_attention_heads=4, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}
    )
    return apply_neox(x, x, *GPTNeoXRotaryEmbedding(config)(x, at[None]))[0]


def gptj(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    """GPT-J's own order is [batch, tokens, heads, head_dim]; its attention turns the first rotary_dim coordinates."""
    sin, cos = create_sinusoidal_positions(600, 8)[at][None].chunk(2, dim=-1)
    return torch.cat((apply_gptj(x[..., :8].transpose(1, 2), sin, cos).transpose(1, 2), x[..., 8:]), dim=-1)


def roformer(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    sinusoidal_pos = RoFormerSinusoidalPositionalEmbedding(600, D).create_weight()[at][None, None]
    return RoFormerSelfAttention.apply_rotary_position_embeddings(sinusoidal_pos, x, x)[0]


CLASSES = (
    (llama, "half", None), (neox, "half", 8), (gptj, "interleaved", 8), (roformer, "interleaved", None),
)  # fmt: skip


@pytest.mark.parametrize(("theirs", "pairing", "rotary_dim"), CLASSES, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("positions", [list(range(20)), [7, 500, 0, 33]])
def test_q_turns_as_it_does_in_the_classes(theirs: Callable, pairing: str, rotary_dim: int | None, positions) -> None:
    x = torch.randn(2, 3, len(positions), D, generator=torch.Generator().manual_seed(0))
    expected = theirs(x, torch.tensor(positions)).numpy()
    cos, sin = rope_cache(600, rotary_dim or D, 1e4)
    found = apply_rope(x.numpy(), cos, sin, pairing=pairing, positions=positions, rotary_dim=rotary_dim)
    np.testing.assert_allclose(found, expected, atol=2e-4)
    other = Pairing(pairing).other
    wrong = apply_rope(x.numpy(), cos, sin, pairing=other, positions=positions, rotary_dim=rotary_dim)
    assert np.abs(wrong - expected).max() > 0.5


vectors = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).normal(size=(2, D)))
pairings = st.sampled_from(PAIRINGS)
TABLES = rope_cache(4096, D, 1e4)


@given(qk=vectors, pairing=pairings, m=st.integers(0, 4095))
def test_a_turn_is_a_multiplication_of_complex_numbers(qk: np.ndarray, pairing: str, m: int) -> None:
    found = apply_rope(qk[:1], *TABLES, pairing=pairing, positions=[m])
    np.testing.assert_allclose(found[0], turned(qk[0], m, pairing), atol=1e-6)


@given(qk=vectors, pairing=pairings, m=st.integers(0, 4095))
def test_every_pair_keeps_its_norm(qk: np.ndarray, pairing: str, m: int) -> None:
    found = apply_rope(qk, *TABLES, pairing=pairing, positions=[m, 4095 - m])
    shape = (2, 2, -1) if pairing == "half" else (2, -1, 2)
    axis = 1 if pairing == "half" else 2
    norms = [np.linalg.norm(x.reshape(shape), axis=axis) for x in (qk, found)]
    np.testing.assert_allclose(*norms, rtol=1e-6)


def score(qk: np.ndarray, m: int, n: int, pairing: str) -> float:
    q, k = apply_rope(qk, *TABLES, pairing=pairing, positions=[m, n])
    return float(q @ k)


@given(qk=vectors, pairing=pairings, m=st.integers(0, 2000), n=st.integers(0, 2000), far=st.integers(0, 2000))
def test_scores_depend_on_the_distance_alone(qk: np.ndarray, pairing: str, m: int, n: int, far: int) -> None:
    assert score(qk, m, n, pairing) == pytest.approx(score(qk, m + far, n + far, pairing), abs=2e-5)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_two_and_five_are_as_far_apart_as_a_hundred_and_a_hundred_and_three(pairing: str) -> None:
    qk = RNG.normal(size=(2, D))
    assert score(qk, 2, 5, pairing) == pytest.approx(score(qk, 100, 103, pairing), abs=2e-6)
    assert abs(score(qk, 2, 5, pairing) - score(qk, 2, 6, pairing)) > 0.01  # another distance
    assert abs(score(qk, 2, 5, pairing) - score(qk, 5, 2, pairing)) > 0.01  # another direction
    q = apply_rope(qk[:1], *TABLES, pairing=pairing, positions=[2])[0]
    lone = float(q @ qk[1]), float(apply_rope(qk[:1], *TABLES, pairing=pairing, positions=[100])[0] @ qk[1])
    assert abs(lone[0] - lone[1]) > 0.01  # where k is not turned, scores depend on the place


def test_at_position_0_nothing_turns_and_without_positions_tokens_count_from_0() -> None:
    x = RNG.normal(size=(5, D))
    for pairing in PAIRINGS:
        found = apply_rope(x, *TABLES, pairing=pairing)
        np.testing.assert_array_equal(found[0], x[0])
        np.testing.assert_array_equal(found, apply_rope(x, *TABLES, pairing=pairing, positions=[0, 1, 2, 3, 4]))
        assert np.abs(found[1:] - x[1:]).max() > 0.1


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_the_layouts_are_each_other_permuted(pairing: str) -> None:
    named = Pairing(pairing)
    x, to_other = RNG.normal(size=(7, D)), rotary_index_map(D, named, named.other)
    moved = apply_rope(x[:, to_other], *TABLES, pairing=named.other)
    np.testing.assert_array_equal(apply_rope(x, *TABLES, pairing=named)[:, to_other], moved)


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_nothing_given_is_written_to_and_what_does_not_turn_stays(pairing: str) -> None:
    x = RNG.normal(size=(2, 7, D)).astype(np.float16)
    given = [x, *rope_cache(9, 6, 1e4)]
    before = [array.copy() for array in given]
    found = apply_rope(*given, pairing=pairing, rotary_dim=6)
    for array, was in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, was)
    np.testing.assert_array_equal(found[..., 6:], x[..., 6:])
    assert (found[:, 1:, :6] != x[:, 1:, :6]).mean() > 0.9


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_dtype_is_that_of_x_and_the_tables_stay_in_float32(dtype: type) -> None:
    x = RNG.normal(size=(600, D)).astype(dtype)
    found = apply_rope(x, *TABLES, pairing="half")
    assert found.dtype == dtype
    exact = np.stack([turned(row.astype(np.float64), at, "half") for at, row in enumerate(x)])
    rounding = max(float(np.finfo(dtype).eps), 2**-23)
    np.testing.assert_allclose(found, exact, atol=rounding * 3, rtol=rounding)


def test_positions_may_differ_by_sequence() -> None:
    """Two sequences with 0 and 3 tokens of padding on the left, as generate makes them."""
    x = RNG.normal(size=(2, 4, 6, D))
    positions = np.array([[0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 1, 2]])
    found = apply_rope(x, *TABLES, pairing="half", positions=positions[:, None])
    for sequence in range(2):
        alone = apply_rope(x[sequence], *TABLES, pairing="half", positions=positions[sequence])
        np.testing.assert_array_equal(found[sequence], alone)


# --- order ----------------------------------------------------------------------------------------------------------

TOKENS, HEAD = 5, np.random.default_rng(1).normal(size=(3, D, D)) / D**0.5
LEARNED = LearnedPositions(TOKENS, D, RNG.normal(size=(TOKENS, D)))
BIASES = {
    "T5": t5_bias(TOKENS, 3 * RNG.normal(size=(8, 1)), bidirectional=True, max_distance=16)[0],
    "ALiBi": alibi_bias(TOKENS, 8)[0],
}
SHAW = RNG.normal(size=(5, D))


def attention(x: np.ndarray, scheme: str) -> np.ndarray:
    """The output of one head for every token, [T, D]."""
    added = {"sinusoidal": sinusoidal(TOKENS, D), "learned": LEARNED(np.arange(TOKENS))}.get(scheme, 0.0)
    q, k, v = ((x + added) @ weight for weight in HEAD)
    if scheme in PAIRINGS:
        q, k = (apply_rope(part, *TABLES, pairing=scheme) for part in (q, k))
    scores = shaw_scores(q, k, SHAW) if scheme == "Shaw" else q @ k.T
    weights = np.exp(scores / math.sqrt(D) + BIASES.get(scheme, 0.0))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


@given(seed=st.integers(0, 2**32 - 1), order=st.permutations(range(TOKENS)))
def test_attention_without_positions_only_permutes_its_outputs(seed: int, order: list[int]) -> None:
    x = np.random.default_rng(seed).normal(size=(TOKENS, D))
    np.testing.assert_allclose(attention(x[order], "none"), attention(x, "none")[order], atol=1e-12)


@pytest.mark.parametrize("scheme", ["sinusoidal", "learned", "Shaw", *BIASES, *PAIRINGS])
def test_and_every_scheme_changes_that(scheme: str) -> None:
    x, order = np.random.default_rng(2).normal(size=(TOKENS, D)), [0, 3, 2, 1, 4]
    assert np.abs(attention(x[order], scheme) - attention(x, scheme)[order]).max() > 0.01


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_what_attention_sums_is_v_as_it_is(pairing: str) -> None:
    """Of queries of length 0 every key counts the same, wherever it is: the output is the mean of v."""
    q, k, v = np.zeros((TOKENS, D)), *RNG.normal(size=(2, TOKENS, D))
    q, k = (apply_rope(part, *TABLES, pairing=pairing, positions=[9, 80, 700, 11, 40]) for part in (q, k))
    weights = np.exp(q @ k.T)
    np.testing.assert_allclose(weights / weights.sum(axis=-1, keepdims=True) @ v, np.tile(v.mean(axis=0), (TOKENS, 1)))


# --- cached keys ----------------------------------------------------------------------------------------------------

MOVABLE = [name for name in METHODS if name not in FOLLOW]
SHIFTS = (1, 17, 1000, -1, -40)


def cached(keys: np.ndarray, first: int, scaling: Scaling, pairing: str) -> np.ndarray:
    """Keys as a cache holds them, with their first token at a position."""
    tables = rope_cache(2048, D, scaling)
    return apply_rope(keys, *tables, pairing=pairing, positions=first + np.arange(keys.shape[-2]))


@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("name", MOVABLE)
def test_a_cached_key_that_is_moved_is_the_key_turned_at_its_new_position(name: str, pairing: str) -> None:
    scaling, keys = METHODS[name][0], RNG.normal(size=(2, 6, D))
    for shift in SHIFTS:
        moved = shift_cached_keys(cached(keys, 50, scaling, pairing), shift, scaling, pairing=pairing)
        expected = cached(keys, 50 + shift, scaling, pairing)
        np.testing.assert_allclose(moved, expected, atol=2e-6)
        wrong = shift_cached_keys(cached(keys, 50, scaling, pairing), -shift, scaling, pairing=pairing)
        assert np.abs(wrong - expected).max() > 0.1


@given(pairing=pairings, shift=st.integers(-2000, 2000), seed=st.integers(0, 99), rotary=st.sampled_from([4, 10, D]))
def test_keys_move_there_and_back(pairing: str, shift: int, seed: int, rotary: int) -> None:
    keys = np.random.default_rng(seed).normal(size=(3, D))
    there = shift_cached_keys(keys, shift, 1e4, pairing=pairing, rotary_dim=rotary)
    np.testing.assert_array_equal(there[:, rotary:], keys[:, rotary:])
    back = shift_cached_keys(there, -shift, 1e4, pairing=pairing, rotary_dim=rotary)
    np.testing.assert_allclose(back, keys, atol=2e-6)


@pytest.mark.parametrize("name", ["yarn", "yarn, own attention factor"])
def test_a_shift_by_tables_with_an_attention_factor_would_put_it_on_again(name: str) -> None:
    scaling, keys = METHODS[name][0], RNG.normal(size=(4, D))
    stored = cached(keys, 50, scaling, "half")
    expected = cached(keys, 67, scaling, "half")
    by_table = apply_rope(stored, *rope_cache(18, D, scaling), pairing="half", positions=[17] * 4)
    np.testing.assert_allclose(by_table, expected * scaling.attention_factor, atol=1e-6)
    assert scaling.attention_factor > 1.1
    np.testing.assert_allclose(shift_cached_keys(stored, 17, scaling, pairing="half"), expected, atol=2e-6)


@pytest.mark.parametrize("name", FOLLOW)
def test_keys_under_frequencies_that_follow_the_length_are_not_moved(name: str) -> None:
    scaling, keys = METHODS[name][0], RNG.normal(size=(4, D))
    with pytest.raises(MethodError, match=f"under {name} cannot be moved: .* follow the length in play") as caught:
        shift_cached_keys(keys, 3, scaling, pairing="half")
    assert caught.value.fields == {"method": name}
    # A key at 60 was cached while 64 tokens were in play; with 256 in play it belongs at 63. No set of frequencies
    # moves it there: neither those of the time nor those of now.
    then, now = scaling.inv_freq(D, TRAINED), scaling.inv_freq(D, 4 * TRAINED)
    for frequencies in (then, now):
        assert np.abs((60 * then + 3 * frequencies) - 63 * now).max() > 1.0


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_many_shifts_round_many_times(pairing: str) -> None:
    keys = RNG.normal(size=(64, D)).astype(np.float16)
    once, often = shift_cached_keys(keys, 100, 1e4, pairing=pairing), keys
    for _ in range(100):
        often = shift_cached_keys(often, 1, 1e4, pairing=pairing)
    exact = shift_cached_keys(keys.astype(np.float64), 100, 1e4, pairing=pairing)
    off = [float(np.abs(found - exact).max()) for found in (once, often)]
    assert off[0] < 2**-10 < 2**-9 < off[1]


# --- tables in order ------------------------------------------------------------------------------------------------

IN_ORDER = {**{name: scaling for name, (scaling, _) in METHODS.items()}, "nothing turns": Proportional(1e4, 0.01)}


EVERY = (2, 4, 6, 8, D, 128)
# NTK-aware scaling has no single pair, and the lists of LongRoPE are for one width.
WIDTHS = {"ntk": EVERY[1:], "dynamic": EVERY[1:], "longrope": (D,)}


def halves(table: np.ndarray) -> np.ndarray:
    return np.tile(table, 2)


def neighbours(table: np.ndarray) -> np.ndarray:
    return np.repeat(table, 2, axis=1)


@pytest.mark.parametrize("name", IN_ORDER)
def test_swapped_tables_are_seen_by_their_first_row(name: str) -> None:
    cos, sin = rope_cache(TRAINED, D, IN_ORDER[name])
    x = RNG.normal(size=(3, D))
    apply_rope(x, cos, sin, pairing="half")
    with pytest.raises(EncodingError, match=r"cos is 0 in the whole of row 0 .* in each other's place"):
        apply_rope(x, sin, cos, pairing="half")


@pytest.mark.parametrize("twice", [halves, neighbours])
@pytest.mark.parametrize("width", [2, 4, D // 2])
@pytest.mark.parametrize("base", [1e4, 1.01, 1e18, Yarn(1e4, 4.0, TRAINED), Linear(1e4, 1e12)], ids=repr)
def test_tables_of_half_a_head_with_every_column_twice_are_no_whole_turn(base, width: int, twice: Callable) -> None:
    cos, sin = rope_cache(TRAINED, width, base)
    x = RNG.normal(size=(3, 2 * width))
    apply_rope(x, cos, sin, pairing="half", rotary_dim=width)
    for rows in (slice(None), slice(5, None), slice(7, 8)):  # and where they do not begin at position 0
        with pytest.raises(EncodingError, match=f"each of {width // 2} columns twice.* rotary_dim={width}"):
            apply_rope(x[:1], twice(cos)[rows], twice(sin)[rows], pairing="half")


def test_a_pair_of_transformers_tables_is_such_a_one() -> None:
    config = GPTNeoXConfig(
        hidden_size=4 * D, num_attention_heads=4, rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.5}
    )
    cos, sin = (t[0].numpy() for t in GPTNeoXRotaryEmbedding(config)(torch.zeros(1), torch.arange(9)[None]))
    with pytest.raises(EncodingError, match=r"each of 4 columns twice.* rotary_dim=8"):
        apply_rope(RNG.normal(size=(9, D)), cos, sin, pairing="half")


@pytest.mark.parametrize(("name", "width"), [(name, width) for name in IN_ORDER for width in WIDTHS.get(name, EVERY)])
def test_tables_of_rope_cache_are_in_order_whatever_their_rows(name: str, width: int) -> None:
    """Those of position 0 alone have equal columns, and so have those of pairs that do not turn."""
    cos, sin = rope_cache(4 * TRAINED, width, IN_ORDER[name])
    for rows in (slice(None), slice(1), *(slice(at, at + 1) for at in range(4 * TRAINED))):
        x = RNG.normal(size=(1, width))
        assert apply_rope(x, cos[rows], sin[rows], pairing="half").shape == x.shape


def test_no_rows_for_no_tokens() -> None:
    assert apply_rope(np.zeros((0, D)), COS[:0], SIN[:0], pairing="half").shape == (0, D)


# --- what cannot be -------------------------------------------------------------------------------------------------


class OfTheirOwn(Scaling):
    """A method of another module: one frequency, its name unknown to configs."""

    name = "of their own"

    def __init__(self, theta: float, frequency: float) -> None:
        super().__init__(theta)
        object.__setattr__(self, "frequency", frequency)

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        return np.full(rotary_dim // 2, self.frequency)


X, COS, SIN = np.zeros((2, 3, 5, D)), *rope_cache(8, D, 1e4)
HALF = {"pairing": "half"}
REFUSED: tuple[tuple[Callable[[], object], type[Exception], str], ...] = (
    (lambda: rope_cache(8, 15, 1e4), EncodingError, r"d_head is 15; it must be even, .* \(14 or 16 would do\)"),
    (lambda: rope_cache(0, D, 1e4), EncodingError, "seq_len is 0"),
    (lambda: rope_cache(8, D, 1.0), EncodingError, "the base is 1.0; it must be a number above 1"),
    (lambda: rope_cache(8, D, math.nan), EncodingError, "the base is nan"),
    (lambda: rope_cache(8, D, math.inf), EncodingError, "the base is inf"),
    (lambda: rope_cache(8, D, True), EncodingError, "the base is True"),
    (lambda: rope_cache(8, D, "10000"), EncodingError, "the base is '10000'"),
    (lambda: rope_cache(8, D, Yarn(0.5, 4.0, 64)), EncodingError, "the base is 0.5"),
    (lambda: rope_cache(8, D, Linear(1e4, -2.0)), ConfigError, "Linear's factor is held to .* not -2.0"),
    (lambda: rope_cache(8, D, OfTheirOwn(1e4, -2.0)), EncodingError, "frequencies -2 to .*; they must be finite"),
    (lambda: rope_cache(8, D, OfTheirOwn(1e4, math.nan)), EncodingError, "they must be finite"),
    (lambda: rope_cache(8, D, OfTheirOwn(1e4, 1e320)), EncodingError, "to inf; they must be finite"),
    (lambda: rope_cache(8, D, LongRope(1e4, (1.0,), (1.0,), 64, 4.0)), ConfigError, "needs rotary/2 = 8 factors"),
    (lambda: rope_cache(8, 2, NtkAware(1e4, 4.0)), ConfigError, "two pairs at least"),
    (lambda: rope_cache(8, D, NtkAware(1e4, 1e-4)), ConfigError, "makes 0.26.* of the base 10000"),
    (lambda: apply_rope(X, COS, SIN, pairing="neox"), EncodingError, "'neox'; the two layouts are 'half' and 'inter"),
    (lambda: apply_rope(X, COS[:4], SIN[:4], **HALF), PositionError, "position 4 .* 4 rows are for positions 0 to 3"),
    (lambda: apply_rope(X, COS, SIN, positions=[0, 1, 2, 3, 8], **HALF), PositionError, "position 8 .* 0 to 7"),
    (lambda: apply_rope(X, COS, SIN, positions=[-1, 1, 2, 3, 4], **HALF), PositionError, "position -1 "),
    (lambda: apply_rope(X, COS, SIN, positions=[0.5] * 5, **HALF), EncodingError, "positions are whole numbers"),
    (lambda: apply_rope(X, COS, SIN, positions=[7], **HALF), EncodingError, r"shape \[1\], and x .* must be \[5\]"),
    (lambda: apply_rope(X, COS, SIN, positions=7, **HALF), EncodingError, r"positions have the shape \[\]"),
    # [batch, tokens], which would be taken for [heads, tokens] where there are as many heads as sequences
    (lambda: apply_rope(X[:, :2], COS, SIN, positions=np.zeros((2, 5), int), **HALF), EncodingError, r"\[2, 2, 5\]"),
    (lambda: apply_rope(X, COS, SIN, positions=np.zeros((2, 2, 5), int), **HALF), EncodingError, r"shape \[2, 2, 5\]"),
    (lambda: apply_rope(X.astype(int), COS, SIN, **HALF), EncodingError, "x is int64; it must be of floating-point"),
    (lambda: apply_rope(X[0, 0, 0], COS, SIN, **HALF), EncodingError, r"\[16\]; it must be \[..., tokens, head_dim\]"),
    (lambda: apply_rope(X[..., :15], COS, SIN, **HALF), EncodingError, "head_dim is 15; it must be even"),
    (lambda: apply_rope(X, COS[:, :4], SIN[:, :4], **HALF), EncodingError, r"cos has the shape \[8, 4\].* rotary_dim"),
    (lambda: apply_rope(X, COS, SIN[:7], **HALF), EncodingError, r"sin has the shape \[7, 8\]; it must be \[8, 8\]"),
    (lambda: apply_rope(X, np.tile(COS, 2), np.tile(SIN, 2), **HALF), EncodingError, "a column for each pair"),
    (lambda: apply_rope(X, COS[0], SIN[0], **HALF), EncodingError, r"cos has the shape \[8\]; .* \[tokens, pairs\]"),
    (lambda: apply_rope(X, COS, 0.0, **HALF), EncodingError, r"sin has the shape \[\]"),
    (lambda: apply_rope([[1.0, 0.0], [1.0]], COS, SIN, **HALF), EncodingError, "x cannot be taken as an array: "),
    (lambda: apply_rope(X, COS, SIN, rotary_dim=18, **HALF), EncodingError, "rotary_dim is 18, and a head has 16"),
    (lambda: apply_rope(X, COS, SIN, rotary_dim=7, **HALF), EncodingError, "rotary_dim is 7; it must be even"),
    (lambda: apply_rope(X, COS.astype(np.float16), SIN, **HALF), EncodingError, "cos is float16; cos and sin stay in"),
    (lambda: apply_rope(X, COS, SIN.astype(np.float16), **HALF), EncodingError, "sin is float16"),
    (lambda: shift_cached_keys(X, 1.5, 1e4, **HALF), EncodingError, "shift is 1.5; it must be a whole number"),
    (lambda: shift_cached_keys(X, 1, 1e4, pairing="adjacent"), EncodingError, "'adjacent'"),
    (lambda: shift_cached_keys(X, 1, 1e4, rotary_dim=18, **HALF), EncodingError, "rotary_dim is 18"),
    (lambda: shift_cached_keys(X[..., :3], 1, 1e4, **HALF), EncodingError, "head_dim is 3; it must be even"),
    (lambda: shift_cached_keys(X.astype(int), 1, 1e4, **HALF), EncodingError, "keys is int64"),
    (lambda: shift_cached_keys(X, 1, 0.0, **HALF), EncodingError, "the base is 0.0"),
    (lambda: shift_cached_keys(np.float64(1), 1, 1e4, **HALF), EncodingError, r"keys has the shape \[\]; it must be"),
    (lambda: shift_cached_keys(X, 1, Linear(1e4, 0.5), **HALF), ConfigError, "Linear's factor is held to .* not 0.5"),
    (lambda: shift_cached_keys(X, 1, Dynamic(1e4, 4.0, 0), **HALF), ConfigError, "Dynamic's original_length is held"),
    (
        lambda: apply_rope(X, COS, SIN, positions=np.array([0, 1, 2, 3, 2**63], np.uint64), **HALF),
        PositionError, "position 9223372036854775808 has no row",
    ),
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize(("call", "error", "said"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_cannot_be_is_refused_with_its_numbers(call: Callable, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        call()
    assert type(caught.value) is error
