"""RoPE itself in numpy: the tables of cos and sin, the rotation in both layouts, and moving cached keys.

RoPE turns q and k, pair of coordinates by pair, by an angle proportional to the position (Su et al., "RoFormer",
arXiv:2104.09864, section 3.2.2). A dot product of two vectors that were turned by m and by n depends on m - n alone:
absolute positions go in, relative ones come out. Norms stay, and v is not touched.

The base of the frequencies is a number, or one of the scaling methods of `ropetool.rope.frequencies` (position
interpolation, NTK-aware, dynamic, YaRN, LongRoPE, llama3), which has its own. The torch forms of the same name are in
`ropetool.models.rotary`.

Shape suffixes: T tokens (positions), D head_dim, R rotary width (coordinates that turn), R/2 pairs.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import EncodingError, MethodError
from ropetool.rope.arguments import (
    AnyFloats,
    Indices,
    Shape,
    array,
    even,
    fits,
    floating,
    in_order,
    layout,
    places,
    ranked,
    whole,
)
from ropetool.rope.checked import checked
from ropetool.rope.frequencies import Default, Floats, Scaling
from ropetool.rope.layout import Pairing
from ropetool.rope.pairing import pairs

Table = npt.NDArray[np.float32]
WIDE = ("float32", "float64")
COLUMNS = ": a column for each pair that turns (with partial rotary, rotary_dim says how many coordinates do)"


def rope_cache(seq_len: int, d_head: int, base: float | Scaling) -> tuple[Table, Table]:
    """cos and sin of every position's angles: two tables [T, D/2] in float32, one column for each pair.

    Pair i turns by base^(-2i/D) radians with each token (Su et al., arXiv:2104.09864, section 3.2.2): column 0 is the
    fastest, one turn in 2 pi tokens. Both layouts have the same tables, as they differ only in which two coordinates
    are pair i. ``base`` is theta (RoFormer: 10000), or a scaling method with its own theta, as
    ``Yarn(theta=1e4, factor=4.0, original_length=4096)``; then both tables also carry its attention factor. With
    partial rotary, ``d_head`` is the rotary width.

    Dynamic and LongRoPE follow the length in play: for them ``seq_len`` is that length, and the tables of a longer
    one do not begin with those of a shorter one.

    Always float32, whatever the dtype of the model: an angle is position times frequency, and 16 bits lose it. How far
    the worst angle below a position is off, in radians, at head_dim 128 and base 10000, with what is rounded where:

    ====================================================  ========  =========  ===========
    rounded                                                512       4,096      131,072
    ====================================================  ========  =========  ===========
    cos and sin to float32 (here; angles are float64)      4.1e-08   4.2e-08    4.2e-08
    frequencies and angles to float32 (transformers)       2.9e-05   2.4e-04    7.8e-03
    cos and sin to bfloat16                                2.7e-03   2.7e-03    2.8e-03
    frequencies to bfloat16                                6.3e-01   5.0e+00    1.6e+02
    positions to bfloat16                                  1.0e+00   8.0e+00    2.6e+02
    ====================================================  ========  =========  ===========

    Raises `EncodingError` for an odd ``d_head``, no tokens, or a base that is not above 1; `ConfigError` for numbers
    of a method that no config may hold (a factor below 1), or with which it cannot be computed.
    """
    seq_len, scaling = whole("seq_len", seq_len, least=1), scaling_of(base)
    angles_rad = np.arange(seq_len, dtype=np.float64)[:, None] * _inv_freq(scaling, even("d_head", d_head), seq_len)
    factor = scaling.attention_factor_at(seq_len)
    return (np.cos(angles_rad) * factor).astype(np.float32), (np.sin(angles_rad) * factor).astype(np.float32)


def scaling_of(base: float | Scaling) -> Scaling:
    """A scaling method as it is, once its numbers are checked; a number as the base of plain RoPE."""
    scaling = base if isinstance(base, Scaling) else Default(base)
    theta = scaling.theta
    if not isinstance(theta, Real) or not 1 < theta < math.inf:
        raise EncodingError(
            f"the base is {theta!r}; it must be a number above 1, or no pair is slower than the next", base=theta
        )
    return checked(scaling)


def _inv_freq(scaling: Scaling, rotary_dim: int, length: int | None = None) -> Floats:
    inv_freq = scaling.inv_freq(rotary_dim, length)
    if not (np.isfinite(inv_freq).all() and (inv_freq >= 0).all()):
        raise EncodingError(
            f"{scaling} gives the frequencies {inv_freq.min():g} to {inv_freq.max():g}; they must be finite, and none "
            "below 0",
            method=scaling.name,
        )
    return inv_freq


def apply_rope(
    x: AnyFloats,
    cos: AnyFloats,
    sin: AnyFloats,
    *,
    pairing: Pairing | str,
    positions: npt.ArrayLike | None = None,
    rotary_dim: int | None = None,
) -> AnyFloats:
    """Turn q or k, shape [..., T, D], by the tables of `rope_cache`: the same shape and dtype, computed in float32.

    Every pair (a, b) of coordinates becomes (a cos - b sin, a sin + b cos) (arXiv:2104.09864, equation 34).
    ``pairing`` says which two are pair i, and must be the one that the weights were trained with: "half" takes i and
    i + D/2, "interleaved" 2i and 2i + 1. No shape shows a wrong one: the model would talk on, and be silently wrong.

    ``positions``: the position of each token, [T], or as x is without its last dimension, with 1 where they are shared
    ([batch, 1, T] for x [batch, heads, T, D]). Without them the tokens are at 0, 1 ... T - 1: with a cache of keys,
    give them. ``rotary_dim``: with partial rotary (GPT-NeoX, GPT-J), how many of the first coordinates turn; the others
    stay. Values (v) have no position and are not turned.

    Raises `PositionError` for a position beyond the tables; `EncodingError` for tables that were rounded to 16 bits,
    that are in each other's place (which is seen where they begin at position 0), or that have every column twice, as
    transformers' have; for shapes that do not fit, or a pairing that is neither.
    """
    named, x, cos, sin = layout(pairing), array("x", x), array("cos", cos), array("sin", sin)
    floating("x", x.dtype.kind == "f", x.dtype)
    width = checked_width(x.shape, cos, sin, rotary_dim)
    in_order(cos, sin)
    at = rows_at(x.shape, positions, len(cos))
    return _turned(x, cos[at], sin[at], named, width)


def _turned(x: AnyFloats, cos: AnyFloats, sin: AnyFloats, pairing: Pairing, width: int) -> AnyFloats:
    """The first ``width`` coordinates of x turned by cos and sin, which have a row for each token, or one for all.

    Products with tables in float32 are float32 at least: only what is written back is rounded to the dtype of x.
    """
    first, second = np.array(list(pairs(width, pairing))).T
    turned, a, b = np.array(x), x[..., first], x[..., second]
    turned[..., first], turned[..., second] = a * cos - b * sin, a * sin + b * cos
    return turned


def rotary_width(head_dim: int, rotary_dim: int | None) -> int:
    """How many coordinates of a head turn; raises `EncodingError` for an odd number, or more than there are."""
    width = even("head_dim", head_dim) if rotary_dim is None else even("rotary_dim", rotary_dim)
    if width > head_dim:
        raise EncodingError(f"rotary_dim is {width}, and a head has {head_dim} coordinates", rotary_dim=width)
    return width


def checked_width(x: Shape, cos: Any, sin: Any, rotary_dim: int | None) -> int:
    """How many coordinates of x turn by two tables (arrays, tensors); raises `EncodingError` if they do not fit."""
    ranked("x", x, 2, "[..., tokens, head_dim]")
    width = rotary_width(x[-1], rotary_dim)
    for name, table in (("cos", cos), ("sin", sin)):
        ranked(name, tuple(table.shape), 2, "[tokens, pairs]")
        fits(name, tuple(table.shape), (len(cos), width // 2), COLUMNS)
        dtype = str(table.dtype).removeprefix("torch.")
        if dtype not in WIDE:
            raise EncodingError(
                f"{name} is {dtype}; cos and sin stay in float32 whatever the dtype of the model, as 16 bits are up to "
                "0.002 off. Take them as rope_cache gives them: only x has the dtype of the model",
                dtype=dtype,
            )
    return width


def rows_at(x: Shape, positions: npt.ArrayLike | None, rows: int) -> Indices:
    """The row of the tables for every token of x; raises where there is none, or where the positions' shape is wrong.

    A shape that would merely broadcast is wrong: one position for many tokens, or [batch, T] taken for [heads, T].
    """
    at = places(np.arange(x[-2]) if positions is None else positions, rows, "cos and sin")
    wanted = x[:-1] if at.ndim != 1 else x[-2:-1]
    shared = len(wanted) == at.ndim and all(p in (1, n) for p, n in zip(at.shape, wanted, strict=True))
    if not shared or at.shape[-1] != x[-2]:
        raise EncodingError(
            f"positions have the shape {list(at.shape)}, and x {list(x)}; they must be {[x[-2]]}, or {list(x[:-1])} "
            "with 1 where they are shared",
            positions=list(at.shape),
        )
    return at


def shift_cached_keys(
    keys: AnyFloats,
    shift: int,
    base: float | Scaling,
    *,
    pairing: Pairing | str,
    rotary_dim: int | None = None,
) -> AnyFloats:
    """Move keys that were turned already by ``shift`` positions, without the unturned ones: shape and dtype of keys.

    ``keys`` [..., T, D] are as a cache holds them, after RoPE. Turning by m and then by s is turning by m + s
    (arXiv:2104.09864, equation 34), so each pair is turned by s times its frequency, whatever position it is at: that
    is how a cache whose first tokens were dropped is moved up (llama.cpp's context shift). ``shift`` may be negative.
    Values have no position and stay.

    Where this is exact (but for one rounding to the dtype of the keys, again with each call: shift from the original,
    not from the last shift) and where not:

    * plain RoPE, linear, NTK-aware, an adjusted base, llama3 and proportional: exact;
    * YaRN: exact, if its attention factor is left out. The cached keys carry it already; a shift by the model's own
      tables of cos and sin would put it on again with each shift, so the shift is by plain cos and sin;
    * dynamic and LongRoPE: refused. Their frequencies follow the length in play, so that a key cached at one length was
      turned by other frequencies than the same key at another, and a shift by either leaves the wrong angle.

    Raises `MethodError` for these two, `EncodingError` for widths that do not fit, and for another pairing;
    `ConfigError` for numbers of a method, as `rope_cache` does.
    """
    named, keys = layout(pairing), array("keys", keys)
    floating("keys", keys.dtype.kind == "f", keys.dtype)
    width = keys_width(keys.shape, rotary_dim)
    return _turned(keys, *shift_tables(shift, width, base), named, width)


def keys_width(keys: Shape, rotary_dim: int | None) -> int:
    """How many coordinates of cached keys turn, by their shape; raises `EncodingError` as `rotary_width` does."""
    ranked("keys", keys, 1, "[..., tokens, head_dim]")
    return rotary_width(keys[-1], rotary_dim)


def shift_tables(shift: int, width: int, base: float | Scaling) -> tuple[Table, Table]:
    """cos and sin of the angles of a shift, each [R/2] in float32 and without attention factor."""
    scaling = scaling_of(base)
    if scaling.follows_length:
        raise MethodError(
            f"keys turned under {scaling.name} cannot be moved: its frequencies follow the length in play, so that a "
            "cached key has the angle of the length at which it was computed. Compute the keys anew at their new "
            "positions",
            method=scaling.name,
        )
    angles_rad = whole("shift", shift) * _inv_freq(scaling, width)
    return np.cos(angles_rad).astype(np.float32), np.sin(angles_rad).astype(np.float32)
