"""The rope block in every style: read, checked for conflicts, written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ropetool.checkpoint.config import (
    Style,
    count,
    marker,
    number,
    rope_blocks,
    text_config,
    with_marker,
)
from ropetool.checkpoint.strangers import read_json_file
from ropetool.checkpoint.styles import with_rope_block
from ropetool.errors import ConfigConflictError, ConfigError

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def only(config: dict, theta_keys=("rope_theta",)):
    (block,) = rope_blocks(config, theta_keys)
    return block


# --- reading --------------------------------------------------------------------------------------------------------


def test_version_5_style() -> None:
    block = only({"rope_parameters": {"rope_theta": 500000, **YARN}})
    assert block.layers == "all"
    assert block.rope_type == "yarn"
    assert block.values["rope_theta"] == 500000
    assert block.sources["rope_theta"] == "rope_parameters.rope_theta"


def test_version_4_style_with_either_spelling_of_the_type() -> None:
    for key in ("type", "rope_type"):
        block = only({"rope_theta": 500000.0, "rope_scaling": {key: "linear", "factor": 2}})
        assert block.rope_type == "linear"
        assert block.values["rope_theta"] == 500000.0
        assert block.sources["rope_theta"] == "rope_theta"
        assert block.sources["rope_type"] == f"rope_scaling.{key}"


def test_both_styles_that_agree_are_one_block() -> None:
    config = {"rope_theta": 1e6, "rope_scaling": dict(YARN), "rope_parameters": {"rope_theta": 1e6, **YARN}}
    assert only(config).values == {"rope_theta": 1e6, **YARN}


@pytest.mark.parametrize("config", [
    {}, {"rope_theta": None}, {"rope_scaling": None, "rope_parameters": None},
    {"rope_parameters": {"rope_type": None, "factor": None, "rope_theta": None, "partial_rotary_factor": None}},
    {"rope_scaling": {"type": None}},
])  # fmt: skip
def test_null_is_absent(config: dict) -> None:
    block = only(config)
    assert block.rope_type == "default"
    assert not block.values


@pytest.mark.parametrize(
    ("config", "keys", "values"),
    [
        ({"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 500000}},
         ["rope_parameters.rope_theta", "rope_theta"], [500000, 10000.0]),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2}},
         ["rope_scaling.type", "rope_scaling.rope_type"], ["linear", "yarn"]),
        ({"rope_scaling": {**YARN, "factor": 2.0}, "rope_parameters": YARN},
         ["rope_parameters.factor", "rope_scaling.factor"], [4.0, 2.0]),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_parameters": YARN},
         ["rope_parameters.rope_type", "rope_scaling.rope_type"], ["yarn", "linear"]),
        ({"rope_parameters": YARN, "original_max_position_embeddings": 32},
         ["rope_parameters.original_max_position_embeddings", "original_max_position_embeddings"], [64, 32]),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.25},
         ["rope_parameters.partial_rotary_factor", "partial_rotary_factor"], [0.5, 0.25]),
    ],
)  # fmt: skip
def test_a_conflict_names_both_keys_with_their_values(config: dict, keys: list, values: list) -> None:
    with pytest.raises(ConfigConflictError) as caught:
        only(config)
    assert caught.value.fields["keys"] == keys
    assert caught.value.fields["values"] == values
    for part in (*keys, *map(repr, values)):
        assert part in caught.value.message


def test_a_key_that_only_one_of_two_blocks_has_is_a_conflict() -> None:
    """An engine reads one of the two blocks: what the other adds is lost there."""
    config = {"rope_scaling": dict(YARN), "rope_parameters": {**YARN, "rope_theta": 1e6, "beta_fast": 16.0}}
    with pytest.raises(
        ConfigConflictError, match=r"rope_parameters\.beta_fast is 16\.0 but rope_scaling has no beta_fast"
    ):
        only(config)


def test_a_type_that_only_one_block_has_is_a_conflict_unless_it_is_default() -> None:
    default = {"rope_scaling": {"mrope_section": [1, 2]}, "rope_parameters": {
        "mrope_section": [1, 2], "rope_type": "default", "rope_theta": 1e6}}  # fmt: skip
    assert only(default).rope_type == "default"
    with pytest.raises(ConfigConflictError):
        only({"rope_scaling": {"factor": 4.0}, "rope_parameters": {"factor": 4.0, "type": "linear"}})


def test_other_names_of_the_base() -> None:
    keys = ("rope_theta", "rotary_emb_base")
    assert only({"rotary_emb_base": 25000}, keys).values["rope_theta"] == 25000
    with pytest.raises(ConfigConflictError, match="rotary_emb_base"):
        only({"rotary_emb_base": 25000, "rope_theta": 10000.0}, keys)


def test_nested_blocks_are_read_per_layer_type() -> None:
    config = {"rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "no_rope": None,
    }}  # fmt: skip
    full, sliding = rope_blocks(config)
    assert (full.layers, full.rope_type, full.values["rope_theta"]) == ("full_attention", "linear", 1e6)
    assert (sliding.layers, sliding.rope_type, sliding.values["rope_theta"]) == ("sliding_attention", "default", 1e4)
    assert full.sources["factor"] == "rope_parameters.full_attention.factor"


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("value", ["yarn", 4, [], True])
def test_a_block_that_is_no_object(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{key} is .* it must be an object or null"):
        only({key: value})


@pytest.mark.parametrize("key", ["rope_theta", "factor", "attention_factor", "partial_rotary_factor"])
@pytest.mark.parametrize("value", ["500000", True, [1], 0, -1.0, float("inf"), float("nan")])
def test_a_value_of_the_wrong_kind_is_named_with_its_place(key: str, value: object) -> None:
    with pytest.raises(ConfigError) as caught:
        only({"rope_parameters": {key: value}})
    assert f"rope_parameters.{key}" in caught.value.message
    assert repr(value) in caught.value.message


def test_a_text_where_the_base_should_be_is_named_as_such() -> None:
    with pytest.raises(ConfigError, match=r"rope_theta is '500000', a str; it must be a number"):
        only({"rope_theta": "500000"})


@pytest.mark.parametrize("value", [["yarn"], 3, {"yarn": 1}])
def test_a_type_that_is_no_name(value: object) -> None:
    with pytest.raises(ConfigError, match="rope_type"):
        only({"rope_parameters": {"rope_type": value, "factor": 4.0}})


@pytest.mark.parametrize("key", ["rope_type", "factor"])
def test_blocks_per_layer_type_beside_keys_of_the_whole_are_refused(key: str) -> None:
    block = {"full_attention": {"rope_type": "default"}, key: 4.0}
    with pytest.raises(ConfigError, match=f"full_attention.*{key}"):
        rope_blocks({"rope_parameters": block})


@pytest.mark.parametrize("value", [64.5, "64", -64, 1 << 50])
def test_a_count_is_a_whole_positive_number_of_sane_size(value: object) -> None:
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        count({"max_position_embeddings": value}, "max_position_embeddings")


def test_numbers_and_counts() -> None:
    assert number({"a": 2.5}, "a") == 2.5
    assert number({"a": None}, "a") is None
    assert count({}, "a") is None
    assert count({"a": 7}, "a") == 7


def test_the_text_part_of_a_composite_config() -> None:
    inner = {"rope_theta": 1.0}
    assert text_config({"text_config": inner, "rope_theta": 2.0}) is inner
    flat = {"rope_theta": 2.0, "text_config": None}
    assert text_config(flat) is flat


# --- writing --------------------------------------------------------------------------------------------------------

OLD = {"model_type": "llama", "rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}, "head_dim": 16}


def test_style_v4_writes_what_version_4_reads() -> None:
    written = with_rope_block(OLD, YARN, 1e6, Style.V4)
    assert written["rope_theta"] == 1e6
    assert written["rope_scaling"] == YARN
    assert "rope_parameters" not in written


def test_style_v5_writes_what_version_5_reads() -> None:
    written = with_rope_block(OLD, YARN, 1e6, Style.V5)
    assert written["rope_parameters"] == {**YARN, "rope_theta": 1e6}
    assert not {"rope_theta", "rope_scaling"} & written.keys()


def test_style_dual_writes_both_and_they_agree() -> None:
    written = with_rope_block(OLD, YARN, 1e6, Style.DUAL, partial_rotary_factor=0.5)
    assert only(written).values == {**YARN, "rope_theta": 1e6, "partial_rotary_factor": 0.5}
    assert written["partial_rotary_factor"] == written["rope_parameters"]["partial_rotary_factor"] == 0.5
    assert written["head_dim"] == 16
    assert OLD["rope_theta"] == 1e4, "the old config is not changed"


@pytest.mark.parametrize("style", list(Style))
def test_no_scaling_is_written_as_none(style: Style) -> None:
    written = with_rope_block(OLD, {"rope_type": "default"}, 2e4, style)
    block = only(written)
    assert block.rope_type == "default"
    assert block.values["rope_theta"] == 2e4
    assert written.get("rope_scaling") is None


def test_the_marker_is_added_to_and_comes_last() -> None:
    marked = with_marker({"ropetool": {"pairing": "half"}, "a": 1}, version="1")
    assert list(marked) == ["a", "ropetool"]
    assert marker(marked) == {"pairing": "half", "version": "1"}
    assert marker({}) == marker({"ropetool": None}) == {}
    with pytest.raises(ConfigError, match="ropetool is 'half'"):
        marker({"ropetool": "half"})


# --- the file -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "cannot be read as JSON"),
        (b"{", "cannot be read as JSON"),
        (b"[1]", "holds a JSON list, not an object"),
        (b"3", "holds a JSON int, not an object"),
        (b"null", "holds a JSON NoneType, not an object"),
        (b'{"rope_theta": NaN}', "NaN is not a JSON number"),
        (b'{"rope_theta": Infinity}', "Infinity is not a JSON number"),
        (b'{"a": 1, "a": 2}', "the key 'a' appears twice"),
        (b'{"a": {"b": 1, "b": 1}}', "the key 'b' appears twice"),
        (b"\xff\xfe{\x00}\x00", "cannot be read as JSON"),
        (b'{"a": ' * 100_000, "cannot be read as JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "cannot be read as JSON"),
    ],
)
def test_a_file_that_is_no_config(content: bytes, said: str, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"config\.json") as caught:
        read_json_file(file)
    assert said in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 500


def test_a_byte_order_mark_is_not_fatal_without_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps({"a": 1}).encode())
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_json_file(file)


def test_a_file_of_absurd_size_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as handle:
        handle.truncate(65 << 20)
    with pytest.raises(ConfigError, match="68,157,440 bytes"):
        read_json_file(file)


def test_one_e_999_is_infinite_and_refused() -> None:
    """JSON has no infinity, but 1e999 parses to one."""
    with pytest.raises(ConfigError, match="rope_theta"):
        only(json.loads('{"rope_theta": 1e999}'))
