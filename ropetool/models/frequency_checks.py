"""The frequencies that a loaded model turns by, held against those that its config means."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.families.file_checks import Side
from ropetool.families.verdict import Check
from ropetool.models.load import Runner
from ropetool.models.tables import live_frequencies, live_of, stretch

# Float32 keeps a frequency to 1e-7, bfloat16 to 4e-3; classes compute theirs in float32, in a few steps.
LIVE_TOLERANCE = 1e-5


def frequency_checks(runner: Runner, a: Side, b: Side, *, extended: bool) -> Iterator[Check]:
    """The live inv_freq of B is what its config means (and was not rounded), and an extension changed it."""
    reach = b.reading.reach or 1
    stretch(runner.model, reach)
    live = live_frequencies(runner.model)
    stretch(runner.model, 1)
    planned, old = (
        {r.layers: torch.from_numpy(r.scaling.inv_freq(r.geometry.rotary_dim, reach)) for r in s.reading.rotations}
        for s in (b, a)
    )
    kinds = getattr(runner.model.config, "layer_types", None)
    planned = {kind: f for kind, f in planned.items() if kind == ALL_LAYERS or not kinds or kind in kinds}
    if not live and not extended:
        detail = "the class keeps no frequencies in a buffer; its table shows in the logits alone"
        yield Check("frequencies-live", True, detail)
        return
    if b.reading.family.learned:
        yield Check(
            "frequencies-live", True, "the weights hold a learned factor for every frequency; the config does not"
        )
        return
    apart = max(_relative_distance(live_of(live, kind), frequencies) for kind, frequencies in planned.items())
    yield Check(
        "frequencies-live",
        apart < LIVE_TOLERANCE,
        f"the model's live frequencies are within {apart:.1e} of those that config.json means",
    )
    if extended:
        changed = any(
            _relative_distance(live_of(live, kind), old[kind]) > LIVE_TOLERANCE for kind in old if kind in planned
        )
        detail = "the extension changed the live frequencies" if changed else "the extension changed no live frequency"
        yield Check("frequencies-changed", changed, detail)


def _relative_distance(live: Tensor | None, planned: Tensor) -> float:
    """The largest relative difference over the pairs; pairs that never turn must do so in both.

    In order of size: where a class keeps them in another order, only the logits can tell whether it is the right one.
    """
    if live is None or live.shape != planned.shape:
        return math.inf
    live, planned = live.sort().values, planned.sort().values
    still = planned == 0
    if bool((live[still] != 0).any()):
        return math.inf
    return float(((live - planned)[~still] / planned[~still]).abs().max())
