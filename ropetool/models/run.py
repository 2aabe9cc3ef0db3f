"""Run a loaded model: its output at every position, and its losses on a long text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

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
    "token_losses",
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


@torch.no_grad()
def token_losses(runner: Runner, ids_T: Tensor, chunk_tokens: int, progress: Progress = no_progress) -> Tensor:
    """The loss in nats of every next token of one sequence, [T - 1] in float64 on the CPU.

    The body of the model runs once over the whole sequence, as every scaling method needs; its head, with whatever
    the class does after it (soft caps, scales), runs in chunks, so that logits never need more than a chunk. Raises
    `UnsupportedError` for a class without a head.
    """
    if runner.model.get_output_embeddings() is None:
        raise UnsupportedError(f"{type(runner.model).__name__} has no head that predicts tokens, so it has no losses")
    ids = ids_T.to(runner.device)
    body = runner.model.base_model
    whole = body(input_ids=ids[None], use_cache=False)
    forward, losses = body.forward, []
    try:
        for start in range(0, len(ids), chunk_tokens):
            piece = slice(start, start + chunk_tokens)
            hidden = type(whole)(last_hidden_state=whole.last_hidden_state[:, piece])
            body.forward = lambda *args, hidden=hidden, **kwargs: hidden
            scores = runner.model(input_ids=ids[None, piece], use_cache=False).logits[0]
            targets = ids[start + 1 : start + chunk_tokens + 1]
            losses.append(nn.functional.cross_entropy(scores[: len(targets)].float(), targets, reduction="none"))
            progress(min(start + chunk_tokens, len(ids)), len(ids))
    finally:
        body.forward = forward
    return torch.cat(losses).double().cpu()
