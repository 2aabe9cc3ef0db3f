"""What the classes of transformers make of rope keys, one row per model type, for the two versions that were asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropetool.engines.dialect import ORIGINAL
from ropetool.engines.heard import Case, Refused, Turn


@dataclass(frozen=True)
class ClassRow:
    """One class; ``tools/read_transformers.py`` says what each field is and how it was found."""

    names: tuple[str, ...] | None
    unnamed: str | None
    theta: float | None = None
    spelled: Mapping[str, str] = field(default_factory=dict)
    fails: tuple[str, ...] = ()
    block: Mapping[str, Any] = field(default_factory=dict)
    original: int | None = None

    def check_head_dim(self, turn: Turn, case: Case) -> None:
        """Raises `Refused` where the class would compute with the head_dim that config.json lacks."""
        if turn.scaling.name in self.fails and case.text.get("head_dim") is None:
            raise Refused(f"config.json has no head_dim, and its {turn.scaling.name} computes with it for this type")

    def top(self, case: Case) -> Mapping[str, Any]:
        """The top level of the config with what the class fills in there."""
        filled = {} if self.original is None else {ORIGINAL: self.original}
        return {**filled, **case.turning}


@dataclass(frozen=True)
class Version:
    """The classes of one version of transformers, by the model types that it has."""

    version: str
    composites: frozenset[str]
    rows: Mapping[str, ClassRow]

    def has(self, model_type: str) -> bool:
        """Whether this version has the type at all."""
        return model_type in self.rows or model_type in self.composites


def _row(values: Mapping[str, Any]) -> ClassRow:
    lists = {key: tuple(values[key]) for key in ("names", "fails") if values.get(key) is not None}
    return ClassRow(**{**values, **lists})


def read_version(major: int) -> Version:
    """The file that tools/read_transformers.py wrote."""
    file = Path(__file__).with_name(f"transformers{major}.json")
    found = json.loads(file.read_text("utf-8"))
    rows = {name: _row(values) for name, values in found["rows"].items()}
    return Version(found["version"], frozenset(found["composites"]), rows)
