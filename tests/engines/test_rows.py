"""The engines' rows against the family table, which was read from other code, and against mlx-lm's source itself."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from ropetool.engines.names import EngineName, Origin
from ropetool.engines.rows import BY_NAME, MLX_LM, ROWS
from ropetool.families.reading import Reading, read_model
from ropetool.families.table import TABLE
from ropetool.models.tiny import tiny_config, tiny_values
from ropetool.rope.pairing import Pairing

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED
TOOL = Path(__file__).resolve().parents[2] / "tools" / "read_mlx_lm.py"


@pytest.fixture(scope="module")
def readings() -> dict[str, Reading]:
    """Every type of the table, read from a tiny config."""
    return {
        name: read_model(json.loads(tiny_config(name, tiny_values(name)).to_json_string(use_diff=False)))
        for name in TABLE
    }


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """tools/read_mlx_lm.py as a module."""
    spec = importlib.util.spec_from_file_location("read_mlx_lm", TOOL)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_engine_has_one_row_and_a_source() -> None:
    assert [row.name for row in ROWS] == list(EngineName)
    for row in ROWS:
        assert row.version
        assert row.file.endswith(".py")
        assert row.origin in Origin


@pytest.mark.parametrize("name", EngineName, ids=lambda name: name.value)
def test_a_stock_checkpoint_is_read_right_by_default(name: EngineName, readings: dict[str, Reading]) -> None:
    """An engine that reads a stock checkpoint in another layout than transformers would be broken for everybody."""
    found = {model_type: BY_NAME[name].ways(reading) for model_type, reading in readings.items()}
    known = {model_type: ways for model_type, ways in found.items() if ways}
    assert len(known) >= 6
    for model_type, ways in known.items():
        assert ways[TABLE[model_type].pairing].by_default, model_type
        other = ways.get(TABLE[model_type].pairing.other)
        assert other is None or not other.by_default, model_type


def test_only_longrope_keeps_mlx_lm_from_its_key(readings: dict[str, Reading]) -> None:
    config = dict(readings["phi3"].config)
    assert INTERLEAVED in BY_NAME[EngineName.MLX_LM].ways(read_model(config))
    factors = [1.0] * (readings["phi3"].geometry.rotary_dim // 2)
    block = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "rope_theta": 10000.0}
    scaled = read_model({**config, "rope_parameters": {**block, "original_max_position_embeddings": 4096}})
    assert set(BY_NAME[EngineName.MLX_LM].ways(scaled)) == {HALF}


SOURCES = (
    ("rope_traditional: bool = False", "nn.RoPE(8, traditional=args.rope_traditional)", "rope_traditional", "half"),
    ("rope_traditional: bool = True", "initialize_rope(8, 1, a.rope_traditional)", "rope_traditional", "interleaved"),
    ("theta: float = 1.0", "nn.RoPE(8, traditional=True)", None, "interleaved"),
    ("theta: float = 1.0", "nn.RoPE(8)", None, "half"),
    ("theta: float = 1.0", "initialize_rope(8, 1.0, False)", None, "half"),
    ("theta: float = 1.0", "SuScaledRoPE(8)", None, "half"),
)  # fmt: skip
UNREADABLE = (
    ("theta: float = 1.0", "nn.RoPE(8, traditional=args.other_key)"),
    ("rope_traditional: bool = False", "nn.RoPE(8, True), nn.RoPE(8, False)"),
    ("theta: float = 1.0", "nn.RoPE(8, traditional=not args.x)"),
    ("theta: float = 1.0", "mx.fast.rope(x), SuScaledRoPE(8)"),
    ("theta: float = 1.0", "nn.Linear(8)"),
)


@pytest.mark.parametrize(("field", "call", "key", "pairing"), SOURCES)
def test_the_tool_reads_a_class(tool: ModuleType, field: str, call: str, key: str | None, pairing: str) -> None:
    row = tool.row(f"class ModelArgs:\n    {field}\ndef f(args, x):\n    return {call}\n")
    assert (row.get("key"), row.get("default") or row.get("pairing")) == (key, pairing)
    assert row["flat_keys"]


@pytest.mark.parametrize(("field", "call"), UNREADABLE)
def test_the_tool_gives_no_row_for_what_it_cannot_read(tool: ModuleType, field: str, call: str) -> None:
    assert tool.row(f"class ModelArgs:\n    {field}\ndef f(args, x):\n    return {call}\n") is None


def test_the_rows_are_those_of_the_installed_mlx_lm(tool: ModuleType) -> None:
    found = importlib.util.find_spec("mlx_lm")
    if found is None or not found.origin:
        pytest.skip("mlx-lm is not installed: it is no dependency, and its rows are checked where it is there")
    for file in (Path(found.origin).parent / "models").glob("*.py"):
        assert MLX_LM["rows"].get(file.stem) == tool.row(file.read_text(encoding="utf-8")), file.stem
