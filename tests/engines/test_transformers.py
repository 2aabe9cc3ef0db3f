"""The rows of transformers against the transformers that is installed: its own classes are built from each config.

Needs nothing but torch, transformers and pytest, and takes the row of the installed version: both are tested so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from ropetool.engines import transformers4, transformers5
from ropetool.engines.compare import faults
from ropetool.engines.dialect import Other, Place
from ropetool.engines.heard import Case, Heard, Listener, Turn
from ropetool.engines.opening import open_case
from ropetool.engines.repair import find_edit

MAJOR = int(transformers.__version__.split(".")[0])
ROWS = {4: transformers4, 5: transformers5}
ROW: Listener = ROWS[MAJOR].ROW

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
    "stale original above, v5": v5(YARN, original_max_position_embeddings=60),
    "stale original above, v4": v4(YARN, original_max_position_embeddings=60),
    "original above alone, v4": v4({**LONG, "factor": 2.0}, **WITH_16),
    "original above null": v5(YARN, original_max_position_embeddings=None),
    "nested in a flat class": {"rope_parameters": {"full_attention": {**YARN, "rope_theta": THETA}}},
}
# Classes that take their keys each in its own way, with two layers where those differ.
TYPES = ["full_attention", "sliding_attention"]
KINDS = {
    "num_hidden_layers": 2, "layer_types": TYPES, "head_dim": 16, "query_pre_attn_scalar": 16, "pad_token_id": 0,
    "sliding_window": 32,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 8.0}
TYPE_LINEAR = {"type": "linear", "factor": 8.0}
SU = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
FULL, LOCAL = {**YARN, "rope_theta": THETA}, {"rope_type": "default", "rope_theta": 2e4}
V4_OR_V5 = {
    "plain": {}, "base, v4": {"rope_theta": THETA}, "base, v5": v5({"rope_type": "default"}),
    "yarn, v4": v4(YARN), "yarn, v5": v5(YARN), "yarn, head_dim": v4(YARN, head_dim=16),
    "type, v4": v4(TYPE_LINEAR), "rope_type, v4": v4(LINEAR), "no name": v4({"factor": 2.0}), "null, v4": v4(None),
    "both names, v4": v4({"type": "dynamic", **LINEAR}),
}  # fmt: skip
PHI3 = {
    "plain": {}, "v4": {"rope_scaling": {**SU, "type": "longrope"}, **WITH_16},
    "v5": v5({**SU, "rope_type": "longrope"}, **WITH_16), "yarn": v4(YARN), "five keys": v4({**LONG, **WITH_16}),
    "dual": v5({**SU, "rope_type": "longrope"}, **WITH_16) | v4({**SU, "type": "longrope"}),
    "su": {"rope_scaling": {**SU, "type": "su"}, **WITH_16}, "yarn, lists": v4({"type": "yarn", **SU}, **WITH_16),
    "su, original in the block": {"rope_scaling": {**SU, "type": "su", **WITH_16}},
    "original in the block alone": v5({**SU, "rope_type": "longrope", **WITH_16}),
    "half turns": {"partial_rotary_factor": 0.5}, "half turns, v5": v5({"partial_rotary_factor": 0.5}),
}  # fmt: skip
GPT_NEOX = {
    "plain": {}, "base": {"rotary_emb_base": 5e5}, "another's base": {"rope_theta": 5e5}, "share": {"rotary_pct": 0.5},
    "v5": v5({"rope_type": "default", "partial_rotary_factor": 0.5}), "yarn, v5": v5(YARN),
    "yarn, v4": {"rope_scaling": YARN, "rotary_emb_base": 5e5},
}  # fmt: skip
BOTH = {"full_attention": FULL, "sliding_attention": LOCAL}
GEMMA3 = {
    "plain": {}, "v4": {"rope_scaling": LINEAR, "rope_theta": THETA, "rope_local_base_freq": 2e4},
    "v5": {"rope_parameters": BOTH}, "flat v5": v5(YARN), "type, v4": {"rope_scaling": TYPE_LINEAR},
    "truncate": {"rope_parameters": {**BOTH, "full_attention": {**FULL, "truncate": False}}},
    "both": {"rope_scaling": LINEAR, "rope_parameters": BOTH},
    "one kind": {"rope_parameters": {"full_attention": FULL}}, "no base": {"rope_parameters": {"full_attention": YARN}},
    "no original": {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}},
    "original above": {"rope_parameters": {"full_attention": FULL}, "original_max_position_embeddings": 32},
}  # fmt: skip
OLMO3 = {
    "plain": {}, "v4": {"rope_scaling": YARN, "rope_theta": THETA}, "base": {"rope_theta": THETA},
    "v5": {"rope_parameters": {**BOTH, "sliding_attention": {**LOCAL, "rope_theta": THETA}}},
}  # fmt: skip
MODERNBERT = {
    "plain": {}, "v4": {"rope_scaling": LINEAR, "global_rope_theta": THETA, "local_rope_theta": 2e4},
    "v5": {"rope_parameters": BOTH},
}  # fmt: skip
SIZES: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    **dict.fromkeys(("mistral", "qwen2", "qwen3", "cohere", "ernie4_5", "granite", "helium", "mixtral", "olmo2",
                     "apertus", "nemotron"), ({}, V4_OR_V5)),
    "gpt_oss": ({"head_dim": 16, "num_local_experts": 2}, V4_OR_V5),
    "phi3": ({}, PHI3), "gpt_neox": ({}, GPT_NEOX), "gemma3_text": (KINDS, GEMMA3), "olmo3": (KINDS, OLMO3),
    "modernbert-decoder": (KINDS, MODERNBERT),
}  # fmt: skip
CLASSES = {
    f"{model_type}, {name}": {"model_type": model_type, "pad_token_id": 0, **sizes, **config}
    for model_type, (sizes, configs) in SIZES.items()
    for name, config in configs.items()
}
CONFIGS: dict[str, dict[str, Any]] = {
    **{f"{name}, v5": v5(block) for name, block in BLOCKS.items()},
    **{f"{name}, v4": v4(block) for name, block in BLOCKS.items()},
    **ODD,
    **CLASSES,
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
    return dict(rotations_of(model, lengths))


def rotations_of(model: Any, lengths: tuple[int, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rotary modules of the decoder, one for all layers or one per kind: version 5 keeps both kinds in one."""
    for name, rotary in model.named_modules():
        kinds = [kind for kind in TYPES if hasattr(rotary, f"{kind}_inv_freq")]
        for kind in kinds:
            yield kind, asked(rotary, lengths, f"{kind}_", layer_type=kind)
        if not kinds and hasattr(rotary, "inv_freq"):
            yield kind_of(name, model), asked(rotary, lengths)


