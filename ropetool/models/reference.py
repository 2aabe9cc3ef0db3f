"""Run a loaded model in either layout: it no longer rotates, and q and k are rotated by definition where they meet.

The class's rotary tables are kept still (`tables`), and `models.rotary` rotates q and k in front of the class's own
attention function, or of the product of the two in classes that have none. So any class runs in any layout,
independent of its own rotation. A norm that a class puts between its rotation and that place gets its input rotated
instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.errors import UnsupportedError
from ropetool.models.catalog import inputs_of
from ropetool.models.load import Runner
from ropetool.models.rotary import Rotary
from ropetool.models.seams import (
    CROSS,
    INDEXER,
    Product,
    Products,
    around_eager_attention,
    kind_of,
    layer_of,
    looks_like_attention,
    module_stack,
    replaced_functions,
)
from ropetool.models.survey import Site, survey
from ropetool.models.tables import live_frequencies, live_of, still_tables, table_modules

# The function of DeepSeek's classes and their kin (modeling_deepseek_v3.py, transformers 5.24) that reorders slots.
# In the name of a kind of layer: a running state instead of q times k, and nothing to rotate (MiniMax).
RUNNING_STATE = "linear"
# A parameter of the attention, [H x D], whose square scales q after the rotation (modeling_dory.py, transformers 5.24).
SCALE_AFTER = "sqk"
REORDERING = "apply_rotary_pos_emb_interleave"


@dataclass(frozen=True)
class _Turning:
    """A place where q meets k, and how they are rotated there."""

    site: Site
    rotary: Rotary

    def both(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """q and k of the interface, [B, H, T, D], rotated; keys after the tokens are of another sequence."""
        tokens = q.shape[-2]
        if k.shape[-2] != tokens and not self.site.longer:
            raise UnsupportedError(
                f"{self.site.name} gets {tokens} queries and {k.shape[-2]} keys: run it without cache"
            )
        turned = self.rotary.rotate(k[..., :tokens, :], torch.arange(tokens))
        return self.along(q, -2), torch.cat((turned, k[..., tokens:, :]), dim=-2)

    def along(self, x: Tensor, tokens: int, features: int = -1) -> Tensor:
        """Rotate a tensor whose tokens and features lie along these axes, counted from the end."""
        moved = x.movedim((tokens, features), (-2, -1))
        turned = self.rotary.rotate(moved, torch.arange(moved.shape[-2]))
        return turned.movedim((-2, -1), (tokens, features))


def turned_sites(
    model: Any, sites: tuple[Site, ...], rotaries: Mapping[str, Rotary], nope_layers: frozenset[int]
) -> dict[str, _Turning]:
    """How each site is rotated, by its module's name; raises `UnsupportedError` where the class does otherwise."""
    modules, found = dict(model.named_modules()), {}
    for site in sites:
        module = modules[site.name]
        rotary = rotary_at(rotaries, site.name, kind_of(model, site.name, module))
        if layer_of(site.name, module) in nope_layers:
            rotary = None
        if rotary is None and site.rotates:
            said = f"{site.name} rotates q and k, and the config says that it does not"
            raise UnsupportedError(said, module=site.name)
        if rotary is not None and site.rotates is False:
            said = (
                f"{site.name} does not rotate q and k by a table of its own, and the config says that it rotates them"
            )
            raise UnsupportedError(said, module=site.name)
        if rotary is not None and site.rotates is not False:
            found[site.name] = _Turning(site, rotary)
    return found


def rotary_at(rotaries: Mapping[str, Rotary], name: str, kind: str) -> Rotary | None:
    """The rotation for a module: by the path of a part of the model, else by kind, else for all layers."""
    if kind in (INDEXER, CROSS) or RUNNING_STATE in kind:
        return rotaries.get(kind)
    parts = [key for key in rotaries if f".{key}." in f".{name}."]
    key = max(parts, key=len) if parts else kind
    return rotaries.get(key) or rotaries.get(ALL_LAYERS)


