"""The files beside those that a conversion reads: what a person should know of them, and what they forbid."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePath

from ropetool.checkpoint.adapter import adapters_of
from ropetool.checkpoint.folder import Checkpoint, SideFiles
from ropetool.checkpoint.pickled import NOT_WEIGHTS
from ropetool.checkpoint.strangers import WEIGHT_SUFFIXES
from ropetool.families.buffers import ReadFloats, read_floats, stale_frequency_warnings
from ropetool.families.reading import Reading, Warn
from ropetool.families.towers import tower_warnings, towers_of

# Weights in files that say for themselves what they are: no config.json is read for them.
OWN_CONFIG = frozenset((".gguf", ".ggml", ".onnx", ".onnx_data", ".npz"))
NATIVE = "consolidated"


def but_for(files: SideFiles, read: Iterable[Path]) -> SideFiles:
    """The side files, without the weights that were read (pickles): those are not left behind."""
    names = {file.name for file in read}
    return SideFiles(files.taken, tuple(path for path in files.left if str(path) not in names))


def left_behind(files: SideFiles) -> Iterator[Warn]:
    """What a copy does not take along."""
    for path in files.left:
        said = "was not copied: other weights, an adapter, or a large file of unknown kind"
        yield Warn("left-behind", f"{path} {said}")


def _stays_beside(files: SideFiles) -> Iterator[Warn]:
    """What a conversion in place leaves as it was."""
    for path in files.left:
        yield Warn("left-as-it-was", f"{path} was not converted: it stays as it was beside the result")


def source_warnings(
    checkpoint: Checkpoint, reading: Reading, files: SideFiles, read: ReadFloats | None, *, stay: bool
) -> Iterator[Warn]:
    """What a copy leaves behind, or what will ``stay``; adapters of the model; copies, tables and towers in it.

    ``read`` gives the values of a tensor that lies in no file yet.
    """
    yield from _stays_beside(files) if stay else left_behind(files)
    for path in adapters_of(checkpoint):
        said = f"{path} is an adapter of this model: on the result it is silently wrong; convert it as well"
        yield Warn("adapter", said)
    for shard, name in checkpoint.stale_copies:
        said = f"{name} also lies in {shard.path.name}, where the index does not look for it; that copy is left out"
        yield Warn("stale-copy", said)
    yield from stale_frequency_warnings(checkpoint, reading, read or read_floats)
    yield from tower_warnings(towers_of(checkpoint, reading.decoder))


def not_in_place(checkpoint: Checkpoint, files: SideFiles, config_file: str) -> str:
    """Why these files cannot be changed where they lie; empty where they can."""
    if checkpoint.stale_copies:
        shard, name = checkpoint.stale_copies[0]
        return f"{shard.path.name} has a copy of {name} where the index does not look for it, and it would be left out"
    shared = next((path for path in files.left if _is_read_by_config(path)), None)
    return f"{shared} has weights too, and would stay as it is under a {config_file} that changes" if shared else ""


def _is_read_by_config(path: PurePath) -> bool:
    """Whether a program that reads the changed config.json could take this file for the weights."""
    weights = path.suffix in WEIGHT_SUFFIXES - OWN_CONFIG and not path.name.startswith((*NOT_WEIGHTS, NATIVE))
    return weights and len(path.parts) == 1
