"""One model over the processes that torchrun started: each holds a part of every layer, by transformers' own plan."""

from __future__ import annotations

import atexit
from typing import Any

import torch

from ropetool.errors import UnsupportedError, UsageError
from ropetool.models.catalog import inputs_of
from ropetool.models.ranks import local_rank, world_size


def shared(kind: Any, config: Any, device: torch.device) -> dict[str, Any]:
    """The options with which ``from_pretrained`` gives this process its part of a model; joins the others first.

    Every process makes the same checks before any waits for another. Raises `UnsupportedError` for a class that
    cannot be so divided, `UsageError` for a device that the processes cannot share.
    """
    import transformers

    if int(transformers.__version__.partition(".")[0]) < 5:
        raise UnsupportedError(f"torchrun needs transformers 5, and this is {transformers.__version__}")
    _check_divides(kind, config)
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    here = accelerator.type if accelerator else "cpu"
    if here != device.type or here == "mps":
        raise UsageError(
            f"under torchrun a model is divided over devices of the kind {here}, and --device asks for {device.type}",
            device=device.type,
        )
    _join(device)
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_plan="auto", tp_size=world_size())}


@torch.no_grad()
def check_runs(model: Any, device: torch.device) -> None:
    """Raise `UnsupportedError` where a plan divides what the class then does not put together (Cohere's norms)."""
    ids = torch.tensor([[0, 1]], device=device)
    try:
        model(**inputs_of(model.config.model_type, type(model))(model, ids))
    except RuntimeError as error:
        raise UnsupportedError(
            f"{type(model).__name__} does not run by transformers' tensor-parallel plan for it: {error}; run one "
            f"process, with --max-memory if the model is larger than memory",
            model_type=model.config.model_type,
        ) from error


def own_device(device: torch.device) -> torch.device:
    """The GPU of this process, where GPUs are meant."""
    return torch.device("cuda", local_rank()) if world_size() > 1 and device.type == "cuda" else device


def _check_divides(kind: Any, config: Any) -> None:
    text, count = config.get_text_config(), world_size()
    if not getattr(text, "base_model_tp_plan", None):
        raise UnsupportedError(
            f"transformers has no tensor-parallel plan for {kind.__name__}, so torchrun cannot divide it; run one "
            f"process, with --max-memory if it is larger than memory",
            model_type=text.model_type,
        )
    for key in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(text, key, None) or count
        for number in heads if isinstance(heads, (list, tuple)) else [heads]:
            if number % count:
                raise UnsupportedError(
                    f"{key} is {number}, which {count} processes cannot share; start as many as divide it",
                    key=key, heads=number, processes=count,
                )  # fmt: skip


def _join(device: torch.device) -> None:
    """Meet the other processes, once; part from them at the end of this one."""
    from torch import distributed

    if distributed.is_initialized():
        return
    if device.type == "cuda":
        torch.cuda.set_device(own_device(device))
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    atexit.register(distributed.destroy_process_group)
