"""The benchmarks, as far as a test can run them: each finds all that it imports of ropetool, and tells its options."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

PLACE = Path(__file__).parents[1] / "benchmarks"
BENCHMARKS = sorted(path for path in PLACE.glob("*.py") if "ArgumentParser" in path.read_text("utf-8"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_tells_its_options(path: Path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(PLACE))  # as for a script that is run
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    assert "usage:" in capsys.readouterr().out
