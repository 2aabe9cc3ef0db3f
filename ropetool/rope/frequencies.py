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

import numpy as np
import numpy.typing as npt

from ropetool.errors import ConfigError
from ropetool.rope.values import Block, agree, count, fault, flag, number, numbers, optional

Floats = npt.NDArray[np.float64]
ORIGINAL, MAX_LENGTH = "original_max_position_embeddings", "max_position_embeddings"
MSCALES = ("short_mscale", "long_mscale")
ABOVE_1 = "a base must be above 1, or no pair is slower than the next"


def plain_inv_freq(theta: float, rotary_dim: int) -> Floats:
    """theta^(-2i/R), shape [R/2]."""
    return np.asarray(theta ** (-np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim), dtype=np.float64)


@dataclass(frozen=True)
class Scaling:
    """Base of the methods. ``length`` is the number of tokens in play; only those that follow it look at it."""

    theta: float

    name = "default"
    follows_length = False

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """Angle per token of each pair in radians, shape [R/2]."""
        return plain_inv_freq(self.theta, rotary_dim)

    def attention_factor_at(self, length: int | None = None) -> float:
        """What cos and sin are multiplied by."""
        return 1.0

    @property
    def attention_factor(self) -> float:
        """What cos and sin are multiplied by up to the trained length; beyond it too, but for Phi-3.5-MoE."""
        return self.attention_factor_at()


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
    single pair, which has no exponent, and for a factor so small that the base is not above 1.
    """
    if rotary_dim < 4:
        raise ConfigError(
            f"NTK-aware scaling needs two pairs at least; the rotary width is {rotary_dim}", key="head_dim"
        )
    base = float(theta * factor ** (rotary_dim / (rotary_dim - 2)))
    if base <= 1:
        said = f"NTK-aware scaling by the factor {factor:g} makes {base:g} of the base {theta:g}; {ABOVE_1}"
        raise ConfigError(said, key="factor")
    return base


@dataclass(frozen=True)
class NtkAware(Scaling):
    """NTK-aware scaling (arXiv:2309.00071, section 3.1, eq. 16). No rope type has this name: its base is written."""

    factor: float

    name = "ntk"

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`; raises `ConfigError` for a single pair."""
        return plain_inv_freq(ntk_theta(self.theta, self.factor, rotary_dim), rotary_dim)


