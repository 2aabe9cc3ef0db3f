"""The family table: one row per model type, read from the model's own code.

Everything is data: no other module asks for a model type by name. Types that are alike share a group; what each config
class uses where config.json is silent lies in ``classes.json``, which ``tools/read_classes.py`` writes. Sources are
files of transformers 5.24.0 under ``models/``; the probe (`models.probe`) checks every row against the class itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from ropetool.families import encoders, half, half_fused, half_normed, interleaved, latent, local_global
from ropetool.families.family import Family

GROUPS = (half, half_normed, half_fused, interleaved, latent, local_global, encoders)

TABLE: Mapping[str, Family] = {row.model_type: row for group in GROUPS for row in group.ROWS}
