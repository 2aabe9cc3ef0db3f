"""Where the loss of a text turns up: the length that a model was trained with, seen from outside.

Every token is read twice, far from the beginning of a long piece and near that of a short one, and the difference
counts: what is hard to predict is so in both. Far context helps a little, until the rotation turns by angles that no
training has shown. A model whose attention looks near shows that late: the loss turns up at its trained length or
beyond (measured: SmolLM2-135M, 8192, at 9742; recall-256, 256, at 431), never before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from ropetool.families.context import Context
from ropetool.families.trained_length import RiseBin
from ropetool.models.losses import Meter
from ropetool.models.measure import Work, measure
from ropetool.models.options import Device, DType, MaxMemory
from ropetool.models.paired import LEAST_NATS, SIGMAS, Floats, Gap, gap

# How far beyond the declared length is read, and no further than this, nor more in all.
BEYOND, MOST_TOKENS = 4, 16384
# What a text may cost: half a minute to minutes, at 1e11 to 1e12 operations a second.
MOST_OPERATIONS = {"cpu": 2e13, "cuda": 2e15, "mps": 2e14}
FEWEST_TOKENS = 256
# A short piece is this share of a long one, and its second half counts: there the beginning is forgotten.
SHORT_SHARE, SHORT_MOST, SHORT_LEAST = 16, 512, 32
# Bins grow by this, and the declared length is an edge.
EDGES_PER_DOUBLING = 4
FEWEST_IN_BIN = 32
# A second reading, of shorter and more pieces, where the loss turned up early in the first.
READINGS = 3

Talk = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """What a pass costs: parameters, and the width of all attention of all layers together."""

    parameters: int
    attention_width: int

    def operations(self, tokens: int) -> float:
        """Of a pass over so many tokens, and over as many in short pieces."""
        return 4.0 * self.parameters * tokens + 2.0 * self.attention_width * tokens * tokens


@dataclass(frozen=True)
class Rise:
    """The position from which on the loss is clearly higher, None where it is not; ``read_tokens`` were read."""

    turns_up: int | None
    read_tokens: int
    bins: tuple[RiseBin, ...]


@dataclass(frozen=True)
class Reader:
    """Whose losses are measured, and in what."""

    path: Path
    context: Context
    device: Device
    dtype: DType | None
    max_memory: MaxMemory | None
    talk: Talk


def readable(size: Size, expected: int, tokens: int, device: str) -> int:
    """How many tokens to read at once: four times what is expected, as far as the text goes and the cost allows."""
    wanted = min(BEYOND * expected, MOST_TOKENS, tokens)
    while wanted >= FEWEST_TOKENS and size.operations(wanted) > MOST_OPERATIONS.get(device, MOST_OPERATIONS["cpu"]):
        wanted //= 2
    return wanted


def rise(reader: Reader, ids_T: Tensor, expected: int, length: int) -> Rise:
    """Read pieces of ``length`` tokens, and again nearer where the loss turns up early; bins meet at ``expected``."""
    found = Rise(None, length, ())
    for _ in range(READINGS):
        found = _read_once(reader, ids_T, expected, length)
        if found.turns_up is None or not FEWEST_TOKENS <= BEYOND * found.turns_up < length:
            break
        length = BEYOND * found.turns_up
    return found


def _read_once(reader: Reader, ids_T: Tensor, expected: int, length: int) -> Rise:
    short = max(SHORT_LEAST, min(SHORT_MOST, length // SHORT_SHARE))
    edges = _edges(expected, short, length)
    pieces = max(1, min(MOST_TOKENS, len(ids_T)) // length)
    ids_WT = ids_T[: pieces * length].reshape(pieces, length)
    stops = (*(edge for edge in edges[:-1] if _doubles(edge, expected)), length) if reader.context.by_length else ()
    long_WT = _losses(reader, ids_WT, stops or (length,))
    whole = length // short * short
    short_WT = _losses(reader, ids_WT[:, :whole].reshape(-1, short), (short,))
    near_WT = np.full((pieces, length - 1), np.nan)
    for index, row_T in enumerate(short_WT):
        piece, start = divmod(index * short, whole)
        near_WT[piece, start + short // 2 : start + short - 1] = row_T[short // 2 :]
    bins = tuple(_bins(long_WT, near_WT, edges))
    return Rise(turning_point(bins), length, bins)


def _losses(reader: Reader, ids_WT: Tensor, stops: tuple[int, ...]) -> Floats:
    work = Work(
        ids_WT, stops, None, (), "", reader.path, reader.device, reader.dtype, reader.talk,
        max_memory=reader.max_memory,
    )  # fmt: skip
    losses = measure(reader.path, reader.context, work, Meter(lambda done, total: None, work.tokens)).losses
    return np.asarray(losses, dtype=np.float64)


def _doubles(edge: int, expected: int) -> bool:
    """Whether an edge is the expected length, or doubles or halves it: a method by length is read at each."""
    return any(edge == round(expected * 2.0**power) for power in range(-6, 7))


def _edges(expected: int, first: int, last: int) -> tuple[int, ...]:
    """From the length of a short piece to ``last``, in even steps on a logarithmic scale that meet ``expected``."""
    steps = range(-64, 65)
    grid = (round(expected * 2.0 ** (step / EDGES_PER_DOUBLING)) for step in steps)
    return (*sorted({edge for edge in grid if first <= edge < last}), last)


def _bins(long_WT: Floats, near_WT: Floats, edges: Sequence[int]) -> Iterator[RiseBin]:
    start = edges[0]
    for stop in edges[1:]:
        far_T, near_T = long_WT[:, start:stop].ravel(), near_WT[:, start:stop].ravel()
        both = np.isfinite(near_T)
        if both.sum() < FEWEST_IN_BIN:
            continue
        apart = gap(far_T[both], near_T[both])
        yield RiseBin(start, stop, float(far_T.mean()), apart.nats, apart.error)
        start = stop


def turning_point(bins: Sequence[RiseBin]) -> int | None:
    """Where the first bin begins that, with every later one, is clearly above all before it together."""
    for index in range(1, len(bins)):
        level = _together(bins[:index])
        if all(_above(found, level) for found in bins[index:]):
            return bins[index].start
    return None


def _together(bins: Sequence[RiseBin]) -> Gap:
    """The mean of bins by their widths, and its error."""
    widths = np.array([found.stop - found.start for found in bins], dtype=np.float64)
    shares = widths / widths.sum()
    errors = np.array([found.error for found in bins])
    nats = float((shares * np.array([found.above_short for found in bins])).sum())
    return Gap(nats, float(np.sqrt(((shares * errors) ** 2).sum())))


def _above(found: RiseBin, level: Gap) -> bool:
    more = found.above_short - level.nats
    return more >= LEAST_NATS and more >= SIGMAS * float(np.hypot(found.error, level.error))


__all__ = ["Reader", "Rise", "Size", "readable", "rise", "turning_point"]
