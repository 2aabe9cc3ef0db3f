"""The weights of a checkpoint as tensors that stay in its shards, with rows put back on their way in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.shards import Tensor
from ropetool.errors import UnsupportedError
from ropetool.models.away import Away
from ropetool.rope.pairing import IndexMap

# huggingface/safetensors, safetensors/src/tensor.rs, `Dtype`; the torch names of the same numbers.
TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
CPU = torch.device("cpu")


def stored_weights(checkpoint: Checkpoint, moves: Mapping[str, IndexMap] | None = None) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint by its name on disk; row r of one in ``moves`` is row ``index[r]`` of the file.

    Biases, norms and numbers are small and are read at once; the others are `Away`. Raises `UnsupportedError` for
    numbers that are not plain floats, integers or truth values.
    """
    found = {
        name: _stored(shard.data, shard.tensors[name], (moves or {}).get(name))
        for name, shard in checkpoint.weight_map.items()
    }
    return {name: weight if weight.dim() > 1 else weight.value() for name, weight in found.items()}


def _stored(file: Path, tensor: Tensor, index: IndexMap | None) -> Away:
    if tensor.dtype not in TORCH_DTYPES:
        raise UnsupportedError(
            f"{tensor.name} is stored as {tensor.dtype}, which is not computed with as it is: no such checkpoint can "
            f"be run with --max-memory",
            tensor=tensor.name,
            dtype=tensor.dtype,
        )
    dtype, shape = TORCH_DTYPES[tensor.dtype], tensor.shape
    first = shape[0] if shape else 1

    def plain(start: int, stop: int) -> torch.Tensor:
        row_bytes = tensor.size_bytes // max(1, first)
        raw = np.fromfile(file, np.uint8, (stop - start) * row_bytes, offset=tensor.start + start * row_bytes)
        rows = torch.from_numpy(raw).view(dtype)
        return rows.reshape(stop - start, *shape[1:]) if shape else rows.reshape(())

    def put_back(start: int, stop: int) -> torch.Tensor:
        return _permuted(file, tensor, index, start, stop).view(dtype).reshape(stop - start, *shape[1:])  # type: ignore[arg-type]  # not None where this is used

    rows = plain if index is None else put_back
    return Away(shape, dtype, CPU, lambda: rows(0, first), rows if tensor.size_bytes and shape else None)


def _permuted(file: Path, tensor: Tensor, index: IndexMap, start: int, stop: int) -> torch.Tensor:
    """The bytes of rows [start, stop) of the first axis; the index counts the rows of any leading part of the shape."""
    ratio = len(index) // tensor.shape[0]
    wanted = index[start * ratio : stop * ratio]
    low, high, row_bytes = int(wanted.min()), int(wanted.max()) + 1, tensor.size_bytes // len(index)
    raw = np.fromfile(file, np.uint8, (high - low) * row_bytes, offset=tensor.start + low * row_bytes)
    return torch.from_numpy(raw.reshape(high - low, row_bytes)[wanted - low].reshape(-1))
