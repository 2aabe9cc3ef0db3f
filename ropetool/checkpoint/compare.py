"""Compare tensors of two checkpoints as bytes, in pieces: equal, or equal after a permutation of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ropetool.checkpoint.shards import BUFFER_BYTES, Shard, Tensor

IndexArray = np.ndarray[Any, np.dtype[np.int64]]


def same_form(a: Tensor, b: Tensor) -> bool:
    """Whether dtype and shape agree."""
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def same_bytes(shard_a: Shard, a: Tensor, shard_b: Shard, b: Tensor) -> bool:
    """Whether two tensors of the same form hold the same bytes."""
    with shard_a.path.open("rb") as file_a, shard_b.path.open("rb") as file_b:
        file_a.seek(a.start)
        file_b.seek(b.start)
        left = a.size_bytes
        while left:
            step = min(BUFFER_BYTES, left)
            if file_a.read(step) != file_b.read(step):
                return False
            left -= step
    return True


def first_wrong_row(shard_a: Shard, a: Tensor, shard_b: Shard, b: Tensor, index: IndexArray) -> int | None:
    """The first row r at which b's row r is not a's row ``index[r]``; None when there is none."""
    row_bytes = a.row_bytes(len(index))
    with shard_a.path.open("rb") as file_a, shard_b.path.open("rb") as file_b:
        rows_a = np.memmap(file_a, np.uint8, "r", a.start, (len(index), row_bytes))
        rows_b = np.memmap(file_b, np.uint8, "r", b.start, (len(index), row_bytes))
        step = max(1, BUFFER_BYTES // row_bytes)
        for start in range(0, len(index), step):
            stop = min(start + step, len(index))
            wrong = (rows_a[index[start:stop]] != rows_b[start:stop]).any(axis=1)
            if wrong.any():
                return start + int(np.argmax(wrong))
    return None
