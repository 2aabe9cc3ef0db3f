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
          "helium-mha-16": ("interleaved", "unknown"),
          # Heads of their own keys, whose angles do not tell two of them from one of twice the size.
          "llama-mha-16": ("half", "unknown"), "mistral-mha-32": ("half", "unknown")}  # fmt: skip


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


@pytest.mark.parametrize(
    ("name", "only"), [("llama-64", "q_proj"), ("ernie4_5-128", "k_proj"), ("olmo2-norm-64", "k_proj")]
)
def test_one_of_q_and_k_permuted_is_mixed(name, only, tmp_path):
    found = witness(permuted(TRAINED[name], tmp_path / "half-done", only))
    assert found.says == "mixed"
    assert "only one of them was permuted" in found.detail
    assert found.confidence > 0.95


def test_layers_that_differ_are_mixed_and_named(tmp_path):
    found = witness(permuted(TRAINED["llama-64"], tmp_path / "one-layer", "layers.1."))
    assert found.says == "mixed"
    assert found.detail == "1 layer says half (model.layers.0), and 1 layer says interleaved (model.layers.1)"


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("times", [2, 4, 0.5])
def test_other_heads_of_the_same_width_are_not_taken_for_the_other_layout(name, times, tmp_path):
    """Half over a head is interleaved over half of it, as curves go: then the angles have to tell, or nobody does."""
    directory = Path(shutil.copytree(TRAINED[name], tmp_path / "heads"))
    config = json.loads((directory / "config.json").read_text("utf-8"))
    heads = {"num_attention_heads": config["num_attention_heads"], "num_key_value_heads": config["num_key_value_heads"]}
    if any(count * times % 1 for count in heads.values()) or "deepseek" in name:
        pytest.skip("there are no such heads")
    wrong = {key: int(count * times) for key, count in heads.items()}
    edit_json(directory / "config.json", **wrong, head_dim=int(config["head_dim"] / times))
    assert witness(directory).says in ("unknown", pairing_of(directory).value)


def test_rows_without_numbers_are_said(tmp_path):
    directory = Path(shutil.copytree(bundled(CHECKPOINT), tmp_path / "zero"))
    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.1.self_attn.q_proj.weight"].zero_()
    tensors["model.layers.0.self_attn.k_proj.weight"][3, 5] = float("nan")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    found = witness(directory)
    assert found.says == "unknown"
    assert "k of model.layers.0, q of model.layers.1" in found.detail


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_rows_of_8_bit_floats_with_scales_of_blocks_are_read(dtype, tmp_path):
    """As DeepSeek-V3 and Qwen3 keep them: a scale for each block of 128 x 128."""
    directory = Path(shutil.copytree(TRAINED["qwen3-norm-128"], tmp_path / "fp8"))
    how = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    edit_json(directory / "config.json", quantization_config=how)
    stored = {}
    for key, tensor in load_file(directory / "model.safetensors").items():
        stored[key] = tensor
        if key.endswith("proj.weight"):
            rows, columns = tensor.shape
            blocks = tensor.float().reshape(rows // 128, 128, columns // 128, 128)
            scale = blocks.abs().amax((1, 3)) / 400
            stored[key] = (blocks / scale[:, None, :, None]).reshape(rows, columns).to(dtype)
            stored[f"{key}_scale_inv"] = scale
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    assert witness(directory).says == "half"


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
