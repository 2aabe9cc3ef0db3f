"""The choices of an extension, in a module of their own so that naming them costs no import."""

from __future__ import annotations

from enum import Enum


class Method(str, Enum):
    """The extension methods; ``auto`` measures and takes the best of them, ``none`` takes an extension back."""

    YARN = "yarn"
    LINEAR = "linear"
    NTK = "ntk"
    DYNAMIC = "dynamic"
    LONGROPE = "longrope"
    LLAMA3 = "llama3"
    ABF = "abf"
    AUTO = "auto"
    NONE = "none"


# Those that a block, or a base, can be written for.
EXTENDING = tuple(method for method in Method if method not in (Method.AUTO, Method.NONE))


class Weights(str, Enum):
    """How the output gets its weights."""

    LINK = "link"
    COPY = "copy"
    NONE = "none"
