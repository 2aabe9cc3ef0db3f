"""Figures as PNG files: all of them, of every kind of checkpoint, whatever its name is, and without a display."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ropetool.cli import app
from ropetool.views.report import plots
from tests.reporting import CONFIGS, measured, written  # noqa: F401 - one is a fixture

pytest.importorskip("matplotlib", reason="--png is an extra; make test installs it")
OF_LAYERS = ("bands", "pairing", "encoding", "decay")


def drawn(out: Path, *arguments: object) -> list[str]:
    assert app.run(["report", *map(str, arguments), "--png", str(out), "--quiet"]) == 0
    return sorted(path.name for path in out.iterdir())


def is_picture(path: Path) -> bool:
    """A PNG of some size, with more than one colour."""
    import PIL.Image

    with PIL.Image.open(path) as picture:
        found = picture.convert("RGB").getcolors(maxcolors=1 << 24)
        return picture.format == "PNG" and picture.width == plots.DPI * plots.WIDTH_INCHES and len(found) > 10


def test_everything_that_was_measured_is_drawn(measured, tmp_path: Path) -> None:  # noqa: F811  a fixture
    names = drawn(tmp_path / "png", *measured.arguments)
    assert names == sorted(f"{name}.png" for name in (*OF_LAYERS, "loss", "passkeys", "search"))
    assert all(is_picture(tmp_path / "png" / name) for name in names)


@pytest.mark.parametrize(("name", "numbers"), [("gemma3", ("-1", "-2")), ("longrope", ("",)), ("gemma4", ("-1", "-2"))])
def test_each_kind_of_layers_is_drawn(name: str, numbers: tuple[str, ...], tmp_path: Path) -> None:
    names = drawn(tmp_path / "png", written(tmp_path / "c", CONFIGS[name]))
    assert names == sorted(f"{figure}{number}.png" for figure in OF_LAYERS for number in numbers)
    assert all(is_picture(tmp_path / "png" / file) for file in names)


@pytest.mark.parametrize("fill", [plots._bands, plots._decay])
def test_a_window_is_drawn_with_its_layers(fill: plots.Draw, tmp_path: Path, capsys) -> None:
    from matplotlib.figure import Figure

    assert app.run(["report", str(written(tmp_path / "c", CONFIGS["gemma3"])), "--json"]) == 0
    told = []
    for part in json.loads(capsys.readouterr().out)["rope"]["layers"]:
        figure = Figure()
        fill(figure, {**part, "title": "x"})
        told.append(
            [line.get_label() for axes in figure.axes for line in axes.lines if "back" in str(line.get_label())]
        )
    assert told == [[], ["looks back: 1,024"]]


def test_without_rotation_there_is_nothing_to_draw(tmp_path: Path, capsys) -> None:
    assert drawn(tmp_path / "png", written(tmp_path / "c", CONFIGS["bloom"])) == []


@pytest.mark.parametrize("name", ["a$\\frac{b", "100%$x^2$", "名前\u202e", "x" * 200])
def test_a_name_is_no_formula(name: str, tmp_path: Path) -> None:
    assert len(drawn(tmp_path / "png", written(tmp_path / name, CONFIGS["llama"]))) == len(OF_LAYERS)


def test_no_display_is_asked_for(tmp_path: Path) -> None:
    source = written(tmp_path / "c", CONFIGS["llama"])
    done = subprocess.run(
        [sys.executable, "-m", "ropetool", "report", source, "--png", tmp_path / "png"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "DISPLAY": ":99", "MPLBACKEND": "TkAgg",
             "MPLCONFIGDIR": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_without_matplotlib_one_sentence_says_what_to_do(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    source = written(tmp_path / "c", CONFIGS["llama"])
    assert app.run(["report", str(source), "--png", str(tmp_path / "png")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err
    assert not (tmp_path / "png").exists()
    assert app.run(["report", str(source), "--out", str(tmp_path / "page.html")]) == 0
