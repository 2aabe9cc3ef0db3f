"""What each engine makes of a planned extension: whether it turns so, and which keys of the block it does not read.

Nothing here is known of an engine: its row hears the config, and hears it again with one key changed. If it turns no
other way then, it does not read the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropetool.checkpoint.config import BLOCKS, SHARED_KEYS
from ropetool.engines.compare import faults
from ropetool.engines.heard import Case, Heard, Listener
from ropetool.engines.listeners import LISTENERS
from ropetool.engines.names import EngineName
from ropetool.families.decoder import with_text
from ropetool.families.recipes import SCALING_KEYS

# How far a number is moved: beyond any rounding, and not so far that methods refuse it.
MOVED = 1.25


@dataclass(frozen=True)
class Honour:
    """What one row makes of a config.

    ``right``: it turns as the config means, whatever length it derives; False also where it will not load it, None
    where that is not known. ``ignores`` are the keys asked about that are there, and that it does not read; ``said`` is
    what it turns otherwise, why it refuses, why nothing is known, or what its user must know.
    """

    engine: str
    part: str
    version: str
    origin: str
    right: bool | None
    ignores: tuple[str, ...]
    said: str


def honours(case: Case, keys: Sequence[str]) -> tuple[Honour, ...]:
    """A line for every row that is known, in a fixed order; ``keys`` are those of the rope block to ask about."""
    return tuple(honour(row, case, keys) for row in LISTENERS)


def honour(row: Listener, case: Case, keys: Sequence[str]) -> Honour:
    """What one row makes of a config."""
    heard = row.hears(case)
    right, said = _judged(case, heard)
    flags = row.flags(case) if heard.turns and right is False else ""
    said = f"{said}; with {flags} it would turn so" if flags else said
    ignores = tuple(key for key in dict.fromkeys(keys) if _passes_over(row, case, heard, key))
    return Honour(row.engine.value, row.part, row.version, row.origin.value, right, ignores, said)


def takes(engine: EngineName, case: Case) -> str:
    """Why an engine would not turn as the config means, in a sentence; empty where all that is known of it would.

    Of the parts and versions of an engine those count that know the model type; without one the reason is theirs.
    """
    rows = [row for row in LISTENERS if row.engine is engine]
    knowing = [row for row in rows if _knows(row, case)]
    for row in knowing or rows:
        right, said = _judged(case, row.hears(case))
        if not right:
            return f"{said} ({', '.join(filter(None, (row.part, row.version)))})"
    return ""


def _judged(case: Case, heard: Heard) -> tuple[bool | None, str]:
    """Whether a row turns as the config means, None where that is not known; and what is to be said of it."""
    if heard.refusal:
        return False, f"will not load it: {heard.refusal}"
    if heard.unknown or heard.pairing is None:
        return None, heard.unknown or f"no class for {case.reading.model_type} was read in its source"
    wrong = "; ".join(fault.said for fault in faults(case, heard) if fault.about != "length")
    return (False, wrong) if wrong else (True, heard.advice)


def _knows(row: Listener, case: Case) -> bool:
    """Whether a row knows the model type: it hears this config, or the same without any scaling."""
    return any(
        heard.turns and heard.pairing is not None and not (heard.refusal or heard.unknown)
        for heard in (row.hears(each) for each in (case, Case(_plain(case), case.reading)))
    )


def _plain(case: Case) -> dict[str, Any]:
    """The config without any scaling, its bases where either style has them."""
    family, rotations, text = case.reading.family, case.reading.rotations, case.text
    first: Mapping[str, Any] = next((text[key] for key in BLOCKS if isinstance(text.get(key), Mapping)), {})
    if family.kinds:
        pairs = list(zip(family.kinds, rotations, strict=True))
        block = {kind.layer_type: _unscaled(rotation.block.values, rotation.scaling.theta) for kind, rotation in pairs}
        bases = {kind.theta_key: rotation.scaling.theta for kind, rotation in pairs if kind.theta_key}
    else:
        theta = rotations[0].scaling.theta
        block = _unscaled(first, theta)
        bases = {(*family.theta_keys, "rope_theta")[0]: theta}
    left = {key: value for key, value in text.items() if key not in BLOCKS}
    return with_text(case.config, case.reading.decoder.path, {**left, **bases, BLOCKS[0]: block})


def _unscaled(block: Mapping[str, Any], theta: float) -> dict[str, Any]:
    """A block of no scaling that keeps whatever is of no method: mRoPE sections, a rotary share."""
    own = {key: value for key, value in block.items() if key not in (*SCALING_KEYS, "type")}
    return {**own, "rope_type": "default", "rope_theta": theta}


def _passes_over(row: Listener, case: Case, heard: Heard, key: str) -> bool:
    """Whether a key is there, and the row turns the same way whatever it holds."""
    if heard.refusal or not heard.turns:
        return False
    moved = _moved(case.text, key, case.reading.family.section)
    if moved == case.text:
        return False
    again = row.hears(Case(with_text(case.config, case.reading.decoder.path, moved), case.reading))
    refuses = again.refusal or (again.unknown and not heard.unknown)
    return not refuses and again.turns == heard.turns


def _moved(text: Mapping[str, Any], key: str, section: str = "") -> dict[str, Any]:
    """The text config with the values under a rope key changed wherever they stand."""
    moved = dict(text)
    for where in BLOCKS:
        if isinstance(text.get(where), Mapping):
            moved[where] = _moved_block(text[where], key)
    if key in SHARED_KEYS and key in text:
        moved[key] = next(_changed(text[key]), text[key])
    if section and isinstance(text.get(section), Mapping):
        moved[section] = _moved(text[section], key)
    return moved


def _moved_block(block: Mapping[str, Any], key: str) -> dict[str, Any]:
    moved = {name: _moved_block(inner, key) if isinstance(inner, Mapping) else inner for name, inner in block.items()}
    if key in block:
        moved[key] = next(_changed(block[key]), block[key])
    return moved


def _changed(value: Any) -> Iterator[Any]:
    """Another value of the same kind; nothing for one that is no number, no switch and no list of numbers."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + max(1, round(value * (MOVED - 1)))
    elif isinstance(value, float):
        yield value * MOVED or MOVED
    elif isinstance(value, (list, tuple)) and value:
        each = [next(_changed(inner), None) for inner in value]
        if None not in each:
            yield each
