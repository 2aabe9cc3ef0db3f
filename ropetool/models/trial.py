"""Choose how a long sequence goes through a model, by trying on a short prefix what would be trusted on all of it.

Every way is held against the class's own forward. Two runs of one function differ by rounding, so the bound is made of
rounding: every number that enters or leaves a layer is moved by one unit in its last place, up or down, and how far
that moves the scores is measured. One unit is twice what a rounding can be off by, and the results within a layer are
added to the larger sum that is moved; two runs may each be off, which doubles it. So the bound follows the dtype, the
depth and what this very model does with a small difference (one that routes tokens to experts does much with it).
What the check must see, a chunk that forgets what was before it, is run as well, and has to be beyond the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from ropetool.errors import CheckpointError, UnsupportedError
from ropetool.models.fallbacks import out_of_memory
from ropetool.models.limits import windows_of
from ropetool.models.load import Runner
from ropetool.models.loading import reason
from ropetool.models.steps import layers_of
from ropetool.models.stream import NoCacheError, Way, scores
from ropetool.models.tables import FOLLOW_THE_LENGTH, stretch, table_modules

CHUNK_TOKENS = 1024
PREFIX_TOKENS = 192
# What the scores of a token move by, of their spread, where later ones are seen; rounding moves them by far less.
SEEN_AHEAD = 0.02


class How(str, Enum):
    """How a text was read."""

    CACHED = "cached"
    WHOLE = "whole"
    PER_LENGTH = "per-length"


@dataclass(frozen=True)
class Passes:
    """The way that was taken and why; ``difference`` is that of the trial on a prefix, below ``bound``.

    Both are root mean squares over the vocabulary, at the worst position, relative to how far the scores spread;
    ``chunk_tokens`` are at most at once in the body (cached) or in the head (otherwise).
    """

    how: How
    why: str
    way: Way
    chunk_tokens: int = CHUNK_TOKENS
    difference: float | None = None
    bound: float | None = None


def follows_length(model: Any) -> bool:
    """Whether a loaded model has rotary tables that depend on the number of tokens in play."""
    for module in table_modules(model).values():
        told = getattr(module, "rope_type", None)
        if any(kind in FOLLOW_THE_LENGTH for kind in (told.values() if isinstance(told, dict) else (told,))):
            return True
    return False


def choose(runner: Runner, ids_T: Tensor, *, by_length: bool = False, chunk_tokens: int = CHUNK_TOKENS) -> Passes:
    """Try the ways on a prefix of ``ids_T`` and take the best that gives what the class's own forward gives.

    ``by_length``: config.json says that the frequencies depend on the length in play, whatever the class tells.
    """
    return replace(_choose(runner, ids_T, by_length), chunk_tokens=chunk_tokens)


def _choose(runner: Runner, ids_T: Tensor, by_length: bool) -> Passes:
    ids_BT = ids_T[None, :PREFIX_TOKENS].to(runner.device)
    stretch(runner.model, 1)
    want_TV = next(scores(runner, ids_BT, Way.PLAIN, 0))[1][0].float()
    check_numbers(want_TV.mean(-1), runner)
    bound = _bound(runner, ids_BT, want_TV)
    _check_causal(runner, ids_T, bound)
    per_length = by_length or follows_length(runner.model)
    apart = _difference(runner, ids_BT, Way.WHOLE, want_TV)
    if not _within(apart, bound):
        how = How.PER_LENGTH if per_length else How.WHOLE
        return Passes(how, f"its head does not run apart from its body ({_told(apart, bound)})", Way.PLAIN)
    if per_length:
        said = "its frequencies depend on the number of tokens in play (dynamic, longrope): one pass for each length"
        return Passes(How.PER_LENGTH, said, Way.WHOLE, difference=_number(apart), bound=bound)
    return _cached_or_whole(runner, ids_T, ids_BT, want_TV, bound)


def check_causal_on(runner: Runner, ids_T: Tensor) -> None:
    """Raises `UnsupportedError` where a later token changes the scores of an earlier one, of a prefix of ``ids_T``."""
    ids_BT = ids_T[None, :PREFIX_TOKENS].to(runner.device)
    _check_causal(runner, ids_T, _bound(runner, ids_BT, next(scores(runner, ids_BT, Way.PLAIN, 0))[1][0].float()))


def _check_causal(runner: Runner, ids_T: Tensor, bound: float) -> None:
    """Raises `UnsupportedError` where a later token changes the scores of an earlier one: that is no prediction.

    Within the windows of the class: past them an indexer chooses among more keys.
    """
    ids_BT = ids_T[None, : min(PREFIX_TOKENS, *windows_of(runner.model), len(ids_T))].to(runner.device)
    half = ids_BT.shape[1] // 2
    if half < 1:
        return
    whole_TV, alone_TV = (next(scores(runner, ids, Way.PLAIN, 0))[1][0].float() for ids in (ids_BT, ids_BT[:, :half]))
    apart = float(_distances(alone_TV, whole_TV[:half]).max())
    if apart > max(SEEN_AHEAD, bound):
        raise UnsupportedError(
            f"{type(runner.model).__name__} looks ahead: later tokens move the scores of earlier ones by {apart:.1e} "
            f"of their spread, so it predicts no next token, and has no such losses"
        )


def check_numbers(of_position_T: Tensor, runner: Runner) -> None:
    """Raises `CheckpointError` where what a model gives at a position is not a number."""
    bad = of_position_T.isnan().nonzero()
    if len(bad):
        raise CheckpointError(
            f"the scores of {type(runner.model).__name__} are no numbers at {len(bad)} of {len(of_position_T)} "
            f"positions, first at {int(bad[0])}: weights are damaged, or --dtype is too narrow; try float32",
            positions=len(bad),
            first=int(bad[0]),
        )


def _cached_or_whole(runner: Runner, ids_T: Tensor, ids_BT: Tensor, want_TV: Tensor, bound: float) -> Passes:
    def whole(why: str) -> Passes:
        return Passes(How.WHOLE, why, Way.WHOLE)

    found = _difference(runner, ids_BT, Way.CACHED, want_TV)
    if not _within(found, bound):
        return whole(f"chunks through its KV cache do not give what one pass gives ({_told(found, bound)})")
    half = ids_BT.shape[1] // 2
    forgetful = next(scores(runner, ids_BT[:, half:], Way.PLAIN, 0))[1][0].float()
    if float(_distances(forgetful, want_TV[half:]).max()) <= bound:
        return whole("the trial of its KV cache could not tell right from wrong: what came before makes no difference")
    window = _window(runner.model, len(ids_T))
    if window and not _within(beyond := _across_window(runner, ids_T, window), bound):
        return whole(f"past its window of {window} tokens its KV cache differs from one pass ({_told(beyond, bound)})")
    said = f"chunks through the KV cache give what one pass gives ({_told(found, bound)})"
    return Passes(How.CACHED, said, Way.CACHED, difference=_number(found), bound=bound)


def _difference(runner: Runner, ids_BT: Tensor, way: Way, want_TV: Tensor) -> float | str:
    """How far a way is from the class's own forward, at the worst position; or why it cannot be gone."""
    third = max(1, ids_BT.shape[1] // 3 - 3)  # not a multiple of what kernels work in
    return _try(lambda: _worst(torch.cat([s[0] for _, s in scores(runner, ids_BT, way, third)]).float(), want_TV))


def _across_window(runner: Runner, ids_T: Tensor, window: int) -> float | str:
    """Cached against whole, at the positions that look back over more tokens than a window holds."""
    past = max(1, min(PREFIX_TOKENS // 3, len(ids_T) - window))
    ids_BT = ids_T[None, : window + past].to(runner.device)

    def read(way: Way, chunk: int) -> Tensor:
        return torch.cat([s[0] for _, s in scores(runner, ids_BT, way, chunk, first=window)]).float()

    return _try(lambda: _worst(read(Way.CACHED, max(past // 2, window // 3)), read(Way.WHOLE, past)))


def _try(measure: Callable[[], float]) -> float | str:
    try:
        return measure()
    except NoCacheError:
        return "it keeps none"
    except Exception as error:  # a class that cannot be read so raises what it likes; it is then read another way
        if out_of_memory(error):
            raise
        return f"{type(error).__name__}: {reason(error)}"


def _within(found: float | str, bound: float) -> bool:
    return isinstance(found, float) and found <= bound < math.inf


def _number(found: float | str) -> float | None:
    return found if isinstance(found, float) else None


def _told(found: float | str, bound: float) -> str:
    return (
        found if isinstance(found, str) else f"{found:.1e} of the scores on a prefix, where rounding gives {bound:.1e}"
    )


def _distances(found_TV: Tensor, want_TV: Tensor) -> Tensor:
    """The root mean square difference at every position, relative to how far the scores spread over all, [T]."""
    spread = (want_TV - want_TV.mean(-1, keepdim=True)).square().mean().sqrt()
    return (found_TV - want_TV).square().mean(-1).sqrt() / spread


def _worst(found_TV: Tensor, want_TV: Tensor) -> float:
    return float(_distances(found_TV, want_TV).nan_to_num(nan=math.inf).max())


def _bound(runner: Runner, ids_BT: Tensor, want_TV: Tensor) -> float:
    """How far apart rounding alone may bring two runs; see the module's docstring."""
    with _last_places_moved(runner.model):
        moved_TV = next(scores(runner, ids_BT, Way.PLAIN, 0))[1][0].float()
    return 2 * _worst(moved_TV, want_TV)


@contextmanager
def _last_places_moved(model: Any) -> Iterator[None]:
    """Within, all numbers of the embeddings and of each layer's output are off by their last place, up or down."""
    generator = torch.Generator().manual_seed(0)

    def moved(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (moved(module, args, output[0]), *output[1:])
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return output
        signs = torch.randint(2, output.shape, generator=generator) * 2 - 1
        return output * (1 + torch.finfo(output.dtype).eps * signs.to(output))

    hooks = [m.register_forward_hook(moved) for m in (model.get_input_embeddings(), *layers_of(model))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _window(model: Any, tokens: int) -> int | None:
    """The longest window of a model's layers that ``tokens`` tokens go beyond."""
    return max((window for window in windows_of(model) if window < tokens), default=None)
