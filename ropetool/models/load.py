"""Load a checkpoint with the class that it was made for."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ropetool.errors import CheckpointError, UsageError
from ropetool.models.catalog import class_of
from ropetool.models.options import Device, DType
from ropetool.models.own_buffers import fill
from ropetool.models.own_code import own_class


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
    return torch.device(wanted.value)


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
) -> Runner:
    """Load a checkpoint with the class that it was made for; ``dtype`` None keeps the stored one, ``attention`` None
    takes the fastest that the class supports. With ``trust_remote_code`` it is the checkpoint's own class, where it
    brings one.

    Raises `CheckpointError` when the class finds a weight missing or of another shape: it would be random.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = _config(path, trust_remote_code)
    kind = (own_class(path) if trust_remote_code else None) or class_of(config)
    if kind is None:
        raise CheckpointError(
            f"transformers {transformers.__version__} has no class for the model type {config.model_type} of {path}",
            path=str(path),
        )
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, info = kind.from_pretrained(
                path,
                config=config,
                dtype=torch_dtype(dtype) if dtype else "auto",
                attn_implementation=attention,
                device_map={"": device},
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # a stranger's config can make transformers raise anything
        raise CheckpointError(f"transformers cannot load {path}: {_reason(error)}", path=str(path)) from error
    broken = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if broken:
        raise CheckpointError(
            f"{path} lacks {len(broken)} weights that its class needs, {broken[0]} among them; they would be random",
            path=str(path),
            tensor=broken[0],
        )
    if not kind.__module__.startswith("transformers."):
        fill(model)
    return Runner(model.eval(), device)


def _reason(error: Exception) -> str:
    """The first line of what a library said; one that ends in a colon takes the next along."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if "ignore_mismatched_sizes" in lines[0]:
        return "a weight has another shape than the class makes of config.json; check its sizes (vocab_size, say)"
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def _config(path: Path, trust_remote_code: bool) -> Any:
    """The config object that the class gets: transformers' own reading of config.json."""
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        return transformers.AutoConfig.from_pretrained(
            path if path.is_dir() else path.parent, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # a stranger's config can make transformers raise anything
        raise CheckpointError(f"transformers cannot read {path}: {_reason(error)}", path=str(path)) from error


def live_config(path: Path, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """The config as the class understands it, with its own values where config.json has none."""
    return dict(_config(path, trust_remote_code).to_dict())
