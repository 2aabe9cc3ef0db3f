"""Find the smallest edit of config.json that makes an engine hear what the checkpoint means, by trying each on its row.

An edit leaves the weights, and what ropetool reads in the config, as they are: so it is right for every reader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines.compare import faults
from ropetool.engines.dialect import NAMES, ORIGINAL
from ropetool.engines.heard import Case, Heard, Listener
from ropetool.engines.listen import values_of
from ropetool.engines.rows import BY_NAME
from ropetool.errors import RopetoolError
from ropetool.families.decoder import with_text_keys
from ropetool.families.geometry import SHARE
from ropetool.families.reading import read_model

# A block whose JSON is longer is not spelled out: longrope's factor lists.
LONGEST_SPELLED = 240

Edit = Mapping[str, Any]


def repair(case: Case, listener: Listener, served: int | None) -> str | None:
    """The edit in words, with the values to copy; None where no edit of the config helps."""
    before = listener.hears(case)
    short = _loads(before) and any(fault.about == "length" for fault in faults(case, before, served))
    for edit in _edits(case, listener):
        changes = {key: value for key, value in edit.items() if case.text.get(key) != value}
        repaired = _with(case, changes) if changes else None
        if repaired is None:
            continue
        heard = listener.hears(repaired)
        left = faults(repaired, heard, served) if _loads(heard) else None
        if left is not None and not [fault for fault in left if fault.about != "length" or not short]:
            return _sentence(case, changes, listener.override)
    return None


def _loads(heard: Heard) -> bool:
    return not (heard.refusal or heard.unknown)


def _with(case: Case, changes: Edit) -> Case | None:
    """The case after an edit; None where the config would no longer mean the same."""
    text = {key: None for key, value in changes.items() if value is None}
    config = with_text_keys(case.config, case.reading.decoder.path, **changes)
    config = _without(config, case.reading.decoder.path, tuple(text))
    try:
        reading = read_model(config)
    except RopetoolError:
        return None
    same = [r.scaling for r in reading.rotations] == [r.scaling for r in case.reading.rotations]
    return Case(config, reading) if same and reading.pairing is case.reading.pairing else None


def _without(config: Mapping[str, Any], path: tuple[str, ...], keys: tuple[str, ...]) -> dict[str, Any]:
    if path:
        return {**config, path[0]: _without(config[path[0]], path[1:], keys)}
    return {key: value for key, value in config.items() if key not in keys}


def _edits(case: Case, listener: Listener) -> Iterator[Edit]:
    """Changes of the text decoder's keys, the smaller first; None takes a key away."""
    way = BY_NAME[listener.engine].ways(case.reading).get(case.reading.pairing)
    layout = dict(way.keys) if way else {}
    for edit in ({}, *_rope_edits(case)):
        yield edit
        yield {**edit, **layout}


def _rope_edits(case: Case) -> Iterator[Edit]:
    reading, rotation = case.reading, case.reading.rotations[0]
    yield {"head_dim": rotation.geometry.head_dim}
    yield {ORIGINAL: None}
    if len(reading.rotations) > 1:
        return
    base = {(*reading.family.theta_keys, "rope_theta")[0]: rotation.scaling.theta}
    yield base
    share = rotation.block.values.get(SHARE)
    shares = {} if share is None else {(reading.family.keys.share or SHARE): share}
    yield base | shares
    written = {key: value for key, value in rotation.block.values.items() if key not in (*NAMES, "rope_theta", SHARE)}
    for numbers in (written, {**written, **values_of(rotation.scaling)}):
        flat = {"rope_type": rotation.scaling.name, **numbers}
        flat.pop("rope_theta", None)
        whole = {**flat, "rope_theta": rotation.scaling.theta, **({} if share is None else {SHARE: share})}
        v5, v4 = {BLOCKS[0]: whole}, {BLOCKS[1]: flat, **base, **shares}
        original = {ORIGINAL: flat[ORIGINAL]} if ORIGINAL in flat else {}
        yield from (v5, v4, v5 | {BLOCKS[1]: None}, v5 | v4, v5 | v4 | original)


def _sentence(case: Case, changes: Edit, override: str) -> str:
    flag = _flag(case, changes, override)
    where = ".".join(case.reading.decoder.path)
    inside = f"in {where} of config.json" if where else "at the top level of config.json"
    told = [f"set {_spelled(key, value)}" for key, value in changes.items() if value is not None]
    told += [f'remove "{key}"' for key, value in changes.items() if value is None]
    return f"{flag}{inside}, {' and '.join(told)}"


def _flag(case: Case, changes: Edit, override: str) -> str:
    """The same edit as a flag of an engine that takes one, where it is a block in place of another."""
    block = changes.get(BLOCKS[0])
    if not override or block is None:
        return ""
    keys: dict[str, Any] = {BLOCKS[0]: block}
    for key in reversed(case.reading.decoder.path):
        keys = {key: keys}
    text = json.dumps(keys)
    return f"{override.format(text)}; or " if len(text) <= LONGEST_SPELLED else ""


def _spelled(key: str, value: Any) -> str:
    text = json.dumps(value)
    if len(text) <= LONGEST_SPELLED:
        return f'"{key}": {text}'
    short = {name: entry if not isinstance(entry, list) else "..." for name, entry in value.items()}
    return f'"{key}": {json.dumps(short)} (its lists as they are in the other block)'
