"""Checkpoints in others' formats, as inspect describes them and the other verbs refuse them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from ropetool import convert, doctor
from ropetool.checkpoint.foreign import TORCHTUNE as TORCHTUNE_FORMAT
from ropetool.checkpoint.foreign import format_of
from ropetool.detect import inspect
from ropetool.engines.rows import TORCHTUNE_ADJACENT, TORCHTUNE_HALF
from ropetool.errors import ConfigError, MissingFileError, UnsupportedError
from ropetool.families.foreign import native_numbers
from ropetool.families.table import TABLE
from ropetool.models import tiny
from ropetool.rope.pairing import Pairing
from tests.native import CONFIG, META, PARAMS, TORCHTUNE, native

FORMATS = {
    "meta": (META, "consolidated.00.pth", "interleaved"),
    "meta-safetensors": (META, "model.safetensors", "interleaved"),
    "mistral": (META, "consolidated.safetensors", "interleaved"),
    "torchtune": (TORCHTUNE, "model.safetensors", "unknown"),
}


@pytest.mark.parametrize(("names", "file", "layout"), FORMATS.values(), ids=FORMATS)
def test_inspect_without_config_json(names: tuple[str, ...], file: str, layout: str, tmp_path: Path) -> None:
    source = native(tmp_path / "a", names, file)
    result = inspect(source)
    assert (result.scheme, result.pairing, result.moves) == ("rope", layout, None)
    assert [(e.source, e.says) for e in result.evidence] == [("config", layout)]
    (fact,) = result.rope
    assert (fact.theta, fact.head_dim, fact.theta_source) == (5e5, 8, "params.json: rope_theta")
    assert result.heads == {"query": 4, "key_value": 2}
    assert [w.code for w in result.warnings] == ["native-names"]
    with pytest.raises(MissingFileError, match=r"has no config.json: it has .* ropetool does not rename tensors"):
        convert.plan(source, tmp_path / "there", Pairing.HALF)
    with pytest.raises(MissingFileError, match="which permutes q and k"):
        doctor.diagnose(source)


# Names, and the layout with a config of each type: torchtune's classes differ.
WITH_CONFIG = (
    (META, "llama", "interleaved"), (META, "mistral", "interleaved"), (META, "qwen2", "interleaved"),
    (TORCHTUNE, "llama", "interleaved"), (TORCHTUNE, "gemma2", "interleaved"), (TORCHTUNE, "qwen2", "half"),
)  # fmt: skip


@pytest.mark.parametrize(("names", "model_type", "layout"), WITH_CONFIG)
def test_inspect_with_a_hugging_face_config(
    names: tuple[str, ...], model_type: str, layout: str, tmp_path: Path
) -> None:
    source = native(tmp_path / "a", names, "model.safetensors", config={**CONFIG, "model_type": model_type})
    result = inspect(source, weights=True)
    assert (result.pairing, result.moves) == (layout, None)
    assert [(e.source, e.says) for e in result.evidence] == [
        ("config", layout), ("family", TABLE[model_type].pairing.value), ("weights", "unknown")
    ]  # fmt: skip
    codes = [w.code for w in result.warnings]
    assert "native-names" in codes
    assert "class-rotates-other-layout" not in codes
    with pytest.raises(UnsupportedError, match="cannot be converted as it is: it has") as refused:
        convert.plan(source, tmp_path / "there", Pairing.HALF)
    assert refused.value.fields["pairing"] == layout


def test_names_that_are_a_class_s_own_are_no_format(tmp_path: Path) -> None:
    """A ModernBERT decoder saved without its head has layers.0.attn.q_proj itself."""
    model = tiny.build("modernbert-decoder").model.model
    model.save_pretrained(tmp_path / "a")
    names = load_file(tmp_path / "a" / "model.safetensors")
    assert format_of(names, []) is TORCHTUNE_FORMAT
    result = inspect(tmp_path / "a")
    assert "native-names" not in [w.code for w in result.warnings]
    assert result.moves is not None
    assert result.moves.tensors


def test_torchtune_s_layouts_are_those_of_its_row() -> None:
    by_type = TORCHTUNE_FORMAT.by_type
    assert {t for t, layout in by_type.items() if layout == "interleaved"} == set(TORCHTUNE_ADJACENT)
    assert {t for t, layout in by_type.items() if layout == "half"} == set(TORCHTUNE_HALF)


# Changes of params.json, and what of theta, heads of k, rows of a head and warnings is then read.
NUMBERS = (
    ({}, 5e5, 2, 8, []),
    ({"n_kv_heads": None}, 5e5, 4, 8, []),
    ({"head_dim": None}, 5e5, 2, 4, []),
    ({"rope_theta": None}, None, 2, 8, ["theta-default"]),
    ({"use_scaled_rope": True}, None, 2, 8, ["native-scaling"]),
    ({"use_scaled_rope": False}, 5e5, 2, 8, []),
    ({"yarn": {"factor": 4}}, None, 2, 8, ["native-scaling"]),
)


@pytest.mark.parametrize(("changes", "theta", "kv_heads", "head_dim", "codes"), NUMBERS)
def test_the_numbers_of_params_json(
    changes: dict[str, Any], theta: float | None, kv_heads: int, head_dim: int, codes: list[str]
) -> None:
    told = native_numbers({**PARAMS, **changes})
    assert (told.theta, told.heads["key_value"], told.head_dim) == (theta, kv_heads, head_dim)
    assert [w.code for w in told.warnings] == codes


def test_a_number_that_is_none_is_named(tmp_path: Path) -> None:
    source = native(tmp_path / "a", META, "consolidated.00.pth")
    (source / "params.json").write_text(json.dumps({**PARAMS, "rope_theta": "5e5"}), encoding="utf-8")
    with pytest.raises(ConfigError, match="rope_theta is '5e5'"):
        inspect(source)


def test_without_params_nothing_is_made_up(tmp_path: Path) -> None:
    result = inspect(native(tmp_path / "a", META, "w.safetensors", params=False))
    assert (result.pairing, result.rope, result.heads) == ("interleaved", (), {})
