"""Whether two config.json mean the same to the classes that read them; a twin's through its row."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool.checkpoint.folder import CONFIG
from ropetool.engines.writing import LAYOUT_KEYS
from ropetool.errors import TwinError
from ropetool.families.config_difference import OUTSIDE_THE_LOGITS, TRAINING_ENDINGS, block_fault
from ropetool.families.lengths import OTHER_LENGTH_KEYS
from ropetool.families.reading import Reading
from ropetool.families.twin_rows import twin_row
from ropetool.families.twins import twin_config
from ropetool.families.verdict import Fault
from ropetool.models.run import live_config

# Keys of a config that no logit depends on, and those of the rotation, which has checks of its own.
SKIPPED = OUTSIDE_THE_LOGITS | {
    *("rope_parameters", "rope_scaling", "rope_theta", "rotary_emb_base"),
    *LAYOUT_KEYS,
    *("original_max_position_embeddings", "partial_rotary_factor", "rope_local_base_freq"),
}


def config_fault(
    paths: tuple[Path, Path],
    configs: tuple[Mapping[str, Any], Mapping[str, Any]],
    a: Reading,
    b: Reading,
    *ignored: str,
    trust_remote_code: bool = False,
) -> Fault | None:
    """Where the second config means another model than the first, but for ``ignored`` keys; None where it does not.

    Of the rope block, those keys that no scaling method reads are held against each other (mRoPE sections, for one).

    For two types that are twins, the second must mean what the row makes of the first: a key that was lost on the way
    is then the class's own default, and shows. Raises `CheckpointError` where a class cannot read its config.
    """
    row = twin_row(a.model_type, b.model_type)
    try:
        left = (
            live_config(paths[0], trust_remote_code=trust_remote_code)
            if row is None
            else _live(twin_config(configs[0], a, row)[0])
        )
    except TwinError as error:
        return Fault(f"model_type: {error.message}", "model_type")
    right = live_config(paths[1], trust_remote_code=trust_remote_code)
    left, right = (_spread(config, a.decoder.path) for config in (left, right))
    skip = {*SKIPPED, *OTHER_LENGTH_KEYS, b.family.theta_list, *ignored}
    differing = [
        key
        for key in sorted(left.keys() | right.keys())
        if key.rpartition(".")[2] not in skip and not key.endswith(TRAINING_ENDINGS) and left.get(key) != right.get(key)
    ]
    said = [f"{key} is {left.get(key)!r} in one and {right.get(key)!r} in the other" for key in differing[:3]]
    return Fault("; ".join(said), differing[0]) if said else block_fault(a, b)


def _spread(config: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """A config with the keys of its text decoder one by one: ``text_config.head_dim``."""
    inner = config.get(path[0]) if path else None
    if not isinstance(inner, dict):
        return dict(config)
    spread = {f"{path[0]}.{key}": value for key, value in _spread(inner, path[1:]).items()}
    return {key: value for key, value in config.items() if key != path[0]} | spread


def _live(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as its class understands it, read from a file as any other."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / CONFIG).write_text(json.dumps(config), encoding="utf-8")
        return live_config(Path(directory))
