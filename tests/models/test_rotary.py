"""The reference rotation's tables, and the torch forms of the encodings: the numpy forms in the dtype of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2Model, LlamaConfig, T5Config
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from ropetool import encodings
from ropetool.errors import ConfigError, EncodingError, MethodError, PositionError
from ropetool.models import rotary
from ropetool.models.rotary import Rotary
from ropetool.rope import encodings as numpy_encodings
from ropetool.rope import rotary as numpy_rotary
from ropetool.rope.frequencies import Default, Dynamic, LongRope, Scaling, Yarn
from ropetool.rope.pairing import Pairing

PER_LIST = LongRope(1e4, (1.0,) * 4, (1.0, 2.0, 4.0, 8.0), 64, 4.0, short_mscale=1.05, long_mscale=1.25)


@pytest.mark.parametrize(
    ("scaling", "length", "factor"),
    [
        (Default(1e4), 65, 1.0),
        (Yarn(1e4, 4.0, 64), 65, 1.1386294),
        (LongRope(1e4, (1.0,) * 4, (2.0,) * 4, 64, 4.0), 65, 1.1547005),
        (PER_LIST, 64, 1.05),
        (PER_LIST, 65, 1.25),
    ],
)
def test_cos_and_sin_are_as_long_as_the_length_in_play_says(scaling: Scaling, length: int, factor: float) -> None:
    cos, sin = Rotary(Pairing.HALF, scaling, 0, 8).cos_sin(torch.arange(length))
    assert cos.shape == sin.shape == (length, 4)
    np.testing.assert_allclose(torch.hypot(cos, sin).numpy(), np.full((length, 4), factor), rtol=1e-6)
    np.testing.assert_allclose(torch.atan2(sin, cos)[1].numpy(), scaling.inv_freq(8, length), rtol=1e-6)


# --- the torch forms ------------------------------------------------------------------------------------------------

PAIRINGS = ("half", "interleaved")
D = 16
RNG = np.random.default_rng(0)
X, KEYS, SHAW, T5 = (RNG.normal(size=size).astype(np.float32) for size in ((2, 3, 9, D), (2, 3, 9, D), (5, D), (32, 4)))
COS, SIN = numpy_rotary.rope_cache(64, D, 1e4)
YARN = Yarn(1e4, 4.0, 64)
AT = RNG.integers(0, 64, size=(2, 1, 9))
# Every function, with what it is given.
CALLS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "sinusoidal": ("sinusoidal", (40, D), {}),
    "sinusoidal_shift": ("sinusoidal_shift", (-7, D), {}),
    "shaw": ("shaw_scores", (X, KEYS, SHAW), {}),
    "shaw, cached": ("shaw_scores", (X[..., 7:, :], KEYS, SHAW), {"first_query": 7}),
    "t5, encoder": ("t5_bias", (200, T5), {"bidirectional": True, "max_distance": 128}),
    "t5, decoder": ("t5_bias", (200, T5), {"bidirectional": False, "max_distance": 128}),
    "t5_buckets": ("t5_buckets", (np.arange(-99, 99),), {"buckets": 32, "max_distance": 64, "bidirectional": True}),
    "alibi_slopes": ("alibi_slopes", (12,), {}),
    "alibi": ("alibi_bias", (30, 12), {}),
    "rope_cache": ("rope_cache", (300, D, YARN), {}),
    **{f"apply_rope, {pairing}": ("apply_rope", (X, COS, SIN), {"pairing": pairing}) for pairing in PAIRINGS},
    "apply_rope, positions": ("apply_rope", (X, COS, SIN), {"pairing": "half", "positions": AT}),
    "apply_rope, partial": ("apply_rope", (X, COS[:, :3], SIN[:, :3]), {"pairing": "interleaved", "rotary_dim": 6}),
    **{f"shift, {pairing}": ("shift_cached_keys", (X, -3, YARN), {"pairing": pairing}) for pairing in PAIRINGS},
}


def in_torch(value: Any) -> Any:
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def numpy_form(name: str) -> Callable[..., Any]:
    return getattr(numpy_rotary if hasattr(numpy_rotary, name) else numpy_encodings, name)


@pytest.mark.parametrize("call", CALLS)
def test_the_torch_form_gives_what_the_numpy_form_gives(call: str) -> None:
    name, given, named = CALLS[call]
    expected = numpy_form(name)(*given, **named)
    found = getattr(rotary, name)(*map(in_torch, given), **{key: in_torch(value) for key, value in named.items()})
    for theirs, ours in zip(*((x if isinstance(x, tuple) else (x,)) for x in (expected, found)), strict=True):
        assert isinstance(ours, Tensor)
        assert ours.dtype == (torch.int64 if theirs.dtype.kind == "i" else torch.float32)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
        assert np.ptp(theirs) > 0


def test_every_function_of_the_api_has_a_torch_form_under_test() -> None:
    functions = {name for name in encodings.__all__ if not isinstance(getattr(encodings, name), type)}
    assert {name for name, _, _ in CALLS.values()} == functions
    assert all(callable(getattr(rotary, name)) for name in functions)


SIXTEEN = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_q_in_16_bits_is_turned_in_32_and_rounded_once(pairing: str, dtype: torch.dtype) -> None:
    x = torch.from_numpy(X).to(dtype)
    expected = rotary.apply_rope(x.float(), COS, SIN, pairing=pairing).to(dtype)
    found = rotary.apply_rope(x, COS, SIN, pairing=pairing)
    assert found.dtype == dtype
    assert torch.equal(found, expected)
    moved = rotary.shift_cached_keys(x, 5, 1e4, pairing=pairing)
    assert moved.dtype == dtype
    assert torch.equal(moved, rotary.shift_cached_keys(x.float(), 5, 1e4, pairing=pairing).to(dtype))


@pytest.mark.parametrize("pairing", PAIRINGS)
def test_autocast_changes_nothing(pairing: str) -> None:
    for x in (torch.from_numpy(X), torch.from_numpy(X).bfloat16()):
        expected = rotary.apply_rope(x, COS, SIN, pairing=pairing)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cos, sin = rotary.rope_cache(64, D, 1e4)
            found = rotary.apply_rope(x, cos, sin, pairing=pairing)
        assert cos.dtype == sin.dtype == torch.float32
        assert found.dtype == x.dtype
        assert torch.equal(found, expected)


def test_in_a_bfloat16_model_llamas_own_rotation_rounds_more() -> None:
    """Its class makes cos and sin in float32 and rounds them to the dtype of x before it multiplies."""
    tokens, at = 4096, torch.arange(4096)
    x = torch.randn(1, 1, tokens, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    config = LlamaConfig(hidden_size=64, num_attention_heads=1, head_dim=64, rope_parameters={"rope_theta": 1e4})
    theirs = apply_rotary_pos_emb(x, x, *LlamaRotaryEmbedding(config)(x, at[None]))[0]
    ours = rotary.apply_rope(x, *rotary.rope_cache(tokens, 64, 1e4), pairing="half")
    angles_rad = at[:, None] * 1e4 ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
    exact = rotary.rotate_pairs(x.double(), angles_rad.cos(), angles_rad.sin(), Pairing.HALF)
    nearest = [float((found == exact.bfloat16()).double().mean()) for found in (ours, theirs)]
    assert nearest[0] > 0.999
    assert nearest[1] < 0.75


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
def test_tables_that_were_cast_with_the_model_are_refused(dtype: torch.dtype) -> None:
    cos, sin = (table.to(dtype) for table in rotary.rope_cache(9, D, 1e4))
    with pytest.raises(EncodingError, match=rf"cos is {str(dtype)[6:]}; cos and sin stay in float32"):
        rotary.apply_rope(torch.from_numpy(X), cos, sin, pairing="half")


def test_gradients_flow_through_q_and_what_is_learned() -> None:
    x, keys, shaw, t5 = (torch.from_numpy(array).double().requires_grad_() for array in (X[0, 0], KEYS[0, 0], SHAW, T5))
    for pairing in PAIRINGS:
        assert torch.autograd.gradcheck(lambda q, p=pairing: rotary.apply_rope(q, COS, SIN, pairing=p), (x,))
    assert torch.autograd.gradcheck(rotary.shaw_scores, (x, keys, shaw))
    assert torch.autograd.gradcheck(lambda t: rotary.t5_bias(20, t, bidirectional=True, max_distance=128), (t5,))


def test_a_t5_that_takes_this_bias_learns_the_same() -> None:
    torch.manual_seed(0)
    attention = T5Attention(T5Config(d_model=32, num_heads=4), has_relative_attention_bias=True, layer_idx=0)
    table, weights = attention.relative_attention_bias.weight, torch.randn(4, 50, 50)
    ours = rotary.t5_bias(50, table, bidirectional=True, max_distance=128)
    grads = [
        torch.autograd.grad((bias * weights).sum(), table)[0] for bias in (ours, attention.compute_bias(50, 50)[0])
    ]
    torch.testing.assert_close(*grads)
    assert grads[0].abs().max() > 1


def test_gpt2s_rows_load_and_train() -> None:
    torch.manual_seed(0)
    wpe = GPT2Model(GPT2Config(n_positions=12, n_embd=8, n_layer=1, n_head=2, vocab_size=9)).wpe
    ours = rotary.LearnedPositions(12, 8)
    ours.load_state_dict(wpe.state_dict())
    at = torch.tensor([[0, 3, 3], [11, 1, 0]])
    torch.testing.assert_close(ours(at), wpe(at), rtol=0, atol=0)
    ours(at).sum().backward()
    assert ours.weight.grad[:, 0].tolist() == [2, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1]
    for position in (12, -1):
        with pytest.raises(PositionError, match=f"position {position} has no row in the learned table: the 12 rows"):
            ours(torch.tensor([0, position]))
    with pytest.raises(EncodingError, match=r"table has the shape \[12, 8\]; it must be \[12, 9\]"):
        rotary.LearnedPositions(12, 9, wpe.weight)


def test_a_given_table_is_copied_and_a_fresh_one_drawn_as_gpt2_draws_it() -> None:
    given = torch.ones(3, 2)
    ours = rotary.LearnedPositions(3, 2, given)
    with torch.no_grad():
        ours.weight.zero_()
    assert given.sum() == 6
    fresh = rotary.LearnedPositions(1024, 768).weight
    assert float(fresh.detach().std()) == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize("table", [np.ones((3, 2)), np.ones((3, 2), np.float16), [[1.0, 1.0]] * 3], ids=type)
def test_a_table_may_be_an_array_or_a_list(table: Any) -> None:
    ours = rotary.LearnedPositions(3, 2, table)
    assert ours.weight.requires_grad
    assert ours([0, 2]).tolist() == [[1.0, 1.0]] * 2


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize(("one", "others", "widest"), [
    (torch.float64, torch.float32, torch.float64), (torch.bfloat16, torch.float32, torch.float32),
    (torch.float16, torch.bfloat16, torch.float32),
])  # fmt: skip
def test_shaws_scores_are_in_the_widest_dtype(
    at: int, one: torch.dtype, others: torch.dtype, widest: torch.dtype
) -> None:
    given = [torch.from_numpy(x).to(one if i == at else others) for i, x in enumerate((X, KEYS, SHAW))]
    found = rotary.shaw_scores(*given)
    assert found.dtype == widest
    torch.testing.assert_close(found, rotary.shaw_scores(*(x.to(widest) for x in given)), rtol=0, atol=0)


def test_tables_without_numbers_are_not_looked_at() -> None:
    x, cos, sin = torch.from_numpy(X), torch.from_numpy(COS), torch.from_numpy(SIN)
    found = rotary.apply_rope(x.to("meta"), cos.to("meta"), sin.to("meta"), pairing="half")
    assert (found.device.type, found.shape) == ("meta", x.shape)
    each = torch.func.vmap(lambda q, c, s: rotary.apply_rope(q, c, s, pairing="half"))
    expected = rotary.apply_rope(x, cos, sin, pairing="half")
    torch.testing.assert_close(each(x, cos.expand(2, -1, -1), sin.expand(2, -1, -1)), expected)


REFUSED: tuple[tuple[Callable[[], object], type[Exception], str], ...] = (
    (lambda: rotary.apply_rope(torch.from_numpy(X), COS[:5], SIN[:5], pairing="half"), PositionError, "position 8 "),
    (lambda: rotary.apply_rope(torch.from_numpy(X), COS, SIN, pairing="neox"), EncodingError, "'neox'"),
    (lambda: rotary.apply_rope(torch.zeros(3, D, dtype=torch.int64), COS, SIN, pairing="half"), EncodingError, "int64"),
    (
        lambda: rotary.apply_rope(
            torch.from_numpy(X), COS, SIN, pairing="half", positions=torch.arange(9) - 1
        ), PositionError, "position -1 ",
    ),
    (
        lambda: rotary.shift_cached_keys(torch.from_numpy(X), 1, Dynamic(1e4, 4.0, 64), pairing="half"),
        MethodError, "under dynamic cannot be moved",
    ),
    (lambda: rotary.shift_cached_keys(torch.zeros(3, 3), 1, 1e4, pairing="half"), EncodingError, "head_dim is 3"),
    (lambda: rotary.shift_cached_keys(torch.zeros(3, 4).long(), 1, 1e4, pairing="half"), EncodingError, "keys is to"),
    (lambda: rotary.shaw_scores(torch.zeros(3, 4), torch.zeros(3, 4), torch.zeros(4, 4)), EncodingError, "2K"),
    (lambda: rotary.t5_bias(3, torch.zeros(32), bidirectional=True, max_distance=64), EncodingError, "buckets, heads"),
    (lambda: rotary.LearnedPositions(0, 8), EncodingError, "max_len is 0"),
    (lambda: rotary.LearnedPositions(2, 1, [[1], [2]]), EncodingError, "table is torch.int64; it must be of floating"),
    (lambda: rotary.LearnedPositions(2, 1, [[1.0], []]), EncodingError, "table cannot be taken as a tensor: "),
    (lambda: rotary.LearnedPositions(2, 1)(torch.ones(1).bfloat16()), EncodingError, "positions cannot be taken as an"),
    (lambda: rotary.shift_cached_keys(torch.tensor(1.0), 1, 1e4, pairing="half"), EncodingError, r"keys has .* \[\]"),
    (lambda: rotary.shift_cached_keys(torch.zeros(3, 4), 1, Yarn(1e4, 4.0, 0), pairing="half"), ConfigError, "Yarn's "),
    (lambda: rotary.apply_rope(torch.from_numpy(X), SIN, COS, pairing="half"), EncodingError, "in each other's place"),
    (
        lambda: rotary.apply_rope(torch.from_numpy(X), *(np.tile(t[:, :4], 2) for t in (COS, SIN)), pairing="half"),
        EncodingError, "each of 4 columns twice",
    ),
    (lambda: rotary.apply_rope(torch.from_numpy(X), COS[::-1], SIN, pairing="half"), EncodingError, "cos cannot be"),
    *(
        (lambda d=dtype: rotary.apply_rope(torch.ones(3, D).to(d), COS, SIN, pairing="half"), EncodingError, "float8")
        for dtype in (torch.float8_e4m3fn, torch.float8_e5m2)
    ),
    (lambda: rotary.shaw_scores(torch.zeros(4), torch.zeros(3, 4), torch.zeros(5, 4)), EncodingError, "q has the sha"),
    (
        lambda: rotary.shaw_scores(*(torch.zeros(3, 4, dtype=torch.int8) for _ in range(3))),
        EncodingError, "q is torch.int8; it must be of floating-point",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("call", "error", "said"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_what_cannot_be_is_refused_as_the_numpy_form_does(call: Callable, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        call()
    assert type(caught.value) is error


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("call", CALLS)
def test_what_is_on_the_gpu_stays_there(call: str) -> None:
    name, given, named = CALLS[call]
    if not any(isinstance(value, np.ndarray) for value in given) or name == "t5_buckets":
        pytest.skip("computed from positions alone: on the processor, for whoever needs it elsewhere")
    expected = getattr(rotary, name)(*map(in_torch, given), **named)
    for tables_too in (False, True):
        moved = [
            value.cuda() if isinstance(value, Tensor) and (tables_too or i == 0 or name != "apply_rope") else value
            for i, value in enumerate(map(in_torch, given))
        ]
        found = getattr(rotary, name)(*moved, **{key: in_torch(value) for key, value in named.items()})
        assert found.is_cuda
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-5, atol=1e-5)
