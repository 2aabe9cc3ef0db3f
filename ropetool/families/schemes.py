"""Position schemes other than RoPE: what each is, what it means for a longer context, and where a class has it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from ropetool.checkpoint.config import count

ROWS, POSITIONS, BUCKETS, VECTORS, KERNEL = "rows", "positions", "buckets", "vectors", "kernel"


@dataclass(frozen=True)
class Scheme:
    """A position scheme: its name in ``inspect --json``, and in pieces what it means for a longer context.

    A piece is said when every number that it names is known. ``number`` is the one that the shape of its tensor tells,
    at ``axis``; empty where no shape tells any. ``ends``: the class fails beyond the positions that it has.
    """

    name: str
    pieces: tuple[str, ...]
    number: str = ""
    axis: int = -2
    ends: bool = False

    def sentence(self, numbers: Mapping[str, int]) -> str:
        """What it means, with the numbers that are known."""
        return "".join(piece.format(**numbers) for piece in self.pieces if _named(piece) <= numbers.keys())


def _named(piece: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(piece) if name}


LEARNED = Scheme("learned", (
    "it adds a learned table of positions", " with {rows} rows", ", a hard ceiling", " at {positions} tokens",
    ": more needs the table interpolated and training",
), ROWS, ends=True)  # fmt: skip
LEARNED_GRID = Scheme("learned", (
    "it adds a learned table with a row per patch", " ({rows} rows)", ", a hard ceiling",
    ": a larger image needs the table interpolated",
), ROWS)  # fmt: skip
CLAMPED = Scheme("learned", (
    "it adds a learned table of positions", " with {rows} rows", ": tokens beyond", " {positions}",
    " all share its last row, and more needs the table interpolated and training",
), ROWS)  # fmt: skip
SINUSOIDAL = Scheme("sinusoidal", (
    "it adds a fixed table of sinusoids", " with {rows} rows", ", which its class ends", " at {positions} tokens",
    ": more rows can be computed, but the model was trained on none of them",
), ROWS, ends=True)  # fmt: skip
GROWING = Scheme("sinusoidal", (
    "it adds sinusoids, which its class computes for any length", " and its config means for {positions} tokens",
    ": it runs beyond that, at positions it was not trained on",
))  # fmt: skip
ALIBI = Scheme("alibi", (
    "it biases attention scores by distance, ALiBi: no table and no ceiling, it runs at any length",
    " (its config names {trained} tokens)", ", but far tokens are damped ever more, so it reaches no farther",
))  # fmt: skip
ALIBI_BUILT = Scheme("alibi", (
    "it biases attention scores by distance, ALiBi", ", which its class builds for {positions} tokens and no more",
    ": a larger number needs no training, but far tokens are damped ever more, so it reaches no farther",
), ends=True)  # fmt: skip
BUCKETED = Scheme("relative-bias", (
    "it adds a learned bias per bucket of distance to attention scores", " ({buckets} buckets)",
    ": no ceiling, it runs at any length", ", but distances from {max_distance} tokens on share one bias",
), BUCKETS)  # fmt: skip
WINDOWED = Scheme("relative-bias", (
    "it adds a learned bias per offset within a window to attention scores", " ({rows} rows)",
    ": the window is a hard ceiling, and a larger one needs the table interpolated",
), ROWS)  # fmt: skip
COMPUTED_BIAS = Scheme("relative-bias", (
    "a small network makes a bias of every offset within a window: a larger window needs no rows, but fine-tuning",
))  # fmt: skip
CLIPPED = Scheme("relative-vectors", (
    "it attends with learned vectors per relative distance", " ({vectors} vectors)",
    ": no ceiling, it runs at any length", ", but distances beyond {clip} tokens share the last vector",
), VECTORS)  # fmt: skip
BOUNDED = Scheme("relative-vectors", (
    "it attends with learned vectors per relative distance", " ({vectors} vectors)", ", a hard ceiling",
    " at {positions} tokens", ": more needs new vectors and training",
), VECTORS, ends=True)  # fmt: skip
PROJECTED = Scheme("relative-vectors", (
    "it attends with vectors projected from sinusoids of the distance, as Transformer-XL: no table and no ceiling, "
    "it runs at any length, at distances it was not trained on",
))  # fmt: skip
RECURRENT = Scheme("none", (
    "it has no position embedding at all: order comes from its recurrence, so there is no ceiling and nothing to scale",
))  # fmt: skip
UNPLACED = Scheme("none", (
    "its attention has no position embedding at all, so there is no ceiling in it and nothing to scale",
))  # fmt: skip
CONVOLVED = Scheme("none", (
    "it has no position embedding, but a convolution", " over {kernel} frames",
    " tells neighbours apart: no ceiling, and nothing to scale",
), KERNEL, -1)  # fmt: skip
ROPE = Scheme("rope", ("it rotates q and k, RoPE",))


@dataclass(frozen=True)
class Sum:
    """A number that a class makes of keys of its config: ``times`` their sum, ``plus`` more. All must be positive."""

    keys: tuple[str, ...]
    times: int = 1
    plus: int = 0

    def of(self, config: Mapping[str, Any]) -> int | None:
        """The number, None where a key is absent or off."""
        values = [_positive(config, key) for key in self.keys]
        return None if None in values else self.times * sum(v for v in values if v) + self.plus


@dataclass(frozen=True)
class Grid:
    """A row per patch of an image, and ``plus`` rows for tokens that are no patch."""

    plus: int = 0
    keys: tuple[str, ...] = ("image_size", "patch_size")

    def of(self, config: Mapping[str, Any]) -> int | None:
        """The number of rows, None where a size is absent."""
        image, patch = (_pair(config.get(key)) for key in self.keys)
        if image is None or patch is None:
            return None
        return math.prod(side // part for side, part in zip(image, patch, strict=True)) + self.plus


@dataclass(frozen=True)
class Window:
    """The offsets within a square window, along both sides."""

    key: str = "window_size"

    def of(self, config: Mapping[str, Any]) -> int | None:
        """The number of rows, None where the window is absent."""
        side = _positive(config, self.key)
        return None if side is None else (2 * side - 1) ** 2


@dataclass(frozen=True)
class Product:
    """A table made of one per axis: as many rows as a list of sizes has in all."""

    key: str

    def of(self, config: Mapping[str, Any]) -> int | None:
        """The number of rows, None where the list is absent."""
        sizes = config.get(self.key)
        whole = isinstance(sizes, list) and sizes and all(isinstance(size, int) and size > 0 for size in sizes)
        return math.prod(sizes) if isinstance(sizes, list) and whole else None


Way = Sum | Grid | Window | Product


def _positive(config: Mapping[str, Any], key: str) -> int | None:
    """A count that may also be off (null, -1) in the config of a model without RoPE."""
    value = config.get(key)
    return None if isinstance(value, int) and value < 1 else count(config, key)


def _pair(value: object) -> tuple[int, int] | None:
    sides = [value, value] if isinstance(value, int) else value
    whole = isinstance(sides, list) and len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides)
    return (sides[0], sides[1]) if whole else None  # type: ignore[index] # it is a list of two


@dataclass(frozen=True)
class When:
    """A config key (with dots: a path) and its values; ``default`` is the class's where config.json lacks the key."""

    key: str
    values: tuple[Any, ...]
    default: Any

    def holds(self, config: Mapping[str, Any]) -> bool:
        """Whether a config says so."""
        return self.value(config) in self.values

    def value(self, config: Mapping[str, Any]) -> Any:
        """What a config says, or the class where that is silent."""
        *above, last = self.key.split(".")
        for key in above:
            inner = config.get(key)
            config = inner if isinstance(inner, dict) else {}
        return config.get(last, self.default)


