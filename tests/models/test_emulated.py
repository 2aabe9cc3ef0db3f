"""A processor without hardware for a stored dtype is noticed, told of, and not used so by a search."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ropetool import evaluate
from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.models import emulated
from ropetool.models.options import Device, DType
from tests import tiny

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=str)
def half(request, monkeypatch) -> torch.dtype:
    """A dtype that this processor is made to multiply a hundred times slower."""
    monkeypatch.setattr(emulated, "_multiplies", lambda kind: 100.0 if kind is request.param else 1.0)
    emulated.emulates.cache_clear()
    yield request.param
    emulated.emulates.cache_clear()


def test_the_stored_dtype_is_named_where_it_is_emulated(half, tmp_path: Path) -> None:
    path = tiny.save(tiny.model_of("llama").to(half), tmp_path / "half")
    assert emulated.emulated(path, CPU) is half
    assert emulated.emulated(path, GPU) is None
    assert emulated.quick_dtype(path, CPU) is DType.FLOAT32
    assert emulated.quick_dtype(path, GPU) is None


def test_float32_is_never_emulated(half, tmp_path: Path) -> None:
    path = tiny.save(tiny.model_of("llama"), tmp_path / "whole")
    assert emulated.emulated(path, CPU) is None
    assert emulated.quick_dtype(path, CPU) is None


def test_what_does_not_fit_twice_is_left_as_stored(half, tmp_path: Path, monkeypatch) -> None:
    path = tiny.save(tiny.model_of("llama").to(half), tmp_path / "half")
    monkeypatch.setattr(emulated.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 100}))
    assert emulated.quick_dtype(path, CPU) is None


@pytest.mark.parametrize("dtype", [None, DType.FLOAT32])
def test_evaluate_says_so_where_no_dtype_was_asked_for(half, dtype, tmp_path: Path) -> None:
    path, said = tiny.save(tiny.model_of("llama", vocab_size=512).to(half), tmp_path / "half"), []
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (path / name).write_bytes((bundled(CHECKPOINT) / name).read_bytes())
    text = bundled(TEXT).read_text(encoding="utf-8")[:2000]
    evaluate.evaluate(path, text, edges=(32,), dtype=dtype, device=Device.CPU, talk=said.append)
    told = [line for line in said if "only emulates" in line]
    wanted = f"this processor only emulates {str(half)[6:]}: --dtype float32 is many times as fast"
    assert told == ([] if dtype else [wanted])
