"""What a verification says: its checks by name, and the verdict that rests on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ropetool.rope.layout import Pairing


@dataclass(frozen=True)
class Check:
    """One named line of the result; ``where`` is the culprit of one that failed: a tensor, a layer or a key."""

    name: str
    passed: bool
    detail: str
    where: str | None = None


@dataclass(frozen=True)
class Fault:
    """What is wrong, in a sentence, and the culprit: a tensor, a layer, a key or a file."""

    said: str
    where: str


def check_of(name: str, fault: Fault | None, otherwise: str) -> Check:
    """The line of a check that found ``fault``; without one it passes, and says ``otherwise``."""
    return Check(name, True, otherwise) if fault is None else Check(name, False, fault.said, fault.where)


@dataclass(frozen=True)
class Verification:
    """The verdict, and everything that it rests on; ``culprit`` is the first check that failed.

    Where nothing ran, device and dtype are ``none``, tokens 0, and the figures not a number. ``a`` and ``b`` are the
    two checkpoints, as they were named.
    """

    passed: bool
    relation: str
    device: str
    dtype: str
    tokens: int
    max_abs_diff: float
    relative_diff: float
    mean_kl: float
    top1_agreement: float
    tolerance: float
    tolerance_reason: str
    by_position: tuple[Mapping[str, float], ...]
    control: Mapping[str, Any]
    checks: tuple[Check, ...]
    a: str = ""
    b: str = ""
    culprit: Check | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "culprit", next((check for check in self.checks if not check.passed), None))


def without_forward_pass(pairing: Pairing, relation: str, checks: tuple[Check, ...], why: str) -> Verification:
    """The verdict by files alone, and ``why`` nothing was run."""
    control = {"layout": pairing.other.value, "max_abs_diff": math.nan, "failed_as_it_must": None}
    passed, unknown = all(check.passed for check in checks), math.nan
    return Verification(
        passed, relation, "none", "none", 0, unknown, unknown, unknown, unknown, unknown, f"nothing was run: {why}", (),
        control, checks,
    )  # fmt: skip
