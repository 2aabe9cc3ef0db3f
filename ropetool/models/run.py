"""Run a loaded model: the names that the verbs use, from where they are."""

from __future__ import annotations

from ropetool.models.forward import logits, scores_of
from ropetool.models.load import Runner, live_config, load, load_right, pick_device, torch_dtype
from ropetool.models.reference import reference_rotation
from ropetool.models.tables import live_frequencies

__all__ = [
    "Runner",
    "live_config",
    "live_frequencies",
    "load",
    "load_right",
    "logits",
    "pick_device",
    "reference_rotation",
    "scores_of",
    "torch_dtype",
]
