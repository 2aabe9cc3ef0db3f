"""Let one model read a text and answer passkeys: loaded, tried, run and let go of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropetool.errors import UnsupportedError, UsageError
from ropetool.families.context import Context
from ropetool.families.positions import positions_of, said
from ropetool.models.fallbacks import release
from ropetool.models.limits import table_tokens
from ropetool.models.load import Runner, load_right, pick_device
from ropetool.models.losses import Meter, first_choices, text_losses
from ropetool.models.options import Device, DType, MaxMemory, PasskeyPlan
from ropetool.models.passkey import documents, right
from ropetool.models.runner import silent
from ropetool.models.trial import CHUNK_TOKENS, How, Passes, choose

Talk = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """What each model is to do: read pieces [W, T], whose bins end at ``stops``, and answer passkeys."""

    pieces: Tensor | None
    stops: tuple[int, ...]
    passkey: PasskeyPlan | None
    key_lengths: tuple[int, ...]
    filler: str
    #: Whose tokenizer the documents are made with.
    words_of: Path
    device: Device
    dtype: DType | None
    talk: Talk
    chunk_tokens: int = CHUNK_TOKENS
    max_memory: MaxMemory | None = None

    @property
    def longest(self) -> int:
        """The most tokens that are read at once."""
        return max((*self.stops, *self.key_lengths))

    @property
    def tokens(self) -> int:
        """The tokens that one model reads, if it reads the text once."""
        cells = len(self.passkey.depths) * self.passkey.trials if self.passkey else 0
        return (0 if self.pieces is None else self.pieces.numel()) + sum(self.key_lengths) * cells


@dataclass(frozen=True)
class Found:
    """What one model gave: losses [W, T - 1] in nats, and correct answers by (length, depth)."""

    losses: Tensor | None
    passes: Passes
    correct: dict[tuple[int, float], int]


def measure(path: Path, context: Context, work: Work, meter: Meter) -> Found:
    """Load one model, let it do its work, and let go of it."""
    # A class that is read whole computes all of its tokens at once.
    tokens = work.longest if context.by_length else min(work.longest, work.chunk_tokens)
    placement: dict[str, Any] = {"max_memory": work.max_memory, "tokens": tokens, "talk": work.talk}
    runner = load(path, context, work.device, work.dtype, **placement)
    try:
        _check_can(runner, path, work)
        return _run(runner, context, work, meter)
    finally:
        del runner
        release()


def _run(runner: Runner, context: Context, work: Work, meter: Meter) -> Found:

    if work.pieces is not None:
        sample = work.pieces[0]
    elif work.passkey:
        plan = work.passkey
        sample = documents(work.words_of, work.filler, work.longest, plan.depths[0], 1, plan.seed)[0].ids
    passes = choose(runner, sample, by_length=context.by_length, chunk_tokens=work.chunk_tokens)
    losses: Tensor | None = None
    if work.pieces is not None:
        if passes.how is not How.CACHED:
            work.talk(f"one pass for each length, not chunks: {passes.why}")
        if passes.how is How.PER_LENGTH:
            meter.total += len(work.pieces) * sum(work.stops[:-1])
        rows = []
        for piece in work.pieces:
            row, passes = text_losses(runner, piece, work.stops, passes, meter, work.talk)
            rows.append(row)
        losses = torch.stack(rows)
    return Found(losses, passes, _answers(runner, passes, work, meter))


def _answers(runner: Runner, passes: Passes, work: Work, meter: Meter) -> dict[tuple[int, float], int]:
    """Correct answers by length and depth; documents that fit into a chunk together run together."""
    correct: dict[tuple[int, float], int] = {}
    plan = work.passkey
    for length in work.key_lengths if plan else ():
        for depth in plan.depths if plan else ():
            asked = documents(work.words_of, work.filler, length, depth, plan.trials, plan.seed) if plan else ()
            together = max(1, passes.chunk_tokens // length)
            found = 0
            for start in range(0, len(asked), together):
                batch = asked[start : start + together]
                first = length - max(document.answer_tokens for document in batch) - 1
                ids = torch.stack([document.ids for document in batch])
                choices, passes = first_choices(runner, ids, first, passes, meter, work.talk)
                found += sum(right(document, row) for document, row in zip(batch, choices, strict=True))
            correct[length, depth] = found
    return correct


def _ceiling(model: Any) -> tuple[int | None, str]:
    """How many tokens a class can read, and why no more."""
    positions = positions_of(model.config.to_dict())
    ceilings = [position.ceiling for position in positions if position.ceiling is not None]
    if ceilings:
        return min(ceilings), f"has no rotary position embedding ({said(positions)})"
    return table_tokens(model), "has a table of so many positions"


def _check_can(runner: Runner, path: Path, work: Work) -> None:
    """Raises for a class without a head or with too few positions, and a vocabulary that lacks the text's tokens."""
    kind = type(runner.model).__name__
    if runner.model.get_output_embeddings() is None:
        raise UnsupportedError(f"{kind} has no head that predicts tokens, so it has no losses")
    rows, why = _ceiling(runner.model)
    if rows is not None and work.longest > rows:
        raise UnsupportedError(
            f"{path} cannot be read beyond {rows} tokens: {kind} {why}, and {work.longest} were asked for; take "
            f"--lengths up to {rows}",
            length=work.longest,
            positions=rows,
        )
    if work.pieces is not None:
        check_words(runner, path, work.pieces)


def check_words(runner: Runner, path: Path, ids: Tensor) -> None:
    """Raises `UsageError` for token ids that a model has no row for."""
    words, highest = runner.model.get_input_embeddings().weight.shape[0], int(ids.max())
    if highest >= words:
        raise UsageError(
            f"the text has the token {highest}, and {path} knows {words}: its tokenizer is that of another model",
            token=highest,
            vocabulary=words,
        )


def load(
    path: Path, context: Context, device: Device, dtype: DType | None, *, max_memory: MaxMemory | None = None,
    tokens: int = CHUNK_TOKENS, talk: Talk = silent,
) -> Runner:  # fmt: skip
    """The model, with the fastest attention of its class; but torch's fused one drops a soft cap silently."""
    attention = "eager" if context.soft_cap else None
    return load_right(path, pick_device(device), dtype, attention, max_memory=max_memory, tokens=tokens, talk=talk)
