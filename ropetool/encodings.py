"""Encodings of position, for reading and for use: the public API, on numpy arrays or torch tensors.

==================  ====================================================  =======================================
scheme              functions                                             what it does
==================  ====================================================  =======================================
sinusoidal          `sinusoidal`, `sinusoidal_shift`                      fixed rows, added to the embeddings
learned             `LearnedPositions`                                    learned rows, added to the embeddings
Shaw's              `shaw_scores`                                         learned vectors, added to the keys
T5's                `t5_bias`, `t5_buckets`                               learned numbers, added to the scores
ALiBi               `alibi_bias`, `alibi_slopes`                          fixed numbers, added to the scores
RoPE                `rope_cache`, `apply_rope`, `shift_cached_keys`       turns q and k
==================  ====================================================  =======================================

RoPE takes a scaling method in the place of its base: `Linear` (position interpolation), `NtkAware`, `AdjustedBase`,
`Dynamic`, `Yarn`, `LongRope`, `Llama3`, `Proportional`.

Given arrays, a function gives an array, computed by `ropetool.rope`; given a tensor among them, it gives a tensor, by
the torch form of the same name in `ropetool.models.rotary`. What is given numbers alone (`sinusoidal`, `rope_cache`,
`LearnedPositions` ...) gives arrays, which the torch forms take too; the tensors are there under the same names.
Importing this module does not import torch.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from ropetool.rope import encodings as _encodings
from ropetool.rope import rotary as _rotary
from ropetool.rope.encodings import LearnedPositions, alibi_bias, alibi_slopes, sinusoidal, sinusoidal_shift
from ropetool.rope.frequencies import (
    AdjustedBase,
    Default,
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    NtkAware,
    Proportional,
    Scaling,
    Yarn,
)
from ropetool.rope.layout import Pairing
from ropetool.rope.rotary import rope_cache

__all__ = [
    "AdjustedBase",
    "Default",
    "Dynamic",
    "LearnedPositions",
    "Linear",
    "Llama3",
    "LongRope",
    "NtkAware",
    "Pairing",
    "Proportional",
    "Scaling",
    "Yarn",
    "alibi_bias",
    "alibi_slopes",
    "apply_rope",
    "rope_cache",
    "shaw_scores",
    "shift_cached_keys",
    "sinusoidal",
    "sinusoidal_shift",
    "t5_bias",
    "t5_buckets",
]


def _in_both(form: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays, which the torch form of its name answers for where any argument is a tensor."""

    @functools.wraps(form)
    def either(*given: Any, **named: Any) -> Any:
        torch = sys.modules.get("torch")  # without torch, nobody has a tensor
        if torch is None or not any(isinstance(value, torch.Tensor) for value in (*given, *named.values())):
            return form(*given, **named)
        from ropetool.models import rotary

        return getattr(rotary, form.__name__)(*given, **named)

    return either


shaw_scores = _in_both(_encodings.shaw_scores)
t5_buckets = _in_both(_encodings.t5_buckets)
t5_bias = _in_both(_encodings.t5_bias)
apply_rope = _in_both(_rotary.apply_rope)
shift_cached_keys = _in_both(_rotary.shift_cached_keys)
