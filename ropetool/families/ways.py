"""The ways to turn a checkpoint's pairs, side by side: as it does, without scaling, and by each method and factor.

What a method does is what `extend` would write: the same recipe, read back the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ropetool.errors import RopetoolError
from ropetool.families.context import trained_of
from ropetool.families.methods import Method
from ropetool.families.native import Native, native_of, scaled_by_now
from ropetool.families.reading import Reading, Rotation, Warn
from ropetool.families.recipes import planned_block, settings_of_class
from ropetool.rope.frequencies import Default, Proportional, Scaling, scaling_from_block

# Methods that need nothing beside a factor: LongRoPE needs lists that were searched for, abf a base that is given.
SHOWN = (Method.LINEAR, Method.NTK, Method.DYNAMIC, Method.YARN, Method.LLAMA3)
FACTORS = (2.0, 4.0, 8.0, 16.0, 32.0)
LARGEST_OWN = 1024.0
UNSCALED = "none"
OWN = "own"


@dataclass(frozen=True)
class Way:
    """One way to turn: a scaling with its name, the length in tokens that it is looked at in, and its factor.

    ``method`` is `OWN` for what config.json says, `UNSCALED`, or one of `Method`. ``length`` is None where none is
    known; ``note`` is why the class of the checkpoint cannot take the method by its config, empty where it can.
    """

    method: str
    scaling: Scaling
    length: int | None
    factor: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Left:
    """A method that cannot be had, and why."""

    method: str
    factor: float
    why: str


@dataclass(frozen=True)
class Ways:
    """All ways of one rotation, and the lengths in tokens that they are about; None where nothing tells one.

    ``own`` is what config.json says, once for each length at which it turns differently: that which the checkpoint was
    made to serve, and the trained one. ``factors`` are those of ``methods``, rising.
    """

    trained: int | None
    reach: int | None
    own: tuple[Way, ...]
    unscaled: Way
    methods: tuple[Way, ...]
    left: tuple[Left, ...]
    factors: tuple[float, ...]
    warnings: tuple[Warn, ...]


def ways_of(reading: Reading, rotation: Rotation, original: int | None) -> Ways:
    """The ways of one of the reading's rotations; ``original`` is the trained length where a person has told it.

    Only the first rotation is one that an extension scales: of the others there are no methods to show.
    """
    native, warnings = _native(reading, rotation, original)
    trained, reach = native.length or None, reading.reach
    own = tuple(_own(rotation, trained, reach))
    unscaled = Way(UNSCALED, _unscaled(rotation.scaling, native.theta), trained)
    if native.length == 0 or rotation is not reading.rotations[0]:
        return Ways(trained, reach, own, unscaled, (), (), (), warnings)
    factors = _factors(native.length, reach)
    found = [_planned(reading, rotation, native, method, factor) for method in SHOWN for factor in factors]
    methods = tuple(way for way in found if isinstance(way, Way))
    left = tuple(way for way in found if isinstance(way, Left))
    return Ways(trained, reach, own, unscaled, methods, left, factors, warnings)


def _factors(trained: int, reach: int | None) -> tuple[float, ...]:
    """Those that are shown, and the checkpoint's own."""
    own = (reach or 0) / trained
    return tuple(sorted({*FACTORS, own})) if 1 < own <= LARGEST_OWN else FACTORS


def _native(reading: Reading, rotation: Rotation, original: int | None) -> tuple[Native, tuple[Warn, ...]]:
    """The model before any extension; where its trained length is in doubt, the one that is declared, and a warning."""
    method, factor = scaled_by_now(reading.extension, rotation.scaling)
    try:
        native = native_of(reading, rotation, original, method or Method.LINEAR.value, True)
        return native, native.warnings
    except RopetoolError as error:
        declared = trained_of(reading)
        theta = float(reading.extension.get("original_theta") or rotation.scaling.theta)
        native = Native(declared or 0, theta, method, factor, reading.reach or 0)
        said = f"the trained length is shown as {declared}" if declared else "no trained length is shown"
        return native, (Warn("trained-length-unclear", f"{said}: {error.message}"),)


def _unscaled(scaling: Scaling, theta: float) -> Scaling:
    """A block that turns the first pairs of a head alone does so without a factor, too."""
    return replace(scaling, factor=1.0) if isinstance(scaling, Proportional) else Default(theta)


def _own(rotation: Rotation, trained: int | None, reach: int | None) -> Iterator[Way]:
    """As config.json says, at the trained length and beyond it where that makes a difference."""
    scaling, width = rotation.scaling, rotation.geometry.rotary_dim
    factor = getattr(scaling, "factor", None)
    lengths = tuple(dict.fromkeys(length for length in (reach, trained) if length)) or (None,)
    before = None
    for length in lengths:
        found = scaling.inv_freq(width, length).tobytes(), scaling.attention_factor_at(length)
        if found != before:
            yield Way(OWN, scaling, length, factor)
        before = found


def _planned(reading: Reading, rotation: Rotation, native: Native, method: Method, factor: float) -> Way | Left:
    """What ``method`` would do by ``factor`` over the native length."""
    family = reading.family
    note = family.methods_reason if family.methods is not None and method.value not in family.methods else ""
    try:
        block = planned_block(method, rotation, native, factor, settings_of_class(reading, method))
        scaling = scaling_from_block(block.values, block.theta, native.length)
        scaling.inv_freq(rotation.geometry.rotary_dim)
    except RopetoolError as error:
        return Left(method.value, factor, error.message)
    return Way(method.value, scaling, int(native.length * factor), factor, note)
