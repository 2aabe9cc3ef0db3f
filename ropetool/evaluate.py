"""Evaluate: what an extension gives and costs, as next-token loss by position and as passkeys found by length."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ropetool.checkpoint.folder import read_config
from ropetool.errors import CheckpointError, UsageError
from ropetool.families.context import Context, context_of
from ropetool.families.reading import Warn
from ropetool.models.options import Device, DType, MaxMemory, PasskeyPlan
from ropetool.models.recall import RecallTask

if TYPE_CHECKING:
    from torch import Tensor

    from ropetool.models.measure import Found, Work
    from ropetool.models.trial import Passes

SHORT_TOKENS = 1024
RECALL_BATCH_TOKENS = 16384
# At most at once in a model: the best of 512 to 4096 for SmolLM2-135M and 8192 tokens on the CPU.
CHUNK_TOKENS = 1024
# Of the text, to see that two tokenizers are the same.
COMPARED_CHARACTERS = 20_000
FALLBACK_TOKENS = 2048

Talk = Callable[[str], None]
Progress = Callable[[int, int], None]


def _no_progress(done: int, total: int) -> None:
    """Swallow progress."""


def _no_talk(message: str) -> None:
    """Swallow talk."""


@dataclass(frozen=True)
class Bin:
    """Mean loss in nats per token over the positions [start, stop), weighted by token; perplexity is its exponent."""

    start: int
    stop: int
    loss: float
    perplexity: float
    tokens: int
    against_loss: float | None = None

    @property
    def difference(self) -> float | None:
        """The loss less the other model's: below 0 is a gain."""
        return None if self.against_loss is None else self.loss - self.against_loss


@dataclass(frozen=True)
class Summary:
    """Three stretches of positions: a short context, all that lies inside the trained length, all that lies beyond."""

    short: Bin
    inside: Bin
    beyond: Bin | None


@dataclass(frozen=True)
class Cell:
    """Passkeys at one length in tokens and one depth, a share of the document: how many of the trials were answered."""

    length: int
    depth: float
    trials: int
    correct: int
    against_correct: int | None = None


@dataclass(frozen=True)
class Evaluation:
    """Loss by position, and passkeys by length and depth where they were asked for.

    ``tokens`` are those of the text as evaluated, in ``windows`` pieces; ``trained_length`` and ``reach`` in tokens as
    config.json has them; ``passes`` how the text was read, and why so.
    """

    checkpoint: str
    against: str | None
    tokens: int
    windows: int
    device: str
    dtype: str
    trained_length: int | None
    reach: int | None
    lengths: tuple[Bin, ...]
    summary: Summary
    passes: Passes
    against_passes: Passes | None
    passkey: tuple[Cell, ...] = ()
    seed: int | None = None
    warnings: tuple[Warn, ...] = ()


@dataclass(frozen=True)
class Recall:
    """How many questions were answered at one length: every digit of the value was the first choice."""

    length: int
    trials: int
    correct: int

    @property
    def share(self) -> float:
        """Correct answers per question."""
        return self.correct / self.trials


def default_edges(path: Path) -> tuple[int, ...]:
    """Bin edges in tokens when none are given: the trained length, then doublings up to what it was made to serve."""
    context = context_of(read_config(path))
    edges = [context.trained or FALLBACK_TOKENS]
    while edges[-1] * 2 <= (context.reach or edges[0]):
        edges.append(edges[-1] * 2)
    return tuple(edges)


