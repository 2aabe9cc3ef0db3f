"""Where the weights of a model lie that is larger than memory: on the GPUs, in memory, or in the shards."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch import nn

from ropetool.errors import UsageError
from ropetool.models.away import PIECE_BYTES, Away, keep_while_running
from ropetool.models.options import EACH, MaxMemory
from ropetool.models.tables import table_modules

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Need:
    """What a model needs beside the weights that stay in memory, in bytes.

    ``process`` is resident before the first pass, ``small`` the weights that always stay in memory, ``weights`` the
    most that is read at once, ``activations`` those of one pass.
    """

    process: int
    small: int
    weights: int
    activations: int
    largest: str

    @property
    def total(self) -> int:
        """All of it together."""
        return self.process + self.on_device

    @property
    def on_device(self) -> int:
        """What is needed where the model computes."""
        return self.small + self.weights + self.activations


def place(model: nn.Module, device: torch.device, max_memory: MaxMemory, tokens: int) -> None:
    """Bring into memory, on ``device`` and other GPUs, what ``max_memory`` has room for; the rest stays away.

    ``max_memory`` is in bytes by GPU number and ``cpu``, or for `EACH`; ``tokens`` is the length of the passes to
    come. Raises `UsageError` where the model could not run in it.
    """
    gpus = _gpus(device, max_memory)
    tables = {id(p) for module in table_modules(model).values() for p in module.parameters()}
    musts = {id(p): p.nbytes for p in model.parameters() if _must(p, tables)}
    need = _need(model, tokens, sum(musts.values()))
    rooms = {gpu: budget - need.on_device for gpu, budget in gpus.items()}
    rooms[CPU] = _room(need, max_memory, bool(gpus))
    for gpu, room in rooms.items():
        if room < 0:
            raise _too_small(gpu, need, gpus.get(gpu, max_memory.get("cpu", max_memory.get(EACH, 0))))
    computes = _compute_devices(model, gpus, rooms)
    placed: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in placed:
                where = computes.get(id(module), device)
                placed[id(parameter)] = _placed(parameter, where, rooms, must=id(parameter) in musts)
            setattr(module, name, placed[id(parameter)])
        if any(isinstance(p, Away) for p in module.parameters(recurse=False)):
            keep_while_running(module)
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(computes.get(id(module), device))
    _move_activations(model, computes, device)


def _must(parameter: nn.Parameter, tables: Collection[int]) -> bool:
    """Whether a parameter stays in memory whatever room there is: it is small, or a table that others look into."""
    return not isinstance(parameter, Away) or parameter.dim() < 2 or id(parameter) in tables


def _gpus(device: torch.device, max_memory: MaxMemory) -> dict[torch.device, int]:
    """The budget of each GPU, that which computes what lies in no GPU first."""
    if device.type == "cpu":
        return {}
    if device.type != "cuda":
        return {device: max_memory.get(EACH, max_memory.get(0, 0))}
    count = torch.cuda.device_count()
    beyond = [number for number in max_memory if isinstance(number, int) and number >= count]
    if beyond:
        raise UsageError(f"--max-memory names GPU {beyond[0]}, and this machine has {count}", gpu=beyond[0])
    named = {number: max_memory.get(number, max_memory.get(EACH, 0)) for number in range(count)}
    return {torch.device("cuda", number): size for number, size in named.items() if size}


def _room(need: Need, max_memory: MaxMemory, with_gpus: bool) -> int:
    """Bytes for weights in memory; with GPUs activations are there, and a weight passes through on its way."""
    if with_gpus:
        told = max_memory.get("cpu")
        return psutil.virtual_memory().available * 9 // 10 if told is None else told - need.process - need.weights
    return max_memory.get("cpu", max_memory.get(EACH, 0)) - need.total


def _too_small(device: torch.device, need: Need, budget: int) -> UsageError:
    needed = need.total if device.type == "cpu" else need.on_device
    resident = f"{_gb(need.process)} for the process as it is, " if device.type == "cpu" else ""
    return UsageError(
        f"--max-memory {_gb(budget)} for {device} is too small: {resident}{_gb(need.weights)} for the largest weights "
        f"that are read at once ({need.largest}) and {_gb(need.activations)} for what a pass computes are needed at "
        f"least; give {_gb(needed)} or more, or fewer --tokens",
        device=str(device), given_bytes=budget, needed_bytes=needed,
    )  # fmt: skip


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB"


def _need(model: nn.Module, tokens: int, small: int) -> Need:
    # A piece as it is stored, as it is computed with, and as it goes through the multiplication.
    largest, weights = "pieces of tables", 3 * PIECE_BYTES
    for name, module in model.named_modules():
        sizes = [p.nbytes for p in module.parameters(recurse=False) if isinstance(p, Away) and p.dim() > 1]
        by_rows = isinstance(module, (nn.Linear, nn.Embedding)) and all(p.rows for p in _own(module))
        # Read whole: what is stored and what it becomes are there together, joined weights and their parts too.
        most = 0 if by_rows or not sizes else sum(sizes) + max(sizes)
        if most > weights:
            largest, weights = name, most
    _warm_up()
    return Need(psutil.Process().memory_info().rss, small, weights, _activation_bytes(model, tokens), largest)


def _warm_up() -> None:
    """Have torch make what its first products make and keep: buffers, threads, kernels."""
    x = torch.ones(64, 64)
    (x @ x).softmax(-1)


def _own(module: nn.Module) -> Iterator[Away]:
    return (p for p in module.parameters(recurse=False) if isinstance(p, Away) and p.dim() > 1)


def _activation_bytes(model: Any, tokens: int) -> int:
    """What one pass holds at most, beside the logits of four passes and what is made of the last of them.

    Of one layer that is three tables T x T by head, and four as wide as its widest product.
    """
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 0) or 0
    heads = max(heads) if isinstance(heads, (list, tuple)) else heads
    linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    itemsize = max((w.element_size() for w in linear), default=4)
    widths = sorted({len(w) for w in linear}, reverse=True) or [0]
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    vocabulary = len(head.weight) if head is not None and hasattr(head, "weight") else widths[0]
    widest = next((w for w in widths if w != vocabulary), widths[0])
    return tokens * itemsize * (6 * vocabulary + 3 * heads * tokens + 4 * widest)


def _compute_devices(
    model: nn.Module, gpus: Mapping[torch.device, int], rooms: Mapping[torch.device, int]
) -> dict[int, torch.device]:
    """The GPU of each module, by the module's id: whole layers, one GPU after the other; the first for the rest."""
    if len(gpus) < 2:
        return {}
    left, order, found = dict(rooms), list(gpus), {}
    for block in _blocks(model):
        size = sum(p.nbytes for p in block.parameters())
        while len(order) > 1 and size > left[order[0]]:
            order.pop(0)
        where = order[0] if size <= left[order[0]] else next(iter(gpus))
        left[where] -= size
        found.update({id(module): where for module in block.modules()})
    return found


