"""Next-token losses of a text, and first choices in a document, each read in the way that a trial has found right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from ropetool.errors import UnsupportedError
from ropetool.models.fallbacks import out_of_memory
from ropetool.models.load import Runner
from ropetool.models.loading import reason
from ropetool.models.room import with_room
from ropetool.models.stream import scores
from ropetool.models.tables import stretch
from ropetool.models.trial import How, Passes, check_numbers

Talk = Callable[[str], None]
# (position, scores [B, t, V]) to what is kept of them, [B, t].
Reduce = Callable[[int, Tensor], Tensor]


@dataclass
class Meter:
    """Counts the tokens that models are through, of all that are to be read; a pass that starts over is not counted."""

    report: Callable[[int, int], None]
    total: float = 0.0
    done: float = 0.0

    def advance(self, tokens: float) -> None:
        """So many more tokens are through."""
        self.done += tokens
        self.report(min(round(self.done), round(self.total)), round(self.total))


def read(
    runner: Runner, ids_BT: Tensor, passes: Passes, reduce: Reduce, meter: Meter, talk: Talk, first: int = 0
) -> tuple[Tensor, Passes]:
    """``reduce`` of the scores at every position from ``first`` on, [B, T - first]; by half chunks if memory runs out.

    The passes come back with the chunk that had room. Raises `UnsupportedError` where the class fails on the tokens.
    """
    ids_BT, before = ids_BT.to(runner.device), meter.done

    def once(chunk_tokens: int) -> Tensor:
        meter.done = before
        if passes.how is How.PER_LENGTH:
            stretch(runner.model, 1)  # frequencies that a longer pass has left behind
        runs = scores(runner, ids_BT, passes.way, chunk_tokens, first, meter.advance)
        return torch.cat([reduce(at, scores_BTV) for at, scores_BTV in runs], 1)

    try:
        found, chunk_tokens = with_room(once, passes.chunk_tokens, f"reading {ids_BT.shape[1]} tokens", talk)
    except (IndexError, RuntimeError, ValueError) as error:
        if out_of_memory(error):
            raise
        kind = type(runner.model).__name__
        raise UnsupportedError(
            f"{kind} does not run on {ids_BT.shape[1]} tokens: {reason(error)}; take shorter --lengths",
            length=ids_BT.shape[1],
        ) from error
    return found, replace(passes, chunk_tokens=chunk_tokens)


def text_losses(
    runner: Runner, ids_T: Tensor, stops: Sequence[int], passes: Passes, meter: Meter, talk: Talk
) -> tuple[Tensor, Passes]:
    """The loss in nats of every next token of one sequence, [T - 1] in float64 on the CPU.

    The last of ``stops`` is T. Per length, the losses between two stops are those of a pass over as many tokens as the
    later one. Raises `CheckpointError` for scores that are no numbers.
    """
    ends = tuple(stops) if passes.how is How.PER_LENGTH else (len(ids_T),)
    parts = []
    for start, stop in pairwise((0, *ends)):
        following = ids_T[1 : stop + 1].to(runner.device)

        def loss(at: int, scores_BTV: Tensor, following: Tensor = following) -> Tensor:
            targets = following[at : at + scores_BTV.shape[1]]
            predicting = scores_BTV[0, : len(targets)].float()
            return nn.functional.cross_entropy(predicting, targets, reduction="none").double().cpu()[None]

        losses_BT, passes = read(runner, ids_T[None, :stop], passes, loss, meter, talk, start)
        parts.append(losses_BT[0])
    losses_T = torch.cat(parts)
    check_numbers(losses_T, runner)
    return losses_T, passes


def first_choices(
    runner: Runner, ids_BT: Tensor, first: int, passes: Passes, meter: Meter, talk: Talk
) -> tuple[Tensor, Passes]:
    """The token of the highest score at every position from ``first`` on, [B, T - first] on the CPU."""
    return read(runner, ids_BT, passes, lambda at, scores_BTV: scores_BTV.argmax(-1).cpu(), meter, talk, first)
