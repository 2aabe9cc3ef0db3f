"""Ways of quantising, written from the layouts that their packages publish, to check conversions of their checkpoints.

Each has a quantiser (plain rounding, the smallest thing that fills every tensor) and a reader that gives back the
floating-point weight. They share no code with ropetool: words are filled and cut value by value.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Parts = dict[str, Tensor]

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "q_b_proj", "kv_a_proj_with_mqa", "query_key_value", "qkv_proj")
GROUP = 8
BLOCK = (16, 32)
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])


@dataclass(frozen=True)
class Way:
    """One way of quantising: its ``quantization_config``, both directions, and the kinds of tensors that must move."""

    name: str
    config: Mapping[str, Any] | None
    quantise: Callable[[Tensor], Parts]
    read: Callable[[Parts], Tensor]
    moves: frozenset[str]
    beside: Mapping[str, Tensor] = field(default_factory=dict)


# --- integers in 32-bit words ---------------------------------------------------------------------------------------


def fill_words(values: Tensor, bits: int) -> Tensor:
    """Lines of values [n, count] in words, as auto-gptq 0.7.1 packs them (qlinear_cuda_old.py, pack)."""
    lines = []
    for line in values.tolist():
        words, i = [], 0
        while i < len(line):
            if bits in (2, 4, 8):
                words.append(sum(line[j] << (bits * (j - i)) for j in range(i, i + 32 // bits)))
                i += 32 // bits
                continue
            first = sum(line[i + j] << (3 * j) for j in range(10)) | (line[i + 10] & 3) << 30
            second = (line[i + 10] >> 2) & 1 | sum(line[i + 11 + j] << (3 * j + 1) for j in range(10))
            second |= (line[i + 21] & 1) << 31
            third = (line[i + 21] >> 1) & 3 | sum(line[i + 22 + j] << (3 * j + 2) for j in range(10))
            words += [first, second, third]
            i += 32
        lines.append([word - (1 << 32) if word >> 31 else word for word in words])
    return torch.tensor(lines, dtype=torch.int32)


def cut_words(words: Tensor, bits: int) -> Tensor:
    """The values of lines of words, cut from the line as one long number."""
    lines = []
    for line in words.tolist():
        whole = sum((word & 0xFFFFFFFF) << (32 * i) for i, word in enumerate(line))
        lines.append([(whole >> (bits * i)) & ((1 << bits) - 1) for i in range(32 * len(line) // bits)])
    return torch.tensor(lines)


def grouped(weight: Tensor, bits: int, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Unsigned values [rows, in], scales and zeros [rows, groups]; input i is in group ``order[i]``."""
    groups, top = int(order.max()) + 1, (1 << bits) - 1
    low = torch.stack([weight[:, order == g].amin(1) for g in range(groups)], 1).clamp_max(0)
    high = torch.stack([weight[:, order == g].amax(1) for g in range(groups)], 1).clamp_min(0)
    scale = ((high - low) / top).half().float()
    zero = (-low / scale).round().clamp(1, top)
    values = (weight / scale[:, order] + zero[:, order]).round().clamp(0, top)
    return values.int(), scale, zero.int()


def in_order(weight: Tensor) -> Tensor:
    return torch.arange(weight.shape[1]) // GROUP


def shuffled(weight: Tensor) -> Tensor:
    """A group for each input in no order, as GPTQ leaves them with act-order."""
    return in_order(weight)[torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(4))]


def gptq(bits: int) -> Way:
    def quantise(weight: Tensor) -> Parts:
        order = shuffled(weight)
        values, scale, zero = grouped(weight, bits, order)
        return {
            "qweight": fill_words(values, bits).T, "scales": scale.T.half(), "g_idx": order.int(),
            "qzeros": fill_words(zero.T - 1, bits),
        }  # fmt: skip

    def read(parts: Parts) -> Tensor:
        order = parts["g_idx"].long()
        values, zeros = cut_words(parts["qweight"].T, bits), cut_words(parts["qzeros"], bits) + 1
        return (values - zeros.T[:, order]) * parts["scales"].float().T[:, order]

    config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": True, "checkpoint_format": "gptq"}
    return Way(f"gptq-{bits}", config, quantise, read, frozenset(("qweight", "scales", "qzeros")))


