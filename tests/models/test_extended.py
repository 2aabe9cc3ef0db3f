"""Every class of the family table computes what an extension wrote: its live frequencies and attention scaling.

The config is written by `extend`, loaded by transformers, and the model's own rotary tables are measured where its
attention gets them (`live`). What a row refuses, its class must really not compute.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropetool import extend
from ropetool.checkpoint.config import BLOCKS, Style
from ropetool.checkpoint.folder import read_config
from ropetool.errors import MethodError
from ropetool.families.methods import EXTENDING, Method, Weights
from ropetool.families.reading import Rotation, read_model
from ropetool.families.recipes import OF_PROPORTIONAL
from ropetool.families.table import TABLE
from ropetool.models import tiny
from ropetool.models.catalog import default_config, known
from ropetool.rope import frequencies
from ropetool.rope.frequencies import Proportional, Scaling
from tests.models import live
from tests.tiny import edit_json, read_json

pytestmark = pytest.mark.oldest

VERSION_4 = version("transformers").startswith("4.")
STYLES = (Style.V4, Style.DUAL) if VERSION_4 else tuple(Style)
LENGTHENING = EXTENDING
TYPES = tuple(model_type for model_type in sorted(TABLE) if known(model_type))
# The trained length, and how many tokens stay under it or go beyond it.
TRAINED, FACTOR, SHORT, LONG = 32, 4.0, 5, 33
THETA, LOCAL_THETA, BASE = 25000.0, 7000.0, 3e6
TOLERANCE = 2e-6
# DeepSeek V4's own YaRN leaves cos and sin as they are.
YARN_FACTORS = {"deepseek_v4": 1.0}
# Types whose tiny model `tiny` cannot build in transformers 4, with the values that they need there.
OWN_VALUES: dict[str, dict[str, Any]] = {
    "apertus": {},
    "dbrx": {"ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2}},
    "glm4v_moe_text": {
        "rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]},
        "rope_parameters": {"partial_rotary_factor": 0.5},
    },
    "glm4v_text": {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "phi4_multimodal": {"vision_config": {}, "audio_config": {}},
    "qwen2_5_vl_text": {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}},
    "qwen2_vl_text": {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}},
    "qwen3_vl_moe_text": {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}},
    "qwen3_vl_text": {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"]},
} if VERSION_4 else {}  # fmt: skip


# --- the source, and what is asked for ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Callable[[str], Path]:
    """The directory of a tiny config of a type, by name; no base and no length in it is the class's own."""

    @cache
    def made(model_type: str) -> Path:
        directory = tmp_path_factory.mktemp("source") / model_type
        _tiny_config(model_type).save_pretrained(directory)
        changes = _other_numbers(read_json(directory / "config.json"), model_type)
        edit_json(directory / "config.json", **{"model_type": model_type, **changes})
        return directory

    return made


def _tiny_config(model_type: str) -> Any:
    """A tiny config with a layer of every kind."""
    if model_type in OWN_VALUES:
        return tiny.tiny_config(model_type, tiny.tiny_values(model_type) | OWN_VALUES[model_type])
    kinds = [kind.layer_type for kind in TABLE[model_type].kinds]
    types = set(getattr(default_config(model_type), "layer_types", None) or ())
    one_kind_alone = len(kinds) > 1 and types & set(kinds) == {kinds[0]}
    return tiny.build(model_type, **({"layer_types": kinds} if one_kind_alone else {})).config


def _other_numbers(config: Mapping[str, Any], model_type: str) -> dict[str, Any]:
    """Changes of a config: the trained length, and bases that are no class's default."""
    row = TABLE[model_type]
    shared = len({kind.theta_key for kind in row.kinds if kind.theta_key}) == 1  # one key for the base of all
    local = {kind.layer_type: THETA if shared else LOCAL_THETA for kind in row.kinds[1:]}
    changes: dict[str, Any] = {row.keys.length: TRAINED}
    if config.get("sliding_window"):  # no layer is too short-sighted to be extended
        changes["sliding_window"] = 1024
    for where in BLOCKS:
        block = config.get(where) or {}
        if any(isinstance(value, dict) for value in block.values()):
            changes[where] = {key: b and {**b, "rope_theta": local.get(key, THETA)} for key, b in block.items()}
        elif "rope_theta" in block:
            changes[where] = {**block, "rope_theta": THETA}
    if row.theta_list in config:
        changes[row.theta_list] = [theta and THETA for theta in config[row.theta_list]]
    bases = {kind.theta_key: local.get(kind.layer_type, THETA) for kind in row.kinds}
    bases = bases or dict.fromkeys(row.theta_keys, THETA)
    return changes | {key: theta for key, theta in bases.items() if key in config}


