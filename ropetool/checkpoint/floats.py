"""Float tensors as numbers: the safetensors dtypes that numpy lacks a name for, decoded; 8-bit floats are not."""

from __future__ import annotations

from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
NUMPY_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


def decode_floats(raw: Any, dtype: str) -> Floats | None:
    """The values of a buffer (bytes, or an array of them) as float64, in one dimension; None for any other dtype."""
    values = decode_exact(raw, dtype)
    return None if values is None else values.astype(np.float64)


def decode_exact(raw: Any, dtype: str) -> np.ndarray[Any, Any] | None:
    """The same values in the narrowest type of numpy's that holds them; bfloat16 as float32."""
    if dtype == "BF16":
        widened = np.left_shift(np.frombuffer(raw, dtype="<u2").astype(np.uint32), np.uint32(16))
        values: np.ndarray[Any, Any] = widened.view(np.float32)
        return values
    name = NUMPY_DTYPES.get(dtype)
    return None if name is None else np.frombuffer(raw, dtype=name)
