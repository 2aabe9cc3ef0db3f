"""Two adapters held against each other as files: what stays is the same, what moves is exactly the permutation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ropetool.checkpoint.adapter import BASE_KEY, is_adapter, open_adapter
from ropetool.checkpoint.compare import first_wrong_row, same_bytes, same_form
from ropetool.checkpoint.config import MARKER
from ropetool.checkpoint.folder import ADAPTER_CONFIG
from ropetool.errors import UsageError
from ropetool.families.adapter import Adapter, plan_adapter, read_adapter
from ropetool.families.verdict import Check


def read_pair(paths: tuple[Path, Path], bases: tuple[Path, Path] | None) -> tuple[Adapter, Adapter]:
    """Two adapters, each read through the base that it names, or the one given, which must then have its layout."""
    if not all(map(is_adapter, paths)):
        raise UsageError(f"of {paths[0]} and {paths[1]}, both must be adapters, or none of them and no --base given")
    first, second = (
        read_adapter(open_adapter(path), base) for path, base in zip(paths, bases or (None, None), strict=True)
    )
    for adapter in (first, second):
        if bases is not None and adapter.pairing is not adapter.reading.pairing:
            raise UsageError(
                f"the base {adapter.base} is {adapter.reading.pairing.value}, and its adapter {adapter.pairing.value}; "
                f"give --base twice, the base of each adapter in the layout of that"
            )
    return first, second


def adapter_checks(a: Adapter, b: Adapter) -> Iterator[Check]:
    """The checks of two adapters of the same method; the rows that move come from the base of the first."""
    first, second = a.checkpoint, b.checkpoint
    fault = _form_fault(a, b)
    if fault is not None:
        yield Check("tensors-kept", False, fault)
        return
    moves = () if a.pairing is b.pairing else plan_adapter(a, b.pairing).moves
    moved = {move.tensor.name: move.permutation.index for move in moves}
    pairs = {
        name: (first.weight_map[name], tensor, second.weight_map[name], second.tensors[name])
        for name, tensor in first.tensors.items()
    }
    kept = [name for name in pairs if name not in moved]
    changed = next((name for name in kept if not same_bytes(*pairs[name])), None)
    detail = f"{changed} must not differ, and does" if changed else f"{len(kept)} tensors are byte-identical"
    yield Check("tensors-kept", changed is None, detail)
    for name, index in moved.items():
        row = first_wrong_row(*pairs[name], index)
        if row is not None:
            yield Check(
                "tensors-moved", False, f"{name}: row {row} should be row {index[row]} of the first, and is not"
            )
            return
    if moved:
        yield Check("tensors-moved", True, f"{len(moved)} tensors are exactly the permutation of their source")


def _form_fault(a: Adapter, b: Adapter) -> str | None:
    """Where the two are not the same adapter whatever the layout: other tensors, or another config."""
    first, second = a.checkpoint, b.checkpoint
    for name in sorted(first.tensors.keys() ^ second.tensors.keys()):
        return f"{name} is in {'the first' if name in first.tensors else 'the second'} adapter only"
    for name, left in first.tensors.items():
        right = second.tensors[name]
        if not same_form(left, right):
            return f"{name} is {left.dtype}{list(left.shape)} in one and {right.dtype}{list(right.shape)} in the other"
    for key in sorted({*first.config, *second.config} - {MARKER, BASE_KEY}):
        said, other = first.config.get(key), second.config.get(key)
        if said != other:
            return f"{key} of {ADAPTER_CONFIG} is {said!r} in one and {other!r} in the other"
    return None
