"""Where the loss of a text turns up: the length that a model was trained with, seen from outside.

Every token is read twice, far from the beginning of a long piece and near that of a short one, and the difference
counts: what is hard to predict is so in both. Far context helps a little, until the rotation turns by angles that no
training has shown: then more context makes the same tokens harder, which it never does within the trained length. A
model whose attention looks near shows that late: SmolLM2-135M, trained with 8192 tokens, at 9742, and recall-256,
trained with 256, at 431.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from ropetool.families.context import Context
from ropetool.families.trained_length import RiseBin
from ropetool.models.load import pick_device
from ropetool.models.losses import Meter
from ropetool.models.measure import Work, measure
from ropetool.models.options import Device, DType, MaxMemory
from ropetool.models.paired import LEAST_NATS, Floats, Gap, gap

# How far beyond the declared length is read, and no further than so many tokens; of shorter pieces, so many in all.
BEYOND, MOST_TOKENS, MOST_IN_ALL = 4, 16384, 32768
# What a text may cost: half a minute to minutes, at 1e11 to 1e12 operations a second.
MOST_OPERATIONS = {"cpu": 2e13, "cuda": 2e15, "mps": 2e14}
FEWEST_TOKENS = 256
# A short piece is this share of a long one, and its second half counts: there the beginning is forgotten.
SHORT_SHARE, SHORT_MOST, SHORT_LEAST = 16, 512, 32
# Bins grow by this, and the declared length is an edge.
EDGES_PER_DOUBLING = 4
FEWEST_IN_BIN = 32
# Another reading, of shorter and more pieces, where the loss turned up in the first third.
READINGS, EARLY, AGAIN = 4, 3, 2

Talk = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """What a pass costs: parameters, and the width of all attention of all layers together."""

    parameters: int
    attention_width: int

    def operations(self, tokens: int) -> float:
        """Of a pass over so many tokens, and over as many in short pieces."""
        return 4.0 * self.parameters * tokens + 2.0 * self.attention_width * tokens * tokens

    def readable(self, wanted: int, device: str) -> int:
        """How many of the tokens wanted at once can be afforded, halved until they can; 0 for fewer than some."""
        most = MOST_OPERATIONS.get(device, MOST_OPERATIONS["cpu"])
        while wanted >= FEWEST_TOKENS and self.operations(wanted) > most:
            wanted //= 2
        return wanted if wanted >= FEWEST_TOKENS else 0

    def pieces(self, tokens: int, device: str) -> int:
        """How many pieces of so many tokens can be afforded."""
        most = MOST_OPERATIONS.get(device, MOST_OPERATIONS["cpu"])
        return max(1, min(MOST_IN_ALL // tokens, int(most / self.operations(tokens))))


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
    size: Size


def rise(reader: Reader, ids_T: Tensor, expected: int) -> Rise | None:
    """Read up to four times what is ``expected``, as far as text and cost allow; None where that is too little.

    Where the loss turns up early, it is read again, shorter and more of it. Bins meet at ``expected``.
    """
    kind = pick_device(reader.device).type
    length = reader.size.readable(min(BEYOND * expected, MOST_TOKENS, len(ids_T)), kind)
    if not length:
        return None
    found = _read_once(reader, ids_T, expected, length, kind)
    for _ in range(READINGS - 1):
        if found.turns_up is None or not FEWEST_TOKENS <= EARLY * found.turns_up <= found.read_tokens:
            break
        nearer = _read_once(reader, ids_T, expected, max(FEWEST_TOKENS, AGAIN * found.turns_up), kind)
        if nearer.turns_up is None:
            break
        found = nearer
    return found


def _read_once(reader: Reader, ids_T: Tensor, expected: int, length: int, kind: str) -> Rise:
    short = max(SHORT_LEAST, min(SHORT_MOST, length // SHORT_SHARE))
    edges = _edges(expected, short, length)
    pieces = min(reader.size.pieces(length, kind), len(ids_T) // length)
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
    """Where the first bin begins that is clearly above a short context, and all before it, as every later one is."""
    for index in range(1, len(bins)):
        level = _together(bins[:index])
        first, later = bins[index], bins[index + 1 :]
        if _more(first, level).clear and all(_more(found, level).nats >= LEAST_NATS for found in later):
            return first.start
    return None


def _together(bins: Sequence[RiseBin]) -> Gap:
    """The mean of bins by their widths, and its error; nothing where more context helped."""
    widths = np.array([found.stop - found.start for found in bins], dtype=np.float64)
    shares = widths / widths.sum()
    errors = np.array([found.error for found in bins])
    nats = float((shares * np.array([found.above_short for found in bins])).sum())
    return Gap(max(nats, 0.0), float(np.sqrt(((shares * errors) ** 2).sum())))


def _more(found: RiseBin, level: Gap) -> Gap:
    return Gap(found.above_short - level.nats, float(np.hypot(found.error, level.error)))
