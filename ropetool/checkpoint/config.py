"""The rope block of a config.json: read in every style, written in every style.

Two styles are in use. transformers 4 and most engines read ``rope_scaling`` beside a top-level ``rope_theta``;
transformers 5 reads (and saves only) ``rope_parameters`` with ``rope_theta`` inside, nested per layer type where the
layers differ. Both may be in one file; where they disagree, engines silently differ, so that is an error here.
``null`` means absent everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ropetool.errors import ConfigConflictError, ConfigError

ALL_LAYERS = "all"
MARKER = "ropetool"
LARGEST_NUMBER = 1e18
MOST_LAYERS = 10_000
LAYER_LISTS = ("layer_types", "layers_block_type")
LAYER_KEYS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
BLOCKS = ("rope_parameters", "rope_scaling")
# Keys that one style keeps inside the block and the other at the top level.
SHARED_KEYS = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")


class Style(str, Enum):
    """Which keys a config is written with."""

    V4 = "v4"
    V5 = "v5"
    DUAL = "dual"


@dataclass(frozen=True)
class RopeBlock:
    """What the config says about the rotation of one kind of layer; ``sources`` tells where each value was read."""

    layers: str
    values: Mapping[str, Any]
    sources: Mapping[str, str]

    @property
    def rope_type(self) -> str:
        """The scaling method's name; ``default`` when the config names none."""
        return str(self.values.get("rope_type", "default"))


def number(config: Mapping[str, Any], key: str) -> float | None:
    """A finite positive number under ``key``, None when absent or null; raises `ConfigError` for anything else."""
    value = config.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ConfigError(f"{key} is {value!r}, a {type(value).__name__}; it must be a number", key=key, value=value)
    if not 0 < value <= LARGEST_NUMBER:
        raise ConfigError(f"{key} is {str(value)[:40]}; it must be positive and of a sane size", key=key)
    return value


def count(config: Mapping[str, Any], key: str) -> int | None:
    """A positive whole number under ``key``, None when absent or null; raises `ConfigError` for anything else."""
    value = number(config, key)
    if value is None:
        return None
    if not isinstance(value, int) or value > 1 << 40:
        raise ConfigError(f"{key} is {value!r}; it must be a whole number of a sane size", key=key, value=value)
    return value


