"""The optimiser of a search: CMA-ES over the unit cube, by pycma.

Hansen and Ostermeier, "Completely Derandomized Self-Adaptation in Evolution Strategies" (2001), as the package ``cma``
(4.x) has it. It takes the place of LongRoPE's evolutionary search (arXiv:2402.13753, algorithm 1), which spends
thousands of readings: this one learns from some tens which settings move together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ropetool.errors import UsageError
from ropetool.rope.frequencies import Floats

# The first steps, of an axis from 0 to 1.
SPREAD = 0.15
# What CMA-ES takes for a point that cannot be: worse than any loss.
IMPOSSIBLE = 1e6
LARGEST_SEED = (1 << 32) - 1


def need_optimiser() -> Any:
    """The package cma; raises `UsageError` where it is not installed."""
    try:
        import cma
    except ImportError as error:
        raise UsageError(
            "a search needs the optimiser cma, which is not installed: pip install 'ropetool[search]'", package="cma"
        ) from error
    return cma


class Optimiser:
    """Generations of points [D] of the unit cube, each made of how good the ones before were; the same for a seed."""

    def __init__(self, start: Floats, seed: int, spread: float = SPREAD) -> None:
        cma = need_optimiser()
        draw = np.random.default_rng(seed)
        options: dict[str, Any] = {
            "bounds": [0.0, 1.0], "seed": np.nan, "randn": lambda *shape: draw.standard_normal(shape), "verbose": -9,
            "verb_log": 0, "tolfun": 1e-4, "tolx": 1e-3,
        }  # fmt: skip
        self._width = len(start)
        # pycma asks for two dimensions at least: a second that nothing depends on.
        padded = [*start, *([0.5] if self._width == 1 else [])]
        self._strategy = cma.CMAEvolutionStrategy(padded, spread, options)
        self._asked: list[Any] = []

    @property
    def population(self) -> int:
        """How many points a generation has."""
        return int(self._strategy.popsize)

    def ask(self) -> list[Floats]:
        """The points of the next generation; none where it has converged."""
        if self._strategy.stop():
            return []
        self._asked = self._strategy.ask()
        return [np.asarray(point, dtype=np.float64)[: self._width] for point in self._asked]

    def tell(self, values: Sequence[float]) -> None:
        """How good the points of the last generation were, in order: less is better, and infinite is impossible."""
        self._strategy.tell(self._asked, [min(value, IMPOSSIBLE) for value in values])
