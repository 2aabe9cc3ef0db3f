"""Every scaling method against golden numbers, and against the functions of transformers."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ropetool.errors import ConfigError
from ropetool.rope.frequencies import (
    METHODS,
    Default,
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    Proportional,
    Yarn,
    ntk_theta,
    scaling_from_block,
)


def near(actual, expected, relative: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=relative, atol=0)


# --- golden numbers -------------------------------------------------------------------------------------------------


def test_the_exponent_runs_over_the_rotary_width() -> None:
    near(Default(10000.0).inv_freq(8), [1, 0.1, 0.01, 0.001], 1e-12)


def test_a_quarter_of_the_head_plain_and_proportional() -> None:
    near(Default(10000.0).inv_freq(4), [1, 0.01], 1e-12)
    expected = [1, 10000 ** (-2 / 16), 0, 0, 0, 0, 0, 0]
    near(Proportional(10000.0, 0.25).inv_freq(16), expected, 1e-12)


def test_qwen3_yarn_over_its_trained_length() -> None:
    right = Yarn(1e6, 4.0, 32768)
    assert right.ramp(128) == (23, 40)
    near(right.attention_factor, 1.1386294)
    near(right.inv_freq(128)[30], 1.064361e-3)
    wrong = Yarn(1e6, 4.0, 131072)
    assert wrong.ramp(128) == (30, 47)
    near(wrong.inv_freq(128)[30], 1.53993e-3, 1e-5)


def test_gpt_oss_does_not_truncate_its_ramp() -> None:
    near(Yarn(150000.0, 32.0, 4096, truncate=False).ramp(64), [8.0927791, 17.3980245])
    assert Yarn(150000.0, 32.0, 4096).ramp(64) == (8, 18)


def test_the_end_of_the_ramp_may_pass_the_last_pair() -> None:
    """The clamp is at dim - 1, not at the last pair."""
    assert Yarn(1e4, 4.0, 131072).ramp(128)[1] == 70


def test_the_ramp_is_clamped_to_the_head() -> None:
    low, high = Yarn(1e4, 4.0, 2**40).ramp(16)
    assert (low, high) == (16 * math.log(2**40 / (32 * 2 * math.pi)) // (2 * math.log(1e4)), 15)
    assert Yarn(1e4, 4.0, 16).ramp(16)[0] == 0


def test_dynamic_ntk() -> None:
    scaling = Dynamic(1e4, 4.0, 64)
    for length in (None, 1, 63, 64):
        near(scaling.inv_freq(8, length), [1, 0.1, 0.01, 0.001], 1e-12)
    near(scaling.inv_freq(8, 256), [1, 0.042529, 0.00180872, 7.69231e-5], 1e-5)


def test_longrope() -> None:
    scaling = LongRope(1e4, (1.0,) * 4, (1.0, 2.0, 4.0, 8.0), 64, 4.0)
    near(scaling.inv_freq(8, 64), [1, 0.1, 0.01, 0.001], 1e-12)
    near(scaling.inv_freq(8, 65), [1, 0.05, 0.0025, 0.000125], 1e-12)
    near(scaling.attention_factor, 1.1547005)


def test_longrope_wants_one_factor_per_pair() -> None:
    with pytest.raises(ConfigError, match=r"rotary/2 = 8 factors, this list has 4"):
        LongRope(1e4, (1.0,) * 4, (1.0,) * 4, 64, 4.0).inv_freq(16)


def test_llama3() -> None:
    expected = [1, 0.24438459, 0.013042256, 0.0039528473, 0.00125, 0.00039528473, 0.000125, 3.9528e-5]
    inv_freq = Llama3(1e4, 8.0, 1.0, 4.0, 64).inv_freq(16)
    near(inv_freq[:7], expected[:7], 1e-7)
    near(inv_freq[7], expected[7], 2e-5)  # given to five digits


@pytest.mark.parametrize(
    ("theta", "factor", "rotary", "golden"),
    [(1e4, 4, 128, 40889.942), (5e5, 4, 64, 2091468.3), (1e4, 4, 8, 63496.04)],
)
def test_ntk_aware_base(theta: float, factor: float, rotary: int, golden: float) -> None:
    near(ntk_theta(theta, factor, rotary), golden)


def test_ntk_interpolates_the_slowest_pair_by_the_factor_and_keeps_the_fastest() -> None:
    before, after = Default(1e4).inv_freq(64), Default(ntk_theta(1e4, 4.0, 64)).inv_freq(64)
    near(after[0], before[0], 1e-12)
    near(after[-1], before[-1] / 4, 1e-12)


def test_deepseek_mscale() -> None:
    """cos and sin are not scaled where both mscales agree; the class scales its softmax by the square of one."""
    assert Yarn(1e4, 40.0, 4096, mscale=1.0, mscale_all_dim=1.0).attention_factor == 1.0
    assert Yarn(1e4, 40.0, 4096, mscale=0.707, mscale_all_dim=0.707).attention_factor == 1.0
    apart = Yarn(1e4, 40.0, 4096, mscale=1.0, mscale_all_dim=0.707).attention_factor
    near(apart, math.sqrt(1.87385 / 1.58963), 1e-5)


def test_linear() -> None:
    near(Linear(1e4, 4.0).inv_freq(8), [0.25, 0.025, 0.0025, 0.00025], 1e-12)
    assert Linear(1e4, 4.0).attention_factor == 1.0


def test_an_explicit_attention_factor_wins() -> None:
    assert Yarn(1e4, 4.0, 64, explicit_attention_factor=0.7, mscale=1.0, mscale_all_dim=2.0).attention_factor == 0.7
    assert LongRope(1e4, (1.0,), (1.0,), 64, 4.0, 0.9).attention_factor == 0.9


# --- against transformers -------------------------------------------------------------------------------------------

HEADS = (8, 64, 96, 128, 256)
THETAS = (1e4, 150000.0, 1e7)
FACTORS = (1.0, 2.5, 8.0, 64.0)
SHARES = (1.0, 0.5, 0.25)
ORIGINAL = 4096
BLOCKS: dict[str, tuple[dict, ...]] = {
    "linear": ({},),
    "dynamic": ({},),
    "yarn": (
        {"original_max_position_embeddings": ORIGINAL},
        {"original_max_position_embeddings": ORIGINAL, "truncate": False},
        {"original_max_position_embeddings": 128, "beta_fast": 16.0, "beta_slow": 2.0},
        {"original_max_position_embeddings": 4},
        {"original_max_position_embeddings": ORIGINAL, "mscale": 1.0, "mscale_all_dim": 0.707},
        {"original_max_position_embeddings": ORIGINAL, "mscale": 0.707},
        {"original_max_position_embeddings": ORIGINAL, "attention_factor": 1.25},
    ),
    "llama3": (
        {"original_max_position_embeddings": ORIGINAL, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"original_max_position_embeddings": 8192, "low_freq_factor": 2.0, "high_freq_factor": 5.0},
    ),
    "longrope": ({"original_max_position_embeddings": 2048},),
    "proportional": ({},),
}
BLENDING = ("yarn", "llama3")  # fmt: skip


def config_of(head_dim: int, theta: float, block: dict, length: int = ORIGINAL) -> LlamaConfig:
    """A config that transformers' functions read; hidden_size is no multiple that would hide a wrong head_dim."""
    return LlamaConfig(
        hidden_size=head_dim * 4 + 12, num_attention_heads=4, head_dim=head_dim, max_position_embeddings=length,
        rope_parameters={"rope_theta": theta, **block},
    )  # fmt: skip


