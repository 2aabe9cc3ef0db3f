"""What an engine may do wrong when it rotates: each mistake as a rotation that can be run, and in words.

Those that people meet (the other layout, a base or a scaling lost, a factor applied twice), and what the rows of
`doctor` say that each engine hears in this config.json.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.engines.compare import described, faults, number
from ropetool.engines.heard import Case, Turn
from ropetool.engines.listeners import LISTENERS
from ropetool.errors import ConfigError
from ropetool.families.reading import Reading
from ropetool.rope.frequencies import MAX_LENGTH, ORIGINAL, Default, Linear, Scaling, Yarn
from ropetool.rope.pairing import Pairing

USUAL_BASE = 10_000.0
# Tried where nothing else fits: the bases of well-known models, and factors that a server was told by hand.
OTHER_BASES = (500_000.0, 1_000_000.0, 5_000_000.0, 10_000_000.0)
OTHER_FACTORS = (2.0, 4.0, 8.0)

Change = Callable[[Scaling], Scaling]


@dataclass(frozen=True)
class Rotated:
    """How q and k are rotated: by ``turns``, as if the weights were in layout ``pairing``; ``said`` in words.

    ``key`` is where in config.json that stands which is not obeyed, ``engines`` those that are known to do so.
    """

    said: str
    key: str
    pairing: Pairing
    turns: tuple[Turn, ...]
    engines: tuple[str, ...] = ()


Effect = tuple[object, ...]


def _effect(rotated: Rotated, tokens: int) -> Effect | None:
    """What two rotations have in common that do the same to ``tokens`` tokens; None for one that cannot be computed."""
    try:
        return rotated.pairing, tuple(
            (
                turn.layers,
                tuple(f"{angle:.5g}" for angle in turn.scaling.inv_freq(turn.rotary_dim, tokens)),
                f"{turn.scaling.attention_factor_at(tokens):.5g}",
            )
            for turn in rotated.turns
        )
    except ConfigError:  # YaRN's ramp would run backwards, with a base or a length that is not its own
        return None


def meant(reading: Reading) -> Rotated:
    """What the checkpoint means."""
    turns = tuple(Turn(r.layers, r.scaling, r.geometry.rotary_dim) for r in reading.rotations)
    return Rotated(in_words(reading.pairing, turns), "", reading.pairing, turns)


def in_words(pairing: Pairing, turns: tuple[Turn, ...]) -> str:
    """``half, base 100000, yarn (factor 2 over 8192)``."""
    kinds = [_turn_in_words(turn, several=len(turns) > 1) for turn in turns]
    return ", ".join((pairing.value, *kinds))


def _turn_in_words(turn: Turn, *, several: bool) -> str:
    scaled = "" if type(turn.scaling) is Default else f" with {described(turn.scaling)}"
    where = f" in {turn.layers} layers" if several and turn.layers != ALL_LAYERS else ""
    return f"base {number(turn.scaling.theta)}{scaled}{where}"


def mistakes(case: Case, tokens: int) -> tuple[Rotated, ...]:
    """The mistakes that change what ``tokens`` tokens give, each once, with every engine that is known to make it."""
    truth = meant(case.reading)
    return _distinct([*_usual(case.reading, truth), *_heard(case, truth)], {_effect(truth, tokens)}, tokens)


def unseen(case: Case, tokens: int) -> tuple[str, ...]:
    """The mistakes that change nothing for so few tokens, in words."""
    truth = meant(case.reading)
    all_of_them = (*_usual(case.reading, truth), *_heard(case, truth))
    others = [made for made in all_of_them if (made.pairing, made.turns) != (truth.pairing, truth.turns)]
    return tuple(
        dict.fromkeys(made.said for made in others if made.said and _effect(made, tokens) == _effect(truth, tokens))
    )


def guesses(case: Case, tokens: int, tried: Iterable[Rotated]) -> tuple[Rotated, ...]:
    """More of them, for rotations that fit none of those ``tried``."""
    truth = meant(case.reading)
    known = {_effect(made, tokens) for made in (truth, *tried)}
    return _distinct(list(_further(case.reading, truth)), known, tokens)


def _distinct(made: Iterable[Rotated], known: set[Effect | None], tokens: int) -> tuple[Rotated, ...]:
    found: dict[Effect, Rotated] = {}
    for one in made:
        effect = _effect(one, tokens)
        if effect is None or effect in known:
            continue
        first = found.setdefault(effect, one)
        found[effect] = replace(first, engines=tuple(dict.fromkeys((*first.engines, *one.engines))))
    return tuple(found.values())


def _usual(reading: Reading, truth: Rotated) -> Iterator[Rotated]:
    yield replace(truth, said=f"the other layout, {truth.pairing.other.value}", key="", pairing=truth.pairing.other)
    bases = [USUAL_BASE, reading.family.theta_default]
    bases += [turn.scaling.theta for turn in truth.turns] if len(truth.turns) > 1 else []
    for base in dict.fromkeys(bases):
        yield _based(reading, truth, base)
    key = reading.rotations[0].block.sources.get("rope_type", "rope_type")
    where = key.rpartition(".")[0]
    for said, name, change in _of_scaling(reading):
        yield _changed(truth, said, f"{where}.{name}".removeprefix("."), change)


def _based(reading: Reading, truth: Rotated, base: float) -> Rotated:
    return _changed(
        truth, f"base {number(base)}", reading.rotations[0].theta_source, lambda scaling: replace(scaling, theta=base)
    )


def _changed(truth: Rotated, said: str, key: str, change: Change) -> Rotated:
    return replace(
        truth, said=said, key=key, turns=tuple(replace(turn, scaling=change(turn.scaling)) for turn in truth.turns)
    )


def _of_scaling(reading: Reading) -> Iterator[tuple[str, str, Change]]:
    """In words, the key that is not obeyed, and what becomes of each scaling; one that has no such thing stays."""
    longest = reading.length
    yield "no scaling", "rope_type", lambda scaling: Default(scaling.theta)
    yield "the factor applied twice", "factor", lambda scaling: _with(scaling, factor=_factor(scaling) ** 2)
    yield (
        "linear scaling by the same factor", "rope_type",
        lambda scaling: Linear(scaling.theta, _factor(scaling)) if _factor(scaling) != 1 else scaling,
    )  # fmt: skip
    yield "no attention factor", "attention_factor", lambda scaling: _with(scaling, explicit_attention_factor=1.0)
    if longest:
        said = f"{MAX_LENGTH} taken for the trained length"
        yield said, ORIGINAL, lambda scaling: _with(scaling, original_length=longest)


def _factor(scaling: Scaling) -> float:
    return float(getattr(scaling, "factor", 1.0))


def _with(scaling: Scaling, **values: Any) -> Scaling:
    """Other values for those of its fields that it has."""
    names = {field.name for field in fields(scaling)}
    return replace(scaling, **{name: value for name, value in values.items() if name in names})


def _heard(case: Case, truth: Rotated) -> Iterator[Rotated]:
    """What `doctor` says that each engine hears, where it loads the checkpoint at all."""
    for row in LISTENERS:
        heard = row.hears(case)
        if not heard.turns or heard.refusal or heard.unknown:
            continue
        said = "; ".join(fault.said for fault in faults(case, heard) if fault.about != "length")
        engine = f"{row.engine.value} {row.part}".strip() + f" {row.version}"
        yield Rotated(said, "", heard.pairing or truth.pairing, heard.turns, (engine,))


def _further(reading: Reading, truth: Rotated) -> Iterator[Rotated]:
    for base in OTHER_BASES:
        yield _based(reading, truth, base)
    trained = reading.rotations[0].original_length or reading.length
    key = reading.rotations[0].block.sources.get("rope_type", "rope_type")
    for factor in OTHER_FACTORS:
        yield _changed(truth, f"linear scaling by {factor:g}", key, partial(_linear, factor))
        if trained:
            yield _changed(truth, f"YaRN by {factor:g} over {trained} tokens", key, partial(_yarn, factor, trained))


def _linear(factor: float, scaling: Scaling) -> Scaling:
    return Linear(scaling.theta, factor)


def _yarn(factor: float, trained: int, scaling: Scaling) -> Scaling:
    return Yarn(scaling.theta, factor, trained)
