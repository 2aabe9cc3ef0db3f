"""What a row about an engine is made of: the layouts that it reads for a model type, and what makes it read each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ropetool.engines.names import EngineName, Origin
from ropetool.families.reading import Reading
from ropetool.rope.pairing import Pairing


@dataclass(frozen=True)
class Way:
    """How an engine comes to read one layout: the config keys that say so, and what loads the checkpoint.

    ``by_default``: so it reads a config without the keys.
    """

    load: str
    keys: Mapping[str, bool] = field(default_factory=dict)
    by_default: bool = True


Ways = Mapping[Pairing, Way]


@dataclass(frozen=True)
class Engine:
    """One row, with its source (package, version, file) and how it is known.

    ``ways`` gives the layouts that the engine reads for a model, none where it is not known to have a class for it.
    ``why`` is the clause that a refusal gives. ``lists_types``: ``ways`` is limited to the types that the version has;
    without it, whether a version knows the type is for its user to see. ``flat_keys`` tells that the class reads the
    base from the top level only.
    """

    name: EngineName
    version: str
    file: str
    origin: Origin
    why: str
    ways: Callable[[Reading], Ways]
    lists_types: bool = True
    flat_keys: Callable[[Reading], bool] = lambda reading: False

    @property
    def source(self) -> str:
        """Package, version and file in one."""
        return f"{self.name.value} {self.version}, {self.file}"


def constant(pairing: Pairing, load: str) -> Ways:
    """An engine whose class rotates one layout, whatever the config says."""
    return {pairing: Way(load)}


def by_key(key: str, true_means: Pairing, default: Pairing, load: str) -> Ways:
    """An engine whose class obeys a config key."""
    return {pairing: Way(load, {key: pairing is true_means}, by_default=pairing is default) for pairing in Pairing}
