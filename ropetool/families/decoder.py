"""Which part of a config describes the text decoder: a multimodal config keeps it under a key of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.errors import ConfigError, NoRotaryError, UnknownFamilyError
from ropetool.families.family import Family
from ropetool.families.schemes import scheme_of
from ropetool.families.table import TABLE


@dataclass(frozen=True)
class Composite:
    """A multimodal model type: the type of its text decoder, the keys that lead to its config, and the other towers.

    ``towers`` are names of modules: a tensor with one of them in its name belongs to no text decoder.
    """

    model_type: str
    text_type: str
    path: tuple[str, ...]
    towers: frozenset[str]


# Written by tools/read_composites.py from the classes of transformers.
COMPOSITES: Mapping[str, Composite] = {
    model_type: Composite(model_type, row["text_type"], tuple(row["path"]), frozenset(row["towers"]))
    for model_type, row in json.loads(Path(__file__).with_name("composites.json").read_text("utf-8")).items()
}


@dataclass(frozen=True)
class Decoder:
    """The text decoder of a config: its row, its own config, and where that lies in the whole."""

    family: Family
    text: Mapping[str, Any]
    path: tuple[str, ...] = ()
    towers: frozenset[str] = frozenset()

    def owns(self, tensor: str) -> bool:
        """Whether a tensor may be one of the text decoder's."""
        return self.towers.isdisjoint(tensor.split("."))


def decoder_of(config: Mapping[str, Any]) -> Decoder:
    """The text decoder of a config; raises `NoRotaryError` or `UnknownFamilyError` with a sentence."""
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ConfigError("config.json has no model_type, so nothing tells how its class rotates", key="model_type")
    composite = COMPOSITES.get(model_type)
    if composite is None:
        row = _row(model_type)
        return Decoder(row, config, towers=row.towers)
    text, path = _nested(config, composite.path)
    text_type = text.get("model_type") if path else composite.text_type
    return Decoder(_row(str(text_type or composite.text_type)), text, path, composite.towers)


def _nested(config: Mapping[str, Any], path: tuple[str, ...]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """The text config, and the keys that lead to it; an older config of the same type has its keys at the top."""
    text = config
    for key in path:
        inner = text.get(key)
        if inner is None:
            return config, ()
        if not isinstance(inner, dict):
            raise ConfigError(f"{key} is {inner!r}; it must be an object", key=key, value=inner)
        text = inner
    return text, path


def family_of(config: Mapping[str, Any]) -> Family:
    """The row of a config's text decoder; raises as `decoder_of` does."""
    return decoder_of(config).family


def _row(model_type: str) -> Family:
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


def with_text_keys(config: Mapping[str, Any], path: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    """A copy of a whole config with keys of its text decoder's part changed."""
    if not path:
        return {**config, **changes}
    key, *rest = path
    return {**config, key: with_text_keys(config[key], tuple(rest), **changes)}
