"""``convert --for``: the key that each engine reads, the refusals, and what is said to load a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ropetool import convert, extend, verify
from ropetool.checkpoint.folder import has_guard, read_config
from ropetool.engines.names import EngineName
from ropetool.engines.writing import loads_in, written_for
from ropetool.errors import ConfigError, UnsupportedError
from ropetool.families.methods import Method, Weights
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import edit_json, read_json

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED
E = EngineName


def convert_for(source: Path, destination: Path, to: Pairing, engine: EngineName | None) -> convert.Converted:
    return convert.apply(convert.plan(source, destination, to, None, "same", engine=engine))


# Engine, model, layout, and what config.json must then say that it did not say before.
WRITTEN: tuple[tuple[EngineName, str, Pairing, dict[str, Any]], ...] = (
    (E.TRANSFORMERS, "deepseek_v3", HALF, {"rope_interleave": False}),
    (E.MLX_LM, "llama", INTERLEAVED, {"rope_traditional": True, "rope_theta": 10000.0}),
    (E.MLX_LM, "mistral", INTERLEAVED, {"rope_traditional": True, "rope_theta": 10000.0}),
    (E.MLX_LM, "glm4", HALF, {"rope_traditional": False, "rope_theta": 10000.0, "partial_rotary_factor": 0.5}),
    (E.SGLANG, "llama", INTERLEAVED, {"rope_is_neox_style": False}),
    (E.SGLANG, "ernie4_5", HALF, {"rope_is_neox_style": True}),
    (E.SGLANG, "deepseek_v3", HALF, {"rope_interleave": False}),
    (E.TORCHTUNE, "llama", INTERLEAVED, {}),
)
# Engine, model, layout, and the reason in the refusal.
REFUSED: tuple[tuple[EngineName, str, Pairing, str], ...] = (
    (E.TRANSFORMERS, "qwen3", INTERLEAVED, "transformers would read the interleaved weights of qwen3 as half"),
    (E.MLX_LM, "qwen3", INTERLEAVED, r"a constant of the model class.*Give it the weights as half, or leave out --for"),
    (E.MLX_LM, "deepseek_v3", HALF, "mlx-lm would read the half weights of deepseek_v3 as interleaved"),
    (E.SGLANG, "qwen2", INTERLEAVED, r"sglang would read .* of qwen2 as half"),
    (E.SGLANG, "cohere", HALF, r"sglang would read .* of cohere as interleaved"),
    (E.TORCHTUNE, "qwen2", INTERLEAVED, "a rotate-half of its own"),
    (E.TORCHTUNE, "gptj", HALF, "how torchtune rotates gptj is not known"),
    (E.CTRANSLATE2, "llama", INTERLEAVED, "its converter takes the layout that transformers has"),
    (E.CTRANSLATE2, "olmo2", INTERLEAVED, "how ctranslate2 rotates olmo2 is not known"),
    (E.VLLM, "llama", INTERLEAVED, "vllm would read the interleaved weights of llama as half, silently wrong"),
    (E.VLLM, "deepseek_v3", HALF, "vllm would read the half weights of deepseek_v3 as interleaved"),
    (E.LLAMA_CPP, "llama", INTERLEAVED, "permutes q and k itself"),
    (E.EXLLAMAV2, "llama", INTERLEAVED, "constant of the architecture"),
)  # fmt: skip


def label(value: object) -> str:
    return str(getattr(value, "value", value))[:30]


def test_every_engine_is_in_both_lists_as_far_as_it_can_be() -> None:
    assert {row[0] for row in WRITTEN} == {E.TRANSFORMERS, E.MLX_LM, E.SGLANG, E.TORCHTUNE}
    assert {row[0] for row in REFUSED} == set(E)


@pytest.mark.parametrize(("engine", "name", "to", "said"), WRITTEN, ids=label)
def test_the_key_that_the_engine_reads_is_written(engine, name, to, said, checkpoint, tmp_path: Path) -> None:
    source, there = checkpoint(name), tmp_path / "there"
    before = read_json(source / "config.json")
    result = convert_for(source, there, to, engine)
    config = read_json(there / "config.json")
    changed = {k: v for k, v in config.items() if k != "ropetool" and before.get(k, ...) != v and v is not None}
    assert changed == said
    assert not has_guard(there)
    assert result.engine
    assert result.engine.engine == engine.value
    assert engine.value in result.loads_in
    assert verify.verify(source, there, tokens=32).passed
    # Back without the engine: its layout key is gone; a base at the top level stays, and says the same.
    convert_for(there, tmp_path / "back", to.other, None)
    back = read_json(tmp_path / "back" / "config.json")
    assert "for" not in back["ropetool"]
    assert read_model(back).rotations[0].scaling == read_model(before).rotations[0].scaling
    flat = ("ropetool", "rope_theta", "rope_scaling", "partial_rotary_factor")
    assert {k: v for k, v in back.items() if k not in flat} == {k: v for k, v in before.items() if k not in flat}


@pytest.mark.parametrize(("engine", "name", "to", "reason"), REFUSED, ids=label)
def test_an_engine_that_would_read_it_wrongly_is_refused(engine, name, to, reason, checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=reason) as raised:
        convert_for(checkpoint(name), tmp_path / "there", to, engine)
    assert raised.value.fields == {"engine": engine.value, "model_type": TABLE[name].model_type, "pairing": to.value}
    assert "ropetool.load" in raised.value.message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("engine", EngineName, ids=label)
def test_weights_in_the_layout_of_the_class_are_right_everywhere(engine: EngineName, checkpoint, tmp_path) -> None:
    convert_for(checkpoint("llama"), tmp_path / "there", INTERLEAVED, None)
    assert has_guard(tmp_path / "there")
    result = convert_for(tmp_path / "there", tmp_path / "back", HALF, engine)
    assert {engine.value, "transformers", "ropetool.load"} <= set(result.loads_in)
    assert not has_guard(tmp_path / "back")


def loads(config):
    return loads_in(config, read_model(config))


def test_what_loads_a_result(checkpoint, tmp_path: Path) -> None:
    """A guarded one by ropetool alone; another by what is known to read the keys that are there."""
    stock = read_config(checkpoint("llama"))
    assert "rope_theta" not in stock
    assert loads(stock) == ("transformers", "torchtune", "ctranslate2", "ropetool.load")
    assert "mlx-lm" in loads({**stock, "rope_theta": 10000.0})
    assert "mlx-lm" not in loads({**stock, "rope_theta": 10000.0, "rope_traditional": True})
    marked = {**stock, "rope_theta": 10000.0, "ropetool": {"pairing": "interleaved"}}
    assert loads(marked) == ("ropetool.load",)
    assert loads(written_for(marked, E.MLX_LM)[0]) == ("mlx-lm", "ropetool.load")
    deep = read_config(checkpoint("deepseek_v3"))
    assert loads({**deep, "rope_interleave": False, "ropetool": {"pairing": "half"}}) == (
        "transformers", "ropetool.load",
    )  # fmt: skip


def test_a_base_that_mlx_lm_cannot_be_shown_is_refused() -> None:
    config = json.loads(tiny.config_of("llama").to_json_string(use_diff=False))
    assert written_for(config, E.MLX_LM)[0]["rope_theta"] == 10000.0
    nested = {"vocab_size": 9, "model_type": "gemma3_text", "num_attention_heads": 4, "head_dim": 8, "hidden_size": 16}
    nested["rope_parameters"] = {
        kind: {"rope_type": "default", "rope_theta": 1e6} for kind in ("full_attention", "sliding_attention")
    }
    with pytest.raises(UnsupportedError, match="mlx-lm reads the base of gemma3_text at the top level only"):
        written_for(nested, E.MLX_LM)


def test_an_extension_stays_for_its_engine(checkpoint, tmp_path: Path) -> None:
    convert_for(checkpoint("llama"), tmp_path / "there", INTERLEAVED, E.SGLANG)
    extend.apply(extend.plan(tmp_path / "there", tmp_path / "longer", Method.YARN, factor=2.0, weights=Weights.NONE))
    assert not has_guard(tmp_path / "longer")
    assert read_json(tmp_path / "longer" / "config.json")["rope_is_neox_style"] is False


def test_a_key_that_says_the_other_layout_is_a_warning(own, tmp_path: Path) -> None:
    source = own("llama")
    edit_json(source / "config.json", rope_traditional=False)
    plan = convert.plan(source, tmp_path / "there", INTERLEAVED)
    (warning,) = (w for w in plan.warnings if w.code == "engine-key-disagrees")
    assert warning.message.startswith("rope_traditional is false, by which some engines read half weights")
    plan = convert.plan(source, tmp_path / "there", INTERLEAVED, engine=E.MLX_LM)
    assert "engine-key-disagrees" not in {w.code for w in plan.warnings}
    assert plan.config["rope_traditional"] is True
    assert plan.config["ropetool"]["for"]["keys_before"] == {"rope_traditional": False}


def test_a_damaged_marker_is_named(own, tmp_path: Path) -> None:
    source = own("llama")
    edit_json(source / "config.json", ropetool={"pairing": "half", "for": {"engine": "sglang"}})
    with pytest.raises(ConfigError, match=r"the marker's for is .* it was damaged"):
        convert.plan(source, tmp_path / "there", INTERLEAVED)
