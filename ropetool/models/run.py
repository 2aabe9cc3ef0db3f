"""Run a loaded model: its output at every position, and its losses on a long text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropetool.errors import UnsupportedError
from ropetool.models.catalog import inputs_of
from ropetool.models.load import Runner, live_config, load, load_right, pick_device, torch_dtype
from ropetool.models.reference import reference_rotation
from ropetool.models.tables import live_frequencies

__all__ = [
    "Runner",
    "live_config",
    "live_frequencies",
    "load",
    "load_right",
    "logits",
    "pick_device",
    "reference_rotation",
    "torch_dtype",
]

Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Swallow progress."""


@torch.no_grad()
def logits(runner: Runner, ids_T: Tensor) -> Tensor:
    """The output for one sequence at every position, on the CPU: logits [T, V], or [T, hidden] of a class without.

    Raises `UnsupportedError` for a class that does not run on token ids and what `inputs` can add to them.
    """
    model = runner.model
    arguments = inputs_of(model.config.model_type, type(model))(model, ids_T[None].to(runner.device))
    try:
        output = model(**arguments)
    except (TypeError, ValueError, AttributeError) as error:  # what forward methods raise where an argument is missing
        raise UnsupportedError(f"{type(model).__name__} does not run on token ids alone: {error}") from error
    return scores_of(output)[0].flatten(1).cpu()


def scores_of(output: Any) -> Tensor:
    """The logits of what a class returns, else its hidden states."""
    if isinstance(output, Tensor):
        return output
    scores = getattr(output, "logits", None)
    scores = getattr(output, "last_hidden_state", None) if scores is None else scores
    if scores is None:  # a tuple: the first that has a row for every position
        scores = next(x for x in output if isinstance(x, Tensor) and x.dim() > 2)
    return torch.as_tensor(scores)
