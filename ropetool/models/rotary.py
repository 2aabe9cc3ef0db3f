"""The reference rotation in torch, and the torch forms of `ropetool.encodings`.

The rotation is the 2x2 rotation of each pair, written from its definition in both layouts. It knows nothing of index
maps: a wrong permutation cannot hide in it.

Each function of `ropetool.encodings` is here under its name with tensors for arrays: in its own words there, with
papers, shapes, units and errors. Gradients flow through what is learned, and through q and k. What is computed from
positions alone comes from the numpy form, as tensors in float32 on the processor.

Shape suffixes: B batch, H heads, T tokens, D head_dim, R rotary width.
"""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ropetool.errors import EncodingError
from ropetool.rope import encodings, rotary
from ropetool.rope.arguments import array, fits, floating, in_order, layout, places, whole
from ropetool.rope.frequencies import Scaling
from ropetool.rope.pairing import Pairing


@dataclass(frozen=True)
class Rotary:
    """How q and k are rotated: layout, frequencies, and where in the head the rotary span lies (in rows).

    ``live_inv_freq`` [R/2] is the model's own buffer, where it was checked against ``scaling``: with it, angles round
    exactly as the class rounds them, so that a comparison shows the layout and not the rounding. ``learned`` [R/2] are
    factors of the frequencies that the weights hold, for methods whose buffer changes with the length. ``backwards``:
    pairs turn by the negative angle (NanoChat).
    """

    pairing: Pairing
    scaling: Scaling
    rope_start: int
    rotary_dim: int
    live_inv_freq: Tensor | None = None
    backwards: bool = False
    learned: Tensor | None = None

    def cos_sin(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of each pair's angle times the attention factor: two tensors [T, R/2].

        In float32 whatever the model's dtype, as transformers' classes make them. The length in play, which dynamic
        and longrope look at, is the last position plus one.
        """
        inv_freq, length = self.live_inv_freq, int(positions_T.max()) + 1
        if inv_freq is None or self.scaling.follows_length:
            inv_freq = torch.from_numpy(self.scaling.inv_freq(self.rotary_dim, length))
            inv_freq = inv_freq if self.learned is None else inv_freq * self.learned
        angles_rad = positions_T.cpu().float()[:, None] * inv_freq.float().cpu()
        factor = self.scaling.attention_factor_at(length)
        return angles_rad.cos() * factor, angles_rad.sin() * factor

    def rotate(self, x_BHTD: Tensor, positions_T: Tensor) -> Tensor:
        """Rotate every pair of the rotary span; the other slots of the head stay."""
        cos, sin = (table.to(x_BHTD) for table in self.cos_sin(positions_T))
        sin = -sin if self.backwards else sin
        stop = self.rope_start + self.rotary_dim
        before, x, after = x_BHTD[..., : self.rope_start], x_BHTD[..., self.rope_start : stop], x_BHTD[..., stop:]
        return torch.cat((before, rotate_pairs(x, cos, sin, self.pairing), after), dim=-1)


def rotate_pairs(x_BHTR: Tensor, cos_T: Tensor, sin_T: Tensor, pairing: Pairing) -> Tensor:
    """Turn each pair (a, b) by its angle: a' = a cos - b sin, b' = a sin + b cos (arXiv:2104.09864, eq. 34).

    ``cos_T`` and ``sin_T`` are [T, R/2], one column per pair.
    """
    if pairing is Pairing.HALF:
        a, b = x_BHTR.chunk(2, dim=-1)
    else:
        a, b = x_BHTR[..., 0::2], x_BHTR[..., 1::2]
    turned_a, turned_b = a * cos_T - b * sin_T, a * sin_T + b * cos_T
    if pairing is Pairing.HALF:
        return torch.cat((turned_a, turned_b), dim=-1)
    return torch.stack((turned_a, turned_b), dim=-1).flatten(-2)


def rope_cache(seq_len: int, d_head: int, base: float | Scaling) -> tuple[Tensor, Tensor]:
    """cos and sin, two tensors [T, D/2] in float32: see `ropetool.rope.rotary.rope_cache`."""
    cos, sin = rotary.rope_cache(seq_len, d_head, base)
    return torch.from_numpy(cos), torch.from_numpy(sin)


def apply_rope(
    x: Tensor,
    cos: Any,
    sin: Any,
    *,
    pairing: Pairing | str,
    positions: Any = None,
    rotary_dim: int | None = None,
) -> Tensor:
    """Turn q or k: see `ropetool.rope.rotary.apply_rope`. The tables may be arrays, or lie on another device.

    x in bfloat16 or float16 is turned in float32 and rounded once, under autocast too; transformers' classes round cos
    and sin to the dtype of x first.
    """
    named, x = layout(pairing), _floats("x", x)
    cos, sin = _tensor("cos", cos), _tensor("sin", sin)
    width = rotary.checked_width(x.shape, cos, sin, rotary_dim)
    with suppress(RuntimeError):  # tables without numbers, on the meta device or under vmap, cannot be looked at
        in_order(cos, sin)
    at = torch.from_numpy(rotary.rows_at(x.shape, _on_processor("positions", positions), len(cos)))
    return _turned(x, cos[at.to(cos.device)], sin[at.to(sin.device)], named, width)


def shift_cached_keys(
    keys: Tensor, shift: int, base: float | Scaling, *, pairing: Pairing | str, rotary_dim: int | None = None
) -> Tensor:
    """Move keys that were turned already: see `ropetool.rope.rotary.shift_cached_keys`."""
    named, keys = layout(pairing), _floats("keys", keys)
    width = rotary.keys_width(keys.shape, rotary_dim)
    cos, sin = rotary.shift_tables(shift, width, base)
    return _turned(keys, torch.from_numpy(cos), torch.from_numpy(sin), named, width)


def _turned(x: Tensor, cos: Tensor, sin: Tensor, pairing: Pairing, width: int) -> Tensor:
    wide = x[..., :width].to(torch.promote_types(x.dtype, torch.float32))
    turned = rotate_pairs(wide, cos.to(x.device), sin.to(x.device), pairing)
    return torch.cat((turned.to(x.dtype), x[..., width:]), dim=-1)


def _tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of different lengths, None, an array run backwards
        raise EncodingError(f"{name} cannot be taken as a tensor: {error}", argument=name) from None


def _floats(name: str, value: Any) -> Tensor:
    found = _tensor(name, value)
    floating(name, found.is_floating_point() and found.dtype.itemsize >= 2, found.dtype)
    return found


def _on_processor(name: str, values: Any) -> Any:
    return array(name, values.detach().cpu()) if isinstance(values, Tensor) else values


def sinusoidal(seq_len: int, d: int) -> Tensor:
    """The fixed table, [T, d]: see `ropetool.rope.encodings.sinusoidal`."""
    return torch.from_numpy(encodings.sinusoidal(seq_len, d)).float()


def sinusoidal_shift(k: int, d: int) -> Tensor:
    """The matrix that moves the fixed table, [d, d]: see `ropetool.rope.encodings.sinusoidal_shift`."""
    return torch.from_numpy(encodings.sinusoidal_shift(k, d)).float()


class LearnedPositions(nn.Module):
    """One learned row for each position, to be trained: see `ropetool.rope.encodings.LearnedPositions`.

    The rows are the parameter ``weight``, so that the state of an ``nn.Embedding`` (GPT-2's ``wpe``) loads into it.
    """

    def __init__(self, max_len: int, d: int, table: Any = None) -> None:
        super().__init__()
        self.max_len, self.d = whole("max_len", max_len, least=1), whole("d", d, least=1)
        shape = (self.max_len, self.d)
        rows = torch.empty(shape).normal_(std=encodings.FIRST_SPREAD) if table is None else _floats("table", table)
        fits("table", rows.shape, shape)
        self.weight = nn.Parameter(rows.detach().clone())

    def forward(self, positions: Any) -> Tensor:
        """The rows of ``positions`` [...], shape [..., d]; raises `PositionError` for one that has none."""
        at = places(_on_processor("positions", positions), self.max_len, encodings.LEARNED)
        return self.weight[torch.from_numpy(at).to(self.weight.device)]


def shaw_scores(q: Tensor, k: Tensor, vectors: Tensor, *, first_query: int | None = None) -> Tensor:
    """Scores with Shaw's relative vectors, [..., Tq, Tk]: see `ropetool.rope.encodings.shaw_scores`.

    In the widest of the three dtypes, as with arrays.
    """
    q, k, vectors = _floats("q", q), _floats("k", k), _floats("vectors", vectors)
    widest = functools.reduce(torch.promote_types, (q.dtype, k.dtype, vectors.dtype))
    q, k, vectors = (given.to(widest) for given in (q, k, vectors))
    index = torch.from_numpy(encodings.shaw_index(q.shape, k.shape, vectors.shape, first_query)).to(q.device)
    queries = torch.arange(q.shape[-2], device=q.device)[:, None]
    return q @ k.transpose(-1, -2) + (q @ vectors.T)[..., queries, index]


def t5_buckets(distances: Any, *, buckets: int, max_distance: int, bidirectional: bool) -> Tensor:
    """The bucket of each distance: see `ropetool.rope.encodings.t5_buckets`."""
    found = encodings.t5_buckets(
        _on_processor("distances", distances), buckets=buckets, max_distance=max_distance, bidirectional=bidirectional
    )
    return torch.from_numpy(np.asarray(found))


def t5_bias(seq_len: int, table: Tensor, *, bidirectional: bool, max_distance: int) -> Tensor:
    """T5's relative bias, [H, T, T]: see `ropetool.rope.encodings.t5_bias`."""
    table = _tensor("table", table)
    index = encodings.t5_index(seq_len, table.shape, bidirectional=bidirectional, max_distance=max_distance)
    return table[torch.from_numpy(index).to(table.device)].permute(2, 0, 1)


def alibi_slopes(heads: int) -> Tensor:
    """The slope of every head, [H]: see `ropetool.rope.encodings.alibi_slopes`."""
    return torch.from_numpy(encodings.alibi_slopes(heads)).float()


def alibi_bias(seq_len: int, heads: int) -> Tensor:
    """ALiBi, [H, T, T]: see `ropetool.rope.encodings.alibi_bias`."""
    return torch.from_numpy(encodings.alibi_bias(seq_len, heads)).float()
