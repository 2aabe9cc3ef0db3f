"""The row grammar: how a projection's output rows fall into heads, and the permutation between the two layouts.

A projection's rows are a sequence of spans. ``Keep(rows)`` never moves; ``Head(dim, rope_start, rope_dim)`` is
one head of ``dim`` rows, of which ``rope_dim`` rows from ``rope_start`` on are rotated in pairs. Separate q and
k, every fused form, partial rotary and MLA are all lists of these two.

The two layouts of the R rotated rows of a head:

* ``half``: row j turns with row j + R/2 (rotate-half; GPT-NeoX, Hugging Face's Llama);
* ``interleaved``: row 2i turns with row 2i + 1 (GPT-J, Meta's Llama; RoFormer, arXiv:2104.09864, eq. 34).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ropetool.rope.layout import Pairing

__all__ = [
    "Head",
    "IndexMap",
    "Keep",
    "Pairing",
    "Span",
    "closed_blocks",
    "index_map",
    "pairs",
    "rotary_index_map",
    "rows_of",
]

IndexMap = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Keep:
    """Rows that no rotation touches (v, a latent, a norm that is not over q or k)."""

    rows: int


@dataclass(frozen=True)
class Head:
    """One head of q or k: ``dim`` rows, of which ``rope_dim`` from ``rope_start`` on are rotated."""

    dim: int
    rope_start: int
    rope_dim: int

    def __post_init__(self) -> None:
        if self.rope_dim < 2 or self.rope_dim % 2:
            raise ValueError(f"a rotary span has an even number of rows, at least 2; this one has {self.rope_dim}")
        if self.rope_start < 0 or self.rope_start + self.rope_dim > self.dim:
            raise ValueError(
                f"a rotary span of {self.rope_dim} rows from row {self.rope_start} on leaves a head of {self.dim} rows"
            )

    @property
    def rows(self) -> int:
        """Rows of the whole head."""
        return self.dim


Span = Keep | Head


def rows_of(spans: Sequence[Span]) -> int:
    """Total number of rows of ``spans``."""
    return sum(span.rows for span in spans)


def pairs(rope_dim: int, pairing: Pairing) -> Iterator[tuple[int, int]]:
    """The pairs (first, second) of slots that turn together, in order of falling frequency."""
    for i in range(rope_dim // 2):
        yield (i, i + rope_dim // 2) if pairing is Pairing.HALF else (2 * i, 2 * i + 1)


def _slots(rope_dim: int, pairing: Pairing) -> IndexMap:
    """All first slots of the pairs, then all second slots: shape [R]."""
    first, second = zip(*pairs(rope_dim, pairing), strict=True)
    return np.array(first + second, dtype=np.int64)


def rotary_index_map(rope_dim: int, source: Pairing, target: Pairing) -> IndexMap:
    """The map of one rotary span, shape [R]: ``new[r] = old[map[r]]``, from layout ``source`` to ``target``.

    Both directions come from the definition of the pairs: the n-th slot in pair order moves to the n-th slot
    in pair order. Neither is written as the other's inverse, and they are not the same map unless R is 2 or 4.
    """
    index = np.empty(rope_dim, dtype=np.int64)
    index[_slots(rope_dim, target)] = _slots(rope_dim, source)
    return index


def index_map(spans: Sequence[Span], source: Pairing, target: Pairing) -> IndexMap:
    """The map of a whole projection, shape [rows]: ``new[r] = old[map[r]]``."""
    index = np.arange(rows_of(spans), dtype=np.int64)
    start = 0
    for span in spans:
        if isinstance(span, Head):
            rope = start + span.rope_start
            index[rope : rope + span.rope_dim] = rope + rotary_index_map(span.rope_dim, source, target)
        start += span.rows
    return index


def closed_blocks(index: IndexMap) -> Iterator[tuple[int, int]]:
    """Split a permutation into the smallest runs [start, stop) that map onto themselves and are not the identity.

    Rows outside these runs stay where they are, so each run can be read, permuted and written on its own.
    """
    highest = np.maximum.accumulate(index)
    stops = np.flatnonzero(highest == np.arange(len(index))) + 1
    starts = np.concatenate(([0], stops))[:-1]
    for start, stop in zip(starts, stops, strict=True):
        if stop - start > 1:
            yield int(start), int(stop)
