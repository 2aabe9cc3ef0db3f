"""Models larger than memory: accelerate spreads them over the GPUs and memory, and leaves the rest in the shards.

transformers finds in the shards what it would load as it lies there; accelerate reads it whenever its module runs, one
module at a time. Here is what they do not know: how much room there is beside what a pass computes, and which small
weights others look into, so that they must not be away.
"""

from __future__ import annotations

import copy
import logging
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import torch
from accelerate import infer_auto_device_map, init_empty_weights
from accelerate.utils import set_module_tensor_to_device
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ropetool.checkpoint.folder import Checkpoint, check_space, open_checkpoint
from ropetool.errors import DeviceMemoryError, UnsupportedError, UsageError
from ropetool.models.fallbacks import release
from ropetool.models.loading import load_checked
from ropetool.models.options import EACH, MaxMemory
from ropetool.models.tables import table_modules

# Devices as accelerate names them: a GPU by its number, others by their kind.
Place = int | str
CPU, DISK = "cpu", "disk"
# What glibc's malloc can keep of freed weights instead of giving it back: a stored one and what it became, of at most
# 32 MiB each (mallopt(3), M_MMAP_THRESHOLD); and as much again, as on a busy machine up to 50 MB more were measured.
RETAINED_BYTES = 128 << 20


@dataclass(frozen=True)
class Need:
    """What a model needs beside the weights that have a place of their own, in bytes.

    ``process`` is resident before the model is there, ``small`` are the weights that are always in memory, ``weights``
    the most that is on its way at once, ``activations`` what a pass computes.
    """

    process: int
    small: int
    weights: int
    activations: int
    largest: str

    def at(self, place: Place) -> int:
        """All of it together; what is resident already is in memory, and not on a GPU."""
        return self.small + self.weights + self.activations + (self.process if place == CPU else 0)


def load_placed(
    kind: Any, path: Path, *, config: Any, device_map: Mapping[str, torch.device], dtype: Any, max_memory: MaxMemory,
    tokens: int, **options: Any,
) -> Any:  # fmt: skip
    """`load_checked`, but what ``max_memory`` has no room for in passes of ``tokens`` stays in the shards.

    ``max_memory`` is in bytes by GPU number and ``cpu``, or for `EACH`. Raises `DeviceMemoryError` where the model
    could not run in it, `NoSpaceError` where there is no room on the disk for weights that the class joins out of
    several tensors, and `UnsupportedError` for quantised weights: they are not computed with as they are stored.
    """
    checkpoint = open_checkpoint(path)
    _check_unquantised(checkpoint)
    if not path.is_dir():
        raise UnsupportedError(f"{path} is one file; under --max-memory give the directory that it makes a model of")
    logging.getLogger("accelerate.big_modeling").setLevel(logging.ERROR)  # it warns that what is away is away
    release()  # what a model before has left
    unfilled = _unfilled(kind, config, dtype)
    places = device_map_of(unfilled, checkpoint, device_map[""], max_memory, tokens)
    folder = Path(tempfile.mkdtemp(prefix="ropetool-"))
    try:
        check_space(folder, _rewritten_bytes(unfilled, checkpoint, places))
        with _read_not_mapped():
            model = load_checked(
                kind, path, config=config, device_map=places, offload_folder=folder, dtype=dtype, **options
            )
    except BaseException:
        shutil.rmtree(folder)
        raise
    _keep(model, unfilled)
    _read_what_is_taken(model)
    weakref.finalize(model, shutil.rmtree, folder, ignore_errors=True)
    return model


def _check_unquantised(checkpoint: Checkpoint) -> None:
    if checkpoint.config.get("quantization_config"):
        raise UnsupportedError(
            f"the weights in {checkpoint.directory} are quantised, and such weights cannot stay on disk while they "
            f"are computed with; leave out --max-memory",
            path=str(checkpoint.directory),
        )


def _unfilled(kind: Any, config: Any, dtype: Any) -> Any:
    """The model without its weights, in the dtype that it computes in."""
    options = {"dtype": dtype} if isinstance(dtype, torch.dtype) else {}
    with init_empty_weights():
        model = kind._from_config(copy.deepcopy(config), **options)
    model.tie_weights()
    return model


@contextmanager
def _read_not_mapped() -> Iterator[None]:
    """Within, transformers reads the shards; pages that it maps count as memory until the last weight is loaded.

    It does so by itself where mapping is costly (transformers 5.24, modeling_utils.py, ``_load_pretrained_model``).
    """
    from transformers import modeling_utils

    mapped = modeling_utils.safe_open

    def read(*args: Any, **kwargs: Any) -> Any:
        return mapped(*args, **{**kwargs, "backend": "pread"})

    with mock.patch.object(modeling_utils, "safe_open", read):
        yield


