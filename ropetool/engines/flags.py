"""What to pass to each engine so that it serves an extended checkpoint, or the original by overrides alone.

Nothing here is known of an engine: every row of doctor is asked what it hears in the new config, and a flag is given
only where, by the same row, it makes the engine turn as the checkpoint means, at the length that it was extended to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines.compare import faults
from ropetool.engines.heard import Case, Heard, Listener
from ropetool.engines.listeners import LISTENERS
from ropetool.engines.repair import find_edit, sentence
from ropetool.families.decoder import with_text_keys
from ropetool.rope.frequencies import LongRope


@dataclass(frozen=True)
class EngineFlags:
    """One engine's line: what to pass, and what to know, by the version that this is known of and how it is known.

    ``without_rewriting`` are flags that make it serve the original checkpoint extended, empty where it has none.
    """

    engine: str
    version: str
    part: str
    origin: str
    flags: str
    note: str
    without_rewriting: str = ""


def engine_flags(case: Case, original: Mapping[str, Any], length: int) -> tuple[EngineFlags, ...]:
    """A line for every engine that is known, in a fixed order.

    ``case`` is the extended config, ``original`` that of before, ``length`` the tokens to serve.
    """
    return tuple(_line(row, case, original, length) for row in LISTENERS)


def _line(row: Listener, case: Case, original: Mapping[str, Any], length: int) -> EngineFlags:
    heard = row.hears(case)
    flags, notes = _told(row, case, heard, length)
    said = "; ".join(filter(None, (*notes, heard.advice or row.note)))
    without = _overrides(row, case, original, length)
    return EngineFlags(row.engine.value, row.version, row.part, row.origin.value, flags, said, without)


def _told(row: Listener, case: Case, heard: Heard, length: int) -> tuple[str, list[str]]:
    """The flags for a row, and what is to be said of them."""
    if heard.refusal:
        return "", [f"will not load it: {heard.refusal}", *_repaired(row, case)]
    if heard.unknown or heard.pairing is None:
        return "", [heard.unknown or f"no class for {case.reading.model_type} was read in its source"]
    wrong = "; ".join(fault.said for fault in faults(case, heard) if fault.about != "length")
    own = row.flags(case)
    if wrong and own:
        return own, [f"without the flags: {wrong}"]
    if wrong:
        return "", [f"turns otherwise: {wrong}", *_repaired(row, case)]
    if own:
        return own, ["these serve a file made before the extension too"]
    if not row.length_flag:
        return "", ["reads config.json as written"]
    return row.length_flag.format(length), list(_of_length(heard, length))


def _repaired(row: Listener, case: Case) -> Iterator[str]:
    """The edit of config.json after which the engine turns as the checkpoint means, where there is one."""
    edit = find_edit(case, row)
    if edit is not None:
        yield sentence(case, edit[0], row.override)


def _of_length(heard: Heard, length: int) -> Iterator[str]:
    if heard.length in (None, length):
        yield "reads config.json as written"
    elif any(isinstance(turn.scaling, LongRope) for turn in heard.turns):
        yield f"serves {heard.length} tokens where nothing is said"
    else:
        yield f"derives {heard.length} tokens from config.json; the flag holds it to {length}"


def _overrides(row: Listener, case: Case, original: Mapping[str, Any], length: int) -> str:
    """Flags that lay the new keys over the original config; empty where the engine would not turn by them."""
    keys = _new_keys(case) if row.override else None
    if keys is None:
        return ""
    gone = {key: None for key in (BLOCKS[1], *case.reading.family.theta_keys, "rope_theta") if key not in keys}
    path = case.reading.decoder.path
    overlaid = Case(with_text_keys(original, path, **gone, **keys), case.reading)
    heard = row.hears(overlaid)
    if heard.refusal or heard.unknown or heard.pairing is None:
        return ""
    if any(fault.about != "length" for fault in faults(overlaid, heard)):
        return ""
    for key in reversed(path):
        keys = {key: keys}
    flags = row.override.format(json.dumps(keys))
    return f"{flags} {row.length_flag.format(length)}" if row.length_flag else flags


def _new_keys(case: Case) -> dict[str, Any] | None:
    """The keys of the extended text config that say how it turns and how far, in the style of transformers 5."""
    text, family = case.text, case.reading.family
    block = text.get(BLOCKS[0])
    if not isinstance(block, Mapping) or not block:
        if len(case.reading.rotations) > 1:
            return None
        values, theta = text.get(BLOCKS[1]) or {"rope_type": "default"}, case.reading.rotations[0].scaling.theta
        block = {**values, "rope_theta": theta}
    length = {family.keys.length: text[family.keys.length]} if family.keys.length in text else {}
    return {BLOCKS[0]: dict(block), **length}
