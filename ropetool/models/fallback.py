"""A row for a type outside the table, derived from what the probe reads from two tiny models of its class.

Two models of different sizes are probed, and `generalise` finds the rows that fit both. What cannot be derived is
refused with the reason; what was derived wrongly all the same is caught by verify, without which no result of such a
row gets its name.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ropetool.checkpoint.config import BLOCKS, SHARED_KEYS, RopeBlock, number, rope_blocks
from ropetool.errors import ConfigError, NoRotaryError, UnknownFamilyError
from ropetool.families.decoder import Decoder
from ropetool.families.family import Family, Kind, Nope
from ropetool.families.reading import Evidence, Reading, Warn, nope_layers, read_as
from ropetool.models import generalise as general
from ropetool.models import own_code, tiny
from ropetool.models.numbers import numbers_fault
from ropetool.models.own_buffers import unfilled
from ropetool.models.own_code import OwnClass
from ropetool.models.probe import probe_model
from ropetool.models.rotations import Unreadable
from ropetool.models.site import SeenSite, site_of
from ropetool.models.tiny_cases import OTHER_SIZES, SIZES
from ropetool.rope.pairing import Pairing

# What a class completes in its config, and the rows of a checkpoint depend on.
COMPLETED = ("layer_types", "num_hidden_layers", "vocab_size")
# Keys of a config that say nothing of its model.
NOT_THE_MODEL = ("_name_or_path", "ropetool", "transformers_version")
_ABOUT_NUMBERS = ("theta-default", "theta-ignored", "share-ignored")


@dataclass(frozen=True)
class Seen:
    """One tiny model: its config as it would be saved, the place where it rotates, and buffers that loading loses."""

    config: Mapping[str, Any]
    site: SeenSite
    unfilled: tuple[str, ...]


class _StandsStill(Exception):
    """The class rotates nothing."""


def read_by_probe(
    path: Path, config: Mapping[str, Any], unknown: UnknownFamilyError, *, trust_remote_code: bool
) -> Reading:
    """The reading of a checkpoint whose type the table lacks.

    Raises `UnknownFamilyError` with the probe's reason where the class cannot be read, or may not be run, and
    `NoRotaryError` where it rotates nothing.
    """
    model_type = str(config.get("model_type"))
    auto_map = config.get("auto_map") or {}
    if auto_map and not trust_remote_code and not own_code.is_known(model_type):
        raise UnknownFamilyError(
            f"{unknown.message.rstrip('.')}; its class is code in the checkpoint (auto_map), which runs with all your "
            f"rights: read it, and if you trust it give --trust-remote-code",
            model_type=model_type,
        )
    try:
        with own_code.subdued():
            return _reading(config, own_code.load(path, auto_map, trust_remote_code=trust_remote_code))
    except _StandsStill:
        raise NoRotaryError(
            f"{model_type} has no rotary position embedding that the probe can see: no row of its q or k turns",
            model_type=model_type,
        ) from None
    except Unreadable as reason:
        raise UnknownFamilyError(
            f"the model type {model_type} is not in the family table, and the probe cannot read it: {reason}",
            model_type=model_type,
            reason=str(reason),
        ) from reason


def held_against_own_code(path: Path, config: Mapping[str, Any], reading: Reading) -> Reading:
    """A reading by the table, held against the class that lies in the checkpoint; where they differ, it is refused."""
    if not own_code.has_model(config["auto_map"]) or reading.decoder.path:
        return reading
    others = tuple(warning for warning in reading.warnings if warning.code != "custom-code")
    try:
        with own_code.subdued():
            subject = own_code.load(path, config["auto_map"], trust_remote_code=True)
            own = _reading(config, subject)
    except (Unreadable, _StandsStill) as reason:
        said = (
            f"the checkpoint's own class cannot be read ({reason or 'it rotates nothing'}); this is of the stock class"
        )
        return replace(reading, warnings=(*others, Warn("custom-code", said)))
    fault = _difference(reading, own)
    if fault is None:
        said = f"the checkpoint's own class {subject.kind.__name__} turns the same rows"
        evidence = (*reading.evidence, Evidence("code", own.class_pairing.value, said))
        return replace(reading, evidence=evidence, warnings=others)
    name = subject.kind.__name__
    said = f"the checkpoint's own class {name} is not what the table says of {reading.model_type}: {fault}"
    return replace(reading, refusal=said, warnings=(*others, Warn("custom-code-differs", said)))


def _difference(row: Reading, own: Reading) -> str | None:
    """Where the checkpoint's own class and the row of its type do not mean the same."""
    if own.class_pairing is not row.class_pairing:
        return f"it rotates {own.class_pairing.value}, the row {row.class_pairing.value}"
    if own.family.attention != row.family.attention:
        return f"its attention is called {own.family.attention}, in the row {row.family.attention}"
    by_row, by_class = (
        {moved.module: reading.geometry.spans(moved.rows) for moved in reading.family.moves} for reading in (row, own)
    )
    for module in sorted(by_class.keys() | (by_row.keys() & set(own.family.stays))):
        if by_row.get(module) != by_class.get(module):
            return f"the rows of {module} move otherwise"
    if own.family.backwards is not row.family.backwards:
        return "it turns by the negative angle of the row's"
    if own.nope_layers != row.nope_layers:
        return f"it does not rotate in layers {sorted(own.nope_layers)}, the row in {sorted(row.nope_layers)}"
    if own.rotations and [r.scaling for r in own.rotations] != [r.scaling for r in row.rotations]:
        return "it turns at other frequencies"
    return None


