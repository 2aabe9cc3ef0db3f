"""The choices of an extension, in a module of their own so that naming them costs no import."""

from __future__ import annotations

from enum import Enum


class Method(str, Enum):
    """The extension methods."""

    YARN = "yarn"
    LINEAR = "linear"
    NTK = "ntk"


class Weights(str, Enum):
    """How the output gets its weights."""

    LINK = "link"
    COPY = "copy"
    NONE = "none"