def kind_of(name: str, model: Any) -> str:
    """For which kind of layer version 4 has a module: by its name, or by the number of its layer."""
    if getattr(model.config, "layer_types", None) != TYPES and "modernbert" not in model.config.model_type:
        return "all"
    number = re.search(r"layers\.(\d+)\.", name)
    local = name.endswith(("rotary_emb_local", "local_rotary_emb", "sliding_attention"))
    return TYPES[int(number[1])] if number else TYPES[local]


def asked(rotary: Any, lengths: tuple[int, ...], prefix: str = "", **which: str) -> dict[str, Any]:
    """The frequencies that a module has at each length, once it was run there."""
    by_length = {}
    for length in lengths:
        rotary(torch.zeros(1, 1, 4), torch.arange(length)[None], **which)
        by_length[length] = getattr(rotary, f"{prefix}inv_freq").double().numpy().copy()
    return {"inv_freq": by_length, "attention_factor": float(getattr(rotary, f"{prefix}attention_scaling"))}


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
    return open_case(json.loads(json.dumps(config)))


def means(case: Case) -> Heard:
    """What the checkpoint means, in the form of what an engine hears."""
    rotations = case.reading.rotations
    return Heard(tuple(Turn(r.layers, r.scaling, r.geometry.rotary_dim) for r in rotations))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_row_hears_what_the_class_computes(name: str) -> None:
    config = {**BASE, **CONFIGS[name]}
    heard, truth = ROW.hears(case_of(config)), live(config)
    assert agrees(heard, truth), f"heard {heard}; live {truth}"


