"""The types of layers that a class fills in: the file against the classes, and what is read by it against them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ropetool.errors import ConfigError
from ropetool.families.layer_types import FILLED_IN, LISTS, REPEATED, layer_types
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE

TOOL = Path(__file__).resolve().parents[2] / "tools" / "read_layer_types.py"
LAYERS = 29  # no number of layers that the tool looks at
# Classes whose layers differ in their heads or in whether they rotate at all, so that their reading needs the list.
NEED_THE_LIST = {"beam", "cohere2_moe", "lara_mini", "neomme"}
# Dory's num_hidden_layers counts the feed-forward parts between its layers as well.
CYCLES = [name for name, rule in FILLED_IN.items() if "cycle" in rule and name != "dory"]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/read_layer_types.py as a module."""
    spec = importlib.util.spec_from_file_location("read_layer_types", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_file_is_what_the_classes_do(tool: ModuleType) -> None:
    assert {name: told for name in sorted(TABLE) if (told := tool.entry(name))} == FILLED_IN


def with_many_layers(tool: ModuleType, model_type: str, **more: Any) -> Any:
    key = FILLED_IN[model_type].get("layers", "num_hidden_layers")
    return tool.built(model_type, key, LAYERS, **more)


@pytest.mark.parametrize("model_type", CYCLES)
def test_what_is_read_is_what_the_class_fills_in(tool: ModuleType, model_type: str) -> None:
    rule = FILLED_IN[model_type]
    for more in ({}, *([{rule["every"]: 5}] if "every" in rule else [])):
        config = with_many_layers(tool, model_type, **more)
        raw = json.loads(config.to_json_string(use_diff=False)) | more
        silent = {key: value for key, value in raw.items() if key not in (*LISTS, REPEATED)}
        if model_type in NEED_THE_LIST:
            with pytest.raises(ConfigError, match="no layer_types"):
                read_model(silent)
            continue
        found = layer_types(read_model(silent))
        assert list(found.types) == tool.types_of(config, LAYERS)
        assert not found.unstated
