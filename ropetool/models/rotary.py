"""The reference rotation in torch: the 2x2 rotation of each pair, written from its definition in both layouts.

It knows nothing of index maps: a wrong permutation cannot hide in it. Shape suffixes: B batch, H heads, T tokens,
D head_dim, R rotary width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
