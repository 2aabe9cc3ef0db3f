"""What a model really turns by: the rotary tables that its attention gets in a forward pass.

Nothing is read from a config or from a buffer: a class may keep frequencies that it does not use. The outputs of the
rotary modules are followed to the attention modules that receive them, and there angle and size at the second position
are taken from cos and sin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ropetool.errors import UnsupportedError
from ropetool.models.seams import kind_of, looks_like_attention
from ropetool.models.tables import table_modules
from ropetool.rope.frequencies import Floats

# How far the sizes of one table's pairs may be apart, in roundoffs of its number type.
SIZE_ROUNDOFFS = 64.0


@dataclass(frozen=True)
class Turning:
    """What one attention module gets: each pair's angle per token in radians, what cos and sin are multiplied by.

    ``kind`` is the kind of layer, as `kind_of` has it. ``roundoff`` is that of the numbers that cos and sin came in.
    """

    module: str
    kind: str
    inv_freq: Floats
    factor: float
    roundoff: float


@dataclass(frozen=True)
class Call:
    """One call of a rotary module: its arguments, and the tables that it gave."""

    name: str
    module: nn.Module
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]
    tables: tuple[Tensor, ...]

    def at_length(self, length: int | None) -> Call:
        """The call as it would be with ``length`` tokens in play: the last position is the last of those."""
        if length is None:
            return self
        args, kwargs = self.arguments
        args = tuple(_stretched(value, length) for value in args)
        kwargs = {key: _stretched(value, length) for key, value in kwargs.items()}
        with torch.no_grad():
            made = tuple(_tensors(self.module(*args, **kwargs)))
            self.module(*self.arguments[0], **self.arguments[1])  # a table that follows the length goes back
        return Call(self.name, self.module, (args, kwargs), made)


@dataclass
class Watch:
    """The calls of rotary modules in one pass, and which modules received the tables of which."""

    calls: list[Call] = field(default_factory=list)
    received: dict[str, set[int]] = field(default_factory=dict)


def turnings(model: nn.Module, arguments: Mapping[str, Any]) -> list[Turning]:
    """What each attention of ``model`` that gets rotary tables turns by, in one forward pass."""
    with followed_tables(model) as watch, torch.no_grad():
        model(**arguments)
    return turnings_of(model, watch)


def turnings_of(model: nn.Module, watch: Watch, length: int | None = None) -> list[Turning]:
    """What each attention turned by in a watched pass; with ``length``, as if so many tokens had been in play."""
    modules = dict(model.named_modules())
    receivers = {name: calls for name, calls in watch.received.items() if calls}
    wanted = [
        (name, number)
        for name, calls in receivers.items()
        if looks_like_attention(modules[name]) or not any(other.startswith(f"{name}.") for other in receivers)
        for number in sorted(calls)
    ]
    made = {number: watch.calls[number].at_length(length) for number in sorted({number for _, number in wanted})}
    return [_turning(name, kind_of(model, name, modules[name]), made[number]) for name, number in wanted]


def gets_a_table(model: nn.Module, watch: Watch, name: str) -> bool:
    """Whether the module ``name``, or an attention that it is a part of, received a table that a rotary module made."""
    return bool(_received_by(model, watch, name))


def first_position(model: nn.Module, watch: Watch, name: str) -> int:
    """The position of the first token in the table that a module received: 0, but PaliGemma counts from 1."""
    calls = _received_by(model, watch, name)
    positions = _positions(watch.calls[calls[0]].arguments) if calls else None
    return 0 if positions is None else int(positions.flatten()[0])


def _received_by(model: nn.Module, watch: Watch, name: str) -> list[int]:
    owners = [owner for owner in watch.received if f"{name}.".startswith(f"{owner}.")]
    attending = [owner for owner in owners if owner == name or looks_like_attention(model.get_submodule(owner))]
    return sorted(number for owner in attending for number in watch.received[owner])


@contextmanager
def followed_tables(model: nn.Module) -> Iterator[Watch]:
    """Within, every rotary table is followed from the module that makes it to those that get it."""
    modules, tables, watch = dict(model.named_modules()), table_modules(model), Watch()

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            watch.calls.append(Call(name, module, (args, kwargs), tuple(_tensors(output))))
            for owner in modules:  # a rotary module inside an attention hands its tables to that
                if name.startswith(f"{owner}.") and looks_like_attention(modules[owner]):
                    watch.received.setdefault(owner, set()).add(len(watch.calls) - 1)

        return hook

    def receive(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            given = list(_tensors((args, kwargs)))
            for number, call in enumerate(watch.calls):
                if any(_is(table, tensor) for table in call.tables for tensor in given):
                    watch.received.setdefault(name, set()).add(number)

        return hook

    with ExitStack() as undo:
        for name, module in modules.items():
            if name in tables:
                undo.callback(module.register_forward_hook(note(name), with_kwargs=True).remove)
            else:
                undo.callback(module.register_forward_pre_hook(receive(name), with_kwargs=True).remove)
        yield watch


def _is(table: Tensor, given: Tensor) -> bool:
    """Whether a module was given this table, or its copy on another device."""
    if table.device == given.device:
        return table is given
    return table.shape == given.shape and torch.equal(table, given.to(table.device))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _tensors(inner)
    elif isinstance(value, (tuple, list)):
        for inner in value:
            yield from _tensors(inner)


def _are_positions(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point() and not value.is_complex() and value.dim() > 1


def _stretched(value: Any, length: int) -> Any:
    """Positions of which the last is that of the last of ``length`` tokens; any other argument as it is."""
    if not _are_positions(value):
        return value
    last = value.clone()
    last[..., -1] = length - 1
    return last


def _positions(arguments: Any) -> Tensor | None:
    return next((tensor for tensor in _tensors(arguments) if _are_positions(tensor)), None)


def _second_position(arguments: Any) -> int:
    """The position of the second row of a table: 1, but for tables of compressed blocks of tokens."""
    positions = _positions(arguments)
    return 1 if positions is None else int(positions.flatten()[1])


def _turning(name: str, kind: str, call: Call) -> Turning:
    z, roundoff = _complex(name, call.tables)
    while z.dim() > 2:
        z = z[0]
    second = z[1].cpu().numpy()
    size = np.abs(second)
    if np.ptp(size) > SIZE_ROUNDOFFS * roundoff * size.mean():
        said = f"cos and sin that {name} gets are between {size.min():g} and {size.max():g} long: not of one circle"
        raise UnsupportedError(said, module=name)
    return Turning(name, kind, np.angle(second) / _second_position(call.arguments), float(size.mean()), roundoff)


def _complex(name: str, tables: tuple[Tensor, ...]) -> tuple[Tensor, float]:
    """cos + i sin of [..., T, pairs or rows], and the roundoff of the numbers that they came in."""
    if len(tables) == 1 and tables[0].is_complex():
        return tables[0].to(torch.complex128), torch.finfo(tables[0].dtype).eps
    if len(tables) == 2 and tables[0].shape == tables[1].shape and tables[0].is_floating_point():
        # No class computes its angles in more than float32, whatever it casts cos and sin to.
        roundoff = max(torch.finfo(tables[0].dtype).eps, torch.finfo(torch.float32).eps)
        sin_first = not bool(tables[0][..., 0, :].any())  # at position 0, where sin is 0 (GPT-J)
        cos, sin = reversed(tables) if sin_first else tables
        return torch.complex(cos.double(), sin.double()), roundoff
    said = f"{name} gets tables of the shapes {[tuple(t.shape) for t in tables]}, which are no cos and sin"
    raise UnsupportedError(said, module=name)


def by_pair(angles: Floats, pairs: int) -> Floats | None:
    """One angle for each pair, where a table has one for each row of either layout; None where it fits neither."""
    if len(angles) == pairs:
        return angles
    for first, second in ((angles[:pairs], angles[pairs:]), (angles[0::2], angles[1::2])):
        if len(angles) == 2 * pairs and np.array_equal(first, second):
            return first
    return None
