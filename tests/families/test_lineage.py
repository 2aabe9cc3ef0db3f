"""Extensions that are one, marked by ropetool or written by hand: no rule may take them for another model.

What must be seen is in `tests.mutations`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ropetool import extend
from ropetool.checkpoint.folder import read_config
from ropetool.families.lineage import extension_fault
from ropetool.families.methods import Method, Weights
from ropetool.families.reading import read_model

ORIGINAL = "original_max_position_embeddings"
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 2, "max_position_embeddings": 8192, "rope_theta": 5e5,
}  # fmt: skip
QWEN3 = {**LLAMA, "model_type": "qwen3", "max_position_embeddings": 40960, "rope_theta": 1e6}
LINEAR = {**LLAMA, "max_position_embeddings": 16384, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
LISTS = {"short_factor": [1.0] * 8, "long_factor": [float(i + 1) for i in range(8)]}
OTHER_LISTS = {"short_factor": [1.0] * 8, "long_factor": [float(2 * i + 1) for i in range(8)]}

# A config, and the extensions of it, each of the one before.
Step = tuple[Method, Mapping[str, Any]]
MADE: dict[str, tuple[dict[str, Any], tuple[Step, ...]]] = {
    "qwen3-trained-shorter": (QWEN3, (
        (Method.YARN, {"factor": 4.0, "original": 32768}), (Method.YARN, {"factor": 8.0}),
    )),
    "linear-unmarked": (LINEAR, ((Method.LINEAR, {"factor": 4.0}), (Method.LINEAR, {"factor": 8.0}))),
    "yarn-with-settings": (LLAMA, (
        (Method.YARN, {"factor": 2.0, "settings": {"beta_fast": 64.0, "truncate": False, "attention_factor": 1.2}}),
        (Method.YARN, {"factor": 4.0}), (Method.YARN, {"factor": 8.0, "settings": {"beta_slow": 2.0}}),
    )),
    "longrope-with-other-lists": (LLAMA, (
        (Method.LONGROPE, {"factor": 2.0, "settings": LISTS}),
        (Method.LONGROPE, {"factor": 4.0, "settings": OTHER_LISTS}),
    )),
    "abf": (LLAMA, (
        (Method.ABF, {"to": 16384, "settings": {"base": 1e6}}), (Method.ABF, {"to": 32768, "settings": {"base": 4e6}}),
    )),
    "llama3-with-bands": (LLAMA, (
        (Method.LLAMA3, {"factor": 8.0, "to": 131072, "settings": {"low_freq_factor": 2.0}}),
        (Method.LLAMA3, {"factor": 16.0}),
    )),
    "dynamic": (LLAMA, ((Method.DYNAMIC, {"factor": 2.0}), (Method.DYNAMIC, {"factor": 4.0}))),
    "ntk": (LLAMA, ((Method.NTK, {"factor": 2.0}), (Method.NTK, {"factor": 4.0}))),
}  # fmt: skip


@pytest.mark.parametrize("case", MADE)
def test_what_extend_makes_is_an_extension_of_each_before(case: str, tmp_path: Path) -> None:
    config, steps = MADE[case]
    place = tmp_path / "0"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config), encoding="utf-8")
    readings = [read_model(config)]
    for number, (method, how) in enumerate(steps, 1):
        extend.apply(extend.plan(place, tmp_path / str(number), method, weights=Weights.NONE, **how))
        place = tmp_path / str(number)
        readings.append(read_model(read_config(place)))
    for first, earlier in enumerate(readings):
        for later in readings[first + 1 :]:
            assert extension_fault(earlier, later) is None
            assert extension_fault(later, earlier) is not None


def by_hand(length: int, **block: Any) -> dict[str, Any]:
    return {**LLAMA, "max_position_embeddings": length, "rope_scaling": block}


# As people write them, without a marker.
WRITTEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama-3.1": (LLAMA, by_hand(131072, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                 **{ORIGINAL: 8192})),
    "linear": (LLAMA, by_hand(32768, type="linear", factor=4.0)),
    "linear-further": (LINEAR, by_hand(32768, type="linear", factor=4.0)),
    "yarn-with-betas-of-its-own": (LLAMA, by_hand(32768, type="yarn", factor=4.0, beta_fast=24.0, **{ORIGINAL: 8192})),
    "dynamic": (LLAMA, by_hand(8192, type="dynamic", factor=4.0)),
    "longrope": (LLAMA, {**by_hand(32768, type="longrope", **LISTS), ORIGINAL: 8192}),
    "qwen3-yarn": (QWEN3, {**by_hand(131072, type="yarn", factor=4.0, **{ORIGINAL: 32768}), "model_type": "qwen3",
                           "rope_theta": 1e6}),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITTEN)
def test_what_people_write_is_an_extension(case: str) -> None:
    source, extended = map(read_model, WRITTEN[case])
    assert extension_fault(source, extended) is None
    assert extension_fault(extended, source) is not None


def test_a_setting_of_which_the_marker_says_nothing_is_a_fault_even_in_a_second_extension(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    for number, factor in ((1, 2.0), (2, 4.0)):
        plan = extend.plan(
            tmp_path / str(number - 1), tmp_path / str(number), Method.YARN, factor=factor, weights=Weights.NONE,
            settings={"beta_fast": 64.0} if number == 1 else {},
        )  # fmt: skip
        extend.apply(plan)
    config = read_config(tmp_path / "2")
    assert config["ropetool"]["extension"]["settings"] == {"beta_fast": 64.0}
    for where in ("rope_parameters", "rope_scaling"):
        config[where] = {key: value for key, value in config[where].items() if key != "beta_fast"}
    fault = extension_fault(read_model(LLAMA), read_model(config))
    assert fault is not None
    assert fault.where == "rope_parameters.beta_fast"
    assert "32 in the second, and the marker says that it was set to 64" in fault.said
