"""Every scaling method against golden numbers, and against the functions of transformers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config, Gemma3TextConfig, LlamaConfig, PhimoeConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

from ropetool.errors import ConfigError
from ropetool.rope.frequencies import (
    METHODS,
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
    ntk_theta,
    plain_inv_freq,
    scaling_from_block,
)


def near(actual, expected, relative: float = 1e-6) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=relative, atol=0)


# --- golden numbers -------------------------------------------------------------------------------------------------

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LISTS = {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0]}
# What each block means, by the arguments (block, base, max_position_embeddings).
MEANINGS: dict[str, tuple[Scaling, dict, float, int]] = {
    "plain": (Default(1e4), {"rope_type": "default"}, 1e4, 64),
    "Qwen3": (
        Yarn(1e6, 4.0, 32768),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 1e6, 131072,
    ),
    "Qwen3 over the length it serves": (
        Yarn(1e6, 4.0, 131072),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 131072}, 1e6, 131072,
    ),
    "linear x4, then to 32k": (Linear(1e4, 8.0), {"rope_type": "linear", "factor": 8.0}, 1e4, 32768),
    "gpt-oss": (
        Yarn(150000.0, 32.0, 4096, truncate=False),
        {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
         "original_max_position_embeddings": 4096}, 150000.0, 131072,
    ),
    "clamp": (
        Yarn(1e4, 4.0, 131072),
        {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 131072}, 1e4, 524288,
    ),
    "dynamic": (Dynamic(1e4, 4.0, 64), {"rope_type": "dynamic", "factor": 4.0}, 1e4, 64),
    "longrope": (
        LongRope(1e4, (1.0,) * 4, (1.0, 2.0, 4.0, 8.0), 64, 4.0),
        {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 64}, 1e4, 256,
    ),
    "longrope, by the name of the first configs": (
        LongRope(1e4, (1.0,) * 4, (1.0, 2.0, 4.0, 8.0), 64, 4.0),
        {"type": "su", **LISTS, "original_max_position_embeddings": 64}, 1e4, 256,
    ),
    "Phi-3.5-MoE": (
        LongRope(1e4, (1.0,) * 4, (1.0, 2.0, 4.0, 8.0), 64, 4.0, short_mscale=1.05, long_mscale=1.25),
        {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 64, "short_mscale": 1.05,
         "long_mscale": 1.25}, 1e4, 256,
    ),
    "llama3": (
        Llama3(1e4, 8.0, 1.0, 4.0, 64),
        {"rope_type": "llama3", "factor": 8.0, **LLAMA3, "original_max_position_embeddings": 64}, 1e4, 256,
    ),
    "DeepSeek-V2": (
        Yarn(1e4, 40.0, 4096, mscale=0.707, mscale_all_dim=0.707),
        {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707, "mscale_all_dim": 0.707,
         "original_max_position_embeddings": 4096}, 1e4, 163840,
    ),
    "DeepSeek-V3": (
        Yarn(1e4, 40.0, 4096, mscale=1.0, mscale_all_dim=1.0),
        {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
         "original_max_position_embeddings": 4096}, 1e4, 163840,
    ),
    "DeepSeek, its default spelled out": (
        Yarn(1e4, 40.0, 4096, mscale=1.0),
        {"type": "yarn", "factor": 40, "mscale": 1, "mscale_all_dim": 0, "original_max_position_embeddings": 4096},
        1e4, 163840,
    ),
    "Gemma 3, full": (Linear(1e6, 8.0), {"rope_type": "linear", "factor": 8.0}, 1e6, 131072),
    "Gemma 3, sliding": (Default(1e4), {"rope_type": "default"}, 1e4, 131072),
    "Gemma 4, full": (Proportional(1e4, 0.25), {"rope_type": "proportional", "partial_rotary_factor": 0.25}, 1e4, 64),
    "mRoPE": (Default(1e4), {"rope_type": "mrope", "mrope_section": [1, 1, 2]}, 1e4, 64),
    "an explicit attention factor": (
        Yarn(1e4, 4.0, 64, explicit_attention_factor=0.7, mscale=1.0, mscale_all_dim=2.0),
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7, "mscale": 1.0, "mscale_all_dim": 2.0}, 1e4, 64,
    ),
    "null is absent": (
        Yarn(1e4, 4.0, 1024),
        {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1024, "beta_fast": None,
         "beta_slow": None, "mscale": None, "mscale_all_dim": None, "attention_factor": None}, 1e4, 4096,
    ),
    "no type": (Default(1e4), {}, 1e4, 64),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANINGS)
def test_a_block_means(name: str) -> None:
    scaling, block, theta, max_length = MEANINGS[name]
    assert scaling_from_block(block, theta, max_length) == scaling


def meaning(name: str) -> Scaling:
    _, block, theta, max_length = MEANINGS[name]
    return scaling_from_block(block, theta, max_length)


def test_the_exponent_runs_over_the_rotary_width() -> None:
    near(meaning("plain").inv_freq(8), [1, 0.1, 0.01, 0.001], 1e-12)


def test_a_quarter_of_the_head_plain_and_proportional() -> None:
    near(meaning("plain").inv_freq(4), [1, 0.01], 1e-12)
    near(meaning("Gemma 4, full").inv_freq(16), [1, 10000 ** (-2 / 16), 0, 0, 0, 0, 0, 0], 1e-12)


def test_qwen3_yarn_over_its_trained_length() -> None:
    right = meaning("Qwen3")
    assert right.ramp(128) == (23, 40)
    near(right.attention_factor, 1.1386294, 1e-7)
    near(right.inv_freq(128)[30], 1.064361e-3)
    wrong = meaning("Qwen3 over the length it serves")
    assert wrong.ramp(128) == (30, 47)
    near(wrong.inv_freq(128)[30], 1.53993e-3, 5e-6)


def test_linear_composes_over_the_native_length() -> None:
    """x4 over 4096 serves 16384; 32k is factor 8 over 4096, twice as far as the first, and not x2 of nothing."""
    near(meaning("linear x4, then to 32k").inv_freq(8), [0.125, 0.0125, 0.00125, 0.000125], 1e-12)
    near(meaning("linear x4, then to 32k").inv_freq(128), Linear(1e4, 4.0).inv_freq(128) / 2, 1e-12)


def test_gpt_oss_does_not_truncate_its_ramp() -> None:
    near(meaning("gpt-oss").ramp(64), [8.0927791, 17.3980245], 1e-8)
    assert replace(meaning("gpt-oss"), truncate=True).ramp(64) == (8, 18)


def test_the_end_of_the_ramp_may_pass_the_last_pair() -> None:
    """The clamp is at dim - 1, not at the last pair."""
    assert meaning("clamp").ramp(128)[1] == 70
    assert Yarn(1e4, 4.0, 2**31).ramp(16)[1] == 15
    assert Yarn(1e4, 4.0, 16).ramp(16)[0] == 0


def test_dynamic_ntk() -> None:
    scaling = meaning("dynamic")
    for length in (None, 1, 63, 64):
        near(scaling.inv_freq(8, length), [1, 0.1, 0.01, 0.001], 1e-12)
    near(scaling.inv_freq(8, 256), [1, 0.042529, 0.00180872, 7.69231e-5], 5e-6)


def test_longrope() -> None:
    scaling = meaning("longrope")
    near(scaling.inv_freq(8, 64), [1, 0.1, 0.01, 0.001], 1e-12)
    near(scaling.inv_freq(8, 65), [1, 0.05, 0.0025, 0.000125], 1e-12)
    for length in (None, 64, 65):
        near(scaling.attention_factor_at(length), 1.1547005, 5e-8)


@pytest.mark.parametrize(("key", "short", "long"), [("short_factor", 4, 8), ("long_factor", 8, 4)])
def test_longrope_wants_one_factor_per_pair_in_both_lists(key: str, short: int, long: int) -> None:
    with pytest.raises(ConfigError, match=rf"rotary/2 = 8 factors, {key} has 4") as caught:
        LongRope(1e4, (1.0,) * short, (1.0,) * long, 64, 4.0).inv_freq(16)
    assert caught.value.fields["key"] == key


def test_llama3() -> None:
    inv_freq = meaning("llama3").inv_freq(16)
    near(inv_freq[:7], [1, 0.24438459, 0.013042256, 0.0039528473, 0.00125, 0.00039528473, 0.000125], 1e-7)
    near(inv_freq[7], 3.9528e-5, 2e-5)  # given to five digits


@pytest.mark.parametrize(
    ("theta", "factor", "rotary", "golden"),
    [(1e4, 4, 128, 40889.942), (5e5, 4, 64, 2091468.3), (1e4, 4, 8, 63496.04)],
)
def test_ntk_aware_base(theta: float, factor: float, rotary: int, golden: float) -> None:
    near(ntk_theta(theta, factor, rotary), golden, 5e-8)
    near(NtkAware(theta, factor).inv_freq(rotary), plain_inv_freq(golden, rotary), 5e-8)
    near(NtkAware(theta, factor).inv_freq(rotary), AdjustedBase(theta, golden).inv_freq(rotary), 5e-8)
    assert (NtkAware.name, AdjustedBase.name) == ("ntk", "abf")


def test_ntk_interpolates_the_slowest_pair_by_the_factor_and_keeps_the_fastest() -> None:
    before, after = Default(1e4).inv_freq(64), NtkAware(1e4, 4.0).inv_freq(64)
    near(after[0], before[0], 1e-12)
    near(after[-1], before[-1] / 4, 1e-12)


def test_deepseek_mscale() -> None:
    """cos and sin are not scaled where both mscales agree; the classes scale their softmax by the square of one."""
    for name, golden in (("DeepSeek-V2", 1.58963), ("DeepSeek-V3", 1.87385)):
        assert meaning(name).attention_factor == 1.0
        near(meaning(name).softmax_factor, golden, 5e-6)
    apart = Yarn(1e4, 40.0, 4096, mscale=1.0, mscale_all_dim=0.707).attention_factor
    near(apart, math.sqrt(1.87385 / 1.58963), 5e-6)
    assert meaning("DeepSeek, its default spelled out").softmax_factor == meaning("Qwen3").softmax_factor == 1.0


def test_an_explicit_attention_factor_wins() -> None:
    assert meaning("an explicit attention factor").attention_factor == 0.7
    assert LongRope(1e4, (1.0,), (1.0,), 64, 4.0, 0.9).attention_factor == 0.9
    assert LongRope(1e4, (1.0,), (1.0,), 64, 4.0, 0.9).attention_factor_at(65) == 0.9


# --- against transformers -------------------------------------------------------------------------------------------

HEADS = (8, 16, 64, 80, 96, 128, 192, 256)
SHARES = (1.0, 0.5, 0.25)
THETAS = (1e4, 5e5, 1e6, 1e7)
FACTORS = (1.0, 2.0, 4.0, 8.0, 40.0, 64.0)
TRAINED = (2048, 8192, 131072)
BETAS = {"beta_fast": 16.0, "beta_slow": 2.0}
YARN: tuple[dict, ...] = (
    {},
    {"attention_factor": 1.25, "mscale": 1.0, "mscale_all_dim": 0.707},
    {"truncate": True, "mscale": 1.0, "mscale_all_dim": 1.0},
    {"truncate": False, "mscale": 0.707, "mscale_all_dim": 0.707},
    {"truncate": True, **BETAS, "mscale": 1.0, "mscale_all_dim": 0.707},
    {"truncate": False, **BETAS, "mscale": 0.707, "mscale_all_dim": 0},
    {"beta_fast": 4.0, "beta_slow": 4.0, "mscale": None, "mscale_all_dim": 0.707},
)
EXTRAS: dict[str, tuple[dict, ...]] = {
    "linear": ({},),
    "dynamic": ({},),
    "yarn": YARN,
    "longrope": ({}, {"factor": None}, {"attention_factor": 1.25}),
    "llama3": (LLAMA3, {"low_freq_factor": 2.0, "high_freq_factor": 5.0}),
    "proportional": ({},),
}
LOOKS_AT_LENGTH = ("dynamic", "longrope")
HOLDS_LENGTH = ("yarn", "longrope", "llama3")


@dataclass(frozen=True)
class Case:
    """One question to both sides; ``width`` is what our side is asked for, ``length`` the tokens in play."""

    block: dict
    theta: float
    max_length: int
    head_dim: int
    width: int
    length: int | None


def grid(method: str) -> Iterator[Case]:
    """Every case of a method; a trained length in the block goes with a max_position_embeddings of twice that."""
    lengths = TRAINED if method in (*LOOKS_AT_LENGTH, *HOLDS_LENGTH) else TRAINED[:1]
    for head_dim, share, theta, factor, trained, extra in product(
        HEADS, SHARES, THETAS, FACTORS, lengths, EXTRAS[method]
    ):
        rotary = int(head_dim * share)
        if method == "dynamic" and rotary == 2:
            continue  # in EDGES
        block = {"rope_type": method, "factor": factor, "partial_rotary_factor": share, **extra}
        if method == "longrope":
            block["short_factor"] = [1.0 + 0.01 * i for i in range(rotary // 2)]
            block["long_factor"] = [1.0 + 0.5 * i for i in range(rotary // 2)]
        if method in HOLDS_LENGTH:
            block["original_max_position_embeddings"] = trained
        max_length = trained * 2 if method in HOLDS_LENGTH else trained
        width = head_dim if method == "proportional" else rotary
        for length in (None, trained, trained + 1, 3 * trained) if method in LOOKS_AT_LENGTH else (None,):
            yield Case(block, theta, max_length, head_dim, width, length)


def theirs(case: Case, config: LlamaConfig) -> tuple[torch.Tensor, float]:
    """What transformers computes; hidden_size is no multiple of the heads that would hide a wrong head_dim."""
    config.hidden_size, config.num_attention_heads = case.head_dim * 4 + 12, 4
    config.head_dim, config.max_position_embeddings = case.head_dim, case.max_length
    config.rope_parameters = {"rope_theta": case.theta, **case.block}
    return ROPE_INIT_FUNCTIONS[case.block["rope_type"]](config, torch.device("cpu"), seq_len=case.length)


@cache
def answers(method: str, dtype: torch.dtype) -> list[tuple[Case, np.ndarray, float]]:
    """What transformers computes over the grid. Its functions name float32 by hand, as ``torch.float``, as
    ``torch.float32`` and by ``tensor.float()``: where float64 is wanted all three are made to mean it.
    """
    config = LlamaConfig()
    with pytest.MonkeyPatch.context() as patch:
        if dtype is torch.float64:
            patch.setattr(torch, "float", torch.float64)
            patch.setattr(torch, "float32", torch.float64)
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        found = []
        for case in grid(method):
            inv_freq, factor = theirs(case, config)
            assert inv_freq.dtype is dtype
            found.append((case, inv_freq.double().numpy(), factor))
    return found


def worst(method: str, mutate: Callable[[Scaling], Scaling] = lambda s: s, enough: float = math.inf) -> float:
    """The largest relative difference between transformers in float64 and us over the grid, or the first ``enough``."""
    found = 0.0
    for case, inv_freq, factor in answers(method, torch.float64):
        if found >= enough:
            break
        scaling = mutate(scaling_from_block(case.block, case.theta, case.max_length))
        ours = scaling.inv_freq(case.width, case.length)
        assert ours.dtype == np.float64
        if ours.shape != inv_freq.shape or ((ours == 0) != (inv_freq == 0)).any():
            return math.inf
        turning = inv_freq != 0
        found = max(found, float(np.abs(ours[turning] / inv_freq[turning] - 1).max(initial=0.0)))
        found = max(found, abs(scaling.attention_factor_at(case.length) / factor - 1))
    return found


@pytest.mark.parametrize("method", ROPE_INIT_FUNCTIONS)
def test_equal_to_transformers_over_a_grid(method: str) -> None:
    """Far within 1e-6: both sides round in float64 alone."""
    assert len(answers(method, torch.float64)) >= 500
    assert worst(method) < 1e-12


U = 2.0**-24  # the relative error of one rounding in float32


def float32_error(case: Case, scaling: Scaling) -> np.ndarray:
    """How far, relatively, transformers' own float32 may be from the truth: each rounding that it makes, added up.

    1e-6 is out of its reach in two places. The rounding of the exponent is multiplied by ln(base): at 1e7 up to
    1.3e-6 in the slow pairs (measured: less). And the weights of a blend (yarn, llama3) round absolutely: where little
    is left of a fast frequency, its share is small beside that rounding, which then counts up to ``factor`` times.
    """
    base = case.theta
    if isinstance(scaling, Dynamic):
        base = float(scaling.inv_freq(case.width, case.length)[1] ** (-case.width / 2))
    pairs = np.arange(0, case.width, 2) / case.width
    # exponent (times ln(base)) and base (times the exponent); pow to an ulp, reciprocal, the factor and its division
    plain_error = U * (pairs * (math.log(base) + 1) + 2 + 1 + 2)
    truth, plain = scaling.inv_freq(case.width, case.length), plain_inv_freq(case.theta, case.width)
    if isinstance(scaling, Yarn):
        low, high = scaling.ramp(case.width)
        width, steps = (high - low) or 0.001, np.arange(case.width // 2) - low
        share, share_error = steps / width, (abs(float(np.float32(low)) - low) + 3 * U * np.abs(steps)) / width
    elif isinstance(scaling, Llama3):
        turns, width = (
            scaling.original_length * plain / (2 * math.pi),
            scaling.high_freq_factor - scaling.low_freq_factor,
        )
        share = (turns - scaling.low_freq_factor) / width
        share_error = (turns * (plain_error + 4 * U) + 2 * U * np.abs(turns - scaling.low_freq_factor)) / width
    else:
        return plain_error
    blended = (share > -share_error) & (share < 1 + share_error)
    return plain_error + blended * (4 * U + plain / truth * (1 + 1 / scaling.factor) * (share_error + 2 * U))


@pytest.mark.parametrize("method", ROPE_INIT_FUNCTIONS)
def test_what_transformers_runs_is_off_by_its_own_rounding_alone(method: str) -> None:
    beyond = 0
    for case, inv_freq, _ in answers(method, torch.float32):
        scaling = scaling_from_block(case.block, case.theta, case.max_length)
        ours, bound = scaling.inv_freq(case.width, case.length), float32_error(case, scaling)
        turning = inv_freq != 0
        off = np.abs(inv_freq[turning] / ours[turning] - 1)
        assert (off <= bound[turning]).all(), f"{case}: {(off / bound[turning]).max()} times the bound"
        beyond += int((off > 1e-6).any())
    assert (beyond > 0) == (method in ("yarn", "llama3")), beyond


# --- planted faults -------------------------------------------------------------------------------------------------


class RampInverted(Yarn):
    """The known fault of a well-known library."""

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        plain = plain_inv_freq(self.theta, rotary_dim)
        return plain + plain / self.factor - super().inv_freq(rotary_dim)


class BetasSwapped(Yarn):
    def ramp(self, rotary_dim: int) -> tuple[float, float]:
        return super().ramp(rotary_dim)[::-1]


class TruncateIgnored(Yarn):
    def ramp(self, rotary_dim: int) -> tuple[float, float]:
        return Yarn(**{**vars(self), "truncate": True}).ramp(rotary_dim)


class ClampAtTheLastPair(Yarn):
    def ramp(self, rotary_dim: int) -> tuple[float, float]:
        low, high = super().ramp(rotary_dim)
        return low, min(high, rotary_dim // 2 - 1)


class KeptPairsDividedToo(Yarn):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        return super().inv_freq(rotary_dim) / self.factor


class QuotientReversed(Yarn):
    def attention_factor_at(self, length: int | None = None) -> float:
        swapped = {"mscale": self.mscale_all_dim, "mscale_all_dim": self.mscale}
        return Yarn(**{**vars(self), **swapped}).attention_factor


class OneMscaleIsEnough(Yarn):
    def attention_factor_at(self, length: int | None = None) -> float:
        return 1 + 0.1 * (self.mscale or 1.0) * math.log(self.factor)


class ExponentOverAWiderHead(Linear):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        return plain_inv_freq(self.theta, 2 * rotary_dim)[: rotary_dim // 2] / self.factor


class FactorOnTheBase(Linear):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        return plain_inv_freq(self.theta * self.factor, rotary_dim)


class ScaleOfThePaper(Dynamic):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        scale = max(1.0, (length or 0) / self.original_length)
        return plain_inv_freq(ntk_theta(self.theta, scale, rotary_dim), rotary_dim)


class GrownFromTheStart(Dynamic):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        return super().inv_freq(rotary_dim, int(self.original_length * self.factor))


class LongAtTheOriginal(LongRope):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        return super().inv_freq(rotary_dim, (length or 0) + 1)


class TimesTheList(LongRope):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        return plain_inv_freq(self.theta, rotary_dim) ** 2 / super().inv_freq(rotary_dim, length)


class AttentionOfYarn(LongRope):
    def attention_factor_at(self, length: int | None = None) -> float:
        return Yarn(self.theta, self.factor, self.original_length).attention_factor


class BandReversed(Llama3):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        ends = {"low_freq_factor": self.high_freq_factor, "high_freq_factor": self.low_freq_factor}
        return Llama3(**{**vars(self), **ends}).inv_freq(rotary_dim)


class NoBand(Llama3):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        return Llama3(**{**vars(self), "low_freq_factor": self.high_freq_factor - 1e-9}).inv_freq(rotary_dim)


class ExponentOverTheShare(Proportional):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        inv_freq = np.zeros(rotary_dim // 2)
        inv_freq[: int(self.share * rotary_dim // 2)] = plain_inv_freq(self.theta, int(self.share * rotary_dim))
        return inv_freq / self.factor


class AllPairsTurn(Proportional):
    def inv_freq(self, rotary_dim: int, length: int | None = None) -> np.ndarray:
        return Linear(self.theta, self.factor).inv_freq(rotary_dim)


FAULTS: tuple[tuple[str, type[Scaling]], ...] = (
    *(("yarn", fault) for fault in (RampInverted, BetasSwapped, TruncateIgnored, ClampAtTheLastPair)),
    *(("yarn", fault) for fault in (KeptPairsDividedToo, QuotientReversed, OneMscaleIsEnough)),
    *(("linear", fault) for fault in (ExponentOverAWiderHead, FactorOnTheBase)),
    *(("dynamic", fault) for fault in (ScaleOfThePaper, GrownFromTheStart)),
    *(("longrope", fault) for fault in (LongAtTheOriginal, TimesTheList, AttentionOfYarn)),
    *(("llama3", fault) for fault in (BandReversed, NoBand)),
    *(("proportional", fault) for fault in (ExponentOverTheShare, AllPairsTurn)),
)


@pytest.mark.parametrize(("method", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_the_comparison_sees_a_planted_fault(method: str, fault: type[Scaling]) -> None:
    assert worst(method, lambda scaling: fault(**vars(scaling)), enough=1e-2) >= 1e-2


def test_each_method_has_its_planted_faults() -> None:
    assert {method for method, _ in FAULTS} == set(ROPE_INIT_FUNCTIONS)


# --- where transformers fails, or answers without a word what nobody means ---------------------------------------

YARN_BLOCK = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LONG_BLOCK = {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LLAMA3_BLOCK = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 4096}
# Block, base, what transformers 5.24 raises (None: nothing), and the key that our error names. All with head_dim 16.
EDGES: dict[str, tuple[dict, float, type[Exception] | None, str]] = {
    "one pair has no NTK exponent": (
        {"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.125}, 1e4, ZeroDivisionError, "head_dim"),
    "a base of 1": (YARN_BLOCK, 1.0, ZeroDivisionError, "rope_theta"),
    "a base below 1": (YARN_BLOCK, 0.5, None, "rope_theta"),
    "all pairs turn too often for the ramp": (
        {**YARN_BLOCK, "original_max_position_embeddings": 131072}, 10.0, None, "original_max_position_embeddings"),
    "no pair turns once": (
        {**YARN_BLOCK, "original_max_position_embeddings": 2}, 1e3, None, "original_max_position_embeddings"),
    "an original length of 0": (
        {**YARN_BLOCK, "original_max_position_embeddings": 0}, 1e4, ValueError, "original_max_position_embeddings"),
    "betas the wrong way round": ({**YARN_BLOCK, "beta_fast": 1.0, "beta_slow": 32.0}, 1e4, None, "beta_fast"),
    "beta_fast 0, which is read as 32": ({**YARN_BLOCK, "beta_fast": 0}, 1e4, None, "beta_fast"),
    "an attention factor of 0": ({**YARN_BLOCK, "attention_factor": 0.0}, 1e4, None, "attention_factor"),
    "truncate by a word": ({**YARN_BLOCK, "truncate": "false"}, 1e4, None, "truncate"),
    "the logarithm of 1": (
        {**LONG_BLOCK, "original_max_position_embeddings": 1}, 1e4, ZeroDivisionError,
        "original_max_position_embeddings"),
    "a list too short": (
        {**LONG_BLOCK, "short_factor": [1.0] * 7, "original_max_position_embeddings": 64}, 1e4, RuntimeError,
        "short_factor"),
    "the other list too short": (
        {**LONG_BLOCK, "long_factor": [1.0] * 7, "original_max_position_embeddings": 64}, 1e4, None, "long_factor"),
    "no band": ({**LLAMA3_BLOCK, "low_freq_factor": 4.0, "high_freq_factor": 4.0}, 1e4, None,
                "high_freq_factor"),
    "the band reversed": ({**LLAMA3_BLOCK, "low_freq_factor": 4.0, "high_freq_factor": 1.0}, 1e4, None,
                          "high_freq_factor"),
    "more than the head": ({"rope_type": "proportional", "partial_rotary_factor": 1.5}, 1e4, None,
                           "partial_rotary_factor"),
    "a context made shorter": ({"rope_type": "linear", "factor": 0.5}, 1e4, None, "factor"),
    "no factor": ({"rope_type": "linear", "factor": None}, 1e4, TypeError, "factor"),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_an_edge_is_refused_by_its_key(name: str) -> None:
    block, theta, raised, key = EDGES[name]
    width = int(16 * block.get("partial_rotary_factor", 1))
    with pytest.raises(ConfigError) as caught:
        scaling_from_block(block, theta, 131072).inv_freq(width)
    assert caught.value.fields["key"] == key
    assert key in caught.value.message or key == "head_dim"
    case = Case(dict(block), theta, 131072, 16, width, None)
    if raised is None:
        theirs(case, LlamaConfig())
    else:
        with pytest.raises(raised):
            theirs(case, LlamaConfig())


def test_transformers_turns_a_reversed_ramp_into_its_opposite() -> None:
    """Why the two ends of the ramp are checked: no pair turns once, and all are kept; all turn often, none is."""
    plain, kept = Default(1e3).inv_freq(16), EDGES["no pair turns once"][0]
    near(theirs(Case(dict(kept), 1e3, 131072, 16, 16, None), LlamaConfig())[0], plain)
    plain, changed = Default(10.0).inv_freq(16), EDGES["all pairs turn too often for the ramp"][0]
    near(theirs(Case(dict(changed), 10.0, 131072, 16, 16, None), LlamaConfig())[0], plain / 4)


def test_yarn_is_finite_whatever_a_block_may_hold() -> None:
    """Every ramp is finite or refused, with numpy's warnings as errors."""
    finite = refused = 0
    ends = ((1e-6, 1e-6), (1.0, 1.0), (32.0, 1.0), (1e6, 1e-6), (1e6, 1e6))
    for theta, original, rotary, truncate, (fast, slow) in product(
        (1 + 1e-15, 1.1, 10.0, 1e4, 1e18), (1, 2, 6, 7, 64, 4096, 1 << 40), (2, 4, 64, 256), (True, False), ends
    ):
        block = {**YARN_BLOCK, "original_max_position_embeddings": original, "truncate": truncate}
        scaling = scaling_from_block({**block, "beta_fast": fast, "beta_slow": slow}, theta, 1 << 40)
        try:
            with np.errstate(all="raise"):
                inv_freq = scaling.inv_freq(rotary)
        except ConfigError:
            refused += 1
            continue
        plain = Default(theta).inv_freq(rotary)
        assert (inv_freq <= plain * (1 + 1e-15)).all()
        assert (inv_freq >= plain / 4 * (1 - 1e-15)).all()
        finite += 1
    assert finite > 500
    assert refused > 500


