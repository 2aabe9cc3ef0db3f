"""What a config says, read through its family's row: geometry, rotation of each kind of layer, and the layout.

Every verb starts here, so that all of them mean the same thing by the same checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ropetool.checkpoint.config import BLOCKS, RopeBlock, check_layers, count, earlier_extension, marker, number
from ropetool.errors import ConfigConflictError, ConfigError, NoRotaryError
from ropetool.families.decoder import Decoder, decoder_of
from ropetool.families.family import Family, Kind, Nope, Site
from ropetool.families.geometry import CLASS_DEFAULT, SHARE, Geometry, read_geometry
from ropetool.families.kinds import blocks_of, geometry_of_kind, layer_geometries
from ropetool.families.positions import INSTEAD_OF_ROPE, positions_of
from ropetool.families.positions import said as meaning
from ropetool.rope.frequencies import SPELLINGS, Dynamic, NtkAware, Proportional, Scaling, scaling_from_block
from ropetool.rope.pairing import Pairing

INDEXER = "indexer"


@dataclass(frozen=True)
class Warn:
    """Something a person should know; the code is stable, the message may change."""

    code: str
    message: str


@dataclass(frozen=True)
class Evidence:
    """One witness of the layout: where it was read, what it says, and why in a sentence.

    ``confidence`` is the chance, from 0 to 1, that a measured witness (weights, text) puts on what it says; None for a
    declaration, and for "unknown". ``figures`` are the numbers behind the sentence.
    """

    source: str
    says: str
    detail: str
    confidence: float | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rotation:
    """How one kind of layer rotates: the scaling method with its numbers, and where the base was read."""

    layers: str
    block: RopeBlock
    scaling: Scaling
    theta_source: str
    original_length: int | None
    geometry: Geometry


@dataclass(frozen=True)
class Reading:
    """A config, understood. ``pairing`` is the layout that the weights are in, by the strongest declared witness.

    ``class_pairing`` is what the stock model class would rotate, given this config. They differ in a checkpoint
    that was converted away from its class. ``config`` is the text decoder's part, ``model_type`` the whole's.
    ``geometry`` is that of the first rotation, ``layers`` those of every layer where they differ; ``others`` are the
    rotations of the row's other sites. ``still_layers`` have nothing to move, not even jointly. ``extension`` is what
    the marker says of one that ropetool made.
    """

    model_type: str
    family: Family
    config: Mapping[str, Any]
    decoder: Decoder
    geometry: Geometry
    layers: tuple[Geometry, ...]
    others: tuple[Rotation, ...]
    rotations: tuple[Rotation, ...]
    length: int | None
    class_pairing: Pairing
    pairing: Pairing
    nope_layers: frozenset[int]
    still_layers: frozenset[int]
    refusal: str
    evidence: tuple[Evidence, ...]
    warnings: tuple[Warn, ...]
    extension: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reach(self) -> int | None:
        """The length in tokens that the checkpoint was made to serve.

        Under dynamic scaling, max_position_embeddings is the trained length; the reach is in the marker, or by factor.
        """
        scaling = self.rotations[0].scaling
        if isinstance(scaling, Dynamic):
            return int(self.extension.get("length") or scaling.original_length * scaling.factor)
        return self.length

    def geometry_of_layer(self, layer: str) -> Geometry:
        """The geometry of the main attention of the layer at ``layer`` (``model.layers.3``)."""
        if not self.layers:
            return self.geometry
        index = layer.rpartition(".")[2]
        if not index.isdigit() or int(index) >= len(self.layers):
            raise ConfigError(
                f"the layers of {self.model_type} differ in their heads, and config.json does not tell those of "
                f"{layer}: layer_types has {len(self.layers)} entries",
                key="layer_types",
            )
        return self.layers[int(index)]


def read_model(config: Mapping[str, Any]) -> Reading:
    """Understand a config; raises `ConfigError`, `NoRotaryError` or `UnknownFamilyError` for what cannot be."""
    return read_as(config, decoder_of(config))


def read_as(config: Mapping[str, Any], decoder: Decoder) -> Reading:
    """Understand a config through a row that need not be the table's; raises `ConfigError` for what cannot be."""
    family, text = decoder.family, decoder.text
    check_layers(text)
    refusal = _refusal(text, family)
    turning = (text.get(family.section) or {}) if family.section else text
    blocks = blocks_of(turning, family)
    _check_block_is_there(turning, family)
    length = count(turning, family.keys.length)
    warnings: list[Warn] = []
    if length is None and family.keys.length in family.defaults:
        length = int(family.defaults[family.keys.length])
        warnings.append(_default_warning(family.keys.length, length))
    kinds = family.kinds or (None,)
    rotations = tuple(
        _rotation(block, family, kind, length, text, turning, warnings)
        for block, kind in zip(blocks, kinds, strict=True)
    )
    _check_base_of_layers(turning, family, rotations[0])
    geometry = rotations[0].geometry
    others = tuple(_at_site(site, family, rotations[0], length, text) for site in family.others)
    defaults = {
        k: v for found in (geometry, *(other.geometry for other in others)) for k, v in found.class_defaults.items()
    }
    nulls = {key: _null_share(key, value, family, text, turning) for key, value in defaults.items()}
    warnings += [nulls[key] or _default_warning(key, value) for key, value in defaults.items()]
    for rotation in rotations:  # a factor list of the wrong length shows here
        rotation.scaling.inv_freq(rotation.geometry.rotary_dim)
    if refusal:
        warnings.append(Warn("cannot-convert", f"it cannot be converted: {refusal}"))
    if config.get("auto_map") and not family.probed:
        said = "config.json names code of its own (auto_map): what is said here is of the stock class of the same type"
        warnings.append(Warn("custom-code", said))
    evidence, class_pairing = _declared(config, text, family)
    return Reading(
        str(config["model_type"]), family, text, decoder, geometry, layer_geometries(text, family, blocks), others,
        rotations, length, class_pairing, Pairing(evidence[0].says), nope_layers(text, family.nope),
        _still_layers(text, family), refusal, evidence, tuple(warnings), earlier_extension(config),
    )  # fmt: skip


