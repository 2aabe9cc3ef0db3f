"""The frequency of every rotary pair, one frozen dataclass per scaling method, in float64.

Shared vocabulary: R is the rotary width (rows that turn), i = 0 .. R/2 - 1 counts the pairs, and ``inv_freq[i]`` is
the angle per token of pair i, in radians. ``attention_factor`` multiplies cos and sin, so a score grows by its square.

Without scaling, inv_freq[i] = theta^(-2i/R) (RoFormer, arXiv:2104.09864, section 3.2.2). The exponent runs over the
rotary width, not over head_dim; only ``Proportional`` differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import ConfigError

Floats = npt.NDArray[np.float64]


def plain_inv_freq(theta: float, rotary_dim: int) -> Floats:
    """theta^(-2i/R), shape [R/2]."""
    return np.asarray(theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim), dtype=np.float64)


@dataclass(frozen=True)
class Scaling:
    """Base of the methods. ``length`` is the number of tokens in play; only dynamic and longrope look at it."""

    theta: float

    name = "default"

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """Angle per token of each pair in radians, shape [R/2]."""
        return plain_inv_freq(self.theta, rotary_dim)

    @property
    def attention_factor(self) -> float:
        """What cos and sin are multiplied by."""
        return 1.0


@dataclass(frozen=True)
class Default(Scaling):
    """No scaling."""


@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation (Chen et al., arXiv:2306.15595, eq. 4): every angle divided by the factor."""

    factor: float

    name = "linear"

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`."""
        return plain_inv_freq(self.theta, rotary_dim) / self.factor


def ntk_theta(theta: float, factor: float, rotary_dim: int) -> float:
    """The base that NTK-aware scaling sets: theta * factor^(R/(R-2)) (Peng et al., arXiv:2309.00071, eq. 16).

    The slowest pair is interpolated by exactly the factor, the fastest is left alone. Raises `ConfigError` for a
    single pair, which has no exponent.
    """
    if rotary_dim < 4:
        raise ConfigError(
            f"NTK-aware scaling needs two pairs at least; the rotary width is {rotary_dim}", key="head_dim"
        )
    return float(theta * factor ** (rotary_dim / (rotary_dim - 2)))


@dataclass(frozen=True)
class Dynamic(Scaling):
    """Dynamic NTK (arXiv:2309.00071, section 3.3): past the trained length the base grows with the length in play.

    Deviation from the paper, as transformers 5.24 computes it (modeling_rope_utils.py): the scale is
    factor * length / original - (factor - 1), not length / original.
    """

    factor: float
    original_length: int

    name = "dynamic"

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`; without ``length``, the frequencies up to the trained length."""
        tokens = max(length or 0, self.original_length)
        scale = self.factor * tokens / self.original_length - (self.factor - 1)
        return plain_inv_freq(ntk_theta(self.theta, scale, rotary_dim), rotary_dim)


def _yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    """0.1 * mscale * ln(factor) + 1 (arXiv:2309.00071, eq. 22)."""
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


@dataclass(frozen=True)
class Yarn(Scaling):
    """YaRN (arXiv:2309.00071, section 3.4, "NTK-by-parts" with attention temperature).

    A pair that turns more than ``beta_fast`` times within the original length keeps its frequency, one that turns
    less than ``beta_slow`` times is interpolated by the factor, and a linear ramp over the pair index joins them.
    Deviation from the paper, as all implementations have it: the ramp runs over the pair index, not over the number
    of turns (eq. 18); ``truncate`` widens its ends to whole pairs.
    """

    factor: float
    original_length: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    mscale: float | None = None
    mscale_all_dim: float | None = None
    explicit_attention_factor: float | None = None

    name = "yarn"

    def ramp(self, rotary_dim: int) -> tuple[float, float]:
        """The pair indices (low, high) between which the ramp runs."""

        def pair_that_turns(times: float) -> float:
            turns = self.original_length / (times * 2 * math.pi)
            return rotary_dim * math.log(turns) / (2 * math.log(self.theta))

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, rotary_dim - 1)

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`."""
        low, high = self.ramp(rotary_dim)
        width = (high - low) or 0.001
        interpolated = np.clip((np.arange(rotary_dim // 2) - low) / width, 0.0, 1.0)
        plain = plain_inv_freq(self.theta, rotary_dim)
        return np.asarray(plain * (1 - interpolated) + plain / self.factor * interpolated, dtype=np.float64)

    @property
    def attention_factor(self) -> float:
        """0.1 ln(factor) + 1 unless given; the quotient of two such terms with DeepSeek's mscale pair."""
        if self.explicit_attention_factor is not None:
            return self.explicit_attention_factor
        if self.mscale and self.mscale_all_dim:
            return _yarn_mscale(self.factor, self.mscale) / _yarn_mscale(self.factor, self.mscale_all_dim)
        return _yarn_mscale(self.factor)


@dataclass(frozen=True)
class LongRope(Scaling):
    """LongRoPE (Ding et al., arXiv:2402.13753, eq. 2, as released with Phi-3): one factor per pair.

    The short list serves up to the original length, the long list beyond it, for all positions at once.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_length: int
    factor: float
    explicit_attention_factor: float | None = None

    name = "longrope"

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`; raises `ConfigError` when a factor list has not R/2 entries."""
        factors = self.long_factor if length is not None and length > self.original_length else self.short_factor
        if len(factors) != rotary_dim // 2:
            raise ConfigError(
                f"longrope needs rotary/2 = {rotary_dim // 2} factors, this list has {len(factors)}", key="short_factor"
            )
        return plain_inv_freq(self.theta, rotary_dim) / np.asarray(factors, dtype=np.float64)

    @property
    def attention_factor(self) -> float:
        """sqrt(1 + ln(factor) / ln(original)) unless given (Phi-3's modeling code)."""
        if self.explicit_attention_factor is not None:
            return self.explicit_attention_factor
        return 1.0 if self.factor <= 1 else math.sqrt(1 + math.log(self.factor) / math.log(self.original_length))


@dataclass(frozen=True)
class Llama3(Scaling):
    """Llama 3.1's scaling (Meta's llama-models, `apply_scaling`): by wavelength, with a smooth band between.

    Wavelengths below original/high_freq_factor tokens are kept, above original/low_freq_factor divided by the
    factor. ``factor`` need not equal the ratio of the lengths.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    name = "llama3"

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`."""
        plain = plain_inv_freq(self.theta, rotary_dim)
        turns = self.original_length * plain / (2 * math.pi)
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = np.clip(kept, 0.0, 1.0)
        return np.asarray(plain * kept + plain / self.factor * (1 - kept), dtype=np.float64)


@dataclass(frozen=True)
class Proportional(Scaling):
    """Gemma 4's global layers (transformers 5.24, `_compute_proportional_rope_parameters`).

    The pairs run over the whole head, R = head_dim; only the first ``share`` of them turn, the others have frequency
    zero. The exponent runs over the whole head as well.
    """

    share: float
    factor: float = 1.0

    name = "proportional"

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`; here ``rotary_dim`` is head_dim."""
        plain = plain_inv_freq(self.theta, rotary_dim) / self.factor
        plain[int(self.share * rotary_dim // 2) :] = 0.0
        return plain


def _fault(key: str, reason: str, value: Any = None) -> ConfigError:
    return ConfigError(f"the rope block's {key} {reason}", key=key, value=value)


def _number(block: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = block.get(key)
    if value is None:
        if default is None:
            raise _fault(key, "is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _fault(key, f"must be a number, not {value!r}", value)
    if not math.isfinite(value) or value <= 0:
        raise _fault(key, f"must be a positive finite number, not {value!r}", value)
    return float(value)


def _optional(block: Mapping[str, Any], key: str) -> float | None:
    return None if block.get(key) is None else _number(block, key)


def _length(block: Mapping[str, Any], max_length: int | None) -> int:
    return int(_number(block, "original_max_position_embeddings", None if max_length is None else float(max_length)))


def _factors(block: Mapping[str, Any], key: str) -> tuple[float, ...]:
    values = block.get(key)
    if not isinstance(values, list) or not values:
        raise _fault(key, "must be a list of numbers")
    return tuple(_number({key: value}, key) for value in values)


def _turns(block: Mapping[str, Any], key: str, default: float) -> float:
    turns = _number(block, key, default)
    if turns > 1e6:
        raise _fault(key, f"is {turns:g} turns within the trained length; no pair turns so often", turns)
    return turns


def _yarn(block: Mapping[str, Any], theta: float, max_length: int | None) -> Scaling:
    original = _length(block, max_length)
    ratio = None if max_length is None else max_length / original
    return Yarn(
        theta=theta,
        factor=_number(block, "factor", ratio),
        original_length=original,
        beta_fast=_turns(block, "beta_fast", 32.0),
        beta_slow=_turns(block, "beta_slow", 1.0),
        truncate=block.get("truncate") is not False,
        mscale=_optional(block, "mscale"),
        mscale_all_dim=_optional(block, "mscale_all_dim"),
        explicit_attention_factor=_optional(block, "attention_factor"),
    )


def _longrope(block: Mapping[str, Any], theta: float, max_length: int | None) -> Scaling:
    original = _length(block, max_length)
    ratio = 1.0 if max_length is None else max_length / original
    return LongRope(
        theta=theta,
        short_factor=_factors(block, "short_factor"),
        long_factor=_factors(block, "long_factor"),
        original_length=original,
        factor=_number(block, "factor", ratio),
        explicit_attention_factor=_optional(block, "attention_factor"),
    )


def _dynamic(block: Mapping[str, Any], theta: float, max_length: int | None) -> Scaling:
    if max_length is None:
        raise _fault("max_position_embeddings", "is missing, and dynamic takes the trained length from it")
    return Dynamic(theta, _number(block, "factor"), max_length)


def _llama3(block: Mapping[str, Any], theta: float, max_length: int | None) -> Scaling:
    low, high = _number(block, "low_freq_factor"), _number(block, "high_freq_factor")
    if high <= low:
        raise _fault("high_freq_factor", f"is {high:g}; it must be above low_freq_factor, which is {low:g}", high)
    return Llama3(
        theta=theta,
        factor=_number(block, "factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_length=_length(block, max_length),
    )


def _default(block: Mapping[str, Any], theta: float, max_length: int | None) -> Scaling:
    return Default(theta)


def _linear(block: Mapping[str, Any], theta: float, max_length: int | None) -> Scaling:
    return Linear(theta, _number(block, "factor"))


def _proportional(block: Mapping[str, Any], theta: float, max_length: int | None) -> Scaling:
    return Proportional(theta, _number(block, "partial_rotary_factor", 1.0), _number(block, "factor", 1.0))


METHODS: Mapping[str, Callable[[Mapping[str, Any], float, int | None], Scaling]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
    "proportional": _proportional,
}
# Older spellings of the same methods: `su` was LongRoPE's name in the first Phi-3 configs, `mrope` is how Qwen2-VL
# spelled "default, with sections"; transformers reads both so.
SPELLINGS = {"su": "longrope", "mrope": "default"}


def scaling_from_block(block: Mapping[str, Any], theta: float, max_length: int | None) -> Scaling:
    """The method that a config's rope block describes.

    ``block`` holds the keys of transformers' ``rope_parameters`` (or ``rope_scaling``); ``max_length`` is
    ``max_position_embeddings`` in tokens. Raises `ConfigError` naming the key at fault.
    """
    name = block.get("rope_type") or block.get("type") or "default"
    method = METHODS.get(SPELLINGS.get(name, name)) if isinstance(name, str) else None
    if method is None:
        known = ", ".join(METHODS)
        raise _fault("rope_type", f"{name!r} is not a rope type that can be read; known are {known}", name)
    if theta <= 1:
        raise _fault("rope_theta", f"is {theta:g}; a base must be above 1, or no pair is slower than the next", theta)
    return method(block, theta, max_length)
