"""Keys that tell a layout and that the class does not read, each with those who do."""

from __future__ import annotations

from typing import Any

import pytest

from ropetool.engines.declared import KEYS, declared_keys
from ropetool.engines.rows import ROWS
from ropetool.families.reading import Reading, read_model
from ropetool.families.table import TABLE
from tests.native import CONFIG

DEEPSEEK = {
    "model_type": "deepseek_v3", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 4,
    "q_lora_rank": None, "kv_lora_rank": 16, "qk_nope_head_dim": 4, "qk_rope_head_dim": 8, "v_head_dim": 4,
    "num_hidden_layers": 2, "max_position_embeddings": 64, "rope_theta": 1e4,
}  # fmt: skip


def reading(base: dict[str, Any] = CONFIG, **changes: Any) -> Reading:
    return read_model({**base, **changes})


# A key with its value, and the layout that it tells.
TOLD = (
    ("rope_traditional", True, "interleaved"), ("rope_traditional", False, "half"),
    ("rope_is_neox_style", True, "half"), ("rope_is_neox_style", False, "interleaved"),
    ("is_neox_style", False, "interleaved"), ("rope_interleave", True, "interleaved"),
    ("rope_interleaved", True, "interleaved"), ("rotary_interleaved", False, "half"),
    ("rotary_emb_interleaved", True, "interleaved"), ("rotary_interleave", True, "interleaved"),
)  # fmt: skip


@pytest.mark.parametrize(("key", "value", "says"), TOLD)
def test_a_key(key: str, value: bool, says: str) -> None:
    (evidence,), warnings = declared_keys(reading(**{key: value}))
    assert (evidence.source, evidence.says) == ("config", says)
    assert evidence.detail.startswith(f"{key} is {str(value).lower()}: ")
    assert "its class in transformers does not" in evidence.detail
    assert evidence.figures["class_reads"] is False
    assert not warnings


def test_every_key_is_tested() -> None:
    assert {key for key, *_ in TOLD} == KEYS.keys()


def test_every_key_that_an_engine_obeys_is_known() -> None:
    """Over all types and engines: a row with a new key needs one here too."""
    configs = [reading()] + [reading(model_type=name) for name in ("mistral", "ernie4_5", "qwen2") if name in TABLE]
    obeyed = {
        key
        for one in [*configs, reading(DEEPSEEK)]
        for row in ROWS
        for way in row.ways(one).values()
        for key in way.keys
    }
    assert obeyed
    assert obeyed <= KEYS.keys()


@pytest.mark.parametrize(
    ("key", "model_type", "readers"),
    [("rope_traditional", "llama", ["mlx-lm 0.32.2"]), ("rope_is_neox_style", "llama", ["sglang 0.5.23"]),
     ("rope_is_neox_style", "qwen2", []), ("rope_interleave", "llama", [])],
)  # fmt: skip
def test_who_obeys_it(key: str, model_type: str, readers: list[str]) -> None:
    (evidence,), _ = declared_keys(reading(model_type=model_type, **{key: True}))
    assert evidence.figures["read_by"] == readers
    assert ("no engine that is known obeys" in evidence.detail) is not bool(readers)


def test_a_key_that_the_class_obeys_is_its_own_word() -> None:
    told = reading(DEEPSEEK, rope_interleave=False)
    assert [(e.source, e.says) for e in told.evidence] == [("config", "half")]
    assert declared_keys(told) == ((), ())


@pytest.mark.parametrize("changes", [{"rope_traditional": None}, {"mrope_interleaved": True}, {}])
def test_what_says_nothing(changes: dict[str, Any]) -> None:
    assert declared_keys(reading(**changes)) == ((), ())


def test_a_value_that_is_neither_true_nor_false_is_named() -> None:
    found, (warning,) = declared_keys(reading(rope_traditional="yes"))
    assert not found
    assert "rope_traditional is 'yes'" in warning.message
