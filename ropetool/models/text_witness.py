"""The layout and the base of a checkpoint by how well it reads a text: nothing that its config says is believed.

The weights are run by the reference rotation in both layouts, and over a grid of bases; what was trained gives the
lower loss. A witness that sees nothing says so: a model that reads no better than whoever counts tokens tells nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ropetool.engines.compare import number
from ropetool.engines.mistakes import USUAL_BASE, Rotated, meant
from ropetool.errors import ConfigError
from ropetool.families.joined import READS_NOTHING
from ropetool.families.reading import Evidence, Reading, Rotation, Warn
from ropetool.models.likelihood import Own, rotated
from ropetool.models.paired import LEAST_OF_BASE, Floats, Gap, gap
from ropetool.rope.frequencies import Default, Linear, Scaling
from ropetool.rope.pairing import Pairing

TOKENS = 512
FEWEST_TOKENS = 64
# The bases of well-known models: RoFormer's and Llama 2's, SmolLM2's, Llama 3's, Qwen2's.
BASES = (USUAL_BASE, 100_000.0, 500_000.0, 1_000_000.0)
# Angles by so much smaller are none.
STILL = 1e12
UNKNOWN = "unknown"

# A base shows less than a layout does: more pieces of the text are read for it, where they cost no more than this.
BASE_TOKENS, BASE_OPERATIONS = 4096, 1.5e12

#: The loss of every token of so many pieces of the text, [T] in nats, rotated so.
Read = Callable[[Rotated, int], Floats]


@dataclass(frozen=True)
class LayoutLosses:
    """Mean loss in nats a token of the same weights as half and as interleaved.

    Each as config.json has it; where that says something else than the best of the bases, or no scaling, with the best.

    ``gap`` and its ``error`` are by how much the one costs more than the other. ``still`` is without any rotation;
    ``unigram`` is what counting the
    tokens of the text gives, ``uniform`` the logarithm of the vocabulary. ``tokens`` are those predicted.
    """

    half: float
    interleaved: float
    gap: float
    error: float
    still: float
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
    ``without_scaling`` is the configured base alone, where a scaling is on top; ``scaling_costs`` tells that it surely
    reads better so: nothing was trained with the scaling.
    """

    layers: str
    configured: float
    source: str
    losses: tuple[BaseLoss, ...]
    likely: tuple[float, ...]
    clear: bool
    detail: str
    without_scaling: BaseLoss | None = None
    scaling_costs: bool = False


