"""What a position encoding is given, checked: counts, widths, shapes, number types, and positions within a table.

Each check takes plain numbers, shapes and names, so that the numpy and the torch form of an encoding share it.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import EncodingError, PositionError
from ropetool.rope.layout import Pairing

Indices = npt.NDArray[np.int64]
AnyFloats = npt.NDArray[np.floating[Any]]
Shape = tuple[int, ...]


def whole(name: str, value: Any, least: int | None = None) -> int:
    """A whole number, ``least`` or more; raises `EncodingError` for another one, or for what is none."""
    wanted = "a whole number" if least is None else f"a whole number, {least} or more"
    try:
        number = operator.index(value)
    except TypeError:
        raise EncodingError(f"{name} is {value!r}; it must be {wanted}", **{name: value}) from None
    if isinstance(value, bool) or (least is not None and number < least):
        raise EncodingError(f"{name} is {value!r}; it must be {wanted}", **{name: value})
    return number


def even(name: str, value: Any) -> int:
    """An even width, 2 or more: coordinates come in pairs, as each frequency has a sine and a cosine."""
    number = whole(name, value, least=2)
    if number % 2:
        raise EncodingError(
            f"{name} is {number}; it must be even, as each frequency takes two coordinates ({number - 1} or "
            f"{number + 1} would do)",
            **{name: number},
        )
    return number


def fits(name: str, shape: Shape, wanted: Shape, why: str = "") -> None:
    """Raises `EncodingError` where a shape is not the wanted one; ``why`` ends its sentence."""
    if tuple(shape) != wanted:
        said = f"{name} has the shape {list(shape)}; it must be {list(wanted)}{why}"
        raise EncodingError(said, **{name: list(shape)}, wanted=list(wanted))


def layout(pairing: Pairing | str) -> Pairing:
    """The layout by its name; raises `EncodingError` for another word, which must never stand for one of the two."""
    try:
        return Pairing(pairing)
    except ValueError:
        known = " and ".join(repr(p.value) for p in Pairing)
        raise EncodingError(f"pairing is {pairing!r}; the two layouts are {known}", pairing=pairing) from None


def floating(name: str, is_floating: bool, dtype: Any) -> None:
    """Raises `EncodingError` for a vector of whole numbers: turned and rounded, it would be another vector."""
    if not is_floating:
        raise EncodingError(f"{name} is {dtype}; it must be of floating-point numbers", dtype=str(dtype))


def whole_numbers(name: str, values: npt.ArrayLike) -> Indices:
    """An array of whole numbers; raises `EncodingError` for one of others."""
    found = np.asarray(values)
    if found.size and found.dtype.kind not in "iu":
        raise EncodingError(f"{name} are whole numbers, not {found.dtype}", dtype=str(found.dtype))
    return found.astype(np.int64)


def places(positions: npt.ArrayLike, rows: int, what: str) -> Indices:
    """Positions as an index into the rows of ``what``.

    Raises `PositionError` for one that has no row: one beyond, or one below 0, which as an index would silently count
    from the end.
    """
    found = whole_numbers("positions", positions)
    lowest, highest = (int(found.min()), int(found.max())) if found.size else (0, -1)
    if lowest < 0 or highest >= rows:
        worst = lowest if lowest < 0 else highest
        raise PositionError(
            f"position {worst} has no row in {what}: the {rows} rows are for positions 0 to {rows - 1}",
            position=worst,
            rows=rows,
        )
    return found
