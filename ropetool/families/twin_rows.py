"""Which classes are the same model but for the layout: the rows of ``twins.json``, as `tools/find_twins.py` found them.

Each row was found by running both classes of transformers on the same weights, permuted; none is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TWINS_FILE = Path(__file__).with_name("twins.json")

# What a value of a row may say instead of a literal; see `meant`.
EACH_LAYER, HEAD_DIM_POWER = "each_layer", "head_dim_power"


@dataclass(frozen=True)
class ClassFacts:
    """A config class: its causal-LM class, its keys with their defaults (None: none, or computed from other keys).

    ``aliases`` are other names of its keys, ``reads`` are names that its code reads beside them, ``tokenizer`` is the
    class that transformers has for the type.
    """

    architecture: str
    fields: Mapping[str, Any]
    aliases: Mapping[str, str]
    reads: frozenset[str]
    tokenizer: str | None


@dataclass(frozen=True)
class TwinRow:
    """How a config of ``source`` is written for the class of ``target``, which rotates the other layout.

    ``cases`` pair what the source's switches say (biases, norms: which tensors there are) with what the target's must
    say. ``required`` are values that keys of the source must have, as the target has no such feature; one under
    ``computed`` may be absent, as its class then computes that value, given the values of other keys there. ``sets``
    are values of the target's own keys. ``square``: heads x head_dim must be the hidden size. ``rope_types`` are the
    scaling methods under which both agree.
    """

    source: str
    target: str
    cases: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]
    required: Mapping[str, Any]
    computed: Mapping[str, Mapping[str, Any]]
    sets: Mapping[str, Any]
    square: bool
    rope_types: tuple[str, ...]


def meant(value: Any, head_dim: int, layers: int) -> Any:
    """What a value of a row is for a model of this geometry: a literal, one for each layer, or a power of head_dim."""
    if isinstance(value, dict) and EACH_LAYER in value:
        return [value[EACH_LAYER]] * layers
    if isinstance(value, dict) and HEAD_DIM_POWER in value:
        return float(head_dim ** value[HEAD_DIM_POWER])
    return value


def _class_facts(entry: Mapping[str, Any]) -> ClassFacts:
    return ClassFacts(**{**entry, "reads": frozenset(entry["reads"])})


def _row(entry: Mapping[str, Any]) -> TwinRow:
    cases = tuple((case["source"], case["target"]) for case in entry["cases"])
    return TwinRow(**{**entry, "cases": cases, "rope_types": tuple(entry["rope_types"])})


_DATA: Mapping[str, Any] = json.loads(TWINS_FILE.read_text("utf-8"))
CLASS_FACTS: Mapping[str, ClassFacts] = {name: _class_facts(entry) for name, entry in _DATA["classes"].items()}
TWIN_ROWS: tuple[TwinRow, ...] = tuple(map(_row, _DATA["twins"]))


def twin_rows(source: str) -> tuple[TwinRow, ...]:
    """The twins of a type, the one to prefer first."""
    return tuple(row for row in TWIN_ROWS if row.source == source)


def twin_row(source: str, target: str) -> TwinRow | None:
    """The row of one pair."""
    return next((row for row in twin_rows(source) if row.target == target), None)
