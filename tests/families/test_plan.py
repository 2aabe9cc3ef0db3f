"""The plan of a conversion: what it moves, and what it refuses to plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool.checkpoint.folder import open_checkpoint
from ropetool.errors import CheckpointError, ConfigError, ShapeError, UnclaimedTensorError
from ropetool.families.plan import plan_conversion
from ropetool.families.reading import read_model
from ropetool.models.tiny import build
from ropetool.rope.pairing import Pairing
from tests.tiny import TINY, edit_json

LAYER = "model.layers.0.self_attn"


def planned(directory: Path):
    checkpoint = open_checkpoint(directory)
    reading = read_model(checkpoint.config)
    return plan_conversion(checkpoint, reading, reading.pairing, reading.pairing.other)


def edit_weights(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})


def test_what_a_llama_moves(checkpoint) -> None:
    plan = planned(checkpoint("llama"))
    names = {move.tensor.name for move in plan.moves}
    kinds = [f"{p}_proj.{kind}" for p in "qk" for kind in ("weight", "bias")]
    assert names == {f"model.layers.{layer}.self_attn.{kind}" for layer in (0, 1) for kind in kinds}
    k = next(m for m in plan.moves if m.tensor.name == f"{LAYER}.k_proj.weight")
    assert k.permutation.index.tolist()[:16] == [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]
    assert len(k.permutation.index) == 32
    assert k.size_bytes == 32 * 96 * 4


@pytest.mark.parametrize("name", TINY)
def test_both_directions_are_planned_for_the_same_tensors(name: str, checkpoint) -> None:
    opened = open_checkpoint(checkpoint(name))
    reading = read_model(opened.config)
    there = plan_conversion(opened, reading, Pairing.HALF, Pairing.INTERLEAVED)
    back = plan_conversion(opened, reading, Pairing.INTERLEAVED, Pairing.HALF)
    assert [m.tensor for m in there.moves] == [m.tensor for m in back.moves]
    assert there.size_bytes == back.size_bytes > 0
    assert there.size_bytes < opened.size_bytes


def test_rows_that_do_not_fit_the_heads_are_refused_with_the_numbers(own) -> None:
    directory = own("llama")
    edit_json(directory / "config.json", num_attention_heads=4)
    with pytest.raises(ShapeError, match=r"q_proj.* has shape \[128.*not 64 rows"):
        planned(directory)


def test_key_rows_are_checked_by_their_own_head_count(own) -> None:
    directory = own("llama")
    edit_json(directory / "config.json", num_key_value_heads=4)
    with pytest.raises(ShapeError, match=r"k_proj.* has shape \[32.*not 64 rows"):
        planned(directory)


@pytest.mark.parametrize(
    "name",
    [f"{LAYER}.q_norm.weight", f"{LAYER}.q_proj.weight_scale", f"{LAYER}.q_proj.lora_B.weight",
     f"{LAYER}.qkv_proj.weight", f"{LAYER}.sinks", f"{LAYER}.q_proj.qweight"],
)  # fmt: skip
def test_an_attention_tensor_that_no_row_names_is_refused_by_name(name: str, own) -> None:
    directory = own("llama")
    edit_weights(directory, lambda tensors: tensors.update({name: torch.zeros(128)}))
    with pytest.raises(UnclaimedTensorError, match=name.replace(".", r"\.")) as caught:
        planned(directory)
    assert caught.value.fields == {"tensor": name, "model_type": "llama"}


@pytest.mark.parametrize(("removed", "missing"), [("q_proj", "q"), ("k_proj", "k")])
def test_a_layer_without_q_or_k_is_refused_by_name(removed: str, missing: str, own) -> None:
    directory = own("llama")

    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for kind in ("weight", "bias"):
            del tensors[f"model.layers.1.self_attn.{removed}.{kind}"]

    edit_weights(directory, drop)
    with pytest.raises(CheckpointError, match=rf"model\.layers\.1\.self_attn has no weight that gives {missing};"):
        planned(directory)


def test_names_of_another_shape_are_not_silently_nothing_to_do(own) -> None:
    directory = own("llama")

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace("self_attn", "mixing")] = tensors.pop(name)

    edit_weights(directory, rename)
    with pytest.raises(CheckpointError, match="no attention tensor was found"):
        planned(directory)


def test_a_prefix_before_the_layers_does_not_matter(own) -> None:
    directory = own("llama")

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)

    before = {m.tensor.name for m in planned(directory).moves}
    edit_weights(directory, rename)
    assert {m.tensor.name for m in planned(directory).moves} == {f"language_model.{name}" for name in before}


def test_buffers_that_old_exports_saved_stay(own) -> None:
    directory = own("llama")
    edit_weights(directory, lambda t: t.update({f"{LAYER}.rotary_emb.inv_freq": torch.ones(8)}))
    assert all("inv_freq" not in move.tensor.name for move in planned(directory).moves)


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.0.attention.q_proj.weight", "model.layers.0.cross_attn.q_proj.weight",
        "model.layers.1.attn.wq.weight", "model.layers.0.attn.scale", "mtp.layers.0.attention.wqkv.weight",
    ],
)  # fmt: skip
def test_an_attention_of_another_name_is_refused(name: str, own) -> None:
    """The class would not load it; whoever put it there may rotate it."""
    source = own("llama")
    edit_weights(source, lambda tensors: tensors.update({name: torch.zeros(128, 96)}))
    with pytest.raises(
        UnclaimedTensorError, match=rf"{name.replace('.', '[.]')} lies in an attention called"
    ) as caught:
        planned(source)
    assert caught.value.fields["tensor"] == name


def test_tensors_that_a_class_writes_beside_its_fused_projection_are_refused(tmp_path: Path) -> None:
    """transformers 5.24 writes HRM's attention biases under another module than its weights."""
    build("hrm_text", attention_bias=True).model.save_pretrained(tmp_path / "a")
    with pytest.raises(UnclaimedTensorError, match=r"self_attn.*_proj.bias lies in an attention called self_attn"):
        planned(tmp_path / "a")


@pytest.mark.parametrize("model_type", ["neomme", "mimo_v2_flash"])
def test_layers_that_differ_are_not_taken_for_alike(model_type: str, tmp_path: Path) -> None:
    build(model_type).model.save_pretrained(tmp_path / "a")
    assert planned(tmp_path / "a").moves
    edit_json(tmp_path / "a" / "config.json", "layer_types")
    with pytest.raises(ConfigError, match=r"no layer_types, and full_attention and sliding_attention layers .* differ"):
        planned(tmp_path / "a")
