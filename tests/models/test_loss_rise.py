"""Where the loss of a text turns up, and what that says beside the lengths that are declared."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.checkpoint.folder import read_config
from ropetool.families.trained_length import (
    Declared,
    RiseBin,
    TrainedLength,
    declared_length,
    length_warnings,
    with_measured,
)
from ropetool.models import loss_rise
from ropetool.models.loss_rise import Size, turning_point
from ropetool.models.options import Device
from ropetool.models.text_findings import TextFindings, text_findings
from ropetool.models.understand import understand
from tests.tiny import edit_json

WORDS = bundled(TEXT).read_text(encoding="utf-8")
TRAINED = bundled(CHECKPOINT)


def bins(*above: float, error: float = 0.02) -> tuple[RiseBin, ...]:
    return tuple(RiseBin(64 * i, 64 * (i + 1), 2.0, nats, error) for i, nats in enumerate(above, start=1))


TURNS = {
    "up, and stays": (bins(-0.1, -0.1, 0.2, 0.5), 192),
    "at once, and ever more": (bins(0.0, 0.3, 0.6), 128),
    "never": (bins(-0.1, -0.1, -0.1, -0.1), None),
    "up, and down again": (bins(-0.1, 0.4, 0.4, -0.1), None),
    "less help is no harm": (bins(-0.4, -0.4, -0.05, -0.05), None),
    "in the noise": (bins(0.0, 0.0, 0.2, 0.2, error=0.1), None),
    "too little to matter": (bins(0.0, 0.0, 0.04, 0.04, error=0.001), None),
    "a short context is harder from the first": (bins(0.1, 0.1, 0.12, 0.1), None),
    "one bin": (bins(0.5), None),
    "none": ((), None),
}


@pytest.mark.parametrize("name", TURNS)
def test_the_rule(name: str) -> None:
    found, turns = TURNS[name]
    assert turning_point(found) == turns


def measured(path: Path) -> TextFindings:
    return text_findings(path, understand(path, read_config(path)), WORDS, Device.CPU)


def declaring(tmp_path: Path, length: int) -> Path:
    directory = Path(shutil.copytree(TRAINED, tmp_path / str(length)))
    edit_json(directory / "config.json", max_position_embeddings=length)
    edit_json(directory / "tokenizer_config.json", model_max_length=length)
    return directory


def check_trained_length(tmp_path: Path) -> None:
    """A model that was trained with 256 tokens, under configs that say so, say less and say more."""
    for declared, warned in ((256, False), (128, True), (1024, True)):
        found = measured(declaring(tmp_path, declared))
        assert found.lengths.measured is not None, found.lengths.detail
        assert 256 <= found.lengths.measured <= 512
        assert ("trained-length" in {warning.code for warning in found.warnings}) == warned
        assert found.lengths.trained == declared


def test_the_trained_length_is_found_whatever_is_declared(tmp_path: Path) -> None:
    check_trained_length(tmp_path)


def test_losses_in_another_order_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the positions run backwards."""
    right = loss_rise._losses
    monkeypatch.setattr(loss_rise, "_losses", lambda *args: right(*args)[:, ::-1])
    with pytest.raises(AssertionError):
        check_trained_length(tmp_path)


def test_every_token_is_held_against_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses that tell which token it was: far and near, the same one."""
    monkeypatch.setattr(loss_rise, "_losses", lambda reader, ids_WT, stops: ids_WT[:, 1:].double().numpy())
    reader = loss_rise.Reader(
        TRAINED, loss_rise.Context(256, 256), Device.CPU, None, None, lambda said: None, Size(1000, 100)
    )
    ids_T = torch.arange(8192)
    found = loss_rise._read_once(reader, ids_T, 256, 1024, "cpu")
    assert len(found.bins) > 8
    assert all(one.above_short == 0 for one in found.bins)
    stretches = [(one.start, one.stop) for one in found.bins]
    assert 256 in {start for start, _ in stretches}
    assert stretches[-1][1] == 1024
    assert all(a[1] == b[0] for a, b in pairwise(stretches))


def test_what_is_read_follows_the_cost() -> None:
    small, large = Size(500_000, 512), Size(8_000_000_000, 32 * 4096)
    assert small.readable(16384, "cpu") == 16384
    assert small.pieces(1024, "cpu") == loss_rise.MOST_IN_ALL // 1024
    assert large.readable(16384, "cpu") == 512
    assert large.readable(16384, "cuda") == 16384
    assert Size(10**12, 10**7).readable(16384, "cpu") == 0
    assert large.pieces(512, "cpu") == 1


def test_a_model_too_large_to_read_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loss_rise.MOST_OPERATIONS, "cpu", 1.0)
    found = measured(TRAINED)
    assert found.evidence.says == "half"
    assert found.lengths.measured is None
    assert found.lengths.detail.startswith("not measured: ")


# What a checkpoint that was trained with 256 tokens may declare, and what the lengths then are.
DECLARED = {
    "as it is": ({}, None, 256, 256, set()),
    "a tokenizer that differs": ({}, 512, 256, 256, {"tokenizer-length"}),
    "a tokenizer without a limit": ({}, 10**30, 256, 256, set()),
    "yarn": (
        {"max_position_embeddings": 1024, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 100000.0, "factor": 4.0, "original_max_position_embeddings": 256,
        }},
        1024, 256, 1024, set(),
    ),
    "linear": (
        {"max_position_embeddings": 1024, "rope_parameters": {
            "rope_type": "linear", "rope_theta": 100000.0, "factor": 4.0,
        }},
        1024, 256, 1024, set(),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLARED)
def test_what_is_declared(name: str, tmp_path: Path) -> None:
    changes, limit, trained, reach, codes = DECLARED[name]
    path = Path(shutil.copytree(TRAINED, tmp_path / "a"))
    edit_json(path / "config.json", **changes)
    if limit is not None:
        edit_json(path / "tokenizer_config.json", model_max_length=limit)
    lengths = declared_length(path, understand(path, read_config(path)))
    assert (lengths.trained, lengths.reach) == (trained, reach)
    assert {warning.code for warning in length_warnings(lengths)} == codes
    where = {found.where: found.tokens for found in lengths.declared}
    assert where["config.json: max_position_embeddings"] == reach
    assert ("tokenizer_config.json: model_max_length" in where) == (limit != 10**30)
    if name == "yarn":
        assert where["config.json: rope_parameters.original_max_position_embeddings"] == 256


@pytest.mark.parametrize(
    ("turned", "warned"), [(None, False), (100, True), (210, False), (256, False), (500, False), (512, True)]
)
def test_when_the_lengths_disagree(turned: int | None, warned: bool) -> None:
    lengths = with_measured(TrainedLength((Declared("config.json: n", 256),), 256, 256), turned, 1024, ())
    assert bool(length_warnings(lengths)) == warned
    assert "1024" in lengths.detail
    assert "256" in lengths.detail
    assert np.isclose(lengths.read_tokens, 1024)


def test_an_extension_is_held_against_what_it_serves() -> None:
    lengths = with_measured(TrainedLength((), 256, 1024), 300, 4096, ())
    (warning,) = length_warnings(lengths)
    assert "was extended to 1024" in warning.message
    assert not length_warnings(with_measured(TrainedLength((), 256, 1024), 1024, 4096, ()))
