"""A source that somebody writes to between the plan and the end of it: noticed, and nothing is kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ropetool import convert, extend
from ropetool.checkpoint import folder
from ropetool.errors import SourceChangedError
from ropetool.families.methods import Method, Weights
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import snapshot

INDEX = "model.safetensors.index.json"


def converting(source: Path, out: Path) -> Callable[[], Any]:
    plan = convert.plan(source, out, Pairing.INTERLEAVED)
    return lambda: convert.apply(plan)


def in_place(source: Path, out: Path) -> Callable[[], Any]:
    plan = convert.plan(source, None, Pairing.INTERLEAVED)
    return lambda: convert.apply(plan, sync=False)


def extending(weights: Weights) -> Callable[[Path, Path], Callable[[], Any]]:
    def begin(source: Path, out: Path) -> Callable[[], Any]:
        plan = extend.plan(
            source, out, Method.YARN, factor=4, settings=tiny.needed(source, Method.YARN), weights=weights
        )
        return lambda: extend.apply(plan)

    return begin


VERBS = {
    "convert": converting,
    "convert --in-place": in_place,
    "extend --weights copy": extending(Weights.COPY),
    "extend --weights link": extending(Weights.LINK),
}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return tiny.save(tiny.model_of("llama"), tmp_path / "source", max_shard_size="60KB")


def write_again(file: Path) -> None:
    """The same bytes, at another time."""
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def put_another(file: Path) -> None:
    """The same bytes in another file."""
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)


@pytest.mark.parametrize("change", [write_again, put_another, Path.unlink], ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", ["config.json", INDEX, "model-00002-of-"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_file_that_was_read_for_the_plan(verb: str, name: str, change, sharded: Path, tmp_path: Path) -> None:
    carry_out = VERBS[verb](sharded, tmp_path / "out")
    file = next(path for path in sharded.iterdir() if path.name.startswith(name))
    change(file)
    before = snapshot(sharded)
    with pytest.raises((SourceChangedError, folder.OutputError)) as raised:
        carry_out()
    assert change is Path.unlink or (raised.type is SourceChangedError and raised.value.fields["file"] == str(file))
    assert snapshot(sharded) == before
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_side_file_while_it_is_copied(sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = folder.copy_file

    def growing(source: Path, target: Path) -> None:
        original(source, target, lambda done_bytes: source.open("ab").write(b" "))

    monkeypatch.setattr(folder, "copy_file", growing)
    with pytest.raises(SourceChangedError, match=r"generation_config\.json changed while it was read"):
        converting(sharded, tmp_path / "out")()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_a_pickle(tmp_path: Path) -> None:
    source = tiny.save(tiny.model_of("llama"), tmp_path / "source")
    torch.save(load_file(source / "model.safetensors"), source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    carry_out = converting(source, tmp_path / "out")
    write_again(source / "pytorch_model.bin")
    with pytest.raises(SourceChangedError, match=r"pytorch_model\.bin changed while it was read; nothing was kept"):
        carry_out()
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_links_to_a_read_only_source_leave_its_mode(sharded: Path, tmp_path: Path) -> None:
    for path in sharded.iterdir():
        path.chmod(0o444)
    before = {path.name: path.stat().st_mode for path in sharded.iterdir()}
    extending(Weights.LINK)(sharded, tmp_path / "out")()
    assert (tmp_path / "out" / INDEX).stat().st_mode & 0o777 == 0o644
    assert {path.name: path.stat().st_mode for path in sharded.iterdir()} == before