def _refusal(config: Mapping[str, Any], family: Family) -> str:
    """Why this checkpoint cannot be converted; empty where it can. Raises `NoRotaryError` where nothing rotates."""
    for needs in family.needs:
        value = config.get(needs.key, needs.default)
        if value == needs.value:
            continue
        said = f"{needs.key} is {value!r}" if needs.key in config else f"config.json has no {needs.key}"
        if not needs.scheme:
            return f"{said}: {needs.otherwise}"
        instead = meaning(positions_of({**config, "model_type": family.model_type}, INSTEAD_OF_ROPE))
        raise NoRotaryError(
            f"{said}: {needs.otherwise}" + (f" ({instead})" if instead else ""),
            model_type=family.model_type,
            key=needs.key,
            scheme=needs.scheme,
        )
    return family.refusal


def _check_base_of_layers(config: Mapping[str, Any], family: Family, rotation: Rotation) -> None:
    """A list with the base of every layer must say what the block says: it goes before that."""
    bases = config.get(family.theta_list)
    for index, theta in enumerate(bases if isinstance(bases, list) else ()):
        if theta and theta != rotation.scaling.theta:
            here = f"{family.theta_list}[{index}]"
            raise ConfigConflictError(
                f"{rotation.theta_source} is {rotation.scaling.theta:g} but {here} is {theta!r}; the class of "
                f"{family.model_type} takes the list, and one base for all layers is all that ropetool reads. Make "
                f"them agree",
                keys=[rotation.theta_source, here],
                values=[rotation.scaling.theta, theta],
            )


# What a class does where config.json has no block at all, by the switch that `families.parts` has for it.
OWN_BLOCK = {
    "scaled_rope": "scales by values of its own",
    "own_block": "turns by values of its own, whatever the other keys say",
}


def _check_block_is_there(config: Mapping[str, Any], family: Family) -> None:
    """A class may fill in a whole block where config.json has none: nothing there says what is in it."""
    does = next((said for switch, said in OWN_BLOCK.items() if switch in family.defaults), None)
    if does and not any(config.get(key) for key in BLOCKS):
        raise ConfigError(
            f"config.json has neither {' nor '.join(BLOCKS)}, and the class of {family.model_type} then {does}; write "
            f"the block into config.json (transformers does so on saving)",
            key=BLOCKS[0],
        )


def nope_layers(config: Mapping[str, Any], nope: Nope | None) -> frozenset[int]:
    """The indices of the layers that the class does not rotate."""
    if nope is None or (nope.only_with and not config.get(nope.only_with, True)):
        return frozenset()
    flags, types = config.get(nope.flags), config.get("layer_types")
    if isinstance(flags, list):
        return frozenset(index for index, rotates in enumerate(flags) if not rotates)
    if nope.layer_type and isinstance(types, list):
        return frozenset(index for index, kind in enumerate(types) if kind == nope.layer_type)
    every = config.get(nope.interval_key) or nope.interval
    if not every and not nope.layer_type:
        return frozenset()
    if not every:
        raise ConfigError(
            "config.json has no layer_types, which tell the layers without rotation, and the class then fills in a "
            "pattern of its own; write them into config.json (transformers does so on saving)",
            key="layer_types",
        )
    layers = count(config, "num_hidden_layers") or 0
    if not isinstance(every, int):
        raise ConfigError(f"{nope.interval_key} is {every!r}; it must be a whole number", key=nope.interval_key)
    return frozenset(range((layers - 1) % every if nope.from_last else every - 1, layers, every))


def _still_layers(config: Mapping[str, Any], family: Family) -> frozenset[int]:
    """The layers whose tensors under the attention's names do not move: another kind of mixer, another shape."""
    types = config.get("layer_types")
    mixers = {i for i, kind in enumerate(types) if kind in family.mixers} if isinstance(types, list) else set()
    still = nope_layers(config, family.nope) if family.nope and family.nope.unmoved else frozenset()
    return still | mixers


def _default_warning(key: str, value: float) -> Warn:
    return Warn("class-default", f"config.json has no {key}; the class default {value:g} is used")


