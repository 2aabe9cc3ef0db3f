"""Where and in what a model runs, and what it is asked: the choices alone, so that the command line needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from ropetool.errors import UsageError

# Bytes by GPU number and ``cpu``; `EACH`: for each GPU, or where there is none, for all of the process.
MaxMemory = Mapping[int | str, int]
EACH = "each"


class Device(str, Enum):
    """Where a model runs."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


class DType(str, Enum):
    """What a model computes in."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True)
class PasskeyPlan:
    """What to ask: at each length and depth so many seeded documents. See `models.passkey`."""

    depths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    trials: int = 5
    seed: int = 7

    def __post_init__(self) -> None:
        if not self.depths or not all(0 <= depth <= 1 for depth in self.depths) or self.trials < 1:
            raise UsageError(
                f"depths {', '.join(f'{depth:g}' for depth in self.depths)} and {self.trials} trials: a depth is a "
                f"share of the document, from 0 to 1, and there must be one depth and one trial at least"
            )
