"""What a model's own attention code gets: one forward pass in which every projection emits one-hot rows.

transformers lets anyone register an attention function. The one registered here records the q, k and v that
it is called with, which is after RoPE, and returns zeros. Modules that do not go through it (Falcon, RoFormer, the
indexers of sparse attention) are seen through their first product of two activations instead.

Each sample of the batch carries one row of one projection of one module, so a single pass shows where all of
them go; the last sample carries nothing, and is subtracted. Norms inside attention modules are made the identity
during the pass: a one-hot row through a norm would only be scaled, or, through LayerNorm, smeared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ropetool.models.inputs import ENCODER_TOKENS
from ropetool.models.seams import (
    Product,
    Products,
    Stack,
    attention_function,
    is_norm,
    looks_like_attention,
    module_stack,
)

TOKENS = 5
"""Positions 0..4: 0 is the identity, 1 gives the frequency, the rest are witnesses."""
_FEWEST = 3
_NAME = "ropetool_probe"


@dataclass
class Seen:
    """One call of attention: q, k, v as [B, heads, T, D], or the reason why they could not be read.

    ``behind`` is what a longer k has after the tokens: blocks of compressed keys.
    """

    module: str
    interface: bool
    q: torch.Tensor | None = None
    k: torch.Tensor | None = None
    v: torch.Tensor | None = None
    behind: torch.Tensor | None = None
    reason: str | None = None


@dataclass
class NormSeen:
    """What went into a norm module: x with the batch first."""

    module: str
    weight_shape: tuple[int, ...] | None
    x: torch.Tensor


@dataclass
class Capture:
    """Everything one pass showed."""

    calls: list[Seen] = field(default_factory=list)
    norms: list[NormSeen] = field(default_factory=list)
    starts: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


class _Recorder:
    """The state of the pass under way: the registered function is global, so it writes into this."""

    active: Capture | None = None
    names: Mapping[int, str] = {}
    batch = 0


def _canonical(x: torch.Tensor, batch: int, transposed: bool = False) -> torch.Tensor | None:
    """[B, heads, T, D] of an operand in any of the orders that attention code uses; None if it is none of them."""
    if x.shape[0] != batch and x.dim() == 3 and x.shape[0] % batch == 0:
        x = x.reshape(batch, -1, *x.shape[1:])
    if x.dim() == 3:
        x = x.unsqueeze(1)
    if x.dim() != 4:
        return None
    if transposed:
        x = x.transpose(-1, -2)
    if x.shape[0] != batch:
        return None
    if x.shape[2] in (TOKENS, ENCODER_TOKENS):
        return x
    if x.shape[1] in (TOKENS, ENCODER_TOKENS):
        return x.transpose(1, 2)
    return None


def _by_contract(x: torch.Tensor) -> torch.Tensor | None:
    """The interface's own order, [B, heads, T, D]; of a longer sequence (compressed blocks behind) the first tokens."""
    fits = x.dim() == 4 and x.shape[0] == _Recorder.batch and x.shape[2] >= _FEWEST
    return x.detach()[:, :, :TOKENS] if fits else None


def _record(module: nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> Any:
    """The registered attention function: record, and return zeros of the right shape."""
    capture = _Recorder.active
    if capture is not None:
        name = _Recorder.names.get(id(module), type(module).__name__)
        q, k, v = (_by_contract(t) for t in (query, key, value))
        reason = None if q is not None and k is not None else f"q has shape {tuple(query.shape)}, k {tuple(key.shape)}"
        longer = k is not None and q is not None and key.shape[2] > TOKENS
        capture.calls.append(Seen(name, True, q, k, v, key.detach()[:, :, TOKENS:] if longer else None, reason))
    return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None


class _Products(Products):
    """Record the first products of two activations of each module that does not use the interface.

    Sorting is made stable, so that code which sorts tokens by their expert keeps the samples in order.
    """

    def __init__(self, capture: Capture, batch: int, stack: Stack, watched: Callable[[str], bool]) -> None:
        super().__init__(stack, watched, self._keep)
        self.capture, self.batch = capture, batch
        self.products: dict[str, int] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.sort, torch.Tensor.sort) and len(args) <= 2 and "stable" not in kwargs:
            args, kwargs = args[:1], {"dim": args[1] if len(args) > 1 else -1, **kwargs, "stable": True}
        return super().__torch_function__(func, types, args, kwargs)

    def _keep(self, name: str, product: Product, _nth: int, make: Callable[..., Any]) -> Any:
        q, k, v = product.q, product.k, product.value
        if not q.shape[0] % self.batch and not k.shape[0] % self.batch:
            nth = self.products[name] = self.products.get(name, 0) + 1
            if nth == 1:
                parts = (
                    _canonical(q.detach(), self.batch),
                    _canonical(k.detach(), self.batch, product.transposed),
                    None if v is None else _canonical(v.detach(), self.batch),
                )
                whole = parts[0] is not None and parts[1] is not None
                reason = None if whole else f"q has shape {tuple(q.shape)}, k {tuple(k.shape)}"
                self.capture.calls.append(Seen(name, False, *parts, reason=reason))
            elif nth == 2 and self.capture.calls[-1].module == name and self.capture.calls[-1].v is None:
                self.capture.calls[-1].v = _canonical(k.detach(), self.batch)
        return make(q, k)


