"""From headers and a row to the steps of a conversion: which rows of which tensors move where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.shards import Shard, Tensor
from ropetool.errors import CheckpointError, UnclaimedTensorError
from ropetool.families.family import Family, Moved
from ropetool.families.geometry import Geometry
from ropetool.families.reading import Reading
from ropetool.rope.pairing import IndexMap, Pairing, closed_blocks, index_map


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
    """A tensor of an attention module, and the row entry that says how it moves; None: it stays."""

    layer: str
    shard: Shard
    tensor: Tensor
    moved: Moved | None


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


def claims(checkpoint: Checkpoint, family: Family) -> Iterator[Claim]:
    """Every attention tensor of the checkpoint (in every shard that holds it) with its row entry.

    Raises `UnclaimedTensorError` for an attention tensor that the row does not name: skipping it would be a guess.
    """
    moved_modules = {moved.module: moved for moved in family.moves}
    separator = f".{family.attention}."
    for shard in checkpoint.shards:
        for tensor in shard.tensors.values():
            layer, found, rest = tensor.name.rpartition(separator)
            if not found:
                continue
            module, _, kind = rest.partition(".")
            moved = moved_modules.get(module)
            if moved is not None and kind in moved.tensors:
                yield Claim(layer, shard, tensor, moved)
            elif moved is None and module in family.stays:
                yield Claim(layer, shard, tensor, None)
            else:
                raise UnclaimedTensorError(
                    f"{tensor.name} is an attention tensor that the row of {family.model_type} does not name, so "
                    f"whether it must move is not known; nothing was written",
                    tensor=tensor.name,
                    model_type=family.model_type,
                )


def _check_complete(checkpoint: Checkpoint, family: Family, feeds: Mapping[str, set[str]]) -> None:
    """Every layer must bring both q and k: moving one without the other would be silent nonsense."""
    if not feeds:
        names = ", ".join(family.projections)
        raise CheckpointError(
            f"no attention tensor was found in {checkpoint.directory}: {family.model_type} keeps them as "
            f"<layer>.{family.attention}.<{names}>.weight",
            path=str(checkpoint.directory),
        )
    for layer, fed in feeds.items():
        missing = {"q", "k"} - fed
        if missing:
            raise CheckpointError(
                f"{layer}.{family.attention} has no weight that gives {' or '.join(sorted(missing))}; "
                f"expected one of {', '.join(family.projections)}",
                layer=layer,
            )


def plan_conversion(checkpoint: Checkpoint, reading: Reading, source: Pairing, target: Pairing) -> Plan:
    """Plan the moves that take every layer from layout ``source`` to ``target``.

    Raises `ShapeError` for a tensor that does not fit the geometry, `UnclaimedTensorError` and `CheckpointError`
    for attention tensors that the row does not explain.
    """
    permutations = _permutations(reading.family, reading.geometry, source, target)
    feeds: dict[str, set[str]] = defaultdict(set)
    moves = []
    for claim in claims(checkpoint, reading.family):
        fed = feeds[claim.layer]  # every layer that has attention tensors, so that one without q or k is found
        if claim.moved is None:
            continue
        permutation = permutations[claim.moved]
        claim.tensor.row_bytes(len(permutation.index))
        if claim.tensor.name.endswith(".weight"):
            fed.update(claim.moved.feeds)
        if permutation.blocks:
            moves.append(Move(claim.shard, claim.tensor, permutation))
    _check_complete(checkpoint, reading.family, feeds)
    return Plan(source, target, tuple(moves))


def _permutations(family: Family, geometry: Geometry, source: Pairing, target: Pairing) -> dict[Moved, Permutation]:
    permutations = {}
    for moved in family.moves:
        spans = geometry.spans(moved.rows)
        index = index_map(spans, source, target)
        permutations[moved] = Permutation(index, tuple(closed_blocks(index)))
    return permutations
