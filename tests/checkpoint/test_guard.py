"""The guard as JSON: what it covers, and that it comes off without a trace."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ropetool.checkpoint.folder import has_guard, read_config
from ropetool.checkpoint.guard import KEYS, guarded, is_guarded, unguarded
from ropetool.errors import ConfigError

SENTENCE = "these weights are not what you think"
MARKED = {"ropetool": {"pairing": "interleaved"}}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "head_dim": 8},
    "no architectures": {"hidden_size": 64, "model_type": "phi"},
    "another width": {"n_embd": 64, "model_type": "gptj"},
    "a null": {"problem_type": None, "hidden_size": 64, "model_type": "gptj", "architectures": None},
    "composite": {
        "model_type": "gemma3",
        "text_config": {"model_type": "gemma3_text", "hidden_size": 64, "head_dim": 8},
        "vision_config": {"model_type": "siglip"},
    },
    "composite of composites": {
        "model_type": "qwen2_5_omni",
        "thinker_config": {"model_type": "qwen2_5_omni_thinker", "text_config": {"hidden_size": 64}, "x": {"y": 1}},
    },
    "code of its own": {
        "model_type": "odd",
        "auto_map": {"AutoConfig": "c.C", "AutoTokenizer": ["t.T", None], "AutoModelForCausalLM": "m.M"},
    },
}
PATHS = {"composite": ("text_config",), "composite of composites": ("thinker_config", "text_config")}


@pytest.mark.parametrize("name", CONFIGS)
def test_it_comes_off_without_a_trace(name: str) -> None:
    config = CONFIGS[name] | MARKED
    covered = guarded(config, SENTENCE, PATHS.get(name, ()))
    assert is_guarded(covered)
    assert not is_guarded(config)
    assert json.dumps(unguarded(json.loads(json.dumps(covered)))) == json.dumps(config)
    assert unguarded(config) == config


@pytest.mark.parametrize("name", CONFIGS)
def test_every_key_that_a_stock_class_needs_says_the_sentence(name: str) -> None:
    covered = guarded(CONFIGS[name] | MARKED, SENTENCE, PATHS.get(name, ()))
    parts = [covered]
    for key in PATHS.get(name, ()):
        parts.append(parts[-1][key])
    for part in parts:
        assert part.get("n_embd") in (None, SENTENCE)
        assert {key: part[key] for key in KEYS} == dict.fromkeys(KEYS, SENTENCE) | {"architectures": [SENTENCE]}
    assert covered.get("auto_map") in (None, {"AutoTokenizer": ["t.T", None]})
    assert covered.get("vision_config") == CONFIGS[name].get("vision_config")
    assert covered["ropetool"]["pairing"] == "interleaved"


def test_what_is_not_covered_is_not_taken_off() -> None:
    covered = guarded(CONFIGS["plain"] | MARKED, SENTENCE) | {"tie_word_embeddings": True}
    assert unguarded(covered) == CONFIGS["plain"] | MARKED | {"tie_word_embeddings": True}


def test_the_config_of_a_directory_is_read_without_it(tmp_path) -> None:
    config = CONFIGS["plain"] | MARKED
    (tmp_path / "config.json").write_text(json.dumps(guarded(config, SENTENCE)), encoding="utf-8")
    assert has_guard(tmp_path)
    assert read_config(tmp_path) == config
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert not has_guard(tmp_path)


@pytest.mark.parametrize("damaged", [None, "gone", 3, {"text_config": "gone"}])
def test_a_damaged_guard_is_named(damaged: object) -> None:
    covered = guarded(CONFIGS["plain"] | MARKED, SENTENCE)
    covered["ropetool"]["guard"] = damaged
    with pytest.raises(ConfigError, match=r"the marker's guard is .* it was damaged"):
        unguarded(covered)
