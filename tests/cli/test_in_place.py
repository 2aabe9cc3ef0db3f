"""``convert --in-place`` as a person meets it: what goes together, who is refused, and what an interrupted run says."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ropetool import convert
from ropetool.checkpoint import in_place
from ropetool.checkpoint.journal import JOURNAL
from ropetool.checkpoint.lock import exclusive
from ropetool.errors import HalfConvertedError
from tests.tiny import read_json

IN_PLACE = ("--in-place", "--to", "interleaved")


class Cut(BaseException):
    """The end of a run in the middle."""


@pytest.fixture
def half(own, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """A checkpoint whose conversion in place was cut off after a few batches."""

    def cut(name: str) -> Path:
        directory: Path = own(name)
        with monkeypatch.context() as patch:
            patch.setattr(in_place, "SYNCED_BATCH_BYTES", 4096)
            left = iter(range(3))
            real = in_place._change

            def stop(*arguments: Any) -> int:
                if next(left, None) is None:
                    raise Cut
                return real(*arguments)

            patch.setattr(in_place, "_change", stop)
            to = convert.Pairing.INTERLEAVED
            with pytest.raises(Cut):
                convert.apply(convert.plan(directory, None, to, to.other))
        assert (directory / JOURNAL).exists()
        return directory

    return cut


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_in_place_gives_what_a_copy_gives(own, run, tmp_path: Path) -> None:
    source = own("qwen3")
    assert run("convert", source, tmp_path / "copy", "--to", "interleaved").code == 0
    old = files(source)
    planned = run("convert", source, *IN_PLACE, "--dry-run", "--json").json
    assert files(source) == old
    done = run("convert", source, *IN_PLACE, "--json")
    assert done.code == 0
    assert files(source) == files(tmp_path / "copy") != old
    assert {**done.json, "seconds": 0, "dry_run": True} == {**planned, "seconds": 0}
    assert done.json["output"] == str(source)
    assert run("convert", source, *IN_PLACE).code == 2, "already"


def test_every_other_command_refuses_a_half_converted_one_and_names_the_remedy(half, run, tmp_path: Path) -> None:
    directory = half("llama")
    before = files(directory)
    whole = directory.parent / "whole"
    shutil.copytree(directory, whole)
    convert.undo(whole)
    commands = (
        ("inspect", directory),
        ("inspect", directory / "model.safetensors"),
        ("extend", directory, tmp_path / "out", "--method", "yarn", "--factor", "2"),
        ("convert", directory, tmp_path / "out", "--to", "half"),
        ("convert", directory, *IN_PLACE),
        ("verify", whole, directory),
        ("verify", directory, whole),
        ("evaluate", directory, "--lengths", "8"),
        ("doctor", directory),
        ("report", directory),
        ("report", whole, "--against", directory),
        ("diff", directory, whole),
    )
    for command in commands:
        done = run(*command, "--json")
        assert done.code == 2, command
        error = done.json["error"]
        assert error["code"] == "half-converted", (command, error)
        assert f"`ropetool convert {directory} --resume`" in error["message"]
        assert f"`ropetool convert {directory} --undo`" in error["message"]
        assert error["resume"] == f"ropetool convert {directory} --resume"
    assert files(directory) == before
    assert not (tmp_path / "out").exists()
    with pytest.raises(HalfConvertedError):
        convert.plan(directory, tmp_path / "out", convert.Pairing.HALF)


def test_stock_code_does_not_load_a_half_converted_one(half) -> None:
    import transformers

    directory = half("llama")
    for load in (transformers.AutoModelForCausalLM, transformers.LlamaForCausalLM, transformers.AutoConfig):
        with pytest.raises(Exception, match="half converted in place: ropetool convert own-llama --resume"):
            load.from_pretrained(directory)


@pytest.mark.parametrize("end", ["--resume", "--undo"])
def test_it_is_ended_by_the_commands_it_names(end: str, half, own, run, tmp_path: Path) -> None:
    directory = half("qwen3")
    shutil.rmtree(tmp_path / "fresh", ignore_errors=True)
    done = run("convert", directory, end, "--json")
    assert done.code == 0, done.err
    assert done.json.get("undone", False) is (end == "--undo")
    assert not (directory / JOURNAL).exists()
    layout = run("inspect", directory, "--json").json["pairing"]
    assert layout == done.json["to"] == ("interleaved" if end == "--resume" else "half")
    assert ("ropetool" in read_json(directory / "config.json")) is (end == "--resume")
    again = run("convert", directory, end)
    assert again.code == 2
    assert "nothing to finish or to take back" in again.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--to", "half"), "DST is missing"),
        (("--in-place",), "--to is missing"),
        (("out", "--in-place", "--to", "half"), "leave out out"),
        (("--in-place", "--to", "half", "--verify"), "--verify compares with the source"),
        (("out", "--to", "half", "--break-links"), "--break-links is for --in-place"),
        (("--resume", "--undo"), "one or the other"),
        (("--resume", "--to", "half"), "without --to"),
        (("--undo", "--no-sync"), "without --sync"),
        (("out", "--undo"), "without DST"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], said: str, checkpoint, run) -> None:
    done = run("convert", checkpoint("llama"), *options)
    assert done.code == 2
    assert said in done.err


def test_a_hub_id_is_not_converted_in_place(run) -> None:
    for options in (IN_PLACE, ("--undo",), ("--resume",)):
        done = run("convert", "org/name", *options)
        assert done.code == 2
        assert "org/name is a repository at the Hub" in done.err


def test_what_is_read_is_not_changed_and_the_other_way_round(own, run) -> None:
    source = own("llama")
    before = files(source)
    descriptor = os.open(source, os.O_RDONLY)
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_SH)
        busy = run("convert", source, *IN_PLACE, "--json")
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for command in (("inspect", source), ("doctor", source), ("convert", source, "--undo")):
            assert run(*command, "--json").json["error"]["code"] == "busy", command
    finally:
        os.close(descriptor)
    assert busy.code == 2
    assert busy.json["error"]["code"] == "busy"
    assert busy.json["error"]["pid"] == os.getpid()
    assert files(source) == before
    with exclusive(source):
        pass


@pytest.mark.parametrize("kind", ["hard", "symbolic"])
def test_linked_shards_are_refused_unless_the_links_are_broken(kind: str, own, run, tmp_path: Path) -> None:
    source = own("llama")
    other = tmp_path / "blob"
    shard = source / "model.safetensors"
    if kind == "hard":
        os.link(shard, other)
    else:
        shard.rename(other)
        shard.symlink_to(other)
    shared = other.read_bytes()
    done = run("convert", source, *IN_PLACE, "--json")
    assert done.code == 2
    assert done.json["error"]["code"] == "linked-file"
    assert "--break-links" in done.json["error"]["message"]
    assert run("convert", source, *IN_PLACE, "--break-links").code == 0
    assert other.read_bytes() == shared != shard.read_bytes()
    assert not shard.is_symlink()
    assert shard.stat().st_nlink == 1
    assert sorted(files(source)) == ["config.json", "generation_config.json", "model.safetensors"]


def test_pickles_and_weights_that_would_stay_under_the_new_config_are_refused(own, run) -> None:
    source = own("llama")
    torch.save({}, source / "pytorch_model.bin")
    before = files(source)
    done = run("convert", source, *IN_PLACE)
    assert done.code == 2
    assert "pytorch_model.bin has weights too" in done.err
    (source / "model.safetensors").unlink()
    torch.save({"a": torch.ones(2)}, source / "pytorch_model.bin")
    assert run("convert", source, *IN_PLACE).code == 2
    assert files(source).keys() == before.keys() - {"model.safetensors"}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_in_the_middle_leaves_the_journal_and_says_so(
    number: int, code: int, own, start, tmp_path: Path
) -> None:
    source = own("llama")
    before = files(source)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os, time\n"
        "real = os.rename\n"
        "def slow(source, target):\n"
        "    real(source, target)\n"
        "    for _ in range(6000):\n"  # a signal just before a long sleep would not end that
        "        time.sleep(0.01)\n"
        "os.rename = slow\n",
        encoding="utf-8",
    )
    paths = f"{tmp_path / 'site'}{os.pathsep}{Path(__file__).resolve().parents[2]}"
    process = start("convert", source, *IN_PLACE, PYTHONPATH=paths)
    while not (source / JOURNAL).exists() or (source / "config.json").read_bytes() == before["config.json"]:
        assert process.poll() is None, process.communicate()
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    assert err.count("\n") == 1
    assert f"{source} is half converted: `ropetool convert {source} --resume` finishes it" in err
    convert.undo(source)
    assert files(source) == before


def test_a_source_that_changes_while_it_is_copied_is_noticed(own, run, tmp_path: Path, monkeypatch) -> None:
    source = own("llama")
    shard = source / "model.safetensors"
    real = convert.move

    def touched(*arguments: Any) -> None:
        real(*arguments)
        with shard.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x01")

    monkeypatch.setattr(convert, "move", touched)
    done = run("convert", source, tmp_path / "out", "--to", "interleaved", "--json")
    assert done.code == 2
    assert done.json["error"]["code"] == "source-changed"
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == [source.name]
