"""From headers and a row to the steps of a conversion: which rows of which tensors move where."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from ropetool.checkpoint.fields import ROWS, Lay
from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.shards import Shard, Tensor
from ropetool.errors import CheckpointError, QuantisedError, UnclaimedTensorError
from ropetool.families.companions import ANEW, CACHED, FLOATS, STAYING, Companion, Form, Format, format_of, plain
from ropetool.families.family import Family, Moved, Site
from ropetool.families.follow import Place, follow
from ropetool.families.geometry import Geometry
from ropetool.families.quantisation import Quantisation, read_quantisation
from ropetool.families.reading import Reading
from ropetool.families.towers import check_stray
from ropetool.rope.pairing import IndexMap, Pairing, Span, closed_blocks, index_map

# Tables that the class makes itself, and that old exports keep among the weights.
BUFFER = "inv_freq"
# What classes call the attention of a layer.
ATTENTION_MODULES = frozenset(
    ("attn", "attention", "self_attn", "self_attention", "cross_attn", "cross_attention", "encoder_attn", "mixer")
)


@dataclass(frozen=True)
class Permutation:
    """An index map and the runs of rows that it moves."""

    index: IndexMap
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Move:
    """One tensor of one shard whose rows are permuted, and how they lie in it."""

    shard: Shard
    tensor: Tensor
    permutation: Permutation
    lay: Lay = ROWS

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.tensor.size_bytes


@dataclass(frozen=True)
class Claim:
    """A tensor of an attention module, and the row entry that says how it moves; None: it stays.

    ``geometry`` is that of the site in this layer, ``companion`` what the tensor is to its module.
    """

    layer: str
    shard: Shard
    tensor: Tensor
    moved: Moved | None
    site: Site
    geometry: Geometry
    companion: Companion


@dataclass(frozen=True)
class Plan:
    """The immutable plan of a conversion."""

    source: Pairing
    target: Pairing
    moves: tuple[Move, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensors that move."""
        return sum(move.size_bytes for move in self.moves)

    def of_shard(self, shard: Shard) -> tuple[Move, ...]:
        """The moves within one shard."""
        return tuple(move for move in self.moves if move.shard is shard)


def claims(checkpoint: Checkpoint, reading: Reading) -> Iterator[Claim]:
    """Every attention tensor of the text decoder (in every shard that holds it) with its row entry.

    Raises `UnclaimedTensorError` for an attention tensor that neither the row nor the way of quantising names: skipping
    it would be a guess. Raises `QuantisedError` for one of a way of quantising in which no rows can be moved.
    """
    how = format_of(read_quantisation(checkpoint.config, reading.config))
    for shard in checkpoint.shards:
        for tensor in shard.tensors.values():
            if not reading.decoder.owns(tensor.name):
                check_stray(reading.decoder, tensor.name)
                continue
            claim = _claim(checkpoint, reading, shard, tensor, how)
            if claim is not None:
                yield claim


def _claim(checkpoint: Checkpoint, reading: Reading, shard: Shard, tensor: Tensor, how: Format) -> Claim | None:
    """The claim on one tensor by the deepest site that it lies in; None where it lies in no attention that turns."""
    family = reading.family
    for number, site in family.deepest_first:
        layer, found, rest = f".{tensor.name}".rpartition(f".{site.module}.")
        if not found or (site.within and site.within not in layer.split(".")):
            continue
        index = layer.rpartition(".")[2]
        if rest.endswith(BUFFER) or (index.isdigit() and int(index) in reading.still_layers):
            return None
        geometry = reading.others[number - 1].geometry if number else reading.geometry_of_layer(layer)
        moved, companion = _entry(checkpoint, family, site, tensor, rest, how)
        return Claim(layer[1:], shard, tensor, moved, site, geometry, companion)
    _check_no_attention(family, tensor)
    return None


def _check_no_attention(family: Family, tensor: Tensor) -> None:
    """Refuse a tensor of an attention that the row knows nothing of: what it feeds is not known."""
    other = ATTENTION_MODULES - family.attention_words
    found = next((word for word in tensor.name.split(".")[:-1] if word in other), None)
    if found is not None:
        raise UnclaimedTensorError(
            f"{tensor.name} lies in an attention called {found}, and the row of {family.model_type} knows only "
            f"{family.attention}, so whether it must move is not known; nothing was written",
            tensor=tensor.name,
            model_type=family.model_type,
        )


