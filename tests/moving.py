"""One tensor of a file permuted in place, by the pieces that a conversion is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ropetool.checkpoint.fields import ROWS, Lay
from ropetool.checkpoint.pieces import Step, cut, move
from ropetool.checkpoint.shards import Tensor
from ropetool.rope.pairing import closed_blocks


def patched(file: Path, tensor: Tensor, index: np.ndarray, lay: Lay = ROWS) -> None:
    with file.open("r+b", buffering=0) as handle:
        pieces = cut(Step(file.name, tensor, index, lay), list(closed_blocks(index)))
        move(pieces, handle.fileno(), handle.fileno())
