"""What a config says, read through its family's row: geometry, rotation of each kind of layer, and the layout.

Every verb starts here, so that all of them mean the same thing by the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ropetool.checkpoint.config import ALL_LAYERS, BLOCKS, RopeBlock, count, marker, number, rope_blocks, text_config
from ropetool.errors import ConfigError, NoRotaryError, UnknownFamilyError
from ropetool.families.family import Family, Nope
from ropetool.families.geometry import CLASS_DEFAULT, Geometry, read_geometry
from ropetool.families.schemes import scheme_of
from ropetool.families.table import TABLE
from ropetool.rope.frequencies import SPELLINGS, Proportional, Scaling, scaling_from_block
from ropetool.rope.pairing import Pairing

FULL_ATTENTION = "full_attention"


@dataclass(frozen=True)
class Warn:
    """Something a person should know; the code is stable, the message may change."""

    code: str
    message: str


@dataclass(frozen=True)
class Evidence:
    """One witness of the layout: where it was read, what it says, and why in a sentence."""

    source: str
    says: str
    detail: str


@dataclass(frozen=True)
class Rotation:
    """How one kind of layer rotates: the scaling method with its numbers, and where the base was read."""

    layers: str
    block: RopeBlock
    scaling: Scaling
    theta_source: str
    original_length: int | None


@dataclass(frozen=True)
class Reading:
    """A config, understood. ``pairing`` is the layout that the weights are in, by the strongest declared witness.

    ``class_pairing`` is what the stock model class would rotate, given this config. They differ in a checkpoint
    that was converted away from its class.
    """

    model_type: str
    family: Family
    config: Mapping[str, Any]
    geometry: Geometry
    rotations: tuple[Rotation, ...]
    length: int | None
    class_pairing: Pairing
    pairing: Pairing
    nope_layers: frozenset[int]
    evidence: tuple[Evidence, ...]
    warnings: tuple[Warn, ...]


def family_of(config: Mapping[str, Any]) -> Family:
    """The row for a config's ``model_type``; raises `NoRotaryError` or `UnknownFamilyError` with a sentence."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError("config.json has no model_type, so nothing tells how its class rotates", key="model_type")
    if model_type in TABLE:
        return TABLE[model_type]
    scheme = scheme_of(model_type)
    if scheme is not None:
        raise NoRotaryError(
            f"{model_type} has no rotary position embedding ({scheme.sentence}), so there is no layout to convert "
            f"and no rotation to extend",
            model_type=model_type,
            scheme=scheme.name,
        )
    raise UnknownFamilyError(
        f"the model type {model_type} is not in the family table, so its row order is not known; "
        f"`ropetool families` lists the {len(TABLE)} types that are",
        model_type=model_type,
    )


def read_model(config: Mapping[str, Any]) -> Reading:
    """Understand a config; raises `ConfigError`, `NoRotaryError` or `UnknownFamilyError` for what cannot be."""
    model_type = config.get("model_type")
    family = family_of(config)
    text = text_config(config)
    blocks = _blocks(text, family)
    _check_named_scaling(text, family)
    geometry = read_geometry(text, blocks[0], family.keys, family.defaults)
    length = count(text, family.keys.length)
    warnings: list[Warn] = []
    if length is None and family.keys.length in family.defaults:
        length = int(family.defaults[family.keys.length])
        warnings.append(_default_warning(family.keys.length, length))
    rotations = tuple(_rotation(block, family, length, text, warnings) for block in blocks)
    warnings += [_default_warning(key, value) for key, value in geometry.class_defaults.items()]
    for rotation in rotations:  # a factor list of the wrong length shows here
        whole = isinstance(rotation.scaling, Proportional)
        rotation.scaling.inv_freq(geometry.head_dim if whole else geometry.rotary_dim)
    if config.get("auto_map"):
        said = "config.json names code of its own (auto_map): what is said here is of the stock class of the same type"
        warnings.append(Warn("custom-code", said))
    evidence, class_pairing = _declared(config, text, family)
    return Reading(
        str(model_type), family, text, geometry, rotations, length, class_pairing,
        Pairing(evidence[0].says), nope_layers(text, family.nope), evidence, tuple(warnings),
    )  # fmt: skip


def _blocks(config: Mapping[str, Any], family: Family) -> tuple[RopeBlock, ...]:
    """One block per rotation that the class has, the full-attention layers' first."""
    blocks = rope_blocks(config, family.theta_keys)
    flat = blocks[0].layers == ALL_LAYERS
    if family.local is None:
        if not flat:
            raise ConfigError(
                f"{BLOCKS[0]} has a block for each kind of layer, but the class of {family.model_type} reads one flat "
                f"block; write that",
                key=BLOCKS[0],
            )
        return blocks
    local = family.local
    if not flat:
        by_layers = {block.layers: block for block in blocks}
        kinds = ((FULL_ATTENTION, family.theta_keys[0]), (local.layer_type, local.theta_key))
        return tuple(_with_top_level_theta(by_layers.get(kind), kind, config, key) for kind, key in kinds)
    if config.get(BLOCKS[0]):
        raise ConfigError(
            f"{BLOCKS[0]} is flat, but the class of {family.model_type} reads a block for each kind of layer "
            f"({FULL_ATTENTION} and {local.layer_type}) and would ignore it without a word; nest it",
            key=BLOCKS[0],
        )
    theta = number(config, local.theta_key)
    values = {} if theta is None else {"rope_theta": theta}
    return (
        replace(blocks[0], layers=FULL_ATTENTION),
        RopeBlock(local.layer_type, values, dict.fromkeys(values, local.theta_key)),
    )


