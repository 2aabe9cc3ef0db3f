"""Checkpoints in torch's pickle format (.bin, .pth), read without running any code of theirs, as safetensors ones.

A pickle is a program. torch's ``weights_only`` reader refuses whatever is not a tensor or a plain container, so a file
that it refuses is refused here: there is no way round. Tensors stay in the mapped file until they are written, one
by one. Tensors that share memory (tied embeddings) are written each: a file does not tell which ones the class ties,
and one that is left out where the class does not would be random.
"""

from __future__ import annotations

import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropetool.checkpoint.adapter import ADAPTER_PICKLE, ADAPTER_SINGLE
from ropetool.checkpoint.copying import copy_file
from ropetool.checkpoint.folder import (
    ADAPTER_CONFIG,
    CONFIG,
    INDEX,
    Checkpoint,
    check_space,
    copy_side_files,
    read_config,
    sharded_checkpoint,
    side_files,
)
from ropetool.checkpoint.pickled import (
    PICKLE_INDEX,
    pickled_files,
    planned_shard,
    safetensors_names,
)
from ropetool.checkpoint.shards import BUFFER_BYTES, Shard, no_progress, stamp_of, stamps_of
from ropetool.checkpoint.shards import Tensor as Entry
from ropetool.checkpoint.strangers import OF_INDEX, read_json_file
from ropetool.errors import PickleFileError
from ropetool.families.lengths import to_json
from ropetool.families.reading import Warn
from ropetool.rope.frequencies import Floats

