"""The model under whatever extension a checkpoint already has: its trained length and its own base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.checkpoint.config import earlier_extension
from ropetool.errors import MethodError
from ropetool.families.methods import Method
from ropetool.families.reading import Reading, Rotation, Warn
from ropetool.rope.frequencies import Default


@dataclass(frozen=True)
class Native:
    """The model before any extension: trained length in tokens, base, and what the config says of an earlier one."""

    length: int
    theta: float
    method: str | None
    warnings: tuple[Warn, ...] = ()


def native_of(
    config: Mapping[str, Any],
    reading: Reading,
    rotation: Rotation,
    original: int | None,
    method: str,
    replace_existing: bool,
) -> Native:
    """The trained length and base under whatever scaling is there; refuses to stack methods or to guess a length."""
    earlier = earlier_extension(config)
    scaled_by = earlier.get("method") or (None if isinstance(rotation.scaling, Default) else rotation.scaling.name)
    if scaled_by not in (None, method) and not replace_existing:
        factor = earlier.get("factor") or getattr(rotation.scaling, "factor", 1.0)
        over = earlier.get("original_length") or rotation.original_length or reading.length
        further = f"Extend it further by {scaled_by}, or give" if scaled_by in tuple(Method) else "Give"
        raise MethodError(
            f"this checkpoint is already extended by {scaled_by} (factor {factor:g} over {over} tokens); {method} on "
            f"top would destroy it. {further} --replace to put {method} in its place",
            method=method,
            existing=scaled_by,
        )
    theta = float(earlier.get("original_theta") or rotation.scaling.theta)
    if original is not None:
        return Native(original, theta, scaled_by)
    known = earlier.get("original_length") or rotation.block.values.get("original_max_position_embeddings")
    if known is not None and scaled_by is None and known != reading.length:
        raise MethodError(
            f"original_max_position_embeddings is {known}, but nothing is scaled and {reading.family.keys.length} is "
            f"{reading.length}; say which is the trained length by --original",
            original_length=known,
            length=reading.length,
        )
    if known is not None:
        return Native(int(known), theta, scaled_by)
    if reading.length is None:
        key = reading.family.keys.length
        raise MethodError(f"config.json has no {key}, so the trained length is not known; give it by --original")
    if scaled_by == "linear":
        return _native_of_linear(reading.length, float(getattr(rotation.scaling, "factor", 1.0)), theta)
    if reading.length & (reading.length - 1):
        raise MethodError(
            f"{reading.family.keys.length} is {reading.length}, not a power of two, so it may hold more than the "
            f"trained length (Qwen3 has 40960 for 32768 trained tokens); give the trained length by --original",
            length=reading.length,
        )
    return Native(reading.length, theta, scaled_by)


def _native_of_linear(length: int, factor: float, theta: float) -> Native:
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
    return Native(int(native), theta, "linear", (warning,))
