"""How an engine reads a rope block, as data: where it looks, in which order, and which keys of which type it knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines.heard import Case, Refused, Unread
from ropetool.errors import ConfigError
from ropetool.families.geometry import SHARE
from ropetool.rope.frequencies import SPELLINGS, Default, Scaling, scaling_from_block

ORIGINAL = "original_max_position_embeddings"
NAMES = ("rope_type", "type")
# The keys that say something in a block of each type, beside its name, base, and rotary share.
YARN_KEYS = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
TYPE_KEYS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", ORIGINAL, *YARN_KEYS),
    "longrope": ("factor", ORIGINAL, "short_factor", "long_factor", "attention_factor"),
    "llama3": ("factor", ORIGINAL, "low_freq_factor", "high_freq_factor"),
    "proportional": ("factor",),
}


class Place(Enum):
    """Where an engine may find a value: in the rope block, at the top level, or in the model's maximum length."""

    BLOCK = "the block"
    TOP = "the top level"
    LENGTH = "max_position_embeddings"


class Other(Enum):
    """What an engine does with a rope type that it does not know."""

    RAISES = "raises"
    PLAIN = "rotates without scaling"


@dataclass(frozen=True)
class TypeRead:
    """How an engine reads one rope type.

    ``method`` is ropetool's name of what it then computes. It raises where a key of ``needs`` is missing, and reads
    those of ``takes`` where they are there; it passes over all others. ``nulls`` is what a null under a key is to it,
    where that is a value: None is the same as absent. ``defaults`` are the numbers that it takes itself where there
    are none. ``original`` is where it looks for the trained length, in that order; a number is likewise its own.
    ``computes`` tells where its numbers differ from the method's own.
    """

    method: str
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    nulls: Mapping[str, Any] = field(default_factory=dict)
    original: tuple[Place | int, ...] = ()
    computes: Callable[[Scaling, Case], Scaling] = lambda scaling, case: scaling
    defaults: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Dialect:
    """How an engine reads the rope keys of a flat config.

    * ``blocks``: the keys under which it looks for the block; the first that holds one wins;
    * ``names``: the keys that name the rope type, the stronger first;
    * ``theta``, ``share``: where it looks for the base and the rotary share, in that order;
    * ``types``, ``other``: the rope types that it knows, and what it does with one that it does not;
    * ``unnamed``: the type that it takes where a block names none; None: it raises;
    * ``null``: whether a key that is there and null is taken as a value, so that computing with it fails;
    * ``empty``: whether an empty object is taken for a block;
    * ``exactly``: the keys that a block must have, no more and no fewer; ``requires``: those that any block must have.
    """

    blocks: tuple[str, ...]
    types: Mapping[str, TypeRead]
    theta: tuple[Place, ...] = (Place.TOP,)
    share: tuple[Place, ...] = (Place.TOP,)
    names: tuple[str, ...] = NAMES
    other: Other = Other.RAISES
    unnamed: str | None = "default"
    null: bool = False
    empty: bool = False
    exactly: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """The block that an engine takes, under which key, and the top level beside it."""

    where: str
    block: Mapping[str, Any]
    top: Mapping[str, Any]
    length: int | None
    read: set[str] = field(default_factory=set)

    def value(self, key: str, places: tuple[Place | int, ...], *, null: bool, top_keys: tuple[str, ...] = ()) -> Any:
        """The first value under ``key`` (``top_keys`` at the top level), None if there is none; notes what was read.

        With ``null``, a null that is found is a value too: raises `Refused`.
        """
        for place in places:
            for source, holder, name in self._holders(key, place, top_keys):
                if name not in holder or (holder[name] is None and not null):
                    continue
                self.read.add(source)
                if holder[name] is None:
                    raise Refused(f"{source} is null, and it computes with it")
                return holder[name]
            if place is Place.LENGTH or isinstance(place, int):
                return self.length if place is Place.LENGTH else place
        return None

    def _holders(
        self, key: str, place: Place | int, top_keys: tuple[str, ...]
    ) -> Iterator[tuple[str, Mapping[str, Any], str]]:
        if place is Place.BLOCK:
            yield f"{self.where}.{key}", self.block, key
        elif place is Place.TOP:
            for name in top_keys or (key,):
                yield name, self.top, name


