"""The output of a loaded model at every position; where its device runs out of memory, the head runs in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ropetool.errors import UnsupportedError
from ropetool.models.catalog import inputs_of
from ropetool.models.fallbacks import Attempt, within_memory
from ropetool.models.runner import Runner

# Logits that are made at once where memory is short.
PIECE_BYTES = 64 << 20


@torch.no_grad()
def logits(runner: Runner, ids_T: Tensor) -> Tensor:
    """The output for one sequence at every position, on the CPU: logits [T, V], or [T, hidden] of a class without.

    Raises `UnsupportedError` for a class that does not run on token ids and what `inputs` can add to them.
    """
    model = runner.model
    attempts: list[Attempt[Tensor]] = [("", lambda: _whole(runner, ids_T))]
    if getattr(model, "base_model", model) is not model and model.get_output_embeddings() is not None:
        attempts.append(("the head runs in pieces", lambda: _in_pieces(runner, ids_T)))
    return within_memory(attempts, runner.talk)


def _whole(runner: Runner, ids_T: Tensor) -> Tensor:
    return scores_of(_ran(runner, runner.model, ids_T))[0].flatten(1).cpu()


def _ran(runner: Runner, module: Any, ids_T: Tensor) -> Any:
    arguments = inputs_of(runner.model.config.model_type, type(runner.model))(module, ids_T[None].to(runner.device))
    try:
        return module(**arguments)
    except (TypeError, ValueError, AttributeError) as error:  # what forward methods raise where an argument is missing
        raise UnsupportedError(f"{type(module).__name__} does not run on token ids alone: {error}") from error


def _in_pieces(runner: Runner, ids_T: Tensor) -> Tensor:
    """The body over the whole sequence, as every scaling method needs; the head, and what is after it, in pieces."""
    model = runner.model
    whole = _ran(runner, model.base_model, ids_T)
    head = model.get_output_embeddings().weight
    rows = max(1, PIECE_BYTES // (len(head) * head.element_size()))
    pieces = []
    for start in range(0, len(ids_T), rows):
        piece = slice(start, start + rows)
        with body_gives(model, type(whole)(last_hidden_state=whole.last_hidden_state[:, piece])):
            pieces.append(scores_of(_ran(runner, model, ids_T[piece]))[0].flatten(1).cpu())
    return torch.cat(pieces)


@contextmanager
def body_gives(model: Any, output: Any) -> Iterator[None]:
    """Within, the body of a model does not run and gives ``output``."""
    body = model.base_model
    forward = body.forward
    body.forward = lambda *args, **kwargs: output
    try:
        yield
    finally:
        body.forward = forward


def scores_of(output: Any) -> Tensor:
    """The logits of what a class returns, else its hidden states."""
    if isinstance(output, Tensor):
        return output
    scores = getattr(output, "logits", None)
    scores = getattr(output, "last_hidden_state", None) if scores is None else scores
    if scores is None:  # a tuple: the first that has a row for every position
        scores = next(x for x in output if isinstance(x, Tensor) and x.dim() > 2)
    return torch.as_tensor(scores)
