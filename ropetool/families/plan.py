"""From headers and a row to the steps of a conversion: which rows of which tensors move where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.shards import Shard, Tensor
from ropetool.errors import CheckpointError, UnclaimedTensorError
from ropetool.families.family import Family, Moved, Site
from ropetool.families.geometry import Geometry
from ropetool.families.reading import Reading
from ropetool.rope.pairing import IndexMap, Pairing, Span, closed_blocks, index_map

# Tables that the class makes itself, and that old exports keep among the weights.
BUFFER = "inv_freq"


@dataclass(frozen=True)
class Permutation:
    """An index map and the runs of rows that it moves."""

    index: IndexMap
    blocks: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Move:
    """One tensor of one shard whose rows are permuted."""

    shard: Shard
    tensor: Tensor
    permutation: Permutation

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor."""
        return self.tensor.size_bytes


@dataclass(frozen=True)
class Claim:
    """A tensor of an attention module, and the row entry that says how it moves; None: it stays.

    ``geometry`` is that of the site in this layer.
    """

    layer: str
    shard: Shard
    tensor: Tensor
    moved: Moved | None
    site: Site
    geometry: Geometry


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

    Raises `UnclaimedTensorError` for an attention tensor that the row does not name: skipping it would be a guess.
    """
    for shard in checkpoint.shards:
        for tensor in filter(lambda t: reading.decoder.owns(t.name), shard.tensors.values()):
            claim = _claim(reading, shard, tensor)
            if claim is not None:
                yield claim


def _claim(reading: Reading, shard: Shard, tensor: Tensor) -> Claim | None:
    """The claim on one tensor by the deepest site that it lies in; None where it lies in no attention that turns."""
    family = reading.family
    for number, site in sorted(enumerate(family.sites), key=lambda entry: -len(entry[1].module + entry[1].within)):
        layer, found, rest = f".{tensor.name}".rpartition(f".{site.module}.")
        if not found or (site.within and site.within not in layer.split(".")):
            continue
        index = layer.rpartition(".")[2]
        if rest.endswith(BUFFER) or (index.isdigit() and int(index) in reading.still_layers):
            return None
        geometry = reading.others[number - 1].geometry if number else reading.geometry_of_layer(layer)
        return Claim(layer[1:], shard, tensor, _entry(family, site, tensor, rest), site, geometry)
    return None


def _entry(family: Family, site: Site, tensor: Tensor, rest: str) -> Moved | None:
    """The row entry of a site's tensor, by its name within the site."""
    module, _, kind = rest.rpartition(".") if "." in rest else (rest, "", "")
    moved = next((moved for moved in site.moves if moved.module == module), None)
    if moved is not None and kind in moved.tensors:
        return moved
    if moved is None and any(f"{rest}.".startswith(f"{name}.") for name in site.stays):
        return None
    raise UnclaimedTensorError(
        f"{tensor.name} is an attention tensor that the row of {family.model_type} does not name, so "
        f"whether it must move is not known; nothing was written",
        tensor=tensor.name,
        model_type=family.model_type,
    )


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
    for attention tensors that the row does not explain.
    """
    feeds: dict[tuple[str, Site], set[str]] = defaultdict(set)
    moves = []
    for claim in claims(checkpoint, reading):
        fed = feeds[claim.layer, claim.site]  # every attention, so that one without q or k is found
        if claim.moved is None:
            continue
        permutation = _permutation(claim.geometry.spans(claim.moved.rows), source, target)
        claim.tensor.row_bytes(len(permutation.index))
        if claim.tensor.name.endswith(".weight"):
            fed.update(claim.moved.feeds)
        if permutation.blocks and claim.site.pairing is None:
            moves.append(Move(claim.shard, claim.tensor, permutation))
    _check_complete(checkpoint, reading.family, feeds)
    return Plan(source, target, tuple(moves))


def permutation_of(claim: Claim, source: Pairing, target: Pairing) -> Permutation | None:
    """The permutation of the rows of a claimed tensor; None where it stays."""
    if claim.moved is None or claim.site.pairing is not None:
        return None
    return _permutation(claim.geometry.spans(claim.moved.rows), source, target)


@cache
def _permutation(spans: tuple[Span, ...], source: Pairing, target: Pairing) -> Permutation:
    index = index_map(spans, source, target)
    return Permutation(index, tuple(closed_blocks(index)))