def extension_of(source: Path, destination: Path, method: Method, style: Style) -> extend.Extension:
    """The planned extension of a config alone."""
    pairs = read_model(read_config(source)).geometry.rotary_dim // 2
    settings = {
        Method.ABF: {"base": BASE},
        Method.LONGROPE: {"short_factor": list(short(pairs)), "long_factor": list(long(pairs))},
    }
    return extend.plan(
        source, destination, method, factor=FACTOR, original=TRAINED, settings=settings.get(method, {}), style=style,
        weights=Weights.NONE, replace_existing=True,
    )  # fmt: skip


def short(pairs: int) -> tuple[float, ...]:
    return tuple(1.0 + 0.01 * pair for pair in range(pairs))


def long(pairs: int) -> tuple[float, ...]:
    return tuple(1.0 + pair for pair in range(pairs))


def scaled(rotation: Rotation, method: Method, given: float | None = None) -> Scaling:
    """What the extended layers should compute, put together without the recipes of `extend`."""
    old, pairs = rotation.scaling, rotation.geometry.rotary_dim // 2
    theta = old.theta
    if isinstance(old, Proportional):
        return replace(old, factor=FACTOR) if method is Method.LINEAR else replace(old, theta=BASE)
    if method is Method.YARN and isinstance(old, frequencies.Yarn):  # its ramp is kept
        return replace(old, factor=FACTOR, original_length=TRAINED, explicit_attention_factor=None)
    if method is Method.LLAMA3 and isinstance(old, frequencies.Llama3):
        return replace(old, factor=FACTOR, original_length=TRAINED)
    return {
        Method.YARN: lambda: frequencies.Yarn(theta, FACTOR, TRAINED, explicit_attention_factor=given),
        Method.LINEAR: lambda: frequencies.Linear(theta, FACTOR),
        Method.NTK: lambda: frequencies.NtkAware(theta, FACTOR),
        Method.DYNAMIC: lambda: frequencies.Dynamic(theta, FACTOR, TRAINED),
        Method.LONGROPE: lambda: frequencies.LongRope(theta, short(pairs), long(pairs), TRAINED, FACTOR),
        Method.LLAMA3: lambda: frequencies.Llama3(theta, FACTOR, 1.0, 4.0, TRAINED),
        Method.ABF: lambda: frequencies.AdjustedBase(theta, BASE),
    }[method]()


Wanted = Mapping[str, tuple[Scaling, int]]


def wanted(source: Path, method: Method | None) -> Wanted:
    """Scaling and rotary width of each kind of layer, by its name: the first one extended, the others as they were."""
    first, *others = read_model(read_config(source)).rotations
    after = first.scaling if method is None else scaled(first, method, YARN_FACTORS.get(source.name))
    return {
        first.layers: (after, first.geometry.rotary_dim),
        **{rotation.layers: (rotation.scaling, rotation.geometry.rotary_dim) for rotation in others},
    }


# --- the comparison -------------------------------------------------------------------------------------------------


def mismatches(model: Any, expected: Wanted, tokens: int) -> list[str]:
    """Where ``model`` turns otherwise than expected, in words; empty where it turns so, everywhere.

    A layer whose kind has a name among those expected must turn by that; where the class names its blocks by something
    else than its kinds of layers, every table must be one of those expected, and each of those must be seen.
    """
    found = live.turnings(model, tokens)
    told = getattr(model.config, "layer_types", None)  # ModernBERT of transformers 4.57 has none: all would be one kind
    named = told is not None and bool({turning.kind for turning in found} & expected.keys())
    faults, seen = [], set()
    for turning in found:
        known = turning.kind in expected and (named or len(expected) == 1)
        names = [turning.kind] if known else ([] if named else list(expected))
        errors = {name: _distance(turning, *expected[name], tokens) for name in names}
        seen |= {name for name, error in errors.items() if error <= TOLERANCE}
        if errors and min(errors.values()) > TOLERANCE:
            faults.append(f"{turning.module} ({turning.kind}) is off by {min(errors.values()):.2g}")
    unseen = expected.keys() - seen
    return faults or [f"no layer turns as {name} layers should" for name in sorted(unseen)]


def _distance(turning: live.Turning, scaling: Scaling, rotary_dim: int, tokens: int) -> float:
    """The largest relative difference in a frequency or in the attention scaling."""
    inv_freq = scaling.inv_freq(rotary_dim, tokens)
    measured = live.by_pair(turning.inv_freq, len(inv_freq))
    if measured is None:
        return float("inf")
    off = np.abs(measured - inv_freq) / np.where(inv_freq == 0, 1.0, inv_freq)
    return float(max(off.max(), abs(turning.factor / scaling.attention_factor_at(tokens) - 1)))


