"""One loaded model that reads text and answers passkeys under any rotation: what a search measures with.

Shape suffixes: W windows, T tokens.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from ropetool.checkpoint.config import MARKER
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.checkpoint.study import Measured, Study
from ropetool.errors import CheckpointError, UnsupportedError, UsageError
from ropetool.families.context import context_of
from ropetool.families.reading import Reading
from ropetool.models.limits import table_tokens
from ropetool.models.load import Runner, pick_device
from ropetool.models.losses import Meter, first_choices, text_losses
from ropetool.models.measure import check_words, load
from ropetool.models.options import Device, DType, MaxMemory
from ropetool.models.passkey import TASK_FILE, Document, documents, right
from ropetool.models.stages import Clock
from ropetool.models.stream import Way
from ropetool.models.swap import Swappable
from ropetool.models.text import TOKENIZER_FILES, encode
from ropetool.models.trial import How, Passes, choose

Talk = Callable[[str], None]

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
TOGETHER_TOKENS = 16384
# Numbers of so many bytes that a layer holds for every token of one pass, in hidden sizes: an estimate from above.
HELD_SIZES = 24
DIGEST = 24
# A text is cut within such a part of it from its middle.
NEAR_MIDDLE = 20
# Of a shard's bytes, what tells it from another.
PIECE, PIECES = 1 << 16, 64


@dataclass(frozen=True)
class Turned:
    """A config that a model is to turn by, and its reading."""

    config: Mapping[str, Any]
    reading: Reading


@dataclass(frozen=True)
class Part:
    """A part of the text, as token ids [W, T] of the new length, and the documents that are asked about with it."""

    name: str
    windows: Tensor
    documents: tuple[Document, ...] = ()


class Bench:
    """Measures; a measurement that the study holds is not made again."""

    def __init__(
        self, path: Path, config: Mapping[str, Any], study: Study, clock: Clock, *, block: int, device: Device,
        dtype: DType | None, max_memory: MaxMemory | None, longest: int, talk: Talk,
    ) -> None:  # fmt: skip
        """Load the model at ``path``, whose config is given; ``block`` tokens make one number of a reading."""
        self.block, self.talk, self.clock = block, talk, clock
        self.device, self._wanted_device = pick_device(device), device
        self.dtype = dtype
        self._path, self._config, self._study, self._longest = path, config, study, longest
        self._max_memory = max_memory
        self._loaded: tuple[Swappable, Passes] | None = None

    def _load(self, windows: Tensor) -> tuple[Swappable, Passes]:
        if self._loaded is None:
            context = context_of(self._config)
            limits: dict[str, Any] = {"max_memory": self._max_memory, "tokens": self._longest, "talk": self.talk}
            runner = load(self._path, context, self._wanted_device, self.dtype, **limits)
            _check_reach(runner, self._longest)
            check_words(runner, self._path, windows)
            found = choose(runner, windows[0])
            self._loaded = Swappable(runner, self._path, self._config), _one_pass(runner, found, self._longest)
        return self._loaded

    def losses(self, turned: Turned, part: Part, length: int, windows: int) -> tuple[Measured, bool]:
        """Mean losses of blocks of tokens, windows cut to ``length``; and whether the study had them."""
        key = self._key(turned, "losses", part.name, length, windows)
        blocks = -(-(length - 1) // self.block)
        found = self._known(key, windows, blocks, 0)
        if found is not None:
            self.clock.saw(length, found.seconds / windows)
            return found, True
        started = time.monotonic()
        swappable, passes = self._turn(turned, part, length)
        rows: list[tuple[float, ...]] = []
        for ids_T in part.windows[:windows, :length]:
            losses_T, passes = text_losses(swappable.runner, ids_T, (length,), passes, _unheard(), self.talk)
            rows.append(tuple(float(block.mean()) for block in torch.split(losses_T, self.block)))
            if not all(map(math.isfinite, rows[-1])):
                name = self.dtype.value if self.dtype else "the stored dtype"
                raise UnsupportedError(f"its loss at {length} tokens is no number in {name}")
        seconds = time.monotonic() - started
        self.clock.saw(length, seconds / windows)
        return self._keep(key, Measured(tuple(rows), (), seconds)), False

    def answers(self, turned: Turned, part: Part, count: int) -> Measured:
        """Which of the first ``count`` documents of a part are answered: 1 or 0 for each."""
        asked = part.documents[:count]
        length = len(asked[0].ids)
        key = self._key(turned, "passkeys", part.name, length, count)
        found = self._known(key, 0, 0, count)
        if found is not None:
            return found
        started = time.monotonic()
        swappable, passes = self._turn(turned, part, length)
        given: list[int] = []
        together = max(1, TOGETHER_TOKENS // length)
        for start in range(0, count, together):
            batch = asked[start : start + together]
            first = length - max(document.answer_tokens for document in batch) - 1
            ids_BT = torch.stack([document.ids for document in batch])
            choices, passes = first_choices(swappable.runner, ids_BT, first, passes, _unheard(), self.talk)
            given += [int(right(document, row)) for document, row in zip(batch, choices, strict=True)]
        return self._keep(key, Measured((), tuple(given), time.monotonic() - started))

    def warm_up(self, turned: Turned, part: Part, lengths: Sequence[int]) -> None:
        """Read a little, so that the clock knows what a reading costs. Loads the model."""
        swappable, passes = self._turn(turned, part, max(lengths))
        for length in (lengths[0], *lengths):  # what is first is slow
            started = time.monotonic()
            text_losses(swappable.runner, part.windows[0, :length], (length,), passes, _unheard(), self.talk)
            self.clock.saw(length, time.monotonic() - started)

    def _turn(self, turned: Turned, part: Part, length: int) -> tuple[Swappable, Passes]:
        swappable, passes = self._load(part.windows)
        swappable.to(turned.config, turned.reading, length)
        follows = context_of(turned.config).by_length
        # As a prompt of so many tokens is read: all of it at once, by the frequencies of its length.
        return swappable, Passes(How.PER_LENGTH if follows else passes.how, passes.why, passes.way, passes.chunk_tokens)

    def _key(self, turned: Turned, *what: object) -> str:
        config = {key: value for key, value in turned.config.items() if key != MARKER}
        return f"{' '.join(map(str, what))} {_digest(config)}"

    def _known(self, key: str, windows: int, blocks: int, answers: int) -> Measured | None:
        return self._study.get(key, windows, blocks, answers)

    def _keep(self, key: str, measured: Measured) -> Measured:
        self._study.put(key, measured)
        return measured


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:DIGEST]


def identity_of(path: Path) -> dict[str, str]:
    """What tells one checkpoint from another: config, tokenizer and task by all of their bytes, weights by samples.

    Of each shard that is its size, its header, and pieces spread over it: reading all of a large model would cost as
    much as loading it.
    """
    checkpoint = open_checkpoint(path)
    config = {key: value for key, value in checkpoint.config.items() if key != MARKER}
    weights, beside = hashlib.sha256(), hashlib.sha256()
    for shard in sorted(checkpoint.shards, key=lambda shard: shard.path.name):
        weights.update(f"{shard.path.name} {shard.size_bytes}".encode())
        with shard.data.open("rb") as file:
            for at in (
                0,
                *(shard.size_bytes * piece // PIECES for piece in range(1, PIECES)),
                shard.size_bytes - PIECE,
            ):
                file.seek(max(at, 0))
                weights.update(file.read(PIECE))
    for name in (*TOKENIZER_FILES, "tokenizer_config.json", "added_tokens.json", "merges.txt", TASK_FILE):
        file_path = checkpoint.directory / name
        if file_path.is_file():
            beside.update(name.encode() + file_path.read_bytes())
    return {"config": _digest(config), "weights": weights.hexdigest()[:DIGEST], "words": beside.hexdigest()[:DIGEST]}


def _unheard() -> Meter:
    return Meter(lambda done, total: None)


def _one_pass(runner: Runner, found: Passes, longest: int) -> Passes:
    """All tokens at once where there is memory for it, which the fused kernels read fastest; else as was found."""
    if found.way is not Way.CACHED:
        return Passes(How.WHOLE, found.why, found.way)
    text = runner.model.config.get_text_config()
    width = max(int(getattr(text, name, 0) or 0) for name in ("hidden_size", "intermediate_size"))
    wanted = longest * width * HELD_SIZES
    cuda = runner.device.type == "cuda"
    free = torch.cuda.mem_get_info(runner.device)[0] if cuda else psutil.virtual_memory().available
    return Passes(How.WHOLE, "in one pass", Way.WHOLE) if wanted < free else found


def _check_reach(runner: Runner, longest: int) -> None:
    """Raises `UsageError` for a class without a head, or with a table of fewer positions."""
    rows = table_tokens(runner.model)
    if runner.model.get_output_embeddings() is None or (rows is not None and rows < longest):
        said = f"has a table of {rows} positions" if rows else "has no head that predicts tokens"
        raise UsageError(f"{type(runner.model).__name__} {said}, so losses at {longest} tokens cannot be measured")


def parts(path: Path, text: str, length: int, asked: int, seed: int, keys: bool) -> tuple[Part, Part]:
    """The choosing and the held-out part: the first and the second half of the text, cut at a line or a word.

    Passkeys of both are told in words of the choosing part alone. Raises `UsageError` for a text that is too short.
    """
    cut = _middle(text)
    halves = [text[:cut], text[cut:]]
    ids = [encode(path, half) for half in halves]
    if min(map(len, ids)) < length:
        raise UsageError(
            f"the halves of the text have {len(ids[0])} and {len(ids[1])} tokens, and a search needs twice the new "
            f"length, {2 * length}: one half to choose by, the other to report by; give a longer --text",
            tokens=sum(map(len, ids)),
            wanted=2 * length,
        )
    windows = [half[: len(half) // length * length].reshape(-1, length) for half in ids]
    told = (_documents(path, halves[0], length, asked, seed + shift) if keys else () for shift in (0, 1))
    return Part("choosing", windows[0], next(told)), Part("held-out", windows[1], next(told))


def _middle(text: str) -> int:
    """Where a text is cut in two: behind the line, sentence or word that ends nearest behind, or before, its middle."""
    middle, near = len(text) // 2, len(text) // NEAR_MIDDLE
    for mark in ("\n", ". ", " "):
        found = text.find(mark, middle, middle + near), text.rfind(mark, middle - near, middle)
        at = next((place for place in found if place >= 0), None)
        if at is not None:
            return at + len(mark)
    return middle


def _documents(path: Path, filler: str, length: int, count: int, seed: int) -> tuple[Document, ...]:
    """Documents of all depths in turn; none where needle and question alone are longer."""
    each = -(-count // len(DEPTHS))
    try:
        of_depth = [documents(path, filler, length, depth, each, seed) for depth in DEPTHS]
    except (UsageError, CheckpointError):
        return ()
    return tuple(document for same in zip(*of_depth, strict=True) for document in same)[:count]
