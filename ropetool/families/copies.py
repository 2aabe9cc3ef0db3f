"""Weights that lie in a checkpoint's directory and are not those that count: what a loader may take instead."""

from __future__ import annotations

import filecmp
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ropetool.checkpoint.adapter import ADAPTER_SINGLE
from ropetool.checkpoint.compare import same_bytes, same_form
from ropetool.checkpoint.folder import ADAPTER_CONFIG, Checkpoint
from ropetool.checkpoint.shards import Shard, read_shard
from ropetool.errors import ShardError
from ropetool.families.verdict import Check, Fault, check_of

# What transformers and engines load where it is there, under the names of a whole model.
WHOLE_MODEL = re.compile(r"^(pytorch_model|model|tf_model|flax_model|consolidated)\b.*\.(bin|pt|pth|h5|msgpack|ckpt)$")


def copies_check(a: Checkpoint, b: Checkpoint) -> Check:
    """No tensor of ``b`` lies a second time beside the one that counts, with other bytes."""
    fault = next(chain(_in_shards(b), _in_strays(a, b)), None) if b.shards else None
    return check_of("stale-copies", fault, "no tensor lies twice with different bytes")


def _in_shards(b: Checkpoint) -> Iterator[Fault]:
    for shard, name in b.stale_copies:
        yield from _stale(b, shard, name)


def _stale(b: Checkpoint, shard: Shard, name: str) -> Iterator[Fault]:
    counts = b.weight_map[name]
    copy, tensor = shard.tensors[name], counts.tensors[name]
    if not (same_form(copy, tensor) and same_bytes(shard, copy, counts, tensor)):
        said = f"{name} also lies in {shard.path.name}, with other bytes than in {counts.path.name}, which counts"
        yield Fault(f"{said}; a loader that reads every file takes the one that comes last", name)


def _in_strays(a: Checkpoint, b: Checkpoint) -> Iterator[Fault]:
    """Shards that neither the index nor the name of a single file leads to."""
    if b.index_file is None and b.shards[0].path.name != "model.safetensors":
        return  # one file among others, named by whoever asks
    counted = {shard.path for shard in b.shards}
    for file in sorted(filter(Path.is_file, b.directory.glob("*.safetensors"))):
        if file in counted or file.name == ADAPTER_SINGLE:
            continue
        try:
            stray = read_shard(file)
        except ShardError as error:
            yield Fault(f"{file.name} lies beside the weights, and cannot be read: {error.message}", file.name)
            continue
        for name in stray.tensors:
            if name in b.weight_map:
                yield from _stale(b, stray, name)
            elif not _in_both(a, file):
                said = f"{name} is in {file.name} alone, to which nothing leads, and which the first has not"
                yield Fault(said, name)
                break


def others_check(a: Checkpoint, b: Checkpoint, *, moved: bool) -> Check:
    """No weights in another format, and no adapter, lie beside those of ``b`` that the first has not, too."""
    adapter = next((f for f in (b.directory / ADAPTER_CONFIG,) if f.is_file() and not _in_both(a, f)), None)
    if adapter is not None:
        said = (
            f"{adapter.name} lies among the weights, and the first has not it: transformers with PEFT adds the adapter"
        )
        return check_of("other-weights", Fault(said, adapter.name), "")
    found = sorted(file for file in b.directory.iterdir() if WHOLE_MODEL.match(file.name) and file.is_file())
    stale = next((file for file in found if moved or not _in_both(a, file)), None)
    fault = None
    if stale is not None:
        why = "its rows are not those of the safetensors" if moved and _in_both(a, stale) else "the first has not it"
        said = f"{stale.name} lies beside the safetensors, and {why}: a loader that prefers it gets another model"
        fault = Fault(said, stale.name)
    return check_of("other-weights", fault, "no weights in another format lie beside that the first has not")


def _in_both(a: Checkpoint, file: Path) -> bool:
    """Whether the first has the same file."""
    other = a.directory / file.name
    return other.is_file() and filecmp.cmp(other, file, shallow=False)
