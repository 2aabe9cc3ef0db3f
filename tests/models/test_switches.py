"""Switches of a config that change its attention: the row holds with each of them on, or says why it cannot."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from ropetool import convert, verify
from ropetool.errors import NoRotaryError, UnsupportedError
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.models import probe, tiny
from ropetool.rope.pairing import Head
from tests.models.test_table import is_attention

# What tools/probe_all.py found to change the attention of a tiny model, by model type.
PROBED = json.loads((Path(__file__).parents[2] / "tools" / "probe_all.json").read_text("utf-8"))["types"]
SWITCHES = [
    (model_type, *switch.split("=", 1))
    for model_type, entry in sorted(PROBED.items())
    for switch in entry.get("variants", {})
]
# Forms that are refused, with the words of the error.
REFUSED = {
    ("falcon", "alibi"): "has ALiBi",
    ("gemma4_text", "attention_k_eq_v"): "take v from the rows of k_proj",
    ("gemma4_unified_text", "attention_k_eq_v"): "take v from the rows of k_proj",
    ("roformer", "rotary_value"): "rotates v as well",
    ("zamba2", "use_shared_attention_adapter"): "adapters are added to q and k",
    ("zamba2", "use_mem_rope"): "has no positions",
}


@pytest.fixture(params=SWITCHES, ids=lambda switch: "-".join(map(str, switch)))
def switched(request, tmp_path):
    """A tiny checkpoint with a switch turned, of unit gain, and what the probe reads from its class."""
    model_type, key, value = request.param[0], request.param[1], json.loads(request.param[2])
    model = tiny.build(model_type, **{key: value}).model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and is_attention(name):
                parameter.div_(parameter.std() * parameter.shape[-1] ** 0.5)
    model.save_pretrained(tmp_path / "a")
    return model_type, key, tmp_path, probe.probe_model_type(model_type, **{key: value})


def test_there_are_switches():
    assert len(SWITCHES) > 20
    assert {(model_type, key) for model_type, key, _ in SWITCHES} >= REFUSED.keys()


def test_the_row_holds(switched):
    model_type, key, folder, report = switched
    if (model_type, key) in REFUSED:
        with pytest.raises((UnsupportedError, NoRotaryError), match=REFUSED[model_type, key]):
            convert.plan(folder / "a", folder / "b", TABLE[model_type].pairing.other)
        return
    reading = read_model(json.loads((folder / "a" / "config.json").read_text("utf-8")))
    named = {name for site in reading.family.sites for m in site.moves for name in (m.module, *m.loaded_as)}
    for attention in report.attentions:
        turning = {p.name for p in attention.projections if any(isinstance(s, Head) for s in p.spans)}
        normed = {n.name for n in attention.norms if n.role.value in "qk" and n.weight_shape} if turning else set()
        assert {re.sub(r"\.\d+\b", ".*", name) for name in turning | normed} <= named
    convert.apply(convert.plan(folder / "a", folder / "b", reading.pairing.other, written_as="same"))
    result = verify.verify(folder / "a", folder / "b", tokens=32)
    assert result.passed, [check for check in result.checks if not check.passed]
    assert result.relative_diff <= 1e-5
    convert.apply(convert.plan(folder / "b", folder / "c", reading.pairing))
    assert (folder / "a" / "model.safetensors").read_bytes() == (folder / "c" / "model.safetensors").read_bytes()


# Sizes that the tiny models lack: more experts than one, of which several speak for each token.
SIZES = {"jetmoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4}}


@pytest.mark.parametrize("model_type", SIZES)
def test_other_sizes(model_type, tmp_path):
    model = tiny.build(model_type, **SIZES[model_type]).model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and is_attention(name):
                parameter.div_(parameter.std() * parameter.shape[-1] ** 0.5)
    model.save_pretrained(tmp_path / "a")
    convert.apply(convert.plan(tmp_path / "a", tmp_path / "b", TABLE[model_type].pairing.other))
    result = verify.verify(tmp_path / "a", tmp_path / "b", tokens=32)
    assert result.passed, [check for check in result.checks if not check.passed]
    assert result.relative_diff <= 1e-5
    convert.apply(convert.plan(tmp_path / "b", tmp_path / "c", TABLE[model_type].pairing))
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "c" / "model.safetensors").read_bytes()
