"""Compare what an engine hears with what a checkpoint means: by the numbers, and in words that name them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.engines.heard import Case, Heard, Turn
from ropetool.families.reading import Reading, Rotation
from ropetool.rope.frequencies import MSCALES, Dynamic, Floats, LongRope, Scaling

# Frequencies that differ by less are the same: float32 tables differ by 1e-7, a wrong key by far more.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Fault:
    """One fact that an engine hears otherwise than the checkpoint means it: what kind of fact, and a clause."""

    about: str
    said: str


def faults(case: Case, heard: Heard, served: int | None = None) -> tuple[Fault, ...]:
    """Everything in which the engine differs; ``served`` is the length in tokens to be served, None: any."""
    reading = case.reading
    found = []
    for rotation, turn in zip(reading.rotations, heard.turns, strict=True):
        prefix = "" if len(reading.rotations) == 1 or rotation.layers == ALL_LAYERS else f"{rotation.layers} layers: "
        found += [Fault(fault.about, prefix + fault.said) for fault in _of_turn(reading, rotation, turn, served)]
    if heard.pairing is not None and heard.pairing is not reading.pairing:
        said = f"rotates as {heard.pairing.value}, the weights are {reading.pairing.value}"
        found.append(Fault("pairing", said))
    return (*found, *_of_length(case, heard, served))


def _of_turn(reading: Reading, rotation: Rotation, turn: Turn, served: int | None) -> Iterator[Fault]:
    true, heard, width = rotation.scaling, turn.scaling, rotation.geometry.rotary_dim
    lengths = _lengths(reading, true, heard, served)
    if turn.rotary_dim != width:
        yield Fault("width", f"turns {turn.rotary_dim} rows of a head instead of {width}")
    elif not all(_close(heard.inv_freq(width, length), true.inv_freq(width, length)) for length in lengths):
        yield Fault("rotation", _difference(heard, true))
    for one, other in ((heard.attention_factor_at(at), true.attention_factor_at(at)) for at in lengths):
        if not _close(one, other):
            yield Fault("attention", f"attention factor {number(one)} instead of {number(other)}")
            return


def _lengths(reading: Reading, true: Scaling, heard: Scaling, served: int | None) -> tuple[int | None, ...]:
    """The lengths in tokens to compare at: those that either changes its frequencies at, and the longest."""
    if served is not None:
        return (served,)
    moving = [scaling for scaling in (true, heard) if isinstance(scaling, (Dynamic, LongRope))]
    changes = {scaling.original_length + more for scaling in moving for more in (0, 1)}
    reached = {int(scaling.factor * scaling.original_length) for scaling in moving if isinstance(scaling, Dynamic)}
    return (*sorted(changes | reached), reading.length)


def _close(one: Floats | float, other: Floats | float) -> bool:
    return bool(np.allclose(one, other, rtol=TOLERANCE, atol=0.0))


def number(value: Any) -> str:
    """A number as it is said: 100000, 1.1386294."""
    return f"{value:.8g}" if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


# What a field of a method is called in a sentence, where it is not called by its name.
CALLED = {"original_length": "trained length", **dict.fromkeys(("explicit_attention_factor", *MSCALES), "")}


def _difference(heard: Scaling, true: Scaling) -> str:
    """The fields in which two methods differ, the ones that are heard first."""
    named = [] if heard.name == true.name else [f"{described(heard)} instead of {described(true)}"]
    common = [field.name for field in fields(true) if hasattr(heard, field.name)]
    if heard.name != true.name:
        common = ["theta"]
    for name in common:
        one, other, called = getattr(heard, name), getattr(true, name), CALLED.get(name, name.replace("_", " "))
        if one == other or not called:
            continue
        if isinstance(one, tuple) and isinstance(other, tuple):
            long = name == "short_factor" and one == getattr(true, "long_factor", None)
            named.append("the long factors for short prompts too" if long else f"another list of {called}s")
        else:
            named.append(f"{called} {number(one)} instead of {number(other)}")
    return ", ".join(named) or "other frequencies"


def described(scaling: Scaling) -> str:
    """A method with its factor: ``yarn (factor 4 over 4096)``."""
    factor, original = getattr(scaling, "factor", None), getattr(scaling, "original_length", None)
    if factor is None:
        return "no scaling" if type(scaling).name == "default" else scaling.name
    return f"{scaling.name} (factor {number(factor)}{f' over {original}' if original else ''})"


def _of_length(case: Case, heard: Heard, served: int | None) -> Iterator[Fault]:
    meant = case.reading.reach
    if heard.length is None or not heard.stops:
        return
    if served is not None:
        if heard.length < served:
            yield Fault("length", f"stops at {heard.length} tokens, short of {served}")
        return
    factor = getattr(case.reading.rotations[0].scaling, "factor", None)
    if meant is not None and heard.length != meant:
        twice = factor is not None and heard.length == int(meant * factor)
        yield Fault("length", f"length {'counted twice: ' if twice else ''}{heard.length} instead of {meant}")
