"""A PEFT adapter directory: recognised, opened, and where its base model is.

PEFT writes ``adapter_config.json`` and ``adapter_model.safetensors`` (older versions ``adapter_model.bin``); the base's
weights are elsewhere. Source: peft 0.21.2, utils/constants.py (CONFIG_NAME, SAFETENSORS_WEIGHTS_NAME, WEIGHTS_NAME).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropetool.checkpoint.config import marker
from ropetool.checkpoint.folder import (
    ADAPTER_CONFIG,
    CONFIG,
    INDEX,
    SINGLE,
    Checkpoint,
    SideFiles,
    checkpoint_directory,
    side_files,
    single_checkpoint,
)
from ropetool.checkpoint.shards import stamps_of
from ropetool.checkpoint.strangers import read_json_file
from ropetool.errors import CheckpointError, ConfigError, MissingFileError, UsageError

ADAPTER_SINGLE = "adapter_model.safetensors"
ADAPTER_PICKLE = "adapter_model.bin"
BASE_KEY = "base_model_name_or_path"


def is_adapter(path: Path) -> bool:
    """Whether ``path`` is an adapter: it has adapter_config.json, and no weights of a whole model beside it."""
    whole = any(
        (path / name).is_file() for name in (SINGLE, INDEX, "pytorch_model.bin", "pytorch_model.bin.index.json")
    )
    return (path / ADAPTER_CONFIG).is_file() and not whole


def open_adapter(directory: Path, *, with_weights: bool = True) -> Checkpoint:
    """Open an adapter like a checkpoint of one shard, whose config is adapter_config.json."""
    checkpoint_directory(directory)
    if not with_weights:
        return Checkpoint(directory, read_json_file(directory / ADAPTER_CONFIG), (), None, {})
    weights, stamps = directory / ADAPTER_SINGLE, stamps_of((directory / ADAPTER_CONFIG,))
    if not weights.is_file():
        raise MissingFileError(f"{directory} has {ADAPTER_CONFIG}, but no {ADAPTER_SINGLE}", path=str(weights))
    checkpoint = single_checkpoint(directory, read_json_file(directory / ADAPTER_CONFIG), weights)
    return replace(checkpoint, stamps=stamps)


def adapter_side_files(adapter: Checkpoint) -> SideFiles:
    """What a copy of an adapter takes along; a config.json there describes the base and is taken too."""
    files = side_files(adapter)
    own = (Path(CONFIG),) if (adapter.directory / CONFIG).is_file() else ()
    written_anew = {Path(ADAPTER_CONFIG), Path(ADAPTER_PICKLE)}
    return SideFiles((*own, *files.taken), tuple(path for path in files.left if path not in written_anew))


def base_of(directory: Path, config: Mapping[str, Any], given: Path | None) -> Path:
    """The directory of the base model: ``given``, or what the adapter names, where that is a directory with a config.

    A relative name is looked for from the adapter and from the working directory, where PEFT looks; two different
    finds are an error. An adapter that ropetool wrote for another layout than its base's keeps the name in the marker.
    """
    if given is not None:
        return given
    named = config.get(BASE_KEY) or marker(config).get("base")
    found = _directories(directory, named) if isinstance(named, str) else []
    if len(found) > 1:
        raise UsageError(
            f"{BASE_KEY} is {named!r}, and both {found[0]} and {found[1]} are such a model; say which by --base",
            found=[str(path) for path in found],
        )
    if not found:
        says = f"{BASE_KEY} is {named!r}, which is no directory with a {CONFIG} here" if named else f"no {BASE_KEY}"
        raise MissingFileError(
            f"the rows of an adapter fall into heads by its base model, and {directory / ADAPTER_CONFIG} does not lead "
            f"to it ({says}); give the base by --base CKPT, or put its directory into {BASE_KEY}",
            path=str(directory),
            base=named,
        )
    return found[0]


def _directories(directory: Path, named: str) -> list[Path]:
    """The different directories with a config.json that a name can mean."""
    candidates = {path.resolve(): path for path in (directory / named, Path(named)) if os.path.isfile(path / CONFIG)}
    return list(candidates.values())


def adapters_of(checkpoint: Checkpoint) -> Iterator[Path]:
    """Adapters that lie in the checkpoint's directory or one below it, and those beside it that name it as base."""
    directory = checkpoint.directory
    inside = [directory, *sorted(path.parent for path in directory.glob(f"*/{ADAPTER_CONFIG}"))]
    yield from (path for path in inside if os.path.isfile(path / ADAPTER_CONFIG))
    place = directory.resolve()
    for path in sorted(place.parent.glob(f"*/{ADAPTER_CONFIG}")):
        if path.parent != place and place in map(Path.resolve, _named_base(path)):
            yield path.parent


def _named_base(config_file: Path) -> list[Path]:
    """The base that somebody's adapter names; a file that cannot be read names none, for it is not what was asked."""
    try:
        named = read_json_file(config_file).get(BASE_KEY)
    except (ConfigError, CheckpointError, OSError):
        return []
    return _directories(config_file.parent, named) if isinstance(named, str) and named else []
