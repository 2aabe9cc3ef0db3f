"""How the tensors of two checkpoints differ: not at all, by the permutation between the layouts alone, or otherwise."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ropetool.checkpoint.compare import first_wrong_row, same_bytes, same_form
from ropetool.checkpoint.distance import Distance, distance, row_digests, same_rows
from ropetool.checkpoint.fields import ROWS, Lay
from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.shards import Shard, Tensor
from ropetool.families.difference import Difference, How, PartOf, What
from ropetool.rope.pairing import Head, IndexMap, Keep, Pairing, Span, index_map, rows_of

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED
WAYS = ((HALF, INTERLEAVED), (INTERLEAVED, HALF))
MOST_NAMES = 8
# Rows that were trained further after a permutation are nearer to it by far; unrelated ones are as far in any order.
CLEARLY_NEARER = 0.5
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Turning:
    """A tensor whose rows depend on the layout: its permutation in each direction, and how its rows lie in it.

    ``spans`` are the heads that its rows fall into, empty where they are not known (beside an adapter's matrices).
    """

    index: Mapping[tuple[Pairing, Pairing], IndexMap]
    lay: Lay = ROWS
    spans: tuple[Span, ...] = ()
    heads: tuple[int, ...] = ()


@dataclass(frozen=True)
class Both:
    """One tensor on both sides."""

    shard_a: Shard
    a: Tensor
    shard_b: Shard
    b: Tensor

    @property
    def pair(self) -> tuple[Shard, Tensor, Shard, Tensor]:
        """The two, as the functions of `checkpoint.compare` take them."""
        return self.shard_a, self.a, self.shard_b, self.b

    @property
    def identical(self) -> bool:
        """Whether both hold the same bytes; a hard link does without being read."""
        linked = self.a.start == self.b.start and os.path.samefile(self.shard_a.path, self.shard_b.path)
        return linked or same_bytes(*self.pair)


@dataclass(frozen=True)
class Tensors:
    """The differences of all tensors, and how many were compared, and of those turned."""

    differences: tuple[Difference, ...]
    compared: int
    turning: int


def tensor_differences(
    a: Checkpoint,
    b: Checkpoint,
    turning: Mapping[str, Turning],
    expected: tuple[Pairing, Pairing],
    progress: Progress,
) -> Tensors:
    """Compare every tensor of ``a`` with that of the same name in ``b``.

    ``turning`` are those whose rows depend on the layout, ``expected`` the layouts that the two sides are read as.
    """
    differences, others = [*_missing(a, b), *_other_form(a, b)], []
    shared = [name for name in a.tensors if name in b.tensors and same_form(a.tensors[name], b.tensors[name])]
    for name in shared:
        both = Both(a.weight_map[name], a.tensors[name], b.weight_map[name], b.tensors[name])
        if name in turning:
            differences += _turned(both, turning[name], expected)
        elif not both.identical:
            others.append(name)
        progress(both.a.size_bytes)
    if others:
        differences.append(_together(others, None, None, How.VALUES, "that no layout reaches, with other values"))
    return Tensors(tuple(differences), len(shared), sum(name in turning for name in shared))


def _form(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(tensor.shape)}"


def _missing(a: Checkpoint, b: Checkpoint) -> Iterator[Difference]:
    for side, here, there in (("first", a, b), ("second", b, a)):
        names = sorted(here.tensors.keys() - there.tensors.keys())
        if names:
            form = _form(here.tensors[names[0]])
            one, other = (form, None) if here is a else (None, form)
            yield _together(names, one, other, How.MISSING, f"in the {side} checkpoint only")


def _other_form(a: Checkpoint, b: Checkpoint) -> Iterator[Difference]:
    """Tensors of another dtype or shape, together where the forms are the same ones."""
    by_form: dict[tuple[str, str], list[str]] = {}
    for name, tensor in a.tensors.items():
        other = b.tensors.get(name)
        if other is not None and not same_form(tensor, other):
            dtype_alone = tensor.shape == other.shape
            forms = (tensor.dtype, other.dtype) if dtype_alone else (_form(tensor), _form(other))
            by_form.setdefault(forms, []).append(name)
    for forms, names in by_form.items():
        yield _together(names, *forms, How.FORM, "of another dtype or shape; the values were not compared")


def _together(names: list[str], a: str | None, b: str | None, how: How, detail: str) -> Difference:
    """One line on several tensors that differ alike."""
    more = len(names) - 1
    where = names[0] + (f" and {more} more" if more else "")
    said = f"{len(names)} tensors {detail}" if more else detail
    return Difference(What.TENSOR, where, a, b, said, how=how, facts={"count": len(names), "names": names[:MOST_NAMES]})


def _turned(both: Both, turning: Turning, expected: tuple[Pairing, Pairing]) -> Iterator[Difference]:
    """What is to be said of one tensor of q or k."""
    name = both.a.name
    if both.identical:
        if expected in turning.index and not _permuted(both, turning, expected):
            detail = f"identical, where {expected[0].value} and {expected[1].value} rows lie in different orders"
            yield _line(name, expected[0].value, expected[1].value, How.NOT_PERMUTED, detail)
        return
    found = next((way for way in _ways_first(expected) if _permuted(both, turning, way)), None)
    if found is None:
        yield _otherwise(both, turning, expected)
        return
    detail = f"the same rows, permuted from {found[0].value} to {found[1].value}"
    if found == expected:
        yield _line(name, found[0].value, found[1].value, How.LAYOUT, detail, PartOf.LAYOUT)
        return
    why = (
        f"though the first is read as {expected[0].value} and the second as {expected[1].value}"
        if expected[0] is not expected[1]
        else f"though both are read as {expected[0].value}"
    )
    yield _line(name, found[0].value, found[1].value, How.LAYOUT, f"{detail}, {why}")


def _ways_first(expected: tuple[Pairing, Pairing]) -> Iterable[tuple[Pairing, Pairing]]:
    """Both directions, the one first that takes the first side's layout to the other."""
    return sorted(WAYS, key=lambda way: way[0] is not expected[0])


def _permuted(both: Both, turning: Turning, way: tuple[Pairing, Pairing]) -> bool:
    return first_wrong_row(*both.pair, turning.index[way], turning.lay) is None


def _line(
    name: str,
    a: str | None,
    b: str | None,
    how: How,
    detail: str,
    part_of: PartOf | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Difference:
    return Difference(What.TENSOR, name, a, b, detail, part_of, how, facts or {})


def _otherwise(both: Both, turning: Turning, expected: tuple[Pairing, Pairing]) -> Difference:
    """A tensor of q or k that is neither the same nor permuted: the same rows in another order, or other values."""
    name = both.a.name
    if turning.lay != ROWS:
        return _line(name, None, None, How.VALUES, "other values, in no order of a layout")
    rows = len(turning.index[WAYS[0]])
    digests_a, digests_b = (
        row_digests(shard, tensor, rows) for shard, tensor in ((both.shard_a, both.a), (both.shard_b, both.b))
    )
    if same_rows(digests_a, digests_b):
        wrong = int((digests_a != digests_b).any(axis=1).sum())
        known = next((said for said, index in _mistakes(turning) if np.array_equal(digests_a[index], digests_b)), None)
        detail = f"the same rows in another order ({wrong} of {rows} lie elsewhere), not that of a layout: "
        detail += known or "no permutation that is known"
        facts = {"rows": rows, "rows_differing": wrong, "order": known}
        return _line(name, None, None, How.OTHER_ORDER, detail, facts=facts)
    return _apart(both, turning, expected, rows)


def _apart(both: Both, turning: Turning, expected: tuple[Pairing, Pairing], rows: int) -> Difference:
    """A tensor whose values differ, held against the first in each order of rows that it may have been made from."""
    said, nearest = "", distance(*both.pair, np.arange(rows, dtype=np.int64))
    for way in _ways_first(expected):
        found = distance(*both.pair, turning.index[way])
        if _size(found) < CLEARLY_NEARER * _size(nearest):
            said, nearest = f", after its rows are permuted from {way[0].value} to {way[1].value}", found
    size = "" if nearest.max_abs is None else f"; the largest |difference| is {nearest.max_abs:.3g}"
    detail = f"{nearest.rows_differing} of {rows} rows hold other values{said}{size}"
    facts = {"rows": rows, "rows_differing": nearest.rows_differing, "max_abs_diff": nearest.max_abs}
    return _line(both.a.name, None, None, How.VALUES, detail, facts=facts)


def _size(found: Distance) -> float:
    return found.rows_differing if found.mean_abs is None else found.mean_abs


def _mistakes(turning: Turning) -> Iterator[tuple[str, IndexMap]]:
    """Permutations that people made instead of the right one, each with the words for it."""
    for way in WAYS:
        index, said = turning.index[way], f"{way[0].value} to {way[1].value}"
        yield f"{said}, done twice", index[index]
        for words, spans in _other_spans(turning):
            yield f"{said}, {words}", index_map(spans, *way)


def _other_spans(turning: Turning) -> Iterator[tuple[str, tuple[Span, ...]]]:
    """Other ways to see heads in the rows of a projection."""
    spans, rows = turning.spans, rows_of(turning.spans)
    own = [span for span in spans if isinstance(span, Head)]
    if not own:
        return
    head = own[0]
    if head.rope_dim < head.dim:
        yield "as if the whole head turned", tuple(_whole(span) for span in spans)
    if len(own) < len(spans):
        turned = tuple(head if span == Keep(head.dim) else span for span in spans)
        yield "in v as well as in q and k", turned
        return
    for heads in dict.fromkeys((*turning.heads, 1)):
        dim = rows // heads
        if rows % heads == 0 and dim % 2 == 0 and dim != head.dim:
            words = f"as if these {rows} rows were {heads} head{'s' * (heads > 1)} of {dim}"
            yield words, (Head(dim, 0, dim),) * heads
            if head.rope_dim < min(dim, head.dim):
                yield f"{words}, {head.rope_dim} of which turn", (Head(dim, 0, head.rope_dim),) * heads


def _whole(span: Span) -> Span:
    return Head(span.dim, 0, span.dim) if isinstance(span, Head) and span.dim % 2 == 0 else span
