"""The config classes and model classes of the installed transformers, by model type."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor

from ropetool.models.inputs import default_inputs
from ropetool.models.tiny_cases import SPECIAL

# Heads that give one output for a sequence, or one label for a token.
_TASK_HEADS = ("Classification", "QuestionAnswering", "MultipleChoice")


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


def known(model_type: str) -> bool:
    """Whether transformers has a config class for the type, one that was registered included."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


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


def class_of(config: Any) -> Any:
    """The class that a checkpoint was made for, or None: the one its config names, else the one for its type.

    A class that scores whole sequences, or labels, is passed over: what is wanted is an output at every position.
    """
    import transformers

    own = _module_of(type(config))
    for name in config.architectures or ():
        found = getattr(transformers, name, None) or getattr(own, name, None)
        if (
            inspect.isclass(found)
            and issubclass(found, transformers.PreTrainedModel)
            and not name.endswith(_TASK_HEADS)
        ):
            return found
    if config.sub_configs and (found := _mapped(transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, type(config))):
        return found
    return model_class(config.model_type)


def inputs_of(model_type: str, kind: Any = None) -> Callable[[Any, Tensor], dict[str, Any]]:
    """The maker of the forward's arguments; ``kind`` is the class, where it is not the one that `model_class` picks."""
    special = SPECIAL.get(model_type)
    if special is None or special.inputs is None or kind not in (None, model_class(model_type)):
        return default_inputs
    return special.inputs


def _mapped(mapping: Any, kind: Any) -> Any:
    try:
        found = mapping[kind]
    except (KeyError, ValueError, ImportError):  # ValueError: the mapping names a class that is not exported
        return None
    return found[0] if isinstance(found, tuple) else found


def _takes(model: Any, kind: Any) -> bool:
    wanted = getattr(model, "config_class", None)
    return wanted is None or issubclass(kind, wanted) or not getattr(wanted, "sub_configs", None)


def _module_of(kind: Any) -> Any:
    """The modeling module beside a config class, or None."""
    try:
        return importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
    except ImportError:
        return None


def _own_class(kind: Any, name: str | None) -> Any:
    from transformers import PreTrainedModel

    module = _module_of(kind)
    if module is None:
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
