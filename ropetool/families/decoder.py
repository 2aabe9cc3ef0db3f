"""Which part of a config describes the text decoder: a multimodal config keeps it under a key of its own."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropetool.errors import ConfigError, NoRotaryError, UnknownFamilyError
from ropetool.families.family import Family
from ropetool.families.positions import positions_of, said
from ropetool.families.table import TABLE


@dataclass(frozen=True)
class Composite:
    """A multimodal model type, as its class in transformers has it.

    ``path`` are the keys that lead to the config of its text decoder; ``via`` is the type of the part on the way, where
    there are two. The class takes the part for ``text_type``, or with
    ``obeys_type`` for the type that it names itself. With ``reads_flat`` a config.json without the part has its keys at
    the top. ``places`` are the lists of layers that hold the text decoder's attention, by every name that transformers
    loads them from; ``towers`` are words in the names of the tensors of other parts. ``refusal`` is the reason why the
    type is not converted.
    """

    model_type: str
    text_type: str
    path: tuple[str, ...]
    via: str
    obeys_type: bool
    reads_flat: bool
    places: tuple[str, ...]
    towers: tuple[str, ...]
    refusal: str


def _composite(model_type: str, row: Mapping[str, Any]) -> Composite:
    lists = {key: tuple(row[key]) for key in ("path", "places", "towers")}
    return Composite(model_type, **{**row, **lists})


# Written by tools/read_composites.py from the classes of transformers.
_FILE = json.loads(Path(__file__).with_name("composites.json").read_text("utf-8"))
COMPOSITES: Mapping[str, Composite] = {name: _composite(name, row) for name, row in _FILE["composites"].items()}
# What the class of a text decoder uses where its part of config.json is silent, as such parts often are.
CLASS_NUMBERS: Mapping[str, Mapping[str, int]] = _FILE["class_numbers"]
LAYERS = "num_hidden_layers"


@dataclass(frozen=True)
class Decoder:
    """The text decoder of a config: its row, its own config, and where that lies in the whole.

    ``composite`` is None where the decoder is all there is.
    """

    family: Family
    text: Mapping[str, Any]
    path: tuple[str, ...] = ()
    composite: Composite | None = None

    @property
    def towers(self) -> Collection[str]:
        """Words in the names of tensors that belong to other parts."""
        return self.family.towers if self.composite is None else self.composite.towers

    def owns(self, tensor: str) -> bool:
        """Whether a tensor may be one of the text decoder's: by the places of its layers, where they are known."""
        if self.composite is None:
            return self.family.towers.isdisjoint(tensor.split("."))
        return any(tensor.startswith(f"{place}.") for place in self.composite.places)

    def tower_of(self, tensor: str) -> str | None:
        """The other part that a tensor belongs to; None for one of the text decoder, or of no known part."""
        return None if self.owns(tensor) else next((word for word in tensor.split(".") if word in self.towers), None)


def decoder_of(config: Mapping[str, Any]) -> Decoder:
    """The text decoder of a config; raises `NoRotaryError` or `UnknownFamilyError` with a sentence."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError("config.json has no model_type, so nothing tells how its class rotates", key="model_type")
    composite = COMPOSITES.get(model_type)
    if composite is None:
        _check_known(model_type, config)
        return Decoder(_row(model_type, config), config)
    text, path = _nested(config, composite)
    own_type = text.get("model_type") if path and composite.obeys_type else None
    row = _row(str(own_type or composite.text_type), text, whole=model_type)
    numbers = CLASS_NUMBERS.get(row.model_type, {})
    defaults = {key: value for key, value in numbers.items() if key != LAYERS} | dict(row.defaults)
    if LAYERS in numbers:
        text = {LAYERS: numbers[LAYERS], **text}
    return Decoder(replace(row, defaults=defaults, refusal=composite.refusal or row.refusal), text, path, composite)


def _nested(config: Mapping[str, Any], composite: Composite) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The text config, and the keys that lead to it; an older config of some types has its keys at the top."""
    text = config
    for key in composite.path:
        inner = text.get(key)
        if inner is None and composite.reads_flat:
            return config, ()
        where = ".".join(composite.path)
        if inner is None:
            raise ConfigError(
                f"config.json has no {key}, and a {composite.model_type} describes its text decoder under {where}; "
                f"its class would make one up from its own defaults",
                key=key,
            )
        if not isinstance(inner, dict):
            raise ConfigError(f"{key} is {inner!r}; it must be an object", key=key, value=inner)
        if key != composite.path[-1] and inner.get("model_type", composite.via) != composite.via:
            raise UnknownFamilyError(
                f"the {key} of this {composite.model_type} is a {inner['model_type']}; only {composite.via} is known "
                f"there",
                model_type=inner["model_type"],
            )
        text = inner
    return text, composite.path


