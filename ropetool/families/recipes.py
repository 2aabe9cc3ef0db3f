"""What each extension method writes into a rope block, one row per method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.errors import MethodError, UsageError
from ropetool.families.methods import Method
from ropetool.families.native import Native
from ropetool.families.reading import Reading, Rotation, Warn
from ropetool.rope.frequencies import LongRope, Proportional, Yarn, ntk_theta

ORIGINAL = "original_max_position_embeddings"
YARN_SETTINGS = ("beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim", "attention_factor")
LONGROPE_SETTINGS = ("short_factor", "long_factor", "attention_factor", "short_mscale", "long_mscale")
# Factor lists that were searched for one factor say nothing about another.
OF_ONE_FACTOR = ("short_factor", "long_factor")
# What belongs to a scaling method; every other key of a block (mRoPE sections, for one) survives an extension.
SCALING_KEYS = {
    *("rope_type", "rope_theta", "factor", ORIGINAL, "low_freq_factor", "high_freq_factor", "alpha"),
    *YARN_SETTINGS,
    *LONGROPE_SETTINGS,
}
BASE = "base"
# Llama 4's growth of q with the position, which some classes compute from the trained length in the block, whatever
# its type (transformers 5.24, modeling_ministral3.py, `get_llama_4_attn_scale`).
TEMPERATURE = "llama_4_scaling_beta"


def _same_base(theta: float, factor: float, rotary_dim: int, base: float | None) -> float:
    return theta


def _ntk_base(theta: float, factor: float, rotary_dim: int, base: float | None) -> float:
    return ntk_theta(theta, factor, rotary_dim)


def _given_base(theta: float, factor: float, rotary_dim: int, base: float | None) -> float:
    if base is None:
        raise UsageError(f"abf sets the base that you give: add --base (it is {theta:g} now)", theta=theta)
    if base <= theta:
        raise UsageError(
            f"--base {base:g} is not above {theta:g}, the base of now; a longer context needs a larger one"
        )
    return base


@dataclass(frozen=True)
class Recipe:
    """One method: the ``rope_type`` that a config has for it, and what goes into its block.

    ``settings`` are keys of the block that a person may set, ``defaults`` their values where they are needed;
    ``holds_original``: the block tells the trained length, ``tells_original_twice``: the top level does too, where
    some readers look for it; ``raises_length``: max_position_embeddings grows (dynamic takes the trained length from
    it); ``own_factor``: the factor need not be the ratio of the lengths, ``reaches_by_factor``: as a setting it may lie
    above that, but not below; ``base`` gives the base.
    """

    rope_type: str
    settings: tuple[str, ...] = ()
    defaults: Mapping[str, float] = field(default_factory=dict)
    holds_original: bool = False
    tells_original_twice: bool = False
    raises_length: bool = True
    own_factor: bool = False
    reaches_by_factor: bool = False
    base: Callable[[float, float, int, float | None], float] = _same_base

    @property
    def is_scaled(self) -> bool:
        """Whether the block holds a factor."""
        return self.rope_type != "default"


RECIPES: Mapping[Method, Recipe] = {
    Method.YARN: Recipe("yarn", YARN_SETTINGS, holds_original=True, reaches_by_factor=True),
    Method.LINEAR: Recipe("linear"),
    Method.NTK: Recipe("default", base=_ntk_base),
    Method.DYNAMIC: Recipe("dynamic", raises_length=False),
    Method.LONGROPE: Recipe(
        "longrope", LONGROPE_SETTINGS, holds_original=True, tells_original_twice=True, own_factor=True
    ),
    Method.LLAMA3: Recipe(
        "llama3",
        ("low_freq_factor", "high_freq_factor"),
        {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        holds_original=True,
        tells_original_twice=True,
        own_factor=True,
    ),
    Method.ABF: Recipe("default", (BASE,), base=_given_base),
}
# What a block of Gemma 4's kind can take: its pairs run over the whole head, and keep doing so.
OF_PROPORTIONAL = (Method.LINEAR, Method.ABF)


def check_settings(method: Method, settings: Mapping[str, Any]) -> None:
    """Raise `UsageError` for a setting that belongs to another method."""
    for key in settings:
        if key not in RECIPES[method].settings:
            takers = " or ".join(m.value for m, recipe in RECIPES.items() if key in recipe.settings)
            raise UsageError(f"{key} is a setting of {takers}, not of {method.value}", key=key, method=method.value)


def new_length(
    native: Native, to: int | None, factor: float | None, recipe: Recipe, longest: int, own: float | None = None
) -> tuple[float, int]:
    """The exact factor, and the length in tokens: the smallest factor that reaches ``to``, or what ``factor`` gives.

    A method with an ``own_factor`` takes both; ``own`` is a factor that was set beside the length. Raises `UsageError`
    for a length that is not longer, and for a factor that does not reach it, where it must.
    """
    if (to is None and factor is None) or (to is not None and factor is not None and not recipe.own_factor):
        raise UsageError("give the new length by --to, or the factor by --factor, one of them")
    if factor is not None and not 1 <= factor < float("inf"):
        raise UsageError(f"--factor {factor:g} would shrink the context; it must be at least 1", factor=factor)
    ratio = (to or 0) / native.length if factor is None else factor
    to = int(min(native.length * ratio, 2 * longest)) if to is None else to
    if to > longest:
        raise UsageError(f"a context of more than {longest:,} tokens is not to be had; give a smaller length")
    if to < native.reaches or to <= native.length:
        raise UsageError(
            f"the new length of {to} tokens must be above the trained {native.length}, and not below the current "
            f"{native.reaches}",
            to=to,
            original_length=native.length,
            length=native.reaches,
        )
    return _set_factor(recipe, ratio if own is None else own, native.length, to, is_set=own is not None), to


def _set_factor(recipe: Recipe, factor: float, trained: int, length: int, *, is_set: bool) -> float:
    """A factor that was set beside the length; raises `UsageError` where the method has none, or it does not reach."""
    if is_set and not (recipe.own_factor or recipe.reaches_by_factor):
        raise UsageError(f"the factor of {recipe.rope_type} is the ratio of the lengths, and cannot be set beside it")
    if is_set and recipe.reaches_by_factor and factor * trained < length:
        raise UsageError(
            f"a factor of {factor:g} over {trained} tokens reaches {factor * trained:g}, not {length}; it must be "
            f"{length / trained:g} or more",
            factor=factor,
            to=length,
        )
    return factor


@dataclass(frozen=True)
class Planned:
    """A rope block with its ``rope_theta``, and what had to be dropped from the old one."""

    values: Mapping[str, Any]
    theta: float
    warnings: tuple[Warn, ...]


def settings_of_class(reading: Reading, method: Method) -> Mapping[str, Any]:
    """Settings that the class adds to a flat block by itself, and that a nested one must hold."""
    kinds = reading.family.kinds
    return kinds[0].added_to_flat_yarn if kinds and method is Method.YARN else {}


def planned_block(
    method: Method, rotation: Rotation, native: Native, factor: float, settings: Mapping[str, Any]
) -> Planned:
    """The block that ``method`` writes for ``rotation``, by ``factor`` over the native length.

    Raises `MethodError` for what the old block cannot become, `UsageError` for a setting that is missing.
    """
    recipe, old = RECIPES[method], rotation.block.values
    theta = recipe.base(native.theta, factor, rotation.geometry.rotary_dim, settings.get(BASE))
    block: dict[str, Any] = {"rope_type": _rope_type(method, rotation)}
    if recipe.is_scaled:
        block["factor"] = factor
    if recipe.holds_original:
        block[ORIGINAL] = native.length
    kept, warnings = _kept(method, old, native, factor, settings)
    given = {key: value for key, value in settings.items() if key != BASE}
    block |= {**recipe.defaults, **kept, **given}
    if block.get("truncate") is False and rotation.layers != ALL_LAYERS:
        raise MethodError(
            f"truncate false in the block of {rotation.layers} layers would be ignored: transformers 5 looks for it "
            f"beside the blocks of the kinds of layers (modeling_rope_utils.py); leave it out",
            method=method.value,
        )
    if method is Method.LONGROPE:
        _check_lists(block, rotation.geometry.rotary_dim)
    block |= {key: value for key, value in old.items() if key not in SCALING_KEYS}
    if TEMPERATURE in old and ORIGINAL in old:
        block.setdefault(ORIGINAL, old[ORIGINAL])
    return Planned(block, theta, warnings)


def _rope_type(method: Method, rotation: Rotation) -> str:
    if not isinstance(rotation.scaling, Proportional):
        return RECIPES[method].rope_type
    if method not in OF_PROPORTIONAL:
        can = " and ".join(m.value for m in OF_PROPORTIONAL)
        raise MethodError(
            f"the block of {rotation.layers} layers is proportional (pairs over the whole head, of which the first "
            f"turn); {method.value} in its place would turn other rows by other frequencies. It can take {can}",
            method=method.value,
            existing="proportional",
        )
    return Proportional.name


def _kept(
    method: Method, old: Mapping[str, Any], native: Native, factor: float, settings: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[Warn, ...]]:
    """The settings of an old block of the same method, as far as they hold for another factor."""
    if native.method != method.value:
        return {}, ()
    kept = {key: old[key] for key in RECIPES[method].settings if key in old}
    before = old.get("factor")
    if before == factor or (before is None and native.factor == factor):
        return kept, ()
    lists = [key for key in OF_ONE_FACTOR if key in kept and key not in settings]
    if lists:
        raise MethodError(
            f"the lists of this longrope block were found for factor {native.factor:g}, and say nothing about "
            f"{factor:g}; give those for the new length by --factors FILE",
            method=method.value,
            factor=native.factor,
        )
    if "attention_factor" not in kept or "attention_factor" in settings:
        return kept, ()
    message = (
        f"attention_factor {kept.pop('attention_factor'):g} was set for factor {native.factor:g}; it was dropped, and "
        f"is computed from the new factor"
    )
    return kept, (Warn("attention-factor-dropped", message),)


def _check_lists(block: Mapping[str, Any], rotary_dim: int) -> None:
    for key in OF_ONE_FACTOR:
        if key not in block:
            raise UsageError("longrope has a factor for every pair, twice: give the lists by --factors FILE")
        if len(block[key]) != rotary_dim // 2:
            raise UsageError(
                f"{key} has {len(block[key])} factors; this model turns {rotary_dim} rows of a head, so it needs "
                f"{rotary_dim // 2}, one for each pair",
                key=key,
                expected=rotary_dim // 2,
            )


def derived_attention_factor(scaling: Yarn | LongRope) -> float:
    """The attention factor that the method computes where none is given."""
    return type(scaling)(**{**vars(scaling), "explicit_attention_factor": None}).attention_factor
