"""A text tells the layout and the base of trained weights, whatever config.json says, and nothing of random ones."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from ropetool import convert
from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.checkpoint.folder import read_config
from ropetool.models import loss_rise, text_findings, text_witness
from ropetool.models.options import Device
from ropetool.models.text_findings import TextFindings
from ropetool.models.understand import understand
from ropetool.rope.pairing import Pairing
from tests.tiny import edit_json

WORDS = bundled(TEXT).read_text(encoding="utf-8")
TRAINED = bundled(CHECKPOINT)


def ask(path: Path, text: str = WORDS) -> TextFindings:
    return text_findings.text_findings(path, understand(path, read_config(path)), text, Device.CPU)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here no length is measured."""
    monkeypatch.setattr(text_findings, "rise", lambda *_: None)


@pytest.fixture
def interleaved(tmp_path: Path) -> Path:
    """The trained checkpoint, converted and marked."""
    convert.apply(convert.plan(TRAINED, tmp_path / "interleaved", Pairing.INTERLEAVED))
    return tmp_path / "interleaved"


@pytest.fixture
def never_permuted(interleaved: Path, tmp_path: Path) -> Path:
    """Interleaved weights under a config that says nothing of it."""
    shutil.copytree(TRAINED, tmp_path / "never")
    shutil.copy(interleaved / "model.safetensors", tmp_path / "never")
    return tmp_path / "never"


def copied(tmp_path: Path, **rope: Any) -> Path:
    directory = Path(shutil.copytree(TRAINED, tmp_path / "copy"))
    block = {"rope_type": "default", "rope_theta": 100000.0, **rope}
    edit_json(directory / "config.json", rope_parameters=block, rope_theta=block["rope_theta"])
    return directory


def random_weights(tmp_path: Path, louder: float = 1.0) -> Path:
    """The same class and tokenizer, and weights that were never trained."""
    directory = Path(shutil.copytree(TRAINED, tmp_path / "random"))
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(TRAINED))
    for name, weight in model.named_parameters():
        if "q_proj" in name or "k_proj" in name:
            weight.data *= louder
    model.save_pretrained(directory)
    return directory


def check_layouts(half: Path, converted: Path, unmarked: Path) -> None:
    """The three states that weights and config can be in."""
    for path, says in ((half, "half"), (converted, "interleaved"), (unmarked, "interleaved")):
        found = ask(path)
        assert found.evidence.says == says, found.evidence.detail
        assert found.evidence.confidence is not None
        assert 0.99 < found.evidence.confidence < 1
        losses = found.losses.layouts
        right, wrong = (losses.half, losses.interleaved)[:: 1 if says == "half" else -1]
        assert right < 2.5 < wrong - 0.2
        assert losses.gap == pytest.approx(wrong - right)
        assert losses.gap > 5 * losses.error
        assert losses.tokens <= text_witness.TOKENS


def test_the_layout_of_trained_weights(interleaved: Path, never_permuted: Path) -> None:
    check_layouts(TRAINED, interleaved, never_permuted)