def _see(subject: OwnClass, *, other: bool = False) -> Seen:
    """A tiny model of the class, in the usual sizes or in the ``other``."""
    values = {key: value for key, value in subject.config.to_dict().items() if key not in NOT_THE_MODEL}
    return _seen(replace(subject, key=f"{subject.key} {json.dumps(values, sort_keys=True, default=str)}"), other)


@lru_cache(maxsize=16)
def _seen(subject: OwnClass, other: bool) -> Seen:
    try:
        built = tiny.build_like(subject.config, subject.kind, sizes=OTHER_SIZES if other else SIZES)
    except tiny.CannotBuild as reason:
        raise Unreadable(str(reason)) from reason
    site = site_of(probe_model(built.model, built.inputs), built.model)
    if site is None:
        raise _StandsStill
    return Seen(built.config.to_dict(), site, unfilled(built.model))


def _reading(config: Mapping[str, Any], subject: OwnClass) -> Reading:
    """Derive the row of a class, and read the checkpoint's config through it."""
    live, kind = subject.config, subject.kind
    if live.get_text_config() is not live:
        raise Unreadable("its config has parts for several models, and only one text model is read by the probe")
    seen = (_see(subject), _see(subject, other=True))
    first, second = (s.site for s in seen)
    facts = [(s.name, s.pairing, s.feeds, s.norm_feeds, s.may_lack) for s in (first, second)]
    if facts[0] != facts[1]:
        raise Unreadable("two tiny models of other sizes differ in more than their sizes")
    values = live.to_dict()
    family = Family(
        str(config["model_type"]), first.pairing, (), tuple(dict.fromkeys((*first.stays, *second.stays))),
        f"no row for {config['model_type']}: read by the probe from class {kind.__name__} of {_module(kind)}",
        attention=first.name, pairing_key=_pairing_key(subject, first), nope=_nope(seen, values),
        kinds=_kinds(values), may_lack=first.may_lack, backwards=first.rotated[0].backwards, probed=True,
    )  # fmt: skip
    wanted = (*COMPLETED, family.pairing_key, family.nope and family.nope.flags)
    text = {**config, **{k: values[k] for k in wanted if k and config.get(k) is None and values.get(k) is not None}}
    family = _with_rows(family, seen, text, values)
    fault: str | None = None
    for theta_keys in _theta_keys(values):
        candidate = replace(family, theta_keys=theta_keys)
        found = numbers_fault(candidate, [(s.config, s.site.rotated) for s in seen], text, values)
        if found is None:
            return _with_warnings(read_as(text, Decoder(candidate, text)), kind, seen[0].unfilled)
        fault = found
    known = _with_warnings(read_as(text, Decoder(family, text)), kind, seen[0].unfilled)
    return _without_numbers(known, str(fault))


