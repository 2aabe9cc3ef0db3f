"""The layout and the base of a checkpoint by how well it reads a text: nothing that its config says is believed.

The weights are run by the reference rotation in both layouts, and over a grid of bases; what was trained gives the
lower loss. A witness that sees nothing says so: a model that reads no better than whoever counts tokens tells nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ropetool.engines.compare import number
from ropetool.engines.mistakes import USUAL_BASE, Rotated, meant
from ropetool.errors import ConfigError
from ropetool.families.reading import Evidence, Reading, Rotation, Warn
from ropetool.models.likelihood import Own, rotated
from ropetool.models.paired import Floats, Gap, gap
from ropetool.rope.frequencies import Default, Scaling
from ropetool.rope.pairing import Pairing

TOKENS = 512
FEWEST_TOKENS = 64
# The bases of well-known models: RoFormer's and Llama 2's, SmolLM2's, Llama 3's, Qwen2's.
BASES = (USUAL_BASE, 100_000.0, 500_000.0, 1_000_000.0)
UNKNOWN = "unknown"

#: The loss of every token of the text, [T] in nats, rotated so.
Read = Callable[[Rotated], Floats]


@dataclass(frozen=True)
class LayoutLosses:
    """Mean loss in nats a token of the same weights as half and as interleaved, by the best base that was tried.

    ``gap`` and its ``error`` are by how much the one costs more than the other. ``unigram`` is what counting the
    tokens of the text gives, ``uniform`` the logarithm of the vocabulary. ``tokens`` are those predicted.
    """

    half: float
    interleaved: float
    gap: float
    error: float
    unigram: float
    uniform: float
    tokens: int


@dataclass(frozen=True)
class BaseLoss:
    """Mean loss in nats a token with one base, and how much more that is than with the best."""

    theta: float
    loss: float
    above_best: float
    error: float


@dataclass(frozen=True)
class BaseCurve:
    """The loss over the base of one kind of layer, the others as config.json has them.

    ``likely`` are the bases that are not clearly worse than the best. ``clear`` tells that the configured one is.
    """

    layers: str
    configured: float
    source: str
    losses: tuple[BaseLoss, ...]
    likely: tuple[float, ...]
    clear: bool
    detail: str


def layout_and_bases(
    loaded: Own, windows: Sequence[Sequence[int]], counted: Sequence[int]
) -> tuple[Evidence, LayoutLosses, tuple[BaseCurve, ...]]:
    """What the text says of the layout and of the base of each kind of layer.

    ``windows`` are token ids, each read from position 0; ``counted`` those of a longer stretch, whose shares are what
    a model must beat. Raises `UnsupportedError` for a class that cannot be run by the reference rotation.
    """
    reading, read = loaded.reading, _reader(loaded, windows)
    unigram_T = _unigram(windows, counted)
    truth = meant(reading)
    hows = {layout: replace(truth, pairing=layout) for layout in Pairing}
    better = min(Pairing, key=lambda layout: _mean(read(hows[layout])))
    if not _tells(read, hows, better, unigram_T):  # a wrong base may spoil both
        spoiled = [based for how in hows.values() for based in _all_bases(reading, how)]
        hows = {
            layout: min((how for how in spoiled if how.pairing is layout), key=lambda how: _mean(read(how)))
            for layout in Pairing
        }
        better = min(Pairing, key=lambda layout: _mean(read(hows[layout])))
    evidence, losses = _judged(read, hows, better, unigram_T, loaded)
    curves = tuple(_curves(reading, replace(truth, pairing=better), read)) if evidence.says != UNKNOWN else ()
    return evidence, losses, curves


def base_warnings(curves: Iterable[BaseCurve]) -> tuple[Warn, ...]:
    """One for each base that is clearly not the one of the weights."""
    return tuple(Warn("wrong-base", curve.detail) for curve in curves if curve.clear)


def _reader(loaded: Own, windows: Sequence[Sequence[int]]) -> Read:
    """Reads the windows in a given rotation, each rotation once."""
    known: dict[tuple[object, ...], Floats] = {}

    def read(how: Rotated) -> Floats:
        key = (how.pairing, how.turns)
        if key not in known:
            known[key] = np.concatenate([_losses(loaded, how, ids) for ids in windows])
        return known[key]

    return read


def _losses(loaded: Own, how: Rotated, ids: Sequence[int]) -> Floats:
    following = torch.tensor(ids[1:], dtype=torch.long)[:, None]
    found: Floats = -rotated(loaded, how, ids)[:-1].gather(1, following)[:, 0].double().numpy()
    return found


def _unigram(windows: Sequence[Sequence[int]], counted: Sequence[int]) -> Floats:
    """What every predicted token costs whoever knows the shares of all tokens of the text, and nothing else."""
    following = np.concatenate([np.asarray(ids[1:]) for ids in windows])
    counts = np.bincount(np.asarray(counted), minlength=int(following.max()) + 1)
    return np.asarray(-np.log(np.maximum(counts[following], 1) / counts.sum()), dtype=np.float64)


def _mean(losses_T: Floats) -> float:
    """The mean, and infinite where a loss is no number."""
    mean = float(losses_T.mean())
    return mean if math.isfinite(mean) else math.inf


def _tells(read: Read, hows: dict[Pairing, Rotated], better: Pairing, unigram_T: Floats) -> bool:
    best_T, other_T = read(hows[better]), read(hows[better.other])
    return gap(unigram_T, best_T).clear and gap(other_T, best_T).clear


def _judged(
    read: Read, hows: dict[Pairing, Rotated], better: Pairing, unigram_T: Floats, loaded: Own
) -> tuple[Evidence, LayoutLosses]:
    best_T, other_T = read(hows[better]), read(hows[better.other])
    apart, ahead = gap(other_T, best_T), gap(unigram_T, best_T)
    half, interleaved = (_mean(read(hows[layout])) for layout in (Pairing.HALF, Pairing.INTERLEAVED))
    weight = loaded.runner.model.get_output_embeddings().weight
    losses = LayoutLosses(
        half, interleaved, apart.nats, apart.error, _mean(unigram_T), math.log(len(weight)), len(best_T)
    )  # fmt: skip
    told = f"read as half the text costs {half:.3f} nats a token, as interleaved {interleaved:.3f}"
    figures = {**vars(losses), "sigmas": apart.sigmas}
    if not ahead.clear:
        told += (
            f": no better than counting the tokens of the text does ({losses.unigram:.3f}; all alike: "
            f"{losses.uniform:.3f}), so it reads nothing, and tells nothing"
        )
        return Evidence("text", UNKNOWN, told, figures=figures), losses
    told += f": {apart} over {len(best_T)} tokens"
    if not apart.clear:
        return Evidence("text", UNKNOWN, f"{told}, which is too little to tell", figures=figures), losses
    return Evidence("text", better.value, told, apart.confidence, figures), losses


def _candidates(reading: Reading, rotation: Rotation) -> tuple[float, ...]:
    """The bases to try: the usual ones, the config's, and the one from before an extension."""
    before = reading.extension.get("original_theta")
    known = (*BASES, rotation.scaling.theta, *((float(before),) if before else ()))
    return tuple(sorted({base for base in known if _can(rotation, base)}))


