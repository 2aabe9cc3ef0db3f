"""The recall task: a value stated early in a document and asked for late.

A document is running text with a few lines of its own between the words: statements, which give a
key a value (``[741]``: key 7, value 41), and questions, which name the key and want the value again (``?741.``).
A model recalls a value when, reading the question, every digit of the value is its first choice.
The statements lie in the first part of the document and the questions in the last, so the distance
to look back over grows with the document: beyond the trained window, recall is what a context
extension either gives or does not.

Everything here is counted in characters, and the answers are given as character spans, so that any
tokenizer with offsets can read a document. Only the standard library is used.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ropetool.checkpoint.strangers import read_named_json
from ropetool.errors import ConfigError, UsageError

Span = tuple[int, int]
"""A half-open range of characters: (start, end)."""

_KEY = "{key}"
_VALUE = "{value}"


@dataclass(frozen=True)
class RecallDocument:
    """One document with the places that count."""

    text: str
    #: The values that the questions want, in the order of the text.
    answers: tuple[Span, ...]
    #: The values in the statements: nobody can know them beforehand.
    values: tuple[Span, ...]
    #: Every inserted line, statements and questions, whole; the rest of the text is filler.
    inserted: tuple[Span, ...]

    @property
    def length(self) -> int:
        """The number of characters."""
        return len(self.text)

    @property
    def filler(self) -> tuple[Span, ...]:
        """The stretches of running text between the inserted lines."""
        edges = [0, *(edge for span in self.inserted for edge in span), self.length]
        return tuple((start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end)


@dataclass(frozen=True)
class _Line:
    """A statement or a question, not yet placed."""

    key: str
    value: str
    asks: bool


@dataclass(frozen=True)
class RecallTask:
    """What the documents of a recall test look like."""

    #: The line that gives a value, with ``{key}`` and ``{value}``.
    statement: str
    #: The line that asks for it, value included: the answer is read off the predictions for it.
    question: str
    keys: tuple[str, ...]
    #: How many statements a document has, each with another key.
    facts: int
    #: How many of them are asked for.
    questions: int
    #: How many digits a value has.
    digits: int
    #: The statements begin within this share of the document, from its start.
    early: float
    #: The questions lie within this share of the document, from its end.
    late: float

    def __post_init__(self) -> None:
        for name in ("statement", "question"):
            template = getattr(self, name)
            if not isinstance(template, str) or template.count(_KEY) != 1 or template.count(_VALUE) != 1:
                raise ConfigError(
                    f"recall task: {name} is {template!r}; it must hold {_KEY} and {_VALUE} once each",
                    key=name,
                    value=template,
                )
        if len(set(self.keys)) != len(self.keys) or not all(isinstance(key, str) and key for key in self.keys):
            raise ConfigError("recall task: keys must be different, non-empty strings", key="keys")
        if not 1 <= self.questions <= self.facts <= len(self.keys) or self.digits < 1:
            raise ConfigError(
                f"recall task: {self.questions} questions, {self.facts} facts, {len(self.keys)} keys and "
                f"{self.digits} digits; wanted 1 <= questions <= facts <= keys and at least 1 digit",
                key="facts",
            )
        if not (0 < self.early <= 1 and 0 < self.late <= 1):
            raise ConfigError(
                f"recall task: early is {self.early} and late {self.late}; both are shares above 0 and at most 1",
                key="early",
            )

    @classmethod
    def load(cls, path: str | Path) -> RecallTask:
        """Read the task from a JSON file such as a checkpoint's ``recall.json``."""
        try:
            data = read_named_json(Path(path))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read as JSON: {error}", path=str(path)) from error
        return cls.from_mapping(data, where=str(path))

    @classmethod
    def from_mapping(cls, data: object, where: str = "recall task") -> RecallTask:
        """Make the task from a decoded JSON object; unknown keys are refused, not ignored."""
        types: dict[str, tuple[type, ...]] = {
            "statement": (str,),
            "question": (str,),
            "keys": (list, tuple, str),
            "facts": (int,),
            "questions": (int,),
            "digits": (int,),
            "early": (int, float),
            "late": (int, float),
        }
        if not isinstance(data, Mapping) or set(data) != set(types):
            found = sorted(map(str, data)) if isinstance(data, Mapping) else type(data).__name__
            raise ConfigError(f"{where}: wanted an object with {sorted(types)}, found {found}", path=where)
        for name, allowed in types.items():
            if not isinstance(data[name], allowed) or isinstance(data[name], bool):
                raise ConfigError(f"{where}: {name} is {data[name]!r}, of the wrong type", key=name, path=where)
        return cls(**{**data, "keys": tuple(data["keys"])})

    def to_mapping(self) -> dict[str, Any]:
        """Give the task as a JSON object that ``from_mapping`` reads back."""
        return {**asdict(self), "keys": list(self.keys)}

    def document(self, rng: random.Random, characters: int, filler: str) -> RecallDocument:
        """Make one document to test with: statements early, questions late, ``characters`` long in all.

        ``filler`` is the text to cut the running text from, at a random place.
        """
        keys = rng.sample(self.keys, self.facts)
        values = {key: self._value(rng) for key in keys}
        asked = rng.sample(keys, self.questions)
        statements = [_Line(key, values[key], asks=False) for key in keys]
        questions = [_Line(key, values[key], asks=True) for key in asked]
        said, wanted = self._size(statements), self._size(questions)
        text = self._running_text(rng, characters - said - wanted, filler)
        early = int(self.early * characters) - said
        late = len(text) - (int(self.late * characters) - wanted)
        if early < 0 or late > len(text):
            raise UsageError(
                f"{characters} characters are too few: {self.facts} statements take {said} of the first "
                f"{int(self.early * characters)}, {self.questions} questions {wanted} of the last "
                f"{int(self.late * characters)}",
                characters=characters,
            )
        cuts = [_word_before(text, cut) for cut in _places(rng, 0, early, len(statements))]
        cuts += [_word_after(text, cut) for cut in _places(rng, late, len(text), len(questions))]
        return self._weave(text, cuts, statements + questions)

    def training_document(self, rng: random.Random, characters: int, filler: str, dense: float = 0.5) -> RecallDocument:
        """Make one document to train with: statements and questions anywhere, each question after its statement.

        A share ``dense`` of the documents has lines nearly without text between them, which is what teaches
        a small model to look back within few steps; the others have as much text as a test document. In half
        of all documents the questions come after all statements, in the other half they are mixed.
        """
        room = characters // max(self._size([_Line(self.keys[0], "0" * self.digits, asks)]) for asks in (True, False))
        lines = rng.randint(room // 2, room) if rng.random() < dense else rng.randint(room // 5, room // 2)
        facts = rng.randint(min(3, lines // 2), min(max(3, lines // 2), len(self.keys)))
        order = [False] * facts + [True] * (lines - facts)
        if rng.random() < 0.5:
            order[2:] = rng.sample(order[2:], lines - 2)
        fresh = rng.sample(self.keys, facts)
        stated: list[_Line] = []
        unasked: list[_Line] = []
        placed: list[_Line] = []
        for asks in order:
            if asks:
                about = rng.choice(unasked if unasked and rng.random() < 0.5 else stated)
                unasked = [line for line in unasked if line is not about]
                placed.append(_Line(about.key, about.value, asks=True))
            else:
                stated.append(_Line(fresh[len(stated)], self._value(rng), asks=False))
                unasked.append(stated[-1])
                placed.append(stated[-1])
        text = self._running_text(rng, characters - self._size(placed), filler)
        cuts = [_word_before(text, cut) for cut in _places(rng, 0, len(text), lines)]
        return self._weave(text, cuts, placed)

    def _value(self, rng: random.Random) -> str:
        """Draw a value; the first digit is not 0."""
        return str(rng.randrange(10 ** (self.digits - 1), 10**self.digits))

    def _size(self, lines: Sequence[_Line]) -> int:
        """How many characters the lines take."""
        return sum(len(self._render(line)[0]) for line in lines)

    def _render(self, line: _Line) -> tuple[str, int]:
        """The line's text, and where in it the value begins."""
        template = (self.question if line.asks else self.statement).replace(_KEY, line.key)
        start = template.index(_VALUE)
        return template[:start] + line.value + template[start + len(_VALUE) :], start

    @staticmethod
    def _running_text(rng: random.Random, characters: int, filler: str) -> str:
        """Cut ``characters`` of running text from a random place of ``filler``."""
        if not 0 <= characters <= len(filler):
            raise UsageError(
                f"the document needs {characters} characters of running text; there are {len(filler)}",
                wanted=characters,
                available=len(filler),
            )
        start = rng.randint(0, len(filler) - characters)
        return filler[start : start + characters]

    def _weave(self, text: str, cuts: Sequence[int], lines: Sequence[_Line]) -> RecallDocument:
        """Put the lines into the text at the cuts, which do not fall."""
        parts: list[str] = []
        answers: list[Span] = []
        values: list[Span] = []
        inserted: list[Span] = []
        length = used = 0
        for cut, line in zip(cuts, lines, strict=True):
            parts.append(text[used:cut])
            length += cut - used
            used = cut
            rendered, start = self._render(line)
            (answers if line.asks else values).append((length + start, length + start + len(line.value)))
            inserted.append((length, length + len(rendered)))
            parts.append(rendered)
            length += len(rendered)
        parts.append(text[used:])
        return RecallDocument("".join(parts), tuple(answers), tuple(values), tuple(inserted))


def _places(rng: random.Random, first: int, last: int, count: int) -> list[int]:
    """Draw ``count`` places from first to last, in rising order; two may be the same."""
    return sorted(rng.randint(first, last) for _ in range(count))


def _word_before(text: str, place: int) -> int:
    """The nearest beginning of a word at or before the place."""
    return max(text.rfind(" ", 0, place), text.rfind("\n", 0, place)) + 1


def _word_after(text: str, place: int) -> int:
    """The nearest beginning of a word at or after the place, or the end of the text."""
    if place == 0 or place >= len(text):
        return place
    found = [at + 1 for at in (text.find(" ", place - 1), text.find("\n", place - 1)) if at >= 0]
    return min(found, default=len(text))
