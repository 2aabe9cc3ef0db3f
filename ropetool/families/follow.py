"""What a conversion does with one tensor: which of its forms a shape fits, and the permutation that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ropetool.checkpoint.fields import ROWS, WORD_BITS, Axis, Lay
from ropetool.checkpoint.shards import Shard, Tensor
from ropetool.errors import QuantisedError, ShapeError
from ropetool.families.companions import ANEW, Companion, Form
from ropetool.families.quantisation import Quantisation
from ropetool.rope.pairing import IndexMap


@dataclass(frozen=True)
class Place:
    """Where a tensor belongs: its projection's rows, heads and rows of a head, and how the checkpoint is quantised.

    ``fused`` tells that the projection holds q, k and v.
    """

    rows: int
    heads: int
    head_dim: int
    fused: bool
    quantisation: Quantisation


def _leading(tensor: Tensor, place: Place) -> bool:
    return any(math.prod(tensor.shape[:axis]) == place.rows for axis in range(1, len(tensor.shape) + 1))


def _first(tensor: Tensor, place: Place) -> bool:
    return tensor.shape[:1] == (place.rows,)


def _last(tensor: Tensor, place: Place) -> bool:
    return len(tensor.shape) == 2 and tensor.shape[1] == place.rows


def _packed(axis: int) -> Callable[[Tensor, Place], bool]:
    def fits(tensor: Tensor, place: Place) -> bool:
        widths = place.quantisation.bits
        return len(tensor.shape) == 2 and any(tensor.shape[axis] * WORD_BITS == place.rows * bits for bits in widths)

    return fits


def _blocks(tensor: Tensor, place: Place) -> bool:
    block = place.quantisation.block
    return len(tensor.shape) == 2 and block is not None and tensor.shape[0] == -(-place.rows // block[0])


def _one(tensor: Tensor, place: Place) -> bool:
    return math.prod(tensor.shape) == 1 or (place.fused and math.prod(tensor.shape) == 3)


def _heads(tensor: Tensor, place: Place) -> bool:
    return math.prod(tensor.shape) in (1, place.heads)


def _any(tensor: Tensor, place: Place) -> bool:
    return True


FITS: Mapping[Form, Callable[[Tensor, Place], bool]] = {
    Form.LEADING: _leading,
    Form.ROWS: _first,
    Form.COLUMNS: _last,
    Form.PACKED_ROWS: _packed(0),
    Form.PACKED_COLUMNS: _packed(1),
    Form.BLOCKS: _blocks,
    Form.ONE: _one,
    Form.HEADS: _heads,
    Form.ZERO: _one,
    Form.STAYS: _any,
}


def form_of(companion: Companion, tensor: Tensor, place: Place) -> Form:
    """The form that the tensor's shape fits; raises `ShapeError` where it fits none."""
    if tensor.size_bytes or companion.forms == (Form.STAYS,):
        for form in companion.forms:
            if FITS[form](tensor, place):
                return form
    if companion.forms == (Form.LEADING,):
        tensor.row_bytes(place.rows)
    block = place.quantisation.block if Form.BLOCKS in companion.forms else None
    named = f"blocks of {block[0]} x {block[1]}" if block else "no block size"
    said = f" (config.json names {named})" if Form.BLOCKS in companion.forms else ""
    raise ShapeError(
        f"{tensor.name} has shape {list(tensor.shape)}, and for a projection of {place.rows} rows it should be so: "
        f"{', or '.join(form.value for form in companion.forms)}{said}; check the head counts, head_dim and the "
        f"quantisation in config.json",
        tensor=tensor.name,
        shape=list(tensor.shape),
        expected_rows=place.rows,
    )


def follow(
    companion: Companion, shard: Shard, tensor: Tensor, index: IndexMap, place: Place
) -> tuple[IndexMap, Lay] | None:
    """The permutation of a tensor, and how its rows lie in it; None where it stays as it is.

    ``index`` is the permutation of the projection's rows. Raises `ShapeError`, and `QuantisedError` where the result
    would not be exact.
    """
    match form_of(companion, tensor, place):
        case Form.LEADING | Form.ROWS:
            tensor.row_bytes(place.rows)
            return index, ROWS
        case Form.COLUMNS:
            return index, Lay(Axis.LAST)
        case Form.PACKED_ROWS:
            return index, Lay(Axis.FIRST, tensor.shape[0] * WORD_BITS // place.rows)
        case Form.PACKED_COLUMNS:
            return index, Lay(Axis.LAST, tensor.shape[1] * WORD_BITS // place.rows)
        case Form.BLOCKS:
            return _block_index(tensor, index, place), ROWS
        case Form.ZERO:
            _check_zero(shard, tensor)
            return None
        case Form.ONE | Form.HEADS | Form.STAYS:
            return None


def _block_index(tensor: Tensor, index: IndexMap, place: Place) -> IndexMap:
    """The permutation of whole blocks; raises `QuantisedError` where the rows of one block come from several."""
    rows, columns = place.quantisation.block or (1, 1)
    comes_from = index // rows
    of_block = comes_from[::rows]
    crossing = np.flatnonzero(comes_from != of_block[np.arange(len(index)) // rows])
    if len(crossing):
        row = int(crossing[0])
        raise QuantisedError(
            f"{tensor.name} holds one scale for each block of {rows} rows and {columns} columns, and with head_dim "
            f"{place.head_dim} rows would cross blocks: row {row} of the result (block {row // rows}) would be row "
            f"{int(index[row])} (block {int(index[row]) // rows}), under another scale than its neighbours; {ANEW}",
            tensor=tensor.name,
            head_dim=place.head_dim,
            block_rows=rows,
            row=row,
            source_row=int(index[row]),
        )
    return of_block


def _check_zero(shard: Shard, tensor: Tensor) -> None:
    if any(shard.read(tensor)):
        raise QuantisedError(
            f"{tensor.name} is not 0, so the weight beside it is tiled for one kind of GPU, not kept in rows; {ANEW}",
            tensor=tensor.name,
        )
