"""The weights as a witness: trained models in both layouts, what is half permuted, and what shows nothing."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool import convert
from ropetool.checkpoint.bundled import CHECKPOINT, bundled
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.families.reading import read_model
from ropetool.families.weights import LEAST_SIGMAS, weights_evidence
from ropetool.rope.pairing import Pairing
from tests.tiny import edit_json

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
TRAINED = {path.parent.name: path.parent for path in sorted(FIXTURES.glob("layouts/*/config.json"))}
# Too small (two heads of 8 rows, a hundred steps; 16 rotated rows in two heads), or not clear enough once permuted.
SILENT = {"llama-too-small": ("unknown", "unknown"), "gpt_neox-partial-64": ("unknown", "unknown"),
          "helium-mha-16": ("interleaved", "unknown")}  # fmt: skip


def witness(directory):
    checkpoint = open_checkpoint(directory)
    return weights_evidence(checkpoint, read_model(checkpoint.config))


def pairing_of(directory):
    return read_model(open_checkpoint(directory).config).class_pairing


def permuted(source, directory, only=""):
    """The other layout under the class's own name and config, as if it had never been permuted; or a part of it."""
    convert.apply(convert.plan(source, directory, pairing_of(source).other, written_as="same"))
    whole, part = load_file(source / "model.safetensors"), load_file(directory / "model.safetensors")
    mixed = {name: part[name] if only in name else whole[name] for name in whole}
    shutil.rmtree(directory)
    shutil.copytree(source, directory)
    save_file(mixed, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def test_the_trained_models_are_of_both_layouts():
    assert len(TRAINED) >= 9
    assert {pairing_of(path) for path in TRAINED.values()} == set(Pairing)


@pytest.mark.parametrize("name", [CHECKPOINT, *TRAINED])
def test_trained_models_are_told_in_both_layouts(name, tmp_path):
    source = TRAINED.get(name) or bundled(CHECKPOINT)
    pairing = pairing_of(source)
    expected = SILENT.get(name, (pairing.value, pairing.other.value))
    for directory, says in zip((source, permuted(source, tmp_path / name)), expected, strict=True):
        found = witness(directory)
        assert found.says == says, found.detail
        assert (found.confidence is None) == (says == "unknown")


@pytest.mark.parametrize("only", ["q_proj", "k_proj"])
def test_one_of_q_and_k_permuted_is_mixed(only, tmp_path):
    found = witness(permuted(bundled(CHECKPOINT), tmp_path / "half-done", only))
    assert found.says == "mixed"
    assert "only one of them was permuted" in found.detail
    assert found.confidence > 0.95


def test_layers_that_differ_are_mixed_and_named(tmp_path):
    found = witness(permuted(TRAINED["llama-64"], tmp_path / "one-layer", "layers.1."))
    assert found.says == "mixed"
    assert found.detail == "1 layer says half (model.layers.0), and 1 layer says interleaved (model.layers.1)"


def test_a_lost_share_is_not_taken_for_the_other_layout(tmp_path):
    """Of 64 rows 16 turn, as half, and config.json says all: to a curve over all of them that looks interleaved."""
    directory = Path(shutil.copytree(TRAINED["gpt_neox-partial-64"], tmp_path / "lost"))
    config = json.loads((directory / "config.json").read_text("utf-8"))
    rope = {**config["rope_parameters"], "partial_rotary_factor": 1.0}
    edit_json(directory / "config.json", rope_parameters=rope, rotary_pct=1.0)
    found = witness(directory)
    assert found.figures["sigmas"] < -LEAST_SIGMAS
    assert found.says == "unknown"
    assert "the first 16 of each head by themselves say half" in found.detail


def test_the_same_rows_in_another_order_within_heads_show_nothing(tmp_path):
    """The figures come from the order of the rows alone: shuffled, nothing is left."""
    directory = Path(shutil.copytree(bundled(CHECKPOINT), tmp_path / "shuffled"))
    tensors = load_file(directory / "model.safetensors")
    order = torch.randperm(32, generator=torch.Generator().manual_seed(5))
    for name, values in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            tensors[name] = values.reshape(-1, 32, values.shape[-1])[:, order].reshape(values.shape)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    assert witness(directory).says == "unknown"


def test_random_weights_show_nothing(tmp_path):
    directory = Path(shutil.copytree(bundled(CHECKPOINT), tmp_path / "random"))
    generator = torch.Generator().manual_seed(6)
    trained = load_file(directory / "model.safetensors")
    tensors = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in trained.items()}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    found = witness(directory)
    assert found.says == "unknown"
    assert "show no layout" in found.detail


def test_rows_that_are_no_floats_are_not_guessed(tmp_path):
    directory = Path(shutil.copytree(bundled(CHECKPOINT), tmp_path / "int8"))
    edit_json(
        directory / "config.json", quantization_config={"quant_method": "compressed-tensors", "format": "int-quantized"}
    )
    tensors = load_file(directory / "model.safetensors")
    moved = {n: t.to(torch.int8) if "q_proj" in n or "k_proj" in n else t for n, t in tensors.items()}
    save_file(moved, directory / "model.safetensors", metadata={"format": "pt"})
    found = witness(directory)
    assert (found.says, found.confidence) == ("unknown", None)
    assert "numbers" in found.detail


def test_a_tensor_that_no_row_explains_is_said(tmp_path):
    directory = Path(shutil.copytree(bundled(CHECKPOINT), tmp_path / "stray"))
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.0.self_attn.r_proj.weight"] = tensors["model.layers.0.self_attn.q_proj.weight"].clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    found = witness(directory)
    assert found.says == "unknown"
    assert "r_proj" in found.detail
