"""What a row of doctor is made of: the checkpoint that an engine is given, and what the engine hears in its config."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.checkpoint.config import RopeBlock, marker
from ropetool.engines.names import EngineName, Origin
from ropetool.engines.rows import BY_NAME
from ropetool.families.geometry import SHARE, read_geometry
from ropetool.families.protection import ENGINE
from ropetool.families.reading import Reading
from ropetool.rope.frequencies import Scaling
from ropetool.rope.pairing import Pairing


@dataclass(frozen=True)
class Case:
    """A checkpoint's config as doctor gives it to every engine.

    ``reading`` is how ropetool reads it. Where the config contradicts itself there is no such reading: then
    ``conflict`` says why, ``reading`` is that of the config without its rope keys, and tells all but the rotation.
    """

    config: Mapping[str, Any]
    reading: Reading
    conflict: str = ""

    @property
    def text(self) -> Mapping[str, Any]:
        """The part of the config that describes the text decoder, with its rope keys."""
        found: Mapping[str, Any] = self.config
        for key in self.reading.decoder.path:
            found = found[key]
        return found

    @property
    def turning(self) -> Mapping[str, Any]:
        """The part in which the class looks for its rope keys: the text decoder's, or a section of it."""
        section = self.reading.family.section
        return self.text if not section else self.text.get(section) or {}

    @property
    def written_for(self) -> str | None:
        """The engine that `ropetool convert --for` wrote the checkpoint for, by the marker."""
        entry = marker(self.config).get(ENGINE)
        return entry.get("engine") if isinstance(entry, Mapping) else None

    def width(self, index: int, share: float | None) -> int:
        """The rotary width, in rows, of the rotation ``index`` for an engine that finds ``share``; None: finds none."""
        family, rotation = self.reading.family, self.reading.rotations[index]
        if not (family.keys.rotary or family.keys.share_in_block):
            return rotation.geometry.rotary_dim
        bare = {key: value for key, value in self.text.items() if key != SHARE}
        values = {} if share is None else {SHARE: share}
        block = RopeBlock(rotation.layers, values, dict.fromkeys(values, f"block.{SHARE}"))
        return read_geometry(bare, block, family.keys, family.defaults).rotary_dim


@dataclass(frozen=True)
class Turn:
    """How an engine will rotate one kind of layer: the method with its numbers, over ``rotary_dim`` rows of a head."""

    layers: str
    scaling: Scaling
    rotary_dim: int


@dataclass(frozen=True)
class Heard:
    """What an engine makes of a config.

    ``length`` is the longest context in tokens that it derives, None where it derives none; with ``stops`` it serves
    no more than that. ``ignores`` names the keys that say something, and that it does not read. ``refusal`` is why it
    will not load the checkpoint, ``unknown`` why nothing can be said; ``advice`` is what its user must set by hand.
    """

    turns: tuple[Turn, ...] = ()
    pairing: Pairing | None = None
    length: int | None = None
    stops: bool = False
    ignores: tuple[str, ...] = ()
    refusal: str = ""
    unknown: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Listener:
    """One row: an engine, where that is known from, and the function that hears as it does.

    ``part`` tells two rows of one engine apart. ``length_flag`` makes it serve a length (``--max-model-len {}``),
    past what it derives only where ``flag_lifts``, ``override`` hands it keys in place of those of config.json (as
    JSON, in place of ``{}``), and ``flags`` are those that make it turn as the checkpoint means whatever it heard,
    empty where there are none. ``note`` is what its user must know whatever the config says.
    """

    engine: EngineName
    version: str
    file: str
    origin: Origin
    hears: Callable[[Case], Heard]
    part: str = ""
    length_flag: str = ""
    flag_lifts: bool = True
    override: str = ""
    flags: Callable[[Case], str] = lambda case: ""
    note: str = ""

    @property
    def source(self) -> str:
        """Package, version and file in one."""
        return f"{self.engine.value} {self.version}, {self.file}"


class Refused(Exception):
    """Raised inside a row where the engine itself would raise; the text is its reason."""


class Unread(Refused):
    """Raised inside a row where it does not know what the engine does; the text says of what."""


def answer(refused: Refused, **more: Any) -> Heard:
    """What a row says that came to a `Refused` or an `Unread`."""
    return Heard(unknown=str(refused), **more) if isinstance(refused, Unread) else Heard(refusal=str(refused), **more)


def pairing_heard(engine: EngineName, case: Case) -> Pairing | None:
    """The layout that an engine will rotate, given the keys that it obeys; None where its class for it is not known.

    A checkpoint that was written for the engine is loaded in the way that was told when it was.
    """
    ways = BY_NAME[engine].ways(case.reading)
    if case.written_for == engine.value and case.reading.pairing in ways:
        return case.reading.pairing
    for pairing, way in ways.items():
        said = {key: case.text.get(key) for key in way.keys}
        if all(value is way.keys[key] or (value is None and way.by_default) for key, value in said.items()) and (
            way.keys or way.by_default
        ):
            return pairing
    return None


def meaningful(keys: Iterable[str], values: Mapping[str, Any]) -> tuple[str, ...]:
    """Those keys that hold something."""
    return tuple(key for key in keys if values.get(key) not in (None, {}, []))
