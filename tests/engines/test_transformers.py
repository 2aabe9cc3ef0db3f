"""The rows of transformers against the transformers that is installed: its own classes are built from each config.

Needs nothing but torch, transformers and pytest, and takes the row of the installed version: both are tested so.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from ropetool import doctor
from ropetool.engines import transformers5
from ropetool.engines.heard import Case, Heard, Listener

MAJOR = int(transformers.__version__.split(".")[0])
ROW: Listener = {5: transformers5.ROW}[MAJOR]

BASE = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 32, "max_position_embeddings": 64,
}  # fmt: skip
THETA = 5e5
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
WITH_16 = {"original_max_position_embeddings": 16}


def v5(block: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {**block, "rope_theta": THETA}, **more}


def v4(block: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rope_scaling": block, "rope_theta": THETA, **more}


BLOCKS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": YARN,
    "yarn, betas": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, attention factor": {**YARN, "attention_factor": 1.5},
    "yarn, attn_factor": {**YARN, "attn_factor": 1.5},
    "yarn, mscale": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0},
    "yarn, truncate false": {**YARN, "truncate": False},
    "yarn, truncate null": {**YARN, "truncate": None},
    "yarn without original": {"rope_type": "yarn", "factor": 4.0},
    "yarn, original null": {**YARN, "original_max_position_embeddings": None},
    "yarn without factor": {"rope_type": "yarn", **WITH_16},
    "yarn, factor null": {**YARN, "factor": None},
    "longrope": {**LONG, **WITH_16},
    "longrope, factor": {**LONG, **WITH_16, "factor": 2.0},
    "longrope without original": {**LONG, "factor": 4.0},
    "longrope, attention factor": {**LONG, **WITH_16, "attention_factor": 1.5},
    "longrope, short list": {**LONG, **WITH_16, "short_factor": [1.0] * 7},
    "llama3": {**LLAMA3, **WITH_16},
    "llama3 without original": LLAMA3,
    "llama3 without low": {key: value for key, value in LLAMA3.items() if key != "low_freq_factor"} | WITH_16,
    "linear without factor": {"rope_type": "linear"},
    "linear, factor null": {"rope_type": "linear", "factor": None},
    "linear, factor text": {"rope_type": "linear", "factor": "2"},
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    "type alone": {"type": "linear", "factor": 2.0},
    "both names": {"type": "linear", "rope_type": "dynamic", "factor": 2.0},
    "both names, equal": {"type": "linear", "rope_type": "linear", "factor": 2.0},
    "name null": {"rope_type": None},
    "no name": {"factor": 2.0},
    "su": {**LONG, "rope_type": "su", **WITH_16},
    "ntk": {"rope_type": "ntk", "factor": 2.0},
    "mrope": {"type": "mrope", "mrope_section": [2, 3, 3]},
}
ODD: dict[str, dict[str, Any]] = {
    "nothing": {},
    "theta alone": {"rope_theta": THETA},
    "theta null": {"rope_theta": None},
    "block without theta": {"rope_parameters": YARN},
    "block's theta null": {"rope_parameters": {**YARN, "rope_theta": None}},
    "block's theta null, one above": {"rope_parameters": {**YARN, "rope_theta": None}, "rope_theta": THETA},
    "scaling without theta": {"rope_scaling": YARN},
    "both blocks, theta in one": {"rope_scaling": YARN, **v5(YARN)},
    "both blocks, theta in each": {"rope_scaling": {**YARN, "rope_theta": THETA}, **v5(YARN)},
    "both blocks, dual": v5(YARN) | v4(YARN),
    "both blocks differ": {"rope_scaling": YARN, **v5({**YARN, "factor": 2.0})},
    "both thetas differ": v5(YARN, rope_theta=1e6),
    "empty scaling": v5(YARN, rope_scaling={}),
    "scaling null": v5(YARN, rope_scaling=None),
    "stale original above, v5": v5(YARN, original_max_position_embeddings=32),
    "stale original above, v4": v4(YARN, original_max_position_embeddings=32),
    "original above alone, v4": v4({**LONG, "factor": 2.0}, **WITH_16),
    "original above null": v5(YARN, original_max_position_embeddings=None),
    "nested in a flat class": {"rope_parameters": {"full_attention": {**YARN, "rope_theta": THETA}}},
}
CONFIGS: dict[str, dict[str, Any]] = {
    **{f"{name}, v5": v5(block) for name, block in BLOCKS.items()},
    **{f"{name}, v4": v4(block) for name, block in BLOCKS.items()},
    **ODD,
}
LENGTHS = (8, 16, 17, 64, 65, 128)


def live(config: dict[str, Any], lengths: tuple[int, ...] = LENGTHS) -> dict[str, Any] | None:
    """By kind of layer: the live frequencies by length, and the attention factor; None where transformers raises."""
    values = json.loads(json.dumps(config))
    try:
        made = AutoConfig.for_model(values.pop("model_type"), **values)
        model = AutoModelForCausalLM.from_config(made)
    except Exception:  # noqa: BLE001  whatever it raises, it does not load
        return None
    return {"all": rotation_of(model, lengths)}


def rotation_of(model: Any, lengths: tuple[int, ...]) -> dict[str, Any]:
    import torch

    rotary = next(module for module in model.modules() if hasattr(module, "inv_freq"))
    by_length = {}
    for length in lengths:
        rotary(torch.zeros(1, 1, 4), torch.arange(length)[None])
        by_length[length] = rotary.inv_freq.double().numpy().copy()
    return {"inv_freq": by_length, "attention_factor": float(rotary.attention_scaling)}


def agrees(heard: Heard, truth: dict[str, Any] | None) -> bool:
    """Whether a row hears what transformers does: the same numbers at every length, or that it raises."""
    if truth is None or heard.refusal:
        return (truth is None) and bool(heard.refusal)
    return all(
        np.isclose(turn.scaling.attention_factor, kind["attention_factor"], rtol=1e-6)
        and all(
            len(found) == turn.rotary_dim // 2
            and np.allclose(turn.scaling.inv_freq(turn.rotary_dim, length), found, rtol=1e-5, atol=0)
            for length, found in kind["inv_freq"].items()
        )
        for turn in heard.turns
        for kind in (truth[turn.layers],)
    )


def case_of(config: dict[str, Any]) -> Case:
    return doctor.open_case(json.loads(json.dumps(config)))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_row_hears_what_the_class_computes(name: str) -> None:
    config = {**BASE, **CONFIGS[name]}
    heard, truth = ROW.hears(case_of(config)), live(config)
    assert agrees(heard, truth), f"heard {heard}; live {truth}"