def check_layers(config: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a number of layers that no model has, as lists of that length are made, or no names."""
    for key in LAYER_KEYS:
        layers = count(config, key)
        if layers is not None and layers > MOST_LAYERS:
            raise ConfigError(f"{key} is {layers}; no model has more than {MOST_LAYERS}", key=key)
    for key in LAYER_LISTS:
        types = config.get(key)
        if types is not None and not (isinstance(types, list) and all(isinstance(kind, str) for kind in types)):
            raise ConfigError(f"{key} is {types!r}; it must be a list of names, one for each layer", key=key)


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a composite config that describes the text decoder: ``text_config``, else the config itself."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def _object(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{key} is {value!r}; it must be an object or null", key=key, value=value)
    return value


class _Gathered:
    """Values by canonical key, each with its source; a second, different value is a conflict."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}

    def add(self, key: str, value: Any, source: str) -> None:
        if value is None:
            return
        if key in self.values and self.values[key] != value:
            first = self.sources[key]
            raise ConfigConflictError(
                f"{first} is {self.values[key]!r} but {source} is {value!r}; engines differ in which they read. "
                f"Make them agree, or remove one",
                keys=[first, source],
                values=[self.values[key], value],
            )
        if key not in self.values:
            self.values[key], self.sources[key] = value, source

    def add_block(self, block: Mapping[str, Any], where: str) -> None:
        for key, value in block.items():
            self.add("rope_type" if key == "type" else key, value, f"{where}.{key}")


def _is_nested(block: Mapping[str, Any], where: str) -> bool:
    """Whether a block holds one block per layer type; raises `ConfigError` where it holds scaling keys as well."""
    layers = [key for key, value in block.items() if isinstance(value, dict) and key not in ("rope_type", "type")]
    own = [key for key, value in block.items() if value is not None and key not in (*layers, *SHARED_KEYS)]
    if layers and own:
        raise ConfigError(
            f"{where} has blocks per layer type ({', '.join(layers)}) and {own[0]} of its own beside them; "
            f"which of the two a reader takes is not known",
            key=f"{where}.{own[0]}",
        )
    return bool(layers)


def _check_same_keys(blocks: Mapping[str, Mapping[str, Any]]) -> None:
    """With both styles present, every scaling key must be in both: an engine reads only one of them."""
    found = {
        where: {"rope_type" if k == "type" else k for k, v in block.items() if v is not None} - set(SHARED_KEYS)
        for where, block in blocks.items()
        if block
    }
    if len(found) < 2:
        return
    (first, keys), (second, others) = found.items()
    for key in sorted(keys ^ others):
        here, missing = (first, second) if key in keys else (second, first)
        value = blocks[here].get(key, blocks[here].get("type"))
        if (key, value) == ("rope_type", "default"):
            continue
        raise ConfigConflictError(
            f"{here}.{key} is {value!r} but {missing} has no {key}; engines differ in which of the two they read. "
            f"Write it in both, or remove one block",
            keys=[f"{here}.{key}", f"{missing}.{key}"],
            values=[value, None],
        )


def rope_blocks(config: Mapping[str, Any], theta_keys: Iterable[str] = ("rope_theta",)) -> tuple[RopeBlock, ...]:
    """The rope block of every kind of layer that the (text) config describes.

    One block for ``all`` layers where the config is flat, else one per layer type; a layer type whose block is null
    has no rotation and gets no block. ``theta_keys`` are the top-level names of the base. Raises
    `ConfigConflictError` naming both keys when two places disagree, `ConfigError` for a value of the wrong kind.
    """
    blocks = {where: _object(config, where) for where in BLOCKS}
    nested = {where: block for where, block in blocks.items() if _is_nested(block, where)}
    if not nested:
        return (_flat_block(config, blocks, ALL_LAYERS, theta_keys),)
    layer_types = dict.fromkeys(
        key for block in nested.values() for key, value in block.items() if isinstance(value, dict)
    )
    return tuple(
        _flat_block(config, {f"{w}.{layers}": _object(b, layers) for w, b in nested.items()}, layers, ())
        for layers in layer_types
    )


def block_of_layers(
    config: Mapping[str, Any], layers: str, *, flat: bool = False, theta_keys: Iterable[str] = ()
) -> RopeBlock:
    """The block of one layer type: what is nested under its name, and with ``flat`` a ``rope_scaling`` that is not.

    ``theta_keys`` are the top-level names of its base. Raises as `rope_blocks` does.
    """
    blocks: dict[str, Mapping[str, Any]] = {}
    for where in BLOCKS:
        block = _object(config, where)
        if _is_nested(block, where):
            blocks[f"{where}.{layers}"] = _object(block, layers)
        elif flat:
            blocks[where] = block
    return _flat_block(config, blocks, layers, theta_keys)


def is_nested(config: Mapping[str, Any], where: str) -> bool:
    """Whether the block under ``where`` holds one block per layer type; raises `ConfigError` where it is a mixture."""
    return _is_nested(_object(config, where), where)


def _flat_block(
    config: Mapping[str, Any], blocks: Mapping[str, Mapping[str, Any]], layers: str, theta_keys: Iterable[str]
) -> RopeBlock:
    gathered = _Gathered()
    for where, block in blocks.items():
        gathered.add_block(block, where)
    _check_same_keys(blocks)
    for key in theta_keys:
        gathered.add("rope_theta", config.get(key), key)
    for key in SHARED_KEYS[1:]:
        if layers == ALL_LAYERS:
            gathered.add(key, config.get(key), key)
    values, sources = gathered.values, gathered.sources
    rope_type = values.get("rope_type")
    if rope_type is not None and not isinstance(rope_type, str):
        key = sources["rope_type"]
        raise ConfigError(f"{key} is {rope_type!r}; it must be the name of a rope type", key=key, value=rope_type)
    for key in ("rope_theta", "partial_rotary_factor", "factor", "attention_factor"):
        number({sources.get(key, key): values.get(key)}, sources.get(key, key))
    for key in ("original_max_position_embeddings",):
        count({sources.get(key, key): values.get(key)}, sources.get(key, key))
    return RopeBlock(layers, values, sources)


def marker(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What ropetool wrote into the config when it made this checkpoint; empty if it did not."""
    return _object(config, MARKER)


def earlier_extension(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the marker says of an extension that ropetool made; empty if none. A damaged one is a `ConfigError`."""
    extension = _object(marker(config), "extension")
    for key in ("factor", "original_theta"):
        number(extension, key)
    for key in ("original_length", "length"):
        count(extension, key)
    for key, kind in (("method", str), ("settings", dict), ("undo", dict), ("added", list), ("files", dict)):
        if not isinstance(extension.get(key), (kind, type(None))):
            raise ConfigError(f"the marker's extension.{key} is {extension[key]!r}; it was damaged", key=MARKER)
    for file, keys in (extension.get("files") or {}).items():
        if not isinstance(keys, dict):
            raise ConfigError(f"the marker's extension.files.{file} is {keys!r}; it was damaged", key=MARKER)
    for key in extension.get("added") or ():
        if not isinstance(key, str):
            raise ConfigError(f"the marker's extension.added holds {key!r}; it was damaged", key=MARKER)
    return extension


def with_marker(config: Mapping[str, Any], **entries: Any) -> dict[str, Any]:
    """A copy of ``config`` whose marker also holds ``entries``; the marker comes last."""
    marked = {key: value for key, value in config.items() if key != MARKER}
    marked[MARKER] = {**marker(config), **entries}
    return marked
