"""A scaling method that was made by hand, held to what a config may say: there is one set of rules, the reader's.

A class of `ropetool.rope.frequencies` takes any numbers; with some of them its tables would be wrong in silence (NaN,
zeros, a ramp that runs backwards) or an error of Python's arithmetic.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from ropetool.errors import ConfigError
from ropetool.rope.frequencies import (
    MAX_LENGTH,
    METHODS,
    ORIGINAL,
    AdjustedBase,
    LongRope,
    NtkAware,
    Scaling,
    scaling_from_block,
)
from ropetool.rope.values import fault, number

# The keys of a config whose names are not those of the fields.
KEYS = {"original_length": ORIGINAL, "explicit_attention_factor": "attention_factor", "share": "partial_rotary_factor"}
FIELDS = {**{key: name for name, key in KEYS.items()}, MAX_LENGTH: "original_length"}


def checked(scaling: Scaling) -> Scaling:
    """The method as it is; raises `ConfigError` naming the key whose value a config's reader would refuse.

    NTK-aware scaling and an adjusted base have no block in a config: the factor of the one is a number above 0 (as
    ``alpha`` in HunYuan's), the base of the other is above the first one, as ``extend`` wants it. A method of another
    module, under a name of its own, has rules of its own.
    """
    if scaling.name not in (*METHODS, NtkAware.name, AdjustedBase.name):
        return scaling
    try:
        _hold(scaling, _block_of(scaling))
    except ConfigError as error:
        key = error.fields.get("key")  # two that disagree are both in the message
        whose = f"{type(scaling).__name__}'s {FIELDS.get(key, key)}" if key else type(scaling).__name__
        raise type(error)(f"{whose} is held to what a config may say: {error.message}", **error.fields) from None
    return scaling


def _block_of(scaling: Scaling) -> dict[str, Any]:
    """The method as a config would say it. Raises `ConfigError` for a number that is None and may not be."""
    block: dict[str, Any] = {"rope_type": scaling.name}
    for field in fields(scaling):
        key, value = KEYS.get(field.name, field.name), _as_in_json(getattr(scaling, field.name))
        if value is None and field.default is not None:  # a config may leave it out, a class has nothing in its place
            raise fault(key, "is missing")
        block[key] = value
    return block


def _hold(scaling: Scaling, block: dict[str, Any]) -> None:
    theta = number(block, "theta")
    if isinstance(scaling, NtkAware):
        number(block, "factor")
    elif isinstance(scaling, AdjustedBase):
        if number(block, "base") <= theta:
            raise fault("base", f"is {scaling.base:g}, not above {theta:g}, the base before", scaling.base)
    else:
        if isinstance(scaling, LongRope) and number(block, "factor") < 1:
            block["factor"] = None  # a config's own is 1 or more; the ratio of two lengths, in its place, may be below
        scaling_from_block(block, theta, block.get(ORIGINAL))


def _as_in_json(value: Any) -> Any:
    """Numbers and arrays of numpy as Python's, a tuple as a list."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [_as_in_json(one) for one in value] if isinstance(value, (tuple, list)) else value
