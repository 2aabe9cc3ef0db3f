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
from ropetool.families.reading import Reading, Rotation, read_model

# A block whose JSON is longer is not spelled out: longrope's factor lists.
LONGEST_SPELLED = 240

Edit = Mapping[str, Any]


def find_edit(case: Case, listener: Listener, served: int | None = None) -> tuple[Edit, Case] | None:
    """The changes of the text decoder's keys, None taking one away, and the case after them; None where none helps."""
    before = listener.hears(case)
    short = _loads(before) and any(fault.about == "length" for fault in faults(case, before, served))
    for edit in _edits(case, listener):
        changes = {key: value for key, value in edit.items() if _differs(case.text, key, value)}
        repaired = _with(case, changes) if changes else None
        if repaired is None:
            continue
        heard = listener.hears(repaired)
        left = faults(repaired, heard, served) if _loads(heard) else None
        if left is not None and not [fault for fault in left if fault.about != "length" or not short]:
            return changes, repaired
    return None


def _loads(heard: Heard) -> bool:
    return bool(heard.turns) and not (heard.refusal or heard.unknown)


def _differs(text: Mapping[str, Any], key: str, value: Any) -> bool:
    return key in text if value is None else text.get(key) != value


def _with(case: Case, changes: Edit) -> Case | None:
    """The case after an edit; None where the config would no longer mean the same."""
    path = case.reading.decoder.path
    gone = tuple(key for key, value in changes.items() if value is None)
    config = _without(with_text_keys(case.config, path, **changes), path, gone)
    try:
        reading = read_model(config)
    except RopetoolError:
        return None
    return Case(config, reading) if _means(reading) == _means(case.reading) else None


def _means(reading: Reading) -> tuple[Any, ...]:
    turns = tuple((rotation.scaling, rotation.geometry.rotary_dim) for rotation in reading.rotations)
    return turns, reading.pairing, reading.length


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
    if reading.family.kinds:
        yield from _edits_of_kinds(reading)
        return
    base = {(*reading.family.theta_keys, "rope_theta")[0]: rotation.scaling.theta}
    share = rotation.block.values.get(SHARE)
    shares = {} if share is None else {(reading.family.keys.share or SHARE): share}
    yield base
    yield base | shares
    written = _written(rotation)
    for numbers in (written, {**written, **values_of(rotation.scaling)}):
        flat = {"rope_type": rotation.scaling.name, **numbers}
        flat.pop("rope_theta", None)
        whole = {**flat, "rope_theta": rotation.scaling.theta, **({} if share is None else {SHARE: share})}
        v5, v4 = {BLOCKS[0]: whole}, {BLOCKS[1]: flat, **base, **shares}
        original = {ORIGINAL: flat[ORIGINAL]} if ORIGINAL in flat else {}
        yield from (v5, v4, v5 | {BLOCKS[1]: None}, v5 | v4, v5 | v4 | original)
        oldest = {"type": rotation.scaling.name, **{key: flat[key] for key in flat if key not in (*NAMES, ORIGINAL)}}
        yield {BLOCKS[0]: None, BLOCKS[1]: oldest, **base, **shares, **original}


def _edits_of_kinds(reading: Reading) -> Iterator[Edit]:
    """The version-4 style of classes with a block per layer type: each base at the top, the first kind's block flat."""
    pairs = list(zip(reading.family.kinds, reading.rotations, strict=True))
    bases = {kind.theta_key: rotation.scaling.theta for kind, rotation in pairs if kind.theta_key}
    yield bases
    first = reading.rotations[0]
    yield {**bases, BLOCKS[1]: {"rope_type": first.scaling.name, **_written(first)}}


def _written(rotation: Rotation) -> Edit:
    """What the block says beside its name, base and rotary share."""
    return {key: value for key, value in rotation.block.values.items() if key not in (*NAMES, "rope_theta", SHARE)}


def takes_a_new_base(case: Case, listener: Listener) -> bool:
    """Whether the engine would hear a model whose block was replaced by another base, as NTK-aware scaling does."""
    reading = case.reading
    theta, key = 2 * reading.rotations[0].scaling.theta, (*reading.family.theta_keys, "rope_theta")[0]
    if reading.family.kinds:
        return False
    plain = {BLOCKS[0]: {"rope_type": "default", "rope_theta": theta}, BLOCKS[1]: None, key: theta}
    config = with_text_keys(case.config, reading.decoder.path, **plain)
    try:
        changed = Case(config, read_model(config))
    except RopetoolError:
        return False
    heard = listener.hears(changed)
    return _loads(heard) and not faults(changed, heard)


def sentence(case: Case, changes: Edit, override: str = "") -> str:
    """An edit in words, with the values to copy; ``override`` is how the engine takes a block by a flag, if it does."""
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
