"""Buffers that a class makes when it is built and no checkpoint holds: tables of frequencies, mostly.

transformers 5 builds a model without memory, loads the weights, and then has ``_init_weights`` make such buffers again
(modeling_utils.py, ``_initialize_missing_keys``). Code written before that has no word of them there, and its model
runs on whatever the memory held: silently wrong, and other on every load.
"""

from __future__ import annotations

import contextlib
import copy
import math
from typing import Any

import torch


def unfilled(model: Any) -> tuple[str, ...]:
    """The buffers that ``_init_weights`` of a model does not make again; its weights are not the same after."""
    found = []
    modules = dict(model.named_modules())
    for name, buffer in _unsaved(model).items():
        if not buffer.is_floating_point():
            continue
        buffer.fill_(math.nan)
        with contextlib.suppress(Exception):  # code that fails here has not filled it either
            model._init_weights(modules[name.rpartition(".")[0]])
        if bool(buffer.isnan().any()):
            found.append(name)
    return tuple(found)


def fill(model: Any) -> None:
    """Give a loaded model the buffers that its class makes when it is built the plain way."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        built = type(model)(copy.deepcopy(model.config))
    loaded, fresh = _unsaved(model), _unsaved(built)
    with torch.no_grad():
        for name in loaded.keys() & fresh.keys():
            loaded[name].copy_(fresh[name].to(loaded[name]))


def _unsaved(model: Any) -> dict[str, torch.Tensor]:
    """The buffers that are in no checkpoint, by name."""
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}
