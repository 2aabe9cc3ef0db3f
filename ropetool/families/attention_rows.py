"""The rotated q and k rows of a sample of layers and heads, read as numbers: what the weights themselves can tell.

Shapes: H heads, G key-value heads, R rotated rows of a head, M inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from ropetool.checkpoint.floats import NUMPY_DTYPES, decode_exact
from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.shards import DTYPE_BITS, read_exactly
from ropetool.families.family import ROTARY
from ropetool.families.geometry import Each, Geometry, Part, Rows
from ropetool.families.plan import Claim, claims
from ropetool.families.reading import Reading
from ropetool.rope.pairing import Head

# float64 for weights of that type, else float32: the sums over a row need no more.
Floats = np.ndarray[Any, np.dtype[Any]]
READABLE = frozenset(NUMPY_DTYPES) | {"BF16"}
# Of an 8-billion-parameter Llama this reads 84 MB: two groups of heads of each layer. More tells no more.
LAYERS = 8
GROUPS = 2
BUDGET_BYTES = 96 << 20


@dataclass(frozen=True)
class LayerRows:
    """One layer's rotated rows: q [H, R, M], k [G, R, M], and ``others`` by name, each [heads, R]; None: not there."""

    layer: str
    q: Floats | None
    k: Floats | None
    others: dict[str, Floats] = field(default_factory=dict)


@dataclass(frozen=True)
class _Heads:
    """Where the rotated rows of the q and the k heads begin in a projection of so many rows, and how many each has."""

    q: tuple[int, ...]
    k: tuple[int, ...]
    rope_dim: int
    rows: int


def sampled_rows(checkpoint: Checkpoint, reading: Reading) -> Iterator[LayerRows]:
    """The rotated rows of up to `LAYERS` layers, evenly spread, and of some heads of each where they are large.

    Layers without rotation are left out, and tensors whose values are packed or of 8 bits. Raises as `claims` does.
    """
    main = [claim for claim in claims(checkpoint, reading) if _tells(checkpoint, reading, claim)]
    layers = [(layer, [*found]) for layer, found in groupby(sorted(main, key=_depth), lambda claim: claim.layer)]
    layers = [(layer, found) for layer, found in layers if any(claim.moved.feeds for claim in found if claim.moved)]
    chosen = np.unique(np.linspace(0, len(layers) - 1, min(LAYERS, len(layers))).round().astype(int))
    for layer, found in (layers[index] for index in chosen):
        yield _rows_of_layer(layer, found, BUDGET_BYTES // len(chosen))


def _tells(checkpoint: Checkpoint, reading: Reading, claim: Claim) -> bool:
    """Whether a claim is on rows of the main attention, in a layer that rotates, that can be read as numbers."""
    index = claim.layer.rpartition(".")[2]
    return (
        claim.moved is not None
        and claim.site == reading.family.sites[0]
        and checkpoint.weight_map[claim.tensor.name] is claim.shard
        and claim.tensor.dtype in READABLE
        and not (index.isdigit() and int(index) in reading.nope_layers)
    )


def _depth(claim: Claim) -> tuple[int, str]:
    index = claim.layer.rpartition(".")[2]
    return (int(index) if index.isdigit() else -1, claim.layer)


def _rows_of_layer(layer: str, found: Sequence[Claim], budget_bytes: int) -> LayerRows:
    weights: dict[str, Floats] = {}
    others: dict[str, Floats] = {}
    groups = _groups(found, budget_bytes)
    for claim in found:
        moved = claim.moved
        if moved is None:
            continue
        heads = heads_of(claim.geometry, moved.rows, moved.feeds)
        for part, starts in (("q", heads.q), ("k", heads.k)):
            if len(claim.tensor.shape) > 1 and moved.feeds:
                if starts:
                    weights[part] = _read(claim, _sample(starts, claim.geometry, part, groups), heads)
            elif starts:
                name = f"{part} bias" if moved.feeds else moved.module
                rows = _read(claim, starts, heads)[..., 0].astype(np.float64)
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


def _groups(found: Sequence[Claim], budget_bytes: int) -> int:
    """How many key-value heads to read of a layer, with the q heads that share them."""
    geometry = found[0].geometry
    size = sum(claim.tensor.size_bytes for claim in found)
    return max(min(GROUPS, geometry.kv_heads), geometry.kv_heads * budget_bytes // max(size, 1))


def _sample(starts: Sequence[int], geometry: Geometry, part: str, groups: int) -> list[int]:
    """The heads of ``groups`` key-value heads, evenly spread; all of a projection that has others."""
    kv_heads = geometry.kv_heads
    if len(starts) != (kv_heads if part == "k" else geometry.heads) or groups >= kv_heads:
        return list(starts)
    per = len(starts) // kv_heads
    chosen = np.unique(np.linspace(0, kv_heads - 1, groups).round().astype(int))
    return [starts[group * per + member] for group in chosen for member in range(per)]


def _read(claim: Claim, starts: Sequence[int], heads: _Heads) -> Floats:
    """The rotated rows of each head: shape [H, R, M], M being 1 for a tensor of one value for each row."""
    tensor = claim.tensor
    row_bytes = tensor.row_bytes(heads.rows)
    size_bytes = heads.rope_dim * row_bytes
    values = np.float64 if tensor.dtype == "F64" else np.float32
    read = np.empty((len(starts), heads.rope_dim, row_bytes * 8 // DTYPE_BITS[tensor.dtype]), values)
    with claim.shard.data.open("rb", buffering=0) as file:
        for rows, start in zip(read, starts, strict=True):
            raw = read_exactly(file.fileno(), size_bytes, tensor.start + start * row_bytes)
            rows.reshape(-1)[:] = decode_exact(raw, tensor.dtype)
    return read
