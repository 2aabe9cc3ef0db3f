"""A checkpoint's config and class as Python objects; the code that lies in it is run only with the user's consent."""

from __future__ import annotations

import contextlib
import hashlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropetool.checkpoint.folder import checkpoint_directory, read_config
from ropetool.models import catalog, unguarded
from ropetool.models.catalog import config_names, quiet
from ropetool.models.rotations import Unreadable

# In the order in which they are looked for: what gives logits first.
_MODEL_ENTRIES = ("AutoModelForCausalLM", "AutoModel")


@dataclass(frozen=True)
class OwnClass:
    """A config object and its class; two are the same where code and config are, wherever they lie."""

    key: str
    config: Any = field(compare=False)
    kind: Any = field(compare=False)


def load(path: Path, auto_map: Any, *, trust_remote_code: bool) -> OwnClass:
    """The config and the class of a checkpoint. Raises `Unreadable` with transformers' own words."""
    config = config_of(path, trust_remote_code=trust_remote_code)
    kind = class_of(path, auto_map if trust_remote_code else {}, config)
    return OwnClass(f"{kind.__name__} {_code(path) if trust_remote_code else kind.__module__}", config, kind)


def _code(path: Path) -> str:
    """A digest of all code in the checkpoint."""
    digest = hashlib.sha256()
    for file in sorted(checkpoint_directory(path).rglob("*.py")):
        digest.update(f"{file.name} {file.stat().st_size} ".encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def own_class(path: Path) -> Any:
    """The class that a checkpoint brings along, None if it brings none.

    It is taken from the checkpoint's own files: the Auto classes keep what they once loaded for a config class, and
    would give a second checkpoint with the same config code the first one's model code.
    """
    auto_map = read_config(path).get("auto_map")
    return class_of(path, auto_map, None) if has_model(auto_map) else None


def is_known(model_type: str) -> bool:
    """Whether transformers itself has a class for the type."""
    return model_type in config_names()


def has_model(auto_map: Any) -> bool:
    """Whether ``auto_map`` names a model class, and not only a tokenizer's, say."""
    return isinstance(auto_map, dict) and any(isinstance(auto_map.get(entry), str) for entry in _MODEL_ENTRIES)


def config_of(path: Path, *, trust_remote_code: bool) -> Any:
    """The config object that the class gets. Raises `Unreadable` with transformers' own words."""
    import transformers

    try:
        with subdued():
            return unguarded.config_of(path, trust_remote_code=trust_remote_code)
    except Exception as error:  # a stranger's config, or its code, can raise anything
        raise Unreadable(f"transformers {transformers.__version__} cannot read its config: {_words(error)}") from error


def class_of(path: Path, auto_map: Any, config: Any) -> Any:
    """The class of the checkpoint: its own where ``auto_map`` names one, else the one that transformers has."""
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    if not has_model(auto_map):
        return _stock_class(config)
    named = next(auto_map[entry] for entry in _MODEL_ENTRIES if isinstance(auto_map.get(entry), str))
    if "--" in named:
        raise Unreadable(f"its class is code of another repository ({named}); put that code into the checkpoint itself")
    try:
        with subdued():
            return get_class_from_dynamic_module(named, str(checkpoint_directory(path)), local_files_only=True)
    except Exception as error:  # a stranger's code can raise anything
        raise Unreadable(f"its class {named} cannot be loaded: {_words(error)}") from error


def _stock_class(config: Any) -> Any:
    kind = catalog.class_of(config)
    if kind is None:
        raise Unreadable("transformers has no model class for its config")
    return kind


@contextlib.contextmanager
def subdued() -> Iterator[None]:
    """Keep what code prints away from stdout, which is data, and drop remarks that are not about the checkpoint."""
    with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings(), quiet():
        warnings.simplefilter("ignore")
        yield


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
