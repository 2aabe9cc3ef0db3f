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


def array(name: str, value: Any, hint: str = "") -> npt.NDArray[Any]:
    """What is given as an array; raises `EncodingError`, which ends with ``hint``, where numpy cannot take it."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different lengths; a tensor in bfloat16, on a GPU
        raise EncodingError(f"{name} cannot be taken as an array: {error}{hint}", argument=name) from None


def floating(name: str, is_floating: bool, dtype: Any) -> None:
    """Raises `EncodingError` for whole numbers: turned and rounded, a vector would be another, and sums overflow.

    Numbers of 8 bits are none to compute with either: they count with a scale that is kept beside them.
    """
    if not is_floating:
        said = f"{name} is {dtype}; it must be of floating-point numbers, of 16 bits or more"
        raise EncodingError(said, dtype=str(dtype))


def ranked(name: str, shape: Shape, least: int, wanted: str) -> None:
    """Raises `EncodingError` for a shape of fewer than ``least`` dimensions; ``wanted`` is how it should be."""
    if len(shape) < least:
        said = f"{name} has the shape {list(shape)}; it must be {wanted}"
        raise EncodingError(said, **{name: list(shape)}, wanted=wanted)


def whole_numbers(name: str, values: npt.ArrayLike) -> npt.NDArray[np.integer[Any]]:
    """An array of whole numbers; raises `EncodingError` for one of others."""
    found = array(name, values)
    if found.size and found.dtype.kind not in "iu":
        raise EncodingError(f"{name} are whole numbers, not {found.dtype}", dtype=str(found.dtype))
    return found if found.size else found.astype(np.int64)


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
    return found.astype(np.int64)


def in_order(cos: Any, sin: Any) -> None:
    """Raises `EncodingError` for two tables that are in each other's place, or have a column for each coordinate.

    Row 0 tells the first, where it is that of position 0: cos is the attention factor there, and sin is 0. Columns
    tell the second, since no two pairs of `rope_cache` turn alike. transformers writes each column twice, and where
    half of a head turns that is as many columns as a whole head has pairs.
    """
    if len(cos) and bool((cos[:1] == 0).all()) and bool((sin[:1] > 0).all()):
        raise EncodingError(
            "cos is 0 in the whole of row 0 and sin is not, but nothing turns at position 0, where sin is 0: the two "
            "tables are in each other's place. Give cos first, then sin",
            swapped=True,
        )
    columns = cos.shape[1]
    for twice in (_halves, _neighbours) if columns % 2 == 0 else ():
        # the last row first: it tells nearly always, and tables may be long
        if twice(cos[-1:]) and twice(sin[-1:]) and twice(cos) and twice(sin) and bool((sin != 0).any()):
            raise EncodingError(
                f"cos and sin have each of {columns // 2} columns twice, as transformers has them: a column is for a "
                f"pair, not for a coordinate. Give the {columns // 2} different ones, and rotary_dim={columns}",
                columns=columns,
            )


def _halves(table: Any) -> bool:
    half = table.shape[1] // 2
    return bool((table[:, :half] == table[:, half:]).all())


def _neighbours(table: Any) -> bool:
    return bool((table[:, 0::2] == table[:, 1::2]).all())