def _check_known(model_type: str, config: Mapping[str, Any]) -> None:
    """Refuse a multimodal type that the data lacks: its text decoder could be anywhere."""
    parts = [key for key, value in config.items() if isinstance(value, dict) and value.get("model_type")]
    if model_type in TABLE or positions_of(config) or not parts:
        return
    raise UnknownFamilyError(
        f"{model_type} is a model of several parts ({', '.join(parts)}), and none of the {len(COMPOSITES)} multimodal "
        f"types whose text decoder is known; `ropetool families` lists them",
        model_type=model_type,
    )


def family_of(config: Mapping[str, Any]) -> Family:
    """The row of a config's text decoder; raises as `decoder_of` does."""
    return decoder_of(config).family


def rows_of(model_type: str) -> tuple[tuple[Family, ...], tuple[Composite, ...]]:
    """The row that a model type is read by, and how it is composed if it is multimodal; raises as `decoder_of` does."""
    composite = COMPOSITES.get(model_type)
    if composite is None:
        return (_row(model_type, {}),), ()
    return (_row(composite.text_type, {}, whole=model_type),), (composite,)


def no_conversion(composite: Composite) -> str | None:
    """Why a multimodal type cannot be converted, in a sentence; None where it can."""
    if composite.refusal:
        return composite.refusal
    row = TABLE.get(composite.text_type)
    return f"{composite.text_type} is not in the family table" if row is None else row.refusal or None


def _row(model_type: str, config: Mapping[str, Any], whole: str = "") -> Family:
    """The row of a type with ``config``; ``whole`` is the multimodal type whose text decoder it is."""
    if model_type in TABLE:
        return TABLE[model_type]
    positions = positions_of({**config, "model_type": model_type})
    whose = f"the text decoder of {whole}, {model_type}," if whole else f"the model type {model_type}"
    if positions:
        raise NoRotaryError(
            f"{whose if whole else model_type} has no rotary position embedding ({said(positions)}), so there is no "
            f"layout to convert and no rotation to extend",
            model_type=model_type,
            scheme=positions[0].scheme,
        )
    raise UnknownFamilyError(
        f"{whose} is not in the family table, so its row order is not known; "
        f"`ropetool families` lists the {len(TABLE)} types that are",
        model_type=model_type,
    )


def with_text_keys(config: Mapping[str, Any], path: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    """A copy of a whole config with keys of its text decoder's part changed."""
    if not path:
        return {**config, **changes}
    key, *rest = path
    return {**config, key: with_text_keys(config[key], tuple(rest), **changes)}


def text_part(config: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """The part of a whole config that ``path`` leads to, as it is written there."""
    for key in path:
        config = config[key]
    return config


def with_text(config: Mapping[str, Any], path: tuple[str, ...], text: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a whole config with ``text`` in the place of its text decoder's part."""
    if not path:
        return dict(text)
    key, *rest = path
    return {**config, key: with_text(config[key], tuple(rest), text)}
