"""What holds of any rotation, asked of a loaded model: how it turns, a shift of positions, decoding with a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from ropetool.families.cannot import CACHED, RELATIVE
from ropetool.families.reading import Reading
from ropetool.families.verdict import Check
from ropetool.models.cached import cached_decoding
from ropetool.models.load import Runner
from ropetool.models.logits import rounding
from ropetool.models.options import DType
from ropetool.models.properties import observed_checks, relative_position

# Two passes to see how it turns, one with positions shifted, five to decode with a cache.
PROPERTY_PASSES = 8
# Two passes at the same positions round their angles alike, two at others do not (a Qwen3-MoE of unit gain: 1.9).
SHIFTED = 4.0


def property_checks(
    runner: Runner, reading: Reading, ids_T: Tensor, dtype: DType, logits_TV: Tensor, control_TV: Tensor
) -> list[Check]:
    """The checks of a model by its own class, whatever layout its weights are in.

    ``logits_TV`` are any of a right pass: how far they spread tells what rounding can do. ``control_TV`` are those of
    the wrong layout: where they are no others, positions do not matter in this model, and a shift proves nothing.
    """
    layers = int(reading.config.get("num_hidden_layers") or reading.config.get("n_layer") or 1)
    checks = observed_checks(runner, reading)
    if dtype is DType.BFLOAT16:
        why = "cannot, by the number type: bfloat16 rounds cos and sin, differently at each position"
        return [*checks, *(Check(name, True, why) for name in (RELATIVE, CACHED))]
    # In any type, classes make cos and sin in float32, and some their norms, router (DBRX) or running state.
    allowed = rounding(logits_TV, DType.FLOAT32, layers)
    if torch.equal(logits_TV, control_TV):
        checks.append(Check(RELATIVE, True, "cannot, by the weights: no position matters to these logits"))
    else:
        checks.append(relative_position(runner, ids_T, reading, SHIFTED * allowed))
    checks.append(cached_decoding(runner, ids_T, reading, allowed))
    return checks
