"""A few random projections of what every layer gives, to tell at which layer two forward passes part."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ropetool.models.steps import layers_of

# Directions that a layer's output is projected on; a difference escapes all of them only by being orthogonal to each.
DIRECTIONS = 8
Sketches = dict[str, Tensor]


@contextmanager
def sketched(model: Any) -> Iterator[Sketches]:
    """Within, the output of each layer is kept by the layer's name, projected to [T, 8]; the last pass counts."""
    found: Sketches = {}
    names = {id(module): name for name, module in model.named_modules()}

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, (tuple, list)) else output
            if isinstance(hidden, Tensor) and hidden.dim() == 3 and hidden.is_floating_point():
                found[name] = _projected(hidden[0])

        return hook

    with ExitStack() as undo:
        for layer in layers_of(model):
            undo.callback(layer.register_forward_hook(keep(names[id(layer)])).remove)
        yield found


def _projected(hidden_TE: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(hidden_TE.shape[-1], DIRECTIONS, generator=generator, dtype=torch.float64)
    return hidden_TE.detach().to("cpu", torch.float64) @ directions


def first_apart(a: Mapping[str, Tensor], b: Mapping[str, Tensor], relative: float) -> str | None:
    """The first layer after which two passes differ by more than ``relative`` of what the layer gives; None if none."""
    relative = relative if math.isfinite(relative) else math.inf  # logits that are no numbers: where do those begin?
    for name in a:
        ours, theirs = a[name], b.get(name)
        if theirs is None or theirs.shape != ours.shape:
            continue
        if not (ours - theirs).abs().max() <= relative * ours.std():
            return name
    return None
