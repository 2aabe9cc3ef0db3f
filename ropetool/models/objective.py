"""What a search minimises, and how sure a difference between two settings is: numbers from blocks of losses.

A reading gives the mean loss of every block of successive tokens, [windows][blocks]. Position t predicts token t + 1,
so that the last block of a reading of T tokens has one loss fewer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from ropetool.models.searched import Gain
from ropetool.rope.frequencies import Floats

Blocks = Sequence[Sequence[float]]

# Blocks within the trained length: a reading of x4 has 32 of them.
WITHIN_TRAINED = 8
MOST_BINS_BEYOND = 12
PENALTY = 1.0
STATEMENT = (
    f"mean next-token loss over all positions up to the length read, in nats, each token the same, plus {PENALTY:g} x "
    f"the loss that is lost inside the trained window: the mean, over its position bins by tokens, of how far each "
    f"lies above the same model without extension (a bin that lies below counts 0)"
)
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Bins:
    """Position bins in tokens: ``block`` tokens make one number; ``edges`` are the bins' ends, the last the length."""

    trained: int
    length: int
    block: int
    edges: tuple[int, ...]

    def below(self, length: int) -> tuple[int, ...]:
        """The edges of a reading of ``length`` tokens, whose end is the last of them."""
        return (*(edge for edge in self.edges if edge < length), length)

    @property
    def inside(self) -> tuple[int, ...]:
        """The edges that lie inside the trained window."""
        return tuple(edge for edge in self.edges if edge <= WITHIN_TRAINED * self.block)


def bins_for(trained: int, length: int) -> Bins:
    """An eighth, a half and all of the trained length, then equal steps: of half of it, or more where they are many."""
    block = max(1, trained // WITHIN_TRAINED)
    half = block * WITHIN_TRAINED // 2
    step = half * max(1, math.ceil((length - 2 * half) / half / MOST_BINS_BEYOND))
    beyond = range(2 * half + step, length, step)
    ends = dict.fromkeys((block, half, 2 * half, *beyond))
    # The last position predicts nothing, so that a last bin of it alone would have no loss.
    return Bins(trained, length, block, (*(end for end in ends if end < length - 1), length))


def tokens_of(blocks: int, block: int, length: int) -> Floats:
    """How many losses each block of a reading of ``length`` tokens has, [blocks]."""
    starts = np.arange(blocks) * block
    return np.minimum(starts + block, length - 1) - starts.astype(np.float64)


def by_bin(read: Blocks, bins: Bins, length: int) -> tuple[tuple[float, int], ...]:
    """Mean loss and number of losses of each bin of a reading of ``length`` tokens, over all windows."""
    rows = np.asarray(read, dtype=np.float64)
    tokens = tokens_of(rows.shape[1], bins.block, length)
    found = []
    for start, stop in pairwise((0, *bins.below(length))):
        part = slice(start // bins.block, max(start // bins.block + 1, -(-stop // bins.block)))
        count = tokens[part].sum()
        if count:
            found.append((float((rows[:, part] * tokens[part]).sum() / (count * len(rows))), int(count) * len(rows)))
    return tuple(found)


def mean_loss(read: Blocks, bins: Bins, length: int) -> float:
    """The mean over all losses of a reading."""
    found = by_bin(read, bins, length)
    return sum(loss * tokens for loss, tokens in found) / sum(tokens for _, tokens in found)


def penalty(read: Blocks, unextended: Blocks, bins: Bins, length: int) -> float:
    """How much is lost inside the trained window; see `STATEMENT`. Both have the same windows."""
    own, plain = (by_bin(rows, bins, tokens) for rows, tokens in ((read, length), (unextended, bins.trained + 1)))
    lost = [(max(0.0, a - b), tokens) for (a, tokens), (b, _), _ in zip(own, plain, bins.inside, strict=False)]
    return sum(loss * tokens for loss, tokens in lost) / max(1, sum(tokens for _, tokens in lost))


def gain(chosen: Blocks, default: Blocks, bins: Bins) -> Gain:
    """How much lower the chosen lies on the same windows, with an interval of Student's t over paired differences.

    Neighbouring blocks go up and down together, so their number is counted as (1 - r) / (1 + r) of itself, r their
    correlation, where that is above 0 (the effective size of an AR(1) series).
    """
    rows = np.asarray(default, dtype=np.float64) - np.asarray(chosen, dtype=np.float64)
    tokens = np.broadcast_to(tokens_of(rows.shape[1], bins.block, bins.length), rows.shape)
    mean = float((rows * tokens).sum() / tokens.sum())
    units = rows.size
    if units < 3:
        return Gain(mean, -math.inf, math.inf, units, bins.block)
    apart = rows - rows.mean()
    spread = float((apart**2).sum())
    together = float((apart[:, 1:] * apart[:, :-1]).sum() / spread) if spread else 0.0
    effective = max(3.0, units * (1 - max(0.0, together)) / (1 + max(0.0, together)))
    half = student(effective - 1) * math.sqrt(spread / (units - 1) / effective)
    return Gain(mean, mean - half, mean + half, units, bins.block)


def student(freedom: float) -> float:
    """The two-sided quantile of Student's t, by its expansion about the normal one (Abramowitz and Stegun, 26.7.5)."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def fewer(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether ``one`` answers fewer than ``other`` of the same documents, by over a standard error of the difference.

    Documents that both or neither answer say nothing (McNemar); of the others each is lost or won by chance alike.
    """
    lost = sum(b > a for a, b in zip(one, other, strict=True))
    won = sum(a > b for a, b in zip(one, other, strict=True))
    return lost - won > math.sqrt(lost + won)