def lengths_of(method: Method) -> tuple[int, ...]:
    """How many tokens to run: below and beyond the trained length where a method looks at that."""
    return (SHORT, LONG) if method in (Method.DYNAMIC, Method.LONGROPE) else (SHORT,)


@cache
def model_of_source(directory: Path) -> Any:
    return live.model_of(live.load_config(directory))


def compare(directory: Path, source: Path, method: Method) -> list[str]:
    """Load the config in ``directory`` and compare; a class that refuses it, or does not run, says so in words."""
    try:
        model = live.model_of(live.load_config(directory))
        if live.shapes(model) != live.shapes(model_of_source(source)):
            return ["its tensors have other shapes than those of the source"]
        return [fault for tokens in lengths_of(method) for fault in mismatches(model, wanted(source, method), tokens)]
    except Exception as error:  # noqa: BLE001 - config and modeling code of any type
        return [f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"]


# --- what a style can say -------------------------------------------------------------------------------------------

# Types with a block for each kind of layer: without keys of version 4, or with keys by which rope_scaling scales all.
NO_FLAT_KEYS = {
    "beam", "cohere_compass_text", "diffusion_gemma_text", "dory", "embedding_gemma2_text", "gemma4_text",
    "gemma4_unified_text", "laguna", "lfm3", "mellum", "mimo_v2_flash", "neomme", "step3p5", "ultrabert", "zaya",
}  # fmt: skip
FLAT_BASES_ALONE = {"dots3_note_text", "modernbert", "modernbert-decoder"}
BASES = (Method.NTK, Method.ABF)
# Codes of warnings that transformers 4 will not compute what was planned.
UNREAD_IN_4 = {"v5-only", "not-in-version-4"}


def says(style: Style, model_type: str, method: Method) -> bool:
    """Whether a style can say an extension so that the class reads it."""
    if style is Style.V4:
        if model_type in FLAT_BASES_ALONE or (model_type == "cohere2_moe" and not VERSION_4):
            return method in BASES
        # Olmo 3 has one key for the base of both kinds, which transformers 5 gives to the first alone.
        return model_type not in NO_FLAT_KEYS | {"olmo3"}
    return style is Style.DUAL or model_type != "esm"


# --- the table ------------------------------------------------------------------------------------------------------


def methods_of(model_type: str) -> tuple[Method, ...]:
    """The methods that the row of a type takes."""
    row = TABLE[model_type]
    if row.methods is None:
        return LENGTHENING if row.theta_keys or row.kinds else ()
    return tuple(method for method in LENGTHENING if method.value in row.methods)


PAIRS = [(model_type, method) for model_type in TYPES for method in LENGTHENING]
TAKEN = [(model_type, method) for model_type, method in PAIRS if method in methods_of(model_type)]
REFUSED = [pair for pair in PAIRS if pair not in TAKEN]


def written(source: Path, into: Path, method: Method) -> dict[Style, extend.Extended | MethodError]:
    """The extension in every style that the installed transformers reads, or why a style cannot say it."""
    made: dict[Style, extend.Extended | MethodError] = {}
    for style in STYLES:
        try:
            made[style] = extend.apply(extension_of(source, into / style.value, method, style))
        except MethodError as error:
            made[style] = error
    return made


@pytest.mark.parametrize(("model_type", "method"), TAKEN, ids=lambda value: getattr(value, "value", value))
def test_the_class_computes_what_was_planned(model_type, method, source, tmp_path) -> None:
    """In every style; in transformers 4, a warning must say where it is not so."""
    first = read_model(read_config(source(model_type))).rotations[0].scaling
    made, seen = written(source(model_type), tmp_path, method), dict[str, list[str]]()
    if isinstance(first, Proportional) and method not in OF_PROPORTIONAL:
        assert all("is proportional" in str(refusal) for refusal in made.values())
        return
    assert {style for style, result in made.items() if isinstance(result, extend.Extended)} == {
        style for style in STYLES if says(style, model_type, method)
    }, made
    for result in made.values():
        if isinstance(result, MethodError):
            continue
        loaded = signature(Path(result.output))
        found = seen[loaded] if loaded in seen else compare(Path(result.output), source(model_type), method)
        seen[loaded] = found
        warned = VERSION_4 and UNREAD_IN_4 & {warning.code for warning in result.warnings}
        assert bool(found) is bool(warned), (result.output, found, warned)
    assert seen


def signature(directory: Path) -> str:
    """What the class of a config makes of it; a name of its own for one that it refuses."""
    try:
        return live.signature(live.load_config(directory))
    except Exception:  # noqa: BLE001 - a config class raises what it likes
        return str(directory)


@pytest.mark.parametrize(("model_type", "method"), REFUSED, ids=lambda value: getattr(value, "value", value))
def test_the_class_does_not_compute_what_its_row_refuses(model_type, method, source, tmp_path, monkeypatch) -> None:
    row = TABLE[model_type]
    with pytest.raises(MethodError, match=f"{method.value} cannot be had for {model_type}"):
        extension_of(source(model_type), tmp_path / "out", method, Style.DUAL)
    willing = replace(row, methods=None, theta_keys=row.theta_keys or ("rope_theta",), blocks=BLOCKS)
    monkeypatch.setitem(TABLE, model_type, willing)
    if model_type == "blt":  # its blocks are in four sections, and none of them would be read back
        with pytest.raises(MethodError, match="would not turn as planned"):
            extension_of(source(model_type), tmp_path / "out", method, Style.DUAL)
        return
    extend.apply(extension_of(source(model_type), tmp_path / "out", method, Style.DUAL))
    assert compare(tmp_path / "out", source(model_type), method)


# --- the comparison can fail ----------------------------------------------------------------------------------------


def flat(config: dict[str, Any]) -> None:
    """The block of the full-attention layers, where a flat one would be."""
    config["rope_parameters"] = config["rope_parameters"]["full_attention"]
    for key in ("rope_scaling", "rope_theta", "rope_local_base_freq"):
        del config[key]


def without_base(config: dict[str, Any]) -> None:
    """No base anywhere, so the class's own."""
    del config["rope_theta"], config["rope_parameters"]


def twice(config: dict[str, Any]) -> None:
    """The factor taken for one over a length that has it already."""
    for where in BLOCKS:
        config[where]["factor"] *= FACTOR


def raised_first(config: dict[str, Any]) -> None:
    """The trained length taken from max_position_embeddings after that was raised."""
    for where in BLOCKS:
        config[where]["original_max_position_embeddings"] = config["max_position_embeddings"]


def other_temperature(config: dict[str, Any]) -> None:
    """The right frequencies, and another attention scaling."""
    for where in BLOCKS:
        config[where]["attention_factor"] = 1.0


def local_too(config: dict[str, Any]) -> None:
    """The sliding layers scaled as well."""
    config["rope_parameters"]["sliding_attention"] = {
        **config["rope_parameters"]["full_attention"], "rope_theta": LOCAL_THETA
    }  # fmt: skip


def local_base_too(config: dict[str, Any]) -> None:
    """Another base for the sliding layers, as if the extension were of all."""
    config["rope_local_base_freq"] *= FACTOR
    del config["rope_parameters"]


PLANTED = [
    ("gemma3_text", flat), ("llama", without_base), ("llama", twice), ("llama", raised_first),
    ("llama", other_temperature), ("gemma3_text", local_base_too),
    *([] if VERSION_4 else [("gemma3_text", local_too)]),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "fault"), PLANTED, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_fault_fails(model_type, fault, source, tmp_path) -> None:
    extend.apply(extension_of(source(model_type), tmp_path / "out", Method.YARN, Style.DUAL))
    assert not compare(tmp_path / "out", source(model_type), Method.YARN)
    config = read_json(tmp_path / "out" / "config.json")
    fault(config)
    (tmp_path / "out" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = compare(tmp_path / "out", source(model_type), Method.YARN)
    assert found
    assert all("is off by" in words for words in found)


def test_a_source_is_not_what_any_method_makes_of_it(source) -> None:
    """The planned numbers are far from those of before, so that a config without effect cannot pass."""
    for method in LENGTHENING:
        assert compare(source("llama"), source("llama"), method)


def test_the_measure_sees_a_table_that_the_attention_does_not_get(source, monkeypatch) -> None:
    """The frequencies in a buffer are not asked: what counts is cos and sin, as they arrive."""
    model = live.model_of(live.load_config(source("llama")))
    expected = wanted(source("llama"), None)
    assert not mismatches(model, expected, SHORT)
    rotary, tables = model.model.rotary_emb, type(model.model.rotary_emb).forward
    monkeypatch.setattr(rotary, "forward", lambda *args, **kw: tuple(t * 1.01 for t in tables(rotary, *args, **kw)))
    assert mismatches(model, expected, SHORT)


@pytest.mark.parametrize("model_type", sorted({model_type for model_type, _ in TAKEN} - {"esm"}) if VERSION_4 else ())
def test_version_4_does_not_read_the_keys_of_version_5(model_type, source, tmp_path) -> None:
    method = methods_of(model_type)[0]
    extend.apply(extension_of(source(model_type), tmp_path / "out", method, Style.V5))
    assert compare(tmp_path / "out", source(model_type), method)
