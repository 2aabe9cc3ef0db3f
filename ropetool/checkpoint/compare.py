"""Compare tensors of two checkpoints as bytes, in pieces: equal, or equal after a permutation of rows."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ropetool.checkpoint.fields import ROWS, WORD_BITS, Axis, Lay
from ropetool.checkpoint.shards import BUFFER_BYTES, DTYPE_BITS, Shard, Tensor
from ropetool.errors import ShardError

HASHED_BYTES = 1 << 20
IndexArray = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[Shard, Tensor, Shard, Tensor]


def same_form(a: Tensor, b: Tensor) -> bool:
    """Whether dtype and shape agree."""
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def same_bytes(shard_a: Shard, a: Tensor, shard_b: Shard, b: Tensor) -> bool:
    """Whether two tensors of the same form hold the same bytes."""
    with shard_a.data.open("rb") as file_a, shard_b.data.open("rb") as file_b:
        file_a.seek(a.start)
        file_b.seek(b.start)
        left = a.size_bytes
        while left:
            step = min(BUFFER_BYTES, left)
            if file_a.read(step) != file_b.read(step):
                return False
            left -= step
    return True


def same_place(shard_a: Shard, a: Tensor, shard_b: Shard, b: Tensor) -> bool:
    """Whether two tensors are the same bytes of the same file, under one name or two (a hard link)."""
    return (a.start, a.stop) == (b.start, b.stop) and os.path.samefile(shard_a.data, shard_b.data)


def digests(pairs: Iterable[Pair]) -> Iterator[tuple[bytes, bytes]]:
    """The sha256 of each pair of tensors, the two read and hashed side by side; the same place of a file once."""
    with ThreadPoolExecutor(2) as pool:
        for shard_a, a, shard_b, b in pairs:
            first = pool.submit(digest, shard_a, a)
            second = first if same_place(shard_a, a, shard_b, b) else pool.submit(digest, shard_b, b)
            yield first.result(), second.result()


def digest(shard: Shard, tensor: Tensor) -> bytes:
    """The sha256 of a tensor's bytes, streamed."""
    found, left = hashlib.sha256(), tensor.size_bytes
    buffer = memoryview(bytearray(min(HASHED_BYTES, left)))
    with shard.data.open("rb", buffering=0) as file:
        file.seek(tensor.start)
        while left:
            read = file.readinto(buffer[: min(left, len(buffer))])
            if not read:
                raise ShardError(
                    f"{shard.path.name} ended {left:,} bytes early in {tensor.name}: it changed while it was read",
                    file=str(shard.path),
                    tensor=tensor.name,
                )
            found.update(buffer[:read])
            left -= read
    return found.digest()


def first_wrong_row(
    shard_a: Shard, a: Tensor, shard_b: Shard, b: Tensor, index: IndexArray, lay: Lay = ROWS, only: Mask | None = None
) -> int | None:
    """The first row r at which b's row r is not a's row ``index[r]``; None when there is none, of those in ``only``.

    Where the rows lie along the last dimension, it is the first within the first piece that differs.
    """
    if lay.axis is Axis.FIRST and lay.bits is None:
        return _first_wrong_line(shard_a, a, shard_b, b, index, only)
    lines_a, lines_b = _lines(shard_a, a, lay), _lines(shard_b, b, lay)
    step = max(1, BUFFER_BYTES // (8 * len(index)))
    for start in range(0, len(lines_a), step):
        piece_a, piece_b = lines_a[start : start + step], lines_b[start : start + step]
        if lay.bits:
            piece_a, piece_b = (_values(words, len(index), lay.bits) for words in (piece_a, piece_b))
        wrong = (piece_a[:, index] != piece_b).any(axis=0)
        wrong = wrong if only is None else wrong & only
        if wrong.any():
            return int(np.argmax(wrong))
    return None


def _first_wrong_line(
    shard_a: Shard, a: Tensor, shard_b: Shard, b: Tensor, index: IndexArray, only: Mask | None
) -> int | None:
    row_bytes = a.row_bytes(len(index))
    with shard_a.data.open("rb") as file_a, shard_b.data.open("rb") as file_b:
        rows_a = np.memmap(file_a, np.uint8, "r", a.start, (len(index), row_bytes))
        rows_b = np.memmap(file_b, np.uint8, "r", b.start, (len(index), row_bytes))
        step = max(1, BUFFER_BYTES // row_bytes)
        for start in range(0, len(index), step):
            stop = min(start + step, len(index))
            wrong = (rows_a[index[start:stop]] != rows_b[start:stop]).any(axis=1)
            wrong = wrong if only is None else wrong & only[start:stop]
            if wrong.any():
                return start + int(np.argmax(wrong))
    return None


def _lines(shard: Shard, tensor: Tensor, lay: Lay) -> Array:
    """The elements of a tensor as little-endian words, one line for each run of output rows."""
    with shard.data.open("rb") as file:
        words = np.memmap(file, f"<u{DTYPE_BITS[tensor.dtype] // 8}", "r", tensor.start, tensor.shape)
    return words.T if lay.axis is Axis.FIRST else words.reshape(math.prod(tensor.shape[:-1]), -1)


def _values(words: Array, count: int, bits: int) -> Array:
    """``count`` values of ``bits`` bits from lines of words, each cut out of the one or two words it is in."""
    first_bit = np.arange(count, dtype=np.uint64) * np.uint64(bits)
    word, shift = (first_bit // WORD_BITS).astype(np.int64), first_bit % np.uint64(WORD_BITS)
    following = np.minimum(word + 1, words.shape[1] - 1)
    pairs = words[:, word].astype(np.uint64) | words[:, following].astype(np.uint64) << np.uint64(WORD_BITS)
    values: Array = (pairs >> shift) & np.uint64((1 << bits) - 1)
    return values
