"""Write a config for one engine, or refuse; undo that; and tell what loads a config right as it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.checkpoint.config import ALL_LAYERS, MARKER, Style, marker, text_config, with_marker
from ropetool.checkpoint.styles import with_rope_block
from ropetool.engines.engine import Engine
from ropetool.engines.names import EngineName
from ropetool.engines.rows import BY_NAME, ROWS
from ropetool.errors import ConfigError, UnsupportedError
from ropetool.families.protection import ENGINE, has_own_class, is_loadable, stock_is_right
from ropetool.families.reading import Reading, Warn, read_model
from ropetool.rope.frequencies import Default
from ropetool.rope.pairing import Pairing

OWN_LOADER = "ropetool.load"
# Keys by which engines read the layout and transformers does not: what true means.
LAYOUT_KEYS: Mapping[str, Pairing] = {
    "rope_traditional": Pairing.INTERLEAVED,
    "rope_is_neox_style": Pairing.HALF,
}


@dataclass(frozen=True)
class WrittenFor:
    """For which engine a config was written: where that is known from, the keys that it reads, and what loads it."""

    engine: str
    version: str
    origin: str
    source: str
    keys: Mapping[str, bool]
    load: str


def written_for(config: Mapping[str, Any], name: EngineName) -> tuple[dict[str, Any], WrittenFor]:
    """``config`` (marked with the layout of the weights) with the keys that the engine reads.

    Raises `UnsupportedError` where the engine would read the weights wrongly, or where that is not known.
    """
    engine, reading = BY_NAME[name], read_model(config)
    ways = engine.ways(reading)
    if reading.pairing not in ways:
        raise _refusal(engine, reading, known=bool(ways))
    way = ways[reading.pairing]
    if engine.flat_keys(reading):
        config = _with_flat_keys(config, engine, reading)
    text = text_config(config)
    before = {key: text.get(key) for key, value in way.keys.items() if text.get(key) is not value}
    config = _with_text_keys(config, {key: way.keys[key] for key in before})
    entry = {"engine": name.value, "keys_before": before}
    told = WrittenFor(name.value, engine.version, engine.origin.value, engine.source, way.keys, way.load)
    return with_marker(config, **{ENGINE: entry}), told


def _refusal(engine: Engine, reading: Reading, *, known: bool) -> UnsupportedError:
    name, stored, other = engine.name.value, reading.pairing.value, reading.pairing.other.value
    fields = {"engine": name, "model_type": reading.model_type, "pairing": stored}
    onward = "or leave out --for" + (
        f", and load the result with {OWN_LOADER}(path)" if is_loadable(reading.config) else ""
    )
    if not known:
        return UnsupportedError(
            f"how {name} rotates {reading.model_type} is not known (no class for it was read in {engine.source}), so "
            f"whether it would read {stored} weights right cannot be said; choose another engine, {onward}",
            **fields,
        )
    return UnsupportedError(
        f"{name} would read the {stored} weights of {reading.model_type} as {other}, silently wrong: {engine.why} "
        f"({engine.source}; {engine.origin.value}). Give it the weights as {other}, {onward}",
        **fields,
    )


def _with_text_keys(config: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """A copy with ``keys`` set in the part that describes the text decoder; None takes a key away."""
    text = {**text_config(config), **keys}
    text = {key: value for key, value in text.items() if key not in keys or value is not None}
    return text if text_config(config) is config else {**config, "text_config": text}


def _has_flat_keys(config: Mapping[str, Any], reading: Reading) -> bool:
    """Whether base, rotary share and scaling, those that there are, lie where a reader of the version-4 style looks."""
    needed = list(reading.family.theta_keys[:1])
    for rotation in reading.rotations:
        if not isinstance(rotation.scaling, Default):
            needed.append("rope_scaling")
        if reading.family.keys.share and rotation.block.values.get("partial_rotary_factor") is not None:
            needed.append(reading.family.keys.share)
    return all(text_config(config).get(key) is not None for key in needed)


def _with_flat_keys(config: Mapping[str, Any], engine: Engine, reading: Reading) -> dict[str, Any]:
    """A copy that has base and scaling at the top level too, where the engine looks for them, and for nothing else."""
    if _has_flat_keys(config, reading):
        return dict(config)
    rotation, family = reading.rotations[0], reading.family
    if rotation.layers != ALL_LAYERS or reading.config is not config or not family.theta_keys:
        raise UnsupportedError(
            f"{engine.name.value} reads the base of {reading.model_type} at the top level only ({engine.source}), and "
            f"config.json has it elsewhere; write {' or '.join(family.theta_keys)} there too, or leave out --for",
            engine=engine.name.value,
            model_type=reading.model_type,
        )
    block = {k: v for k, v in rotation.block.values.items() if k not in ("rope_theta", "partial_rotary_factor")}
    share = rotation.block.values.get("partial_rotary_factor") if family.keys.share else None
    names = {"theta_key": family.theta_keys[0], "share_key": family.keys.share or "partial_rotary_factor"}
    return with_rope_block(config, block, rotation.scaling.theta, Style.DUAL, share, **names)


def without_engine(config: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` as it was before `written_for`, but for a base written at the top level, which says nothing new."""
    entry = marker(config).get(ENGINE)
    if entry is None:
        return dict(config)
    before = entry.get("keys_before") if isinstance(entry, dict) else None
    if not isinstance(before, dict):
        raise ConfigError(f"the marker's {ENGINE} is {entry!r}; it was damaged", key=f"ropetool.{ENGINE}")
    bare = _with_text_keys(config, before)
    bare[MARKER] = {key: value for key, value in marker(config).items() if key != ENGINE}
    return bare


def loads_in(config: Mapping[str, Any], reading: Reading) -> tuple[str, ...]:
    """What is known to load ``config``, which means ``reading``, right as it is written, by name.

    `ropetool.load` always does, unless it would have to move rows of quantised weights; a class that lies in the
    checkpoint is known to nothing else.
    """
    own = (OWN_LOADER,) if stock_is_right(reading) or is_loadable(config) else ()
    if has_own_class(reading):
        return own
    entry = marker(config).get(ENGINE)
    named = entry["engine"] if isinstance(entry, dict) else None
    if named is None and not stock_is_right(reading):
        return own
    found = (row.name.value for row in ROWS if row.name.value == named or _reads_right(row, config, reading))
    return (*found, *own)


def _reads_right(engine: Engine, config: Mapping[str, Any], reading: Reading) -> bool:
    way = engine.ways(reading).get(reading.pairing) if engine.lists_types else None
    if (
        way is None
        or not (way.keys or way.by_default)
        or (engine.flat_keys(reading) and not _has_flat_keys(config, reading))
    ):
        return False
    said = {key: text_config(config).get(key) for key in way.keys}
    return all(value is way.keys[key] or (value is None and way.by_default) for key, value in said.items())


def disagreeing_keys(config: Mapping[str, Any], target: Pairing) -> Iterator[Warn]:
    """A warning for each key of an engine that says another layout than the weights will have."""
    for key, meaning in LAYOUT_KEYS.items():
        value = text_config(config).get(key)
        if isinstance(value, bool) and (meaning if value else meaning.other) is not target:
            said = (
                f"{key} is {str(value).lower()}, by which some engines read {target.other.value} weights; convert with "
                f"--for ENGINE to have it written right, or remove it"
            )
            yield Warn("engine-key-disagrees", said)