# safetensors 0.8.0, torch.py: _TYPES.
DTYPES: Mapping[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ",
    torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
# Under which keys trainers keep the weights within a larger checkpoint.
NESTS = ("state_dict", "model", "module")
# Of what torch says about a file it cannot read.
MOST_CHARACTERS = 200


@dataclass(frozen=True)
class Pickled:
    """Pickles, read: the safetensors checkpoint that they will be, whose shards are not there yet.

    ``tensors`` and ``headers`` are by the name of the shard; ``files`` are those that were read.
    """

    checkpoint: Checkpoint
    files: tuple[Path, ...]
    tensors: Mapping[str, Mapping[str, Tensor]]
    headers: Mapping[str, bytes]
    warnings: tuple[Warn, ...]

    def write(self, shard: Shard, target: Path, progress: Callable[[int], None] = no_progress) -> None:
        """Write one shard as ``target``, tensor by tensor."""
        with target.open("xb") as file:
            progress(file.write(self.headers[shard.path.name]))
            for name in shard.tensors:
                for piece in _pieces(self.tensors[shard.path.name][name]):
                    progress(file.write(piece))

    def floats(self, shard: Shard, tensor: Entry) -> Floats:
        """The values of a small tensor, which is in no file yet."""
        return self.tensors[shard.path.name][tensor.name].detach().double().numpy()

    def write_index(self, stage: Path) -> None:
        """Write the index of a sharded checkpoint."""
        checkpoint = self.checkpoint
        if checkpoint.index_file is not None:
            places = {name: shard.path.name for name, shard in checkpoint.weight_map.items()}
            index = {"metadata": {"total_size": checkpoint.size_bytes}, "weight_map": places}
            (stage / checkpoint.index_file).write_text(to_json(index), encoding="utf-8")


def _pieces(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor in row-major order, in pieces."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().flatten()
    raw = flat.view(torch.uint8).numpy()
    for start in range(0, len(raw), BUFFER_BYTES):
        yield raw[start : start + BUFFER_BYTES].data


def open_pickled(directory: Path) -> Pickled | None:
    """Read the checkpoint or adapter in ``directory`` if its weights are pickles; None if they are not.

    Raises `PickleFileError` for a file that only code could load, or that holds anything but named plain tensors.
    """
    files, reader = pickled_files(directory), _Reader(directory)
    if not files:
        return None
    if files[0].name == PICKLE_INDEX:
        reader.names.update(_numbered(files[0]))
        checkpoint = sharded_checkpoint(directory, read_config(directory), files[0], reader.read)
        return reader.result(replace(checkpoint, index_file=INDEX), files)
    adapter = files[0].name == ADAPTER_PICKLE
    targets = [ADAPTER_SINGLE] if adapter else safetensors_names(len(files))
    reader.names.update(zip((file.name for file in files), targets, strict=True))
    config = read_json_file(directory / ADAPTER_CONFIG) if adapter else read_config(directory)
    return reader.result(_together(directory, config, files, [reader.read(file) for file in files]))


def _numbered(index: Path) -> dict[str, str]:
    """The shards of an index with the names that they get; what is wrong with the index shows when it is opened."""
    places = read_json_file(index, OF_INDEX).get("weight_map")
    shards = sorted({name for name in places.values() if isinstance(name, str)}) if isinstance(places, dict) else []
    return dict(zip(shards, safetensors_names(len(shards)), strict=True))


def _together(directory: Path, config: dict[str, Any], files: tuple[Path, ...], shards: list[Shard]) -> Checkpoint:
    """Files without an index, as one checkpoint; the same name in two of them is a slice, not a tensor."""
    places: dict[str, Shard] = {}
    for file, shard in zip(files, shards, strict=True):
        twice = next((name for name in shard.tensors if name in places), None)
        if twice is not None:
            raise PickleFileError(
                f"{twice} is in {file.name} and in another file: these are the slices of a model that was split over "
                f"devices, not shards; join them with the tool that came with the model",
                file=str(file),
                tensor=twice,
            )
        places.update(dict.fromkeys(shard.tensors, shard))
    return Checkpoint(directory, config, tuple(shards), INDEX if len(files) > 1 else None, places)


class _Reader:
    """Reads pickles one by one, and keeps their tensors by the name of the shard that each becomes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.names: dict[str, str] = {}
        self.files: list[Path] = []
        self.tensors: dict[str, Mapping[str, Tensor]] = {}
        self.headers: dict[str, bytes] = {}
        self.warnings: list[Warn] = []
        self.stamps = dict(stamps_of(directory / name for name in (CONFIG, ADAPTER_CONFIG, PICKLE_INDEX)))

    def read(self, file: Path) -> Shard:
        """The shard that ``file`` will be."""
        name, self.stamps[file] = self.names[file.name], stamp_of(file)
        tensors, others = state_dict(file)
        forms = {key: (DTYPES[tensor.dtype], tuple(tensor.shape)) for key, tensor in tensors.items()}
        shard, header = planned_shard(self.directory / name, forms)
        self.files.append(file)
        self.tensors[name], self.headers[name] = tensors, header
        said = f"{file.name} was read as plain tensors (weights_only) and becomes {name}"
        kept_out = f"; it also holds {', '.join(others[:4])}, which {'is' if len(others) == 1 else 'are'} left out"
        self.warnings.append(Warn("pickle", said + (kept_out if others else "")))
        return shard

    def result(self, checkpoint: Checkpoint, more: tuple[Path, ...] = ()) -> Pickled:
        """Everything that was read, as ``checkpoint``."""
        checkpoint = replace(checkpoint, stamps=self.stamps)
        return Pickled(checkpoint, (*self.files, *more), self.tensors, self.headers, tuple(self.warnings))


def state_dict(file: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The named tensors of a pickle, and what else a trainer keeps beside the weights, by name."""
    loaded = _load(file)
    if not isinstance(loaded, dict):
        raise _refused(file, f"it holds a {type(loaded).__name__}, not tensors by name")
    others: tuple[str, ...] = ()
    nests = [key for key in NESTS if isinstance(loaded.get(key), dict)]
    if nests and not any(isinstance(value, Tensor) for value in loaded.values()):
        if len(nests) > 1:
            raise _refused(file, f"it holds weights under {' and '.join(nests)}, and nothing says which count")
        others = tuple(str(key) for key in loaded if key != nests[0])
        loaded = loaded[nests[0]]
    if not loaded:
        raise _refused(file, "it holds no tensors")
    for name, value in loaded.items():
        _check_entry(file, name, value)
    return dict(loaded), others


def _check_entry(file: Path, name: object, value: object) -> None:
    plain = isinstance(value, Tensor) and type(value) in (Tensor, nn.Parameter)
    if not isinstance(value, Tensor) or not plain or not isinstance(name, str) or name == "__metadata__":
        kind = type(value).__name__
        raise _refused(file, f"its entry {name!r} is of the type {kind}, not a plain tensor by name", tensor=str(name))
    if value.is_quantized or value.layout is not torch.strided or value.device.type != "cpu":
        what = "quantized" if value.is_quantized else f"{value.layout} on {value.device}"
        raise _refused(file, f"{name} is {what}, which safetensors cannot hold", tensor=name)
    if value.dtype not in DTYPES:
        raise _refused(file, f"{name} is {value.dtype}, which safetensors cannot hold", tensor=name)


def _load(file: Path) -> Any:
    try:
        return torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
    except Exception as error:  # a stranger's file can make the reader raise anything
        raise _refused(file, _reason(error)) from error


def _reason(error: Exception) -> str:
    """What torch's reader found, in half a sentence."""
    said = str(error)
    asked = re.search(r"GLOBAL ([\w.]+)", said)
    if asked:
        return f"to load it, {asked[1]} would have to be called, and what that does is not known"
    first = said.splitlines()[0] if said else ""
    detail = first if " " in first and len(first) < MOST_CHARACTERS else type(error).__name__
    return f"it is damaged, or no file of named tensors that torch.save wrote ({detail})"


def _refused(file: Path, reason: str, **fields: Any) -> PickleFileError:
    return PickleFileError(
        f"{file.name} is refused: {reason}. Save the weights as safetensors where you trust the file, or get them so",
        file=str(file),
        **fields,
    )


@contextmanager
def as_safetensors(path: Path) -> Iterator[Path]:
    """``path``, or within the block a temporary copy of it in safetensors, if its weights are pickles."""
    pickled = open_pickled(path)
    if pickled is None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="ropetool-") as name:
        place, checkpoint = Path(name), pickled.checkpoint
        check_space(place, sum(shard.size_bytes for shard in checkpoint.shards))
        for shard in checkpoint.shards:
            pickled.write(shard, place / shard.path.name)
        pickled.write_index(place)
        copy_side_files(checkpoint, place, side_files(checkpoint))
        for config in (CONFIG, ADAPTER_CONFIG):
            if (path / config).is_file():
                copy_file(path / config, place / config)
        yield place
