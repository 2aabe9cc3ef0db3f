"""Types taken out of the table: the row that the probe derives for them is the table's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ropetool import convert, detect, verify
from ropetool.errors import NotVerifiedError, UnknownFamilyError, UsageError
from ropetool.families.family import PLAIN, ROTARY
from ropetool.families.geometry import Each
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.models import fallback
from ropetool.models.understand import understand
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import TINY, digest, read_json

# The sizes of a published model, which no tiny model has.
PUBLISHED = {"num_attention_heads": 40, "num_key_value_heads": 5, "head_dim": 64, "hidden_size": 2560}
SIZES = {
    "llama": PUBLISHED, "qwen3": PUBLISHED, "olmo2": PUBLISHED, "cohere-qk-norm": PUBLISHED,
    "glm4": PUBLISHED, "phi3": PUBLISHED, "gpt_neox": {"num_attention_heads": 40, "hidden_size": 2560},
    "deepseek_v3": {"num_attention_heads": 40, "num_key_value_heads": 40, "qk_nope_head_dim": 128,
                    "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512, "q_lora_rank": 1536},
}  # fmt: skip


def removed(monkeypatch: pytest.MonkeyPatch, name: str):
    """The row of a tiny model's type, which the table no longer has."""
    row = TABLE[TINY[name].model_type]
    monkeypatch.delitem(TABLE, row.model_type)
    return row


@pytest.mark.parametrize("name", SIZES)
def test_the_derived_row_is_the_tables(name: str, tmp_path: Path, monkeypatch) -> None:
    tiny.config_of(name, **SIZES[name]).save_pretrained(tmp_path)
    config = read_json(tmp_path / "config.json")
    expected = read_model(config)
    row = removed(monkeypatch, name)
    found = understand(tmp_path, config)
    assert found.geometry.head_dim == expected.geometry.head_dim
    derived = {m.module: found.geometry.spans(m.rows) for m in found.family.moves}
    by_table = {m.module: expected.geometry.spans(m.rows) for m in row.moves}
    assert derived == {module: by_table[module] for module in derived}
    assert by_table.keys() - derived.keys() <= {"q_proj"}  # MLA has it or q_b_proj
    assert (found.family.attention, found.family.pairing_key) == (row.attention, row.pairing_key)
    assert (found.pairing, found.class_pairing) == (expected.pairing, expected.class_pairing)
    assert [r.scaling for r in found.rotations] == [r.scaling for r in expected.rotations]
    assert [r.geometry.rotary_dim for r in found.rotations] == [r.geometry.rotary_dim for r in expected.rotations]
    assert found.evidence[-1].source == "code"
    assert "read-by-probe" in {warning.code for warning in found.warnings}


def probed(source: Path, destination: Path, to: Pairing) -> Path:
    """A conversion with the check that a probed row needs."""
    plan = convert.plan(source, destination, to)
    convert.apply(plan, check=lambda result: verify.verify(source, result).passed)
    return destination


@pytest.mark.parametrize("name", ["qwen3", "phi3", "gpt_neox", "deepseek_v3"])
def test_a_conversion_is_the_tables_byte_for_byte_and_goes_back(name: str, checkpoint, tmp_path, monkeypatch) -> None:
    source, pairing = checkpoint(name), TABLE[TINY[name].model_type].pairing
    convert.apply(convert.plan(source, tmp_path / "by-table", pairing.other, None, "same"))
    removed(monkeypatch, name)
    there = probed(source, tmp_path / "there", pairing.other)
    back = probed(there, tmp_path / "back", pairing)
    shards = [digest(d / "model.safetensors") for d in (source, tmp_path / "by-table", there, back)]
    assert shards[0] == shards[3] != shards[1] == shards[2]
    assert read_json(there / "config.json") == read_json(tmp_path / "by-table" / "config.json")


def test_layers_without_rotation_and_kinds_of_layers(tmp_path, monkeypatch) -> None:
    """SmolLM3 has a flag for each layer, Gemma 3 a rope block for each kind."""
    from transformers import AutoConfig

    for model_type in ("smollm3", "gemma3_text"):
        layers = {"num_hidden_layers": 12} | ({"pad_token_id": 0} if model_type == "smollm3" else {})
        directory = tmp_path / model_type
        AutoConfig.for_model(model_type, **layers).save_pretrained(directory)
        config = read_json(directory / "config.json")
        expected = read_model(config)
        monkeypatch.delitem(TABLE, model_type)
        found = understand(directory, config)
        assert found.nope_layers == expected.nope_layers
        assert {r.layers: r.scaling for r in found.rotations} == {r.layers: r.scaling for r in expected.rotations}


def test_no_result_without_a_check(checkpoint, tmp_path, monkeypatch) -> None:
    removed(monkeypatch, "llama")
    plan = convert.plan(checkpoint("llama"), tmp_path / "out", Pairing.INTERLEAVED)
    with pytest.raises(UsageError, match="must be verified before it gets its name"):
        convert.apply(plan)
    with pytest.raises(NotVerifiedError, match="did not pass its check"):
        convert.apply(plan, check=lambda result: False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "rows"),
    [("llama", (Each("kv_heads", (PLAIN,)),)), ("gpt_neox", (Each("heads", (ROTARY, PLAIN, ROTARY)),))],
    ids=["k left", "v moved for k"],
)
def test_a_wrong_derivation_never_gets_its_name(name: str, rows, checkpoint, tmp_path, monkeypatch) -> None:
    """Rows of the right number and the wrong meaning: the files agree with the plan, and only a forward pass tells."""
    right = fallback.general.generalise

    def wrong(*arguments):
        pattern = right(*arguments)
        return replace(pattern, moves=tuple(replace(m, rows=rows) if "k" in m.feeds else m for m in pattern.moves))

    source, verdicts, out = checkpoint(name), [], tmp_path / "out"
    removed(monkeypatch, name)
    monkeypatch.setattr(fallback.general, "generalise", wrong)

    def check(result: Path) -> bool:
        assert not out.exists()
        verdicts.append(verify.verify(source, result))
        return verdicts[-1].passed

    with pytest.raises(NotVerifiedError):
        convert.apply(convert.plan(source, out, Pairing.INTERLEAVED), check=check)
    assert "logits" in {c.name for c in verdicts[0].checks if not c.passed}
    assert list(tmp_path.iterdir()) == []


def test_a_type_that_transformers_does_not_know_is_refused(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nothing-like-it"}), encoding="utf-8")
    with pytest.raises(UnknownFamilyError, match=r"not in the family table.*transformers .* cannot read its config"):
        detect.inspect(tmp_path)
