"""What a verification says: its checks by name, and the verdict that rests on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    """The verdict, and everything that it rests on."""

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
    by_position: tuple[Mapping[str, float], ...]
    control: Mapping[str, Any]
    checks: tuple[Check, ...]
