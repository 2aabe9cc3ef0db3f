"""The passkey task: a number stated once in a long document, and asked for at its end.

The needle, the filler and the question are those of Mohtashami and Jaggi, "Landmark Attention: Random-Access Infinite
Context Length for Transformers" (arXiv:2305.16300), with keys of five digits, so that all are as long, and a depth that
is given instead of drawn. A checkpoint that brings a recall task of its own is asked in that one's words.

A document has exactly as many tokens as its length says, the answer included, which is its end: the filler between the
pieces is cut to the token. The answer is right when each of its tokens is the model's first choice, given those before
it; then greedy decoding says it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from ropetool.errors import UsageError
from ropetool.models.recall import RecallTask
from ropetool.models.spelling import Ids, opening, spell, word_starts

TASK_FILE = "recall.json"

_INTRODUCTION = (
    "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
    "about the important information there."
)
_FILLER = " The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_NEEDLE = "\nThe pass key is {key}. Remember it. {key} is the pass key."
# What the lines of a task of its own follow.
_ANY_WORD = "word "
_QUESTION = "\nWhat is the pass key? The pass key is"


@dataclass(frozen=True)
class Haystack:
    """What a checkpoint's documents are made of: special tokens, an introduction, and filler that repeats."""

    path: Path
    head: Ids
    filler: Ids
    starts: tuple[bool, ...]
    task: RecallTask | None


@dataclass(frozen=True)
class Document:
    """Token ids [T], whose last ``answer_tokens`` are the answer, and where the needle begins."""

    ids: Tensor
    answer_tokens: int
    needle: int


@lru_cache(maxsize=2)
def haystack(path: Path, running_text: str) -> Haystack:
    """What a checkpoint's documents are made of; ``running_text`` is the filler for a task of its own."""
    directory = path if path.is_dir() else path.parent
    task = RecallTask.load(directory / TASK_FILE) if (directory / TASK_FILE).is_file() else None
    introduction = () if task else spell(path, _INTRODUCTION)
    filler = spell(path, running_text) if task else spell(path, _FILLER, after=_INTRODUCTION)
    return Haystack(path, opening(path) + introduction, filler, tuple(word_starts(path, filler)), task)


def document(hay: Haystack, length: int, depth: float, rng: random.Random) -> Document:
    """One document of exactly ``length`` tokens, its needle after the share ``depth`` of the filler, at a word's start.

    Raises `UsageError` where the needle and the question alone are longer.
    """
    needle, others, question, answer = _own(hay, hay.task, rng) if hay.task else _classic(hay, rng)
    room = length - sum(map(len, (hay.head, needle, *others, question, answer)))
    if room < 0:
        raise UsageError(
            f"a passkey document of {length} tokens cannot be: its fixed parts take {length - room} in the tokens of "
            f"{hay.path.name}; take longer --lengths",
            length=length,
            least=length - room,
        )
    start = rng.choice([at for at, begins in enumerate(hay.starts) if begins] or [0])
    cuts = [(_cut(hay, start, room, round(depth * room)), needle)]
    cuts += [(_cut(hay, start, room, rng.randint(0, room)), other) for other in others]
    ids, used, at = list(hay.head), 0, 0
    for cut, piece in sorted(cuts, key=lambda entry: entry[0]):
        ids += _filler(hay, start + used, cut - used)
        used, at = cut, len(ids) if piece is needle else at
        ids += piece
    ids += _filler(hay, start + used, room - used) + list(question) + list(answer)
    return Document(torch.tensor(ids, dtype=torch.long), len(answer), at)


def documents(path: Path, running_text: str, length: int, depth: float, trials: int, seed: int) -> tuple[Document, ...]:
    """The documents of one cell; they depend on nothing but these arguments and the tokenizer."""
    hay, rng = haystack(path, running_text), random.Random(f"{seed} {length} {depth:.6f}")
    return tuple(document(hay, length, depth, rng) for _ in range(trials))


def _classic(hay: Haystack, rng: random.Random) -> tuple[Ids, list[Ids], Ids, Ids]:
    """The needle, nothing else to lay in, the question, and the answer."""
    key = str(rng.randrange(10_000, 100_000))
    needle = spell(hay.path, _NEEDLE.format(key=key), after=_FILLER)
    return needle, [], spell(hay.path, _QUESTION, after=_FILLER), spell(hay.path, f" {key}", after=_QUESTION)


def _own(hay: Haystack, task: RecallTask, rng: random.Random) -> tuple[Ids, list[Ids], Ids, Ids]:
    """The same in the words of the checkpoint's own task, with its other statements to lay in beside the needle."""
    keys = rng.sample(task.keys, task.facts)
    values = [str(rng.randrange(10 ** (task.digits - 1), 10**task.digits)) for _ in keys]
    needle, *others = (
        spell(hay.path, task.statement.replace("{key}", key).replace("{value}", value), after=_ANY_WORD)
        for key, value in zip(keys, values, strict=True)
    )
    question = task.question.replace("{key}", keys[0]).partition("{value}")[0]
    return needle, others, spell(hay.path, question, after=_ANY_WORD), spell(hay.path, values[0], after=question)


def _cut(hay: Haystack, start: int, room: int, wanted: int) -> int:
    """The last place at or before ``wanted`` where a word begins; ``wanted`` itself where none does, or at the end."""
    if wanted in (0, room):
        return wanted
    starts = (at for at in range(wanted, -1, -1) if hay.starts[(start + at) % len(hay.starts)])
    return next(starts, wanted)


def _filler(hay: Haystack, start: int, tokens: int) -> list[int]:
    count = len(hay.filler)
    return [hay.filler[(start + at) % count] for at in range(tokens)]


def right(document: Document, choices_T: Sequence[int] | Tensor) -> bool:
    """Whether the first choices at the end of a document, for its last tokens and one beyond, are the answer."""
    answer = document.ids[-document.answer_tokens :]
    return bool((torch.as_tensor(choices_T)[-document.answer_tokens - 1 : -1] == answer).all())