def _attention(turnings: Mapping[int, _Turning]) -> Callable[..., Any]:
    """The wrapper of an attention function: it rotates q and k by definition first."""

    def around(eager: Callable[..., Any]) -> Callable[..., Any]:
        def attention(module: Any, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
            turning = turnings.get(id(module))
            if turning is not None:
                scale = scale_after(module, query)
                query, key = turning.both(query / scale, key)
                query = query * scale
            return eager(module, query, key, *args, **kwargs)

        return attention

    return around


def scale_after(module: Any, query: Tensor) -> Tensor | float:
    """What a class multiplies every slot of a rotated q by, up to a constant: the rotation goes before it."""
    scale = getattr(module, SCALE_AFTER, None)
    return 1.0 if scale is None else scale.square().view(1, query.shape[1], 1, -1)


def _in_order(_reordering: Callable[..., Any]) -> Callable[..., Any]:
    """DeepSeek's rotation of adjacent pairs hands q and k back as halves: here it leaves them as they come."""
    return lambda q, k, *_args, **_kwargs: (q, k)


def _multiplication(turnings: Mapping[str, _Turning]) -> Callable[..., Any]:
    """A product that rotates its operands, where it is the first of its module."""

    def multiply(name: str, product: Product, nth: int, make: Callable[..., Any]) -> Any:
        if nth > 0:
            return make(product.q, product.k)
        turning = turnings[name]
        q = turning.along(product.q, turning.site.q_axis, product.q_axis)
        return make(q, turning.along(product.k, turning.site.k_axis, product.k_axis))

    return multiply


@contextmanager
def rotated_by_reference(model: Any, turnings: Mapping[str, _Turning]) -> Iterator[None]:
    """Within, nothing in ``model`` rotates but ``turnings``."""
    modules = dict(model.named_modules())
    bare = {n: t for n, t in turnings.items() if not t.site.norms}
    meeting = {id(modules[n]): t for n, t in bare.items() if t.site.interface}
    multiplied = {n: t for n, t in bare.items() if not t.site.interface}
    with ExitStack() as undo:
        for turning in turnings.values():
            for name, axis in turning.site.norms.items():
                undo.callback(modules[name].register_forward_pre_hook(_before_norm(turning, axis)).remove)
        undo.enter_context(still_tables(model))
        undo.enter_context(replaced_functions(model, REORDERING, _in_order))
        undo.enter_context(around_eager_attention(model, _attention(meeting)))
        if multiplied:
            stack = undo.enter_context(module_stack(model))
            undo.enter_context(Products(stack, multiplied.__contains__, _multiplication(multiplied)))
        yield


def _before_norm(turning: _Turning, axis: int) -> Callable[..., tuple[Any, ...]]:
    return lambda _module, args: (turning.along(args[0], axis), *args[1:])


@contextmanager
def reference_rotation(
    runner: Runner,
    rotaries: Mapping[str, Rotary],
    nope_layers: frozenset[int] = frozenset(),
    *,
    live: bool = False,
    learned: bool = False,
) -> Iterator[None]:
    """Within the block the model rotates by ``rotaries`` instead of by its own code, and in ``nope_layers`` not at all.

    ``rotaries`` has one entry per kind of layer (a name of the config's ``layer_types``), or one for ``all``; indexers
    of sparse attention have one of their own, ``indexer``; the name of a part of the model counts before its kind.
    With ``live`` they take the frequencies from the model's buffers, where those are in the order of the pairs, and
    with ``learned`` even where the config knows nothing of them. The model runs without a cache.

    Raises `UnsupportedError` for a class whose rotation cannot be replaced, or is not where the config says.
    """
    model = runner.model
    if not table_modules(model):
        stock = type(model).__module__.startswith("transformers.")
        raise UnsupportedError(
            f"{type(model).__name__} makes its rotary tables in no module of its own, so it cannot be run in another "
            f"layout{'; a newer transformers may do so' if stock else ''}"
        )
    if live:
        rotaries = with_live(model, rotaries, learned=learned)
    sites = _sites(model)
    _refuse_unseen_indexers(model, sites)
    turnings = turned_sites(model, sites, rotaries, nope_layers)
    with rotated_by_reference(model, turnings):
        yield


def with_live(model: Any, rotaries: Mapping[str, Rotary], *, learned: bool) -> dict[str, Rotary]:
    """The rotations with the frequencies of the model's buffers, where those are in the order of the pairs."""
    buffers = live_frequencies(model)
    return {kind: _with_live(rotary, live_of(buffers, kind), learned) for kind, rotary in rotaries.items()}


# What the survey of a model found, for as long as the model is there: a second pass by reference need not ask again.
_SURVEYED: WeakKeyDictionary[nn.Module, tuple[Site, ...]] = WeakKeyDictionary()


def _sites(model: Any) -> tuple[Site, ...]:
    if model not in _SURVEYED:
        _SURVEYED[model] = survey(model, inputs_of(model.config.model_type, type(model)), vocabulary_of(model))
    return _SURVEYED[model]


def _with_live(rotary: Rotary, buffer: Tensor | None, learned: bool) -> Rotary:
    """A class may keep its frequencies in another order (ERNIE 4.5 VL, by the axes of mRoPE): those are computed."""
    computed = torch.from_numpy(rotary.scaling.inv_freq(rotary.rotary_dim))
    same = buffer is not None and buffer.shape == computed.shape
    if buffer is None or not (same and (learned or torch.allclose(buffer, computed, rtol=1e-4, atol=0))):
        return rotary
    if learned and rotary.scaling.follows_length:
        return replace(rotary, learned=buffer / computed)
    return replace(rotary, live_inv_freq=buffer)


def _refuse_unseen_indexers(model: nn.Module, sites: tuple[Site, ...]) -> None:
    """Raise `UnsupportedError` for an indexer whose q and k meet token by token, or not at all."""
    for name, module in model.named_modules():
        seen = any(f"{site.name}.".startswith(f"{name}.") for site in sites)
        if kind_of(model, name, module) == INDEXER and looks_like_attention(module) and not seen:
            said = f"{name} multiplies no q of all tokens by a k of all tokens, so its rotation cannot be replaced"
            raise UnsupportedError(said, module=name)


def vocabulary_of(model: Any) -> int:
    """How many token ids the text part takes."""
    return int(getattr(model.config.get_text_config(), "vocab_size", 0) or model.get_input_embeddings().weight.shape[0])
