"""The directory in which an output is written: one run has it, a killed one's is removed, modes are the source's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ropetool.checkpoint.folder import staged
from ropetool.checkpoint.staging import unfinished
from ropetool.errors import BusyError, OutputError, OutputExistsError

WRITER = """
import sys, time
from pathlib import Path
from ropetool.checkpoint.folder import staged
with staged(Path(sys.argv[1])) as stage:
    (stage / "half").write_text("half")
    print("writes", flush=True)
    time.sleep(600)
"""


def writer(destination: Path) -> subprocess.Popen[str]:
    """Another process in the middle of writing ``destination``."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(destination)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "writes\n"
    return process


def write(destination: Path) -> None:
    with staged(destination) as stage:
        (stage / "file").write_text("whole", encoding="utf-8")


def test_two_at_once_are_one_too_many_and_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = writer(out)
    with pytest.raises(BusyError, match=f"out is being written: process {process.pid} ") as caught:
        write(out)
    assert caught.value.fields["pid"] == process.pid
    assert (unfinished(out) / "half").exists(), "the loser takes nothing away"
    process.kill()
    process.communicate()
    assert [p.name for p in tmp_path.iterdir()] == [unfinished(out).name]
    write(out)
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert [p.name for p in out.iterdir()] == ["file"]


def test_what_is_left_is_emptied_whatever_it_holds_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept", encoding="utf-8")
    left = unfinished(tmp_path / "out")
    (left / "deep" / "deeper").mkdir(parents=True)
    (left / "link").symlink_to(tmp_path / "kept")
    write(tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["file"]
    assert (tmp_path / "kept" / "file").exists()


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept", encoding="utf-8")
    unfinished(tmp_path / "out").symlink_to(tmp_path / "kept")
    with pytest.raises(OutputError, match="in the way"):
        write(tmp_path / "out")
    assert (tmp_path / "kept" / "file").exists()


def test_an_output_that_another_run_has_just_written_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(OutputExistsError, match="is there now"):
        write(tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_without_locks_a_directory_that_is_there_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ropetool.checkpoint.lock._take", lambda *arguments: False)
    write(tmp_path / "out")
    unfinished(tmp_path / "other").mkdir()
    with pytest.raises(OutputError, match="knows no locks"):
        write(tmp_path / "other")


def test_modes_are_those_of_the_source_and_the_owner_may_write(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    modes = {"config.json": 0o640, "sub/tool.py": 0o755, "one.safetensors": 0o444, "sub": 0o750, ".": 0o2710}
    for name, mode in modes.items():
        path = source / name
        if not path.is_dir():
            path.write_text(name, encoding="utf-8")
        path.chmod(mode)
    with staged(tmp_path / "out", like=source) as stage:
        (stage / "sub").mkdir()
        for name in ("config.json", "sub/tool.py", "one.safetensors", "new"):
            (stage / name).write_text("new", encoding="utf-8")
    found = {name: (tmp_path / "out" / name).stat().st_mode & 0o777 for name in modes}
    assert found == {**modes, "one.safetensors": 0o644, ".": 0o710}
    assert os.stat(tmp_path / "out" / "new").st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