def evaluate(
    path: Path,
    text: str,
    *,
    edges: Sequence[int] | None = None,
    windows: int = 1,
    against: Path | None = None,
    passkey: PasskeyPlan | None = None,
    device: Device = Device.AUTO,
    dtype: DType | None = None,
    max_memory: MaxMemory | None = None,
    progress: Progress = _no_progress,
    talk: Talk = _no_talk,
) -> Evaluation:
    """Mean next-token loss on ``text`` by position, and passkeys, of ``path`` and, beside it, ``against``.

    ``edges`` are the ends of the position bins in tokens, rising; by default those of `default_edges` that the text
    reaches. A bin for short context is put before them where they have none. Up to ``windows`` consecutive pieces of
    the longest length are read, each from position 0. ``dtype`` None keeps the stored one. One model is in memory at a
    time, within ``max_memory`` in bytes (see `models.placement`). ``progress`` gets tokens (done, total) over all
    passes of both.

    Raises `UsageError` when the text is shorter than the longest length, or the two read it as different tokens, and
    `UnsupportedError` for a class that cannot be read so far, or at all.
    """
    from ropetool.models.emulated import emulated
    from ropetool.models.load import pick_device
    from ropetool.models.losses import Meter
    from ropetool.models.measure import Work, measure
    from ropetool.models.text import encode

    ids, context = encode(path, text), context_of(read_config(path))
    wanted = _wanted_edges(path, edges, len(ids))
    stops = _with_short(wanted, context)
    pieces = ids[: len(ids) // stops[-1] * stops[-1]].reshape(-1, stops[-1])[:windows]
    if against is not None:
        _check_same_tokens(path, against, text[:COMPARED_CHARACTERS])
    key_lengths, warnings = _key_lengths(path, text, wanted, passkey)
    warnings = (*_beyond(path, stops[-1], "beyond-reach"), *warnings)
    if against is not None:
        warnings = (*warnings, *_beyond(against, stops[-1], "against-beyond-reach"))
    for warning in warnings:
        talk(f"warning [{warning.code}] {warning.message}")
    slow = emulated(path, pick_device(device)) if dtype is None else None
    if slow is not None:
        talk(f"this processor only emulates {str(slow).removeprefix('torch.')}: --dtype float32 is many times as fast")
    work = Work(pieces, stops, passkey, key_lengths, text, path, device, dtype, talk, CHUNK_TOKENS, max_memory)
    meter = Meter(progress, work.tokens * (1 if against is None else 2))
    own = measure(path, context, work, meter)
    other = None if against is None else measure(against, context_of(read_config(against)), work, meter)
    return Evaluation(
        str(path), str(against) if against else None, pieces.numel(), len(pieces), _device_name(device),
        dtype.value if dtype else "as stored", context.trained, context.reach,
        tuple(_bin(start, stop, own, other) for start, stop in pairwise((0, *stops))),
        _summary(context.trained or stops[-1], stops[-1], own, other),
        own.passes, other.passes if other else None, _cells(work, own, other),
        passkey.seed if passkey else None, warnings,
    )  # fmt: skip


def measure_passkey(
    path: Path,
    lengths: Sequence[int],
    running_text: str,
    plan: PasskeyPlan | None = None,
    *,
    device: Device = Device.AUTO,
    dtype: DType | None = None,
    progress: Progress = _no_progress,
    talk: Talk = _no_talk,
) -> tuple[Cell, ...]:
    """Passkeys found at each length in tokens and each depth of ``plan`` (Mohtashami and Jaggi, arXiv:2305.16300).

    ``running_text`` is filler where the checkpoint brings a recall task of its own. Raises `UsageError` for a length
    that has no room for needle and question, `UnsupportedError` for a class that cannot be read so far.
    """
    from ropetool.models.losses import Meter
    from ropetool.models.measure import Work, measure

    plan = plan or PasskeyPlan()
    work = Work(None, (), plan, tuple(lengths), running_text, path, device, dtype, talk, CHUNK_TOKENS)
    return _cells(work, measure(path, context_of(read_config(path)), work, Meter(progress, work.tokens)), None)


def _wanted_edges(path: Path, edges: Sequence[int] | None, tokens: int) -> tuple[int, ...]:
    """The ends of the bins as asked for, or by default; raises `UsageError` where the text does not reach them."""
    wanted = tuple(edges) if edges else tuple(e for e in default_edges(path) if e <= tokens) or (max(tokens, 2),)
    if list(wanted) != sorted(set(wanted)) or wanted[0] < 2:
        raise UsageError(f"the lengths {', '.join(map(str, wanted))} must rise, from at least 2 tokens")
    if tokens < wanted[-1]:
        raise UsageError(
            f"the text has {tokens} tokens, the longest length is {wanted[-1]}; give a longer text by --text",
            tokens=tokens,
            length=wanted[-1],
        )
    return wanted


def _with_short(wanted: tuple[int, ...], context: Context) -> tuple[int, ...]:
    """With a bin for short context in front, where the first one goes beyond what is short."""
    short = min(SHORT_TOKENS, context.trained or SHORT_TOKENS)
    first = (short,) if 2 <= short < wanted[0] else ()
    # A method that follows the length is read at each length: short context and the trained length are read there too.
    trained = (context.trained,) if context.by_length and context.trained and context.trained < wanted[-1] else ()
    return tuple(sorted({*first, *trained, *wanted}))


def _beyond(path: Path, longest: int, code: str) -> tuple[Warn, ...]:
    reach = context_of(read_config(path)).reach
    if reach is None or longest <= reach:
        return ()
    said = (
        f"{path.name} is read up to {longest} tokens, and its config.json is made for {reach}: what is measured beyond "
        f"that is a model outside what it promises"
    )
    return (Warn(code, said),)


def _key_lengths(
    path: Path, text: str, wanted: tuple[int, ...], plan: PasskeyPlan | None
) -> tuple[tuple[int, ...], tuple[Warn, ...]]:
    """The lengths that have room for a passkey; raises `UsageError` where none has."""
    from ropetool.models.passkey import document, haystack

    if plan is None:
        return (), ()
    kept: list[int] = []
    left: list[int] = []
    refusal: UsageError | None = None
    for length in wanted:
        try:
            document(haystack(path, text), length, 0.0, random.Random(plan.seed))
            kept.append(length)
        except UsageError as error:
            left.append(length)
            refusal = error
    if refusal is not None and not kept:
        raise refusal
    said = f"no passkey at {', '.join(map(str, left))} tokens: {refusal.message}" if refusal else ""
    return tuple(kept), (Warn("passkey-too-short", said),) if said else ()


def _check_same_tokens(path: Path, against: Path, text: str) -> None:
    """Losses per token compare only where tokens are the same; a checkpoint without a tokenizer takes the other's."""
    from ropetool.models.text import encode

    try:
        other = encode(against, text).tolist()
    except CheckpointError:
        return
    own = encode(path, text).tolist()
    if own != other:
        raise UsageError(
            f"{path} reads the text as other tokens than {against} ({len(own)} and {len(other)} for the same "
            f"{len(text)} characters), so their losses per token do not compare; evaluate each on its own",
            tokens=[len(own), len(other)],
        )


def _device_name(device: Device) -> str:
    from ropetool.models.load import pick_device

    return str(pick_device(device))


def _stretch(start: int, stop: int, losses: Tensor) -> tuple[float, int]:
    """Mean and count. Position t predicts token t + 1, so the last position of a piece has no loss."""
    window = losses[:, start:stop]
    return float(window.mean()), window.numel()


def _bin(start: int, stop: int, own: Found, other: Found | None) -> Bin:
    if own.losses is None:
        raise UsageError("no text was read, so there are no losses")
    loss, tokens = _stretch(start, stop, own.losses)
    against = _stretch(start, stop, other.losses)[0] if other is not None and other.losses is not None else None
    return Bin(start, stop, loss, math.exp(min(loss, 700.0)), tokens, against)


def _summary(trained: int, longest: int, own: Found, other: Found | None) -> Summary:
    """What is short is at most half the trained length, so that it differs from all that is inside."""
    short = max(1, min(SHORT_TOKENS, trained // 2, longest - 1))
    beyond = _bin(trained, longest, own, other) if trained < longest - 1 else None
    return Summary(_bin(0, short, own, other), _bin(0, min(trained, longest), own, other), beyond)


def _cells(work: Work, own: Found, other: Found | None) -> tuple[Cell, ...]:
    trials = work.passkey.trials if work.passkey else 0
    return tuple(
        Cell(length, depth, trials, correct, other.correct[length, depth] if other else None)
        for (length, depth), correct in own.correct.items()
    )


def position_losses(
    path: Path,
    pieces: Tensor,
    device: Device = Device.AUTO,
    dtype: DType | None = None,
    progress: Progress = _no_progress,
    talk: Talk = _no_talk,
) -> Tensor:
    """The loss in nats of every next token of ``pieces`` [W, T], token ids, as [W, T - 1] in float64 on the CPU.

    Raises `UnsupportedError` for a class that cannot be read so far, or at all.
    """
    from ropetool.models.losses import Meter
    from ropetool.models.measure import Work, measure

    context, stops = context_of(read_config(path)), (pieces.shape[1],)
    work = Work(pieces, stops, None, (), "", path, device, dtype, talk, CHUNK_TOKENS)
    losses = measure(path, context, work, Meter(progress, work.tokens)).losses
    if losses is None:
        raise UsageError("no text was read, so there are no losses")
    return losses


def measure_recall(
    path: Path,
    task: RecallTask,
    filler: str,
    lengths: Sequence[int],
    *,
    documents: int = 64,
    seed: int = 7,
    device: Device = Device.AUTO,
    progress: Progress = _no_progress,
) -> tuple[Recall, ...]:
    """Recall at each length: seeded documents of about that many characters, read with the checkpoint's tokenizer.

    ``progress`` gets documents (done, total) over all lengths.
    """
    from ropetool.models.measure import load
    from ropetool.models.questions import answered

    runner = load(path, context_of(read_config(path)), device, None)
    results = []
    for index, length in enumerate(lengths):
        rng = random.Random(seed)
        asked = [task.document(rng, length - 1, filler) for _ in range(documents)]

        def count(done: int, before: int = index * documents) -> None:
            progress(before + done, len(lengths) * documents)

        results.append(Recall(length, *answered(runner, path, asked, max(1, RECALL_BATCH_TOKENS // length), count)))
    return tuple(results)