@pytest.mark.parametrize("name", CONFIGS)
def test_a_verdict_is_what_happens_and_its_edit_helps(name: str) -> None:
    """Right: the class computes what is meant. Wrong: it does not, and does once the edit is made."""
    case = case_of({**BASE, **CONFIGS[name]})
    heard = ROW.hears(case)
    if case.conflict or heard.unknown:
        return
    right = not heard.refusal and not faults(case, heard)
    assert agrees(means(case), live(case.config)) == right
    found = None if right else find_edit(case, ROW)
    if found is not None:
        assert agrees(means(case), live(found[1].config)), found[0]


def test_most_wrong_configs_have_an_edit() -> None:
    wrong = [case for config in CONFIGS.values() if not (case := case_of({**BASE, **config})).conflict]
    wrong = [case for case in wrong if (heard := ROW.hears(case)).refusal or (heard.turns and faults(case, heard))]
    repaired = [case for case in wrong if find_edit(case, ROW)]
    assert len(wrong) > 20
    assert len(repaired) > 0.7 * len(wrong)


@dataclass(frozen=True)
class Planted:
    """A fault in the dialect, or in how it reads one rope type."""

    name: str
    dialect: dict[str, Any] = field(default_factory=dict)
    type_name: str = ""
    read: dict[str, Any] = field(default_factory=dict)

    def hear(self, case: Case) -> Heard:
        """What the row of the installed version would hear with the fault in it."""
        module, name = ROWS[MAJOR], "DIALECT" if MAJOR == 4 else "FLAT"
        whole = getattr(module, name)
        types = dict(whole.types)
        if self.type_name:
            types[self.type_name] = replace(types[self.type_name], **self.read)
        with pytest.MonkeyPatch.context() as patch:
            wrong = replace(whole, types=types, **self.dialect)
            patch.setattr(module, name, wrong)
            patch.setattr(module, "TYPES", types, raising=False)
            return transformers5.hear_by(wrong, transformers5.NESTED, case) if MAJOR == 5 else transformers4.hear(case)


BLOCK, TOP, LENGTH = Place.BLOCK, Place.TOP, Place.LENGTH
PLANTED = {
    5: (
        Planted("block order", {"blocks": ("rope_parameters", "rope_scaling")}),
        Planted("one block", {"blocks": ("rope_parameters",)}),
        Planted("base above first", {"theta": (TOP, BLOCK)}),
        Planted("base in the block alone", {"theta": (BLOCK,)}),
        Planted("share above alone", {"share": (TOP,)}),
        Planted("null is absent", {"null": False}),
        Planted("original in the block first", {}, "yarn", {"original": (BLOCK, TOP, LENGTH)}),
        Planted("original filled in otherwise", {}, "yarn", {"original": (TOP, BLOCK, 16)}),
        Planted("no truncate", {}, "yarn", {"takes": ("attention_factor", "beta_fast", "beta_slow")}),
        Planted("no attention factor", {}, "longrope", {"takes": ("factor",)}),
        Planted("factor never null", {}, "yarn", {"nulls": {}}),
        Planted("another method", {}, "dynamic", {"method": "linear"}),
        Planted("unknown types are plain", {"other": Other.PLAIN}),
    ),
    4: (
        Planted("the other block", {"blocks": ("rope_parameters",)}),
        Planted("base in the block", {"theta": (BLOCK, TOP)}),
        Planted("null is absent", {"null": False}),
        Planted("original above", {}, "yarn", {"original": (TOP, BLOCK, LENGTH)}),
        Planted("original in the block", {}, "longrope", {"original": (BLOCK, LENGTH), "computes": lambda s, c: s}),
        Planted("no betas", {}, "yarn", {"takes": ("attention_factor",)}),
        Planted("another method", {}, "dynamic", {"method": "linear"}),
        Planted("unknown types are plain", {"other": Other.PLAIN}),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def truths() -> dict[str, Any]:
    return {name: live({**BASE, **config}) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("planted", PLANTED[MAJOR], ids=lambda planted: planted.name)
def test_a_planted_fault_is_seen(planted: Planted, truths: dict[str, Any]) -> None:
    cases = {name: case_of({**BASE, **config}) for name, config in CONFIGS.items()}
    assert not all(agrees(planted.hear(case), truths[name]) for name, case in cases.items())
