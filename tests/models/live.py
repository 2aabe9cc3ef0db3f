"""What a model of transformers really turns by: the rotary tables that its attention gets in a forward pass.

Nothing is read from a config or from a buffer: a class may keep frequencies that it does not use. The outputs of the
rotary modules are followed to the attention modules that receive them, and there angle and size at the second position
are taken from cos and sin.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from ropetool.models.catalog import inputs_of, model_class, quiet
from ropetool.models.seams import layer_of, looks_like_attention
from ropetool.models.tables import table_modules
from ropetool.rope.frequencies import Floats

ANY = "any"
# Text models that do not run in transformers 4.57 without a mask.
WANT_A_MASK = {"glm4v_moe_text", "glm4v_text"}


@dataclass(frozen=True)
class Turning:
    """What one attention module gets: each pair's angle per token in radians, what cos and sin are multiplied by.

    ``kind`` is the layer's type in the config's ``layer_types``, where it has them.
    """

    module: str
    kind: str
    inv_freq: Floats
    factor: float


def load_config(directory: Path) -> Any:
    """The config of a directory, as transformers reads it."""
    with quiet():
        return AutoConfig.from_pretrained(directory)


def signature(config: Any) -> str:
    """All that a config object holds, but for ropetool's marker: equal for configs that make the same model."""
    values = {key: value for key, value in config.to_dict().items() if key != "ropetool"}
    return json.dumps(values, sort_keys=True, default=str)


def model_of(config: Any) -> Any:
    """A random model of a config, of the class that its type has."""
    with quiet():
        torch.manual_seed(0)
        return model_class(config.model_type)(config).float().eval()


def shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that a checkpoint of the model holds."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def turnings(model: Any, tokens: int) -> list[Turning]:
    """What each attention of ``model`` that gets rotary tables turns by, in one forward pass over ``tokens`` tokens."""
    modules, tables = dict(model.named_modules()), table_modules(model)
    made: list[tuple[str, list[torch.Tensor], int]] = []
    got: dict[str, set[int]] = {}

    def note(name: str) -> Any:
        return lambda _module, args, kwargs, output: made.append(
            (name, list(_tensors(output)), _second_position((args, kwargs)))
        )

    def receive(name: str) -> Any:
        def hook(_module: Any, args: Any, kwargs: Any) -> None:
            ids = {id(tensor) for tensor in _tensors((args, kwargs))}
            got.setdefault(name, set()).update(
                call for call, (_, outputs, _) in enumerate(made) if any(id(tensor) in ids for tensor in outputs)
            )

        return hook

    with ExitStack() as undo, torch.no_grad():
        for name, module in modules.items():
            if name in tables:
                undo.callback(module.register_forward_hook(note(name), with_kwargs=True).remove)
            else:
                undo.callback(module.register_forward_pre_hook(receive(name), with_kwargs=True).remove)
        ids = torch.randint(2, 60, (1, tokens), generator=torch.Generator().manual_seed(0))
        arguments = inputs_of(model.config.model_type, type(model))(model, ids)
        if model.config.model_type in WANT_A_MASK and version("transformers").startswith("4."):
            arguments["attention_mask"] = torch.ones_like(ids)
        model(**arguments)
    for call, (name, _, _) in enumerate(made):  # a rotary module inside an attention hands its tables to that
        for owner in modules:
            if name.startswith(f"{owner}.") and looks_like_attention(modules[owner]):
                got.setdefault(owner, set()).add(call)
    receivers = [name for name, calls in got.items() if calls]
    return [
        _turning(model, name, modules[name], *made[call][1:])
        for name in receivers
        if looks_like_attention(modules[name]) or not any(other.startswith(f"{name}.") for other in receivers)
        for call in sorted(got[name])
    ]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from _tensors(inner)


def _second_position(arguments: Any) -> int:
    """The position of the second row of a table: 1, but for tables of compressed blocks of tokens."""
    positions = next((t for t in _tensors(arguments) if not t.is_floating_point() and t.dim() > 1), None)
    return 1 if positions is None else int(positions.flatten()[1])


def _turning(model: Any, name: str, module: Any, outputs: list[torch.Tensor], position: int) -> Turning:
    kinds = next((k for m in (module, model) if (k := getattr(getattr(m, "config", None), "layer_types", None))), None)
    layer = layer_of(name, module)
    kind = kinds[layer] if kinds is not None and layer is not None and layer < len(kinds) else ANY
    z = _complex(name, outputs)
    while z.dim() > 2:
        z = z[0]
    first = z[1].numpy()
    size = np.abs(first)
    assert np.ptp(size) < 1e-5 * size.mean(), f"{name}: cos and sin are not of one circle"
    return Turning(name, kind, np.angle(first) / position, float(size.mean()))


def _complex(name: str, outputs: list[torch.Tensor]) -> torch.Tensor:
    """cos + i sin of [..., T, pairs or rows]."""
    if len(outputs) == 1 and outputs[0].is_complex():
        return outputs[0].to(torch.complex128)
    if len(outputs) == 2 and outputs[0].shape == outputs[1].shape:
        return torch.complex(outputs[0].double(), outputs[1].double())
    raise AssertionError(f"{name} gets {[tuple(t.shape) for t in outputs]}, which are no cos and sin")


def by_pair(angles: Floats, pairs: int) -> Floats | None:
    """One angle for each pair, where a table has one for each row of either layout; None where it fits neither."""
    if len(angles) == pairs:
        return angles
    for first, second in ((angles[:pairs], angles[pairs:]), (angles[0::2], angles[1::2])):
        if len(angles) == 2 * pairs and np.array_equal(first, second):
            return first
    return None
