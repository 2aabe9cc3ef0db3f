"""The rotary tables of a loaded model: read its frequencies, or keep it from rotating.

Still tables hold what they hold at position 0 at every position. There every angle is 0, so cos is 1 and sin is 0,
whatever shape, order or number type a class keeps its tables in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.models.seams import looks_like_attention

_TABLE_NAMES = re.compile("Rotary|RoPE|Rope|Sinusoidal")
# A table made once, [positions, R]: GPT-J and CodeGen keep it under this name in the module that attends.
_KEPT_TABLE = "embed_positions"
_FACTOR, _FREQUENCIES = "attention_scaling", "inv_freq"
# A parameter beside the frequencies that is the logarithm of a learned factor for each (Mistral Large 4).
_LEARNED = "alpha"


class _AtZero(TorchFunctionMode):
    """Every angle is 0 to cos, sin and polar."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.cos, torch.sin, torch.Tensor.cos, torch.Tensor.sin):
            return func(torch.zeros_like(args[0]), *args[1:], **kwargs)
        if func is torch.polar:
            return func(args[0], torch.zeros_like(args[1]), **kwargs)
        return func(*args, **kwargs)


def table_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that make the rotary tables of a model, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if _TABLE_NAMES.search(type(module).__name__) and not looks_like_attention(module)
    }


# Rope types whose frequencies depend on how many tokens are in play.
FOLLOW_THE_LENGTH = ("dynamic", "longrope")


def live_frequencies(model: nn.Module) -> dict[str, Tensor]:
    """The inv_freq buffers in the model as loaded, float64 on the CPU, by kind of layer; ``all`` where they are one.

    Where parts of a model have tables that differ, those of the text part go by kind of layer, and each of the others
    by the path of its part; where none is the text part's, all go by path.
    """
    found: dict[str, list[tuple[str, bool, Tensor]]] = {}
    text = _text_config(model)
    for path, module in table_modules(model).items():
        for name, buffer in module.named_buffers(recurse=False):
            layers = name.removesuffix(_FREQUENCIES).strip("_")
            if name.endswith(_FREQUENCIES) and not layers.endswith(("original", "long")):
                part = path.rpartition(".")[0]
                of_text = getattr(module, "config", None) is text
                found.setdefault(layers or ALL_LAYERS, []).append((part, of_text, _effective(module, buffer)))
    frequencies: dict[str, Tensor] = {}
    for layers, tables in found.items():
        same = all(torch.equal(tables[0][2], table) for _, _, table in tables)
        for part, of_text, table in tables:
            frequencies[layers if same or of_text else part] = table
    return frequencies


def stretch(model: nn.Module, length: int) -> None:
    """Show ``length`` tokens to the tables that follow the length (dynamic, longrope), as a pass over so many would."""
    for module in table_modules(model).values():
        told = getattr(module, "rope_type", None)
        for layers, rope_type in (told if isinstance(told, dict) else {None: told}).items():
            if rope_type in FOLLOW_THE_LENGTH:
                last = torch.tensor([[length - 1]], device=next(module.buffers()).device)
                options = {} if layers is None else {"layer_type": layers}
                module(torch.zeros(1, 1, 1, device=last.device), last, **options)


def _effective(module: nn.Module, buffer: Tensor) -> Tensor:
    learned = getattr(module, _LEARNED, None)
    factor = learned.detach().cpu().float().exp() if isinstance(learned, Tensor) else 1.0
    return (buffer.detach().cpu() * factor).double()


def live_of(frequencies: Mapping[str, Tensor], kind: str) -> Tensor | None:
    """The frequencies of a kind of layer, or of the part of the model that is so called; else those of all layers."""
    own = (table for where, table in frequencies.items() if where == kind or where.endswith(f".{kind}"))
    return next(own, frequencies.get(ALL_LAYERS))


def _text_config(model: nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _still(forward: Callable[..., Any]) -> Callable[..., Any]:
    def at_zero(*args: Any, **kwargs: Any) -> Any:
        with _AtZero():
            return forward(*args, **kwargs)

    return at_zero


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Within, ``owner`` has another value in its own ``name``."""
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own or isinstance(before, Tensor):
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextmanager
def still_tables(model: nn.Module) -> Iterator[None]:
    """Within, no table of ``model`` turns or scales anything."""
    with ExitStack() as undo:
        for module in table_modules(model).values():
            for name in [n for n in vars(module) if n.endswith(_FACTOR)]:
                undo.enter_context(_replaced(module, name, 1.0))
            if isinstance(module, nn.Embedding):
                undo.enter_context(_first_row_everywhere(module.weight))
            else:
                undo.enter_context(_replaced(module, "forward", _still(module.forward)))
        for name, buffer in model.named_buffers():
            if name.rpartition(".")[2] == _KEPT_TABLE:
                undo.enter_context(_first_row_everywhere(buffer))
        yield


@contextmanager
def _first_row_everywhere(table: Tensor) -> Iterator[None]:
    """Within, every row of a table is its first, the row of position 0."""
    with torch.no_grad():
        before = table.clone()
        table.copy_(before[:1].expand_as(before))
    try:
        yield
    finally:
        with torch.no_grad():
            table.copy_(before)
