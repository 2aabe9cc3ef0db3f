"""How far apart the log-probabilities of two programs are, and which distance is the same and which is not."""

from __future__ import annotations

import torch

ALLOWED, WIDE = 1e-3, 1.0  # nats: the largest difference of a log-probability
FLOOR = -60.0
FEWEST_ROWS = 2


def difference(log_probs: torch.Tensor, truth: torch.Tensor) -> float:
    """The largest difference in nats of two [T, V], over the rows that the program was asked for: the others are NaN.

    What is below FLOOR counts as FLOOR: llama.cpp takes the logarithm of a float32 probability, which ends at e^-87.
    """
    assert log_probs.dtype == truth.dtype == torch.float32
    assert log_probs.shape == truth.shape
    asked = ~log_probs.isnan().all(-1)
    assert int(asked.sum()) >= FEWEST_ROWS
    return float((log_probs[asked].clamp(min=FLOOR) - truth[asked].clamp(min=FLOOR)).abs().max())
