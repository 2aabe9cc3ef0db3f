"""A loaded model and where it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


def silent(message: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Runner:
    """A loaded model, the device that it computes on, and whom to tell what it does otherwise than asked."""

    model: Any
    device: torch.device
    talk: Callable[[str], None] = silent