# --- against the classes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", HEADS)
@pytest.mark.parametrize("theta", THETAS)
def test_the_default_is_equal_to_the_rotary_module(head_dim: int, theta: float) -> None:
    config = LlamaConfig(
        hidden_size=head_dim * 4 + 12, num_attention_heads=4, head_dim=head_dim,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
    )  # fmt: skip
    module, case = LlamaRotaryEmbedding(config), Case({}, theta, 64, head_dim, head_dim, None)
    off = np.abs(module.inv_freq.double().numpy() / Default(theta).inv_freq(head_dim) - 1)
    assert (off <= float32_error(case, Default(theta))).all()
    assert Default(theta).attention_factor == module.attention_scaling == 1.0


def test_gemma3_scales_its_full_layers_alone() -> None:
    blocks = {layers: MEANINGS[f"Gemma 3, {layers}"] for layers in ("full", "sliding")}
    config = Gemma3TextConfig(
        head_dim=256, num_hidden_layers=2, layer_types=["full_attention", "sliding_attention"],
        rope_parameters={f"{layers}_attention": {**block, "rope_theta": theta}
                         for layers, (_, block, theta, _) in blocks.items()},
    )  # fmt: skip
    module = Gemma3RotaryEmbedding(config)
    for layers, (scaling, *_) in blocks.items():
        near(getattr(module, f"{layers}_attention_inv_freq"), scaling.inv_freq(256), 2e-6)
        assert getattr(module, f"{layers}_attention_attention_scaling") == scaling.attention_factor
    near(meaning("Gemma 3, full").inv_freq(256)[[0, 64]], [1 / 8, 1e-3 / 8], 1e-12)
    near(meaning("Gemma 3, sliding").inv_freq(256)[[0, 64]], [1, 1e-2], 1e-12)


