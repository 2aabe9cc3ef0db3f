"""What can be checked of two checkpoints by their files alone: same tensors, kept or moved as they must be."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from ropetool.checkpoint.compare import Mask, Pair, digests, first_wrong_row, same_bytes
from ropetool.checkpoint.config import marker
from ropetool.checkpoint.folder import Checkpoint, has_guard
from ropetool.checkpoint.shards import no_progress
from ropetool.families.adapter_checks import beside_check
from ropetool.families.buffers import of_text, rounded_tables, saved_frequency_fault
from ropetool.families.copies import copies_check, others_check
from ropetool.families.form_checks import geometry_fault, tensor_fault
from ropetool.families.plan import Move, claims, plan_conversion
from ropetool.families.protection import ENGINE
from ropetool.families.reading import Reading
from ropetool.families.row_names import place_of, rows_of_v
from ropetool.families.verdict import Check, Fault, check_of

SHOWN_DIGITS = 16


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


def form_fault(a: Side, b: Side) -> Check | None:
    """The check that fails where the two cannot be compared: other tensors, other shapes, another geometry."""
    for name, fault in (
        ("tensors-kept", tensor_fault(a.checkpoint.tensors, b.checkpoint.tensors)),
        ("geometry", geometry_fault(a.reading, b.reading)),
    ):
        if fault is not None:
            return check_of(name, fault, "")
    return None


def file_checks(
    a: Side, b: Side, fault: Check | None, progress: Callable[[int], None] = no_progress
) -> Iterator[Check]:
    """Tensors that stay are byte-identical, tensors that move are exactly the permutation of their source.

    ``fault`` is what `form_fault` says; ``progress`` is called with bytes of the first as they are compared.
    """
    if fault:
        yield fault
        return
    moved = _moves(a, b)
    buffers = {tensor.name for _, tensor in of_text(a.checkpoint, a.reading)}
    yield _kept_check(a, b, [name for name in a.checkpoint.tensors if name not in (moved.keys() | buffers)], progress)
    if moved:
        yield _moved_check(a, b, moved, progress)
        yield _values_check(a, b, moved)
    if buffers:
        known = next(rounded_tables(b.checkpoint, b.reading), None)  # and the first's no less
        fine = known or f"{len(buffers)} saved tables hold the frequencies of config.json"
        stale = saved_frequency_fault(a.checkpoint, b.checkpoint, a.reading, b.reading)
        yield check_of("saved-frequencies", stale, fine)
    yield copies_check(a.checkpoint, b.checkpoint)
    yield others_check(a.checkpoint, b.checkpoint, moved=bool(moved))
    yield from _guard_check(b)
    if moved:
        yield from beside_check(a.checkpoint, b.checkpoint, b.reading.pairing)


def _moves(a: Side, b: Side) -> Mapping[str, Move]:
    if a.reading.pairing is b.reading.pairing:
        return {}
    steps = plan_conversion(a.checkpoint, a.reading, a.reading.pairing, b.reading.pairing)
    return {move.tensor.name: move for move in steps.moves}


def _both(a: Side, b: Side, name: str) -> Pair:
    """A tensor on both sides, each with the shard that holds it."""
    first, second = a.checkpoint, b.checkpoint
    return first.weight_map[name], first.tensors[name], second.weight_map[name], second.tensors[name]


def _kept_check(a: Side, b: Side, names: list[str], progress: Callable[[int], None]) -> Check:
    """One digest over all kept tensors, by the digest of each; at the first that differs it is known enough."""
    whole = hashlib.sha256()
    for name, (one, other) in zip(names, digests(_both(a, b, name) for name in names), strict=True):
        if one != other:
            sides = f"sha256 {one.hex()[:SHOWN_DIGITS]} and {other.hex()[:SHOWN_DIGITS]}"
            said = f"{name} must not differ, and does ({sides}){_perhaps_moved(a, b, name)}"
            return check_of("tensors-kept", Fault(said, name), "")
        whole.update(name.encode() + one)
        progress(a.checkpoint.tensors[name].size_bytes)
    detail = f"{len(names)} tensors are byte-identical (sha256 {whole.hexdigest()[:SHOWN_DIGITS]} on both sides)"
    return Check("tensors-kept", True, detail)


def _perhaps_moved(a: Side, b: Side, name: str) -> str:
    """Where both have one layout by their configs, and the rows of the second lie as in the other."""
    pairing = a.reading.pairing
    for source in (pairing, pairing.other):
        steps = plan_conversion(a.checkpoint, a.reading, source, source.other)
        move = next((move for move in steps.moves if move.tensor.name == name), None)
        if move and first_wrong_row(*_both(a, b, name), move.permutation.index, move.lay) is None:
            return f": its rows were permuted from {source.value} to {source.other.value}" + (
                f", and both configs say {pairing.value}" if pairing is b.reading.pairing else ""
            )
    return ""


def _moved_check(a: Side, b: Side, moved: Mapping[str, Move], progress: Callable[[int], None]) -> Check:
    for name, move in moved.items():
        index, both = move.permutation.index, _both(a, b, name)
        row = first_wrong_row(*both, index, move.lay)
        if row is not None:
            said = f"{name}: row {row} ({_place(a, name, row)}) should be row {index[row]} of the source, and is not"
            return check_of("tensors-moved", Fault(said + _how_wrong(move, both), name), "")
        progress(move.size_bytes)
    return Check("tensors-moved", True, f"{len(moved)} tensors are exactly the permutation of their source")


def _values_check(a: Side, b: Side, moved: Mapping[str, Move]) -> Check:
    """v, and all else in the attention that does not turn, is as it was: whole tensors, and rows of fused ones."""
    where = a.checkpoint.weight_map
    counted = [claim for claim in claims(a.checkpoint, a.reading) if where[claim.tensor.name] is claim.shard]
    whole = [claim for claim in counted if claim.moved is None]
    fused = {claim.tensor.name: rows_of_v(claim) for claim in counted if claim.tensor.name in moved}
    faults = chain(
        (claim.tensor.name for claim in whole if not same_bytes(*_both(a, b, claim.tensor.name))),
        (name for name, rows in fused.items() if rows is not None and _differ(_both(a, b, name), moved[name], rows)),
    )
    name = next(faults, None)
    rows = sum(int(mask.sum()) for mask in fused.values() if mask is not None)
    others = f", and {rows} rows of v in fused ones," if rows else ""
    fine = f"{len(whole)} attention tensors that do not turn{others} are as they were"
    return check_of("v-kept", Fault(f"{name}: its rows of v are others", name) if name else None, fine)


def _differ(both: Pair, move: Move, rows: Mask) -> bool:
    index = move.permutation.index
    fits = len(rows) == len(index)  # not the scales of groups of rows
    return fits and first_wrong_row(*both, np.arange(len(index)), move.lay, only=rows) is not None


def _place(a: Side, name: str, row: int) -> str:
    claim = next(claim for claim in claims(a.checkpoint, a.reading) if claim.tensor.name == name)
    return place_of(claim, row)


def _how_wrong(move: Move, both: Pair) -> str:
    """The mistake that explains a whole tensor, where one does."""
    index = move.permutation.index
    mistakes = (
        ("all rows are left as they are in the source", np.arange(len(index))),
        ("all rows are permuted in the other direction", index.argsort()),
        ("all rows are permuted twice", index[index]),
    )
    return next((f": {said}" for said, rows in mistakes if first_wrong_row(*both, rows, move.lay) is None), "")


def _guard_check(b: Side) -> Iterator[Check]:
    """Weights that the stock class would rotate wrongly must not load in it by mistake."""
    if b.stock_is_right:
        return
    stored, rotated, key = b.reading.pairing.value, b.reading.class_pairing.value, b.reading.family.pairing_key
    said = f"the weights are {stored} and the class rotates {rotated}"
    if has_guard(b.path) or marker(b.checkpoint.config).get(ENGINE) is not None:
        yield Check("guard", True, f"{said}; config.json keeps stock code from loading them")
        return
    where = key if key in b.reading.config else "model_type"
    does = "says so" if key in b.reading.config else "lets it load them, silently wrong"
    yield check_of("guard", Fault(f"{said}: {where} in config.json {does}", str(where)), "")
