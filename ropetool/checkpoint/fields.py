"""Permute a projection's output rows in tensors that do not keep them along the first dimension, or keep them packed.

Packed values of b bits follow one another without a gap, the lowest bit first, through little-endian words: value i has
the bits from i * b on. So lie GPTQ's zeros with 2, 3, 4 and 8 bits (its 3-bit words, 10 values and two bits of the
next, are this stream as well) and compressed-tensors' packed zero points.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.checkpoint.shards import (
    BUFFER_BYTES,
    DTYPE_BITS,
    Progress,
    Tensor,
    no_progress,
    read_exactly,
    write_exactly,
)

WORD_BITS = 32

IndexArray = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class Axis(Enum):
    """The dimension of a tensor along which the output rows of its projection lie."""

    FIRST = "first"
    LAST = "last"


@dataclass(frozen=True)
class Lay:
    """How a tensor keeps one value, or one line of values, for each output row of its projection.

    ``bits`` is the width of a value in a packed stream; None: values are whole elements of the tensor's dtype.
    """

    axis: Axis = Axis.FIRST
    bits: int | None = None


ROWS = Lay()


def patch_values(file: Path, tensor: Tensor, index: IndexArray, lay: Lay) -> None:
    """Permute ``tensor`` in place in ``file`` along the output rows; see `move_values`."""
    with file.open("r+b", buffering=0) as handle:
        move_values(handle.fileno(), handle.fileno(), tensor, index, lay)


def move_values(
    reader: int, writer: int, tensor: Tensor, index: IndexArray, lay: Lay, progress: Progress = no_progress
) -> None:
    """Permute ``tensor`` along the output rows, from one open file into another, or the same.

    New value r is old value ``index[r]``. Along the last dimension this reads and writes about `shards.BUFFER_BYTES`.
    Values packed along the first one are read whole: they are zero points, one for each group of many weights.
    """
    for offset, size_bytes, lines in _pieces(tensor, lay):
        piece = np.frombuffer(read_exactly(reader, size_bytes, offset), np.uint8)
        write_exactly(writer, permuted_lines(piece, tensor, lines, index, lay).tobytes(), offset)
        progress(size_bytes)


def permuted_lines(piece: Bytes, tensor: Tensor, lines: int, index: IndexArray, lay: Lay) -> Bytes:
    """The bytes of some lines of ``tensor``, each permuted: new value r is old value ``index[r]``."""
    if lay.axis is Axis.LAST:
        return _permuted(piece.reshape(lines, -1), index, lay.bits or DTYPE_BITS[tensor.dtype])
    words = piece.reshape(tensor.shape[0], -1, WORD_BITS // 8).swapaxes(0, 1)
    moved = _permuted(words.reshape(words.shape[0], -1), index, lay.bits or 0)
    back: Bytes = moved.reshape(words.shape).swapaxes(0, 1)
    return back


def lines_of(tensor: Tensor, lay: Lay) -> int:
    """How many lines there are to permute one by one; what is packed along the first dimension is one line."""
    return 1 if lay.axis is Axis.FIRST else math.prod(tensor.shape[:-1])


def _pieces(tensor: Tensor, lay: Lay) -> Iterator[tuple[int, int, int]]:
    """(offset, bytes, lines) of the parts that are read, permuted and written one after another."""
    line_bytes = tensor.size_bytes // max(lines_of(tensor, lay), 1)
    for first, count in line_runs(tensor, lay):
        yield tensor.start + first * line_bytes, count * line_bytes, count


def line_runs(tensor: Tensor, lay: Lay) -> Iterator[tuple[int, int]]:
    """(first line, lines) of parts of about `shards.BUFFER_BYTES`, unpacked."""
    lines = lines_of(tensor, lay)
    unpacked_bytes = tensor.size_bytes // max(lines, 1) * (8 if lay.bits else 1)
    step = max(1, BUFFER_BYTES // max(unpacked_bytes, 1))
    for start in range(0, lines, step):
        yield start, min(step, lines - start)


def _permuted(lines: Bytes, index: IndexArray, bits: int) -> Bytes:
    """Each line [line_bytes] taken as len(index) values of ``bits`` bits, in their new order."""
    if bits % 8 == 0:
        moved: Bytes = np.take(lines.view(f"u{bits // 8}"), index, axis=1).view(np.uint8)
        return moved
    stream = np.unpackbits(lines, axis=1, bitorder="little").reshape(len(lines), len(index), bits)
    return np.packbits(stream[:, index].reshape(len(lines), -1), axis=1, bitorder="little")
