"""The config object of a guarded checkpoint, for transformers' ``config=``; other checkpoints need none."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool.checkpoint.folder import CONFIG, checkpoint_directory, has_guard, read_config
from ropetool.families.lengths import to_json


def config_options(path: Path) -> dict[str, Any]:
    """``{"config": ...}`` for a guarded checkpoint, nothing for any other: there transformers reads the file itself."""
    return {"config": config_object(read_config(path), checkpoint_directory(path))} if has_guard(path) else {}


def config_object(config: Mapping[str, Any], directory: Path) -> Any:
    """What ``AutoConfig.from_pretrained`` makes of ``config`` as a config.json, by transformers' own way of reading."""
    import transformers

    with tempfile.TemporaryDirectory(prefix="ropetool-") as plain:
        (Path(plain) / CONFIG).write_text(to_json(config), encoding="utf-8")
        read = transformers.AutoConfig.from_pretrained(plain, local_files_only=True)
    read.name_or_path = str(directory)
    return read
