"""Float tensors as numbers: the safetensors dtypes that numpy lacks a name for, decoded.

The 8-bit ones are apart: what they mean depends on scales that lie in other tensors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[Any]]
# Bits of the exponent and of the mantissa (OCP 8-bit floating point specification, 2023).
FLOAT8_DTYPES = {"F8_E4M3": (4, 3), "F8_E5M2": (5, 2)}
NUMPY_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def decode_floats(raw: Any, dtype: str, kind: type[np.floating[Any]] = np.float64) -> Floats | None:
    """The values of a buffer (bytes, or an array of them) as ``kind``, in one dimension; None for any other dtype."""
    if dtype == "BF16":
        widened = np.frombuffer(raw, dtype="<u2").astype(np.uint32)
        widened <<= 16  # in place: ten times as fast as into another array
        return widened.view(np.float32).astype(kind, copy=False)
    name = NUMPY_DTYPES.get(dtype)
    return None if name is None else np.frombuffer(raw, dtype=name).astype(kind, copy=False)


def decode_float8(raw: Any, dtype: str) -> Floats:
    """The values of a buffer of 8-bit floats, before any scale; infinities and NaN as the format has them."""
    exponent_bits, mantissa_bits = FLOAT8_DTYPES[dtype]
    codes = np.arange(256)
    bias = 2 ** (exponent_bits - 1) - 1
    exponent = (codes >> mantissa_bits) & (2**exponent_bits - 1)
    mantissa = (codes & (2**mantissa_bits - 1)) / 2**mantissa_bits
    values = np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias))
    top = exponent == 2**exponent_bits - 1
    values = np.where(top & ((mantissa > 0) if exponent_bits == 5 else (mantissa == 0.875)), np.nan, values)
    values = np.where(top & (mantissa == 0) & (exponent_bits == 5), np.inf, values)
    table = np.where(codes < 128, values, -values)
    found: Floats = table[np.frombuffer(raw, dtype=np.uint8)]
    return found
