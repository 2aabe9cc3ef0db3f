"""The rotated q and k rows of a sample of layers and heads, read as numbers: what the weights themselves can tell.

Shapes: H heads, G key-value heads, R rotated rows of a head, M inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from ropetool.checkpoint.floats import FLOAT8_DTYPES, NUMPY_DTYPES, decode_float8, decode_floats
from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.shards import DTYPE_BITS, Shard, Tensor, read_exactly
from ropetool.errors import ShapeError
from ropetool.families.family import ROTARY
from ropetool.families.geometry import Each, Geometry, Part, Rows
from ropetool.families.plan import Claim, claims
from ropetool.families.reading import Reading
from ropetool.rope.pairing import Head

Floats = np.ndarray[Any, np.dtype[Any]]
Reader = Callable[[Shard, Tensor], np.ndarray[Any, Any]]
READABLE = frozenset(NUMPY_DTYPES) | {"BF16"}
# Of each layer at least two neighbouring groups of heads are read, and of all layers so many as this allows: of an
# 8-billion-parameter Llama 9, of a small model all.
GROUPS = 2
BUDGET_BYTES = 96 << 20


@dataclass(frozen=True)
class HeadRows:
    """The rotated rows of some heads of a projection; a slice of them is read when it is asked for: shape [H, R, M].

    ``starts`` are the first rows of the heads in the tensor. ``whole`` is that tensor, where it is read already.
    """

    shard: Shard
    tensor: Tensor
    starts: tuple[int, ...]
    rope_dim: int
    row_bytes: int
    whole: Floats | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Heads, rows, inputs."""
        return len(self.starts), self.rope_dim, self.row_bytes * 8 // DTYPE_BITS[self.tensor.dtype]

    def __getitem__(self, some: slice) -> Floats:
        """Values in float32: norms and angles need no more."""
        starts = self.starts[some]
        rows_HRM = np.empty((len(starts), *self.shape[1:]), np.float32)
        if self.whole is not None:
            for at, start in enumerate(starts):
                rows_HRM[at] = self.whole[start : start + self.rope_dim]
            return rows_HRM
        with self.shard.data.open("rb", buffering=0) as file:
            for at, start in enumerate(starts):
                offset = self.tensor.start + start * self.row_bytes
                raw = read_exactly(file.fileno(), self.rope_dim * self.row_bytes, offset)
                rows_HRM[at] = _numbers(raw, self.tensor.dtype).reshape(self.rope_dim, -1)
        return rows_HRM


