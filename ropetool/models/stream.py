"""Read a model's scores over a long sequence a chunk at a time, and the three ways to do it.

Cached: the body takes the sequence in chunks, each looking back through the KV cache. Whole: the body takes all of it
at once. In both the head, with whatever the class does after it (soft caps, scales), runs over few positions at a time.
Plain: the class's own forward, all scores at once; it is what the other two are held against (`models.trial`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from ropetool.models.cached import cache_of
from ropetool.models.load import Runner
from ropetool.models.steps import layers_of

# Scores that are held at once: 128 MiB in float32.
HEAD_VALUES = 1 << 25
Advance = Callable[[float], None]


class Way(str, Enum):
    """How a sequence is put through a model."""

    CACHED = "cached"
    WHOLE = "whole"
    PLAIN = "plain"


class NoCacheError(Exception):
    """The body gave no KV cache; for whoever tries the ways, not for a person."""


def no_advance(tokens: float) -> None:
    """Swallow progress."""


def scores(
    runner: Runner, ids_BT: Tensor, way: Way, chunk_tokens: int, first: int = 0, advance: Advance = no_advance
) -> Iterator[tuple[int, Tensor]]:
    """The scores of the positions from ``first`` on, as (position, scores [B, t, V]) for runs of positions in order.

    ``ids_BT`` are on the runner's device. ``advance`` gets the tokens that the layers are done with. Raises
    `NoCacheError` for a class without a cache that is to be read through one.
    """
    with _counted(runner.model, ids_BT.shape[0], advance) as pass_over:
        if way is Way.PLAIN:
            pass_over(ids_BT.shape[1])
            yield first, _plain(runner, ids_BT)[:, first:]
            return
        step = chunk_tokens if way is Way.CACHED else ids_BT.shape[1]
        cache: dict[str, Any] = {}
        for start in range(0, ids_BT.shape[1], step):
            piece_BT = ids_BT[:, start : start + step]
            pass_over(piece_BT.shape[1])
            output = _body(runner, piece_BT, cache, keep=way is Way.CACHED)
            cache = cache_of(output)
            if way is Way.CACHED and not cache:
                raise NoCacheError
            yield from _through_head(runner, piece_BT, output, start, first, chunk_tokens)


def body_of(model: Any) -> nn.Module:
    """What a model is but for its head: its base model, or the only model in one that tells none (Llama 4)."""
    import transformers

    base: nn.Module = model.base_model
    within: list[nn.Module] = [child for child in model.children() if isinstance(child, transformers.PreTrainedModel)]
    return within[0] if base is model and len(within) == 1 else base


def _through_head(
    runner: Runner, piece_BT: Tensor, output: Any, start: int, first: int, chunk_tokens: int
) -> Iterator[tuple[int, Tensor]]:
    """The scores of a body's output that lies at ``start``, few positions at a time."""
    states = output["last_hidden_state"]
    vocabulary = runner.model.get_output_embeddings().weight.shape[0]
    step = max(1, min(chunk_tokens, HEAD_VALUES // (vocabulary * len(piece_BT))))
    for at in range(max(first - start, 0), states.shape[1], step):
        hidden = type(output)(last_hidden_state=states[:, at : at + step])
        yield start + at, _head(runner, piece_BT[:, at : at + step], hidden)


@torch.no_grad()
def _plain(runner: Runner, ids_BT: Tensor) -> Tensor:
    return torch.as_tensor(runner.model(input_ids=ids_BT, use_cache=False).logits)


@torch.no_grad()
def _body(runner: Runner, ids_BT: Tensor, cache: dict[str, Any], *, keep: bool) -> Any:
    return body_of(runner.model)(input_ids=ids_BT, use_cache=keep, **cache)


@torch.no_grad()
def _head(runner: Runner, ids_BT: Tensor, hidden: Any) -> Tensor:
    """What the class makes of its body's output: its own forward, around a body that gives just that."""
    body = body_of(runner.model)
    forward, own = body.forward, "forward" in vars(body)
    body.forward = lambda *args, **kwargs: hidden
    try:
        return torch.as_tensor(runner.model(input_ids=ids_BT, use_cache=False).logits)
    finally:
        if own:
            body.forward = forward
        else:
            del body.forward


@contextmanager
def _counted(model: nn.Module, rows: int, advance: Advance) -> Iterator[Callable[[int], None]]:
    """Within, every layer that is done counts for its share of the tokens; yields what takes the tokens of a pass."""
    layers, tokens = layers_of(model), 0

    def pass_over(of_each: int) -> None:
        nonlocal tokens
        tokens = of_each * rows

    hooks = [layer.register_forward_hook(lambda *_: advance(tokens / len(layers))) for layer in layers]
    try:
        yield pass_over
    finally:
        for hook in hooks:
            hook.remove()
