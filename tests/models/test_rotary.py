"""The reference rotation's tables: angles, and the length of cos and sin that goes with the tokens in play."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ropetool.models.rotary import Rotary
from ropetool.rope.frequencies import Default, LongRope, Scaling, Yarn
from ropetool.rope.pairing import Pairing

PER_LIST = LongRope(1e4, (1.0,) * 4, (1.0, 2.0, 4.0, 8.0), 64, 4.0, short_mscale=1.05, long_mscale=1.25)


@pytest.mark.parametrize(
    ("scaling", "length", "factor"),
    [
        (Default(1e4), 65, 1.0),
        (Yarn(1e4, 4.0, 64), 65, 1.1386294),
        (LongRope(1e4, (1.0,) * 4, (2.0,) * 4, 64, 4.0), 65, 1.1547005),
        (PER_LIST, 64, 1.05),
        (PER_LIST, 65, 1.25),
    ],
)
def test_cos_and_sin_are_as_long_as_the_length_in_play_says(scaling: Scaling, length: int, factor: float) -> None:
    cos, sin = Rotary(Pairing.HALF, scaling, 0, 8).cos_sin(torch.arange(length))
    assert cos.shape == sin.shape == (length, 4)
    np.testing.assert_allclose(torch.hypot(cos, sin).numpy(), np.full((length, 4), factor), rtol=1e-6)
    np.testing.assert_allclose(torch.atan2(sin, cos)[1].numpy(), scaling.inv_freq(8, length), rtol=1e-6)
