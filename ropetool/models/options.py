"""Where and in what a model runs: the choices alone, so that the command line needs no torch to name them."""

from __future__ import annotations

from enum import Enum


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
