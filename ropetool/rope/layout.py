"""The two layouts by name, in a module of their own so that naming them costs no import."""

from __future__ import annotations

from enum import Enum


class Pairing(str, Enum):
    """Which rows of a head turn together."""

    HALF = "half"
    INTERLEAVED = "interleaved"

    @property
    def other(self) -> Pairing:
        """The other layout."""
        return Pairing.INTERLEAVED if self is Pairing.HALF else Pairing.HALF