def packed_integers(bits: int) -> Way:
    """compressed-tensors 0.20.1, pack_quantized: words along the inputs, but zero points in words along the rows."""

    def quantise(weight: Tensor) -> Parts:
        values, scale, zero = grouped(weight, bits, in_order(weight))
        return {
            "weight_packed": fill_words(values, bits), "weight_scale": scale,
            "weight_shape": torch.tensor(weight.shape),
            "weight_zero_point": fill_words(zero.T, bits).T, "weight_g_idx": in_order(weight).int(),
        }  # fmt: skip

    def read(parts: Parts) -> Tensor:
        order = parts["weight_g_idx"].long()
        values, zeros = cut_words(parts["weight_packed"], bits), cut_words(parts["weight_zero_point"].T, bits).T
        assert list(values.shape) == parts["weight_shape"].tolist()
        return (values - zeros[:, order]) * parts["weight_scale"][:, order]

    weights = {"num_bits": bits, "type": "int", "symmetric": False, "strategy": "group", "group_size": GROUP}
    config = compressed("pack-quantized", weights)
    return Way(
        f"packed-{bits}", config, quantise, read, frozenset(("weight_packed", "weight_scale", "weight_zero_point"))
    )


def compressed(form: str, weights: Mapping[str, Any]) -> dict[str, Any]:
    groups = {"group_0": {"weights": dict(weights), "targets": ["Linear"]}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


# --- eight bits -----------------------------------------------------------------------------------------------------


def rounded(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return (weight / scale).round().to(dtype) if dtype is torch.int8 else (weight / scale).to(dtype)


def per_row(
    name: str, dtype: torch.dtype, scale_kind: str, config: Mapping[str, Any] | None, *, column: bool = True,
    weight_kind: str = "weight", divisor: float = 1.0, zero_point: bool = False, **beside: Tensor,
) -> Way:  # fmt: skip
    """One scale for each row; ``divisor`` is what the stored scale is larger by than the factor of the values."""
    top = 127.0 if dtype is torch.int8 else 448.0
    moves = {weight_kind, scale_kind} | ({"weight_zero_point"} if zero_point else set())

    def quantise(weight: Tensor) -> Parts:
        scale = weight.abs().amax(1, keepdim=True) / (top / 2 if zero_point else top)
        parts = {weight_kind: rounded(weight, scale, dtype), scale_kind: scale * divisor}
        if zero_point:
            zero = torch.randint(-40, 40, scale.shape, generator=torch.Generator().manual_seed(8)).to(torch.int8)
            parts = {**parts, weight_kind: parts[weight_kind] + zero, "weight_zero_point": zero}
        return parts if column else {**parts, scale_kind: parts[scale_kind][:, 0]}

    def read(parts: Parts) -> Tensor:
        zero = parts["weight_zero_point"].float() if zero_point else 0.0
        return (parts[weight_kind].float() - zero) * (parts[scale_kind].float().reshape(-1, 1) / divisor)

    return Way(name, config, quantise, read, frozenset(moves), beside)


def per_tensor() -> Way:
    def quantise(weight: Tensor) -> Parts:
        scale = weight.abs().max() / 448
        return {"weight": rounded(weight, scale, torch.float8_e4m3fn), "weight_scale_inv": scale}

    def read(parts: Parts) -> Tensor:
        return parts["weight"].float() * parts["weight_scale_inv"]

    config = {"quant_method": "fp8", "weight_block_size": None, "activation_scheme": "static"}
    return Way(
        "fp8-tensor", config, quantise, read, frozenset(("weight",)), {"activation_scale": torch.tensor(0.5)}
    )  # fmt: skip


def blocks(name: str, scale_kind: str, config: Mapping[str, Any]) -> Way:
    def spread(scale: Tensor, like: Tensor) -> Tensor:
        rows, columns = (torch.arange(size) // block for size, block in zip(like.shape, BLOCK, strict=True))
        return scale[rows][:, columns]

    def quantise(weight: Tensor) -> Parts:
        counts = [-(-size // block) for size, block in zip(weight.shape, BLOCK, strict=True)]
        scale = torch.stack([
            torch.stack([weight[BLOCK[0] * i :, BLOCK[1] * j :][: BLOCK[0], : BLOCK[1]].abs().max() / 448
                         for j in range(counts[1])])
            for i in range(counts[0])
        ])  # fmt: skip
        return {"weight": rounded(weight, spread(scale, weight), torch.float8_e4m3fn), scale_kind: scale}

    def read(parts: Parts) -> Tensor:
        return parts["weight"].float() * spread(parts[scale_kind], parts["weight"])

    return Way(name, config, quantise, read, frozenset(("weight",)))


# --- groups along the inputs ----------------------------------------------------------------------------------------


def nearest_fp4(values: Tensor) -> Tensor:
    return (values[..., None] - FP4).abs().argmin(-1)


def fp4(name: str, weight_kind: str, config: Mapping[str, Any], group: int, global_kind: str = "") -> Way:
    """Two 4-bit floats in a byte, a scale for each group of inputs: E8M0 exponents, or E4M3 under a global scale."""

    def quantise(weight: Tensor) -> Parts:
        peaks = weight.reshape(len(weight), -1, group).abs().amax(-1) / 6
        whole = peaks.max() / 448
        exponents = (peaks.log2().ceil() + 127).to(torch.uint8)
        stored = (peaks / whole).to(torch.float8_e4m3fn) if global_kind else exponents
        parts = {weight_kind: torch.empty(0), "weight_scale": stored} | ({global_kind: whole} if global_kind else {})
        codes = nearest_fp4(weight / scales(parts).repeat_interleave(group, 1).clamp_min(1e-30))
        return {**parts, weight_kind: (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)}

    def scales(parts: Parts) -> Tensor:
        stored = parts["weight_scale"]
        return stored.float() * parts[global_kind] if global_kind else torch.exp2(stored.float() - 127)

    def read(parts: Parts) -> Tensor:
        packed = parts[weight_kind].long()
        values = FP4[torch.stack((packed & 15, packed >> 4), -1).flatten(1)]
        return values * scales(parts).repeat_interleave(group, 1)

    beside = {"input_scale": torch.tensor(0.3)} if config["quant_method"] == "modelopt" else {}
    return Way(name, config, quantise, read, frozenset((weight_kind, "weight_scale")), beside)


def affine_words(name: str, bias_kind: str, config: Mapping[str, Any]) -> Way:
    """MLX: words along the inputs, a scale and a bias for each group (transformers' MetalLinear is the same)."""

    def quantise(weight: Tensor) -> Parts:
        values, scale, zero = grouped(weight, 4, in_order(weight))
        return {"weight": fill_words(values, 4).view(torch.uint32), "scales": scale, bias_kind: -zero * scale}

    def read(parts: Parts) -> Tensor:
        values = cut_words(parts["weight"].view(torch.int32), 4)
        order = torch.arange(values.shape[1]) // GROUP
        return values * parts["scales"][:, order] + parts[bias_kind][:, order]

    return Way(name, config, quantise, read, frozenset(("weight", "scales", bias_kind)))


INT8, FP8 = torch.int8, torch.float8_e4m3fn
MLX = {"group_size": GROUP, "bits": 4}
CHANNEL = {"num_bits": 8, "strategy": "channel"}

WAYS: dict[str, Way] = {
    way.name: way
    for way in (
        *(gptq(bits) for bits in (2, 3, 4, 8)),
        *(packed_integers(bits) for bits in (2, 3, 4, 8)),
        per_row("int8-channel", INT8, "weight_scale", compressed("int-quantized", CHANNEL), zero_point=True,
                input_scale=torch.tensor([0.5]), k_scale=torch.tensor([0.7])),
        per_row("fp8-channel", FP8, "weight_scale", compressed("float-quantized", CHANNEL)),
        per_row("fbgemm", FP8, "weight_scale", {"quant_method": "fbgemm_fp8"}, input_scale_ub=torch.tensor([1200.0])),
        per_row("undeclared", INT8, "weight_scale", None, column=False),
        per_row("bitsandbytes-8", INT8, "SCB", {"quant_method": "bitsandbytes", "load_in_8bit": True}, column=False,
                divisor=127.0, weight_format=torch.tensor(0, dtype=torch.uint8)),
        per_row("quanto-8", INT8, "weight._scale", {"quant_method": "quanto", "weights": "int8"},
                weight_kind="weight._data", input_scale=torch.tensor(1.0), output_scale=torch.tensor(1.0)),
        per_tensor(),
        blocks("fp8-blocks", "weight_scale_inv", {"quant_method": "fp8", "weight_block_size": list(BLOCK)}),
        blocks("fp8-blocks-compressed", "weight_scale",
               compressed("float-quantized", {"num_bits": 8, "strategy": "block", "block_structure": list(BLOCK)})),
        fp4("mxfp4", "weight_packed", compressed("mxfp4-pack-quantized", {"num_bits": 4, "group_size": 32}), 32),
        fp4("nvfp4", "weight_packed", compressed("nvfp4-pack-quantized", {"num_bits": 4, "group_size": 16}), 16,
            "weight_global_scale"),
        fp4("modelopt-nvfp4", "weight", {"quant_method": "modelopt", "quant_algo": "NVFP4"}, 16, "weight_scale_2"),
        affine_words("mlx", "biases", MLX),
        affine_words("metal", "qbiases", {"quant_method": "metal", **MLX}),
    )
}  # fmt: skip


# --- checkpoints ----------------------------------------------------------------------------------------------------


def save(tensors: Mapping[str, Tensor], config: Mapping[str, Any], like: Path, directory: Path) -> Path:
    shutil.copytree(like, directory)
    contiguous = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def read_config(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text(encoding="utf-8"))


def is_quantised(name: str) -> bool:
    return name.endswith(".weight") and name.split(".")[-2] in PROJECTIONS


def quantise(source: Path, way: Way, directory: Path) -> Path:
    """A checkpoint whose attention projections are quantised; biases, norms and the rest stay as they are."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not is_quantised(name):
            tensors[name] = tensor
            continue
        parts = {**way.quantise(tensor), **way.beside}
        tensors |= {f"{name.removesuffix('weight')}{kind}": part for kind, part in parts.items()}
    config = read_config(source) | ({"quantization_config": way.config} if way.config else {})
    return save(tensors, config, source, directory)


def dequantise(source: Path, way: Way, directory: Path) -> Path:
    """The same checkpoint with floating-point weights."""
    tensors: dict[str, Tensor] = {}
    quantised: dict[str, Parts] = defaultdict(dict)
    for name, tensor in load_file(source / "model.safetensors").items():
        module = next((f"{head}{p}." for p in PROJECTIONS for head, found, _ in [name.partition(f"{p}.")] if found), "")
        if module and name != f"{module}bias":
            quantised[module][name.removeprefix(module)] = tensor
        else:
            tensors[name] = tensor
    for module, parts in quantised.items():
        tensors[f"{module}weight"] = way.read(parts)
    config = {key: value for key, value in read_config(source).items() if key != "quantization_config"}
    return save(tensors, config, source, directory)