@pytest.mark.parametrize("name", ["DeepSeek-V2", "DeepSeek-V3", "DeepSeek, its default spelled out"])
@pytest.mark.parametrize(
    ("config_class", "attention"),
    [(DeepseekV2Config, DeepseekV2Attention), (DeepseekV3Config, DeepseekV3Attention)],
)
def test_latent_attention_multiplies_its_softmax_scale(name: str, config_class: type, attention: type) -> None:
    scaling, block, theta, max_length = MEANINGS[name]
    config = config_class(
        hidden_size=32, num_attention_heads=2, q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8,
        v_head_dim=8, max_position_embeddings=max_length, rope_parameters={**block, "rope_theta": theta},
    )  # fmt: skip
    near(attention(config, layer_idx=0).scaling, scaling.softmax_factor / math.sqrt(16), 1e-12)


def test_phimoe_has_an_attention_factor_for_each_list() -> None:
    """Its class multiplies cos and sin as we say, but never turns by the long list (transformers 5.24): its forward
    asks for the frequencies without a length, and leaves those of `dynamic_rope_update` unused.
    """
    scaling, block, theta, max_length = MEANINGS["Phi-3.5-MoE"]
    config = PhimoeConfig(
        hidden_size=32, num_attention_heads=4, max_position_embeddings=max_length,
        rope_parameters={**block, "rope_theta": theta},
    )  # fmt: skip
    assert scaling.attention_factor == 1.05
    for length, golden in ((1, 1.05), (64, 1.05), (65, 1.25), (256, 1.25)):
        assert scaling.attention_factor_at(length) == golden
        module = PhimoeRotaryEmbedding(config)
        cos, sin = module(torch.zeros(1), torch.arange(length)[None])
        near(torch.hypot(cos, sin), np.full(cos.shape, golden))
        if length > 1:
            near(torch.atan2(sin, cos)[0, 1, :4], scaling.inv_freq(8, 64))
            near(module.inv_freq, scaling.inv_freq(8, length))


