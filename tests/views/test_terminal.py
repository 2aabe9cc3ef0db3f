"""Tables with bars: the same facts as the page, and no line too long."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from rich.console import Console

from ropetool.cli import app
from ropetool.views.report import terminal
from tests.reporting import CONFIGS, measured, written  # noqa: F401 - one is a fixture

COLUMNS = 120


def shown(capsys, *arguments: object) -> str:
    capsys.readouterr()
    assert app.run(["report", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_everything_is_shown(measured, capsys) -> None:  # noqa: F811  a fixture
    text = shown(capsys, *measured.arguments)
    for part in ("frequency bands", "256 trained tokens", "yarn x4", "10 of 16 pairs completed no turn in training",
                 "next-token loss", "passkeys found by", "verify: pass extended", "tensors-kept", "llama.cpp runtime",
                 "agreement of 2 independent witnesses"):  # fmt: skip
        assert part in text
    assert text.count("frequency bands") == 2
    assert max(map(len, text.splitlines())) <= COLUMNS


@pytest.mark.parametrize("name", CONFIGS)
def test_of_every_kind(name: str, tmp_path: Path, capsys) -> None:
    text = shown(capsys, written(tmp_path, CONFIGS[name]))
    assert ("frequency bands" in text) == (name != "bloom")
    assert max(map(len, text.splitlines())) <= COLUMNS
    if name == "gemma3":
        assert "sliding_attention layers (they look back 1,024 tokens)" in " ".join(text.split())
    if name == "qwen3":
        assert "trained-length-unclear" in text


def bar(length: float | None, trained: int | None) -> str:
    return terminal._bar(length, trained, axis=12.0).plain


def test_bars_grow_with_the_logarithm_and_mark_the_trained_length() -> None:
    sizes = [bar(1.001 * math.exp(power), None).count(terminal.FULL) for power in (0, 3, 6, 9, 12)]
    assert sizes == [0, 4, 8, 12, 16]
    assert bar(None, 400).index(terminal.MARK) == 7
    assert all(len(bar(length, 400)) == terminal.BAR_CELLS + 1 for length in (None, 1.0, 1e5))


@pytest.mark.parametrize("width", [60, 80, 200])
def test_bars_are_never_broken(width: int, tmp_path: Path) -> None:
    from dataclasses import asdict

    from ropetool.report import spectrum

    (layers,) = spectrum(written(tmp_path, CONFIGS["llama3"])).layers
    console = Console(width=width, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115  thrown away
    console.print(terminal.bands(asdict(layers)))
    text = console.export_text()
    assert sum(terminal.MARK in line for line in text.splitlines()) == terminal.MOST_PAIRS + 1  # and the title
