"""Where and in what a model runs: the choices alone, so that the command line needs no torch to name them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

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