def device_map_of(
    model: Any, checkpoint: Checkpoint, device: torch.device, max_memory: MaxMemory, tokens: int
) -> dict[str, Place]:
    """Where the weights of each module go, by the path of the module; what goes to no GPU computes on ``device``.

    Raises `DeviceMemoryError` where the model could not run in ``max_memory``.
    """
    gpus = _gpus(device, max_memory)
    always = _always_there(model)
    need = _need(model, checkpoint, tokens, always)
    rooms: dict[Place, int] = {gpu: size - need.at(gpu) for gpu, size in gpus.items()}
    rooms[CPU] = _room(need, max_memory, bool(gpus))
    for place, room in rooms.items():
        if room < 0:
            raise _too_small(place, need, gpus.get(place, max_memory.get(CPU, max_memory.get(EACH, 0))))
    whole = [*((model._no_split_modules or ()) if gpus else ()), *(type(m).__name__ for _, m, _ in _owners(model))]
    return dict(infer_auto_device_map(model, max_memory=rooms, no_split_module_classes=whole))


def _gpus(device: torch.device, max_memory: MaxMemory) -> dict[Place, int]:
    """The budget of each GPU, that which computes what lies in no GPU first."""
    if device.type == CPU:
        gpu = next((number for number in max_memory if isinstance(number, int)), None)
        if gpu is not None:
            raise UsageError(f"--max-memory names GPU {gpu}, and the model runs on the CPU; give SIZE or cpu=SIZE")
        return {}
    if device.type != "cuda":
        return {device.type: max_memory.get(EACH, max_memory.get(0, 0))}
    count = torch.cuda.device_count()
    beyond = [number for number in max_memory if isinstance(number, int) and number >= count]
    if beyond:
        raise UsageError(f"--max-memory names GPU {beyond[0]}, and this machine has {count}", gpu=beyond[0])
    named = {number: max_memory.get(number, max_memory.get(EACH, 0)) for number in range(count)}
    return {number: size for number, size in named.items() if size}


def free_memory(device: torch.device) -> MaxMemory:
    """What is left of a GPU, as a limit for what is placed on it."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return {device.index or 0: free}
    return {EACH: torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()}


def _room(need: Need, max_memory: MaxMemory, with_gpus: bool) -> int:
    """Bytes for weights in memory; with GPUs activations are there, and a weight passes through on its way."""
    if with_gpus:
        told = max_memory.get(CPU)
        return psutil.virtual_memory().available * 9 // 10 if told is None else told - need.process - need.weights
    return max_memory.get(CPU, max_memory.get(EACH, 0)) - need.at(CPU)


def _too_small(place: Place, need: Need, budget: int) -> DeviceMemoryError:
    resident = f"{_gb(need.process)} for the process as it is, " if place == CPU else ""
    return DeviceMemoryError(
        f"--max-memory {_gb(budget)} for {place} is too small: {resident}{_gb(need.weights)} for the largest weights "
        f"that are read at once ({need.largest}) and {_gb(need.activations)} for what a pass computes are needed at "
        f"least; give {_gb(need.at(place))} or more, or fewer tokens",
        device=str(place), given_bytes=budget, needed_bytes=need.at(place),
    )  # fmt: skip


def _gb(size_bytes: int) -> str:
    return f"{size_bytes / 1e9:.2f} GB" if size_bytes >= 1e8 else f"{size_bytes / 1e6:.3g} MB"


def _owners(model: nn.Module) -> Iterator[tuple[str, nn.Module, dict[str, nn.Parameter]]]:
    """The modules that have parameters or saved buffers of their own, by path, each with its own parameters."""
    saved = {name.rpartition(".")[0] for name in model.state_dict()}
    return ((n, m, dict(m.named_parameters(recurse=False))) for n, m in model.named_modules() if n in saved)


def _always_there(model: Any) -> frozenset[str]:
    """The modules whose own weights are never away: norms and the like are small; others are looked into.

    Those are rotary tables, and the embedding (with what is tied to it): a class may ask its weight for the device
    (Llama 4, transformers 5.24).
    """
    looked_into = [*_embedding(model), *table_modules(model).values()]
    shared = {id(p) for module in looked_into for p in module.parameters(recurse=False)}
    return frozenset(
        name for name, _, own in _owners(model) if all(p.dim() < 2 or id(p) in shared for p in own.values())
    )


def _embedding(model: Any) -> Iterator[nn.Module]:
    with suppress(NotImplementedError):  # a part that takes no token ids has none (DiaDecoder)
        yield model.get_input_embeddings()


def _need(model: Any, checkpoint: Checkpoint, tokens: int, always: frozenset[str]) -> Need:
    shapes = {tensor.shape for tensor in checkpoint.tensors.values()}
    small = sum({id(p): p.nbytes for name, _, own in _owners(model) if name in always for p in own.values()}.values())
    largest, weights = "", 0
    for name, _, own in _owners(model):
        size = sum(p.nbytes for p in own.values())
        # The one before, what is stored, and what it becomes; joined ones are there in parts, joined in steps.
        most = max(((4 - (tuple(p.shape) in shapes)) * p.nbytes for p in own.values()), default=0)
        if max(most, 2 * size) > weights:
            largest, weights = name, max(most, 2 * size)
    _warm_up()
    process, activations = psutil.Process().memory_info().rss, _activation_bytes(model, tokens)
    return Need(process, small, weights + RETAINED_BYTES, activations, largest)


def _warm_up() -> None:
    """Have torch make what its first products make and keep: buffers, threads, kernels."""
    x = torch.ones(64, 64)
    (x @ x).softmax(-1)


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


def _hooks(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """accelerate's hooks, by the path of the module."""
    for name, module in model.named_modules():
        hook = getattr(module, "_hf_hook", None)
        for one in getattr(hook, "hooks", (hook,)):
            if one is not None:
                yield name, one


