"""Geometry from configs: the keys, their conflicts, and what is absent."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropetool import convert
from ropetool.detect import inspect
from ropetool.errors import ConfigConflictError, ConfigError, NoRotaryError, UnknownFamilyError
from ropetool.families.decoder import family_of
from ropetool.families.family import Family
from ropetool.families.geometry import SHARE
from ropetool.families.positions import positions_of
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.models.catalog import model_class
from ropetool.models.tables import live_frequencies
from ropetool.models.tiny import tiny_config, tiny_values
from ropetool.rope.pairing import Head, Keep, rows_of
from tests.tiny import edit_json

LLAMA = {"model_type": "llama", "num_attention_heads": 4, "hidden_size": 40, "head_dim": 8}


def geometry(**config: object):
    return read_model({**LLAMA, **config}).geometry


def test_head_dim_is_not_hidden_over_heads() -> None:
    assert geometry().head_dim == 8
    assert rows_of(geometry().spans(TABLE["llama"].moves[0].rows)) == 32


def test_null_is_absent() -> None:
    assert geometry(head_dim=None).head_dim == 10
    assert geometry(num_key_value_heads=None).kv_heads == 4
    assert geometry(partial_rotary_factor=None, rope_scaling=None, rope_parameters=None).rotary_dim == 8


SHARED = [name for name, row in TABLE.items() if row.defaults.get(SHARE, 1) != 1]


@pytest.mark.parametrize("model_type", SHARED)
@pytest.mark.parametrize("null", [{SHARE: None}, {"rope_parameters": {"rope_theta": 1e4, SHARE: None}}], ids=str)
def test_a_share_that_is_null_is_said(model_type: str, null: dict[str, object]) -> None:
    stored = tiny_config(model_type, tiny_values(model_type)).to_dict()
    config = {key: value for key, value in stored.items() if key not in (SHARE, "rope_parameters", "rope_scaling")}
    numbers = {SHARE: 0.5, "rope_parameters": {"rope_theta": 1e4, SHARE: 0.5}}
    read = SHARE not in null or SHARE in TABLE[model_type].keys.rotary
    for changed, said in ({}, False), (null, read), (numbers, False):
        found = [w.message for w in read_model({**config, **changed}).warnings if w.code == "null-share"]
        assert bool(found) is said
        assert all(f"class default {TABLE[model_type].defaults[SHARE]:g}" in message for message in found)


def test_transformers_takes_a_null_share_as_the_whole_head() -> None:
    """The reason for the warning; where this changes, so must what the warning says."""
    values = {**tiny_values("glm"), "rope_parameters": None}
    absent, null = (tiny_config("glm", {**values, **change}) for change in ({}, {SHARE: None}))
    widths = [2 * len(next(iter(live_frequencies(model_class("glm")(c)).values()))) for c in (absent, null)]
    assert widths == [absent.head_dim // 2, absent.head_dim]


def test_convert_and_inspect_show_it(own, tmp_path: Path) -> None:
    source = own("glm4")
    edit_json(source / "config.json", SHARE, **{SHARE: None})
    edit_json(source / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 1e4})
    planned = convert.plan(source, tmp_path / "there", TABLE["glm4"].pairing.other)
    for warnings in (inspect(source).warnings, planned.warnings):
        assert "null-share" in {warning.code for warning in warnings}


def test_key_value_heads_are_a_count_of_their_own() -> None:
    read = geometry(num_attention_heads=8, num_key_value_heads=2)
    q, k = TABLE["llama"].moves
    assert (len(read.spans(q.rows)), len(read.spans(k.rows))) == (8, 2)
    assert read.times("group") == 4


@pytest.mark.parametrize(("kv", "heads"), [(3, 8), (16, 8)])
def test_heads_that_do_not_divide_are_refused(kv: int, heads: int) -> None:
    with pytest.raises(ConfigError, match=f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv}"):
        geometry(num_attention_heads=heads, num_key_value_heads=kv)


@pytest.mark.parametrize("key", ["num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"])
@pytest.mark.parametrize("value", ["8", 8.5, True, 0, -8, [8], 1 << 60])
def test_a_count_of_the_wrong_kind_is_named(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key) as caught:
        read_model({**LLAMA, key: value})
    assert caught.value.fields["key"] == key


def test_what_nothing_tells_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="no num_attention_heads"):
        read_model({"model_type": "llama", "hidden_size": 64})
    with pytest.raises(ConfigError, match="no hidden_size"):
        read_model({"model_type": "llama", "num_attention_heads": 4})
    with pytest.raises(ConfigError, match="hidden_size 42 is not a multiple of 4 heads"):
        geometry(head_dim=None, hidden_size=42)
    with pytest.raises(ConfigError, match="must be even"):
        geometry(head_dim=9)


def test_the_rotary_width_is_applied_once_under_any_of_its_names() -> None:
    gptj = {"model_type": "gptj", "n_head": 2, "n_embd": 256, "rotary_dim": 64}
    assert read_model(gptj).geometry.rotary_dim == 64
    neox = {"model_type": "gpt_neox", "num_attention_heads": 2, "hidden_size": 128}
    assert read_model(neox).geometry.rotary_dim == 16
    assert read_model({**neox, "rotary_pct": 0.5}).geometry.rotary_dim == 32
    inside = {"rope_parameters": {"partial_rotary_factor": 1.0}}
    assert read_model({**neox, **inside}).geometry.rotary_dim == 64
    glm = {"model_type": "glm4", "num_attention_heads": 2, "hidden_size": 128, "head_dim": 64}
    assert read_model(glm).geometry.rotary_dim == 32
    assert read_model({**glm, "partial_rotary_factor": 0.25}).geometry.rotary_dim == 16


def test_two_widths_that_disagree_are_both_named() -> None:
    config = {"model_type": "gpt_neox", "num_attention_heads": 2, "hidden_size": 128, "rotary_pct": 0.5}
    with pytest.raises(ConfigConflictError) as caught:
        read_model({**config, "rope_parameters": {"partial_rotary_factor": 0.25}})
    for part in ("32 rows by rotary_pct", "16 rows by rope_parameters.partial_rotary_factor"):
        assert part in caught.value.message
    assert sorted(caught.value.fields["values"]) == [16, 32]


@pytest.mark.parametrize("share", [0.01, 1.5, 0.1])
def test_an_impossible_width_is_refused(share: float) -> None:
    config = {"model_type": "glm4", "num_attention_heads": 2, "hidden_size": 128, "head_dim": 64}
    if int(64 * share) % 2 == 0 and 2 <= int(64 * share) <= 64:
        assert read_model({**config, "partial_rotary_factor": share}).geometry.rotary_dim == int(64 * share)
        return
    with pytest.raises(ConfigError, match="rotary width"):
        read_model({**config, "partial_rotary_factor": share})


def test_latent_attention() -> None:
    config = {"model_type": "deepseek_v3", "num_attention_heads": 2, "kv_lora_rank": 16,
              "qk_nope_head_dim": 4, "qk_rope_head_dim": 8}  # fmt: skip
    read = read_model(config).geometry
    rows = {moved.module: moved.rows for moved in TABLE["deepseek_v3"].moves}
    assert read.spans(rows["q_b_proj"]) == (Head(12, 4, 8), Head(12, 4, 8))
    assert read.spans(rows["kv_a_proj_with_mqa"]) == (Keep(16), Head(8, 0, 8))


def test_the_evidence_and_its_order() -> None:
    plain = read_model(LLAMA)
    assert [(e.source, e.says) for e in plain.evidence] == [("family", "half")]
    marked = read_model({**LLAMA, "ropetool": {"pairing": "interleaved"}})
    assert [(e.source, e.says) for e in marked.evidence] == [("marker", "interleaved"), ("family", "half")]
    assert (marked.pairing.value, marked.class_pairing.value) == ("interleaved", "half")
    with pytest.raises(ConfigError, match="the marker's pairing is 'both'"):
        read_model({**LLAMA, "ropetool": {"pairing": "both"}})


@pytest.mark.parametrize(("value", "says"), [(True, "interleaved"), (False, "half")])
def test_rope_interleave_is_obeyed(value: bool, says: str) -> None:
    read = read_model({"model_type": "deepseek_v3", "num_attention_heads": 2, "rope_interleave": value})
    assert (read.pairing.value, read.class_pairing.value) == (says, says)
    assert read.evidence[0].source == "config"


def test_rope_interleave_absent_or_null_means_true_and_is_said() -> None:
    for extra in ({}, {"rope_interleave": None}):
        read = read_model({"model_type": "deepseek_v3", "num_attention_heads": 2, **extra})
        assert read.pairing.value == "interleaved"
        assert "its default is true" in read.evidence[0].detail
    with pytest.raises(ConfigError, match="rope_interleave is 'yes'"):
        read_model({"model_type": "deepseek_v3", "num_attention_heads": 2, "rope_interleave": "yes"})


def test_rope_interleave_on_a_class_that_ignores_it_changes_nothing() -> None:
    assert read_model({**LLAMA, "rope_interleave": True}).pairing.value == "half"


# --- the base -------------------------------------------------------------------------------------------------------


def test_a_base_that_is_absent_is_a_warning_with_the_default() -> None:
    for extra, said in (({}, "no rope_theta"), ({"rope_theta": None}, "rope_theta is null")):
        read = read_model({**LLAMA, **extra})
        assert read.rotations[0].scaling.theta == 10000.0
        assert read.rotations[0].theta_source == "class default"
        (warning,) = (w for w in read.warnings if w.code == "theta-default")
        assert said in warning.message
        assert "10000" in warning.message


def test_a_base_inside_rope_parameters_only() -> None:
    read = read_model({**LLAMA, "rope_parameters": {"rope_theta": 500000}})
    assert read.rotations[0].scaling.theta == 500000.0
    assert read.rotations[0].theta_source == "rope_parameters.rope_theta"


def test_layer_types_with_their_own_rotation() -> None:
    blocks = {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
              "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}  # fmt: skip
    gemma = {**LLAMA, "model_type": "gemma3_text"}
    two = [("full_attention", "linear", 1e6), ("sliding_attention", "default", 1e4)]
    old_style = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    bases_outside = {
        "rope_parameters": {kind: {k: v for k, v in b.items() if k != "rope_theta"} for kind, b in blocks.items()},
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
    }
    for spelling in ({"rope_parameters": blocks}, old_style, bases_outside):
        read = read_model({**gemma, **spelling})
        assert [(r.layers, r.scaling.name, r.scaling.theta) for r in read.rotations] == two


def test_a_flat_block_where_the_class_reads_one_per_kind_of_layer_is_refused() -> None:
    flat = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    with pytest.raises(ConfigError, match="would ignore it without a word"):
        read_model({**LLAMA, "model_type": "gemma3_text", "rope_parameters": flat})
    with pytest.raises(ConfigError, match="reads one flat block"):
        read_model({**LLAMA, "rope_parameters": {"full_attention": flat, "sliding_attention": flat}})


def test_a_class_whose_own_block_scales_needs_a_block_in_the_config() -> None:
    with pytest.raises(ConfigError, match="scales by values of its own"):
        read_model({**LLAMA, "model_type": "gpt_oss"})


def test_layers_without_rotation() -> None:
    """Each rule by a list in the config, else by the interval; 1 in no_rope_layers means: rotate."""
    config = {**LLAMA, "num_hidden_layers": 8, "head_dim": 8, "num_key_value_heads": 2}
    kinds = ["sliding_attention", "full_attention"] * 4
    assert read_model(config).nope_layers == set()
    assert read_model({**config, "model_type": "smollm3"}).nope_layers == {3, 7}
    assert read_model({**config, "model_type": "smollm3", "no_rope_layers": [1, 0, 1, 1, 1, 1, 1, 0]}).nope_layers == {
        1,
        7,
    }
    assert read_model({**config, "model_type": "smollm3", "no_rope_layer_interval": 2}).nope_layers == {1, 3, 5, 7}
    assert read_model({**config, "model_type": "cohere2", "layer_types": kinds}).nope_layers == {1, 3, 5, 7}
    exaone = {**config, "model_type": "exaone4", "layer_types": kinds}
    assert read_model({**exaone, "sliding_window": None}).nope_layers == set()
    assert read_model({**exaone, "sliding_window": 4096}).nope_layers == {1, 3, 5, 7}


# --- families -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["gpt2", "t5", "bloom", "whisper", "mamba", "xlnet", "bert"])
def test_a_model_without_rope_is_refused_with_what_it_has(model_type: str) -> None:
    with pytest.raises(NoRotaryError, match=f"{model_type} has no rotary position embedding") as caught:
        family_of({"model_type": model_type})
    positions = positions_of({"model_type": model_type})
    assert positions
    assert all(position.sentence in caught.value.message for position in positions)
    assert caught.value.fields["scheme"] == positions[0].scheme


def test_an_unknown_type_is_refused_and_no_name_is_guessed_from() -> None:
    for model_type in ("llama2", "Llama", "my_llama", "llama "):
        with pytest.raises(UnknownFamilyError, match=f"{len(TABLE)} types that are"):
            family_of({"model_type": model_type})


@pytest.mark.parametrize("value", [None, "", 3, ["llama"]])
def test_no_model_type(value: object) -> None:
    with pytest.raises(ConfigError, match="no model_type"):
        family_of({"model_type": value})


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_projections_and_companions(row: Family) -> None:
    assert row.projections
    assert not set(row.projections) & set(row.companions)