def _entry(
    checkpoint: Checkpoint, family: Family, site: Site, tensor: Tensor, rest: str, how: Format
) -> tuple[Moved | None, Companion]:
    """The row entry of a site's tensor, by its name within the site, and what it is to its module.

    A number in the name is a star in the row: modules that are kept in a list are alike.
    """
    rest = re.sub(r"\.\d+(?=\.)", ".*", rest)
    holding = (moved for moved in site.moves if f"{rest}.".startswith(f"{moved.module}."))
    moved = max(holding, key=lambda moved: len(moved.module), default=None)
    if moved is not None:
        kind = rest[len(moved.module) + 1 :]
        companion = how.companion(kind, tensor.dtype, _weight_dtype(checkpoint, tensor, kind))
        if kind in moved.tensors and tensor.dtype in FLOATS:
            companion = plain(kind)
        if companion is not None:
            return (None if companion.forms == (Form.STAYS,) else moved), companion
        if how.refusal:
            raise QuantisedError(
                f"{tensor.name} is quantised by {how.name}, whose rows cannot be moved: {how.refusal}; {ANEW}",
                tensor=tensor.name,
                quantisation=how.name,
            )
    elif any(f"{rest}.".startswith(f"{name}.") for name in site.stays):
        return None, STAYING
    elif rest in CACHED:
        feeds, companion = CACHED[rest]
        moved = next((moved for moved in site.moves if moved.feeds and moved.feeds == feeds), None)
        if moved is not None or not feeds or math.prod(tensor.shape) == 1:
            return moved, companion if moved else STAYING
    raise UnclaimedTensorError(
        f"{tensor.name} ({tensor.dtype}) is an attention tensor that neither the row of {family.model_type} nor the "
        f"quantisation in config.json ({how.name}) names, so whether it must move is not known; nothing was written",
        tensor=tensor.name,
        model_type=family.model_type,
    )


def _weight_dtype(checkpoint: Checkpoint, tensor: Tensor, kind: str) -> str:
    """The dtype of the weight that a tensor of a module lies beside, empty where there is none."""
    weight = checkpoint.tensors.get(f"{tensor.name.removesuffix(kind)}weight")
    return weight.dtype if weight else ""


def _check_complete(checkpoint: Checkpoint, family: Family, feeds: Mapping[tuple[str, Site], set[str]]) -> None:
    """Every layer must bring both q and k: moving one without the other would be silent nonsense."""
    if not any(feeds.values()):
        names = ", ".join(family.projections)
        raise CheckpointError(
            f"no attention tensor was found in {checkpoint.directory}: {family.model_type} keeps them as "
            f"<layer>.{family.attention}.<{names}>.weight",
            path=str(checkpoint.directory),
        )
    for (layer, site), fed in feeds.items():
        missing = {"q", "k"} - fed
        if site.moves and missing and not missing <= set(family.may_lack):
            raise CheckpointError(
                f"{layer}.{site.module} has no weight that gives {' or '.join(sorted(missing))}; "
                f"expected one of {', '.join(moved.module for moved in site.moves if moved.feeds)}",
                layer=layer,
            )


def plan_conversion(checkpoint: Checkpoint, reading: Reading, source: Pairing, target: Pairing) -> Plan:
    """Plan the moves that take every layer from layout ``source`` to ``target``.

    Raises `ShapeError` for a tensor that does not fit the geometry, `UnclaimedTensorError` and `CheckpointError`
    for attention tensors that the row does not explain, `QuantisedError` where the result would not be exact.
    """
    quantisation = read_quantisation(checkpoint.config, reading.config)
    feeds: dict[tuple[str, Site], set[str]] = defaultdict(set)
    moves = []
    for claim in claims(checkpoint, reading):
        if checkpoint.weight_map[claim.tensor.name] is not claim.shard:
            continue  # a copy that nothing reads
        fed = feeds[claim.layer, claim.site]  # every attention, so that one without q or k is found
        if claim.moved is None:
            continue
        if claim.companion.is_weight:
            fed.update(claim.moved.feeds)
        # A site that is left in a layout of its own is checked all the same, against a permutation that moves nothing.
        to = target if claim.site.pairing is None else source
        permutation = _permutation(claim.geometry.spans(claim.moved.rows), source, to)
        place = _place(claim, claim.moved, quantisation, len(permutation.index))
        step = follow(claim.companion, claim.shard, claim.tensor, permutation.index, place)
        if step is not None:
            index, lay = step
            if index is not permutation.index:
                permutation = _of(index)
            if permutation.blocks:
                moves.append(Move(claim.shard, claim.tensor, permutation, lay))
    _check_complete(checkpoint, reading.family, feeds)
    return Plan(source, target, tuple(moves))


def permutation_of(claim: Claim, source: Pairing, target: Pairing) -> Permutation | None:
    """The permutation of the rows of a claimed tensor; None where it stays."""
    if claim.moved is None or claim.site.pairing is not None:
        return None
    return _permutation(claim.geometry.spans(claim.moved.rows), source, target)


def _place(claim: Claim, moved: Moved, quantisation: Quantisation, rows: int) -> Place:
    geometry = claim.geometry
    heads = {"q": geometry.heads, "k": geometry.kv_heads}.get(moved.feeds, 1)
    return Place(rows, heads, geometry.head_dim, moved.feeds == "qk", quantisation)


@cache
def _permutation(spans: tuple[Span, ...], source: Pairing, target: Pairing) -> Permutation:
    return _of(index_map(spans, source, target))


def _of(index: IndexMap) -> Permutation:
    return Permutation(index, tuple(closed_blocks(index)))