@dataclass(frozen=True)
class LayerRows:
    """One layer's rotated rows: of q and of k, and ``others`` by name, each [heads, R]; None: not there."""

    layer: str
    q: HeadRows | None
    k: HeadRows | None
    others: dict[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class _Heads:
    """Where the rotated rows of the q and the k heads begin in a projection of so many rows, and how many each has."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    rope_dim: int
    rows: int


@dataclass(frozen=True)
class Sample:
    """The layers that are read, of ``rotating`` that there are."""

    layers: Iterator[LayerRows]
    rotating: int


def sampled_rows(checkpoint: Checkpoint, reading: Reading, read: Reader | None = None) -> Sample:
    """The rotated rows of layers, evenly spread, and of some heads of each: see `BUDGET_BYTES`.

    Layers without rotation are left out, and tensors whose values are packed or integers. ``read`` gives a tensor that
    lies in no file yet. Raises as `claims` does.
    """
    main = [claim for claim in claims(checkpoint, reading) if _tells(checkpoint, reading, claim)]
    layers = [(layer, [*found]) for layer, found in groupby(sorted(main, key=_depth), lambda claim: claim.layer)]
    layers = [(layer, found) for layer, found in layers if any(claim.moved.feeds for claim in found if claim.moved)]
    least_bytes = max((_layer_bytes(found, 1) for _, found in layers), default=1)
    most = max(1, min(len(layers), BUDGET_BYTES // max(least_bytes, 1)))
    chosen = sorted({int(at) for at in np.linspace(0, len(layers) - 1, most).round()}) if layers else []
    budget = BUDGET_BYTES // max(len(chosen), 1)
    rows = (_rows_of_layer(*layers[index], budget_bytes=budget, read=read) for index in chosen)
    return Sample(rows, len(layers))


def _tells(checkpoint: Checkpoint, reading: Reading, claim: Claim) -> bool:
    """Whether a claim is on rows of the main attention, in a layer that rotates, that can be read as numbers."""
    index = claim.layer.rpartition(".")[2]
    return (
        claim.moved is not None
        and claim.site == reading.family.sites[0]
        and checkpoint.weight_map[claim.tensor.name] is claim.shard
        and (claim.tensor.dtype in READABLE or claim.tensor.dtype in FLOAT8_DTYPES)
        and not (index.isdigit() and int(index) in reading.nope_layers)
    )


def _depth(claim: Claim) -> tuple[int, str]:
    index = claim.layer.rpartition(".")[2]
    return (int(index) if index.isdigit() else -1, claim.layer)


def _rows_of_layer(layer: str, found: Sequence[Claim], *, budget_bytes: int, read: Reader | None) -> LayerRows:
    weights: dict[str, HeadRows] = {}
    others: dict[str, Floats] = {}
    groups = _groups(found, budget_bytes)
    for claim in found:
        moved = claim.moved
        if moved is None:
            continue
        heads = heads_of(claim.geometry, moved.rows, moved.feeds)
        try:
            size_bytes = claim.tensor.row_bytes(heads.rows)
        except ShapeError:
            if claim.companion.is_weight:
                raise
            continue  # a scale for each block of rows, and none of a row
        single = size_bytes * 8 == DTYPE_BITS[claim.tensor.dtype]
        for part, starts in (("q", heads.q), ("k", heads.k)):
            if not starts:
                continue
            if not single:
                weights[part] = _rows(claim, _sample(starts, claim.geometry, part, groups), heads, read)
                continue
            name = f"{part} {claim.companion.kind}" if moved.feeds else moved.module
            rows = _rows(claim, starts, heads, read)[:][..., 0].astype(np.float64)
            others[name] = np.log(np.abs(rows) + 1e-12) if moved.feeds else rows
    return LayerRows(layer, weights.get("q"), weights.get("k"), others)


def heads_of(geometry: Geometry, rows: Sequence[Rows], feeds: str) -> _Heads:
    """Where each head's rotated rows begin in a projection or a norm; a norm's are all told as q's."""
    starts: dict[str, list[int]] = {"q": [], "k": []}
    at, width = 0, 0
    for part, spans in _labelled(geometry, rows, feeds):
        for span in spans:
            if isinstance(span, Head):
                starts[part].append(at + span.rope_start)
                width = span.rope_dim
            at += span.rows
    return _Heads(tuple(starts["q"]), tuple(starts["k"]), width, at)


def _labelled(geometry: Geometry, rows: Sequence[Rows], feeds: str) -> Iterator[tuple[str, Sequence[Any]]]:
    """The spans of a projection in order, each with what it feeds: of a fused one, the last that turns is k."""
    if feeds != "qk":
        yield feeds or "q", geometry.spans(tuple(rows))
        return
    turning = [index for index, entry in enumerate(rows) if _turns(entry)]
    for index, entry in enumerate(rows):
        if len(turning) == 1 and index in turning and isinstance(entry, Each):
            for _ in range(geometry.times(entry.count)):
                yield from _labelled(geometry, entry.parts, feeds)
        else:
            yield "k" if index == turning[-1] else "q", geometry.spans((entry,))


def _turns(entry: Rows) -> bool:
    if isinstance(entry, Each):
        return any(_turns(part) for part in entry.parts)
    return entry in (ROTARY, Part.ROTARY_ONLY)


def _layer_bytes(found: Sequence[Claim], groups: int) -> int:
    """Bytes of so many groups of heads, and at least of `GROUPS`."""
    kv_heads = found[0].geometry.kv_heads
    return sum(claim.tensor.size_bytes for claim in found) * min(kv_heads, max(groups, GROUPS)) // kv_heads


def _groups(found: Sequence[Claim], budget_bytes: int) -> int:
    """How many key-value heads to read of a layer, with the q heads that share them: an even number, or all."""
    kv_heads = found[0].geometry.kv_heads
    fitting = kv_heads * budget_bytes // max(_layer_bytes(found, kv_heads), 1)
    return kv_heads if fitting >= kv_heads else max(GROUPS, fitting // 2 * 2)


def _sample(starts: Sequence[int], geometry: Geometry, part: str, groups: int) -> list[int]:
    """The heads of ``groups`` neighbouring key-value heads in the middle; all of a projection that has others."""
    kv_heads = geometry.kv_heads
    if len(starts) != (kv_heads if part == "k" else geometry.heads) or groups >= kv_heads:
        return list(starts)
    per = len(starts) // kv_heads
    first = (kv_heads - groups) // 4 * 2
    return list(starts[first * per : (first + groups) * per])


def _rows(claim: Claim, starts: Sequence[int], heads: _Heads, read: Reader | None) -> HeadRows:
    """The rotated rows of each head; M is 1 for a tensor of one value for each row."""
    whole = None if read is None else read(claim.shard, claim.tensor).reshape(heads.rows, -1)
    row_bytes = claim.tensor.row_bytes(heads.rows)
    return HeadRows(claim.shard, claim.tensor, tuple(starts), heads.rope_dim, row_bytes, whole)


def _numbers(raw: bytes, dtype: str) -> Floats:
    values = decode_float8(raw, dtype) if dtype in FLOAT8_DTYPES else decode_floats(raw, dtype, np.float32)
    if values is None:  # `_tells` lets none through
        raise ShapeError(f"values of {dtype} are not read as numbers")
    return values