def _keep(model: Any, unfilled: Any) -> None:
    """Bring for good what `_always_there` names and accelerate would bring for each run of its module."""
    always, kept = _always_there(unfilled), dict[int, nn.Parameter]()
    for name, hook in _hooks(model):
        if name not in always or not hook.offload:
            continue
        module = model.get_submodule(name)
        for key, parameter in unfilled.get_submodule(name).named_parameters(recurse=False):
            if id(parameter) not in kept:
                set_module_tensor_to_device(module, key, hook.execution_device, value=hook.weights_map[key])
                kept[id(parameter)] = getattr(module, key)
            setattr(module, key, kept[id(parameter)])
        hook.offload = False


# What only asks about a tensor, and needs no values.
_ASKING = frozenset(("__get__", "__set__", "size", "dim", "numel", "stride", "element_size", "is_floating_point"))


class _Read(TorchFunctionMode):
    """Reads a weight that is away for a function that gets it: torch would compute with its shape, and say nothing.

    It happens where a class takes a weight out of a module without running that (LongcatFlashTopkRouter in
    modeling_longcat_flash.py, DbrxExperts in modeling_dbrx.py, transformers 5.24).
    """

    def __init__(self, model: Any, weights: Mapping[str, Any]) -> None:
        super().__init__()
        self.model, self.weights = model, weights

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if getattr(func, "__name__", "") not in _ASKING:
            args, kwargs = tree_map_only(nn.Parameter, self._value, (args, kwargs))
            if len({x.is_meta for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}) > 1:
                raise UnsupportedError(
                    "this class computes with a weight that is not in memory; leave out --max-memory"
                )
        return func(*args, **kwargs)

    def _value(self, parameter: nn.Parameter) -> torch.Tensor:
        names = (n for n, p in self.model.named_parameters() if p is parameter) if parameter.is_meta else ()
        name = next(iter(names), None)
        return parameter if name is None else self.weights[name]


def _read_what_is_taken(model: Any) -> None:
    """Have every pass of a model with weights that are away run within `_Read`."""
    weights = next((hook.weights_map.dataset for _, hook in _hooks(model) if hook.offload), None)
    if weights is None:
        return
    forward = model.forward

    @wraps(forward)
    def reading(*args: Any, **kwargs: Any) -> Any:
        with _Read(model, weights):
            return forward(*args, **kwargs)

    model.forward = reading


def _rewritten_bytes(model: nn.Module, checkpoint: Checkpoint, places: Mapping[str, Place]) -> int:
    """Bytes of what is read from disk, and is in no shard as it is: of a shape that no stored tensor has."""
    shapes = {tensor.shape for tensor in checkpoint.tensors.values()}
    return sum(
        p.nbytes
        for name, p in model.named_parameters()
        if _place(places, name) == DISK and tuple(p.shape) not in shapes
    )


def _place(places: Mapping[str, Place], name: str) -> Place:
    """Of the longest path in the map that leads to a parameter."""
    while name not in places:
        name = name.rpartition(".")[0]
    return places[name]
