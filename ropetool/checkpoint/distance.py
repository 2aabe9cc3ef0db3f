"""Two tensors of the same form, row by row: which rows are the same ones, and how far the others are apart.

Both are read in pieces of about `shards.BUFFER_BYTES`; what is kept of a row is a digest of 16 bytes.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropetool.checkpoint.compare import Array, IndexArray
from ropetool.checkpoint.floats import decode_floats
from ropetool.checkpoint.shards import BUFFER_BYTES, Shard, Tensor

DIGEST_BYTES = 16
Digests = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class Distance:
    """How far two tensors are apart: rows that differ, and the largest |difference|, None where it is no float.

    ``mean_abs`` is over all entries; both are infinite where one side has an entry that is no finite number.
    """

    rows: int
    rows_differing: int
    max_abs: float | None
    mean_abs: float | None


def row_digests(shard: Shard, tensor: Tensor, rows: int) -> Digests:
    """A digest of each row, [rows, 2]: two rows have the same one only if their bytes are the same."""
    lines = _rows(shard, tensor, rows)
    joined = b"".join(hashlib.blake2b(line, digest_size=DIGEST_BYTES).digest() for line in lines)
    return np.frombuffer(joined, dtype="<u8").reshape(rows, -1)


def same_rows(a: Digests, b: Digests) -> bool:
    """Whether two tensors hold the same rows, in whatever order."""
    left, right = (digests[np.lexsort(digests.T)] for digests in (a, b))
    return bool(np.array_equal(left, right))


def distance(shard_a: Shard, a: Tensor, shard_b: Shard, b: Tensor, index: IndexArray) -> Distance:
    """The distance of ``b`` from ``a`` with its rows reordered: row r of b is held against row ``index[r]`` of a."""
    count = len(index)
    rows_a, rows_b = _rows(shard_a, a, count), _rows(shard_b, b, count)
    step = max(1, BUFFER_BYTES // max(rows_a.shape[1], 1))
    differing, largest, total = 0, 0.0, 0.0
    for start in range(0, count, step):
        piece_a, piece_b = rows_a[index[start : start + step]], rows_b[start : start + step]
        apart = (piece_a != piece_b).any(axis=1)
        differing += int(apart.sum())
        if apart.any():
            piece_largest, piece_total = _apart(piece_a[apart], piece_b[apart], a.dtype)
            largest, total = max(largest, piece_largest), total + piece_total
    if decode_floats(b"", a.dtype) is None:
        return Distance(count, differing, None, None)
    return Distance(count, differing, largest, total / max(1, math.prod(a.shape)))


def _rows(shard: Shard, tensor: Tensor, rows: int) -> Array:
    with shard.data.open("rb") as file:
        return np.memmap(file, np.uint8, "r", tensor.start, (rows, tensor.row_bytes(rows)))


def _apart(a: Array, b: Array, dtype: str) -> tuple[float, float]:
    """The largest |difference| of two arrays of bytes, and the sum of all."""
    left, right = (decode_floats(side.tobytes(), dtype) for side in (a, b))
    if left is None or right is None:
        return 0.0, 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.abs(left - right)
    difference[~np.isfinite(difference)] = np.inf
    return float(difference.max()), float(difference.sum())
