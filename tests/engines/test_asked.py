"""What the tools asked of each class is in the data files: a sample is asked again, of whatever is installed."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from ropetool.engines import mlx_lm
from ropetool.engines.transformers_classes import read_version
from ropetool.families.table import TABLE

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / "ropetool" / "engines"
MAJOR = int(transformers.__version__.split(".")[0])
SAMPLE = (
    "llama", "mistral", "mixtral", "cohere", "granite", "nemotron", "apertus", "gpt_oss", "gemma3_text", "olmo3",
    "olmo2", "phi3", "qwen2_vl_text", "gpt_neox", "gptj", "modernbert",
)  # fmt: skip
MLX_SAMPLE = ("llama", "qwen3", "glm", "glm4", "gpt_neox", "phi3", "nemotron", "mixtral", "lfm2", "deepseek_v3")


def tool(name: str) -> ModuleType:
    """A script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def stored(file: str) -> dict[str, Any]:
    return json.loads((ENGINES / file).read_text(encoding="utf-8"))


@pytest.mark.parametrize("model_type", SAMPLE)
def test_transformers_gives_the_same_answers(model_type: str) -> None:
    data = stored(f"transformers{MAJOR}.json")
    if data["version"] != transformers.__version__:
        pytest.skip(f"transformers {transformers.__version__} is installed, and the file is of {data['version']}")
    found = tool("read_transformers").row(TABLE[model_type], CONFIG_MAPPING[model_type])
    assert data["rows"][model_type] == found


def test_the_files_cover_the_table() -> None:
    assert read_version(5).rows.keys() == TABLE.keys()
    assert read_version(4).rows.keys() < TABLE.keys()
    assert mlx_lm.ROWS.keys() < TABLE.keys()
    assert len(mlx_lm.ROWS) > 30


@pytest.mark.skipif(
    importlib.util.find_spec("mlx_lm") is None,
    reason="mlx-lm is no dependency; its file is checked where it is installed (make test)",
)
@pytest.mark.parametrize("model_type", MLX_SAMPLE)
def test_mlx_lm_gives_the_same_answers(model_type: str) -> None:
    asking = tool("ask_mlx_lm")
    config = json.loads(asking.tiny_config(model_type, asking.tiny_values(model_type)).to_json_string(use_diff=False))
    found = asking.row(TABLE[model_type], asking.Asked(TABLE[model_type], config))
    assert stored("mlx_lm_keys.json")["rows"][model_type] == found
