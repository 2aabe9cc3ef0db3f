"""The config classes and model classes of the installed transformers, by model type."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

from ropetool.models.tiny_cases import SPECIAL


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' remarks on special token ids beyond the tiny vocabulary."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logging.set_verbosity(level)


def config_names() -> Any:
    """Every model type that transformers has a config for."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return CONFIG_MAPPING_NAMES


def config_class(model_type: str) -> Any:
    """The config class of a model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]


def default_config(model_type: str) -> Any:
    """The config of a type with nothing but the class's defaults; None if the class refuses."""
    try:
        return config_class(model_type)()
    except Exception:  # noqa: BLE001 - a config without defaults raises what it likes
        return None


def model_class(model_type: str) -> Any:
    """The class to build: the causal language model, else the base model, else the file's own class for the config."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    special = SPECIAL.get(model_type)
    kind = config_class(model_type)
    if special is None or special.class_name is None:
        for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING):
            found = _mapped(mapping, kind)
            if found is not None and _takes(found, kind):
                return found
    return _own_class(kind, special.class_name if special else None)


def _mapped(mapping: Any, kind: Any) -> Any:
    try:
        found = mapping[kind]
    except (KeyError, ValueError, ImportError):  # ValueError: the mapping names a class that is not exported
        return None
    return found[0] if isinstance(found, tuple) else found


def _takes(model: Any, kind: Any) -> bool:
    wanted = getattr(model, "config_class", None)
    return wanted is None or issubclass(kind, wanted) or not getattr(wanted, "sub_configs", None)


def _own_class(kind: Any, name: str | None) -> Any:
    from transformers import PreTrainedModel

    try:
        module = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
    except ImportError:
        return None
    if name is not None:
        return getattr(module, name)
    own = [
        c
        for c in vars(module).values()
        if inspect.isclass(c)
        and issubclass(c, PreTrainedModel)
        and c.__module__ == module.__name__
        and getattr(c, "config_class", None) is kind
        and "forward" in vars(c)
    ]
    own.sort(key=lambda c: ("CausalLM" not in c.__name__, not c.__name__.endswith("Model"), c.__name__))
    return own[0] if own else None
