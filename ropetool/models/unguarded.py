"""The config object of a guarded checkpoint, for transformers' ``config=``; other checkpoints need none."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from ropetool.checkpoint.folder import CONFIG, checkpoint_directory, has_guard, read_config
from ropetool.families.lengths import to_json


def config_options(path: Path) -> dict[str, Any]:
    """``{"config": ...}`` for a guarded checkpoint, nothing for any other: there transformers reads the file itself."""
    return {"config": unguarded_config(path)} if has_guard(path) else {}


def unguarded_config(path: Path) -> Any:
    """What ``AutoConfig.from_pretrained`` makes of the config.json without the guard, by transformers' own reading."""
    import transformers

    with tempfile.TemporaryDirectory(prefix="ropetool-") as plain:
        (Path(plain) / CONFIG).write_text(to_json(read_config(path)), encoding="utf-8")
        config = transformers.AutoConfig.from_pretrained(plain, local_files_only=True)
    config.name_or_path = str(checkpoint_directory(path))
    return config
