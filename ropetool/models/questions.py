"""Count the questions of recall documents that a model answers: every digit of a value is its first choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ropetool.models.load import Runner
from ropetool.models.losses import Meter, first_choices
from ropetool.models.recall import RecallDocument
from ropetool.models.text import tokenizer_of
from ropetool.models.trial import Passes, choose

Encoded = tuple[Tensor, tuple[tuple[int, int], ...]]


def answered(
    runner: Runner, path: Path, documents: Sequence[RecallDocument], together: int, count: Callable[[int], None]
) -> tuple[int, int]:
    """Questions asked and answered; so many documents at a time run ``together`` where their tokens are as many."""
    encoded = [_encode(path, document) for document in documents]
    passes = choose(runner, encoded[0][0])
    asked = correct = 0
    for start in range(0, len(encoded), together):
        batch = encoded[start : start + together]
        for (ids_T, spans), choices_T in zip(batch, _choices(runner, [ids for ids, _ in batch], passes), strict=True):
            asked += len(spans)
            correct += sum(bool((choices_T[a - 1 : b - 1] == ids_T[a:b]).all()) for a, b in spans)
        count(start + len(batch))
    return asked, correct


def _choices(runner: Runner, ids: Sequence[Tensor], passes: Passes) -> list[Tensor]:
    alike = len({len(row) for row in ids}) == 1
    batches = [torch.stack(list(ids))] if alike else [row[None] for row in ids]
    meter = Meter(lambda done, total: None)
    return [row for ids_BT in batches for row in first_choices(runner, ids_BT, 0, passes, meter, lambda said: None)[0]]


def _encode(path: Path, document: RecallDocument) -> Encoded:
    """Token ids, and the token span of each answer's characters."""
    encoding = tokenizer_of(path)(document.text, return_offsets_mapping=True, verbose=False)
    spans = []
    for first, last in document.answers:
        tokens = [i for i, (start, stop) in enumerate(encoding["offset_mapping"]) if start < last and stop > first]
        spans.append((tokens[0], tokens[-1] + 1))
    return torch.tensor(encoding["input_ids"], dtype=torch.long), tuple(spans)