def find_block(dialect: Dialect, top: Mapping[str, Any], length: int | None) -> Found:
    """The block that the engine takes; an empty one where it finds none."""
    for where in dialect.blocks:
        block = top.get(where)
        if isinstance(block, Mapping) and (block or dialect.empty):
            if dialect.exactly and set(block) != set(dialect.exactly):
                raise Refused(f"its class takes a {where} of {', '.join(dialect.exactly)} and nothing else")
            missing = [key for key in dialect.requires if key not in block]
            if missing:
                raise Refused(f"{where} has no {' and no '.join(missing)}, which its class asks for")
            return Found(where, block, top, length)
    return Found("", {}, top, length)


def type_named(dialect: Dialect, found: Found) -> str | None:
    """The rope type that the engine takes; None where null is named."""
    for name in dialect.names:
        if name in found.block and (found.block[name] is not None or dialect.null):
            found.read.add(f"{found.where}.{name}")
            value = found.block[name]
            return None if value is None else str(value)
    return dialect.unnamed


def scaling_heard(dialect: Dialect, found: Found, theta: float, case: Case) -> Scaling:
    """What the engine computes from the block that it found; raises `Refused` where it would raise."""
    if not found.where:
        return Default(theta)
    name = type_named(dialect, found)
    read = dialect.types.get(name or "")
    if read is None:
        if dialect.other is Other.RAISES:
            raise Refused(
                f"it knows no rope type {name!r}" if name else f"{found.where} names no rope type that it reads"
            )
        return Default(theta)
    block: dict[str, Any] = {"rope_type": read.method, **read.defaults}
    for key in (*read.needs, *read.takes):
        if key in read.needs and key not in found.block:
            raise Refused(f"{found.where} has no {key}, which its {name} needs")
        places = (Place.BLOCK, *dialect.share) if key == SHARE else (Place.BLOCK,)
        null = dialect.null and key in read.needs and key not in read.nulls
        value = found.value(key, places, null=null)
        is_null = key in found.block and found.block[key] is None
        found_value = read.nulls.get(key) if is_null else value
        block[key] = block.get(key) if found_value is None else found_value
    if read.original:
        block[ORIGINAL] = found.value(ORIGINAL, read.original, null=dialect.null and ORIGINAL not in read.nulls)
    try:
        return read.computes(scaling_from_block(block, theta, found.length), case)
    except ConfigError as error:
        raise Unread(f"what it computes with it is not known: {error.message}") from error


def ignored(found: Found, heard: Mapping[str, Any]) -> tuple[str, ...]:
    """The rope keys that say something, and that the engine does not read: not those that only repeat what it heard.

    ``heard`` holds the values that it took, by their name in a block.
    """
    unread: list[str] = []
    for where in BLOCKS:
        block = found.top.get(where)
        if not isinstance(block, Mapping):
            continue
        new = [key for key, value in block.items() if _says(block, key) and not _repeats(key, value, heard)]
        if where != found.where:
            unread += [where] if any(key not in found.block or found.block[key] != block[key] for key in new) else []
        else:
            unread += [f"{where}.{key}" for key in new if f"{where}.{key}" not in found.read]
    top = {key: found.top[key] for key in ("rope_theta", SHARE) if found.top.get(key) is not None}
    return (*unread, *(key for key, value in top.items() if key not in found.read and not _repeats(key, value, heard)))


def _says(block: Mapping[str, Any], key: str) -> bool:
    """Whether a key of a block means something to the block's own type."""
    if block[key] is None:
        return False
    name = next((block[key] for key in NAMES if block.get(key) is not None), "default")
    known = TYPE_KEYS.get(SPELLINGS.get(name, name)) if isinstance(name, str) else None
    return known is None or isinstance(block[key], Mapping) or key in (*NAMES, "rope_theta", SHARE, *known)


def _repeats(key: str, value: Any, heard: Mapping[str, Any]) -> bool:
    name = "rope_type" if key in NAMES else key
    return name in heard and bool(heard[name] == value)