def _with_top_level_theta(block: RopeBlock | None, layers: str, config: Mapping[str, Any], key: str) -> RopeBlock:
    """A nested block; one without a base of its own takes it from the top level, as the class does."""
    block = block or RopeBlock(layers, {}, {})
    theta = number(config, key)
    if theta is None or "rope_theta" in block.values:
        return block
    return RopeBlock(layers, {**block.values, "rope_theta": theta}, {**block.sources, "rope_theta": key})


def _check_named_scaling(config: Mapping[str, Any], family: Family) -> None:
    """A class whose own block scales does so where config.json has no block: nothing there says by how much."""
    if "scaled_rope" in family.defaults and not any(config.get(key) for key in BLOCKS):
        raise ConfigError(
            f"config.json has neither {' nor '.join(BLOCKS)}, and the class of {family.model_type} then scales by "
            f"values of its own; write the block into config.json (transformers does so on saving)",
            key=BLOCKS[0],
        )


def nope_layers(config: Mapping[str, Any], nope: Nope | None) -> frozenset[int]:
    """The indices of the layers that the class does not rotate."""
    if nope is None or (nope.only_with and not config.get(nope.only_with)):
        return frozenset()
    flags, types = config.get(nope.flags), config.get("layer_types")
    if isinstance(flags, list):
        return frozenset(index for index, rotates in enumerate(flags) if not rotates)
    if nope.layer_type and isinstance(types, list):
        return frozenset(index for index, kind in enumerate(types) if kind == nope.layer_type)
    every = config.get(nope.interval_key) or nope.interval
    layers = count(config, "num_hidden_layers") or 0
    if not isinstance(every, int):
        raise ConfigError(f"{nope.interval_key} is {every!r}; it must be a whole number", key=nope.interval_key)
    return frozenset(range(every - 1, layers, every))


def _default_warning(key: str, value: float) -> Warn:
    return Warn("class-default", f"config.json has no {key}; the class default {value:g} is used")


def _rotation(
    block: RopeBlock, family: Family, length: int | None, config: Mapping[str, Any], warnings: list[Warn]
) -> Rotation:
    theta = block.values.get("rope_theta")
    source = block.sources.get("rope_theta", CLASS_DEFAULT)
    if block.rope_type in SPELLINGS:
        said = (
            f"rope type {block.rope_type} is an older name of {SPELLINGS[block.rope_type]}, which transformers 5 lost"
        )
        warnings.append(Warn("old-rope-type", said))
    if "rope_theta" not in family.theta_keys and config.get("rope_theta") is not None:
        said = f"rope_theta is {config['rope_theta']!r}, but the class of {family.model_type} does not read it there"
        warnings.append(Warn("theta-ignored", said))
    if not family.theta_keys and theta is not None:
        warnings.append(
            Warn("theta-ignored", f"{source} is {theta:g}, but the class of {family.model_type} does not read it")
        )
        theta, source = None, CLASS_DEFAULT
    if theta is None:
        local = family.local if family.local and family.local.layer_type == block.layers else None
        theta = local.theta_default if local else family.theta_default
        null = [key for key in family.theta_keys if key in config and config[key] is None]
        null += [f"{where}.rope_theta" for where in BLOCKS if (config.get(where) or {}).get("rope_theta", 0) is None]
        said = f"{null[0]} is null in config.json" if null else f"config.json has no {' or '.join(family.theta_keys)}"
        if family.theta_keys:
            warnings.append(Warn("theta-default", f"{said}; the class default {theta:g} is used"))
    scaling = scaling_from_block(block.values, float(theta), length)
    share = block.values.get("partial_rotary_factor")
    if share not in (None, 1) and not family.keys.share and not isinstance(scaling, Proportional):
        said = f"partial_rotary_factor is {share:g}, but the class of {family.model_type} rotates the whole head"
        warnings.append(Warn("share-ignored", said))
    original = getattr(scaling, "original_length", length)
    return Rotation(block.layers, block, scaling, source, original)


def rotary_dim_of(reading: Reading, rotation: Rotation) -> int:
    """Rows of a head that turn in the layers of ``rotation``."""
    whole_head = isinstance(rotation.scaling, Proportional)
    return reading.geometry.head_dim if whole_head else reading.geometry.rotary_dim


def _declared(
    config: Mapping[str, Any], text: Mapping[str, Any], family: Family
) -> tuple[tuple[Evidence, ...], Pairing]:
    """The declared witnesses, strongest first, and the layout that the stock class rotates."""
    evidence = []
    class_pairing = family.pairing
    says = marker(config).get("pairing")
    if says is not None:
        if says not in tuple(Pairing):
            raise ConfigError(f"the marker's pairing is {says!r}, not half or interleaved", key="ropetool.pairing")
        evidence.append(Evidence("marker", says, "config.json was marked by ropetool when it wrote this checkpoint"))
    key = family.pairing_key
    if key is not None and text.get(key) is not None:
        if not isinstance(text[key], bool):
            raise ConfigError(f"{key} is {text[key]!r}; it must be true or false", key=key, value=text[key])
        class_pairing = Pairing.INTERLEAVED if text[key] else Pairing.HALF
        evidence.append(Evidence("config", class_pairing.value, f"{key} is {str(text[key]).lower()}"))
    elif key is not None:
        detail = f"the class rotates by {key}, which config.json lacks; its default is true"
        evidence.append(Evidence("family", family.pairing.value, detail))
    else:
        detail = f"{family.pairing.value} by the class of {family.model_type}, not provable from the config"
        evidence.append(Evidence("family", family.pairing.value, detail))
    return tuple(evidence), class_pairing