def test_a_witness_that_believes_the_config_is_seen(
    interleaved: Path, never_permuted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = text_witness.rotated
    monkeypatch.setattr(
        text_witness, "rotated", lambda loaded, how, ids: right(loaded, replace(how, pairing=Pairing.HALF), ids)
    )
    with pytest.raises(AssertionError):
        check_layouts(TRAINED, interleaved, never_permuted)


def test_a_config_that_contradicts_the_weights_gets_no_length(never_permuted: Path) -> None:
    found = ask(never_permuted)
    assert "mend that first" in found.lengths.detail
    assert found.lengths.measured is None


@pytest.mark.parametrize("louder", [1.0, 8.0])
def test_random_weights_tell_nothing(tmp_path: Path, louder: float) -> None:
    found = ask(random_weights(tmp_path, louder))
    assert (found.evidence.says, found.evidence.confidence, found.losses.bases) == ("unknown", None, ())
    assert "reads nothing" in found.evidence.detail


NOISE = np.random.default_rng(3).normal(0, 1, 510)
# Mean losses as half and as interleaved and how far they scatter apart, the cost of counting and
# of no rotation, and the verdict.
JUDGED = {
    "clear": (2.3, 3.0, 0.5, 3.1, 3.0, "half"),
    "the other way": (3.0, 2.3, 0.5, 3.1, 3.0, "interleaved"),
    "too little between them": (2.30, 2.32, 0.05, 3.1, 3.0, "unknown"),
    "too uncertain": (2.3, 2.5, 4.0, 3.1, 3.0, "unknown"),
    "both no better than counting": (3.2, 4.5, 0.5, 3.1, 5.0, "unknown"),
    "hardly better than counting": (3.08, 4.5, 0.5, 3.1, 5.0, "unknown"),
    "no better than without any rotation": (2.3, 3.0, 0.5, 3.1, 2.2, "unknown"),
    "no numbers": (float("nan"), float("nan"), 0.5, 3.1, 3.0, "unknown"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_the_rule(name: str) -> None:
    half, interleaved, apart, counting, still, says = JUDGED[name]
    losses = {Pairing.HALF: half + NOISE, Pairing.INTERLEAVED: interleaved + NOISE + apart * NOISE[::-1]}
    evidence, _ = text_witness._judged(losses, counting + NOISE, still + NOISE, 257)
    assert evidence.says == says
    assert (evidence.confidence is None) == (says == "unknown")


def test_letters_in_no_order_tell_nothing() -> None:
    """A model that reads nothing may still prefer a layout; whoever counts letters does better."""
    letters = list(WORDS)
    random.Random(1).shuffle(letters)
    found = ask(TRAINED, "".join(letters))
    assert found.evidence.says == "unknown"
    assert found.losses.layouts.unigram < min(found.losses.layouts.half, found.losses.layouts.interleaved)


def test_a_model_that_looks_at_no_position_tells_nothing(tmp_path: Path) -> None:
    """Trained weights whose queries are zero: both layouts are one model, however well it reads."""
    directory = Path(shutil.copytree(TRAINED, tmp_path / "still"))
    tensors = load_file(directory / "model.safetensors")
    for name in tensors:
        if "q_proj" in name:
            tensors[name] = torch.zeros_like(tensors[name])
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    found = ask(directory)
    assert found.evidence.says == "unknown"
    assert found.losses.layouts.gap == 0


UNREADABLE = {
    "too few": (lambda path: None, "A short text."),
    "no tokenizer": (lambda path: [(path / n).unlink() for n in ("tokenizer.json", "tokenizer_config.json")], WORDS),
    "another vocabulary": (lambda path: edit_json(path / "config.json", vocab_size=64), WORDS),
    "too short a length": (lambda path: edit_json(path / "config.json", max_position_embeddings=16), WORDS),
    "a class that is not there": (lambda path: edit_json(path / "config.json", head_dim=48), WORDS),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_unknown_with_the_reason(tmp_path: Path, name: str) -> None:
    spoil, text = UNREADABLE[name]
    path = Path(shutil.copytree(TRAINED, tmp_path / "spoiled"))
    spoil(path)
    found = ask(path, text)
    assert (found.evidence.says, found.losses) == ("unknown", None)
    assert found.evidence.detail.startswith("the text could not be read: ")
    assert found.lengths.detail == "not measured: the text could not be read"


def base_codes(path: Path) -> set[str]:
    return {warning.code for warning in ask(path).warnings}


def test_a_lost_base_is_named(tmp_path: Path) -> None:
    found = ask(copied(tmp_path, rope_theta=10000.0))
    (curve,) = found.losses.bases
    assert [warning.code for warning in found.warnings] == ["wrong-base"]
    assert curve.configured == 10000.0
    assert 100000.0 in curve.likely
    assert 10000.0 not in curve.likely
    assert min(curve.losses, key=lambda one: one.loss).above_best == 0
    assert "100000" in curve.detail
    assert "10000 (" in curve.detail


def test_the_right_base_is_not_doubted(tmp_path: Path) -> None:
    found = ask(TRAINED)
    (curve,) = found.losses.bases
    assert not found.warnings
    assert 100000.0 in curve.likely
    assert sorted(one.theta for one in curve.losses) == [1e4, 1e5, 5e5, 1e6]


def test_a_base_that_is_not_on_the_grid_is_read_too(tmp_path: Path) -> None:
    (curve,) = ask(copied(tmp_path, rope_theta=500.0)).losses.bases
    assert 500.0 in {one.theta for one in curve.losses}
    assert curve.clear


def test_a_base_without_a_clear_minimum_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With less text the same lost base is in the noise: there nothing is said."""
    monkeypatch.setattr(text_witness, "BASE_OPERATIONS", 0.0)
    (curve,) = ask(copied(tmp_path, rope_theta=10000.0)).losses.bases
    assert not curve.clear
    assert "cannot be told" in curve.detail


def test_the_cost_of_a_scaling_is_not_taken_for_a_lost_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear scaling without training spoils this model; some other base spoils it less, and is not its base."""
    path = copied(tmp_path, rope_type="linear", factor=1.5)
    edit_json(path / "config.json", max_position_embeddings=384)
    found = ask(path)
    (curve,) = found.losses.bases
    assert not curve.clear
    assert curve.configured not in curve.likely
    assert "the scaling costs that" in curve.detail
    monkeypatch.setattr(text_witness, "_excuse", lambda *_: "")
    assert "wrong-base" in base_codes(path)


def test_a_text_is_read_in_one_direction_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a model that looks ahead knows the next token, and no loss of it is one."""
    monkeypatch.setattr(text_findings, "check_causal_on", lambda *_: (_ for _ in ()).throw(RuntimeError("looks ahead")))
    assert "looks ahead" in ask(TRAINED).evidence.detail


def test_the_rise_is_asked_for_with_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(text_findings, "rise", lambda reader, ids, expected: asked.append((len(ids), expected)))
    ask(TRAINED)
    assert asked == [(110950, 256)]
    assert loss_rise.BEYOND * 256 < 110950


# Linear scaling by 4 that nothing was trained with, and a base far off.
SPOILED: dict[str, tuple[dict[str, Any], str]] = {
    "scaled": ({"rope_type": "linear", "factor": 4.0}, "scaling-costs"),
    "far base": ({"rope_theta": 30.0}, "wrong-base"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_spoils_the_right_layout_does_not_make_the_wrong_one_right(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As config.json has it the wrong layout reads better here: without other bases and no scaling it would be told."""
    rope, code = SPOILED[name]
    path = copied(tmp_path, **rope)
    found = ask(path)
    assert found.evidence.says == "half", found.evidence.detail
    assert {warning.code for warning in found.warnings} == {code}
    monkeypatch.setattr(text_witness, "_tried", lambda reading, how, read, windows: [read(how, windows)])
    assert ask(path).evidence.says != "half"
