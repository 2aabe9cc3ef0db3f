"""Weights in torch's pickle format: which files of a directory hold them, and the safetensors files they will become.

Reading them takes torch (`models.pickles`); names, headers and offsets do not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from ropetool.checkpoint.adapter import ADAPTER_PICKLE, ADAPTER_SINGLE, is_adapter
from ropetool.checkpoint.folder import SINGLE
from ropetool.checkpoint.shards import DTYPE_BITS, Shard, Tensor

PICKLE_INDEX = "pytorch_model.bin.index.json"
PICKLE_SINGLE = "pytorch_model.bin"
SUFFIXES = (".bin", ".pth", ".pt")
# What trainers leave beside the weights.
NOT_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state", "random_states", "adapter_model")


def pickled_files(path: Path) -> tuple[Path, ...]:
    """The pickles that hold the weights of ``path``, or their index; none where it has safetensors, or it is not clear.

    Of an adapter `ADAPTER_PICKLE`; else those of `pickled_names`.
    """
    if is_adapter(path):
        pickle = path / ADAPTER_PICKLE
        return (pickle,) if pickle.is_file() and not (path / ADAPTER_SINGLE).is_file() else ()
    if not path.is_dir():
        return ()
    return tuple(path / name for name in pickled_names([file.name for file in path.iterdir() if file.is_file()]))


def pickled_names(names: Collection[str]) -> tuple[str, ...]:
    """The pickles with the weights among the files of a directory: none where there are safetensors.

    Of `PICKLE_INDEX`, `PICKLE_SINGLE`, all ``consolidated.*.pth`` and a single other file, the first that is there.
    """
    if any(name.endswith(".safetensors") and name != ADAPTER_SINGLE for name in names):
        return ()
    for name in (PICKLE_INDEX, PICKLE_SINGLE):
        if name in names:
            return (name,)
    consolidated = tuple(sorted(name for name in names if fnmatch(name, "consolidated.*.pth")))
    if consolidated:
        return consolidated
    found = [name for name in sorted(names) if name.endswith(SUFFIXES) and not name.startswith(NOT_WEIGHTS)]
    return tuple(found) if len(found) == 1 else ()


def safetensors_names(count: int) -> list[str]:
    """The names of ``count`` shards, as transformers numbers them."""
    return [SINGLE] if count == 1 else [f"model-{at:05}-of-{count:05}.safetensors" for at in range(1, count + 1)]


def planned_shard(path: Path, forms: Mapping[str, tuple[str, Sequence[int]]]) -> tuple[Shard, bytes]:
    """The shard that `path` will be, with tensors of these (dtype, shape), and the bytes of its header.

    The order is the safetensors library's: wide dtypes first, so that every tensor is aligned, then by name.
    """
    names = sorted(forms, key=lambda name: (-DTYPE_BITS[forms[name][0]], name))
    sizes = {name: math.prod(shape) * DTYPE_BITS[dtype] // 8 for name, (dtype, shape) in forms.items()}
    starts, position = {}, 0
    for name in names:
        starts[name], position = position, position + sizes[name]
    entries = {
        name: {
            "dtype": forms[name][0],
            "shape": list(forms[name][1]),
            "data_offsets": [starts[name], starts[name] + sizes[name]],
        }
        for name in names
    }
    metadata = {"format": "pt"}
    text = json.dumps({"__metadata__": metadata, **entries}, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    tensors = {
        name: Tensor(name, forms[name][0], tuple(forms[name][1]), len(header) + starts[name],
                     len(header) + starts[name] + sizes[name])
        for name in names
    }  # fmt: skip
    return Shard(path, len(header) + position, tensors, metadata), header
