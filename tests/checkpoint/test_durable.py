"""A file under its name is whole, and one that failed leaves nothing: with and without files that have no name."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from ropetool.checkpoint import durable

WAYS = {
    "publish": lambda path, fill: durable.publish(path, fill, sync=True, mode=0o640),
    "replace": lambda path, fill: durable.replace(path, fill, 0o640, sync=True),
}


@pytest.fixture(params=["as the system has them", "without nameless files"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "without nameless files":
        monkeypatch.setattr(durable, "_nameless", lambda directory, mode: None)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", WAYS)
def test_the_file_is_whole_and_alone(name: str, tmp_path: Path) -> None:
    seen: list[bool] = []

    def fill(descriptor: int) -> None:
        os.write(descriptor, b"content")
        seen.append((tmp_path / "file").exists())

    WAYS[name](tmp_path / "file", fill)
    assert seen == [False]
    assert (tmp_path / "file").read_bytes() == b"content"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("name", WAYS)
def test_what_fails_leaves_nothing(name: str, tmp_path: Path) -> None:
    def fill(descriptor: int) -> None:
        os.write(descriptor, b"half")
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        WAYS[name](tmp_path / "file", fill)
    assert os.listdir(tmp_path) == []
