"""Decoding with a cache: tokens in pieces, through the class's own cache, give the logits of one pass over all."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ropetool.families.cannot import CACHED
from ropetool.families.reading import Reading
from ropetool.families.verdict import Check
from ropetool.models.catalog import inputs_of
from ropetool.models.inputs import Inputs
from ropetool.models.limits import windows_of
from ropetool.models.load import Runner
from ropetool.models.properties import RAISED, TOKENS, by_no_row, cannot, room
from ropetool.models.run import scores_of

# How classes call their cache: transformers 5.24 (utils/generic.py) renames the others to the first.
CACHE_NAMES = ("cache", "past_key_values", "cache_params")


def pieces(tokens: int) -> Iterator[slice]:
    """A prefill of half of the tokens, a piece of several, and the last two one by one."""
    half, last = tokens // 2, tokens - 2
    yield from (slice(0, half), slice(half, last), slice(last, last + 1), slice(last + 1, tokens))


@torch.no_grad()
def cached_decoding(
    runner: Runner, ids_T: Tensor, reading: Reading, allowed: float, full_TV: Tensor | None = None
) -> Check:
    """Decoding in pieces with the class's own cache gives the logits of one pass to within ``allowed``: four passes.

    ``full_TV`` are the logits of one pass over the same tokens, or more; where they are not given, they take a pass.
    """
    out = cannot(reading, CACHED)
    if out:
        return out[CACHED]
    most, method = room(reading)
    # Past a window caches slide, and some classes' masks do not; what RoPE does shows within it.
    ids = ids_T[: min(TOKENS, len(ids_T), *windows_of(runner.model), *(() if most is None else (most,)))]
    if len(ids) < 6:
        why = f"the method: {method} changes its frequencies beyond {most} tokens" if most else "so few tokens"
        return Check(CACHED, True, f"cannot, by {why}")
    try:
        found = _in_pieces(runner, ids, allowed, None if full_TV is None else full_TV[: len(ids)])
    except RAISED as error:
        found = Check(CACHED, False, f"{type(runner.model).__name__} does not run with its cache: {error}")
    beyond = f" (up to the trained length; beyond it {method} cannot)" if method and found.passed else ""
    return by_no_row(reading, replace(found, detail=found.detail + beyond))


def _in_pieces(runner: Runner, ids_T: Tensor, allowed: float, full_TV: Tensor | None) -> Check:
    model, apart = runner.model, 0.0
    cache: dict[str, Any] = {}
    full = scores_of(model(**_inputs(runner, ids_T)))[0].flatten(1).cpu() if full_TV is None else full_TV
    for piece in pieces(len(ids_T)):
        output = model(**_inputs(runner, ids_T, piece), use_cache=True, **cache)
        cache = cache_of(output)
        if not cache:
            return Check(CACHED, False, f"{type(model).__name__} gives no cache")
        by_token = (scores_of(output)[0].flatten(1).cpu().double() - full[piece].double()).abs().amax(-1)
        apart = max(apart, float(by_token.max()))
        if not bool((by_token <= allowed).all()):
            if piece.start == 0 and _looks_ahead(runner, ids_T[piece], output, allowed):
                said = "cannot, by the class: it looks ahead, so a later token changes what an earlier one gives"
                return Check(CACHED, True, said)
            first = piece.start + int((~(by_token <= allowed)).nonzero()[0])
            said = (
                f"token {first}, in the piece from {piece.start} to {piece.stop - 1}, is {float(by_token.max()):.2e} "
            )
            said += f"off one full pass with a cache; {allowed:.2e} is allowed"
            return Check(CACHED, False, said, where=f"token {first}")
    said = f"{len(ids_T)} tokens in pieces with a cache are within {apart:.2e} of one full pass"
    return Check(CACHED, True, f"{said}; {allowed:.2e} is allowed")


def _looks_ahead(runner: Runner, ids_T: Tensor, cached: Any, allowed: float) -> bool:
    """Whether the first tokens by themselves, without any cache, give what they gave with one."""
    alone = scores_of(runner.model(**_inputs(runner, ids_T)))[0].flatten(1)
    return bool((alone - scores_of(cached)[0].flatten(1)).abs().max() <= allowed)


def cache_of(output: Any) -> dict[str, Any]:
    """The cache that a class returned, under the name that its forward takes it by; empty where it returned none."""
    held = ((name, output.get(name)) for name in CACHE_NAMES) if isinstance(output, Mapping) else ()
    return next(({name: cache} for name, cache in held if cache is not None), {})


def _inputs(runner: Runner, ids_T: Tensor, piece: slice | None = None) -> Inputs:
    """The arguments for all tokens, or those for a piece of them with the positions that `generate` would give it.

    Made anew for every pass: a class may write into them (Moonshine adds to the encoder's output).
    """
    model = runner.model
    arguments = inputs_of(model.config.model_type, type(model))(model, ids_T[None].to(runner.device))
    if piece is None:
        return arguments
    if "position_ids" in inspect.signature(model.forward).parameters:
        arguments["position_ids"] = torch.arange(len(ids_T), device=runner.device)[None]
    by_token = {key: x for key, x in arguments.items() if isinstance(x, Tensor) and x.shape[1:2] == ids_T.shape}
    arguments.pop("use_cache", None)
    return {**arguments, **{key: x[:, piece] for key, x in by_token.items()}}
