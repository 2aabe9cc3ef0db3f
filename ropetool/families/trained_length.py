"""The length that a checkpoint was trained with: everything in its files that declares one, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.checkpoint.config import count
from ropetool.checkpoint.shards import read_json_file
from ropetool.families.context import context_of
from ropetool.families.lengths import NO_LIMIT_TOKENS, OTHER_LENGTH_KEYS, TOKENIZER_CONFIG
from ropetool.families.reading import Reading, Warn
from ropetool.families.recipes import ORIGINAL

MODEL_MAX_LENGTH = "model_max_length"


@dataclass(frozen=True)
class Declared:
    """A length in tokens, and where it was read."""

    where: str
    tokens: int


@dataclass(frozen=True)
class RiseBin:
    """Positions [start, stop) of a long text, and what its tokens cost there more than with a short context.

    ``above_short`` and its ``error`` are in nats a token.
    """

    start: int
    stop: int
    loss: float
    above_short: float
    error: float


@dataclass(frozen=True)
class TrainedLength:
    """What is declared, and where the loss turned up; in tokens, None where nothing says so.

    ``trained`` is the trained length and ``reach`` the one to serve, as all declarations together mean them.
    ``measured`` is the position from which on the loss is clearly higher, ``read_tokens`` how far was read; ``detail``
    says what was found, or why nothing was measured.
    """

    declared: tuple[Declared, ...]
    trained: int | None
    reach: int | None
    measured: int | None = None
    read_tokens: int | None = None
    by_position: tuple[RiseBin, ...] = ()
    detail: str = "not measured: no text was read"
    warnings: tuple[Warn, ...] = ()


def declared_length(path: Path, config: Mapping[str, Any], reading: Reading) -> TrainedLength:
    """The declared lengths alone; nothing is run."""
    context = context_of(config) if not reading.family.probed else None
    trained = context.trained if context else reading.rotations[0].original_length or reading.length
    reach = context.reach if context else reading.reach
    declared = tuple(_declared(path, reading))
    return TrainedLength(declared, trained, reach, warnings=tuple(_warned(declared, trained, reach)))


def _declared(path: Path, reading: Reading) -> Iterator[Declared]:
    length = reading.family.keys.length
    for key in dict.fromkeys((length, *OTHER_LENGTH_KEYS)):
        tokens = count(reading.config, key)
        if tokens is not None:
            yield Declared(f"config.json: {key}", tokens)
    if length not in reading.config and reading.length:
        yield Declared(f"class default: {length}", reading.length)
    for rotation in reading.rotations:
        original = rotation.block.values.get(ORIGINAL)
        if isinstance(original, int):
            yield Declared(f"config.json: {rotation.block.sources.get(ORIGINAL, ORIGINAL)}", original)
    for key in ("original_length", "length"):
        tokens = count(reading.extension, key)
        if tokens is not None:
            yield Declared(f"config.json: ropetool.extension.{key}", tokens)
    tokenizer = (path if path.is_dir() else path.parent) / TOKENIZER_CONFIG
    limit = read_json_file(tokenizer).get(MODEL_MAX_LENGTH) if tokenizer.is_file() else None
    if isinstance(limit, int) and not isinstance(limit, bool) and 0 < limit < NO_LIMIT_TOKENS:
        yield Declared(f"{TOKENIZER_CONFIG}: {MODEL_MAX_LENGTH}", limit)


def _warned(declared: tuple[Declared, ...], trained: int | None, reach: int | None) -> Iterator[Warn]:
    """A tokenizer's limit that is no length of the config."""
    for found in declared:
        if found.where.startswith(TOKENIZER_CONFIG) and trained and found.tokens not in (trained, reach):
            said = (
                f"{found.where} is {found.tokens}, and config.json means {trained} tokens"
                + (f", extended to {reach}" if reach != trained else "")
                + ": the tokenizer warns, or cuts, at another length than the model's"
            )
            yield Warn("tokenizer-length", said)
