"""Two adapters held against each other as files: what stays is the same, what moves is exactly the permutation."""

from __future__ import annotations

import filecmp
from collections.abc import Iterator, Mapping
from pathlib import Path

from ropetool.checkpoint.adapter import (
    ADAPTER_PICKLE,
    ADAPTER_SINGLE,
    BASE_KEY,
    adapters_of,
    is_adapter,
    open_adapter,
)
from ropetool.checkpoint.compare import Pair, first_wrong_row, same_bytes
from ropetool.checkpoint.config import MARKER, marker
from ropetool.checkpoint.folder import ADAPTER_CONFIG, Checkpoint
from ropetool.checkpoint.strangers import read_json_file
from ropetool.errors import RopetoolError, UnsupportedError, UsageError
from ropetool.families.adapter import LAYOUT_FREE, Adapter, plan_adapter, read_adapter
from ropetool.families.form_checks import tensor_fault
from ropetool.families.verdict import Check, Fault, check_of
from ropetool.rope.pairing import IndexMap, Pairing


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
        yield check_of("tensors-kept", fault, "")
        return
    moves = () if a.pairing is b.pairing else plan_adapter(a, b.pairing).moves
    moved = {move.tensor.name: move.permutation.index for move in moves}
    pairs = {
        name: (first.weight_map[name], tensor, second.weight_map[name], second.tensors[name])
        for name, tensor in first.tensors.items()
    }
    kept = [name for name in pairs if name not in moved]
    changed = next((name for name in kept if not same_bytes(*pairs[name])), None)
    differs = Fault(f"{changed} must not differ, and does", changed) if changed else None
    yield check_of("tensors-kept", differs, f"{len(kept)} tensors are byte-identical")
    if moved:
        said = f"{len(moved)} tensors are exactly the permutation of their source"
        yield check_of("tensors-moved", next(_wrong_rows(pairs, moved), None), said)


def _wrong_rows(pairs: Mapping[str, Pair], moved: Mapping[str, IndexMap]) -> Iterator[Fault]:
    for name, index in moved.items():
        row = first_wrong_row(*pairs[name], index)
        if row is not None:
            left = same_bytes(*pairs[name])
            how = ": all rows are left as they are in the first" if left else ""
            yield Fault(f"{name}: row {row} should be row {index[row]} of the first, and is not{how}", name)


def beside_check(a: Checkpoint, b: Checkpoint, layout: Pairing) -> Iterator[Check]:
    """No adapter of the first lies beside the second, converted to ``layout``, as if it were the second's."""
    found = list(adapters_of(b))
    if not found:
        return
    ours = [weights for path in adapters_of(a) for weights in _weights(path)]
    for path in found:
        says = marker(read_json_file(path / ADAPTER_CONFIG)).get("pairing")
        same = says is None and any(filecmp.cmp(o, w, shallow=False) for o in ours for w in _weights(path))
        if (same or says not in (None, layout.value)) and _depends_on_layout(path, b.directory):
            why = "it is byte for byte an adapter of the first" if same else f"it is marked {says}"
            said = f"{path.name}: this adapter lies beside the second, which is {layout.value}, and {why}; convert it"
            yield check_of("adapters", Fault(said, path.name), "")
            return
    yield Check("adapters", True, f"{len(found)} adapters lie beside the second, none of them the first's")


def _weights(path: Path) -> list[Path]:
    return [path / name for name in (ADAPTER_SINGLE, ADAPTER_PICKLE) if (path / name).is_file()]


def _depends_on_layout(path: Path, base: Path) -> bool:
    """Whether anything in an adapter would move; where that cannot be told, it may."""
    try:
        adapter = read_adapter(open_adapter(path), base)
        return bool(plan_adapter(adapter, adapter.pairing.other).moves)
    except UnsupportedError as error:
        return error.fields.get("peft_type") not in LAYOUT_FREE
    except RopetoolError:
        return True


def _form_fault(a: Adapter, b: Adapter) -> Fault | None:
    """Where the two are not the same adapter whatever the layout: other tensors, or another config."""
    first, second = a.checkpoint, b.checkpoint
    fault = tensor_fault(first.tensors, second.tensors, "adapter")
    if fault is not None:
        return fault
    for key in sorted({*first.config, *second.config} - {MARKER, BASE_KEY}):
        said, other = first.config.get(key), second.config.get(key)
        if said != other:
            return Fault(f"{key} of {ADAPTER_CONFIG} is {said!r} in one and {other!r} in the other", key)
    return None
