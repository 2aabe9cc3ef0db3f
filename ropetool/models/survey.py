"""Ask a loaded model where it rotates: two short passes, one with its own rotary tables and one with still ones.

Attention gives zeros in both, so nothing upstream can differ: what differs between the passes was rotated there and
then. So the survey finds each place where q meets k, whether the class rotates there, along which axis the tokens lie,
and the norms that come between the rotation and that place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ropetool.errors import UnsupportedError
from ropetool.models.inputs import Inputs
from ropetool.models.seams import (
    Product,
    Products,
    around_eager_attention,
    is_norm,
    looks_like_attention,
    module_stack,
)
from ropetool.models.tables import still_tables
from ropetool.models.turnings import Watch, followed_tables

# How many tokens to try: a number that is no other size of the tensors, so that it names the axis of the tokens.
LENGTHS = (11, 13, 17, 19, 23)


@dataclass(frozen=True)
class Site:
    """A place where q meets k: the module, whether through the interface, and the axes of the tokens from the end.

    ``rotates`` is None where q or k is not finite, so that nothing can be told.
    ``norms`` are those after the rotation, by name, with the axis of the tokens. ``longer`` says that k goes on after
    the tokens (with keys of another sequence, which nothing rotates). ``turns_v``: v is rotated as well.
    """

    name: str
    interface: bool
    rotates: bool | None
    q_axis: int
    k_axis: int
    longer: bool
    norms: Mapping[str, int]
    turns_v: bool


class AmbiguousAxis(Exception):
    """More than one axis is as long as the tokens are many, or none."""


@dataclass
class Pass:
    """What one pass showed, in order: by site its q, k, v, and by norm its inputs."""

    met: dict[str, list[tuple[bool, Tensor, Tensor, Tensor | None, Product | None]]] = field(default_factory=dict)
    normed: dict[str, list[Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """Both passes over so many tokens, the sites that they show, and the tables that the class's own one made."""

    tokens: int
    still: Pass
    turning: Pass
    sites: tuple[Site, ...]
    tables: Watch


def survey(model: Any, inputs: Callable[[Any, Tensor], Inputs], vocabulary: int) -> tuple[Site, ...]:
    """Every place where ``model`` multiplies q by k.

    Raises `UnsupportedError` where v is rotated as well.
    """
    sites = look(model, inputs, vocabulary).sites
    for site in sites:
        if site.turns_v:
            raise UnsupportedError(
                f"{site.name} rotates v as well as q and k, so no rotation of q and k alone is what the class computes",
                module=site.name,
            )
    return sites


def look(model: Any, inputs: Callable[[Any, Tensor], Inputs], vocabulary: int) -> Look:
    """Every place where ``model`` multiplies q by k, with what met there in both passes."""
    for length in LENGTHS:
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(min(2, vocabulary - 1), min(60, vocabulary), (1, length), generator=generator)
        ids = ids.to(_device_of(model))
        with still_tables(model):
            still = _one_pass(model, inputs(model, ids))
        with followed_tables(model) as tables:
            turning = _one_pass(model, inputs(model, ids))  # inputs made anew: a class may write into them
        try:
            sites = tuple(_site(name, still, turning, length) for name in still.met)
        except AmbiguousAxis:
            continue
        return Look(length, still, turning, sites, tables)
    raise UnsupportedError(f"{type(model).__name__}: no axis of q and k can be told to be that of the tokens")


def _device_of(model: Any) -> Any:
    """Where a model computes; of one whose weights are partly away, accelerate knows."""
    device = getattr(getattr(model, "_hf_hook", None), "execution_device", None)
    return model.device if device is None else device


def _one_pass(model: Any, arguments: Mapping[str, Any]) -> Pass:
    seen = Pass()
    names = {id(module): name for name, module in model.named_modules()}
    watched = {name for name, module in model.named_modules() if looks_like_attention(module)}

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
        seen.met.setdefault(names[id(module)], []).append((True, query, key, value, None))
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[-1]), None

    def multiply(name: str, product: Product, nth: int, make: Callable[..., Any]) -> Any:
        calls = seen.met.setdefault(name, [])
        if nth == 0:
            calls.append((False, product.q, product.k, product.value, product))
            return torch.zeros_like(make(product.q, product.k))
        if nth == 1 and calls and calls[-1][3] is None:
            calls[-1] = (*calls[-1][:3], product.k, calls[-1][4])
        return make(product.q, product.k)

    def note(name: str) -> Callable[..., None]:
        return lambda _module, args: seen.normed.setdefault(name, []).append(args[0])

    with ExitStack() as undo:
        for name, module in model.named_modules():
            if is_norm(module) and not list(module.children()) and _owner(name, watched):
                undo.callback(module.register_forward_pre_hook(note(name)).remove)
        undo.enter_context(torch.no_grad())
        stack = undo.enter_context(module_stack(model))
        undo.enter_context(around_eager_attention(model, lambda _eager: attend))
        undo.enter_context(Products(stack, lambda name: name in watched, multiply))
        model(**arguments)
    return seen


def _owner(name: str, sites: Iterable[str]) -> str | None:
    """The innermost of ``sites`` that the module ``name`` is a part of."""
    owners = [site for site in sites if name.startswith(site + ".")]
    return max(owners, key=len) if owners else None


def _site(name: str, still: Pass, turning: Pass, length: int) -> Site:
    (interface, q, k, v, product), (_, q_turned, k_turned, v_turned, _) = still.met[name][0], turning.met[name][0]
    turns_v = v is not None and v_turned is not None and not _same(v, v_turned)
    finite = bool(q.isfinite().all()) and bool(k.isfinite().all())
    rotates = not (_same(q, q_turned) and _same(k, k_turned)) if finite else None
    longer = interface and k.shape[-2] > q.shape[-2]
    q_axis = k_axis = -2
    if product is not None and rotates is not False:
        q_axis = _token_axis(q, length, product.q_axis)
        k_axis = _token_axis(k, length, product.k_axis)
    norms = {n: _norm_axis(n, still, turning, length) for n in still.normed if _owner(n, still.met) == name}
    after = {n: axis for n, axis in norms.items() if axis is not None}
    passed = sum(_changed(n, still, turning) for n in after)
    if passed not in (0, 2):
        raise UnsupportedError(f"{name} has a norm after its rotation for one of q and k alone", module=name)
    return Site(name, interface, rotates, q_axis, k_axis, longer, after, turns_v)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal, and not a number in the same places."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)


def _changed(name: str, still: Pass, turning: Pass) -> int:
    """How many times a norm got what was rotated before."""
    return sum(not _same(a, b) for a, b in zip(still.normed[name], turning.normed[name], strict=True))


def _norm_axis(name: str, still: Pass, turning: Pass, length: int) -> int | None:
    """The axis of the tokens in what a norm gets, if that was rotated before."""
    pairs = zip(still.normed[name], turning.normed[name], strict=True)
    axes = {_token_axis(a, length, -1) for a, b in pairs if not _same(a, b)}
    if len(axes) > 1:
        raise AmbiguousAxis
    return next(iter(axes), None)


def _token_axis(x: Tensor, length: int, features: int) -> int:
    """The axis, counted from the end, that is as long as the tokens are many."""
    axes = [axis for axis in range(-x.dim(), 0) if x.shape[axis] == length and axis != features]
    if len(axes) != 1:
        raise AmbiguousAxis
    return axes[0]
