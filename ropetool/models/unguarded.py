"""The config object of a checkpoint, guarded or not, as transformers would make it of the config.json that was."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool.checkpoint.folder import CONFIG, checkpoint_directory, has_guard, read_config
from ropetool.families.lengths import to_json
from ropetool.models.catalog import config_names


def config_of(path: Path, *, trust_remote_code: bool = False) -> Any:
    """What ``AutoConfig.from_pretrained`` gives; code of the checkpoint runs only with ``trust_remote_code``."""
    import transformers

    if has_guard(path):
        return config_object(read_config(path), checkpoint_directory(path), trust_remote_code=trust_remote_code)
    return transformers.AutoConfig.from_pretrained(
        checkpoint_directory(path), local_files_only=True, trust_remote_code=trust_remote_code
    )


def config_options(path: Path) -> dict[str, Any]:
    """``{"config": ...}`` for a guarded checkpoint of a type that transformers knows, nothing for any other."""
    known = has_guard(path) and read_config(path).get("model_type") in config_names()
    return {"config": config_of(path)} if known else {}


def config_object(config: Mapping[str, Any], directory: Path, *, trust_remote_code: bool = False) -> Any:
    """What ``AutoConfig.from_pretrained`` makes of ``config`` as the config.json of ``directory``."""
    kind = _config_class(config, directory, trust_remote_code)
    with tempfile.TemporaryDirectory(prefix="ropetool-") as plain:
        (Path(plain) / CONFIG).write_text(to_json(config), encoding="utf-8")
        read = kind.from_pretrained(plain, local_files_only=True, trust_remote_code=False)
    read.name_or_path = str(directory)
    return read


def _config_class(config: Mapping[str, Any], directory: Path, trust_remote_code: bool) -> Any:
    """The class of the code that lies in ``directory``, where there is one and it is trusted."""
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    auto_map = config.get("auto_map")
    named = auto_map.get("AutoConfig") if trust_remote_code and isinstance(auto_map, dict) else None
    if named is None:
        return transformers.AutoConfig
    return get_class_from_dynamic_module(str(named), str(directory), local_files_only=True)
