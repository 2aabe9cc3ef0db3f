"""The rope block of every kind of layer that a class rotates on its own, as the class reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropetool.checkpoint.config import ALL_LAYERS, BLOCKS, RopeBlock, number, rope_blocks
from ropetool.errors import ConfigError
from ropetool.families.family import Family, Kind
from ropetool.families.geometry import CLASS_DEFAULT


def blocks_of(config: Mapping[str, Any], family: Family) -> tuple[RopeBlock, ...]:
    """One block per rotation that the class has: one for all layers, or one per kind in the order of the row.

    Raises `ConfigError` for a block in a form that the class would not read.
    """
    blocks = rope_blocks(config, family.theta_keys)
    flat = blocks[0].layers == ALL_LAYERS
    if not family.kinds:
        if not flat:
            raise ConfigError(
                f"{BLOCKS[0]} has a block for each kind of layer, but the class of {family.model_type} reads one flat "
                f"block; write that",
                key=BLOCKS[0],
            )
        return blocks
    if not flat:
        by_layers = {block.layers: block for block in blocks}
        return tuple(_nested(by_layers.get(kind.layer_type), kind, config) for kind in family.kinds)
    if config.get(BLOCKS[0]):
        kinds = " and ".join(kind.layer_type for kind in family.kinds)
        raise ConfigError(
            f"{BLOCKS[0]} is flat, but the class of {family.model_type} reads a block for each kind of layer "
            f"({kinds}) and would ignore it without a word; nest it",
            key=BLOCKS[0],
        )
    first, *rest = family.kinds
    scaled = replace(blocks[0], layers=first.layer_type)
    return (_with_default(scaled, first), *(_nested(None, kind, config) for kind in rest))


def _nested(block: RopeBlock | None, kind: Kind, config: Mapping[str, Any]) -> RopeBlock:
    """The block of one kind; one without a base of its own takes it from the top level, as the class does."""
    found = block or RopeBlock(kind.layer_type, {}, {})
    theta = number(config, kind.theta_key) if kind.theta_key else None
    if theta is not None and "rope_theta" not in found.values:
        found = RopeBlock(
            found.layers, {**found.values, "rope_theta": theta}, {**found.sources, "rope_theta": kind.theta_key}
        )
    return found if block else _with_default(found, kind)


def _with_default(block: RopeBlock, kind: Kind) -> RopeBlock:
    """The class's own block under what config.json has, which names a rope type of its own or leaves the class's."""
    if "rope_type" in block.values:
        return block
    missing = {key: value for key, value in kind.default.items() if key not in (*block.values, "rope_theta")}
    return RopeBlock(
        block.layers, {**missing, **block.values}, {**dict.fromkeys(missing, CLASS_DEFAULT), **block.sources}
    )
