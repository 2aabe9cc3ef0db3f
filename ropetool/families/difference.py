"""One difference between two checkpoints, as `diff` reports it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class What(str, Enum):
    """What differs."""

    CONFIG = "config"
    LENGTH = "length"
    PAIRING = "pairing"
    TENSOR = "tensor"


class How(str, Enum):
    """How a tensor differs."""

    LAYOUT = "layout"  # exactly the permutation between the two layouts
    NOT_PERMUTED = "not-permuted"  # the same, where the layouts of the two sides need another order
    OTHER_ORDER = "other-order"  # the same rows in an order that is not that of a layout
    VALUES = "values"
    FORM = "form"  # another dtype or shape
    MISSING = "missing"


class PartOf(str, Enum):
    """Which change of the whole a difference belongs to, where it belongs to one that ropetool knows."""

    LAYOUT = "layout"
    EXTENSION = "extension"


@dataclass(frozen=True)
class Difference:
    """One line: the place, what each side says there (None: nothing), and what that means.

    ``facts`` are numbers and names for scripts.
    """

    what: What
    where: str
    a: Any
    b: Any
    detail: str
    part_of: PartOf | None = None
    how: How | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
