"""How faults are planted in the files of a checkpoint: tensors, config keys and shards, without ropetool's own maps."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ropetool.rope.layout import Pairing
from tests.tiny import edit_json, read_json

Tensors = dict[str, Tensor]
SINGLE, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
BLOCKS = ("rope_parameters", "rope_scaling")


@dataclass(frozen=True)
class Pair:
    """The source and the checkpoint made of it; a fault is planted in the second, in place."""

    a: Path
    b: Path


Plant = Callable[[Pair], None]


def files_of(directory: Path) -> list[Path]:
    """The shards of a checkpoint or an adapter."""
    return sorted(directory.glob("*.safetensors"))


def tensors_of(directory: Path) -> Tensors:
    """All tensors, by name."""
    return {name: tensor for file in files_of(directory) for name, tensor in load_file(file).items()}


def write(file: Path, tensors: Tensors) -> None:
    """Replace one shard; a hard link is left to its other name."""
    held = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    file.unlink(missing_ok=True)
    save_file(held, file, metadata={"format": "pt"})


def weights(change: Callable[[Tensors, Tensors], None]) -> Plant:
    """A fault in tensors: ``change`` gets those of B, to change in place, and those of A."""

    def plant(pair: Pair) -> None:
        tensors, original = tensors_of(pair.b), tensors_of(pair.a)
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        change(tensors, original)
        assert tensors.keys() != before.keys() or any(not _same(tensors[n], before[n]) for n in before), "no fault"
        (file,) = files_of(pair.b)
        write(file, tensors)

    return plant


def _same(a: Tensor, b: Tensor) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(_bits(a), _bits(b))


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def left(*names: str) -> Plant:
    """Tensors that stayed as they are in the source."""
    return weights(lambda new, old: new.update({name: old[name] for name in names}))


def mapped(name: str, change: Callable[[Tensor], Tensor]) -> Plant:
    """One tensor of B changed."""
    return weights(lambda new, old: new.update({name: change(new[name].clone())}))


def remade(name: str, change: Callable[[Tensor], Tensor]) -> Plant:
    """One tensor of B made of that of A in a wrong way."""
    return weights(lambda new, old: new.update({name: change(old[name].clone())}))


def order(width: int, to: Pairing) -> list[int]:
    """Which row of the other layout comes to each row of a rotary span in layout ``to``, from cases.md's two lists."""
    half = [row for parity in (0, 1) for row in range(parity, width, 2)]
    return half if to is Pairing.HALF else [row // 2 + row % 2 * (width // 2) for row in range(width)]


def turned(dim: int, to: Pairing = Pairing.INTERLEAVED, start: int = 0, width: int | None = None) -> Callable[..., Any]:
    """Rows put into layout ``to`` as if they fell into heads of ``dim``, of which ``width`` from ``start`` on turn."""
    wide = width or dim

    def change(tensor: Tensor) -> Tensor:
        rows = list(range(len(tensor)))
        for head in range(0, len(rows), dim):
            at = head + start
            rows[at : at + wide] = [at + row for row in order(wide, to)]
        return tensor[rows]

    return change


def part(start: int, stop: int, change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A change of the rows from ``start`` to ``stop``."""
    return lambda tensor: torch.cat((tensor[:start], change(tensor[start:stop]), tensor[stop:]))


def rolled(tensor: Tensor) -> Tensor:
    return tensor.roll(1, 0)


def exchanged(first: int, second: int) -> Callable[[Tensor], Tensor]:
    """Two rows in each other's place."""

    def change(tensor: Tensor) -> Tensor:
        tensor[[first, second]] = tensor[[second, first]]
        return tensor

    return change


def one_ulp(tensor: Tensor) -> Tensor:
    """The last value raised by the smallest step that there is."""
    flat = tensor.reshape(-1)
    flat[-1] = torch.nextafter(flat[-1], torch.tensor(float("inf"), dtype=flat.dtype))
    return tensor


def swapped(first: str, second: str) -> Plant:
    """Two tensors under each other's name."""
    return weights(lambda new, old: new.update({first: new[second].clone(), second: new[first].clone()}))


# --- config -----------------------------------------------------------------------------------------------------------


def config(*removed: str, **changes: Any) -> Plant:
    """Keys of B's config.json changed, or removed."""
    return lambda pair: edit_json(pair.b / CONFIG, *removed, **changes)


def adapter_config(**changes: Any) -> Plant:
    """Keys of B's adapter_config.json changed."""
    return lambda pair: edit_json(pair.b / ADAPTER_CONFIG, **changes)


def block(*removed: str, layers: str | None = None, only: str | None = None, **changes: Any) -> Plant:
    """Keys of the rope block changed or removed, in every style that is there (or in ``only`` one).

    ``layers`` is the kind of layers whose block it is, where each has one of its own.
    """

    def plant(pair: Pair) -> None:
        said = read_json(pair.b / CONFIG)
        for where in BLOCKS if only is None else (only,):
            holder = said.get(where)
            if not holder or (layers and layers not in holder):
                continue
            inner = holder[layers] if layers else holder
            changed = {key: value for key, value in {**inner, **changes}.items() if key not in removed}
            said[where] = {**holder, layers: changed} if layers else changed
        top = {key: value for key, value in changes.items() if key in said and not layers}
        (pair.b / CONFIG).write_text(json.dumps(said | top), encoding="utf-8")

    return plant


def extension_marker(**changes: Any) -> Plant:
    """What the marker says of an extension."""

    def plant(pair: Pair) -> None:
        said = read_json(pair.b / CONFIG)["ropetool"]
        edit_json(pair.b / CONFIG, ropetool={**said, "extension": {**said["extension"], **changes}})

    return plant


def both(*plants: Plant) -> Plant:
    """Several changes that make one fault."""

    def plant(pair: Pair) -> None:
        for one in plants:
            one(pair)

    return plant


# --- files ------------------------------------------------------------------------------------------------------------


def shard_of(directory: Path, tensor: str) -> Path:
    """The shard that the index names for a tensor."""
    return directory / read_json(directory / INDEX)["weight_map"][tensor]


def copied_to_another_shard(tensor: str) -> Plant:
    """The source's values of a tensor in a second shard as well."""

    def plant(pair: Pair) -> None:
        other = next(file for file in files_of(pair.b) if file != shard_of(pair.b, tensor))
        write(other, {**load_file(other), tensor: load_file(shard_of(pair.a, tensor))[tensor]})

    return plant


def mapped_to(tensor: str, file: str) -> Plant:
    """Another entry of the index."""

    def plant(pair: Pair) -> None:
        index = read_json(pair.b / INDEX)
        edit_json(pair.b / INDEX, weight_map={**index["weight_map"], tensor: file})

    return plant


def beside(name: str, content: Callable[[Pair], bytes]) -> Plant:
    """A file more in B's directory."""

    def plant(pair: Pair) -> None:
        (pair.b / name).write_bytes(content(pair))

    return plant


def marked_adapter(pairing: str) -> Plant:
    """The marker of an adapter in B's folder."""
    return lambda pair: edit_json(pair.b / "adapter" / ADAPTER_CONFIG, ropetool={"pairing": pairing})


def folder_of_the_source(name: str) -> Plant:
    """A folder in A's directory, as it is, in B's too."""

    def plant(pair: Pair) -> None:
        shutil.rmtree(pair.b / name, ignore_errors=True)
        shutil.copytree(pair.a / name, pair.b / name)

    return plant


def last_byte_flipped(pair: Pair) -> None:
    """One bit of the last tensor of the file."""
    (file,) = files_of(pair.b)
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.unlink()
    file.write_bytes(raw)


def last_name(directory: Path) -> str:
    """The tensor that ends the file."""
    (file,) = files_of(directory)
    raw = file.read_bytes()
    header = json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    header.pop("__metadata__", None)
    return max(header, key=lambda name: header[name]["data_offsets"][1])