def layout_and_bases(
    loaded: Own, windows_WT: Sequence[Sequence[int]], counted: Sequence[int]
) -> tuple[Evidence, LayoutLosses, tuple[BaseCurve, ...]]:
    """What the text says of the layout and of the base of each kind of layer.

    ``windows_WT`` are token ids, each read from position 0: 512 tokens of them for the layout, more for the base where
    the model is small. ``counted`` are those of a longer stretch, whose shares are what a model must beat. Raises
    `UnsupportedError` for a class that cannot be run by the reference rotation.
    """
    reading, read = loaded.reading, _reader(loaded, windows_WT)
    few = max(1, TOKENS // len(windows_WT[0]))
    unigram_T = _unigram(windows_WT[:few], counted)
    truth = meant(reading)
    tried = {layout: _tried(reading, replace(truth, pairing=layout), read, few) for layout in Pairing}
    words = len(loaded.runner.model.get_output_embeddings().weight)
    deciding = _deciding(tried, unigram_T)
    evidence, losses = _judged(deciding, unigram_T, read(_still(truth), few), words)
    if any(deciding[layout] is not rows[0] for layout, rows in tried.items()):
        evidence = replace(evidence, detail=f"{evidence.detail}; each at its best, with another base or no scaling")
    if evidence.says == UNKNOWN:
        return evidence, losses, ()
    many = _affordable(loaded, windows_WT, few)
    how = replace(truth, pairing=Pairing(evidence.says))
    return evidence, losses, tuple(_curves(reading, how, lambda other: read(other, many)))


def base_warnings(curves: Iterable[BaseCurve]) -> tuple[Warn, ...]:
    """One for each base that is clearly not the one of the weights, and each scaling that they do not know."""
    found = []
    for curve in curves:
        if curve.clear:
            found.append(Warn("wrong-base", curve.detail))
        elif curve.scaling_costs and curve.without_scaling:
            configured = next(one.loss for one in curve.losses if one.theta == curve.configured)
            said = (
                f"the text costs {configured:.3f} nats a token with the scaling of {curve.layers} layers, and "
                f"{curve.without_scaling.loss:.3f} without: short contexts pay for it, as in a model that was not "
                f"trained with it"
            )
            found.append(Warn("scaling-costs", said))
    return tuple(found)


def _reader(loaded: Own, windows_WT: Sequence[Sequence[int]]) -> Read:
    """Reads the first of the windows in a given rotation, each once."""
    known: dict[tuple[object, ...], list[Floats]] = {}

    def read(how: Rotated, windows: int) -> Floats:
        losses = known.setdefault((how.pairing, how.turns), [])
        losses += [_losses(loaded, how, ids) for ids in windows_WT[len(losses) : windows]]
        return np.concatenate(losses[:windows])

    return read


def _affordable(loaded: Own, windows_WT: Sequence[Sequence[int]], few: int) -> int:
    """How many windows to read with each base: as many as tell well, if the model is small."""
    per_token = 2.0 * loaded.runner.model.num_parameters() * (len(BASES) + 1)
    tokens = min(BASE_TOKENS, int(BASE_OPERATIONS / per_token))
    return max(few, min(len(windows_WT), tokens // len(windows_WT[0])))


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


def _tried(reading: Reading, how: Rotated, read: Read, windows: int) -> list[Floats]:
    """The losses as config.json has it, first; with every base, and without scaling, which may have spoiled it.

    A layout that is right, with a base or a scaling that is not, can read worse than the wrong layout does.
    """
    hows = [how, *_all_bases(reading, how)]
    if any(type(turn.scaling) is not Default for turn in how.turns):
        hows.append(replace(how, turns=tuple(replace(t, scaling=Default(t.scaling.theta)) for t in how.turns)))
    return [read(other, windows) for other in hows]


def _still(how: Rotated) -> Rotated:
    """Nothing turns: so slowly that no angle is one."""
    return replace(how, turns=tuple(replace(t, scaling=Linear(t.scaling.theta, STILL)) for t in how.turns))


def _deciding(tried: Mapping[Pairing, list[Floats]], unigram_T: Floats) -> Mapping[Pairing, Floats]:
    """The losses to judge by: each layout at its best; as config.json has it, where both say the same, or nothing."""
    as_meant = {layout: rows[0] for layout, rows in tried.items()}
    at_best = {layout: min(rows, key=_mean) for layout, rows in tried.items()}
    better = _better(at_best)
    same = _better(as_meant) is better and _apart(at_best).clear and _apart(as_meant).clear
    return as_meant if same or not gap(unigram_T, at_best[better]).clear else at_best


def _better(losses_T: Mapping[Pairing, Floats]) -> Pairing:
    return min(Pairing, key=lambda layout: _mean(losses_T[layout]))


def _apart(losses_T: Mapping[Pairing, Floats]) -> Gap:
    better = _better(losses_T)
    return gap(losses_T[better.other], losses_T[better])


def _judged(
    losses_T: Mapping[Pairing, Floats], unigram_T: Floats, still_T: Floats, vocabulary: int
) -> tuple[Evidence, LayoutLosses]:
    better = _better(losses_T)
    best_T = losses_T[better]
    apart, ahead, turns = _apart(losses_T), gap(unigram_T, best_T), gap(still_T, best_T)
    half, interleaved = _mean(losses_T[Pairing.HALF]), _mean(losses_T[Pairing.INTERLEAVED])
    losses = LayoutLosses(
        half, interleaved, apart.nats, apart.error, _mean(still_T), _mean(unigram_T), math.log(vocabulary), len(best_T)
    )  # fmt: skip
    told = f"read as half the text costs {half:.3f} nats a token, as interleaved {interleaved:.3f}"
    figures = {**vars(losses), "sigmas": apart.sigmas}
    if not ahead.clear:
        told += (
            f": no better than counting the tokens of the text does ({losses.unigram:.3f}; all alike: "
            f"{losses.uniform:.3f}), so it reads nothing, and tells nothing"
        )
        return Evidence("text", UNKNOWN, told, figures={**figures, READS_NOTHING: True}), losses
    told += f": {apart} over {len(best_T)} tokens"
    if not turns.clear:
        told += f", and without any rotation it costs {losses.still:.3f}: that it turns is of no use to it, either way"
        return Evidence("text", UNKNOWN, told, figures=figures), losses
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
    """Every base of the grid, in one kind of layer at a time; factors that weights hold go with their own base."""
    if reading.family.learned:
        return
    for index, rotation in enumerate(reading.rotations):
        for base in _candidates(reading, rotation):
            yield _scaled(how, index, replace(rotation.scaling, theta=base))


def _scaled(how: Rotated, index: int, scaling: Scaling) -> Rotated:
    """With another scaling in the kind of layer at ``index``."""
    turns = tuple(replace(turn, scaling=scaling) if at == index else turn for at, turn in enumerate(how.turns))
    return replace(how, turns=turns)


def _curves(reading: Reading, how: Rotated, read: Callable[[Rotated], Floats]) -> Iterator[BaseCurve]:
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
    """``bare_T`` are the losses with the config's base and no scaling, where it has a scaling."""
    configured = rotation.scaling.theta
    best = min(tried, key=lambda base: _mean(tried[base]))
    above = {base: gap(losses_T, tried[best]) for base, losses_T in tried.items()}
    likely = tuple(base for base in tried if not above[base].clear_by(LEAST_OF_BASE))
    excuse = _excuse(reading, rotation, tried[best], bare_T, likely)
    clear = configured not in likely and not excuse
    if configured in likely:
        said = _not_told(tuple(base for base in likely if base != configured))
    else:
        said = f"{above[configured]} nats more; " + (excuse or f"the base was probably lost or changed: {_or(likely)}")
    losses = tuple(
        BaseLoss(base, _mean(losses_T), above[base].nats, above[base].error) for base, losses_T in tried.items()
    )
    told = _told(reading, rotation, best, {base: _mean(losses_T) for base, losses_T in tried.items()})
    bare, costs = None, False
    if bare_T is not None:
        above_best, above_bare = gap(bare_T, tried[best]), gap(tried[configured], bare_T)
        bare = BaseLoss(configured, _mean(bare_T), above_best.nats, above_best.error)
        costs = above_bare.clear
    return BaseCurve(
        rotation.layers, configured, rotation.theta_source, losses, likely, clear, f"{told}: {said}", bare, costs
    )  # fmt: skip


def _excuse(
    reading: Reading, rotation: Rotation, best_T: Floats, bare_T: Floats | None, likely: tuple[float, ...]
) -> str:
    """Why another base gives less without the config's being wrong; empty where nothing does."""
    if bare_T is not None and not gap(bare_T, best_T).clear_by(LEAST_OF_BASE):
        return f"without its {rotation.scaling.name} scaling it gives {_mean(bare_T):.3f}, so the scaling costs that"
    if reading.extension.get("original_theta") in likely:
        return "an extension raised the base, as config.json's marker says, and that costs in a short text"
    return ""


def _or(bases: tuple[float, ...]) -> str:
    return " or ".join(number(base) for base in bases)


def _not_told(others: tuple[float, ...]) -> str:
    return f"it cannot be told from {_or(others)}" if others else "every other base that was tried is clearly worse"


def _told(reading: Reading, rotation: Rotation, best: float, means: dict[float, float]) -> str:
    where = f" of {rotation.layers} layers" if len(reading.rotations) > 1 else ""
    configured = rotation.scaling.theta
    told = f"the loss is lowest with the base {number(best)}{where} ({means[best]:.3f})"
    if best == configured:
        return f"{told}, which {rotation.theta_source} says"
    return f"{told}, and {rotation.theta_source} says {number(configured)} ({means[configured]:.3f})"
