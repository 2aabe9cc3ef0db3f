"""Open a config for doctor: also one that `read_model` refuses, because engines would read it differently."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ropetool.checkpoint.config import BLOCKS, number
from ropetool.engines.dialect import NAMES, ORIGINAL
from ropetool.engines.heard import Case
from ropetool.errors import ConfigError
from ropetool.families.decoder import Decoder, decoder_of, text_part, with_text, with_text_keys
from ropetool.families.geometry import SHARE
from ropetool.families.reading import Reading, read_model
from ropetool.rope import values

NUMBERS = (
    "rope_theta", SHARE, ORIGINAL, "factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
    "low_freq_factor", "high_freq_factor",
)  # fmt: skip
LISTS = ("short_factor", "long_factor")


def open_case(config: Mapping[str, Any]) -> Case:
    """A config as doctor reads it; one that contradicts itself about its rotation is opened without those keys.

    Raises `ConfigError` where a rope key has a value of the wrong kind: that is no question of reading.
    """
    try:
        return Case(config, read_model(config))
    except ConfigError as error:
        decoder = decoder_of(config)
        _check_kinds(decoder.text)
        try:
            return Case(config, _without_rope(config, decoder), error.message)
        except ConfigError:
            raise error from None


def _check_kinds(text: Mapping[str, Any]) -> None:
    """Raises `ConfigError` for a block that is no object, a name that is no text, and a number that is none."""
    _check_values(text)
    for where in BLOCKS:
        block = text.get(where) or {}
        if not isinstance(block, Mapping):
            raise ConfigError(f"{where} is {block!r}; it must be an object or null", key=where, value=block)
        for values_of_kind in (block, *(value for value in block.values() if isinstance(value, Mapping))):
            _check_values(values_of_kind)


def _check_values(block: Mapping[str, Any]) -> None:
    values.number(block, "factor", 1.0, least=1.0)
    for key in NUMBERS:
        number(block, key)
    for key in LISTS:
        if block.get(key) is not None:
            values.numbers(block, key)
    for key in NAMES:
        if not isinstance(block.get(key), (str, type(None))):
            raise ConfigError(f"{key} is {block[key]!r}; it must be the name of a rope type", key=key, value=block[key])


def _without_rope(config: Mapping[str, Any], decoder: Decoder) -> Reading:
    """The reading of all but the rope keys; in their place is nothing, or the plain block that some classes need."""
    unclear = {*BLOCKS, *decoder.family.theta_keys, "rope_theta", "partial_rotary_factor"}
    text = {key: value for key, value in text_part(config, decoder.path).items() if key not in unclear}
    bare = with_text(config, decoder.path, text)
    with suppress(ConfigError):
        return read_model(bare)
    plain = {"rope_type": "default", "rope_theta": decoder.family.theta_default}
    return read_model(with_text_keys(bare, decoder.path, **{BLOCKS[0]: plain}))
