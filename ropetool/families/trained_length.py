"""The length that a checkpoint was trained with: everything in its files that declares one, and what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ropetool.checkpoint.config import count
from ropetool.checkpoint.strangers import read_json_file
from ropetool.families.context import trained_of
from ropetool.families.lengths import NO_LIMIT_TOKENS, OTHER_LENGTH_KEYS, TOKENIZER_CONFIG
from ropetool.families.reading import Reading, Warn
from ropetool.families.recipes import ORIGINAL

MODEL_MAX_LENGTH = "model_max_length"
# The loss turns up at the trained length or beyond, by quarters of a doubling (`models.loss_rise`): between these
# shares of what is expected, a measurement agrees.
AGREES = (0.8, 2.0)


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

    @property
    def expected(self) -> int | None:
        """How far the checkpoint should read: what it serves, else what it was trained with."""
        return self.reach or self.trained


def declared_length(path: Path, reading: Reading) -> TrainedLength:
    """The declared lengths alone; nothing is run."""
    declared = tuple(_declared(path, reading))
    if not reading.rotations:
        return TrainedLength(declared, reading.length, reading.length)
    return TrainedLength(declared, trained_of(reading), reading.reach)


def with_measured(lengths: TrainedLength, turned: int | None, read: int, bins: tuple[RiseBin, ...]) -> TrainedLength:
    """The lengths with what a text showed: where the loss ``turned`` up, of so many tokens ``read`` at once."""
    means = "was extended to" if lengths.reach != lengths.trained else "declares"
    said = (
        f"the loss does not turn up within the {read} tokens read"
        if turned is None
        else f"the loss turns up at about {turned} tokens, of {read} read"
    )
    if lengths.expected:
        said += f"; config.json {means} {lengths.expected}"
    return replace(lengths, measured=turned, read_tokens=read, by_position=bins, detail=said)


def length_warnings(lengths: TrainedLength) -> tuple[Warn, ...]:
    """Where the lengths disagree: a tokenizer's limit that is none of the config's, and what was measured."""
    return (*_of_tokenizer(lengths), *_of_measured(lengths))


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


def _of_tokenizer(lengths: TrainedLength) -> Iterator[Warn]:
    trained, reach = lengths.trained, lengths.reach
    for found in lengths.declared:
        if found.where.startswith(TOKENIZER_CONFIG) and trained and found.tokens not in (trained, reach):
            means = f"{trained} tokens" if trained == reach else f"{trained} tokens, extended to {reach}"
            said = (
                f"{found.where} is {found.tokens}, and config.json means {means}: the tokenizer warns, or cuts, at "
                f"another length than the model's"
            )
            yield Warn("tokenizer-length", said)


def _of_measured(lengths: TrainedLength) -> Iterator[Warn]:
    turned, expected = lengths.measured, lengths.expected
    if turned is None or not expected or AGREES[0] * expected <= turned < AGREES[1] * expected:
        return
    means = (
        "it cannot read as far as that"
        if turned < expected
        else "it reads further than that: trained with more, or with another base"
    )
    yield Warn("trained-length", f"{lengths.detail}: {means}")
