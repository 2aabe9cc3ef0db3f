"""In place: stopped at every write that there is, finished and taken back, and compared byte by byte."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ropetool import convert
from ropetool.checkpoint import in_place
from ropetool.checkpoint.journal import JOURNAL
from ropetool.rope.pairing import Pairing
from tests.tiny import TINY, model_of, save

# Every call by which a file, a name or a mode changes, and the ones that wait for the disk.
WRITES = ("pwrite", "fsync", "rename", "unlink", "link", "fchmod", "posix_fallocate")
FEW_BYTES = 2048
# Biases; norms, per head and full width; a fused projection; both MLA projections; a twin; a share of the head.
FAMILIES = ("llama", "qwen3", "olmo2", "gpt_neox", "phi3", "deepseek_v3", "cohere-qk-norm", "ernie4_5")


class Killed(BaseException):
    """The process is gone: nothing it would still write is written."""


@contextmanager
def killed_at(number: int, monkeypatch: pytest.MonkeyPatch, *, torn: bool = False) -> Iterator[list[str]]:
    """Within, the calls of `WRITES` from the ``number``-th on fail; ``torn``: that one writes half of its bytes."""
    made: list[str] = []

    def counted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **kwargs: object) -> object:
            made.append(name)
            if len(made) > number:
                if torn and name == "pwrite" and len(made) == number + 1:
                    descriptor, data, offset = args
                    real(descriptor, bytes(data)[: len(data) // 2], offset)  # type: ignore[call-overload]  # any bytes
                raise Killed(name)
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in WRITES:
            patch.setattr(os, name, counted(name, getattr(os, name)))
        yield made


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    """Every file's bytes and mode."""
    return {str(p.relative_to(directory)): (p.read_bytes(), p.stat().st_mode) for p in directory.rglob("*")}


def planned(directory: Path) -> convert.Conversion:
    return convert.plan(directory, None, _target(directory), _target(directory).other)


def _target(directory: Path) -> Pairing:
    from ropetool.checkpoint.folder import read_config
    from ropetool.families.reading import read_model

    return read_model(read_config(directory)).pairing.other


@pytest.fixture
def sharded(tmp_path: Path) -> Callable[[str], Path]:
    """A tiny checkpoint in several shards with an index."""

    def build(name: str) -> Path:
        return save(model_of(name), tmp_path / f"sharded-{name}", max_shard_size="60KB")

    return build


@pytest.mark.parametrize("name", TINY)
def test_in_place_is_what_a_copy_is_and_back_again(name: str, own, tmp_path: Path) -> None:
    source = own(name)
    before = contents(source)
    target = _target(source)
    convert.apply(convert.plan(source, tmp_path / "copy", target, target.other))
    convert.apply(planned(source))
    expected = contents(tmp_path / "copy")
    assert {k: v[0] for k, v in contents(source).items()} == {k: v[0] for k, v in expected.items()}
    assert expected != before
    convert.apply(convert.plan(source, None, target.other, target))
    assert {k: v for k, v in contents(source).items() if k != "config.json"} == {
        k: v for k, v in before.items() if k != "config.json"
    }


@pytest.mark.parametrize("sync", [True, False], ids=["synced", "unsynced"])
@pytest.mark.parametrize("name", FAMILIES)
def test_from_every_write_on_it_is_finished_and_taken_back(
    name: str, sync: bool, sharded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_place, "SYNCED_BATCH_BYTES", FEW_BYTES)
    monkeypatch.setattr(in_place, "BATCH_BYTES", FEW_BYTES)
    monkeypatch.setattr("ropetool.checkpoint.shards.BUFFER_BYTES", FEW_BYTES)
    source = sharded(name)
    assert len(list(source.glob("*.safetensors"))) > 1
    old = contents(source)
    done = Path(shutil.copytree(source, tmp_path / "done"))
    with killed_at(10**9, monkeypatch) as made:
        convert.apply(planned(done), sync=sync)
    new = contents(done)
    assert new != old
    writes = len(made)
    assert writes > 30
    half = 0
    for turn, number in enumerate(range(0, writes, max(1, writes // 12))):
        directory = Path(shutil.copytree(source, tmp_path / "work"))
        with killed_at(number, monkeypatch, torn=turn % 2 == 1), pytest.raises(Killed):
            convert.apply(planned(directory), sync=sync)
        if (directory / JOURNAL).exists():
            half += 1
            again = Path(shutil.copytree(directory, tmp_path / "again"))
            convert.resume(directory)
            convert.undo(again)
            assert contents(directory) == new, number
            assert contents(again) == old, number
            shutil.rmtree(again)
        else:
            assert contents(directory) in (old, new), number
        shutil.rmtree(directory)
    assert half > 8