def _blocks(model: nn.Module) -> Iterator[nn.Module]:
    """What must stay together (a layer), and every other module that has tensors of its own, in their order."""
    together = set(getattr(model, "_no_split_modules", None) or ())
    for child in model.children():
        if type(child).__name__ in together or not list(child.children()):
            yield child
        else:
            yield from _blocks(child)


def _placed(parameter: Any, where: torch.device, rooms: dict[torch.device, int], *, must: bool) -> nn.Parameter:
    """The parameter in the first place that has room for it; where it must be in memory, on ``where``."""
    if must:
        values = parameter.value() if isinstance(parameter, Away) else parameter.detach()
        return nn.Parameter(values.to(where), requires_grad=False)
    place = next((p for p in dict.fromkeys((where, CPU)) if parameter.nbytes <= rooms[p]), None)
    if place is None:
        return nn.Parameter(parameter.cast(parameter.dtype, where), requires_grad=False)
    rooms[place] -= parameter.nbytes
    values = parameter.value().to(place)
    return nn.Parameter(values if place == where else _brought(values, where), requires_grad=False)


def _brought(values: torch.Tensor, where: torch.device) -> Away:
    """What lies in memory and goes to a GPU when it is needed there."""
    shape, dtype = values.shape, values.dtype
    return Away(shape, dtype, where, lambda: values.to(where), lambda a, b: values[a:b].to(where))


class _InputsHere(AlignDevicesHook):  # type: ignore[misc]  # accelerate has no types
    """accelerate's hook that moves what a module gets to where it computes; its weights are placed already."""

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Leave the weights where they are."""
        return module


def _move_activations(model: Any, computes: Mapping[int, torch.device], device: torch.device) -> None:
    """Where layers lie on several GPUs, move what goes from one to the next."""
    if len(set(computes.values())) < 2:
        return
    skip = getattr(model, "_skip_keys_device_placement", None)
    for block in _blocks(model):
        add_hook_to_module(block, _InputsHere(computes[id(block)], skip_keys=skip))
    add_hook_to_module(model, _InputsHere(device, io_same_device=True, skip_keys=skip))