# Their functions name float32 by hand. Run in float64 they are compared to the last digits; in float32 the weights of
# yarn's and llama3's blends round, and a small blend of a large frequency is then off by up to 1e-5 (measured). Only
# longrope's exponents stay float32 by a method call.
BOUND = {**dict.fromkeys(BLOCKS, 1e-12), "longrope": 1e-6}


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ``torch.float`` and ``torch.float32``, wherever they are named by attribute, mean float64."""
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch, "float32", torch.float64)


@pytest.mark.parametrize("method", BLOCKS)
def test_equal_to_transformers_over_a_grid(method: str, float64: None) -> None:
    compared = 0
    for head_dim, theta, factor, share, extra in product(HEADS, THETAS, FACTORS, SHARES, BLOCKS[method]):
        rotary = int(head_dim * share)
        if rotary < 4:
            continue  # the exponent of dynamic divides by rotary - 2
        block = {"rope_type": method, "factor": factor, "partial_rotary_factor": share, **extra}
        if method == "longrope":
            block["short_factor"] = [1.0 + 0.01 * i for i in range(rotary // 2)]
            block["long_factor"] = [1.0 + 0.5 * i for i in range(rotary // 2)]
        config = config_of(head_dim, theta, block)
        width = head_dim if method == "proportional" else rotary
        scaling = scaling_from_block(block, theta, ORIGINAL)
        for length in (None, 100, ORIGINAL, 3 * ORIGINAL):
            theirs, their_factor = ROPE_INIT_FUNCTIONS[method](config, torch.device("cpu"), seq_len=length)
            ours = scaling.inv_freq(width, length)
            assert ours.dtype == np.float64
            np.testing.assert_allclose(ours, theirs.numpy(), rtol=BOUND[method], atol=0, err_msg=f"{block}")
            near(scaling.attention_factor, their_factor)
            compared += 1
    assert compared > 500


@pytest.mark.parametrize("head_dim", HEADS)
@pytest.mark.parametrize("theta", THETAS)
def test_the_default_is_equal_to_the_rotary_module(head_dim: int, theta: float) -> None:
    module = LlamaRotaryEmbedding(config_of(head_dim, theta, {"rope_type": "default"}))
    near(Default(theta).inv_freq(head_dim), module.inv_freq.double().numpy())
    assert Default(theta).attention_factor == module.attention_scaling == 1.0


def test_the_comparison_can_fail() -> None:
    """An inverted ramp, the known fault of a well-known library, is far outside the bound."""
    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
    theirs, _ = ROPE_INIT_FUNCTIONS["yarn"](config_of(64, 1e4, block), torch.device("cpu"))
    plain, ours = Default(1e4).inv_freq(64), Yarn(1e4, 4.0, ORIGINAL).inv_freq(64)
    inverted = plain + plain / 4 - ours
    assert np.abs(inverted / theirs.double().numpy() - 1).max() > 1


@pytest.mark.parametrize("missing", ["factor"])
def test_factor_from_the_two_lengths_where_the_block_lacks_it(missing: str) -> None:
    """DeepSeek and Phi-3 style blocks: max / original is the factor (modeling_rope_utils.py, "NOTE: DeepSeek-V3")."""
    for method, extra in (("yarn", {}), ("longrope", {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32})):
        block = {"rope_type": method, missing: None, "original_max_position_embeddings": 1024, **extra}
        scaling = scaling_from_block(block, 1e4, ORIGINAL)
        assert scaling.factor == 4.0
        theirs, their_factor = ROPE_INIT_FUNCTIONS[method](config_of(64, 1e4, block), torch.device("cpu"))
        near(scaling.inv_freq(64), theirs.double().numpy())
        near(scaling.attention_factor, their_factor)


# --- reading blocks -------------------------------------------------------------------------------------------------


def test_no_type_means_default_and_old_spellings_are_read() -> None:
    assert scaling_from_block({}, 1e4, 64) == Default(1e4)
    assert scaling_from_block({"type": "linear", "factor": 2}, 1e4, 64) == Linear(1e4, 2.0)
    assert scaling_from_block({"rope_type": "mrope", "mrope_section": [1, 1, 2]}, 1e4, 64) == Default(1e4)
    su = {"type": "su", "short_factor": [1.0], "long_factor": [2.0]}
    assert isinstance(scaling_from_block(su, 1e4, 64), LongRope)


@pytest.mark.parametrize(
    ("block", "key"),
    [
        ({"rope_type": "ntk"}, "rope_type"),
        ({"rope_type": 3}, "rope_type"),
        ({"rope_type": ["yarn"]}, "rope_type"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": None}, "factor"),
        ({"rope_type": "linear", "factor": "4"}, "factor"),
        ({"rope_type": "linear", "factor": True}, "factor"),
        ({"rope_type": "linear", "factor": 0}, "factor"),
        ({"rope_type": "linear", "factor": -2.0}, "factor"),
        ({"rope_type": "linear", "factor": float("nan")}, "factor"),
        ({"rope_type": "yarn", "factor": float("inf")}, "factor"),
        ({"rope_type": "yarn", "factor": 4, "beta_fast": "32"}, "beta_fast"),
        ({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": "64"},
         "original_max_position_embeddings"),
        ({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1}, "high_freq_factor"),
        ({"rope_type": "longrope", "factor": 4, "long_factor": [1.0]}, "short_factor"),
        ({"rope_type": "longrope", "factor": 4, "short_factor": [1.0], "long_factor": []}, "long_factor"),
        ({"rope_type": "longrope", "factor": 4, "short_factor": [1.0], "long_factor": [None]}, "long_factor"),
        ({"rope_type": "longrope", "factor": 4, "short_factor": 1.0, "long_factor": [1.0]}, "short_factor"),
    ],
)  # fmt: skip
def test_a_bad_value_is_named(block: dict, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scaling_from_block(block, 1e4, 64)
    assert caught.value.fields["key"] == key
    assert key in caught.value.message


@pytest.mark.parametrize("ends", [(4.0, 4.0), (4.0, 1.0)])
def test_a_llama3_band_without_width_is_refused(ends: tuple[float, float]) -> None:
    low, high = ends
    block = {"rope_type": "llama3", "factor": 8, "low_freq_factor": low, "high_freq_factor": high}
    with pytest.raises(ConfigError, match="high_freq_factor"):
        scaling_from_block(block, 1e4, 64)


@pytest.mark.parametrize("theta", [1.0, 0.5])
def test_a_base_of_one_or_less_is_refused(theta: float) -> None:
    """log(theta) divides in YaRN; a base of 1 turns every pair alike, below 1 the order of the pairs reverses."""
    with pytest.raises(ConfigError, match="theta"):
        scaling_from_block({"rope_type": "yarn", "factor": 4}, theta, 64)


def test_dynamic_needs_the_trained_length() -> None:
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        scaling_from_block({"rope_type": "dynamic", "factor": 2}, 1e4, None)


def test_every_method_of_transformers_is_read() -> None:
    assert {"default", *ROPE_INIT_FUNCTIONS} == set(METHODS)
