"""Load a checkpoint with the class that it was made for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ropetool.errors import CheckpointError, UsageError
from ropetool.models.catalog import class_of
from ropetool.models.loading import load_as, load_checked, reason
from ropetool.models.options import Device, DType, MaxMemory
from ropetool.models.own_buffers import fill
from ropetool.models.own_code import own_class
from ropetool.models.parallel import check_runs, own_device, shared
from ropetool.models.placement import load_placed
from ropetool.models.ranks import world_size
from ropetool.models.unguarded import config_of


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of a choice."""
    return {DType.FLOAT32: torch.float32, DType.FLOAT64: torch.float64, DType.BFLOAT16: torch.bfloat16}[dtype]


def pick_device(wanted: Device) -> torch.device:
    """The device to use; ``auto`` takes CUDA, then MPS, then the CPU. Raises `UsageError` for one that is absent."""
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


@dataclass(frozen=True)
class Runner:
    """A loaded model and where it is."""

    model: Any
    device: torch.device


def load(
    path: Path,
    device: torch.device,
    dtype: DType | None,
    attention: str | None = "eager",
    *,
    trust_remote_code: bool = False,
    max_memory: MaxMemory | None = None,
    tokens: int = 512,
) -> Runner:
    """Load a checkpoint as it is stored, with the class that it was made for.

    In a layout that the class does not rotate it needs `reference_rotation`. ``dtype`` None keeps the stored one,
    ``attention`` None takes the fastest that the class supports. With ``trust_remote_code`` it is the checkpoint's own
    class, where it brings one. With ``max_memory`` (bytes by GPU number and ``cpu``, or for `EACH`) what does not fit
    stays in the shards and is read in every pass, of ``tokens`` at most; see `placement`. Raises `CheckpointError` when
    the class finds a weight missing or of another shape: it would be random.
    """
    config = _config(path, trust_remote_code)
    kind = _class(path, config, trust_remote_code)
    options = {"config": config}
    loader: Callable[..., Any] = load_checked
    if max_memory is not None:
        loader, options = load_placed, {**options, "max_memory": max_memory, "tokens": tokens}
    model = _model(loader, kind, path, device, dtype, attention, **options)
    if not kind.__module__.startswith("transformers."):
        fill(model)
    return Runner(model, device)


def load_right(path: Path, device: torch.device, dtype: DType | None, attention: str | None = "eager") -> Runner:
    """`load`, in the layout that the class rotates, whatever layout the weights are stored in."""
    kind = _class(path, _config(path))
    model = _model(load_as, kind, path, device, dtype, attention)
    return Runner(model, device)


def _model(
    loader: Callable[..., Any], kind: Any, path: Path, device: torch.device, dtype: DType | None,
    attention: str | None, **options: Any,
) -> Any:  # fmt: skip
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = loader(
            kind,
            path,
            dtype=torch_dtype(dtype) if dtype else "auto",
            attn_implementation=attention,
            **_where(kind, path, device, options),
            **options,
        )
    if world_size() > 1:
        check_runs(model, device)
    return model.eval()


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
