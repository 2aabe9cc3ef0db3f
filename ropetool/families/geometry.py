"""The geometry of an attention layer: head counts and widths, read from a config as its model class reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ropetool.checkpoint.config import RopeBlock, count, number
from ropetool.errors import ConfigConflictError, ConfigError
from ropetool.rope.pairing import Head, Keep, Span

CLASS_DEFAULT = "class default"
MOST_ROWS = 1 << 24
SHARE = "partial_rotary_factor"


class Part(Enum):
    """The smallest parts that a projection's rows are made of."""

    ROTARY = "a q or k head"
    PLAIN = "a v head"
    VALUE = "as many rows as a v head of MLA has (v_head_dim)"
    LATENT = "the compressed key-value latent of MLA"
    ROTARY_ONLY = "the rotary part of a key, shared by all heads (MLA)"


@dataclass(frozen=True)
class Each:
    """``parts`` repeated: see `Geometry.times` for what can be counted."""

    count: str
    parts: tuple[Rows, ...]


Rows = Part | Each


@dataclass(frozen=True)
class GeometryKeys:
    """The config keys from which a class takes its geometry; ``a.b`` is the key b of the object a.

    ``head_dim`` lists keys whose values are added up (MLA: the unrotated and the rotated part); ``rotary`` lists
    the top-level keys, shares or widths (``_dim``), that the class reads the rotary width from; none means the whole
    head turns. A class that reads a share at the top level also reads ``partial_rotary_factor`` inside its rope block;
    with ``share_in_block`` it reads it only there. With ``scales_by_share`` the width is known without, but a scaled
    block must tell it as a share of the head. Where no key tells head_dim, all heads together are ``widening``
    times the hidden size wide. ``experts`` counts projections stacked in one tensor.
    ``one_kv_head`` names two flags: with the first (true by default) and without the second, all heads share one
    key-value head; with neither, each has its own (Falcon's three forms).
    """

    heads: str = "num_attention_heads"
    kv_heads: str | None = "num_key_value_heads"
    hidden: str = "hidden_size"
    head_dim: tuple[str, ...] = ("head_dim",)
    rotary: tuple[str, ...] = ()
    latent: str | None = None
    value: str | None = None
    length: str = "max_position_embeddings"
    rope_at_end: bool = False
    share_in_block: bool = False
    scales_by_share: bool = False
    widening: int = 1
    experts: str = ""
    one_kv_head: tuple[str, str] | None = None

    @property
    def share(self) -> str | None:
        """The top-level key of the rotary width as a share of the head, where the class reads one."""
        return next((key for key in self.rotary if not key.endswith("_dim")), None)


@dataclass(frozen=True)
class Geometry:
    """Head counts, and widths in rows; ``class_defaults`` names the values that the config does not hold."""

    heads: int
    kv_heads: int
    head_dim: int
    rope_start: int
    rotary_dim: int
    latent_dim: int
    value_dim: int
    experts: int
    class_defaults: Mapping[str, float]

    def times(self, what: str) -> int:
        """How often `Each` repeats."""
        return {
            "heads": self.heads,
            "kv_heads": self.kv_heads,
            "group": self.heads // self.kv_heads,
            "four": 4,
            "quarter": self.heads // 4,
            "experts": self.experts,
        }[what]

    def spans(self, rows: tuple[Rows, ...]) -> tuple[Span, ...]:
        """The spans of a projection whose rows are described by ``rows``."""
        spans: list[Span] = []
        for part in rows:
            spans += self.spans(part.parts) * self.times(part.count) if isinstance(part, Each) else [self._span(part)]
        return tuple(spans)

    def _span(self, part: Part) -> Span:
        match part:
            case Part.ROTARY:
                return Head(self.head_dim, self.rope_start, self.rotary_dim)
            case Part.ROTARY_ONLY:
                return Head(self.rotary_dim, 0, self.rotary_dim)
            case Part.LATENT:
                return Keep(self.latent_dim)
            case Part.VALUE:
                return Keep(self.value_dim)
            case Part.PLAIN:
                return Keep(self.head_dim)


class _Reader:
    """Reads counts from a config, falling back to the class's own values and remembering where it had to."""

    def __init__(self, config: Mapping[str, Any], defaults: Mapping[str, float]) -> None:
        self.config, self.defaults = config, defaults
        self.used: dict[str, float] = {}

    def optional(self, key: str) -> int | None:
        outer, _, inner = key.rpartition(".")
        section = self.config.get(outer) if outer else self.config
        value = count(section, inner) if isinstance(section, Mapping) else None
        if value is None and key in self.defaults:
            self.used[key] = self.defaults[key]
            return int(self.defaults[key])
        return value

    def required(self, key: str) -> int:
        value = self.optional(key)
        if value is None:
            raise ConfigError(f"config.json has no {key}, and nothing else tells it; add it", key=key)
        return value


