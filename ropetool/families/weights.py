"""The weights as a witness: which layout the rows of q and k themselves show."""

from __future__ import annotations

from ropetool.checkpoint.folder import Checkpoint
from ropetool.families.reading import Evidence, Reading


def weights_evidence(checkpoint: Checkpoint, reading: Reading) -> Evidence:
    """A place to be filled: says that nothing was seen."""
    return Evidence("weights", "unknown", "the weights were not looked at")