def _can(rotation: Rotation, base: float) -> bool:
    """Whether a scaling can be computed on top of this base: YaRN's ramp may run backwards."""
    try:
        replace(rotation.scaling, theta=base).inv_freq(rotation.geometry.rotary_dim)
    except ConfigError:
        return False
    return True


def _all_bases(reading: Reading, how: Rotated) -> Iterator[Rotated]:
    """Every base of the grid, in one kind of layer at a time; and as it is."""
    yield how
    for index, rotation in enumerate(reading.rotations):
        for base in _candidates(reading, rotation):
            yield _scaled(how, index, replace(rotation.scaling, theta=base))


def _scaled(how: Rotated, index: int, scaling: Scaling) -> Rotated:
    """With another scaling in the kind of layer at ``index``."""
    turns = tuple(replace(turn, scaling=scaling) if at == index else turn for at, turn in enumerate(how.turns))
    return replace(how, turns=turns)


def _curves(reading: Reading, how: Rotated, read: Read) -> Iterator[BaseCurve]:
    if reading.family.learned:  # factors of the frequencies are in the weights: another base has none
        return
    for index, rotation in enumerate(reading.rotations):
        tried = {
            base: read(_scaled(how, index, replace(rotation.scaling, theta=base)))
            for base in _candidates(reading, rotation)
        }
        bare = None
        if type(rotation.scaling) is not Default:
            bare = read(_scaled(how, index, Default(rotation.scaling.theta)))
        yield _curve(reading, rotation, tried, bare)


def _curve(reading: Reading, rotation: Rotation, tried: dict[float, Floats], bare_T: Floats | None) -> BaseCurve:
    configured = rotation.scaling.theta
    best = min(tried, key=lambda base: _mean(tried[base]))
    above = {base: gap(losses_T, tried[best]) for base, losses_T in tried.items()}
    likely = tuple(base for base in tried if not above[base].clear)
    told = _told(reading, rotation, best, {base: _mean(losses_T) for base, losses_T in tried.items()})
    clear, said = configured not in likely, ""
    if not clear:
        names = " or ".join(number(base) for base in likely)
        said = f"the loss does not speak against it: of those tried, it fits {names}"
    elif bare_T is not None and not gap(bare_T, tried[best]).clear:
        clear = False
        said = f"without its {rotation.scaling.name} scaling the same base gives {_mean(bare_T):.3f}: the scaling costs"
    elif reading.extension.get("original_theta") in likely:
        clear = False
        said = "an extension raised the base, as config.json's marker says, and the text is short"
    else:
        names = " or ".join(number(base) for base in likely)
        said = f"{above[configured]} more; the base was probably lost or changed, and it was {names}"
    losses = tuple(
        BaseLoss(base, _mean(losses_T), above[base].nats, above[base].error) for base, losses_T in tried.items()
    )
    return BaseCurve(
        rotation.layers, configured, rotation.theta_source, losses, likely, clear, f"{told}: {said}"
    )  # fmt: skip


def _told(reading: Reading, rotation: Rotation, best: float, means: dict[float, float]) -> str:
    where = f" of {rotation.layers} layers" if len(reading.rotations) > 1 else ""
    configured = rotation.scaling.theta
    told = f"the loss is lowest with the base {number(best)}{where} ({means[best]:.3f})"
    if best == configured:
        return f"{told}, which {rotation.theta_source} says"
    return f"{told}, and {rotation.theta_source} says {number(configured)} ({means[configured]:.3f})"


__all__ = ["BaseCurve", "BaseLoss", "Gap", "LayoutLosses", "base_warnings", "layout_and_bases"]
