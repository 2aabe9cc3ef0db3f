"""What can be checked of two checkpoints by their files alone: same tensors, kept or moved as they must be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ropetool.checkpoint.compare import first_wrong_row, same_bytes, same_form
from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.shards import Shard, Tensor
from ropetool.families.buffers import saved_frequencies, stale_frequency_warnings
from ropetool.families.plan import Move, plan_conversion
from ropetool.families.reading import Reading
from ropetool.families.verdict import Check


@dataclass(frozen=True)
class Side:
    """One of the two checkpoints."""

    path: Path
    checkpoint: Checkpoint
    reading: Reading
    trust_remote_code: bool

    @property
    def stock_is_right(self) -> bool:
        """Whether the stock class rotates the layout that the weights have."""
        return self.reading.pairing is self.reading.class_pairing

    @property
    def layer_count(self) -> int:
        """How many layers the text decoder has, 1 where its config does not say."""
        return int(self.reading.config.get("num_hidden_layers") or self.reading.config.get("n_layer") or 1)


def form_fault(a: Side, b: Side) -> str | None:
    """Where the two cannot be compared at all: other tensors, other shapes, another geometry."""
    tensors_a, tensors_b = a.checkpoint.tensors, b.checkpoint.tensors
    for name in sorted(tensors_a.keys() ^ tensors_b.keys()):
        return f"{name} is in {'the first' if name in tensors_a else 'the second'} checkpoint only"
    for name, left in tensors_a.items():
        right = tensors_b[name]
        if not same_form(left, right):
            return f"{name} is {left.dtype}{list(left.shape)} in one and {right.dtype}{list(right.shape)} in the other"
    if replace(a.reading.geometry, class_defaults={}) != replace(b.reading.geometry, class_defaults={}):
        heads = [(s.reading.geometry.heads, s.reading.geometry.kv_heads, s.reading.geometry.head_dim) for s in (a, b)]
        return f"(query heads, key-value heads, head_dim) is {heads[0]} in one config and {heads[1]} in the other"
    return None


def file_checks(a: Side, b: Side, fault: str | None) -> Iterator[Check]:
    """Tensors that stay are byte-identical, tensors that move are exactly the permutation of their source.

    ``fault`` is what `form_fault` says.
    """
    if fault:
        yield Check("tensors-kept", False, fault)
        return
    moved = {}
    if a.reading.pairing is not b.reading.pairing:
        steps = plan_conversion(a.checkpoint, a.reading, a.reading.pairing, b.reading.pairing)
        moved = {move.tensor.name: move for move in steps.moves}
    buffers = {tensor.name for _, tensor in saved_frequencies(a.checkpoint)}
    kept = [name for name in a.checkpoint.tensors if name not in moved and name not in buffers]
    changed = next((name for name in kept if not same_bytes(*_both(a, b, name))), None)
    detail = f"{changed} must not differ, and does" if changed else f"{len(kept)} tensors are byte-identical"
    yield Check("tensors-kept", changed is None, detail)
    if moved:
        yield _moved_check(a, b, moved)
    if buffers:
        stale = [w for w in stale_frequency_warnings(b.checkpoint, b.reading) if w.code == "stale-inv-freq"]
        detail = stale[0].message if stale else f"{len(buffers)} saved tables hold the frequencies of config.json"
        yield Check("saved-frequencies", not stale, detail)


def _both(a: Side, b: Side, name: str) -> tuple[Shard, Tensor, Shard, Tensor]:
    """A tensor on both sides, each with the shard that holds it."""
    first, second = a.checkpoint, b.checkpoint
    return first.weight_map[name], first.tensors[name], second.weight_map[name], second.tensors[name]


def _moved_check(a: Side, b: Side, moved: Mapping[str, Move]) -> Check:
    for name, move in moved.items():
        index = move.permutation.index
        row = first_wrong_row(*_both(a, b, name), index, move.lay)
        if row is not None:
            detail = f"{name}: row {row} should be row {index[row]} of the source, and is not"
            return Check("tensors-moved", False, detail)
    return Check("tensors-moved", True, f"{len(moved)} tensors are exactly the permutation of their source")