def _null_share(
    key: str, value: float, family: Family, text: Mapping[str, Any], turning: Mapping[str, Any]
) -> Warn | None:
    """Where the rotary share is null, and not 1 by default: transformers 5.24 (modeling_rope_utils.py) differs."""
    nulls = [SHARE] if SHARE in family.keys.rotary and text.get(SHARE, 1) is None else []
    nulls += [f"{where}.{SHARE}" for where in BLOCKS if (turning.get(where) or {}).get(SHARE, 1) is None]
    if key != SHARE or value == 1 or not nulls:
        return None
    said = (
        f"{nulls[0]} is null in config.json: ropetool takes it as absent, so for the class default {value:g}; "
        f"transformers 5.24 does not, and rotates the whole head or fails, by the class; write the number"
    )
    return Warn("null-share", said)


def _at_site(site: Site, family: Family, main: Rotation, length: int | None, config: Mapping[str, Any]) -> Rotation:
    """The rotation at a site beside the main one: the main one's, or that of the site's own section of the config."""
    geometry = read_geometry(config, main.block, site.keys, family.defaults)
    if not site.section:
        inner = site.module.rpartition(".")[2]
        return replace(main, layers=inner if inner == INDEXER else main.layers, geometry=geometry)
    section = config.get(site.section) or {}
    block = blocks_of(section, family)[0]
    theta, source = _theta(block, family, None, section, [])
    scaling = scaling_from_block(block.values, theta, length)
    original = getattr(scaling, "original_length", length)
    return Rotation(site.within, block, scaling, source, original, geometry)


def _rotation(
    block: RopeBlock,
    family: Family,
    kind: Kind | None,
    length: int | None,
    config: Mapping[str, Any],
    turning: Mapping[str, Any],
    warnings: list[Warn],
) -> Rotation:
    keys = family.keys
    geometry = geometry_of_kind(config, family, block, kind)
    if block.rope_type in SPELLINGS:
        said = (
            f"rope type {block.rope_type} is an older name of {SPELLINGS[block.rope_type]}, which transformers 5 lost"
        )
        warnings.append(Warn("old-rope-type", said))
    theta, source = _theta(block, family, kind, turning, warnings)
    scaling = scaling_from_block(block.values, theta, length)
    alpha = number(block.values, "alpha") if family.fixed_alpha else None
    if isinstance(scaling, Dynamic) and alpha is not None:
        scaling = NtkAware(theta, alpha)
    if kind is not None and block.values.get("truncate") is False:
        said = f"truncate is false in the block of {block.layers} layers, where transformers 5 does not look for it"
        warnings.append(Warn("truncate-ignored", said))
    share = block.values.get("partial_rotary_factor")
    told = keys.share or keys.share_in_block or keys.scales_by_share
    ignored = not told and not isinstance(scaling, Proportional)
    if share not in (None, 1) and ignored:
        said = f"partial_rotary_factor is {share:g}, but the class of {family.model_type} rotates the whole head"
        warnings.append(Warn("share-ignored", said))
    original = getattr(scaling, "original_length", length)
    return Rotation(family.within or block.layers, block, scaling, source, original, geometry)


def _theta(
    block: RopeBlock, family: Family, kind: Kind | None, config: Mapping[str, Any], warnings: list[Warn]
) -> tuple[float, str]:
    """The base, and where it was read; warns where the class takes its own."""
    theta = block.values.get("rope_theta")
    source = block.sources.get("rope_theta", CLASS_DEFAULT)
    theta_keys = family.theta_keys if kind is None else (kind.theta_key, *family.theta_keys)
    if "rope_theta" not in theta_keys and config.get("rope_theta") is not None:
        said = f"rope_theta is {config['rope_theta']!r}, but the class of {family.model_type} does not read it there"
        warnings.append(Warn("theta-ignored", said))
    if not family.theta_keys and not family.kinds and theta is not None:
        warnings.append(
            Warn("theta-ignored", f"{source} is {theta:g}, but the class of {family.model_type} does not read it")
        )
        theta, source = None, CLASS_DEFAULT
    if theta is not None:
        return float(theta), source
    theta = kind.default.get("rope_theta", family.theta_default) if kind else family.theta_default
    null = [key for key in family.theta_keys if key in config and config[key] is None]
    null += [f"{where}.rope_theta" for where in BLOCKS if (config.get(where) or {}).get("rope_theta", 0) is None]
    read = " or ".join(filter(None, dict.fromkeys(theta_keys))) or f"rope_theta for {block.layers} layers"
    said = f"{null[0]} is null in config.json" if null else f"config.json has no {read}"
    if family.theta_keys or family.kinds:
        warnings.append(Warn("theta-default", f"{said}; the class default {theta:g} is used"))
    return float(theta), source


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
    elif not family.probed:
        detail = f"{family.pairing.value} by the class of {family.model_type}, not provable from the config"
        evidence.append(Evidence("family", family.pairing.value, detail))
    if family.probed:
        evidence.append(Evidence("code", class_pairing.value, family.source))
    return tuple(evidence), class_pairing
