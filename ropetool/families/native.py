"""The model under whatever extension a checkpoint already has: its trained length and its own base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.errors import MethodError
from ropetool.families.methods import EXTENDING, Method
from ropetool.families.reading import Reading, Rotation, Warn
from ropetool.rope.frequencies import Default, Linear, Proportional, Scaling


@dataclass(frozen=True)
class Native:
    """The model before any extension: trained length in tokens, base, and what the config says of an earlier one.

    ``method`` and ``factor`` are the earlier one's, None and 1 where there is none; ``reaches`` is the length in tokens
    that the checkpoint serves now.
    """

    length: int
    theta: float
    method: str | None
    factor: float
    reaches: int
    warnings: tuple[Warn, ...] = ()


def native_of(
    reading: Reading, rotation: Rotation, original: int | None, method: str, replace_existing: bool
) -> Native:
    """The trained length and base under whatever scaling is there; refuses to stack methods or to guess a length."""
    earlier = reading.extension
    scaled_by, factor = scaled_by_now(earlier, rotation.scaling)
    if scaled_by not in (None, method) and not replace_existing:
        trained = earlier.get("original_length") or rotation.block.values.get("original_max_position_embeddings")
        over = f"over {trained}" if trained else f"reaching {reading.reach}"
        further = f"Extend it further by {scaled_by}, or give" if scaled_by in EXTENDING else "Give"
        raise MethodError(
            f"this checkpoint is already extended by {scaled_by} (factor {factor:g} {over} tokens); {method} on "
            f"top would destroy it. {further} --replace to put {method} in its place",
            method=method,
            existing=scaled_by,
        )
    length, warnings = (original, ()) if original is not None else _trained(earlier, reading, rotation, scaled_by)
    theta = float(earlier.get("original_theta") or rotation.scaling.theta)
    return Native(length, theta, scaled_by, factor, reading.reach or length, warnings)


def scaled_by_now(earlier: Mapping[str, Any], scaling: Scaling) -> tuple[str | None, float]:
    """The method that is there, by the marker or else by the block, and its factor."""
    found = None if isinstance(scaling, Default) else scaling.name
    factor = float(getattr(scaling, "factor", 1.0))
    if isinstance(scaling, Proportional):
        found = None if factor == 1 else Linear.name
    return earlier.get("method") or found, float(earlier.get("factor") or factor)


def _trained(
    earlier: Mapping[str, Any], reading: Reading, rotation: Rotation, scaled_by: str | None
) -> tuple[int, tuple[Warn, ...]]:
    known = earlier.get("original_length") or rotation.block.values.get("original_max_position_embeddings")
    key = reading.family.keys.length
    if known is not None and scaled_by is None and known != reading.length:
        raise MethodError(
            f"original_max_position_embeddings is {known}, but nothing is scaled and {key} is {reading.length}; say "
            f"which is the trained length by --original",
            original_length=known,
            length=reading.length,
        )
    if known is not None:
        return int(known), ()
    if reading.length is None:
        raise MethodError(f"config.json has no {key}, so the trained length is not known; give it by --original")
    if scaled_by == Method.LINEAR.value:
        return _trained_under_linear(reading.length, float(getattr(rotation.scaling, "factor", 1.0)))
    if scaled_by == Method.NTK.value:
        raise MethodError(
            f"the block raises the base by alpha, and {key}, {reading.length}, may have been raised with it; give the "
            f"trained length by --original",
            length=reading.length,
        )
    if reading.length & (reading.length - 1):
        raise MethodError(
            f"{key} is {reading.length}, not a power of two, so it may hold more than the trained length (Qwen3 has "
            f"40960 for 32768 trained tokens); give the trained length by --original",
            length=reading.length,
        )
    return reading.length, ()


def _trained_under_linear(length: int, factor: float) -> tuple[int, tuple[Warn, ...]]:
    """Linear blocks do not hold the trained length; it is max / factor where the maximum was raised with it."""
    native = length / factor
    if native != int(native):
        raise MethodError(
            f"the linear block's factor {factor:g} does not divide the length {length}; give the trained length by "
            f"--original",
            length=length,
            factor=factor,
        )
    warning = Warn(
        "native-length",
        f"the trained length was taken as {length} / {factor:g} = {int(native)} tokens; if max_position_embeddings "
        f"was never raised for the linear factor, give the trained length by --original",
    )
    return int(native), (warning,)