@dataclass(frozen=True)
class AdjustedBase(Scaling):
    """RoPE with an adjusted base frequency (Xiong et al., arXiv:2309.16039, section 4.1, "RoPE ABF").

    ``theta`` is the base that the model was first trained with, ``base`` the larger one that takes its place. As with
    NTK-aware scaling, no rope type has this name.
    """

    base: float

    name = "abf"

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`."""
        return plain_inv_freq(self.base, rotary_dim)


@dataclass(frozen=True)
class Dynamic(Scaling):
    """Dynamic NTK (arXiv:2309.00071, section 3.3): past the trained length the base grows with the length in play.

    Deviation from the paper, as transformers 5.24 computes it (modeling_rope_utils.py): the scale is
    factor * length / original - (factor - 1), not length / original.
    """

    factor: float
    original_length: int

    name = "dynamic"
    follows_length = True

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
        """The pair indices (low, high) between which the ramp runs.

        Raises `ConfigError` where the clamps to the head leave high below low: even the slowest pair turns more than
        ``beta_fast`` times, or even the fastest less than ``beta_slow`` times. transformers 5.24 runs the ramp
        backwards then, which interpolates the pairs that the paper keeps.
        """

        def pair_that_turns(times: float) -> float:
            turns = self.original_length / (times * 2 * math.pi)
            return rotary_dim * math.log(turns) / (2 * math.log(self.theta))

        low, high = pair_that_turns(self.beta_fast), pair_that_turns(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        if low > high:
            said = f"is {self.original_length} and the base {self.theta:g}: YaRN's ramp over {rotary_dim // 2} pairs "
            raise fault(ORIGINAL, f"{said}would run backwards, from {low:g} to {high:g}", self.original_length)
        return low, high

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`."""
        low, high = self.ramp(rotary_dim)
        width = (high - low) or 0.001
        interpolated = np.clip((np.arange(rotary_dim // 2) - low) / width, 0.0, 1.0)
        plain = plain_inv_freq(self.theta, rotary_dim)
        return np.asarray(plain * (1 - interpolated) + plain / self.factor * interpolated, dtype=np.float64)

    def attention_factor_at(self, length: int | None = None) -> float:
        """0.1 ln(factor) + 1 unless given; the quotient of two such terms with DeepSeek's mscale pair."""
        if self.explicit_attention_factor is not None:
            return self.explicit_attention_factor
        if self.mscale and self.mscale_all_dim:
            return _yarn_mscale(self.factor, self.mscale) / _yarn_mscale(self.factor, self.mscale_all_dim)
        return _yarn_mscale(self.factor)

    @property
    def softmax_factor(self) -> float:
        """What the softmax scale is multiplied by, in the classes with DeepSeek's latent attention only.

        (0.1 * mscale_all_dim * ln(factor) + 1)^2 where mscale_all_dim is given, whatever the attention factor
        (transformers 5.24, modeling_deepseek_v3.py, `yarn_apply_mscale`).
        """
        return _yarn_mscale(self.factor, self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0


@dataclass(frozen=True)
class LongRope(Scaling):
    """LongRoPE (Ding et al., arXiv:2402.13753, eq. 2, as released with Phi-3): one factor per pair.

    The short list serves up to the original length, the long list beyond it, for all positions at once. Phi-3.5-MoE
    gives cos and sin a factor of their own with each list, ``short_mscale`` and ``long_mscale``.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_length: int
    factor: float
    explicit_attention_factor: float | None = None
    short_mscale: float | None = None
    long_mscale: float | None = None

    name = "longrope"
    follows_length = True

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`; raises `ConfigError` when a factor list has not R/2 entries."""
        for key, factors in (("short_factor", self.short_factor), ("long_factor", self.long_factor)):
            if len(factors) != rotary_dim // 2:
                raise ConfigError(
                    f"longrope needs rotary/2 = {rotary_dim // 2} factors, {key} has {len(factors)}", key=key
                )
        factors = self.long_factor if self._beyond(length) else self.short_factor
        return plain_inv_freq(self.theta, rotary_dim) / np.asarray(factors, dtype=np.float64)

    def _beyond(self, length: int | None) -> bool:
        return length is not None and length > self.original_length

    def attention_factor_at(self, length: int | None = None) -> float:
        """sqrt(1 + ln(factor) / ln(original)) unless given (Phi-3's modeling code), or given with each list."""
        given = self.long_mscale if self._beyond(length) else self.short_mscale
        given = self.explicit_attention_factor if given is None else given
        if given is not None:
            return given
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


def _factor(block: Block, default: float | None = None) -> float:
    """The factor; one below 1 would shorten the context (transformers 5.24 warns, and computes)."""
    return number(block, "factor", default, least=1.0)


def _ratio(max_length: int | None, original: int) -> float | None:
    """The factor where the block has none (transformers 5.24, modeling_rope_utils.py, "NOTE: DeepSeek-V3")."""
    return None if max_length is None else max_length / original


def _default(block: Block, theta: float, max_length: int | None) -> Scaling:
    return Default(theta)


def _linear(block: Block, theta: float, max_length: int | None) -> Scaling:
    return Linear(theta, _factor(block))


def _dynamic(block: Block, theta: float, max_length: int | None) -> Scaling:
    if max_length is None:
        raise fault(MAX_LENGTH, "is missing, and dynamic takes the trained length from it")
    return Dynamic(theta, _factor(block), count({MAX_LENGTH: max_length}, MAX_LENGTH))


def _yarn(block: Block, theta: float, max_length: int | None) -> Scaling:
    original = count(block, ORIGINAL, max_length)
    ratio = _ratio(max_length, original)
    if block.get("factor") is None and ratio is not None and ratio < 1:
        raise fault(ORIGINAL, f"is {original}, above {MAX_LENGTH}, which is {max_length}; write the factor", original)
    fast, slow = (number(block, key, at, least=1e-6, most=1e6) for key, at in (("beta_fast", 32.0), ("beta_slow", 1.0)))
    if fast < slow:
        raise fault("beta_fast", f"is {fast:g}, below beta_slow, which is {slow:g}: the ramp would run backwards", fast)
    return Yarn(
        theta=theta,
        factor=_factor(block, ratio),
        original_length=original,
        beta_fast=fast,
        beta_slow=slow,
        truncate=flag(block, "truncate", True),
        # DeepSeek's own code spells "no mscale_all_dim" as 0, and transformers takes 0 for absent.
        mscale=number(block, "mscale", 0.0, least=0.0) or None,
        mscale_all_dim=number(block, "mscale_all_dim", 0.0, least=0.0) or None,
        explicit_attention_factor=optional(block, "attention_factor"),
    )


def _longrope(block: Block, theta: float, max_length: int | None) -> Scaling:
    original = count(block, ORIGINAL, max_length, least=2)  # the attention factor divides by its logarithm
    for key in MSCALES:
        agree(block, "attention_factor", key)
    mscales = [number(block, key) for key in MSCALES if any(block.get(key) is not None for key in MSCALES)]
    short, long = numbers(block, "short_factor"), numbers(block, "long_factor")
    # The ratio may be below 1, where a user lowered max_position_embeddings: that makes the attention factor 1.
    factor = _factor(block, _ratio(max_length, original))
    return LongRope(theta, short, long, original, factor, optional(block, "attention_factor"), *mscales)


def _llama3(block: Block, theta: float, max_length: int | None) -> Scaling:
    low, high = number(block, "low_freq_factor"), number(block, "high_freq_factor")
    if high <= low:
        raise fault("high_freq_factor", f"is {high:g}; it must be above low_freq_factor, which is {low:g}", high)
    return Llama3(theta, _factor(block), low, high, count(block, ORIGINAL, max_length))


def _proportional(block: Block, theta: float, max_length: int | None) -> Scaling:
    return Proportional(theta, number(block, "partial_rotary_factor", 1.0, most=1.0), _factor(block, 1.0))


METHODS: Mapping[str, Callable[[Block, float, int | None], Scaling]] = {
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


def scaling_from_block(block: Block, theta: float, max_length: int | None) -> Scaling:
    """The method that a config's rope block describes.

    ``block`` holds the keys of transformers' ``rope_parameters`` (or ``rope_scaling``); ``max_length`` is
    ``max_position_embeddings`` in tokens. Raises `ConfigError` naming the key at fault.
    """
    agree(block, "rope_type", "type")
    name = next((block[key] for key in ("rope_type", "type") if block.get(key) is not None), "default")
    name = SPELLINGS.get(name, name) if isinstance(name, str) else name
    if not isinstance(name, str) or name not in METHODS:
        raise fault("rope_type", f"{name!r} is not a rope type that can be read; known are {', '.join(METHODS)}", name)
    for key in MSCALES:
        if block.get(key) is not None and name not in ("default", "longrope"):
            raise fault(key, f"is read beside longrope only, not beside {name}", block[key])
    if number({"rope_theta": theta}, "rope_theta") <= 1:
        raise fault("rope_theta", f"is {theta:g}; {ABOVE_1}", theta)
    return METHODS[name](block, theta, max_length)
