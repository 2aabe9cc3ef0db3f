"""verify on adapters: as files, and merged into their bases by PEFT."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from ropetool import verify
from ropetool.checkpoint.folder import has_guard
from ropetool.cli import app
from ropetool.errors import CheckpointError, UnsupportedError, UsageError
from ropetool.rope.pairing import Pairing
from tests.families.test_adapter import CONFIG, WEIGHTS, also_moved, left, to, trained
from tests.tiny import edit_json

INTERLEAVED = Pairing.INTERLEAVED


@pytest.fixture(scope="module")
def pair(checkpoint, tmp_path_factory) -> tuple[Path, Path, Path, Path]:
    """A base, its DoRA adapter, and both converted."""
    base, place = checkpoint("qwen2"), tmp_path_factory.mktemp("pair")
    config = LoraConfig(r=4, target_modules=["q_proj", "k_proj", "v_proj"], use_dora=True, bias="lora_only")
    adapter = trained(base, config, place / "adapter")
    return base, adapter, to(INTERLEAVED, base, place / "base-to"), to(INTERLEAVED, adapter, place / "adapter-to")


def failed(result: verify.Verification) -> set[str]:
    return {check.name for check in result.checks if not check.passed}


def test_adapters_as_files(pair) -> None:
    _, adapter, _, adapter_to = pair
    result = verify.verify(adapter, adapter_to)
    assert (result.passed, result.relation, result.tokens) == (True, "converted", 0)
    assert [check.name for check in result.checks] == ["tensors-kept", "tensors-moved"]
    same = verify.verify(adapter, adapter)
    assert (same.passed, same.relation) == (True, "same")


def test_adapters_merged_into_their_bases(pair) -> None:
    base, adapter, base_to, adapter_to = pair
    assert has_guard(base_to)
    result = verify.verify(adapter, adapter_to, bases=(base, base_to))
    assert (result.passed, result.relation, result.tokens) == (True, "converted", 64)
    assert result.control["failed_as_it_must"]


FAULTS = {
    "lora_B left": (left("lora_B"), "tensors-moved"),
    "magnitude left": (left("lora_magnitude_vector"), "tensors-moved"),
    "bias left": (left("base_layer.bias"), "tensors-moved"),
    "lora_A moved": (also_moved("q_proj.lora_A"), "tensors-kept"),
    "v moved": (also_moved("v_proj.lora_B"), "tensors-kept"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fails_by_file_and_by_forward_pass(fault: str, pair, tmp_path: Path) -> None:
    base, adapter, base_to, adapter_to = pair
    plant, check = FAULTS[fault]
    wrong = shutil.copytree(adapter_to, tmp_path / "wrong")
    after = load_file(wrong / WEIGHTS)
    plant(load_file(adapter / WEIGHTS), after)
    save_file(after, wrong / WEIGHTS, metadata={"format": "pt"})
    assert failed(verify.verify(adapter, wrong)) == {check}
    assert {check, "logits"} <= failed(verify.verify(adapter, wrong, bases=(base, base_to)))


def test_another_adapter_is_not_the_same(pair, tmp_path: Path) -> None:
    _, adapter, _, adapter_to = pair
    other = shutil.copytree(adapter_to, tmp_path / "other")
    edit_json(other / CONFIG, lora_alpha=99)
    (check,) = verify.verify(adapter, other).checks
    assert (check.passed, check.detail) == (False, "lora_alpha of adapter_config.json is 8 in one and 99 in the other")
    edit_json(other / CONFIG, lora_alpha=8)
    tensors = load_file(other / WEIGHTS)
    name = next(iter(tensors))
    save_file({n: t for n, t in tensors.items() if n != name}, other / WEIGHTS)
    assert f"{name} is in the first adapter only" in verify.verify(adapter, other).checks[0].detail
    save_file({**tensors, name: tensors[name].half()}, other / WEIGHTS)
    assert "F16" in verify.verify(adapter, other).checks[0].detail


def test_what_cannot_be_compared_is_said(pair, monkeypatch, tmp_path: Path) -> None:
    base, adapter, base_to, adapter_to = pair
    with pytest.raises(UsageError, match="both must be adapters"):
        verify.verify(adapter, base_to)
    with pytest.raises(UsageError, match="both must be adapters"):
        verify.verify(base, base_to, bases=(base, base_to))
    with pytest.raises(UsageError, match="is half, and its adapter interleaved; give --base twice"):
        verify.verify(adapter, adapter_to, bases=(base, base))
    broken = shutil.copytree(adapter_to, tmp_path / "broken")
    edit_json(broken / CONFIG, target_modules=["nothing_like_it"])
    plain = shutil.copytree(adapter, tmp_path / "plain")
    edit_json(plain / CONFIG, target_modules=["nothing_like_it"])
    with pytest.raises(CheckpointError, match="PEFT cannot merge"):
        verify.verify(plain, broken, bases=(base, base_to))
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UnsupportedError, match="pip install peft"):
        verify.verify(adapter, adapter_to, bases=(base, base_to))
    assert verify.verify(adapter, adapter_to).passed


def test_the_command_line(pair, tmp_path: Path, capsys) -> None:
    base, adapter, base_to, adapter_to = map(str, pair)
    assert app.run(["verify", adapter, adapter_to]) == 0
    assert "nothing was run: adapters are run only merged into bases, given by --base" in capsys.readouterr().out
    assert app.run(["verify", adapter, adapter_to, "--base", base, "--base", base_to, "--quiet"]) == 0
    assert "control" in capsys.readouterr().out
    assert app.run(["verify", adapter, adapter_to, "--base", base]) == 2
    assert "give the base of A, then that of B" in capsys.readouterr().err
    assert app.run(["convert", adapter, str(tmp_path / "out"), "--to", "interleaved", "--verify"]) == 0
    done = capsys.readouterr()
    assert "verified as files" in done.err
    assert "the logits of both agree" not in done.out
    assert app.run(["inspect", adapter_to, "--base", base_to]) == 0