@pytest.mark.parametrize("method", ["yarn", "longrope"])
def test_factor_from_the_two_lengths_where_the_block_lacks_it(method: str) -> None:
    """DeepSeek and Phi-3 style blocks: max / original is the factor (modeling_rope_utils.py, "NOTE: DeepSeek-V3")."""
    block = {**(YARN_BLOCK if method == "yarn" else LONG_BLOCK), "original_max_position_embeddings": 1024}
    for absent in ({**block, "factor": None}, {key: value for key, value in block.items() if key != "factor"}):
        assert scaling_from_block(absent, 1e4, 4096).factor == 4.0
    inv_freq, factor = theirs(Case({**block, "factor": None}, 1e4, 4096, 16, 16, None), LlamaConfig())
    near(inv_freq, scaling_from_block(block, 1e4, 4096).inv_freq(16))
    near(factor, scaling_from_block(block, 1e4, 4096).attention_factor)


def test_a_lowered_length_leaves_longrope_an_attention_factor_of_one_and_yarn_none() -> None:
    lowered = {**LONG_BLOCK, "factor": None, "original_max_position_embeddings": 4096}
    assert scaling_from_block(lowered, 1e4, 2048).attention_factor == 1.0
    assert theirs(Case(dict(lowered), 1e4, 2048, 16, 16, None), LlamaConfig())[1] == 1.0
    with pytest.raises(ConfigError, match="above max_position_embeddings, which is 2048; write the factor"):
        scaling_from_block({**YARN_BLOCK, "factor": None}, 1e4, 2048)
    assert scaling_from_block(YARN_BLOCK, 1e4, 2048) == Yarn(1e4, 4.0, 4096)


def test_every_method_of_transformers_is_read() -> None:
    assert {"default", *ROPE_INIT_FUNCTIONS} == set(METHODS)
