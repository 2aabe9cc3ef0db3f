"""What ``verify`` and ``evaluate`` kept in a file by ``--out``, read back: checked, as any file that a person names.

Numbers that JSON cannot say were written as null, and are None here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ropetool.checkpoint.strangers import Limits, read_named_json
from ropetool.errors import ConfigError

# A grid of passkeys, and a sound result of the longest model, have a few thousand values.
OF_RESULT = Limits(4 << 20, 100_000)
MOST_ENTRIES = 2_000
LARGEST = 1e300
T = TypeVar("T")


@dataclass(frozen=True)
class Stretch:
    """The largest |logit difference| (of a server: the mean |difference| in nats) over the positions [start, stop)."""

    start: int
    stop: int
    difference: float | None


@dataclass(frozen=True)
class KeptCheck:
    """One check of a verification; ``where`` is the culprit of one that failed."""

    name: str
    passed: bool
    detail: str
    where: str | None


@dataclass(frozen=True)
class KeptVerification:
    """A verification, as far as it is shown; ``tokens`` is 0 where nothing ran.

    ``checkpoints`` are the two that were held against each other, one where the other was a server, and none where the
    file does not name them.
    """

    file: str
    checkpoints: tuple[str, ...]
    passed: bool
    relation: str
    device: str
    dtype: str
    tokens: int
    tolerance: float | None
    control: float | None
    checks: tuple[KeptCheck, ...]
    by_position: tuple[Stretch, ...]


@dataclass(frozen=True)
class LossBin:
    """Mean next-token loss in nats over the positions [start, stop), of the checkpoint and of the one beside it."""

    start: int
    stop: int
    loss: float | None
    tokens: int
    against_loss: float | None


@dataclass(frozen=True)
class KeyCell:
    """Passkeys at one length in tokens and one depth, a share: how many of the trials each of the two answered."""

    length: int
    depth: float
    trials: int
    correct: int
    against_correct: int | None


@dataclass(frozen=True)
class KeptEvaluation:
    """An evaluation, as far as it is shown; lengths in tokens."""

    file: str
    checkpoint: str
    against: str | None
    device: str
    dtype: str
    trained_length: int | None
    lengths: tuple[LossBin, ...]
    passkey: tuple[KeyCell, ...]


@dataclass(frozen=True)
class Entry:
    """An object of the file, with its place in it for what is said about it."""

    file: str
    place: str
    values: Mapping[str, Any]

    def fault(self, key: str, wanted: str) -> ConfigError:
        """The error for a value that cannot be used."""
        shown = repr(self.values.get(key))
        said = "is missing" if key not in self.values else f"is {shown[:40]}; it must be {wanted}"
        return ConfigError(f"{self.file}: {self.place}{key} {said}", file=self.file, key=f"{self.place}{key}")

    def text(self, key: str) -> str:
        """A text."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise self.fault(key, "a text")
        return value

    def flag(self, key: str) -> bool:
        """True or false."""
        value = self.values.get(key)
        if not isinstance(value, bool):
            raise self.fault(key, "true or false")
        return value

    def number(self, key: str) -> float | None:
        """A finite number; None where it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not -LARGEST < value < LARGEST:
            raise self.fault(key, "a number")
        return float(value)

    def count(self, key: str) -> int:
        """A whole number, 0 or more."""
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
            raise self.fault(key, "a whole number")
        return value

    def maybe(self, key: str, read: Callable[[str], T]) -> T | None:
        """What ``read`` makes of a value; None where it is absent or null."""
        return None if self.values.get(key) is None else read(key)

    def inner(self, key: str) -> Entry:
        """An object."""
        value = self.values.get(key)
        if not isinstance(value, Mapping):
            raise self.fault(key, "an object")
        return Entry(self.file, f"{self.place}{key}.", value)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts, of which `MOST_ENTRIES` are kept."""
        values = self.values.get(key)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.fault(key, "a list of texts")
        return tuple(values[:MOST_ENTRIES])

    def each(self, key: str, make: Callable[[Entry], T]) -> tuple[T, ...]:
        """A list of objects, `MOST_ENTRIES` at most."""
        values = self.values.get(key)
        if not isinstance(values, list) or not all(isinstance(value, Mapping) for value in values):
            raise self.fault(key, "a list of objects")
        if len(values) > MOST_ENTRIES:
            raise ConfigError(f"{self.file}: {self.place}{key} has {len(values)} entries, above {MOST_ENTRIES}")
        return tuple(make(Entry(self.file, f"{self.place}{key}[{at}].", value)) for at, value in enumerate(values))


