"""What differs between the layers of a model: the rope block of each kind, and heads of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropetool.checkpoint.config import ALL_LAYERS, BLOCKS, RopeBlock, block_of_layers, count, is_nested, rope_blocks
from ropetool.errors import ConfigError
from ropetool.families.family import Family, Kind
from ropetool.families.geometry import CLASS_DEFAULT, Geometry, read_geometry

# Where transformers writes the values of single layers: a list of one value per layer, or an object by layer number.
PER_LAYER_LISTS = {"num_attention_heads_per_layer": "num_attention_heads"}
PER_LAYER = "per_layer_config"


def blocks_of(config: Mapping[str, Any], family: Family) -> tuple[RopeBlock, ...]:
    """One block per rotation that the class has: one for all layers, or one per kind in the order of the row.

    Raises `ConfigError` for a block in a form that the class would not read.
    """
    if family.kinds:
        _check_forms(config, family)
        found = tuple(_block_of(kind, config) for kind in family.kinds)
        _check_read(config, family, found[0])
        return found
    blocks = rope_blocks(config, family.theta_keys)
    _check_read(config, family, blocks[0])
    if blocks[0].layers != ALL_LAYERS:
        raise ConfigError(
            f"{BLOCKS[0]} has a block for each kind of layer, but the class of {family.model_type} reads one flat "
            f"block; write that",
            key=BLOCKS[0],
        )
    return blocks


def _check_forms(config: Mapping[str, Any], family: Family) -> None:
    """Refuse a flat block that a class with a block for each kind of layer would pass over, or put in their place."""
    kinds = " and ".join(kind.layer_type for kind in family.kinds)
    for where in BLOCKS:
        read = where != BLOCKS[0] and any(kind.scaled_by_flat for kind in family.kinds)
        if config.get(where) and not read and not is_nested(config, where):
            raise ConfigError(
                f"{where} is flat, but the class of {family.model_type} reads a block for each kind of layer "
                f"({kinds}) and would ignore it without a word; nest it",
                key=where,
            )


def _block_of(kind: Kind, config: Mapping[str, Any]) -> RopeBlock:
    """The block of one kind: what config.json has for it in any style, over the class's own."""
    theta_keys = (kind.theta_key,) if kind.theta_key else ()
    block = block_of_layers(config, kind.layer_type, flat=kind.scaled_by_flat, theta_keys=theta_keys)
    nested = any(isinstance((config.get(where) or {}).get(kind.layer_type), dict) for where in BLOCKS)
    if not nested and block.rope_type == "yarn":
        own = {key: value for key, value in kind.added_to_flat_yarn.items() if key not in block.values}
        sources = {**block.sources, **dict.fromkeys(own, CLASS_DEFAULT)}
        block = RopeBlock(block.layers, {**block.values, **own}, sources)
    return block if nested else _with_default(block, kind)


def _check_read(config: Mapping[str, Any], family: Family, block: RopeBlock) -> None:
    """Refuse what stands only in a block that the class does not read; what it reads elsewhere may stand there too."""
    unread = next((key for key in BLOCKS if key not in family.blocks and config.get(key)), None)
    if unread is None or any(config.get(key) for key in family.blocks):
        return
    base_elsewhere = "rope_theta" not in block.values or any(config.get(key) is not None for key in family.theta_keys)
    if block.rope_type == "default" and base_elsewhere:
        return
    instead = " or ".join((*family.blocks, *family.theta_keys))
    raise ConfigError(
        f"the class of {family.model_type} does not read {unread}, and would ignore it without a word; it reads "
        f"{instead}: write it there",
        key=unread,
    )


def _with_default(block: RopeBlock, kind: Kind) -> RopeBlock:
    """The class's own block under what config.json has, which names a rope type of its own or leaves the class's."""
    if "rope_type" in block.values:
        return block
    missing = {key: value for key, value in kind.default.items() if key not in (*block.values, "rope_theta")}
    return RopeBlock(
        block.layers, {**missing, **block.values}, {**dict.fromkeys(missing, CLASS_DEFAULT), **block.sources}
    )


def geometry_of_kind(config: Mapping[str, Any], family: Family, block: RopeBlock, kind: Kind | None) -> Geometry:
    """The geometry of the first layer of a kind, or of all layers where they are alike."""
    types = config.get("layer_types")
    first = types.index(kind.layer_type) if kind and isinstance(types, list) and kind.layer_type in types else 0
    return _geometry(config, family, block, kind, first)


def layer_geometries(config: Mapping[str, Any], family: Family, blocks: tuple[RopeBlock, ...]) -> tuple[Geometry, ...]:
    """The geometry of every layer, in order; empty where all layers are alike."""
    own_heads = any(kind.instead or kind.kv_factor > 1 for kind in family.kinds)
    if not own_heads and len(family.kinds) < 2 and not any(config.get(key) for key in (PER_LAYER, *PER_LAYER_LISTS)):
        return ()
    types = config.get("layer_types") or _all_alike(config, family, blocks)
    if not isinstance(types, list):
        raise ConfigError(f"layer_types is {types!r}; it must be a list", key="layer_types")
    by_layers = {block.layers: block for block in blocks}
    kinds = {kind.layer_type: kind for kind in family.kinds}
    return tuple(
        _geometry(config, family, by_layers.get(layers, blocks[0]), kinds.get(layers), index)
        for index, layers in enumerate(types)
    )


def _all_alike(config: Mapping[str, Any], family: Family, blocks: tuple[RopeBlock, ...]) -> list[str]:
    """Layer types for a config without any; raises `ConfigError` where the kinds of layers differ in their heads."""
    kinds = {kind.layer_type: kind for kind in family.kinds}
    found = [_geometry(config, family, block, kinds.get(block.layers), 0) for block in blocks]
    if any(replace(geometry, class_defaults={}) != replace(found[0], class_defaults={}) for geometry in found):
        names = " and ".join(block.layers for block in blocks)
        raise ConfigError(
            f"config.json has no layer_types, and {names} layers of {family.model_type} differ in their heads or in "
            f"what turns of them; write the list (transformers does so on saving)",
            key="layer_types",
        )
    return [ALL_LAYERS] * (count(config, "num_hidden_layers") or 0)


def _geometry(config: Mapping[str, Any], family: Family, block: RopeBlock, kind: Kind | None, index: int) -> Geometry:
    geometry = read_geometry(_as_seen_by(config, kind, index), block, family.keys, family.defaults)
    return replace(geometry, kv_heads=geometry.kv_heads * kind.kv_factor) if kind else geometry


def _as_seen_by(config: Mapping[str, Any], kind: Kind | None, index: int) -> Mapping[str, Any]:
    """The config as the layer ``index`` reads it."""
    instead = {key: config[other] for key, other in kind.instead.items() if config.get(other)} if kind else {}
    listed = {
        key: config[name][index]
        for name, key in PER_LAYER_LISTS.items()
        if isinstance(config.get(name), list) and index < len(config[name])
    }
    own = (config.get(PER_LAYER) or {}).get(str(index)) or {}
    return {**config, **instead, **listed, **own}
