"""Inspecting: the facts, the evidence, and the warnings."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool import convert
from ropetool.checkpoint.folder import read_config
from ropetool.detect import inspect
from ropetool.errors import ConfigConflictError, MissingFileError, ShardError, UnknownFamilyError
from ropetool.families.table import TABLE
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import TINY, snapshot


def folder(where: Path, **config: Any) -> Path:
    where.mkdir()
    (where / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return where


def codes(result) -> set[str]:
    return {warning.code for warning in result.warnings}


@pytest.mark.parametrize("name", TINY)
def test_every_tiny_model(name: str, checkpoint) -> None:
    source, row = checkpoint(name), TABLE[TINY[name].model_type]
    before = snapshot(source)
    result = inspect(source)
    assert (result.scheme, result.pairing, result.model_type) == ("rope", row.pairing.value, row.model_type)
    config = tiny.config_of(name)
    (fact,) = result.rope
    assert fact.length == 64
    assert (fact.type, fact.factor, fact.attention_factor) == ("default", None, 1.0)
    expected = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10000.0)
    assert fact.theta == expected
    assert result.heads["query"] == 8
    assert result.moves is not None
    assert 0 < result.moves.share < 1
    total = sum(t.numel() * t.element_size() for t in load_file(source / "model.safetensors").values())
    assert math.isclose(result.moves.share, result.moves.bytes / total)
    assert result.nope_layers == ()
    assert snapshot(source) == before


def test_the_facts_of_a_scaled_model(tmp_path: Path) -> None:
    result = inspect(folder(
        tmp_path / "a", model_type="qwen3", num_attention_heads=16, num_key_value_heads=8, hidden_size=1024,
        head_dim=128, max_position_embeddings=131072, rope_theta=1e6,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ))  # fmt: skip
    (fact,) = result.rope
    assert (fact.layers, fact.type, fact.theta, fact.theta_source) == ("all", "yarn", 1e6, "rope_theta")
    assert (fact.factor, fact.original_length, fact.length) == (4.0, 32768, 131072)
    assert (fact.head_dim, fact.rotary_dim) == (128, 128)
    assert math.isclose(fact.attention_factor, 1.1386294, rel_tol=1e-7)
    assert result.heads == {"query": 16, "key_value": 8}
    assert result.moves is None
    assert codes(result) == {"no-weights"}


@pytest.mark.parametrize(
    ("model_type", "scheme"),
    [("deberta-v2", "learned"), ("gpt2", "learned"), ("t5", "relative-bias"), ("bloom", "alibi"),
     ("whisper", "sinusoidal"), ("mamba", "none"), ("xlnet", "relative-vectors")],
)  # fmt: skip
def test_a_model_without_rope_is_described_not_refused(model_type: str, scheme: str, tmp_path: Path) -> None:
    result = inspect(folder(tmp_path / "a", model_type=model_type))
    assert (result.scheme, result.pairing, result.rope, result.moves) == (scheme, None, (), None)
    assert codes(result) == {"no-rope"}


def test_an_unknown_type_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownFamilyError, match="plainformer"):
        inspect(folder(tmp_path / "a", model_type="plainformer"))


def test_a_converted_checkpoint_says_that_stock_code_is_wrong_on_it(checkpoint, tmp_path: Path) -> None:
    convert.apply(convert.plan(checkpoint("llama"), tmp_path / "there", Pairing.INTERLEAVED))
    result = inspect(tmp_path / "there")
    assert result.pairing == "interleaved"
    assert [(e.source, e.says) for e in result.evidence] == [("marker", "interleaved"), ("family", "half")]
    assert "class-rotates-other-layout" in codes(result)
    assert any("is guarded" in warning.message for warning in result.warnings)
    (tmp_path / "there" / "config.json").write_text(json.dumps(read_config(tmp_path / "there")), encoding="utf-8")
    assert any("silently wrong" in warning.message for warning in inspect(tmp_path / "there").warnings)
    convert.apply(convert.plan(checkpoint("deepseek_v3"), tmp_path / "deep", Pairing.HALF))
    result = inspect(tmp_path / "deep")
    assert result.pairing == "half"
    assert "class-rotates-other-layout" not in codes(result)


def test_a_missing_base_is_a_warning(tmp_path: Path) -> None:
    result = inspect(folder(tmp_path / "a", model_type="llama", num_attention_heads=4, head_dim=8))
    assert result.rope[0].theta_source == "class default"
    assert {"theta-default", "class-default"} <= codes(result)


@pytest.mark.parametrize(("saved_base", "stale"), [(10000.0, False), (500000.0, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_saved_frequencies_that_disagree_are_named_with_their_base(saved_base, stale, dtype, own) -> None:
    source = own("llama")
    saved = saved_base ** (-torch.arange(0, 16, 2).double() / 16)
    tensors = load_file(source / "model.safetensors")
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": saved.to(dtype)},
              source / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    result = inspect(source)
    assert ("stale-inv-freq" in codes(result)) is stale
    inverse = {w.code: w.message for w in result.warnings if w.code.endswith("inv-freq")}
    planned = convert.plan(source, source.parent / "there", Pairing.INTERLEAVED).warnings
    assert {w.code: w.message for w in planned if w.code.endswith("inv-freq")} == inverse
    assert bool(inverse) is (stale or dtype is not torch.float32)
    if stale and dtype is torch.float32:
        (warning,) = (w for w in result.warnings if w.code == "stale-inv-freq")
        assert "base 500000" in warning.message
        assert "10000" in warning.message


def test_saved_frequencies_of_another_width_are_named_with_both(own) -> None:
    source = own("llama")
    tensors = load_file(source / "model.safetensors")
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)},
              source / "model.safetensors", metadata={"format": "pt"})  # fmt: skip
    (message,) = (w.message for w in inspect(source).warnings if w.code == "stale-inv-freq")
    assert "has 4 frequencies, for a rotary width of 8, but the config means 8, for a width of 16" in message


def test_other_weights_and_stale_copies_are_named(tmp_path: Path) -> None:
    source = tiny.save(tiny.model_of("llama"), tmp_path / "a", max_shard_size="60KB")
    (source / "pytorch_model.bin").write_bytes(b"x")
    first, second = sorted(source.glob("*.safetensors"))[:2]
    name = next(iter(load_file(first)))
    save_file({**load_file(second), name: load_file(first)[name]}, second, metadata={"format": "pt"})
    assert {"other-weights", "stale-copy"} <= codes(inspect(source))


def test_what_cannot_be_read_is_an_error_not_a_warning(own, tmp_path: Path) -> None:
    with pytest.raises(MissingFileError):
        inspect(tmp_path / "nothing")
    source = own("llama")
    file = source / "model.safetensors"
    os.truncate(file, file.stat().st_size - 8)
    with pytest.raises(ShardError, match="8 bytes beyond the end"):
        inspect(source)
    config = folder(tmp_path / "b", model_type="llama", rope_theta=1e4, rope_parameters={"rope_theta": 5e5})
    with pytest.raises(ConfigConflictError):
        inspect(config)


def test_an_index_with_a_missing_shard_is_not_taken_for_no_weights(tmp_path: Path) -> None:
    source = tiny.save(tiny.model_of("llama"), tmp_path / "a", max_shard_size="60KB")
    next(iter(sorted(source.glob("*.safetensors")))).unlink()
    with pytest.raises(Exception, match="which is not there"):
        inspect(source)
