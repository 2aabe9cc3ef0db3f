"""Random models of a config, and what they really turn by."""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from ropetool.models.catalog import inputs_of, model_class, quiet
from ropetool.models.turnings import Turning, by_pair
from ropetool.models.turnings import turnings as measured

__all__ = ["Turning", "by_pair", "load_config", "model_of", "shapes", "signature", "turnings"]

# Text models that do not run in transformers 4.57 without a mask.
WANT_A_MASK = {"glm4v_moe_text", "glm4v_text"}


def load_config(directory: Path) -> Any:
    """The config of a directory, as transformers reads it."""
    with quiet():
        return AutoConfig.from_pretrained(directory)


def signature(config: Any) -> str:
    """All that a config object holds, but for ropetool's marker: equal for configs that make the same model."""
    values = {key: value for key, value in config.to_dict().items() if key != "ropetool"}
    return json.dumps(values, sort_keys=True, default=str)


def model_of(config: Any) -> Any:
    """A random model of a config, of the class that its type has."""
    with quiet():
        torch.manual_seed(0)
        return model_class(config.model_type)(config).float().eval()


def shapes(model: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that a checkpoint of the model holds."""
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def turnings(model: Any, tokens: int) -> list[Turning]:
    """What each attention of ``model`` that gets rotary tables turns by, in one forward pass over ``tokens`` tokens."""
    ids = torch.randint(2, 60, (1, tokens), generator=torch.Generator().manual_seed(0))
    arguments = inputs_of(model.config.model_type, type(model))(model, ids)
    if model.config.model_type in WANT_A_MASK and version("transformers").startswith("4."):
        arguments["attention_mask"] = torch.ones_like(ids)
    return measured(model, arguments)
