"""Load a checkpoint with the class that it was made for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ropetool.errors import CheckpointError, UnsupportedError, UsageError
from ropetool.models.catalog import class_of
from ropetool.models.exact import exactly, prepare
from ropetool.models.fallbacks import within_memory
from ropetool.models.forward import logits
from ropetool.models.loading import is_right, load_as, load_checked, reason
from ropetool.models.options import Device, DType, MaxMemory
from ropetool.models.own_buffers import fill
from ropetool.models.own_code import own_class
from ropetool.models.parallel import check_runs, own_device, shared
from ropetool.models.placement import free_memory, load_placed
from ropetool.models.ranks import world_size
from ropetool.models.runner import Runner as Runner
from ropetool.models.runner import silent
from ropetool.models.unguarded import config_of


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of a choice."""
    return {DType.FLOAT32: torch.float32, DType.FLOAT64: torch.float64, DType.BFLOAT16: torch.bfloat16}[dtype]


def pick_device(wanted: Device) -> torch.device:
    """The device to use; ``auto`` takes CUDA, then MPS, then the CPU. Raises `UsageError` for one that is absent."""
    prepare()
    available = {
        Device.CUDA: torch.cuda.is_available(),
        Device.MPS: torch.backends.mps.is_available(),
        Device.CPU: True,
    }
    if wanted is Device.AUTO:
        wanted = next(device for device, there in available.items() if there)
    if not available[wanted]:
        raise UsageError(f"--device {wanted.value} was asked for, but torch {torch.__version__} sees none here")
    return own_device(torch.device(wanted.value))


def load(
    path: Path,
    device: torch.device,
    dtype: DType | None,
    attention: str | None = "eager",
    *,
    trust_remote_code: bool = False,
    max_memory: MaxMemory | None = None,
    tokens: int = 512,
    talk: Callable[[str], None] = silent,
) -> Runner:
    """Load a checkpoint as it is stored, with the class that it was made for.

    In a layout that the class does not rotate it needs `reference_rotation`. ``dtype`` None keeps the stored one,
    ``attention`` None takes the fastest that the class supports. With ``trust_remote_code`` it is the checkpoint's own
    class, where it brings one. With ``max_memory`` (bytes by GPU number and ``cpu``, or for `EACH`) what does not fit
    stays in the shards and is read in every pass, of ``tokens`` at most; see `placement`. Without, a GPU that has no
    room for a pass of so many ``tokens`` gets such a limit, and ``talk`` is told. Raises `CheckpointError` when the
    class finds a weight missing or of another shape: it would be random.
    """
    config = _config(path, trust_remote_code)
    kind = _class(path, config, trust_remote_code)

    def within(limit: MaxMemory | None) -> Runner:
        loader, options = (
            (load_checked, {}) if limit is None else (load_placed, {"max_memory": limit, "tokens": tokens})
        )
        model = _model(loader, kind, path, device, dtype, attention, config=config, **options)
        if not kind.__module__.startswith("transformers."):
            fill(model)
        return Runner(model, device, talk)

    if max_memory is not None or device.type == "cpu" or world_size() > 1:
        return within(max_memory)
    less = f"what has no room on {device} stays in memory and on disk"
    attempts = [("", lambda: _rehearsed(within(None), tokens)), (less, lambda: within(free_memory(device)))]
    return within_memory(attempts, talk)


def _rehearsed(runner: Runner, tokens: int) -> Runner:
    """The same, after a pass of so many tokens: whatever memory that needs is found wanting here."""
    with suppress(UnsupportedError):  # a class that does not run on token ids says so to whoever runs it
        logits(runner, torch.zeros(tokens, dtype=torch.long))
    return runner


def load_right(
    path: Path, device: torch.device, dtype: DType | None, attention: str | None = "eager", *,
    max_memory: MaxMemory | None = None, tokens: int = 512, talk: Callable[[str], None] = silent,
) -> Runner:  # fmt: skip
    """`load`, in the layout that the class rotates, whatever layout the weights are stored in.

    Rows are put back in memory: `UnsupportedError` where that meets ``max_memory``.
    """
    if is_right(path):
        return load(path, device, dtype, attention, max_memory=max_memory, tokens=tokens, talk=talk)
    if max_memory is not None:
        raise UnsupportedError(
            f"the rows of {path} are put back for their class in memory, so its weights cannot stay on disk; convert "
            f"it back with `ropetool convert`, or leave out --max-memory",
            path=str(path),
        )
    return Runner(_model(load_as, _class(path, _config(path)), path, device, dtype, attention), device, talk)


def _model(
    loader: Callable[..., Any], kind: Any, path: Path, device: torch.device, dtype: DType | None,
    attention: str | None, **options: Any,
) -> Any:  # fmt: skip
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    exactly(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = loader(
            kind,
            path,
            dtype=torch_dtype(dtype) if dtype else "auto",
            attn_implementation=attention,
            **_experts(kind, dtype),
            **_where(kind, path, device, options),
            **options,
        )
    if world_size() > 1:
        check_runs(model, device)
    model.config.return_dict = True
    return model.eval()


def _experts(kind: Any, dtype: DType | None) -> dict[str, str]:
    """Joined experts go through a kernel that knows no float64 (torch 2.13, ``_grouped_mm``): there, one by one."""
    chosen = dtype is DType.FLOAT64 and hasattr(kind, "get_correct_experts_implementation")  # transformers 5
    return {"experts_implementation": "eager"} if chosen else {}


def _where(kind: Any, path: Path, device: torch.device, options: Mapping[str, Any]) -> dict[str, Any]:
    """Where ``from_pretrained`` puts the weights: on the device, or in parts over several processes."""
    if world_size() == 1:
        return {"device_map": {"": device}}
    if "max_memory" in options:
        raise UsageError("under torchrun each process holds its part of a model whole; leave out --max-memory")
    return shared(kind, options.get("config") or _config(path), device)


def _class(path: Path, config: Any, trust_remote_code: bool = False) -> Any:
    """The class that a checkpoint was made for."""
    import transformers

    kind = (own_class(path) if trust_remote_code else None) or class_of(config)
    if kind is None:
        raise CheckpointError(
            f"transformers {transformers.__version__} has no class for the model type {config.model_type} of {path}",
            path=str(path),
        )
    return kind


def _config(path: Path, trust_remote_code: bool = False) -> Any:
    """The config object that the class gets: transformers' own reading of config.json."""
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        return config_of(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # a stranger's config can make transformers raise anything
        raise CheckpointError(f"transformers cannot read {path}: {reason(error)}", path=str(path)) from error


def live_config(path: Path, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """The config as the class understands it, with its own values where config.json has none."""
    return dict(_config(path, trust_remote_code).to_dict())
