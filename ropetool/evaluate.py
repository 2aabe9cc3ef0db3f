"""Evaluate: what an extension gives, as next-token loss by position and as recall of stated values by length."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from ropetool.checkpoint.folder import read_config
from ropetool.errors import UsageError
from ropetool.families.reading import read_model
from ropetool.models.options import Device, DType
from ropetool.models.recall import RecallTask

if TYPE_CHECKING:
    from torch import Tensor

    from ropetool.models.run import Runner

CHUNK_TOKENS = 1024
RECALL_BATCH_TOKENS = 16384

Talk = Callable[[str], None]
Progress = Callable[[int, int], None]


def _no_progress(done: int, total: int) -> None:
    """Swallow progress."""


@dataclass(frozen=True)
class Bin:
    """Mean loss in nats per token over the positions [start, stop), weighted by token; perplexity is its exponent."""

    start: int
    stop: int
    loss: float
    perplexity: float
    tokens: int
    against_loss: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """Loss by position; ``tokens`` is the length of the text as evaluated."""

    checkpoint: str
    against: str | None
    tokens: int
    dtype: str
    lengths: tuple[Bin, ...]


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
    """Bin edges in tokens when none are given: the trained length, then doublings up to the configured length."""
    reading = read_model(read_config(path))
    trained = reading.rotations[0].original_length or reading.length or 2048
    edges = [trained]
    while edges[-1] * 2 <= (reading.length or trained):
        edges.append(edges[-1] * 2)
    return tuple(edges)


def evaluate(
    path: Path,
    text: str,
    *,
    edges: Sequence[int] | None = None,
    windows: int = 1,
    against: Path | None = None,
    device: Device = Device.AUTO,
    dtype: DType | None = None,
    progress: Progress = _no_progress,
) -> Evaluation:
    """Mean next-token loss on ``text`` by position, for ``path`` and, beside it, ``against``.

    ``edges`` are the ends of the position bins in tokens, rising; by default those of `default_edges` that the text
    reaches. Up to ``windows`` consecutive pieces of the longest length are read, each from position 0. ``dtype`` None
    keeps the stored one. Raises `UsageError` when the text is shorter than the longest length.
    """
    from ropetool.models.text import encode

    ids = encode(path, text)
    stops = tuple(edges) if edges else tuple(e for e in default_edges(path) if e <= len(ids)) or (max(len(ids), 2),)
    if list(stops) != sorted(set(stops)) or stops[0] < 2:
        raise UsageError(f"the lengths {', '.join(map(str, stops))} must rise, from at least 2 tokens")
    if len(ids) < stops[-1]:
        raise UsageError(
            f"the text has {len(ids)} tokens, the longest length is {stops[-1]}; give a longer text by --text",
            tokens=len(ids),
            length=stops[-1],
        )
    pieces = ids[: len(ids) // stops[-1] * stops[-1]].reshape(-1, stops[-1])[:windows]
    losses = position_losses(path, pieces, device, dtype, progress)
    others = None if against is None else position_losses(against, pieces, device, dtype, progress)
    bins = tuple(_bin(start, stop, losses, others) for start, stop in pairwise((0, *stops)))
    stored = dtype.value if dtype else "as stored"
    return Evaluation(str(path), str(against) if against else None, pieces.numel(), stored, bins)


def _bin(start: int, stop: int, losses: Tensor, others: Tensor | None) -> Bin:
    """Position t predicts token t + 1, so the last position of a piece has no loss."""
    window = losses[:, start:stop]
    loss = float(window.mean())
    against = None if others is None else float(others[:, start:stop].mean())
    return Bin(start, stop, loss, math.exp(min(loss, 700.0)), window.numel(), against)


def _attention(path: Path) -> str | None:
    """The fastest attention that the class supports; but torch's fused one has no soft cap, and drops it silently."""
    return "eager" if read_model(read_config(path)).config.get("attn_logit_softcapping") else None


def position_losses(
    path: Path, pieces: Tensor, device: Device, dtype: DType | None, progress: Progress = _no_progress
) -> Tensor:
    """The loss in nats of every next token of ``pieces`` [W, T], as [W, T - 1] in float64."""
    import torch

    from ropetool.models.run import load_right, pick_device, token_losses

    runner = load_right(path, pick_device(device), dtype, attention=_attention(path))
    rows = []
    for index, piece in enumerate(pieces):

        def within(done: int, total: int, before: int = index * len(piece)) -> None:
            progress(before + done, pieces.numel())

        rows.append(token_losses(runner, piece, CHUNK_TOKENS, within))
    return torch.stack(rows)


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
    """Recall at each length: seeded documents of about that many characters, read with the checkpoint's tokenizer."""
    from ropetool.models.run import load_right, pick_device

    runner = load_right(path, pick_device(device), None, attention=_attention(path))
    results = []
    for length in lengths:
        rng = random.Random(seed)
        texts = [task.document(rng, length - 1, filler) for _ in range(documents)]
        encoded = [_encode_with_answers(path, text.text, text.answers) for text in texts]
        correct = trials = 0
        for start in range(0, documents, max(1, RECALL_BATCH_TOKENS // length)):
            batch = encoded[start : start + max(1, RECALL_BATCH_TOKENS // length)]
            for ids, spans, choices in zip(*_split(batch), _first_choices(runner, batch), strict=True):
                trials += len(spans)
                correct += sum(bool((choices[a - 1 : b - 1] == ids[a:b]).all()) for a, b in spans)
            progress(start + len(batch), documents)
        results.append(Recall(length, trials, correct))
    return tuple(results)


Encoded = tuple["Tensor", tuple[tuple[int, int], ...]]


def _split(batch: Sequence[Encoded]) -> tuple[list[Tensor], list[tuple[tuple[int, int], ...]]]:
    return [ids for ids, _ in batch], [spans for _, spans in batch]


def _first_choices(runner: Runner, batch: Sequence[Encoded]) -> list[Tensor]:
    """The argmax at every position of every document; documents of one length run together."""
    import torch

    ids = [ids for ids, _ in batch]
    with torch.no_grad():
        if len({len(row) for row in ids}) == 1:
            together = runner.model(input_ids=torch.stack(ids).to(runner.device), use_cache=False).logits
            return list(together.argmax(-1).cpu())
        return [
            runner.model(input_ids=row[None].to(runner.device), use_cache=False).logits[0].argmax(-1).cpu()
            for row in ids
        ]


def _encode_with_answers(path: Path, text: str, answers: Sequence[tuple[int, int]]) -> Encoded:
    """Token ids, and the token span of each answer's characters."""
    import torch

    from ropetool.models.text import tokenizer_of

    encoding = tokenizer_of(path)(text, return_offsets_mapping=True, verbose=False)
    offsets = encoding["offset_mapping"]
    spans = []
    for first, last in answers:
        tokens = [i for i, (start, stop) in enumerate(offsets) if start < last and stop > first]
        spans.append((tokens[0], tokens[-1] + 1))
    return torch.tensor(encoding["input_ids"], dtype=torch.long), tuple(spans)