def read_verification(path: Path) -> KeptVerification:
    """A result of ``verify --out``, with or without a server; raises `ConfigError` naming the key at fault."""
    entry = opened(path, "relation", "verify")
    named = (entry.maybe(key, entry.text) for key in ("a", "b", "checkpoint"))
    return KeptVerification(
        file=path.name,
        checkpoints=tuple(name for name in named if name),
        passed=entry.flag("passed"),
        relation=entry.text("relation"),
        device=entry.text("device"),
        dtype=entry.text("dtype"),
        tokens=entry.count("tokens"),
        tolerance=entry.number("tolerance"),
        control=entry.inner("control").number("max_abs_diff"),
        checks=entry.each("checks", _check),
        by_position=entry.each("by_position", _stretch),
    )


def read_evaluation(path: Path) -> KeptEvaluation:
    """A result of ``evaluate --out``; raises `ConfigError` naming the key at fault."""
    entry = opened(path, "lengths", "evaluate")
    return KeptEvaluation(
        file=path.name,
        checkpoint=entry.text("checkpoint"),
        against=entry.maybe("against", entry.text),
        device=entry.text("device"),
        dtype=entry.text("dtype"),
        trained_length=entry.maybe("trained_length", entry.count),
        lengths=entry.each("lengths", _bin),
        passkey=entry.each("passkey", _cell),
    )


def opened(path: Path, key: str, command: str, limits: Limits = OF_RESULT) -> Entry:
    """The result of a command that a file holds, known by ``key``; raises `ConfigError` for a file that holds none."""
    values = read_named_json(path, limits)
    if key not in values:
        error = values.get("error")
        said = error.get("message") if isinstance(error, Mapping) else f"there is no {key}"
        raise ConfigError(
            f"{path.name} holds no result of {command} ({str(said)[:200]}); make one by `ropetool {command} ... --out "
            f"{path.name}`",
            file=str(path),
        )
    return Entry(path.name, "", values)


def _check(entry: Entry) -> KeptCheck:
    where = entry.maybe("where", entry.text)
    return KeptCheck(entry.text("name"), entry.flag("passed"), entry.text("detail"), where)


def _stretch(entry: Entry) -> Stretch:
    """One of two models that ran here, or of one that a server ran."""
    key = "apart" if "apart" in entry.values else "max_abs_diff"
    start, stop = stretch_of(entry)
    return Stretch(start, stop, entry.number(key))


def _bin(entry: Entry) -> LossBin:
    start, stop = stretch_of(entry)
    return LossBin(start, stop, entry.number("loss"), entry.count("tokens"), entry.number("against_loss"))


def stretch_of(entry: Entry) -> tuple[int, int]:
    """The positions [from, to) that an entry is about."""
    start, stop = entry.count("from"), entry.count("to")
    if stop <= start:
        raise entry.fault("to", f"above from, which is {start}")
    return start, stop


def _cell(entry: Entry) -> KeyCell:
    depth, trials = entry.number("depth"), entry.count("trials")
    if depth is None or not 0 <= depth <= 1:
        raise entry.fault("depth", "a share from 0 to 1")
    correct, against = entry.count("correct"), entry.maybe("against_correct", entry.count)
    for key, found in (("correct", correct), ("against_correct", against or 0)):
        if found > trials or not trials:
            raise entry.fault(key, f"at most the trials, {trials}")
    return KeyCell(entry.count("length"), depth, trials, correct, against)
