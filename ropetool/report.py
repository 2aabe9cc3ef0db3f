"""Report: the numbers behind its figures: what every pair does, as it is and by each scaling method.

Reads config.json alone; what was measured is read from files that ``verify`` and ``evaluate`` kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ropetool.checkpoint.adapter import is_adapter
from ropetool.checkpoint.config import count
from ropetool.checkpoint.folder import read_config
from ropetool.errors import UsageError
from ropetool.families.reading import Reading, Rotation, Warn
from ropetool.families.ways import Left, Way, Ways, ways_of
from ropetool.families.windows import SLIDING
from ropetool.models.understand import understand
from ropetool.rope.bands import distances, score_bound, score_by_distance, turns, wavelengths
from ropetool.rope.frequencies import Floats
from ropetool.rope.layout import Pairing
from ropetool.rope.pairing import Head, index_map, pairs

# Wider heads than any model has are not drawn.
MOST_ROWS = 4096
CURVE_POINTS = 160
EXAMPLE_SEED = 7
# How alike q and k of the example are, from 0 to 1: enough for a score that falls with distance.
EXAMPLE_LIKENESS = 0.8
EXAMPLE_FACTOR = 4.0


@dataclass(frozen=True)
class Turning:
    """One way to turn, in numbers, one for each pair: lists of R/2, None for a pair that does not turn.

    ``inv_freq`` is in radians a token and ``wavelength`` in tokens; ``turns`` counts turns in ``length``; ``slower`` is
    how many times slower than without scaling. ``score`` and ``bound`` are by distance, see `rope.bands`.
    """

    method: str
    type: str
    theta: float
    factor: float | None
    length: int | None
    attention_factor: float
    note: str
    inv_freq: tuple[float, ...]
    wavelength: tuple[float | None, ...]
    turns: tuple[float, ...] | None
    slower: tuple[float | None, ...]
    score: tuple[float, ...]
    bound: tuple[float, ...]


@dataclass(frozen=True)
class HeadRows:
    """The rows of one head in both layouts: the pairs of each, and where every row goes, ``new[r] = old[moves[r]]``."""

    pairing: str
    head_dim: int
    rope_start: int
    rotary_dim: int
    pairs: Mapping[str, tuple[tuple[int, int], ...]]
    moves: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Example:
    """A q and a k of one head, seeded: the two rows of each pair, R/2 of them; both have length 1."""

    q: tuple[tuple[float, float], ...]
    k: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Layers:
    """One kind of layer: its head, and the ways to turn it. The first of ``ways`` is as config.json says.

    ``trained`` and ``reach`` are in tokens, None where nothing tells, and so is ``window`` for layers that look back so
    far and no further; ``distances`` are those of the curves.
    ``factors`` are those that the methods are shown with, none where an extension leaves the layers as they are, and
    ``shown_factor`` is the one to look at first.
    """

    layers: str
    trained: int | None
    reach: int | None
    window: int | None
    factors: tuple[float, ...]
    shown_factor: float
    head: HeadRows
    example: Example
    distances: tuple[int, ...]
    ways: tuple[Turning, ...]
    left: tuple[Left, ...]


@dataclass(frozen=True)
class Spectrum:
    """The frequencies of a checkpoint, one entry for each kind of layer."""

    layers: tuple[Layers, ...]
    warnings: tuple[Warn, ...]


def spectrum(path: Path, *, original: int | None = None, trust_remote_code: bool = False) -> Spectrum:
    """The frequencies of the checkpoint at ``path``; ``original`` is its trained length in tokens, if told.

    Raises `UsageError` for an adapter, which has none, and as `models.understand` does for what has no RoPE, or
    cannot be read.
    """
    if is_adapter(path):
        raise UsageError(f"{path} is an adapter and turns as its base does; make the report of that")
    reading = understand(path, read_config(path), trust_remote_code=trust_remote_code)
    found = [_layers(reading, rotation, original) for rotation in (*reading.rotations, *reading.others)]
    warnings = [warning for _, said in found for warning in said]
    return Spectrum(
        tuple(layers for layers, _ in found if layers is not None), tuple(dict.fromkeys((*_of_row(reading), *warnings)))
    )


def _of_row(reading: Reading) -> tuple[Warn, ...]:
    """What config.json does not tell of the rotation."""
    learned = "every frequency has a factor of its own among the weights, which is not in the figures"
    backwards = "its class turns every pair the other way; the figures show the size of the angles"
    temper = (
        "mscale_all_dim: classes of DeepSeek's kind also multiply every score by (0.1 mscale_all_dim ln(factor) + 1) "
        "squared, which is not in the figures"
    )
    tempered = any(rotation.block.values.get("mscale_all_dim") for rotation in reading.rotations)
    told = ((reading.family.learned, learned), (reading.family.backwards, backwards), (tempered, temper))
    return tuple(Warn("not-drawn", said) for holds, said in told if holds)


def _layers(reading: Reading, rotation: Rotation, original: int | None) -> tuple[Layers | None, tuple[Warn, ...]]:
    """The numbers of one rotation; none for a head that is too wide to be drawn."""
    geometry = rotation.geometry
    if geometry.head_dim > MOST_ROWS:
        said = f"heads of {geometry.head_dim} rows ({rotation.layers}) are not drawn: at most {MOST_ROWS} rows are"
        return None, (Warn("not-drawn", said),)
    found = ways_of(reading, rotation, original)
    longest = max(int((found.trained or 0) * max(found.factors, default=1)), found.reach or 0, 1)
    apart = distances(longest, CURVE_POINTS)
    ways = (*found.own, found.unscaled, *found.methods)
    head = _head(reading.pairing, Head(geometry.head_dim, geometry.rope_start, geometry.rotary_dim))
    layers = Layers(
        rotation.layers, found.trained, found.reach, _window(reading, rotation), found.factors, _shown_factor(found),
        head, _example(geometry.rotary_dim // 2), apart,
        tuple(_turning(way, found, geometry.rotary_dim, apart) for way in ways), found.left,
    )  # fmt: skip
    return layers, found.warnings


def _window(reading: Reading, rotation: Rotation) -> int | None:
    return count(reading.config, "sliding_window") if rotation.layers == SLIDING else None


def _shown_factor(found: Ways) -> float:
    """That of the checkpoint itself where it is extended."""
    own = (found.reach or 0) / (found.trained or 1)
    return own if own in found.factors else EXAMPLE_FACTOR


def _turning(way: Way, found: Ways, width: int, apart: Sequence[int]) -> Turning:
    inv_freq, plain = way.scaling.inv_freq(width, way.length), found.unscaled.scaling.inv_freq(width)
    factor, by = way.scaling.attention_factor_at(way.length), np.asarray(apart, dtype=np.float64)
    still = inv_freq == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        slower = np.where(still, np.inf, plain / inv_freq)
    return Turning(
        method=way.method,
        type=way.scaling.name,
        theta=way.scaling.theta,
        factor=way.factor,
        length=way.length,
        attention_factor=factor,
        note=way.note,
        inv_freq=tuple(float(value) for value in inv_freq),
        wavelength=_shown(wavelengths(inv_freq)),
        turns=_within(inv_freq, way.length),
        slower=_shown(slower),
        score=tuple(round(float(value), 5) for value in score_by_distance(inv_freq, by, factor)),
        bound=tuple(round(float(value), 5) for value in score_bound(inv_freq, by, factor)),
    )


def _shown(values: Floats) -> tuple[float | None, ...]:
    """Seven digits, and None for what is infinite."""
    return tuple(float(f"{value:.7g}") if np.isfinite(value) else None for value in values)


def _within(inv_freq: Floats, length: int | None) -> tuple[float, ...] | None:
    return None if length is None else tuple(float(f"{value:.7g}") for value in turns(inv_freq, length))


def _head(pairing: Pairing, head: Head) -> HeadRows:
    start, width = head.rope_start, head.rope_dim
    return HeadRows(
        pairing.value,
        head.dim,
        start,
        width,
        {way.value: tuple((start + a, start + b) for a, b in pairs(width, way)) for way in Pairing},
        {way.value: tuple(int(row) for row in index_map((head,), way.other, way)) for way in Pairing},
    )


def _example(count: int) -> Example:
    """Seeded directions, k partly that of q."""
    draw = np.random.default_rng(EXAMPLE_SEED)
    q, other = draw.standard_normal((count, 2)), draw.standard_normal((count, 2))
    q, other = q / np.linalg.norm(q), other / np.linalg.norm(other)
    k = EXAMPLE_LIKENESS * q + (1 - EXAMPLE_LIKENESS) * other
    return Example(*(tuple((float(x), float(y)) for x, y in v) for v in (q, k / np.linalg.norm(k))))
