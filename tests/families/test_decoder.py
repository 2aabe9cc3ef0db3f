"""Which part of a config the text decoder is, and what is refused because that is not known."""

from __future__ import annotations

from typing import Any

import pytest

from ropetool.errors import ConfigError, UnknownFamilyError
from ropetool.families.decoder import COMPOSITES, decoder_of, no_conversion, rows_of, with_text_keys
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE

TEXT = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128, "max_position_embeddings": 64,
        "rope_theta": 10000.0}  # fmt: skip
WHOLES = [name for name, row in COMPOSITES.items() if row.text_type in TABLE]


def whole(name: str, **text: Any) -> dict[str, Any]:
    """A config of a multimodal type with this text part."""
    config: dict[str, Any] = text
    for key in reversed(COMPOSITES[name].path):
        config = {key: config}
    return {"model_type": name, **config}


@pytest.mark.parametrize("name", WHOLES)
def test_a_part_without_a_type_has_the_class_s_own(name: str) -> None:
    row = COMPOSITES[name]
    decoder = decoder_of(whole(name))
    assert decoder.family.model_type == row.text_type
    assert decoder.path == row.path


@pytest.mark.parametrize("name", WHOLES)
def test_a_part_s_own_type_counts_only_where_the_class_takes_it(name: str) -> None:
    row = COMPOSITES[name]
    decoder = decoder_of(whole(name, model_type="cohere"))
    assert decoder.family.model_type == ("cohere" if row.obeys_type else row.text_type)


@pytest.mark.parametrize("name", WHOLES)
def test_without_its_part_a_config_is_flat_or_refused(name: str) -> None:
    row = COMPOSITES[name]
    config = {"model_type": name, **TEXT}
    if row.reads_flat:
        assert decoder_of(config).path == ()
        assert decoder_of(config).family.model_type == row.text_type
    else:
        with pytest.raises(ConfigError, match=f"no {row.path[0]}.*{'.'.join(row.path)}"):
            decoder_of(config)


def test_numbers_that_the_part_lacks_are_the_class_s_own_and_said() -> None:
    """LLaVA 1.5 on the Hub: its text_config has neither heads nor widths."""
    reading = read_model(whole("llava", model_type="llama", max_position_embeddings=4096, vocab_size=32064))
    assert (reading.geometry.heads, reading.geometry.head_dim) == (32, 128)
    said = [warning.message for warning in reading.warnings if warning.code == "class-default"]
    assert any("num_attention_heads; the class default 32" in message for message in said)
    assert reading.model_type == "llava"


def test_a_flat_config_of_a_plain_type_has_no_such_defaults() -> None:
    with pytest.raises(ConfigError, match="num_attention_heads"):
        read_model({"model_type": "llama", "hidden_size": 4096})


def test_what_is_not_an_object_is_refused() -> None:
    with pytest.raises(ConfigError, match="text_config is 3; it must be an object"):
        decoder_of({"model_type": "llava", "text_config": 3})


def test_another_part_on_the_way_is_refused() -> None:
    config = {"model_type": "colpali", "vlm_config": {"model_type": "idefics3", "text_config": {}}}
    with pytest.raises(UnknownFamilyError, match="vlm_config of this colpali is a idefics3; only paligemma"):
        decoder_of(config)


def test_a_multimodal_type_outside_the_data_says_so() -> None:
    parts = {"text_config": {"model_type": "llama"}, "vision_config": {"model_type": "vit"}}
    with pytest.raises(UnknownFamilyError, match=r"several parts \(text_config, vision_config\)"):
        decoder_of({"model_type": "newcomer_vl", **parts})


def test_a_text_decoder_outside_the_table_is_named() -> None:
    config = whole("llava", model_type="newcomer")
    with pytest.raises(UnknownFamilyError, match="the text decoder of llava, newcomer, is not in the family table"):
        decoder_of(config)


def test_keys_are_written_in_the_text_part() -> None:
    config = whole("colpali", head_dim=16)
    changed = with_text_keys(config, ("vlm_config", "text_config"), head_dim=32, new=1)
    assert changed == whole("colpali", head_dim=32, new=1)
    assert config == whole("colpali", head_dim=16)


@pytest.mark.parametrize("name", COMPOSITES)
def test_every_row_is_whole(name: str) -> None:
    row = COMPOSITES[name]
    assert row.places or row.refusal
    assert not any(place.split(".")[0] in row.towers for place in row.places)
    assert not row.refusal or no_conversion(row) == row.refusal
    if row.text_type in TABLE:
        (family,), (composite,) = rows_of(name)
        assert (family.model_type, composite) == (row.text_type, row)
