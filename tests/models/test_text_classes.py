"""What the text witness computes is what each class computes: the loss in its own layout, and with another base.

The oracle is transformers: its own class, on a config with another base, with its own loss.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.checkpoint.folder import read_config
from ropetool.families.reading import Evidence
from ropetool.models import text_findings, text_witness
from ropetool.models.options import Device
from ropetool.models.text import encode
from ropetool.models.text_findings import TextFindings
from ropetool.models.understand import understand
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import COMMON, TINY, edit_json, read_json

WORDS = bundled(TEXT).read_text(encoding="utf-8")[:2000]
SIZE = {"vocab_size": 257, "max_position_embeddings": 128}
# As in test_reference: at the builder's size attention is nearly uniform, and no position matters.
LOUDER = 5.0
# Kinds of layers with a base each, and layers without a rotation.
MORE: dict[str, dict[str, Any]] = {
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64},
    "smollm3": {"no_rope_layers": [1, 0]},
}


def build(name: str, directory: Path) -> Path:
    config = (
        tiny.config_of(name, **({"vocab_size": 257} if name == "gptj" else SIZE))
        if name in TINY
        else AutoConfig.for_model(name, **{**COMMON, **SIZE, **MORE[name]})
    )
    model = tiny.random_model(config)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.ndim == 2 and any(part in key for part in ("q_", "k_", "qkv", "query_key_value", "kv_")):
                weight *= LOUDER
    tiny.save(model, directory)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled(CHECKPOINT) / file, directory)
    return directory


def ask(path: Path) -> TextFindings:
    return text_findings.text_findings(path, understand(path, read_config(path)), WORDS, Device.CPU)


def own_loss(path: Path, windows: int, length: int) -> float:
    """By the class itself, over the pieces that the witness reads."""
    ids = encode(path, WORDS)[: windows * length].reshape(windows, length)
    with torch.no_grad():
        return float(torch.stack([tiny.load(path)(input_ids=row[None], labels=row[None]).loss for row in ids]).mean())


def pieces(found: TextFindings) -> tuple[int, int]:
    length = min(512, found.lengths.trained)
    return found.losses.layouts.tokens // (length - 1), length


@pytest.mark.parametrize("name", [*TINY, *MORE])
def test_the_loss_in_the_layout_of_the_class(name: str, tmp_path: Path) -> None:
    path = build(name, tmp_path / name)
    reading = understand(path, read_config(path))
    found = ask(path)
    assert (found.evidence.says, found.evidence.confidence) == ("unknown", None)
    losses = found.losses.layouts
    layout = reading.class_pairing
    own, other = getattr(losses, layout.value), getattr(losses, layout.other.value)
    expected = own_loss(path, *pieces(found))
    assert own == pytest.approx(expected, abs=2e-4)
    assert abs(other - expected) > 2e-3


def believed(monkeypatch: pytest.MonkeyPatch, layout: Pairing) -> None:
    """Random weights say nothing, and then no base is tried: here they count as read in this layout."""
    right = text_witness._judged

    def judged(*args: Any) -> Any:
        evidence, losses = right(*args)
        return Evidence("text", layout.value, evidence.detail), losses

    monkeypatch.setattr(text_witness, "_judged", judged)
    monkeypatch.setattr(text_witness, "BASE_OPERATIONS", 0.0)
    monkeypatch.setattr(text_findings, "rise", lambda *_: None)


def based(path: Path, layers: str, theta: float) -> Path:
    """The same weights under another base, for one kind of layer."""
    block = read_json(path / "config.json")["rope_parameters"]
    (block if layers == "all" else block[layers])["rope_theta"] = theta
    edit_json(path / "config.json", rope_parameters=block)
    return path


def check_bases(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    reading = understand(path, read_config(path))
    believed(monkeypatch, reading.class_pairing)
    found = ask(path)
    before, compared = read_json(path / "config.json"), 0
    for curve in found.losses.bases:
        for one in curve.losses:
            expected = own_loss(based(path, curve.layers, one.theta), *pieces(found))
            assert one.loss == pytest.approx(expected, abs=2e-4), (curve.layers, one.theta)
            edit_json(path / "config.json", **before)
            compared += 1
        spread = [one.loss for one in curve.losses]
        assert max(spread) - min(spread) > 2e-3
    return compared


@pytest.mark.parametrize(("name", "curves"), [("llama", 1), ("phi3", 1), ("glm4", 1), ("gemma3_text", 2)])
def test_a_base_in_the_live_model_is_that_base_in_the_config(
    name: str, curves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check_bases(build(name, tmp_path / name), monkeypatch) >= 4 * curves


def test_a_base_that_goes_to_the_wrong_kind_of_layer_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., Any] = text_witness._scaled
    monkeypatch.setattr(text_witness, "_scaled", lambda how, index, scaling: right(how, 1 - index, scaling))
    with pytest.raises(AssertionError):
        check_bases(build("gemma3_text", tmp_path / "g"), monkeypatch)


def test_a_base_under_a_scaling_keeps_the_scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build("llama", tmp_path / "yarn")
    block = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 128}
    edit_json(path / "config.json", rope_parameters=block, max_position_embeddings=256)
    assert check_bases(path, monkeypatch) >= 4


def test_a_class_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    """An encoder's scores of a token have seen the next one: its loss is none."""
    values = {**COMMON, **SIZE, "layer_types": None, "head_dim": None, "global_attn_every_n_layers": 1}
    values |= {"cls_token_id": 1, "sep_token_id": 2, "num_key_value_heads": None}
    config = AutoConfig.for_model("modernbert", **{k: v for k, v in values.items() if v is not None})
    from transformers import AutoModelForMaskedLM

    model = AutoModelForMaskedLM.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight *= LOUDER
    path = tiny.save(model, tmp_path / "encoder")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled(CHECKPOINT) / file, path)
    found = ask(path)
    assert (found.evidence.says, found.losses) == ("unknown", None)
    assert "looks ahead" in found.evidence.detail or "no head" in found.evidence.detail


def test_a_reading_without_rotations_is_unknown(tmp_path: Path) -> None:
    path = build("llama", tmp_path / "a")
    reading = replace(understand(path, read_config(path)), rotations=(), refusal="nothing turns")
    found = text_findings.text_findings(path, reading, WORDS, Device.CPU)
    assert found.evidence.detail == "the text could not be read: nothing turns"
