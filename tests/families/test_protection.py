"""The guard against transformers itself: no class of the table loads a checkpoint that it would rotate wrongly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from ropetool import convert
from ropetool.checkpoint.config import with_marker
from ropetool.checkpoint.folder import has_guard, read_config
from ropetool.families.protection import guard_sentence, protected
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.models.catalog import model_class
from ropetool.models.tiny import tiny_config, tiny_values
from tests import tiny

# Types whose class obeys a key of the config: a conversion sets it, and the class is right.
OBEYING = [name for name, row in TABLE.items() if row.pairing_key]
DISOBEYING = [name for name in sorted(TABLE) if name not in OBEYING]


def said_by(load: Any, *arguments: Any, **options: Any) -> str:
    """What a loader raises, as text; fails where it raises nothing."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  each class raises its own kind; the words are checked
        load(*arguments, **options)
    return str(raised.value)


def marked_config(model_type: str) -> tuple[Any, dict[str, Any]]:
    """A tiny config of the type as an object, and its JSON marked as the layout that the class does not rotate."""
    config = tiny_config(model_type, tiny_values(model_type))
    stored = json.loads(config.to_json_string(use_diff=False))
    return config, with_marker(stored, pairing=TABLE[model_type].pairing.other.value)


@pytest.mark.parametrize("model_type", DISOBEYING)
def test_no_stock_class_loads_it(model_type: str, tmp_path: Path) -> None:
    """Without weights: the config alone must stop every loader, before a weight is read."""
    config, marked = marked_config(model_type)
    sentence = guard_sentence(read_model(marked))
    assert f"these {model_type} weights are stored as {TABLE[model_type].pairing.other.value}" in sentence
    (tmp_path / "config.json").write_text(json.dumps(protected(marked)), encoding="utf-8")
    kind = model_class(model_type)
    for load in (AutoModelForCausalLM, AutoConfig, kind, type(config)):
        assert sentence in said_by(load.from_pretrained, tmp_path)
    for load in (kind, type(config)):
        assert sentence in said_by(load.from_pretrained, tmp_path, dtype=torch.float32)
    # The fault planted: the guard taken off by hand, and the same class asks for nothing but weights.
    (tmp_path / "config.json").write_text(json.dumps(read_config(tmp_path)), encoding="utf-8")
    assert "no file named" in said_by(kind.from_pretrained, tmp_path)


@pytest.mark.parametrize("model_type", OBEYING)
def test_a_class_that_obeys_a_key_needs_no_guard(model_type: str) -> None:
    config = tiny_config(model_type, tiny_values(model_type))
    stored = json.loads(config.to_json_string(use_diff=False))
    marked = with_marker({**stored, TABLE[model_type].pairing_key: False}, pairing="half")
    assert protected(marked) == marked
    disagreeing = with_marker({**stored, TABLE[model_type].pairing_key: True}, pairing="half")
    assert protected(disagreeing) != disagreeing


def test_what_the_class_rotates_and_what_was_never_converted_get_no_guard() -> None:
    config = {**tiny.config_of("llama").to_dict(), "ropetool": {"pairing": "half"}}
    assert protected(config) == config
    config.pop("ropetool")
    assert protected(config) == config


@pytest.mark.parametrize("name", ["llama", "gptj", "gpt_neox", "cohere-qk-norm"])
def test_without_the_guard_the_class_loads_it_and_is_silently_wrong(name: str, checkpoint, tmp_path: Path) -> None:
    """What the guard is for; and a conversion back takes it off, to the config that was."""
    source, there, back = checkpoint(name), tmp_path / "there", tmp_path / "back"
    pairing = read_model(read_config(source)).pairing
    convert.apply(convert.plan(source, there, pairing.other, None, "same"))
    convert.apply(convert.plan(there, back, pairing))
    was, now = tiny.read_json(source / "config.json"), tiny.read_json(back / "config.json")
    assert {key: value for key, value in now.items() if key != "ropetool"} == was
    assert list(now) == [*was, "ropetool"]
    assert not has_guard(back)
    want = tiny.logits(tiny.load(source))
    assert torch.equal(tiny.logits(tiny.load(back)), want)
    assert "weights are stored as" in said_by(tiny.load, there)
    (there / "config.json").write_text(json.dumps(read_config(there)), encoding="utf-8")
    assert float((tiny.logits(tiny.load(there)) - want).abs().max()) > 0.5


def test_its_tokenizer_loads_all_the_same(checkpoint, tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    convert.apply(convert.plan(checkpoint("qwen3"), tmp_path / "there", TABLE["qwen3"].pairing.other, None, "same"))
    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "there")
    assert AutoTokenizer.from_pretrained(tmp_path / "there")("b")["input_ids"] == [1]