def _theta_keys(live: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The keys that may hold the base; last that none does, and the class has its own."""
    block = live.get(BLOCKS[0]) or {}
    inside = [("rope_theta",)] if "rope_theta" in str(block) and live.get("rope_theta") is None else []
    return [*inside, *((key,) for key in general.THETA_KEYS if live.get(key) is not None), ()]


def _module(kind: Any) -> str:
    return str(kind.__module__).rpartition(".")[2]


def _with_rows(family: Family, seen: tuple[Seen, Seen], text: Mapping[str, Any], live: Mapping[str, Any]) -> Family:
    """The family with its moves, the keys of its geometry, and what the class uses where config.json is silent."""
    defaults = _defaults(text, live)
    sights = [general.Sight(s.config, _block(s.config), s.site.projections, s.site.norm_sizes) for s in seen]
    site = seen[0].site
    pattern = general.generalise(
        (sights[0], sights[1]), site.feeds, site.norm_feeds, text, rope_blocks(text)[0], defaults
    )
    return replace(family, moves=pattern.moves, keys=pattern.keys, defaults=defaults)


def _block(config: Mapping[str, Any]) -> RopeBlock:
    """The (first) rope block of a tiny model's config, which its class wrote and no person."""
    try:
        return rope_blocks(config)[0]
    except ConfigError as error:
        raise Unreadable(f"its config class writes what cannot be read back: {error.message}") from error


def _defaults(text: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, float]:
    """The class's own values of what config.json does not say."""
    silent = {key: live.get(key) for key in general.GEOMETRY_KEYS if text.get(key) is None}
    block = live.get(BLOCKS[0]) or {}
    said = rope_blocks(text, general.THETA_KEYS)[0].values
    silent |= {key: block.get(key) for key in SHARED_KEYS if key not in said}
    found = {key: value for key in silent if (value := number(silent, key)) is not None}
    if block.get("rope_type", "default") != "default" and not any(text.get(key) for key in BLOCKS):
        found["scaled_rope"] = 1
    return found


def _kinds(live: Mapping[str, Any]) -> tuple[Kind, ...]:
    """The kinds of layers, where the class has a rope block for each."""
    block = live.get(BLOCKS[0]) or {}
    nested = {layers: own for layers, own in block.items() if isinstance(own, dict)}
    return tuple(Kind(layers, own) for layers, own in nested.items())


def _nope(seen: tuple[Seen, Seen], live: Mapping[str, Any]) -> Nope | None:
    """The key of the config that tells which layers stand still, if any do."""
    if not any(s.site.still for s in seen):
        return None
    flags = [k for k, v in live.items() if isinstance(v, list) and v and all(flag in (0, 1) for flag in v)]
    types = dict.fromkeys(live.get("layer_types") or ())
    rules = [Nope(flags=key) for key in flags] + [Nope(layer_type=kind) for kind in types]
    fitting = [r for r in rules if all(nope_layers(s.config, r) == s.site.still for s in seen)]
    if len({nope_layers(live, rule) for rule in fitting}) != 1:
        raise Unreadable(
            f"some of its layers do not rotate ({sorted(seen[0].site.still)} of a tiny model), and no key of its "
            f"config tells which"
        )
    return fitting[0]


def _pairing_key(subject: OwnClass, site: SeenSite) -> str | None:
    """A switch of the config by which the class changes the layout, found by turning it."""
    switches = {
        key: value for key, value in subject.config.to_dict().items() if isinstance(value, bool) and "interleave" in key
    }
    for key, value in switches.items():
        other = copy.deepcopy(subject.config)
        setattr(other, key, not value)
        try:
            turned = _see(replace(subject, config=other)).site
        except (Unreadable, _StandsStill):  # a switch of something else
            continue
        if turned.pairing is not site.pairing and (site.pairing is Pairing.INTERLEAVED) is value:
            return str(key)
    return None


def _with_warnings(reading: Reading, kind: Any, unfilled_buffers: tuple[str, ...]) -> Reading:
    said = f"{reading.family.source}; a conversion gets its name only when verify has passed"
    warnings = [*reading.warnings, Warn("read-by-probe", said)]
    if unfilled_buffers:
        warnings.append(
            Warn(
                "buffers-unfilled",
                f"transformers 5 leaves {unfilled_buffers[0]} unset when it loads {kind.__name__}, whose _init_weights "
                f"does not make it again: by from_pretrained the model is wrong, converted or not; verify fills it in",
            )
        )
    return replace(reading, warnings=tuple(warnings))


def _without_numbers(known: Reading, fault: str) -> Reading:
    """The layout alone: the numbers of the rotation are not known, so nothing can be verified, or converted."""
    said = f"the numbers of its rotation are not known: {fault}"
    warnings = (*(w for w in known.warnings if w.code not in _ABOUT_NUMBERS), Warn("rope-unknown", said))
    refusal = f"{said}; so the result could not be verified"
    return replace(known, refusal=refusal, rotations=(), warnings=warnings)
