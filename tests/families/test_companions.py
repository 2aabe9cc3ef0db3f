"""How the tensors of quantised weights follow their rows: what stays, what is refused, and what each error says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils.quantization_config import QuantizationMethod

from ropetool import convert, detect
from ropetool.checkpoint.fields import ROWS
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.checkpoint.shards import Tensor as Entry
from ropetool.checkpoint.shards import read_shard
from ropetool.errors import ConfigConflictError, ConfigError, QuantisedError, ShapeError, UnclaimedTensorError
from ropetool.families.companions import FORMATS, Companion, Form, format_of
from ropetool.families.decoder import COMPOSITES, Composite
from ropetool.families.follow import FITS, Place, follow
from ropetool.families.plan import Plan, plan_conversion
from ropetool.families.quantisation import Quantisation
from ropetool.families.reading import read_model
from tests.tiny import edit_json

LAYER = "model.layers.0.self_attn"
FP8 = torch.float8_e4m3fn
COLUMNS = 8


def write(directory: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    directory.mkdir(exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    (directory / "config.json").write_text("{}", encoding="utf-8")
    edit_json(directory / "config.json", **config)
    return directory


def planned(directory: Path) -> Plan:
    checkpoint = open_checkpoint(directory)
    reading = read_model(checkpoint.config)
    return plan_conversion(checkpoint, reading, reading.pairing, reading.pairing.other)


def moving(directory: Path) -> set[str]:
    return {move.tensor.name.removeprefix(f"{LAYER}.") for move in planned(directory).moves}


# --- the block rule -------------------------------------------------------------------------------------------------

LLAMA = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": COLUMNS}
NEOX = {"model_type": "gpt_neox", "num_attention_heads": 4}
MLA = {"model_type": "deepseek_v3", "num_attention_heads": 4, "hidden_size": COLUMNS}


def heads(head_dim: int, **more: Any) -> dict[str, Any]:
    return {**LLAMA, "head_dim": head_dim, **more}


def partial(head_dim: int, share: float, model_type: str = "glm4_moe") -> dict[str, Any]:
    return heads(head_dim, model_type=model_type, rope_parameters={
        "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share})  # fmt: skip


def neox(head_dim: int, share: float) -> dict[str, Any]:
    return {**NEOX, "hidden_size": 4 * head_dim, "rotary_pct": share}


def mla(nope: int, rope: int, latent: int) -> dict[str, Any]:
    return {**MLA, "qk_nope_head_dim": nope, "qk_rope_head_dim": rope, "kv_lora_rank": latent}


def rows_of(config: Mapping[str, Any]) -> dict[str, int]:
    """The output rows of each projection, from the config alone."""
    head_dim = config.get("head_dim", 0)
    match config["model_type"]:
        case "gpt_neox":
            return {"query_key_value": 3 * config["hidden_size"]}
        case "phi3":
            return {"qkv_proj": 8 * head_dim}
        case "deepseek_v3":
            nope, rope = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
            return {"q_b_proj": 4 * (nope + rope), "kv_a_proj_with_mqa": config["kv_lora_rank"] + rope}
        case _:
            return {"q_proj": 4 * head_dim, "k_proj": 2 * head_dim}


def block_scaled(directory: Path, config: Mapping[str, Any], scale_kind: str, quantisation: Mapping[str, Any]) -> Path:
    attention = "gpt_neox.layers.0.attention" if config["model_type"] == "gpt_neox" else LAYER
    tensors = {}
    for module, rows in rows_of(config).items():
        tensors[f"{attention}.{module}.weight"] = torch.zeros(rows, COLUMNS, dtype=FP8)
        tensors[f"{attention}.{module}.{scale_kind}"] = torch.ones(-(-rows // 128), 1)
    return write(directory, {**config, "quantization_config": quantisation}, tensors)


DEEPSEEK_BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FITTING = {
    "64": heads(64), "128": heads(128), "32": heads(32), "16": heads(16),
    "256, half of it rotary": partial(256, 0.5), "256, a quarter": partial(256, 0.25),
    "256 fused, half of it rotary": partial(256, 0.5, "phi3"), "128 fused": partial(128, 1.0, "phi3"),
    "neox 96, a quarter rotary": neox(96, 0.25), "neox 128": neox(128, 1.0),
    "MLA of DeepSeek-V3": mla(128, 64, 512), "MLA, 64 + 64": mla(64, 64, 256),
}  # fmt: skip
CROSSING = {
    "80": heads(80), "96": heads(96), "160": heads(160), "192": heads(192), "256": heads(256),
    "256 fused": partial(256, 1.0, "phi3"), "192, three quarters rotary": partial(192, 0.75),
    "neox 80": neox(80, 1.0), "neox 96": neox(96, 1.0), "MLA, 96 + 64": mla(96, 64, 512),
    "MLA, latent of 480": mla(128, 64, 480),
}  # fmt: skip


def crossing_rows(directory: Path) -> list[int]:
    """Rows that leave their block where the same checkpoint without scales is converted, in its first such tensor."""
    shard = directory / "model.safetensors"
    tensors = {name: tensor.float() for name, tensor in load_file(shard).items() if name.endswith(".weight")}
    save_file(tensors, shard)
    edit_json(directory / "config.json", "quantization_config")
    for move in planned(directory).moves:
        index = move.permutation.index
        rows = [row for row in range(len(index)) if row // 128 != index[row] // 128]
        if rows:
            return rows
    return []


@pytest.mark.parametrize("scale_kind", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize("config", FITTING.values(), ids=FITTING)
def test_blocks_that_no_row_leaves_stay(config: Mapping[str, Any], scale_kind: str, tmp_path: Path) -> None:
    directory = block_scaled(tmp_path / "a", config, scale_kind, DEEPSEEK_BLOCKS)
    moved = {move.tensor.name for move in planned(directory).moves}
    assert moved
    assert all(name.endswith(".weight") for name in moved)
    assert crossing_rows(directory) == []


@pytest.mark.parametrize("config", CROSSING.values(), ids=CROSSING)
def test_blocks_that_a_row_would_leave_are_refused_with_the_numbers(config: Mapping[str, Any], tmp_path: Path) -> None:
    structure = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {
        "group_0": {"weights": {"num_bits": 8, "strategy": "block", "block_structure": [128, 128]}}}}  # fmt: skip
    directory = block_scaled(tmp_path / "a", config, "weight_scale", structure)
    with pytest.raises(QuantisedError) as caught:
        planned(directory)
    fields = caught.value.fields
    rows = crossing_rows(directory)
    assert fields["block_rows"] == 128
    assert fields["row"] == rows[0]
    said = caught.value.message
    assert fields["tensor"] in said
    assert f"block of 128 rows and 128 columns, and with head_dim {fields['head_dim']}" in said
    assert f"row {rows[0]} of the result (block {rows[0] // 128})" in said
    assert "convert the checkpoint that it was quantised from" in said
    assert fields["head_dim"] == read_model(open_checkpoint(directory).config).geometry.head_dim


def test_a_block_scale_whose_entries_are_as_many_as_the_rows_is_no_scale_per_row(tmp_path: Path) -> None:
    """16384 x 16384 in blocks of 128 has 128 x 128 scales, one for each row by count; here 64 x 16 in blocks of 4."""
    config = {**LLAMA, "num_attention_heads": 16, "num_key_value_heads": 4, "hidden_size": 16, "head_dim": 4}
    tensors = {}
    for module, rows in {"q_proj": 64, "k_proj": 16}.items():
        tensors[f"{LAYER}.{module}.weight"] = torch.zeros(rows, 16, dtype=FP8)
        tensors[f"{LAYER}.{module}.weight_scale_inv"] = torch.ones(rows // 4, 4)
    config["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [4, 4]}
    assert moving(write(tmp_path / "a", config, tensors)) == {"q_proj.weight", "k_proj.weight"}


def test_blocks_of_one_row_are_scales_per_row(tmp_path: Path) -> None:
    tensors = {}
    for module, rows in rows_of(heads(16)).items():
        tensors[f"{LAYER}.{module}.weight"] = torch.zeros(rows, COLUMNS, dtype=FP8)
        tensors[f"{LAYER}.{module}.weight_scale_inv"] = torch.ones(rows, 2)
    config = {**heads(16), "quantization_config": {"quant_method": "fp8", "weight_block_size": [1, 4]}}
    assert len(moving(write(tmp_path / "a", config, tensors))) == 4


def test_a_permutation_of_whole_blocks_moves_their_scales(tmp_path: Path) -> None:
    tensor = Entry("scale", "F32", (3, 2), 0, 24)
    place = Place(12, 1, 4, False, Quantisation("fp8", {"weight_block_size": [4, 4]}))
    index = np.array([8, 9, 10, 11, 1, 0, 3, 2, 4, 5, 6, 7])
    index[4:8], index[8:] = [5, 4, 7, 6], [0, 1, 2, 3]
    shard = read_shard(write(tmp_path / "a", {}, {"x": torch.zeros(1)}) / "model.safetensors")
    found = follow(Companion("weight_scale", (Form.ROWS, Form.BLOCKS)), shard, tensor, index, place)
    assert found is not None
    assert found[0].tolist() == [2, 1, 0]
    assert found[1] == ROWS


# --- one model, many tensors ----------------------------------------------------------------------------------------

BASE = {**heads(16), "vocab_size": 8}
Q, K = 64, 32


def llama(directory: Path, q: Mapping[str, Tensor], quantisation: Any = None, **more: Tensor) -> Path:
    """A checkpoint of one layer whose q_proj has the tensors ``q``, and whose k_proj is plain."""
    tensors = {f"{LAYER}.q_proj.{kind}": tensor for kind, tensor in q.items()}
    plain = {f"{LAYER}.{module}.weight": torch.zeros(K, COLUMNS) for module in ("k_proj", "v_proj")}
    others = {f"{LAYER}.{name}": tensor for name, tensor in more.items()}
    config = {**BASE, **({"quantization_config": quantisation} if quantisation is not None else {})}
    return write(directory, config, {**plain, **tensors, **others})


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(*shape, dtype=dtype)


WORDS, BYTES, INTS = torch.int32, torch.uint8, torch.int8
PLAIN_Q = {"weight": zeros(Q, COLUMNS)}
EIGHT = {"weight": zeros(Q, COLUMNS, dtype=INTS)}
GPTQ = {"quant_method": "gptq", "bits": 4}
GPTQ_Q = {"qweight": zeros(1, Q, dtype=WORDS), "qzeros": zeros(2, Q // 8, dtype=WORDS), "scales": zeros(2, Q)}
AWQ_Q = {"qweight": zeros(COLUMNS, Q // 8, dtype=WORDS), "qzeros": zeros(1, Q // 8, dtype=WORDS), "scales": zeros(1, Q)}
NF4_Q = {"weight": zeros(Q * COLUMNS // 2, 1, dtype=BYTES), "weight.absmax": zeros(8)}
CODES = {"codes": zeros(Q, 1, 1, dtype=INTS)}

REFUSED: tuple[tuple[str, Any, Mapping[str, Tensor], str], ...] = (
    ("awq", {"quant_method": "awq", "bits": 4, "version": "gemm"}, AWQ_Q, "AWQ packs eight output rows into each"),
    ("nf4", {"quant_method": "bitsandbytes", "load_in_4bit": True}, NF4_Q, "flattens the weight and scales it by runs"),
    ("nf4 of old", {"load_in_4bit": True}, NF4_Q, "flattens the weight"),
    ("gptq for marlin", {**GPTQ, "checkpoint_format": "marlin"}, GPTQ_Q, "the order of one kernel"),
    ("gptq, marlin flag", {**GPTQ, "is_marlin_format": True}, GPTQ_Q, "the order of one kernel"),
    ("gptq_marlin", {**GPTQ, "quant_method": "gptq_marlin"}, GPTQ_Q, "the order of one kernel"),
    ("autoround awq", {**GPTQ, "quant_method": "auto-round", "packing_format": "auto_round:auto_awq"}, AWQ_Q,
     "packing_format is not GPTQ's"),
    ("hqq", {"quant_method": "hqq"}, {"W_q": zeros(32, 8, dtype=BYTES), "scale": zeros(64, 1)}, "HQQ reshapes"),
    ("eetq, square", {"quant_method": "eetq"}, {"weight": zeros(Q, Q, dtype=INTS)}, "the order of one kernel"),
    ("bitnet", {"quant_method": "bitnet"}, {"weight": zeros(Q // 4, COLUMNS, dtype=BYTES), "weight_scale": zeros(1)},
     "four rows, a quarter of the projection apart"),
    ("aqlm", {"quant_method": "aqlm"}, CODES, "codes of vectors"),
    ("quip#", {"quant_method": "quip#"}, CODES, "codes of vectors"),
    ("vptq", {"quant_method": "vptq"}, {"indices": zeros(1, 4, 4, dtype=WORDS)}, "codes of vectors"),
    ("spqr", {"quant_method": "spqr"}, {"dense_weights": zeros(4, dtype=torch.int64)}, "tiles of 16 x 16"),
    ("exl2", {"quant_method": "exl2", "bits": 4.0}, {"q_weight": zeros(8, Q, dtype=WORDS)}, "the order of one kernel"),
    ("torchao", {"quant_method": "torchao"}, {"_weight_qdata": zeros(Q, 8, dtype=INTS)}, "tensor subclass"),
    ("quark int8 by groups", {"quant_method": "quark"}, {"weight": zeros(Q, Q, dtype=INTS)}, "Quark transposes"),
    ("sparse", {"quant_method": "compressed-tensors", "format": "sparse-24-bitmask"}, {"compressed": zeros(Q, 4)},
     "the order of one kernel"),
    ("unheard of", {"quant_method": "magic-3"}, EIGHT, "'magic-3' is not one that is known here"),
)  # fmt: skip


@pytest.mark.parametrize(("quantisation", "q", "said"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED])
def test_what_cannot_be_moved_exactly_is_refused_with_the_reason(
    quantisation: Any, q: Mapping[str, Tensor], said: str, tmp_path: Path
) -> None:
    directory = llama(tmp_path / "a", q, quantisation)
    with pytest.raises(QuantisedError) as caught:
        convert.plan(directory, tmp_path / "out", read_model(open_checkpoint(directory).config).pairing.other)
    assert said in caught.value.message
    assert f"{LAYER}.q_proj" in caught.value.message
    assert caught.value.message.endswith("quantise the result")
    assert caught.value.fields["tensor"].startswith(f"{LAYER}.q_proj")
    assert caught.value.exit_code == 2
    inspection = detect.inspect(directory)
    assert inspection.moves is None
    assert said in next(warning.message for warning in inspection.warnings if warning.code == "cannot-convert")


@pytest.mark.parametrize("quantisation", [case[1] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_an_attention_that_was_left_unquantised_moves_whatever_the_rest_is(quantisation: Any, tmp_path: Path) -> None:
    directory = llama(tmp_path / "a", {**PLAIN_Q, "bias": zeros(Q)}, quantisation)
    assert moving(directory) == {"q_proj.weight", "q_proj.bias", "k_proj.weight"}


MOVING: tuple[tuple[str, Any, Mapping[str, Tensor], set[str]], ...] = (
    ("gptq", GPTQ, {**GPTQ_Q, "g_idx": zeros(8, dtype=WORDS), "bias": zeros(Q)}, {*GPTQ_Q, "bias"}),
    ("gptq v2", {**GPTQ, "checkpoint_format": "gptq_v2"}, GPTQ_Q, {*GPTQ_Q}),
    ("gptq, one module wider", {"quant_method": "gptq", "bits": 2, "dynamic": {"q_proj": {"bits": 4}}}, GPTQ_Q,
     {*GPTQ_Q}),
    ("autoround", {**GPTQ, "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq"}, GPTQ_Q, {*GPTQ_Q}),
    ("per tensor", {"quant_method": "fp8"}, {**EIGHT, "weight_scale_inv": zeros(1)}, {"weight"}),
    ("per tensor, no dimension", {"quant_method": "modelopt"},
     {**EIGHT, "weight_scale": torch.tensor(1.0), "input_scale": torch.tensor(1.0)}, {"weight"}),
    ("8 bits of old", {"load_in_8bit": True}, {**EIGHT, "SCB": zeros(Q)}, {"weight", "SCB"}),
    ("mxfp8", {"quant_method": "mxfp8", "weight_block_size": [1, 32]},
     {**EIGHT, "weight_scale_inv": zeros(Q, 2, dtype=BYTES)}, {"weight", "weight_scale_inv"}),
    ("zero point unpacked", {"quant_method": "compressed-tensors", "format": "pack-quantized"},
     {"weight_packed": zeros(Q, 1, dtype=WORDS), "weight_scale": zeros(Q, 1),
      "weight_zero_point": zeros(Q, 1, dtype=INTS)},
     {"weight_packed", "weight_scale", "weight_zero_point"}),
    ("smoothed inputs", {"quant_method": "modelopt"}, {**EIGHT, "weight_scale": zeros(Q), "pre_quant_scale": zeros(Q)},
     {"weight", "weight_scale"}),
    ("quark", {"quant_method": "quark"}, {"weight": zeros(Q, 8, dtype=FP8), "weight_scale": zeros(Q)},
     {"weight", "weight_scale"}),
    ("packed floats of 4 bits as int8", {"quant_method": "fp8"},
     {"weight": zeros(Q, 4, dtype=INTS), "weight_scale_inv": zeros(Q, 1, dtype=BYTES)}, {"weight", "weight_scale_inv"}),
    ("cache", {"quant_method": "fp8"}, {**PLAIN_Q, "q_scale": zeros(4), "output_scale": zeros(1)}, {"weight"}),
)  # fmt: skip


@pytest.mark.parametrize(("quantisation", "q", "kinds"), [case[1:] for case in MOVING], ids=[c[0] for c in MOVING])
def test_what_moves(quantisation: Any, q: Mapping[str, Tensor], kinds: set[str], tmp_path: Path) -> None:
    directory = llama(tmp_path / "a", q, quantisation)
    assert moving(directory) == {f"q_proj.{kind}" for kind in kinds} | {"k_proj.weight"}


def fp8(**more: Any) -> dict[str, Any]:
    return {"quant_method": "fp8", **more}


def groups(*structures: Any) -> dict[str, Any]:
    entries = {f"group_{i}": {"weights": {"block_structure": entry}} for i, entry in enumerate(structures)}
    return {"quant_method": "compressed-tensors", "config_groups": entries}


BLOCK_Q = {**EIGHT, "weight_scale": zeros(4, 1)}
BAD: tuple[tuple[str, Any, Mapping[str, Tensor], type[Exception], str], ...] = (
    ("no bits", {"quant_method": "gptq"}, GPTQ_Q, ConfigError, "quantization_config in config.json names no bits"),
    ("bits in words", {**GPTQ, "bits": "4"}, GPTQ_Q, ConfigError, r"quantization_config.bits is '4'; it must be"),
    ("too many bits", {**GPTQ, "bits": 16}, GPTQ_Q, ConfigError, "from 1 to 8"),
    ("other bits", {**GPTQ, "bits": 8}, GPTQ_Q, ShapeError, r"qzeros has shape \[2, 8\].* 64 rows"),
    ("awq said to be gptq", GPTQ, AWQ_Q, ShapeError, "last of two dimensions is the rows"),
    ("gptq of another width", GPTQ, {**GPTQ_Q, "scales": zeros(2, 60)}, ShapeError, r"scales has shape \[2, 60\]"),
    ("gptq of bytes", GPTQ, {**GPTQ_Q, "qzeros": zeros(2, 32, dtype=BYTES)}, UnclaimedTensorError, r"qzeros \(U8\)"),
    ("scales of other rows", fp8(), {**EIGHT, "weight_scale": zeros(60)}, ShapeError, r"weight_scale has shape \[60\]"),
    ("a scale for each of three", fp8(), {**EIGHT, "weight_scale": zeros(3)}, ShapeError, "no block size"),
    ("blocks of unknown size", fp8(), BLOCK_Q, ShapeError, "config.json names no block size"),
    ("blocks of another size", fp8(weight_block_size=[8, 8]), BLOCK_Q, ShapeError, "names blocks of 8 x 8"),
    ("a bad block", fp8(weight_block_size=[16]), BLOCK_Q, ConfigError, "must be two positive whole numbers"),
    ("no block", fp8(weight_block_size=[0, 16]), BLOCK_Q, ConfigError, "must be two positive whole numbers"),
    ("block of words", groups("16 by 8"), BLOCK_Q, ConfigError, "block_structure is '16 by 8'"),
    ("two blocks", {**groups([16, 8]), "weight_block_size": [8, 8]}, BLOCK_Q, ConfigConflictError, "must agree"),
    ("blocks of two groups", groups([16, 8], "32x8"), BLOCK_Q, ConfigConflictError,
     r"is \[16, 8\] but .* is \[32, 8\]"),
    ("int4 of modelopt", {"quant_method": "modelopt"}, {"weight": zeros(Q // 2, 8, dtype=BYTES)}, ShapeError,
     "64 rows"),
    ("tiled 8 bits", {"load_in_8bit": True}, {**EIGHT, "SCB": zeros(Q), "weight_format": torch.tensor(2, dtype=BYTES)},
     QuantisedError, "weight_format is not 0, so the weight beside it is tiled"),
    ("bytes undeclared", None, {"weight": zeros(Q, 8, dtype=BYTES)}, UnclaimedTensorError, r"\(U8\).*not declared"),
    ("scale beside floats", None, {**PLAIN_Q, "weight_scale": zeros(Q)}, UnclaimedTensorError, "weight_scale"),
    ("4 bits of quanto", {"quant_method": "quanto"}, {"weight._data._data": zeros(Q // 2, 8, dtype=BYTES)},
     UnclaimedTensorError, "quanto 8-bit"),
    ("packed experts only", {"quant_method": "mxfp4"}, {"weight_blocks": zeros(Q, 1, 4, dtype=BYTES)},
     UnclaimedTensorError, "MXFP4 experts"),
    ("an adapter", GPTQ, {**GPTQ_Q, "lora_B.weight": zeros(Q, 2)}, UnclaimedTensorError, "lora_B"),
    ("an empty weight", fp8(), {"weight": zeros(Q, 0, dtype=INTS)}, ShapeError, r"\[64, 0\]"),
    ("no object", [4], PLAIN_Q, ConfigError, r"quantization_config is '\[4\]'; it must be an object or null"),
    ("no name", {"quant_method": 4}, PLAIN_Q, ConfigError, "quant_method is 4; it must be a name"),
)  # fmt: skip


@pytest.mark.parametrize(("quantisation", "q", "error", "said"), [case[1:] for case in BAD], ids=[c[0] for c in BAD])
def test_what_does_not_fit_is_named(
    quantisation: Any, q: Mapping[str, Tensor], error: type[Exception], said: str, tmp_path: Path
) -> None:
    directory = llama(tmp_path / "a", q, quantisation)
    with pytest.raises(error, match=said) as caught:
        planned(directory)
    assert type(caught.value) is error


# --- scales of the cache --------------------------------------------------------------------------------------------

Made = Callable[[], Tensor]


@pytest.mark.parametrize(
    ("name", "shape", "moves"),
    [("k_scale", (1,), False), ("k_scale", (), False), ("k_scale", (2, 1, 1), False), ("k_scale", (K,), True),
     ("k_scale", (2, 1, 16), True), ("q_scale", (4, 1, 1), False), ("q_scale", (Q,), True), ("v_scale", (K,), False),
     ("k_zero_point", (2, 1, 1), False), ("kv_scale", (1,), False), ("k_proj.k_scale", (K,), True),
     ("k_proj.k_scale", (), False), ("v_proj.v_scale", (K,), False)],
)  # fmt: skip
def test_scales_of_cached_keys(name: str, shape: tuple[int, ...], moves: bool, tmp_path: Path) -> None:
    directory = llama(tmp_path / "a", PLAIN_Q, **{name: torch.zeros(shape)})
    assert moving(directory) == {"q_proj.weight", "k_proj.weight"} | ({name} if moves else set())


@pytest.mark.parametrize(("name", "shape"), [("k_scale", (4,)), ("q_scale", (2, 1, 1)), ("k_scale", (Q,))])
def test_scales_of_neither_heads_nor_rows(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(ShapeError, match=f"{name} has shape"):
        planned(llama(tmp_path / "a", PLAIN_Q, **{name: torch.zeros(shape)}))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 1)])
def test_one_scale_for_each_of_fused_q_k_and_v_stays(shape: tuple[int, ...], tmp_path: Path) -> None:
    config = {**heads(16, model_type="phi3"), "quantization_config": fp8()}
    tensors = {
        f"{LAYER}.qkv_proj.weight": zeros(Q + 2 * K, 8, dtype=INTS),
        f"{LAYER}.qkv_proj.weight_scale": torch.ones(shape),
    }
    assert moving(write(tmp_path / "a", config, {**tensors, f"{LAYER}.k_scale": zeros(1)})) == {"qkv_proj.weight"}
    with pytest.raises(UnclaimedTensorError, match="k_scale"):
        planned(write(tmp_path / "a", config, {**tensors, f"{LAYER}.k_scale": zeros(2)}))


# --- the config and the table ---------------------------------------------------------------------------------------


def test_the_config_of_the_whole_or_of_the_text_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        COMPOSITES, "pair", Composite("pair", "llama", ("text_config",), "", False, False, ("model.layers",), (), "")
    )
    directory = llama(tmp_path / "a", GPTQ_Q)
    whole, text = {"model_type": "pair", "text_config": BASE}, BASE
    for config in (
        {**whole, "quantization_config": GPTQ},
        {**whole, "text_config": {**text, "compression_config": GPTQ}},
    ):
        write_config(directory, config)
        assert "q_proj.qzeros" in moving(directory)
    write_config(
        directory, {**whole, "quantization_config": GPTQ, "text_config": {**text, "quantization_config": fp8()}}
    )
    with pytest.raises(
        ConfigConflictError, match="quantization_config and the text decoder's quantization_config disagree"
    ):
        planned(directory)


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    (directory / "config.json").write_text("{}", encoding="utf-8")
    edit_json(directory / "config.json", **config)


def test_every_form_can_be_recognised_and_every_row_has_a_ground() -> None:
    assert set(FITS) == set(Form)
    for row in FORMATS:
        assert row.companions or row.refusal or row.source, row.name
    assert {form for row in FORMATS for line in row.companions for form in line.forms} == set(Form)


@pytest.mark.parametrize("method", QuantizationMethod, ids=lambda method: method.value)
def test_every_method_of_transformers_is_claimed_or_refused(method: QuantizationMethod) -> None:
    row = format_of(Quantisation(method.value, {"quant_method": method.value}))
    assert row.companions or row.refusal or "only experts" in row.source
    assert "not one that is known" not in row.refusal or method.value in ("gguf", "nvfp4", "gemma")
