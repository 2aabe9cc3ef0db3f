"""What a processor only emulates: a dtype without hardware takes up to a hundred times as long as float32."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

import psutil
import torch

from ropetool.checkpoint.folder import open_checkpoint
from ropetool.models.options import DType

# A dtype that multiplies so many times slower than float32 has no hardware here.
SLOWER = 3.0
HALVES = {"BF16": torch.bfloat16, "F16": torch.float16}
_SQUARE = 384


@cache
def emulates(kind: torch.dtype) -> bool:
    """Whether this processor has no hardware for ``kind``, by a product of two matrices."""
    return _multiplies(kind) > SLOWER * _multiplies(torch.float32)


def emulated(path: Path, device: torch.device) -> torch.dtype | None:
    """The dtype that the weights at ``path`` are stored in, where ``device`` is a processor that only emulates it."""
    if device.type != "cpu":
        return None
    stored = {tensor.dtype for shard in open_checkpoint(path).shards for tensor in shard.tensors.values()}
    return next((kind for name, kind in HALVES.items() if name in stored and emulates(kind)), None)


def quick_dtype(path: Path, device: torch.device) -> DType | None:
    """None, the stored dtype; but float32 where that is `emulated` and twice the weights fit into memory."""
    size = sum(shard.size_bytes for shard in open_checkpoint(path).shards)
    fits = 2 * size <= psutil.virtual_memory().available
    return DType.FLOAT32 if fits and emulated(path, device) else None


def _multiplies(dtype: torch.dtype) -> float:
    """The seconds of one product of two matrices, the best of three."""
    x, best = torch.ones(_SQUARE, _SQUARE, dtype=dtype), float("inf")
    for _ in range(3):
        started = time.monotonic()
        x @ x
        best = min(best, time.monotonic() - started)
    return best