@dataclass(frozen=True)
class Place:
    """One place of a class where positions come in.

    ``where`` is the part of the model, empty for the whole. ``numbers`` are those of the sentence, each the first of
    its ways that the config gives. ``unused`` rows of a table are no position's, and with ``past_pad`` those up to
    ``pad_token_id`` (the value, where the config has none) neither. ``tensor`` is how the names of its tensors end (a
    regular expression), empty where nothing is stored. A class has the place when every ``when`` holds.
    ``forgotten``: transformers 5 does not read the key that asks for it. ``denied`` would say that there is none, and
    no class of transformers reads it. ``idle``: tensors of another scheme that the class then keeps and does not use.
    """

    scheme: Scheme
    where: str = ""
    numbers: Mapping[str, tuple[Way, ...]] = field(default_factory=dict)
    tensor: str = ""
    unused: int = 0
    past_pad: int | None = None
    when: tuple[When, ...] = ()
    forgotten: str = ""
    denied: When | None = None
    idle: str = ""

    def read(self, config: Mapping[str, Any]) -> dict[str, int]:
        """The numbers, as far as the config has them."""
        found = {name: next((n for way in ways if (n := way.of(config))), None) for name, ways in self.numbers.items()}
        return self.completed({name: number for name, number in found.items() if number}, config)

    def completed(self, numbers: Mapping[str, int], config: Mapping[str, Any]) -> dict[str, int]:
        """With the positions that the rows of a table are for."""
        if ROWS not in numbers or self.scheme.name not in ("learned", "sinusoidal"):
            return dict(numbers)
        pad = config.get("pad_token_id", self.past_pad)
        skipped = pad + 1 if self.past_pad is not None and isinstance(pad, int) else 0
        return {**numbers, POSITIONS: numbers[ROWS] - self.unused - skipped}


@dataclass(frozen=True)
class Part:
    """A part of a composite config: its key, the model type that is there, and a word in the names of its tensors."""

    key: str
    model_type: str
    word: str


@dataclass(frozen=True)
class OtherScheme:
    """A model type without RoPE: the places where positions come in, or the parts that have them."""

    model_type: str
    source: str
    places: tuple[Place, ...] = ()
    parts: tuple[Part, ...] = ()
