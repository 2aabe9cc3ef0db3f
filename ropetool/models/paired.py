"""How far two ways to read the same tokens are apart, and how sure that is.

A text's tokens differ in their losses by far more than two ways to read it do, so only the difference at each token
tells. Neighbouring tokens err together: the error is also taken over runs of tokens, and the larger of the two counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# A difference is clear at so many standard errors: of several compared, chance brings one in a thousand there.
SIGMAS = 3.0
# In nats a token: less is no matter, however sure it is. A base shows by less than a layout or a length does.
LEAST_NATS, LEAST_OF_BASE = 0.05, 0.03
# Tokens that may err together: some words.
RUN_TOKENS = 16
# The error says nothing of a text that is no language of the model: no measurement is surer than this.
MOST_SURE = 0.999


@dataclass(frozen=True)
class Gap:
    """A mean difference over the same tokens, and its standard error; both in nats a token."""

    nats: float
    error: float

    @property
    def sigmas(self) -> float:
        """The difference in standard errors."""
        return self.nats / self.error if self.error > 0 else 0.0

    @property
    def clear(self) -> bool:
        """Whether it is above nothing, by enough to matter and surely."""
        return self.clear_by(LEAST_NATS)

    def clear_by(self, nats: float) -> bool:
        """Whether it is surely above nothing, and so many nats or more."""
        return self.nats >= nats and self.sigmas >= SIGMAS

    @property
    def confidence(self) -> float:
        """The chance that it is above nothing, by its error; never 1."""
        return min(0.5 * (1 + math.erf(self.sigmas / math.sqrt(2))), MOST_SURE)

    def __str__(self) -> str:
        return f"{self.nats:.2g} +- {self.error:.1g}"


def gap(worse_T: Floats, better_T: Floats) -> Gap:
    """How much more the first costs than the second, over the same tokens."""
    difference_T = worse_T - better_T
    return Gap(float(difference_T.mean()), max(_error(difference_T), _error(_runs(difference_T))))


def _error(values: Floats) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.inf


def _runs(values_T: Floats) -> Floats:
    """The means of whole runs; the tokens themselves where there are too few runs to tell."""
    runs = len(values_T) // RUN_TOKENS
    return values_T[: runs * RUN_TOKENS].reshape(runs, RUN_TOKENS).mean(1) if runs > 3 else values_T