def read_geometry(
    config: Mapping[str, Any], block: RopeBlock, keys: GeometryKeys, defaults: Mapping[str, float]
) -> Geometry:
    """The geometry that a config describes; raises `ConfigError` naming the key that is missing or impossible."""
    reader = _Reader(config, defaults)
    heads = reader.required(keys.heads)
    kv_heads = _kv_heads(reader, keys, heads)
    experts = reader.required(keys.experts) if keys.experts else 1
    if heads % kv_heads:
        raise ConfigError(
            f"{keys.heads} {heads} is not a multiple of {keys.kv_heads} {kv_heads}, so they cannot be shared; correct "
            f"one of the two in config.json",
            key=keys.kv_heads,
        )
    head_dim = _head_dim(reader, keys, heads)
    rotary_dim = _rotary_dim(reader, block, keys, head_dim)
    latent = reader.required(keys.latent) if keys.latent else 0
    value = reader.required(keys.value) if keys.value else head_dim
    if max(heads * head_dim, latent) > MOST_ROWS:
        raise ConfigError(
            f"{heads} heads of {head_dim} rows are more than any projection has ({MOST_ROWS:,} rows at most); check "
            f"{keys.heads} and head_dim in config.json",
            key="head_dim",
        )
    start = head_dim - rotary_dim if keys.rope_at_end else 0
    return Geometry(heads, kv_heads, head_dim, start, rotary_dim, latent, value, experts, reader.used)


def _kv_heads(reader: _Reader, keys: GeometryKeys, heads: int) -> int:
    if keys.one_kv_head:
        one, grouped = (
            reader.config.get(key, default) for key, default in zip(keys.one_kv_head, (True, False), strict=True)
        )
        if not grouped:
            return 1 if one else heads
    return (reader.optional(keys.kv_heads) if keys.kv_heads else None) or heads


def _head_dim(reader: _Reader, keys: GeometryKeys, heads: int) -> int:
    parts = [reader.optional(key) for key in keys.head_dim]
    if parts and None not in parts:
        return sum(part for part in parts if part is not None)
    if len(keys.head_dim) > 1:
        missing = keys.head_dim[parts.index(None)]
        raise ConfigError(f"config.json has no {missing}, and nothing else tells it; add it", key=missing)
    hidden = reader.required(keys.hidden) * keys.widening
    if hidden % heads:
        raise ConfigError(
            f"head_dim is not in config.json, and {keys.hidden} {hidden} is not a multiple of {heads} heads",
            key="head_dim",
        )
    return hidden // heads


def _rotary_dim(reader: _Reader, block: RopeBlock, keys: GeometryKeys, head_dim: int) -> int:
    """The rotary width under any of the names that the class reads, applied once."""
    if block.rope_type == "proportional":
        return head_dim
    found: dict[str, int] = {}
    inside = block.sources.get(SHARE, SHARE)
    if (keys.share or keys.share_in_block) and inside != SHARE:
        found[inside] = _as_width(SHARE, block.values[SHARE], head_dim)
    for key in keys.rotary:
        value = number(reader.config, key)
        if value is not None:
            found[key] = _as_width(key, value, head_dim)
    if len(set(found.values())) > 1:
        raise ConfigConflictError(
            f"the rotary width is {' but '.join(f'{width} rows by {key}' for key, width in found.items())}",
            keys=list(found),
            values=list(found.values()),
        )
    width = next(iter(found.values()), None)
    if width is None:
        readable = (SHARE,) if keys.share_in_block else keys.rotary
        default_key = next((key for key in readable if key in reader.defaults), None)
        if default_key is not None:
            reader.used[default_key] = reader.defaults[default_key]
            width = _as_width(default_key, reader.defaults[default_key], head_dim)
    if width is None:
        width = head_dim
    if width < 2 or width % 2 or width > head_dim:
        raise ConfigError(
            f"the rotary width comes to {width} of head_dim {head_dim}; it must be even and fit the head",
            key=next(iter(found), "head_dim"),
            value=width,
        )
    return width


def _as_width(key: str, value: float, head_dim: int) -> int:
    """A width in rows: given as such by keys that end in ``_dim``, as a share of head_dim by all others."""
    return int(value) if key.endswith("_dim") else int(head_dim * value)
