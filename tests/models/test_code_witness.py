"""The class's own word: for each tiny checkpoint what its row says, and a row that is wrong is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropetool import convert
from ropetool.checkpoint.folder import read_config
from ropetool.detect import inspect
from ropetool.families import table
from ropetool.families.family import HALF, INTERLEAVED, K, Moved
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.models import tiny as built
from ropetool.models.code_witness import code_evidence
from tests import tiny
from tests.tiny import TINY, edit_json

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.mark.parametrize("name", TINY)
def test_the_class_does_what_its_row_says(name: str, checkpoint: Callable[[str], Path]) -> None:
    source = checkpoint(name)
    config = read_config(source)
    reading = read_model(config)
    evidence = code_evidence(source, config, reading)
    assert (evidence.source, evidence.says) == ("code", reading.class_pairing.value)
    assert not evidence.figures["differs"]
    assert evidence.figures["rows"]
    assert evidence.figures["class"] in evidence.detail


# Types with a second site that turns the other way, one that is refused, one that cannot be read.
SITES = {
    "axk2": True,
    "deepseek_v32": True,
    "deepseek_v4": True,
    "minimax_m3_vl_text": True,
    "jetmoe": True,
    "zaya": False,
}


@pytest.mark.parametrize(("model_type", "told"), SITES.items())
def test_the_main_attention_is_asked_and_no_other(model_type: str, told: bool, tmp_path: Path) -> None:
    built.build(model_type).config.save_pretrained(tmp_path)
    config = read_config(tmp_path)
    reading = read_model(config)
    evidence = code_evidence(tmp_path, config, reading)
    assert evidence.says == (reading.class_pairing.value if told else "unknown")
    assert not evidence.figures.get("differs")


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "helium"])
def test_as_many_heads_of_k_as_of_q_are_no_obstacle(name: str, tmp_path: Path) -> None:
    """Classes have 32 heads of k by default: a tiny model that says nothing of them would not run."""
    changes = {"num_key_value_heads": 8} | ({"hidden_size": 128} if name == "helium" else {})
    tiny.config_of(name, **changes).save_pretrained(tmp_path)
    config = read_config(tmp_path)
    evidence = code_evidence(tmp_path, config, read_model(config))
    assert evidence.says == read_model(config).class_pairing.value, evidence.detail


def test_partial_rotary_is_told(checkpoint: Callable[[str], Path]) -> None:
    source = checkpoint("gpt_neox")
    config = read_config(source)
    assert "16 of 32 rows" in code_evidence(source, config, read_model(config)).detail


def test_a_key_that_turns_the_class_is_obeyed(own: Callable[[str], Path]) -> None:
    source = own("deepseek_v3")
    edit_json(source / "config.json", rope_interleave=False)
    result = inspect(source, code=True)
    assert [(e.source, e.says) for e in result.evidence] == [("config", "half"), ("code", "half")]


def test_a_guarded_checkpoint_is_read(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """The class rotates half, whatever the marker says of the weights: that is no contradiction."""
    convert.apply(convert.plan(checkpoint("qwen2"), tmp_path / "there", INTERLEAVED))
    result = inspect(tmp_path / "there", code=True)
    assert [(e.source, e.says) for e in result.evidence] == [
        ("marker", "interleaved"), ("family", "half"), ("code", "half")
    ]  # fmt: skip
    assert result.pairing == "interleaved"
    assert result.verdict is not None
    assert not result.verdict.warning


# A row that is wrong about its class: what is changed in it, and words of the headline.
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "the pairing": ({"pairing": INTERLEAVED}, "the class says interleaved, the class's own code says half"),
    "the rows": (
        {"moves": (Moved("k_proj", K, "k"),), "stays": ("q_proj", "v_proj", "o_proj")},
        "the class's own code turns other rows of q_proj than the family table says",
    ),
}


@pytest.mark.parametrize(("changes", "headline"), WRONG.values(), ids=WRONG)
def test_a_row_that_is_wrong_is_the_headline(
    changes: dict[str, Any], headline: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tiny.save(tiny.model_of("llama"), tmp_path / "a")
    (source / "model.safetensors").unlink()
    assert TABLE["llama"].pairing is HALF
    monkeypatch.setitem(table.TABLE, "llama", replace(TABLE["llama"], **changes))  # type: ignore[arg-type]  # a dict
    result = inspect(source, code=True)
    assert result.verdict is not None
    assert result.verdict.warning == "class-contradicts-row"
    assert headline in result.verdict.headline
    assert result.pairing == "unknown"


def test_a_class_that_cannot_be_built_says_unknown(own: Callable[[str], Path]) -> None:
    source = own("llama")
    edit_json(source / "config.json", hidden_act="no-such-activation")
    result = inspect(source, code=True)
    assert result.evidence[-1].says == "unknown"
    assert "cannot be read by the probe" in result.evidence[-1].detail
    assert result.pairing == "half"


@pytest.mark.parametrize("name", sorted(path.parent.name for path in FIXTURES.glob("layouts/*/config.json")))
def test_the_class_is_never_held_to_differ_over_a_trained_checkpoint(name: str) -> None:
    """Real configs, some with keys that their class keeps and does not read (head_dim of GPT-NeoX)."""
    found = inspect(FIXTURES / "layouts" / name, code=True)
    (said,) = (e for e in found.evidence if e.source == "code")
    assert (said.says, said.figures["differs"]) == (found.pairing, [])
