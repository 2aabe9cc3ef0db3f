"""Hear a config as an engine does whose reading is a row of data: a `Dialect`, and what its class takes by default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ropetool.engines.dialect import ORIGINAL, Dialect, Found, find_block, ignored, scaling_heard
from ropetool.engines.heard import Case, Heard, Refused, Turn, answer
from ropetool.errors import ConfigError
from ropetool.families.geometry import SHARE
from ropetool.rope.frequencies import Scaling


def heard_turn(
    dialect: Dialect,
    case: Case,
    found: Found,
    theta_keys: tuple[str, ...],
    theta_default: float | None,
    index: int = 0,
    base: Found | None = None,
) -> tuple[Turn, tuple[str, ...]]:
    """The rotation ``index`` as heard from the block that was found, and the keys passed over; raises `Refused`.

    ``base`` is the block in which the base is looked for, where that is another.
    """
    theta = (base or found).value("rope_theta", dialect.theta, null=dialect.null, top_keys=theta_keys)
    theta = theta_default if theta is None else theta
    if theta is None:
        raise Refused(f"it needs {theta_keys[0]} at the top level, and finds none")
    share = found.value(SHARE, dialect.share, null=False)
    scaling = scaling_heard(dialect, found, checked("the base", theta), case)
    try:
        width = case.width(index, None if share is None else checked(SHARE, share))
        scaling.inv_freq(width)  # a factor list of the wrong length shows here
    except ConfigError as error:
        raise Refused(error.message) from error
    turn = Turn(case.reading.rotations[index].layers, scaling, width)
    return turn, ignored(found, values_of(scaling, share))


def checked(what: str, value: Any) -> float:
    """A number that the engine computes with; raises `Refused` where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Refused(f"{what} is {value!r}, and it computes with it")
    return float(value)


def heard_flat(
    dialect: Dialect, case: Case, theta_keys: tuple[str, ...], theta_default: float | None, **more: Any
) -> Heard:
    """What an engine hears that rotates all layers alike; ``more`` are the fields that the rope keys do not tell."""
    try:
        found = find_block(dialect, case.turning, case.reading.length)
        turn, passed_over = heard_turn(dialect, case, found, theta_keys, theta_default)
    except Refused as refused:
        return answer(refused, **more)
    turns = tuple(Turn(rotation.layers, turn.scaling, turn.rotary_dim) for rotation in case.reading.rotations)
    return Heard(turns=turns, ignores=passed_over, **more)


def values_of(scaling: Scaling, share: float | None = None) -> Mapping[str, Any]:
    """A method's numbers under the names that they have in a rope block."""
    named = {"theta": "rope_theta", "original_length": ORIGINAL, "explicit_attention_factor": "attention_factor"}
    values = {named.get(key, key): value for key, value in asdict(scaling).items() if value is not None}
    values = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}
    return {"rope_type": scaling.name, **values, **({} if share is None else {SHARE: share})}
