"""Frequencies that were rounded to 16 bits on the way: told by being exactly what such a number can hold."""

from __future__ import annotations

import numpy as np

from ropetool.rope.frequencies import Floats


def to_bfloat16(values: Floats) -> Floats:
    """The nearest bfloat16 of every value, ties to even: float32 with the last 16 of its bits gone."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    kept = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.asarray(kept.view(np.float32), dtype=np.float64)


def to_float16(values: Floats) -> Floats:
    """The nearest float16 of every value."""
    return np.asarray(np.asarray(values).astype(np.float16), dtype=np.float64)


ROUNDINGS = {"bfloat16": to_bfloat16, "float16": to_float16}


def rounded_to(measured: Floats, meant: Floats, tolerance: float) -> str | None:
    """The 16-bit type that every one of the frequencies was rounded to, None where they were not.

    ``measured`` and ``meant`` are in radians per token, in the order of the pairs; ``tolerance`` is the relative error
    of the measuring. Where all that is meant fits in 16 bits (1, 1/2 ...), nothing was lost, and nothing is said.
    """
    if len(measured) != len(meant):
        return None
    for name, rounded in ROUNDINGS.items():
        fits, loses = _apart(measured, rounded(meant)) <= tolerance, _apart(meant, rounded(meant)) > 4 * tolerance
        if fits and loses:
            return name
    return None


def _apart(a: Floats, b: Floats) -> float:
    """The largest relative difference; of a pair whose frequency is zero, the difference."""
    return float((np.abs(a - b) / np.where(b == 0, 1.0, np.abs(b))).max(initial=0.0))
