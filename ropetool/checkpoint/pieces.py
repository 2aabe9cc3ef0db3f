"""What a conversion in place changes, cut into pieces: runs of rows, or lines of packed values, closed in themselves.

Each piece is permuted for itself, so it can be done, and by the inverse of the same map undone, apart from all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ropetool.checkpoint.fields import ROWS, Bytes, IndexArray, Lay, line_runs, lines_of, permuted_lines
from ropetool.checkpoint.shards import Tensor, batches


@dataclass(frozen=True)
class Step:
    """One tensor that changes in the file ``shard``: new row r is old row ``index[r]``, lying as ``lay`` says."""

    shard: str
    tensor: Tensor
    index: IndexArray
    lay: Lay = ROWS

    @cached_property
    def inverse(self) -> IndexArray:
        """The map that takes the step back: old row r is new row ``inverse[r]``."""
        return np.argsort(self.index, kind="stable")

    @cached_property
    def lines(self) -> int:
        """How many rows there are, or lines of values."""
        return len(self.index) if self.lay == ROWS else lines_of(self.tensor, self.lay)

    @cached_property
    def line_bytes(self) -> int:
        """Bytes of one of them."""
        return self.tensor.row_bytes(self.lines) if self.lay == ROWS else self.tensor.size_bytes // self.lines


@dataclass(frozen=True)
class Piece:
    """``count`` rows or lines of one step, from ``first`` on."""

    step: Step
    first: int
    count: int

    @property
    def start(self) -> int:
        """Where the piece lies in its file."""
        return self.step.tensor.start + self.first * self.step.line_bytes

    @property
    def size_bytes(self) -> int:
        """How long it is."""
        return self.count * self.step.line_bytes

    @property
    def is_closed(self) -> bool:
        """Whether it lies in its tensor, and takes no row from outside itself."""
        if self.first < 0 or self.count < 1 or self.first + self.count > self.step.lines:
            return False
        if self.step.lay != ROWS:
            return True
        rows = self.step.index[self.first : self.first + self.count] - self.first
        return bool(np.array_equal(np.sort(rows), np.arange(self.count)))

    def moved(self, data: memoryview, *, back: bool) -> memoryview:
        """The bytes of the piece after the step, from those before it; with ``back`` the other way round."""
        index, raw = self.step.inverse if back else self.step.index, np.frombuffer(data, np.uint8)
        if self.step.lay == ROWS:
            rows = raw.reshape(self.count, self.step.line_bytes)
            moved: Bytes = np.take(rows, index[self.first : self.first + self.count] - self.first, axis=0)
        else:
            moved = permuted_lines(raw, self.step.tensor, self.count, index, self.step.lay)
        return np.ascontiguousarray(moved).reshape(-1).data


def cut(step: Step, blocks: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    """The pieces of a step; ``blocks`` are the closed runs of its map (`rope.pairing.closed_blocks`)."""
    if step.lay == ROWS:
        yield from (Piece(step, start, stop - start) for start, stop in batches(blocks, step.line_bytes))
    else:
        yield from (Piece(step, first, count) for first, count in line_runs(step.tensor, step.lay))


def batched(pieces: Sequence[Piece], most_bytes: int) -> Iterator[tuple[Piece, ...]]:
    """Pieces in their order, as many at a time as have ``most_bytes`` together, or one that alone has more."""
    batch: list[Piece] = []
    for piece in pieces:
        if batch and sum(p.size_bytes for p in batch) + piece.size_bytes > most_bytes:
            yield tuple(batch)
            batch = []
        batch.append(piece)
    if batch:
        yield tuple(batch)
