"""Extending: the numbers, the keys, what follows, and whether the stock class really computes with it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ropetool import convert, extend
from ropetool.checkpoint.config import Style
from ropetool.checkpoint.folder import has_guard, read_config
from ropetool.errors import ConfigConflictError, ConfigError, MethodError, OutputExistsError, ShapeError, UsageError
from ropetool.families.methods import EXTENDING, Method, Weights
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import TINY, digest, edit_json, read_json, snapshot

YARN, LINEAR, NTK, DYNAMIC = Method.YARN, Method.LINEAR, Method.NTK, Method.DYNAMIC
LONGROPE, LLAMA3, ABF, NONE = Method.LONGROPE, Method.LLAMA3, Method.ABF, Method.NONE
LENGTHENING = EXTENDING
LLAMA = {"model_type": "llama", "num_attention_heads": 8, "head_dim": 16, "hidden_size": 96,
         "max_position_embeddings": 64, "rope_theta": 10000.0}  # fmt: skip


def folder(where: Path, **config: Any) -> Path:
    """A checkpoint of a config alone."""
    where.mkdir()
    (where / "config.json").write_text(json.dumps({**LLAMA, **config}), encoding="utf-8")
    return where


def plan_for(source: Path, destination: Path, method: Method = YARN, **options: Any) -> extend.Extension:
    return extend.plan(source, destination, method, **{"settings": tiny.needed(source, method), **options})


def planned(source: Path, method: Method = YARN, **options: Any) -> extend.Extension:
    return plan_for(source, source.parent / "out", method, weights=Weights.NONE, **options)


def extended(source: Path, destination: Path, method: Method = YARN, **options: Any) -> dict[str, Any]:
    extend.apply(plan_for(source, destination, method, **options))
    return read_json(destination / "config.json")


# --- numbers --------------------------------------------------------------------------------------------------------


def test_qwen3_yarn_over_its_trained_length(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", model_type="qwen3", head_dim=128, hidden_size=1024, num_key_value_heads=2,
                    max_position_embeddings=40960, rope_theta=1e6)  # fmt: skip
    with pytest.raises(MethodError, match=r"40960, not a power of two.*--original"):
        planned(source, factor=4.0)
    plan = planned(source, factor=4.0, original=32768)
    result = plan.result
    assert (result.length, result.original_length, result.factor) == (131072, 32768, 4.0)
    assert math.isclose(result.attention_factor, 1.1386294, rel_tol=1e-7)
    assert math.isclose(plan.inv_freq[30], 1.064361e-3, rel_tol=1e-6)
    assert plan.config["max_position_embeddings"] == 131072
    assert plan.config["rope_parameters"] == {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1e6}  # fmt: skip


def test_linear_is_composed_over_the_native_length(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", max_position_embeddings=16384, rope_scaling={"type": "linear", "factor": 4.0})
    result = planned(source, LINEAR, to=32768).result
    assert (result.factor, result.original_length, result.length) == (8.0, 4096, 32768)
    assert "native-length" in {warning.code for warning in result.warnings}


def test_a_linear_length_that_its_factor_does_not_divide_is_asked_about(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", max_position_embeddings=1000, rope_scaling={"type": "linear", "factor": 3.0})
    with pytest.raises(MethodError, match=r"factor 3 does not divide the length 1000.*--original"):
        planned(source, LINEAR, to=4000)


@pytest.mark.parametrize(
    ("theta", "head_dim", "golden"), [(1e4, 128, 40889.942), (5e5, 64, 2091468.3), (1e4, 8, 63496.04)]
)
def test_ntk_is_a_new_base_and_nothing_else(theta: float, head_dim: int, golden: float, tmp_path: Path) -> None:
    source = folder(tmp_path / "a", rope_theta=theta, head_dim=head_dim)
    plan = planned(source, NTK, factor=4.0)
    assert math.isclose(plan.result.theta, golden, rel_tol=1e-6)
    assert plan.config["rope_theta"] == plan.config["rope_parameters"]["rope_theta"] == plan.result.theta
    assert plan.config["rope_parameters"]["rope_type"] == "default"
    assert plan.config["rope_scaling"] is None
    assert plan.config["max_position_embeddings"] == 256


def test_a_second_ntk_is_over_the_native_base(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    extended(source, tmp_path / "b", NTK, factor=2.0, weights=Weights.NONE)
    again = plan_for(tmp_path / "b", tmp_path / "c", NTK, factor=4.0, weights=Weights.NONE)
    once = plan_for(source, tmp_path / "c", NTK, factor=4.0, weights=Weights.NONE)
    assert again.result.theta == once.result.theta
    assert again.result.original_length == 64


@given(
    exponent=st.integers(5, 17), factor=st.floats(1.01, 64), head=st.sampled_from([8, 64, 80, 128]),
    theta=st.floats(1e3, 1e8), method=st.sampled_from([YARN, LINEAR, NTK]),
)  # fmt: skip
@settings(max_examples=40)
def test_any_extension_reads_back_as_what_it_reported(exponent, factor, head, theta, method, tmp_path_factory) -> None:
    length = 2**exponent
    if int(length * factor) <= length:
        return
    root = tmp_path_factory.mktemp("any")
    source = folder(root / "a", max_position_embeddings=length, head_dim=head, rope_theta=theta)
    plan = planned(source, method, factor=factor)
    reading = read_model(json.loads(json.dumps(plan.config)))
    assert reading.length == plan.result.length == int(length * factor)
    scaling = reading.rotations[0].scaling
    np.testing.assert_array_equal(scaling.inv_freq(head), plan.inv_freq)
    assert scaling.attention_factor == plan.result.attention_factor
    assert scaling.theta == plan.result.theta
    slower = plan.inv_freq / read_model(read_json(source / "config.json")).rotations[0].scaling.inv_freq(head)
    assert (slower <= 1 + 1e-12).all()
    assert slower.min() >= 1 / factor * (1 - 1e-9)


# --- the stock class computes with it -------------------------------------------------------------------------------

EXTENDABLE = [
    (name, method)
    for name, entry in TINY.items()
    for method in LENGTHENING
    if (methods := TABLE[entry.model_type].methods) is None or method.value in methods
]


def live(directory: Path, length: int = tiny.LENGTH) -> tuple[torch.Tensor, float, Any]:
    """The inv_freq and attention factor that the loaded model computes with for ``length`` tokens, and its config."""
    model = tiny.load(directory)
    module = next(m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding"))
    module(torch.zeros(1, length, 8), torch.arange(length)[None])
    return module.inv_freq.double(), float(module.attention_scaling), model.config


@pytest.mark.parametrize("style", list(Style), ids=lambda style: style.value)
@pytest.mark.parametrize(("name", "method"), EXTENDABLE, ids=lambda v: getattr(v, "value", v))
def test_the_loaded_class_computes_the_planned_frequencies(name, method, style, checkpoint, tmp_path: Path) -> None:
    source = checkpoint(name)
    plan = plan_for(source, tmp_path / "out", method, factor=4.0, style=style)
    result = extend.apply(plan)
    assert result.length == 256
    rotation = plan.reading.rotations[0]
    for length in (tiny.LENGTH, result.length):
        frequencies, attention, config = live(tmp_path / "out", length)
        expected = rotation.scaling.inv_freq(rotation.geometry.rotary_dim, length)
        np.testing.assert_allclose(frequencies.numpy(), expected, rtol=2e-6)
        assert math.isclose(attention, result.attention_factor, rel_tol=1e-6)
    assert config.max_position_embeddings == (tiny.LENGTH if method is DYNAMIC else result.length)
    before, _, _ = live(source, result.length)
    assert not torch.allclose(frequencies, before, rtol=1e-3)


@pytest.mark.parametrize("style", list(Style), ids=lambda style: style.value)
def test_a_checkpoint_of_version_4_is_extended_as_well(style: Style, own, tmp_path: Path) -> None:
    for name, old in (
        ("llama", {"rope_theta": 25000.0, "rope_scaling": None}),
        ("gpt_neox", {"rotary_emb_base": 25000, "rotary_pct": 0.5}),
        ("glm4", {"rope_theta": 25000.0, "partial_rotary_factor": 0.5}),
    ):
        source = own(name)
        edit_json(source / "config.json", "rope_parameters", **old)
        for method in (YARN, NTK):
            out = tmp_path / f"{name}-{method.value}"
            plan = plan_for(source, out, method, factor=4.0, style=style)
            extend.apply(plan)
            frequencies, _, _ = live(out)
            np.testing.assert_allclose(frequencies.numpy(), plan.inv_freq, rtol=2e-6, err_msg=f"{name} {method}")
            assert read_model(read_json(out / "config.json")).length == 256


def test_the_planned_frequencies_are_not_those_of_another_method(checkpoint, tmp_path: Path) -> None:
    """The comparison with the live table can fail: the plans are far apart."""
    plans = [plan_for(checkpoint("llama"), tmp_path / "out", m, factor=4.0).inv_freq for m in (YARN, LINEAR, NTK)]
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(plans[a] / plans[b] - 1).max() > 0.1


# --- refusals -------------------------------------------------------------------------------------------------------

LLAMA31 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip


@pytest.mark.parametrize("method", [method for method in LENGTHENING if method is not LLAMA3])
def test_llama_3_1_is_not_scaled_twice_without_saying_so(method: Method, tmp_path: Path) -> None:
    source = folder(tmp_path / "a", max_position_embeddings=131072, rope_theta=5e5, rope_scaling=LLAMA31)
    with pytest.raises(MethodError, match=r"already extended by llama3 \(factor 8 over 8192 tokens\).*--replace") as e:
        planned(source, method, to=262144)
    assert e.value.fields == {"method": method.value, "existing": "llama3"}
    replaced = planned(source, method, to=262144, replace_existing=True)
    assert replaced.result.original_length == 8192
    assert replaced.result.factor == 32.0
    left = {**(replaced.config["rope_scaling"] or {}), **replaced.config["rope_parameters"]}
    assert not {"low_freq_factor", "high_freq_factor"} & left.keys()


def test_llama_3_1_goes_on_over_its_trained_length(tmp_path: Path) -> None:
    """Its own method again: 8192 trained tokens stay the yardstick, and the factor need not be the ratio of lengths."""
    source = folder(tmp_path / "a", max_position_embeddings=131072, rope_theta=5e5, rope_scaling=LLAMA31)
    both = planned(source, LLAMA3, to=262144, factor=16.0)
    assert both.config["rope_parameters"] == {**LLAMA31, "factor": 16.0, "rope_theta": 5e5}
    assert both.config["max_position_embeddings"] == 262144
    assert both.config["original_max_position_embeddings"] == 8192
    assert planned(source, LLAMA3, to=262144).result.factor == 32.0


@pytest.mark.parametrize(("first", "second"), [(YARN, LINEAR), (LINEAR, YARN), (NTK, YARN), (YARN, NTK)])
def test_an_own_extension_is_not_stacked_on(first: Method, second: Method, tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    extended(source, tmp_path / "b", first, factor=2.0, weights=Weights.NONE)
    with pytest.raises(MethodError, match=f"already extended by {first.value}"):
        plan_for(tmp_path / "b", tmp_path / "c", second, factor=4.0, weights=Weights.NONE)
    replaced = plan_for(tmp_path / "b", tmp_path / "c", second, factor=4.0, weights=Weights.NONE, replace_existing=True)
    fresh = plan_for(source, tmp_path / "c", second, factor=4.0, weights=Weights.NONE)
    np.testing.assert_array_equal(replaced.inv_freq, fresh.inv_freq)
    assert replaced.result.length == fresh.result.length == 256


@pytest.mark.parametrize("options", [{}, {"to": 128, "factor": 2.0}])
def test_both_or_none_of_length_and_factor(options: dict, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--to, or the factor by --factor, one of them"):
        planned(folder(tmp_path / "a"), **options)


@pytest.mark.parametrize("factor", [0.5, 0.999, 0.0, -2.0, float("nan"), float("inf")])
def test_a_factor_below_one_or_no_number(factor: float, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        planned(folder(tmp_path / "a"), factor=factor)


@pytest.mark.parametrize("options", [{"to": 32}, {"to": 64}, {"factor": 1.0}])
def test_a_length_that_is_not_longer(options: dict, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be above the trained 64"):
        planned(folder(tmp_path / "a"), **options)


def test_a_length_below_the_current_one(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    extended(source, tmp_path / "b", YARN, factor=4.0, weights=Weights.NONE)
    with pytest.raises(UsageError, match="not below the current 256"):
        plan_for(tmp_path / "b", tmp_path / "c", YARN, to=128, weights=Weights.NONE)


def test_a_dynamic_block_reaches_further_than_its_config_says(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", rope_scaling={"rope_type": "dynamic", "factor": 4.0})
    with pytest.raises(UsageError, match="not below the current 256"):
        planned(source, DYNAMIC, to=128)
    plan = planned(source, DYNAMIC, to=512)
    assert (plan.result.factor, plan.result.length, plan.config["max_position_embeddings"]) == (8.0, 512, 64)
    assert "length-not-in-config" in {w.code for w in plan.result.warnings}
    over = planned(folder(tmp_path / "q", max_position_embeddings=96), DYNAMIC, to=256, original=64)
    assert over.config["max_position_embeddings"] == 64


# --- settings -------------------------------------------------------------------------------------------------------


def test_settings_of_yarn_go_into_the_block(tmp_path: Path) -> None:
    """gpt-oss: head_dim 64, base 150000, 4096 trained tokens, truncate false."""
    source = folder(tmp_path / "a", head_dim=64, max_position_embeddings=4096, rope_theta=150000.0)
    plan = planned(source, YARN, factor=32.0, settings={"truncate": False, "beta_fast": 16.0})
    assert plan.config["rope_scaling"]["truncate"] is False
    assert plan.config["rope_scaling"]["beta_fast"] == 16.0
    low, high = planned(source, YARN, factor=32.0, settings={"truncate": False}).reading.rotations[0].scaling.ramp(64)
    assert math.isclose(low, 8.0927791, rel_tol=1e-7)
    assert math.isclose(high, 17.3980245, rel_tol=1e-7)


@pytest.mark.parametrize(("method", "settings", "said"), [
    (LINEAR, {"beta_fast": 16.0}, "beta_fast is a setting of yarn, not of linear"),
    (YARN, {"base": 1e6}, "base is a setting of abf, not of yarn"),
    (DYNAMIC, {"attention_factor": 1.0}, "attention_factor is a setting of yarn or longrope"),
    (ABF, {}, "add --base"),
    (ABF, {"base": 5000.0}, "--base 5000 is not above 10000"),
    (LONGROPE, {}, "--factors FILE"),
    (LONGROPE, {"short_factor": [1.0] * 8}, "--factors FILE"),
    (LONGROPE, {"short_factor": [1.0] * 7, "long_factor": [1.0] * 7}, "short_factor has 7 factors.*needs 8"),
])  # fmt: skip
def test_settings_of_another_method_or_missing_ones(method, settings, said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=said):
        planned(folder(tmp_path / "a"), method, factor=2.0, settings=settings)


@pytest.mark.parametrize(("method", "settings"), [
    (YARN, {"beta_fast": -1.0}), (YARN, {"attention_factor": float("nan")}), (YARN, {"mscale": -1.0}),
    (LLAMA3, {"low_freq_factor": 8.0}), (LLAMA3, {"high_freq_factor": float("inf")}),
])  # fmt: skip
def test_settings_that_are_no_numbers_of_the_method(method, settings, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        planned(folder(tmp_path / "a"), method, factor=2.0, settings=settings)


def test_longrope_goes_on_only_with_lists_of_its_own(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    extended(source, tmp_path / "b", LONGROPE, factor=2.0, weights=Weights.NONE)
    with pytest.raises(MethodError, match="found for factor 2, and say nothing about 4"):
        planned(tmp_path / "b", LONGROPE, factor=4.0, settings={})
    assert planned(tmp_path / "b", LONGROPE, factor=2.0, settings={}).result.changed == ()
    assert planned(tmp_path / "b", LONGROPE, factor=4.0).result.factor == 4.0


# --- and back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", list(Style), ids=lambda style: style.value)
@pytest.mark.parametrize("method", LENGTHENING)
@pytest.mark.parametrize("twice", [False, True])
def test_an_extension_is_taken_back(twice: bool, method: Method, style: Style, own, tmp_path: Path) -> None:
    source = own("llama")
    side(source, "tokenizer_config.json", model_max_length=64, padding_side="left")
    side(source, "generation_config.json", max_length=64)
    extended(source, tmp_path / "b", method, factor=2.0, style=style)
    if twice:
        extended(tmp_path / "b", tmp_path / "c", YARN, factor=4.0, replace_existing=True)
    longer = tmp_path / ("c" if twice else "b")
    plan = plan_for(longer, tmp_path / "back", NONE, settings={})
    extend.apply(plan)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        assert read_json(tmp_path / "back" / name) == read_json(source / name)
    assert digest(tmp_path / "back" / "model.safetensors") == digest(source / "model.safetensors")
    assert (plan.result.method, plan.result.factor, plan.result.length) == ("none", 1.0, 64)
    assert {c.file for c in plan.result.changed} == {"config.json", "tokenizer_config.json", "generation_config.json"}


def test_what_was_never_extended_has_nothing_to_give_back(tmp_path: Path) -> None:
    scaled = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    for name, config in (("a", {}), ("b", scaled)):
        with pytest.raises(MethodError, match="was not extended by ropetool"):
            planned(folder(tmp_path / name, **config), NONE)
    with pytest.raises(UsageError, match="takes no length and no setting"):
        planned(folder(tmp_path / "c"), NONE, factor=2.0)


def test_the_layout_stays_when_an_extension_is_taken_back(checkpoint, tmp_path: Path) -> None:
    extended(checkpoint("llama"), tmp_path / "longer", factor=2.0)
    convert.apply(convert.plan(tmp_path / "longer", tmp_path / "there", Pairing.INTERLEAVED, written_as="same"))
    extend.apply(plan_for(tmp_path / "there", tmp_path / "back", NONE, settings={}))
    assert has_guard(tmp_path / "back")
    assert read_config(tmp_path / "back")["ropetool"]["pairing"] == "interleaved"
    assert read_model(read_config(tmp_path / "back")).length == 64


def test_an_original_below_one_that_the_config_contradicts(tmp_path: Path) -> None:
    """--original larger than the configured length would make an extension of nothing."""
    with pytest.raises((UsageError, MethodError)):
        planned(folder(tmp_path / "a"), to=128, original=256)


def test_what_a_class_cannot_take_is_refused_with_the_reason(checkpoint, tmp_path: Path) -> None:
    for method in (YARN, LINEAR):
        with pytest.raises(MethodError, match=r"cannot be had for phi3 .*renames any yarn block to longrope"):
            plan_for(checkpoint("phi3"), tmp_path / "out", method, factor=2.0)
    for method in LENGTHENING:
        with pytest.raises(MethodError, match=r"cannot be had for gptj .*Methods that it can take: none"):
            plan_for(checkpoint("gptj"), tmp_path / "out", method, factor=2.0)


LOCAL = {"rope_type": "default", "rope_theta": 1e4}
GEMMA3 = {
    "model_type": "gemma3_text",
    "rope_theta": None,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": LOCAL},
}


@pytest.mark.parametrize("method", LENGTHENING)
def test_only_full_attention_layers_are_scaled(method: Method, tmp_path: Path) -> None:
    plan = planned(folder(tmp_path / "a", **GEMMA3), method, factor=8.0)
    nested = plan.config["rope_parameters"]
    assert nested["sliding_attention"] == LOCAL
    assert plan.config["rope_local_base_freq"] == 1e4
    assert plan.config["rope_theta"] == nested["full_attention"]["rope_theta"] == plan.result.theta
    assert (nested["full_attention"]["rope_type"] != "default") is (method not in (NTK, ABF))
    full, sliding = plan.reading.rotations
    assert sliding.scaling == read_model(read_json(tmp_path / "a" / "config.json")).rotations[1].scaling
    assert full.scaling.inv_freq(16, 512)[-1] < 1e6 ** (-14 / 16) * 0.9


def test_gemma_3_as_it_is_in_the_wild(tmp_path: Path) -> None:
    """Linear by 8 on the full-attention layers at 1e6, nothing on the sliding ones at 1e4, in keys of version 4."""
    plan = planned(folder(tmp_path / "a", **GEMMA3), LINEAR, factor=8.0, style=Style.V4)
    keys = ("rope_theta", "rope_local_base_freq", "rope_scaling", "max_position_embeddings")
    assert [plan.config[key] for key in keys] == [1e6, 1e4, {"rope_type": "linear", "factor": 8.0}, 512]
    assert "rope_parameters" not in plan.config


def test_a_style_that_cannot_say_it_is_refused_or_left_out(tmp_path: Path) -> None:
    """Olmo 3 has one key for the base of all layers, and ModernBERT scales all of them by a flat block."""
    olmo = {**GEMMA3, "model_type": "olmo3", "rope_parameters": {"full_attention": LOCAL, "sliding_attention": LOCAL}}
    for config, method in ((olmo, NTK), ({**GEMMA3, "model_type": "modernbert"}, YARN)):
        source = folder(tmp_path / config["model_type"], **config)
        with pytest.raises(MethodError, match="keys of version 4 cannot say that full_attention layers alone"):
            planned(source, method, factor=2.0, style=Style.V4)
        dual = planned(source, method, factor=2.0)
        assert "v5-only" in {w.code for w in dual.result.warnings}
        assert not {"rope_theta", "rope_scaling", "global_rope_theta"} & dual.config.keys()
        assert (
            "rope_theta" in planned(folder(tmp_path / f"{config['model_type']}-yarn", **olmo), YARN, factor=2.0).config
        )


WINDOWS = {"sliding_window": 48, "num_key_value_heads": 2, "num_hidden_layers": 4}


@pytest.mark.parametrize("method", LENGTHENING)
def test_where_only_local_layers_rotate_there_is_nothing_to_scale(method: Method, tmp_path: Path) -> None:
    types = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    source = folder(tmp_path / "a", **WINDOWS, model_type="cohere2", layer_types=types)
    with pytest.raises(MethodError, match="that rotates looks back 48 tokens and no further"):
        planned(source, method, factor=2.0)


def test_one_block_for_local_and_other_layers_is_named(tmp_path: Path) -> None:
    types = ["sliding_attention", "full_attention"] * 2
    for name, wanted in (("gemma2", {"local-layers-scaled"}), ("olmo3", set())):
        plan = planned(folder(tmp_path / name, **WINDOWS, model_type=name, layer_types=types), factor=2.0)
        assert {w.code for w in plan.result.warnings} & {"local-layers-scaled"} == wanted


ALPHA = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0}


def test_a_fixed_alpha_is_ntk_and_its_trained_length_unknown(tmp_path: Path) -> None:
    """HunYuan's configs call it dynamic; its class raises the base by alpha once."""
    source = folder(tmp_path / "a", model_type="hunyuan_v1_dense", rope_scaling=ALPHA, max_position_embeddings=262144)
    scaling = read_model(read_config(source)).rotations[0].scaling
    np.testing.assert_allclose(scaling.inv_freq(16, 10**6), (1e4 * 1000 ** (16 / 14)) ** (-np.arange(0, 16, 2) / 16))
    with pytest.raises(MethodError, match="already extended by ntk"):
        planned(source, YARN, factor=2.0)
    with pytest.raises(MethodError, match=r"raises the base by alpha.*--original"):
        planned(source, NTK, factor=2.0)
    plan = planned(source, YARN, to=524288, original=32768, replace_existing=True)
    assert plan.config["rope_parameters"] == {
        "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 32768, "rope_theta": 1e4}  # fmt: skip


@pytest.mark.parametrize(("model_type", "keys", "error", "said"), [
    ("gemma3_text", {"rope_theta": 5e5}, ConfigConflictError, r"rope_parameters.full_attention.rope_theta.*rope_theta"),
    ("gemma3_text", {"rope_local_base_freq": 5e5}, ConfigConflictError, "rope_local_base_freq is 500000"),
    ("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, ConfigConflictError, "rope_scaling"),
    ("gemma4_text", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, ConfigError, "rope_scaling is flat"),
])  # fmt: skip
def test_keys_of_both_styles_that_disagree_are_named(model_type, keys, error, said, tmp_path: Path) -> None:
    """Beside blocks for each kind of layer, too."""
    blocks = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": LOCAL}
    source = folder(tmp_path / "a", **{**GEMMA3, "model_type": model_type, "rope_parameters": blocks, **keys})
    with pytest.raises(error, match=said):
        planned(source, factor=2.0)


def test_truncate_is_not_written_where_no_class_looks(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", **GEMMA3)
    with pytest.raises(MethodError, match="truncate false in the block of full_attention layers would be ignored"):
        planned(source, YARN, factor=2.0, settings={"truncate": False})
    blocks = {**GEMMA3["rope_parameters"], "full_attention": {
        "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "rope_theta": 1e6,
        "truncate": False}}  # fmt: skip
    reading = read_model({**LLAMA, **GEMMA3, "rope_parameters": blocks})
    assert "truncate-ignored" in {w.code for w in reading.warnings}


PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}


def test_a_proportional_block_stays_one(tmp_path: Path) -> None:
    blocks = {"full_attention": PROPORTIONAL, "sliding_attention": LOCAL}
    source = folder(tmp_path / "a", **{**GEMMA3, "model_type": "gemma4_text", "rope_parameters": blocks})
    for method in (YARN, NTK, DYNAMIC, LONGROPE, LLAMA3):
        with pytest.raises(MethodError, match=r"full_attention layers is proportional .* It can take linear and abf"):
            planned(source, method, factor=2.0)
    linear = planned(source, LINEAR, factor=2.0)
    assert linear.config["rope_parameters"]["full_attention"] == {**PROPORTIONAL, "factor": 2.0}
    np.testing.assert_allclose(linear.inv_freq * 2, planned(source, ABF, factor=2.0).reading.rotations[0].scaling
                               .__class__(1e6, 0.25).inv_freq(16))  # fmt: skip
    again = extended(source, tmp_path / "b", LINEAR, factor=2.0, weights=Weights.NONE)
    assert again["rope_parameters"]["sliding_attention"] == LOCAL
    assert planned(tmp_path / "b", LINEAR, factor=4.0).config["rope_parameters"]["full_attention"]["factor"] == 4.0


@pytest.mark.parametrize("whole", ["llava", "qwen2_vl"])
@pytest.mark.parametrize("style", list(Style), ids=lambda style: style.value)
@pytest.mark.parametrize("method", LENGTHENING)
def test_a_multimodal_config_is_written_where_it_is_read(method, style, whole: str, tmp_path: Path) -> None:
    text = {key: value for key, value in LLAMA.items() if key != "model_type"} | {"num_key_value_heads": 2}
    source = tmp_path / "a"
    source.mkdir()
    whole_config = {"model_type": whole, "vision_config": {"rope_theta": 7.0}, "text_config": text, "image_token": 5}
    (source / "config.json").write_text(json.dumps(whole_config), encoding="utf-8")
    plan = planned(source, method, factor=2.0, style=style)
    assert {k: v for k, v in plan.config.items() if k not in ("text_config", "ropetool")} == {
        k: v for k, v in whole_config.items() if k != "text_config"
    }
    alone = planned(
        folder(tmp_path / "alone", num_key_value_heads=2, model_type="qwen2"), method, factor=2.0, style=style
    )
    same = {k: v for k, v in alone.config.items() if k not in ("ropetool", "model_type")}
    assert plan.config["text_config"] == same
    assert [c.key for c in plan.result.changed] == [f"text_config.{c.key}" for c in alone.result.changed]
    extend.apply(plan)
    undone = plan_for(tmp_path / "out", tmp_path / "back", NONE, settings={}, weights=Weights.NONE)
    assert undone.config == whole_config


def test_conflicting_styles_are_refused_before_anything(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", rope_parameters={"rope_theta": 500000})
    with pytest.raises(ConfigConflictError):
        planned(source, factor=2.0)


def test_an_output_that_is_there(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputExistsError):
        planned(source, factor=2.0)


# --- what survives --------------------------------------------------------------------------------------------------


def test_an_explicit_attention_factor_survives_the_same_factor_only(tmp_path: Path) -> None:
    block = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 1.5}
    source = folder(tmp_path / "a", max_position_embeddings=128, rope_scaling=block)
    kept = planned(source, factor=2.0)
    assert kept.config["rope_parameters"]["attention_factor"] == 1.5
    assert kept.result.attention_factor == 1.5
    changed = planned(source, factor=4.0)
    assert "attention_factor" not in changed.config["rope_parameters"]
    assert math.isclose(changed.result.attention_factor, 0.1 * math.log(4) + 1)
    (warning,) = (w for w in changed.result.warnings if w.code == "attention-factor-dropped")
    assert "1.5 was set for factor 2;" in warning.message


def test_settings_of_yarn_survive_a_new_factor(tmp_path: Path) -> None:
    own = {"beta_fast": 16.0, "beta_slow": 2.0, "truncate": False, "mscale": 1.0, "mscale_all_dim": 0.7}
    block = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, **own}
    plan = planned(folder(tmp_path / "a", max_position_embeddings=128, rope_scaling=block), factor=4.0)
    assert own.items() <= plan.config["rope_parameters"].items()


@pytest.mark.parametrize("method", LENGTHENING)
def test_mrope_sections_survive(method: Method, tmp_path: Path) -> None:
    block = {"type": "mrope", "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    plan = planned(
        folder(tmp_path / "a", model_type="qwen2", num_key_value_heads=2, rope_scaling=block), method, factor=2.0
    )
    for written in (plan.config["rope_parameters"], plan.config["rope_scaling"]):
        if written is not None:
            assert written["mrope_section"] == [2, 3, 3]
            assert written["mrope_interleaved"] is True
    assert read_model(plan.config).pairing is Pairing.HALF


def test_other_keys_and_the_order_of_the_config_survive(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", custom={"deep": [1, None]}, vocab_size=5)
    written = extended(source, tmp_path / "b", factor=2.0, weights=Weights.NONE)
    before = read_json(source / "config.json")
    ours = {"rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "ropetool"}
    assert {k: v for k, v in written.items() if k not in ours} == {k: v for k, v in before.items() if k not in ours}
    kept = [k for k in written if k not in ours]
    assert kept == [k for k in before if k not in ours]


def test_the_layout_survives_an_extension(checkpoint, tmp_path: Path) -> None:
    convert.apply(convert.plan(checkpoint("llama"), tmp_path / "there", Pairing.INTERLEAVED))
    written = extended(tmp_path / "there", tmp_path / "longer", factor=2.0)
    assert written["ropetool"]["pairing"] == "interleaved"
    assert has_guard(tmp_path / "longer")
    assert read_model(read_config(tmp_path / "longer")).pairing is Pairing.INTERLEAVED
    convert.apply(convert.plan(tmp_path / "longer", tmp_path / "back", Pairing.HALF))
    back = read_json(tmp_path / "back" / "config.json")
    assert back["ropetool"]["extension"] == written["ropetool"]["extension"]
    assert digest(tmp_path / "back" / "model.safetensors") == digest(checkpoint("llama") / "model.safetensors")


# --- again, and undo ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", list(Style), ids=lambda style: style.value)
@pytest.mark.parametrize("method", LENGTHENING)
def test_a_second_identical_run_changes_nothing(method: Method, style: Style, checkpoint, tmp_path: Path) -> None:
    extended(checkpoint("llama"), tmp_path / "once", method, to=256, style=style)
    plan = plan_for(tmp_path / "once", tmp_path / "twice", method, to=256, style=style)
    assert plan.result.changed == ()
    extend.apply(plan)
    assert (tmp_path / "twice" / "config.json").read_bytes() == (tmp_path / "once" / "config.json").read_bytes()


@pytest.mark.parametrize("style", list(Style), ids=lambda style: style.value)
@pytest.mark.parametrize("method", LENGTHENING)
@pytest.mark.parametrize("old", [
    {}, {"rope_theta": None, "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
    {"original_max_position_embeddings": 64}, {"max_sequence_length": 64, "seq_length": 64},
])  # fmt: skip
def test_the_marker_holds_what_undoes_it(method: Method, style: Style, old: dict, tmp_path: Path) -> None:
    """Take away every key that the extension reports as changed, put back what it kept: the source again."""
    source = folder(tmp_path / "a", **old)
    plan = planned(source, method, factor=2.0, style=style)
    before = read_json(source / "config.json")
    entry = plan.config["ropetool"]["extension"]
    assert (entry["method"], entry["factor"], entry["original_length"]) == (method.value, 2.0, 64)
    touched = {change.key for change in plan.result.changed} | {"ropetool"}
    undone = {**{k: v for k, v in plan.config.items() if k not in touched}, **entry["undo"]}
    assert {k: v for k, v in undone.items() if v is not None} == {k: v for k, v in before.items() if v is not None}


def test_a_further_extension_undoes_to_the_first_source(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    extended(source, tmp_path / "b", factor=2.0, weights=Weights.NONE)
    further = plan_for(tmp_path / "b", tmp_path / "c", YARN, factor=8.0, weights=Weights.NONE)
    undo = further.config["ropetool"]["extension"]["undo"]
    assert undo["max_position_embeddings"] == 64
    assert "rope_scaling" not in undo or undo["rope_scaling"] is None


def test_undo_reaches_over_a_replaced_method(tmp_path: Path) -> None:
    """YaRN leaves the base alone, the NTK base that replaces it does not: the first base must still be known."""
    source = folder(tmp_path / "a")
    extended(source, tmp_path / "b", factor=2.0, weights=Weights.NONE)
    replaced = plan_for(tmp_path / "b", tmp_path / "c", NTK, factor=4.0, weights=Weights.NONE, replace_existing=True)
    assert replaced.config["ropetool"]["extension"]["undo"]["rope_theta"] == 10000.0


# --- lengths elsewhere ----------------------------------------------------------------------------------------------


def side(source: Path, name: str, **content: Any) -> None:
    (source / name).write_text(json.dumps(content), encoding="utf-8")


def test_the_tokenizer_and_the_generation_limit_follow(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    side(source, "tokenizer_config.json", model_max_length=64, padding_side="left")
    side(source, "generation_config.json", max_length=64, temperature=0.6)
    extended(source, tmp_path / "b", factor=4.0, weights=Weights.NONE)
    assert read_json(tmp_path / "b" / "tokenizer_config.json") == {"model_max_length": 256, "padding_side": "left"}
    assert read_json(tmp_path / "b" / "generation_config.json") == {"max_length": 256, "temperature": 0.6}
    changed = [(c.file, c.key, c.old, c.new) for c in planned(source, factor=4.0).result.changed]
    assert ("tokenizer_config.json", "model_max_length", 64, 256) in changed
    assert ("generation_config.json", "max_length", 64, 256) in changed
    assert ("config.json", "max_position_embeddings", 64, 256) in changed


@pytest.mark.parametrize("value", [10**30, 1000, None, "64", True])
def test_a_tokenizer_without_a_limit_or_with_a_larger_one_stays(value: object, tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    side(source, "tokenizer_config.json", model_max_length=value)
    before = (source / "tokenizer_config.json").read_bytes()
    extended(source, tmp_path / "b", factor=4.0, weights=Weights.NONE)
    assert (tmp_path / "b" / "tokenizer_config.json").read_bytes() == before


def test_the_sentinel_as_a_float_stays(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    (source / "tokenizer_config.json").write_text('{"model_max_length": 1e30}', encoding="utf-8")
    extended(source, tmp_path / "b", factor=4.0, weights=Weights.NONE)
    assert (tmp_path / "b" / "tokenizer_config.json").read_text(encoding="utf-8") == '{"model_max_length": 1e30}'


def test_a_generation_limit_that_was_meant_stays(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    side(source, "generation_config.json", max_length=20)
    extended(source, tmp_path / "b", factor=4.0, weights=Weights.NONE)
    assert read_json(tmp_path / "b" / "generation_config.json") == {"max_length": 20}


def test_other_names_of_the_length_follow_where_they_held_the_same(tmp_path: Path) -> None:
    plan = planned(folder(tmp_path / "a", max_sequence_length=64, seq_length=32), factor=4.0)
    assert plan.config["max_sequence_length"] == 256
    assert plan.config["seq_length"] == 32


def test_windows_and_truncations_are_named_not_changed(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", model_type="mistral", sliding_window=48)
    side(source, "tokenizer.json", version="1.0", truncation={"direction": "Right", "max_length": 64}, model={})
    plan = planned(source, factor=4.0)
    said = {w.code: w.message for w in plan.result.warnings}
    assert "48 tokens" in said["sliding-window"]
    assert "truncates at 64" in said["tokenizer-truncates"]
    assert plan.config["sliding_window"] == 48


def test_sentence_encoders_chunks_and_adapters(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", attention_chunk_size=64)
    side(source, "sentence_bert_config.json", max_seq_length=64, do_lower_case=False)
    side(source, "adapter_config.json", peft_type="LORA")
    plan = planned(source, factor=4.0)
    assert {"attention-chunk", "adapter-of-old-length"} <= {w.code for w in plan.result.warnings}
    extend.apply(plan)
    written = read_json(tmp_path / "out" / "sentence_bert_config.json")
    assert written == {"max_seq_length": 256, "do_lower_case": False}
    side(source, "sentence_bert_config.json", max_seq_length=32)
    assert "sentence_bert_config.json" not in planned_files(source)


def planned_files(source: Path) -> set[str]:
    again = plan_for(source, source.parent / "again", factor=4.0, weights=Weights.NONE)
    return {change.file for change in again.result.changed}


def test_a_window_that_the_class_does_not_use_is_not_named(tmp_path: Path) -> None:
    source = folder(
        tmp_path / "a", model_type="qwen2", num_key_value_heads=2, sliding_window=48, use_sliding_window=False
    )
    assert "sliding-window" not in {w.code for w in planned(source, factor=4.0).result.warnings}


@pytest.mark.parametrize(("factor", "warned"), [(8.0, False), (8.5, True), (32.0, True)])
def test_a_large_factor_is_warned_about(factor: float, warned: bool, tmp_path: Path) -> None:
    codes = {w.code for w in planned(folder(tmp_path / "a"), factor=factor).result.warnings}
    assert ("large-factor" in codes) is warned


# --- weights --------------------------------------------------------------------------------------------------------


def test_linked_copied_or_none(checkpoint, tmp_path: Path) -> None:
    source = checkpoint("llama")
    for weights, same_file in ((Weights.LINK, True), (Weights.COPY, False)):
        out = tmp_path / weights.value
        result = extend.apply(plan_for(source, out, YARN, factor=2.0, weights=weights))
        assert (out / "model.safetensors").samefile(source / "model.safetensors") is same_file
        assert digest(out / "model.safetensors") == digest(source / "model.safetensors")
        assert ("weights-linked" in {w.code for w in result.warnings}) is same_file
    extend.apply(plan_for(source, tmp_path / "none", YARN, factor=2.0, weights=Weights.NONE))
    assert sorted(p.name for p in (tmp_path / "none").iterdir()) == sorted(
        p.name for p in source.iterdir() if p.suffix != ".safetensors"
    )


def test_none_leaves_the_weights_without_naming_them_as_side_files(tmp_path: Path) -> None:
    source = tiny.save(tiny.model_of("llama"), tmp_path / "source", max_shard_size="60KB")
    extend.apply(plan_for(source, tmp_path / "out", YARN, factor=2.0, weights=Weights.NONE))
    left = {p.name for p in (tmp_path / "out").iterdir()}
    assert not {name for name in left if "safetensors" in name}, "an index without its shards is a broken checkpoint"


def test_where_links_cannot_be_made_the_weights_are_copied(checkpoint, tmp_path: Path, monkeypatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", refuse)
    result = extend.apply(plan_for(checkpoint("llama"), tmp_path / "out", YARN, factor=2.0))
    assert digest(tmp_path / "out" / "model.safetensors") == digest(checkpoint("llama") / "model.safetensors")
    assert not (tmp_path / "out" / "model.safetensors").samefile(checkpoint("llama") / "model.safetensors")
    assert result.output == str(tmp_path / "out")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weights", [Weights.LINK, Weights.COPY])
def test_saved_frequencies_do_not_stay_stale(dtype, weights: Weights, own, tmp_path: Path) -> None:
    source = own("llama")
    old = 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    names = [f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in (0, 1)]
    tensors = load_file(source / "model.safetensors") | {name: old.to(dtype) for name in names}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    before = snapshot(source)
    plan = plan_for(source, tmp_path / "out", YARN, factor=4.0, weights=weights)
    extend.apply(plan)
    after = load_file(tmp_path / "out" / "model.safetensors")
    for name in names:
        assert torch.equal(after[name], torch.from_numpy(plan.inv_freq).to(torch.float32).to(dtype))
    assert all(torch.equal(after[n], tensors[n]) for n in tensors if n not in names)
    assert snapshot(source) == before, "a linked file would have been written through"


def test_saved_frequencies_of_another_shape_are_refused_and_nothing_stays(own, tmp_path: Path) -> None:
    source = own("llama")
    tensors = load_file(source / "model.safetensors") | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ShapeError, match=r"inv_freq holds F32\[4\]"):
        extend.apply(plan_for(source, tmp_path / "out", YARN, factor=4.0))
    assert not (tmp_path / "out").exists()


def test_the_source_stays_as_it_was(checkpoint, tmp_path: Path) -> None:
    before = snapshot(checkpoint("qwen3"))
    for method in LENGTHENING:
        extended(checkpoint("qwen3"), tmp_path / method.value, method, factor=2.0)
    assert snapshot(checkpoint("qwen3")) == before


# --- engines --------------------------------------------------------------------------------------------------------


def test_the_flags_of_engines_hold_the_numbers(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", max_position_embeddings=4096)
    for method, wanted in (
        (YARN, "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 4096 -c 16384"),
        (LINEAR, "--rope-scaling linear --rope-scale 4 -c 16384"),
        (NTK, f"--rope-freq-base {10000 * 4 ** (16 / 14):.10g} -c 16384"),
    ):
        flags = {e.engine: e.flags for e in planned(source, method, factor=4.0).result.engines}
        assert flags["llama.cpp"] == wanted
        assert flags["vllm"] == "--max-model-len 16384"
        assert flags["sglang"] == "--context-length 16384"
        assert flags["transformers"] == ""


def test_a_factor_of_yarn_may_lie_above_the_ratio_but_not_below(tmp_path: Path) -> None:
    source = folder(tmp_path / "a")
    found = planned(source, YARN, to=256, settings={"factor": 4.5})
    assert found.result.factor == found.config["rope_parameters"]["factor"] == 4.5
    assert found.result.length == found.config["max_position_embeddings"] == 256
    with pytest.raises(UsageError, match="a factor of 3 over 64 tokens reaches 192, not 256; it must be 4 or more"):
        planned(source, YARN, to=256, settings={"factor": 3.0})
    with pytest.raises(UsageError, match="the factor of linear is the ratio of the lengths"):
        planned(source, LINEAR, to=256, settings={"factor": 4.5})
    assert planned(source, LLAMA3, to=256, settings={"factor": 3.0}).result.factor == 3.0