def _one_hot_hook(name: str, capture: Capture, batch: int, height: float) -> Callable[..., Any]:
    def hook(_module: nn.Module, _args: Any, out: Any) -> Any:
        if not isinstance(out, torch.Tensor) or out.shape[0] % batch or out.shape[-1] != capture.rows[name]:
            capture.notes[name] = "its output does not have the batch first"
            return out
        hot = torch.zeros_like(out)
        view = hot.view(batch, -1, out.shape[-1])
        start, rows = capture.starts[name], capture.rows[name]
        index = torch.arange(rows, device=out.device)
        view[start + index, :, index] = height
        capture.notes.pop(name, None)
        return hot

    return hook


def _norm_hook(name: str, capture: Capture, batch: int) -> Callable[..., Any]:
    def hook(module: nn.Module, args: Any, out: Any) -> Any:
        x = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if x is None or not isinstance(out, torch.Tensor) or x.shape != out.shape:
            return out
        weight = getattr(module, "weight", None)
        if x.shape[0] % batch == 0:
            first = x.detach() if x.shape[0] == batch else x.detach().reshape(batch, -1, *x.shape[1:])
            capture.norms.append(NormSeen(name, None if weight is None else tuple(weight.shape), first))
        return x

    return hook


def run(
    model: nn.Module,
    inputs: Callable[[int], Mapping[str, Any]],
    projections: Mapping[str, nn.Module],
    height: float,
    roots: Sequence[str] = (),
) -> Capture:
    """One forward pass of ``model`` on ``inputs(batch)`` in which ``projections`` emit one-hot rows of ``height``.

    The norms in ``roots``, the modules that attend, are the identity. With no projections the pass only finds out
    which modules do attention.
    """
    capture = Capture()
    for name, module in projections.items():
        capture.starts[name] = sum(capture.rows.values())
        capture.rows[name] = getattr(module, "nf", None) or module.weight.shape[-2]  # type: ignore[index,assignment]  # a weight
    batch = sum(capture.rows.values()) + 1 if projections else 2
    names = {id(m): n for n, m in model.named_modules()}
    like = {n for n, m in model.named_modules() if looks_like_attention(m)}
    with ExitStack() as undo:
        undo.callback(_set_active, None, {}, 0)
        _set_active(capture, names, batch)
        stack = undo.enter_context(module_stack(model))
        for name, module in projections.items():
            undo.callback(module.register_forward_hook(_one_hot_hook(name, capture, batch, height)).remove)
        for name, module in model.named_modules():
            if (
                is_norm(module)
                and not list(module.children())
                and any(name.startswith(a + ".") for a in (*like, *roots))
            ):
                undo.callback(module.register_forward_hook(_norm_hook(name, capture, batch)).remove)
        undo.enter_context(torch.no_grad())
        undo.enter_context(attention_function(model, _NAME, _record))
        undo.enter_context(_Products(capture, batch, stack, lambda n: n in like))
        model(**inputs(batch))
    through = {c.module for c in capture.calls if c.interface}
    capture.calls = [c for c in capture.calls if c.interface or c.module not in through]
    capture.order = list(projections)
    return capture


def _set_active(capture: Capture | None, names: Mapping[int, str], batch: int) -> None:
    _Recorder.active, _Recorder.names, _Recorder.batch = capture, names, batch
