"""How much context a checkpoint was trained on and made to serve, whatever it rotates by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.checkpoint.config import count
from ropetool.errors import NoRotaryError, UnknownFamilyError
from ropetool.families.lengths import OTHER_LENGTH_KEYS
from ropetool.families.reading import Reading, read_model
from ropetool.rope.frequencies import Dynamic, Linear, LongRope


@dataclass(frozen=True)
class Context:
    """Lengths in tokens, None where nothing says so.

    ``by_length``: the frequencies depend on the number of tokens in play. ``soft_cap``: attention scores are capped.
    """

    trained: int | None
    reach: int | None
    by_length: bool = False
    soft_cap: bool = False


def context_of(config: Mapping[str, Any]) -> Context:
    """The context of a config, of a model type that ropetool does not know or that does not rotate, too."""
    try:
        reading = read_model(config)
    except (NoRotaryError, UnknownFamilyError):
        section = config.get("text_config")
        keys = ("max_position_embeddings", "n_positions", *OTHER_LENGTH_KEYS)
        places = (section if isinstance(section, dict) else {}, config)
        found = next((n for place in places for key in keys if (n := count(place, key))), None)
        return Context(found, found)
    scalings = [rotation.scaling for rotation in (*reading.rotations, *reading.others)]
    by_length = any(isinstance(scaling, (Dynamic, LongRope)) for scaling in scalings)
    return Context(trained_of(reading), reading.reach, by_length, bool(reading.config.get("attn_logit_softcapping")))


def trained_of(reading: Reading) -> int | None:
    """By the marker of an extension, else by the block; a linear block does not hold it, and multiplies it."""
    known = reading.extension.get("original_length")
    rotation = reading.rotations[0]
    if known or not isinstance(rotation.scaling, Linear):
        return known or rotation.original_length or reading.length
    length = (reading.length or 0) / rotation.scaling.factor
    return int(length) if length and length == int(length) else reading.length
