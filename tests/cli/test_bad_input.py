"""Whatever a file or a flag can do wrong: one message that names it, the right exit code, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool.cli import app
from tests import tiny
from tests.tiny import edit_json, snapshot

TO = ("--to", "interleaved")


def listing(directory: Path) -> set[str]:
    return {str(p.relative_to(directory)) for p in directory.rglob("*")}


def set_header(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the header of a shard, keeping its data."""
    content = file.read_bytes()
    stop = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:stop])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[stop:])


def offsets(index: int, begin: int, end: int) -> Callable[[dict[str, Any]], None]:
    def change(header: dict[str, Any]) -> None:
        names = sorted((n for n in header if n != "__metadata__"), key=lambda n: header[n]["data_offsets"])
        header[names[index]]["data_offsets"][0] += begin
        header[names[index]]["data_offsets"][1] += end

    return change


def hundred_gigabytes(header: dict[str, Any]) -> None:
    header["model.norm.weight"] = {"dtype": "F32", "shape": [25 << 30], "data_offsets": [0, 100 << 30]}


def weight(name: str) -> str:
    return f"model.layers.0.self_attn.{name}.weight"


def without_config(d: Path) -> None:
    (d / "config.json").unlink()


def truncated(d: Path) -> None:
    os.truncate(d / "model.safetensors", (d / "model.safetensors").stat().st_size - 100)


def sharded(d: Path) -> Path:
    shutil.rmtree(d)
    tiny.save(tiny.model_of("llama"), d, max_shard_size="60KB")
    return d


def missing_shard(d: Path) -> None:
    sorted(sharded(d).glob("*.safetensors"))[1].unlink()


def missing_tensor(d: Path) -> None:
    index = sharded(d) / "model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"]["ghost.weight"] = content["weight_map"][weight("q_proj")]
    index.write_text(json.dumps(content), encoding="utf-8")


def elsewhere(d: Path) -> None:
    index = sharded(d) / "model.safetensors.index.json"
    content = json.loads(index.read_text(encoding="utf-8"))
    content["weight_map"][weight("q_proj")] = "../outside.safetensors"
    index.write_text(json.dumps(content), encoding="utf-8")


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda d: edit_json(d / "config.json", **changes)


def header(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    return lambda d: set_header(d / "model.safetensors", change)


def config_text(text: str) -> Callable[[Path], None]:
    return lambda d: (d / "config.json").write_text(text, encoding="utf-8") and None


def only_bin(d: Path) -> None:
    (d / "model.safetensors").rename(d / "pytorch_model.bin")


def unclaimed(d: Path) -> None:
    tensors = load_file(d / "model.safetensors")
    save_file({**tensors, weight("q_norm"): torch.ones(16)}, d / "model.safetensors")


# What is done to a sound tiny llama, the error's code, and what the message must name.
BAD: dict[str, tuple[Callable[[Path], None], str, tuple[str, ...]]] = {
    "no config.json": (without_config, "missing-file", ("config.json",)),
    "a truncated shard": (truncated, "bad-shard", ("model.safetensors", "100 bytes beyond the end")),
    "overlapping offsets": (header(offsets(1, -4, -4)), "bad-shard", ("model.safetensors", "overlaps")),
    "offsets beyond the end": (header(offsets(-1, 0, 4)), "bad-shard", ("model.safetensors",)),
    "offsets of 100 GB": (header(hundred_gigabytes), "bad-shard", ("model.safetensors",)),
    "an index with a missing shard": (missing_shard, "bad-index", ("model-00002", "is not there")),
    "an index with a missing tensor": (missing_tensor, "bad-index", ("ghost.weight",)),
    "an index that points elsewhere": (elsewhere, "bad-index", ("../outside.safetensors",)),
    "an unknown model type": (config(model_type="plainformer"), "unknown-family", ("plainformer",)),
    "no model type": (config(model_type=None), "bad-config", ("model_type",)),
    "gpt2": (config(model_type="gpt2"), "no-rope", ("gpt2", "learned")),
    "t5": (config(model_type="t5"), "no-rope", ("t5", "bias")),
    "bloom": (config(model_type="bloom"), "no-rope", ("bloom", "ALiBi")),
    "rows that are not heads x head_dim": (
        config(num_attention_heads=4), "shape-mismatch", ("layers.0.self_attn.q_proj", "128", "64 rows")),
    "an attention tensor of no row": (unclaimed, "unclaimed-tensor", (weight("q_norm"),)),
    "weights as .bin only": (only_bin, "bad-pickle", ("pytorch_model.bin",)),
    "a base that is text": (
        config(rope_theta="500000", rope_parameters=None), "bad-config", ("rope_theta", "'500000'")),
    "styles that disagree": (
        config(rope_theta=500000.0), "config-conflict", ("rope_parameters.rope_theta", "500000", "10000")),
    "a config that is no JSON": (config_text("{"), "bad-config", ("config.json",)),
    "a config that is a list": (config_text("[]"), "bad-config", ("config.json", "list")),
    "a config with NaN": (config_text('{"model_type": "llama", "rope_theta": NaN}'), "bad-config", ("NaN",)),
    "a base of 1": (config(rope_theta=1, rope_parameters=None), "bad-config", ("rope_theta",)),
    "a rope block that is text": (config(rope_parameters="yarn"), "bad-config", ("rope_parameters", "yarn")),
    "a rope type that is unknown": (
        config(rope_parameters={"rope_type": "magic", "rope_theta": 1e4}), "bad-config", ("magic",)),
    "heads of nothing": (config(num_attention_heads=0), "bad-config", ("num_attention_heads",)),
    "an odd head": (config(head_dim=15), "bad-config", ("15",)),
}  # fmt: skip


@pytest.mark.parametrize("fault", BAD)
def test_bad_checkpoints(fault: str, own, run, tmp_path: Path) -> None:
    spoil, code, named = BAD[fault]
    source = own("llama")
    spoil(source)
    before, around = snapshot(source), listing(tmp_path)
    arguments = ("convert", source, tmp_path / "out", *TO)
    for done in (run(*arguments), run(*arguments, "--dry-run")):
        assert done.code == 2
        assert done.out == ""
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1
        assert len(done.err) < 600
        assert all(part in done.err for part in named), done.err
    as_json = run(*arguments, "--json")
    assert as_json.code == 2
    assert as_json.err == ""
    assert as_json.json["error"]["code"] == code
    assert as_json.json["error"]["message"] == done.err.removeprefix("error: ").rstrip("\n")
    assert listing(tmp_path) == around
    assert snapshot(source) == before


@pytest.mark.parametrize("fault", [f for f in BAD if f not in ("gpt2", "t5", "bloom")])
def test_inspect_refuses_the_same(fault: str, own, run) -> None:
    source = own("llama")
    BAD[fault][0](source)
    done = run("inspect", source)
    if fault == "weights as .bin only":
        assert done.code == 0
        assert "pytorch_model.bin" in done.out
        return
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert all(part in done.err for part in BAD[fault][2]), done.err


# Faults of the config alone, or that do not matter to it, are the same for extend.
@pytest.mark.parametrize("fault", [f for f in BAD if "rows" not in f and "tensor of no row" not in f])
def test_extend_refuses_the_same(fault: str, own, run, tmp_path: Path) -> None:
    source = own("llama")
    BAD[fault][0](source)
    around = listing(tmp_path)
    done = run("extend", source, tmp_path / "out", "--method", "yarn", "--to", "256")
    assert done.code == 2
    assert done.err.count("\n") == 1
    assert all(part in done.err for part in BAD[fault][2]), done.err
    assert listing(tmp_path) == around


# --- places ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [("convert", *TO), ("extend", "--method", "yarn", "--to", "256")], ids=lambda v: v[0])
def test_bad_destinations(verb: tuple[str, ...], own, run, tmp_path: Path) -> None:
    source, (command, *options) = own("llama"), verb
    there = tmp_path / "there"
    there.mkdir()
    (there / "theirs").write_text("kept", encoding="utf-8")
    file = tmp_path / "file"
    file.write_text("kept", encoding="utf-8")
    before, around = snapshot(source), listing(tmp_path)
    for destination, code, named in (
        (there, "output-exists", "is already there"),
        (file, "output-exists", "is already there"),
        (source, "output-exists", "is already there"),
        (source / "out", "bad-output", "inside the source"),
        (tmp_path / "no" / "out", "bad-output", "is not a directory"),
        (file / "out", "bad-output", "is not a directory"),
    ):
        done = run(command, source, destination, *options)
        assert (done.code, done.out) == (2, "")
        assert named in done.err
        assert done.err.count("\n") == 1
        assert run(command, source, destination, *options, "--json").json["error"]["code"] == code
    assert listing(tmp_path) == around
    assert snapshot(source) == before
    done = run(command, tmp_path / "nothing", tmp_path / "out", *options)
    assert done.code == 2
    assert "does not exist" in done.err


def test_a_destination_name_too_long_for_the_file_system(own, run, tmp_path: Path) -> None:
    done = run("convert", own("llama"), tmp_path / ("x" * 250), *TO)
    assert done.code in (0, 2)
    if done.code == 2:
        assert done.err.count("\n") == 1
        assert "Traceback" not in done.err


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False, capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mount is not permitted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=False)


def large(where: Path, megabytes: int) -> Path:
    """A llama checkpoint with a large table beside its tiny attention."""
    source = tiny.save(tiny.model_of("llama"), where)
    tensors = load_file(source / "model.safetensors")
    filler = torch.frombuffer(bytearray(random.Random(1).randbytes(1 << 20)), dtype=torch.uint8)
    tensors["zz.filler"] = filler.repeat(megabytes)
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    return source


def test_no_space_is_found_before_writing(small_disk: Path, run, tmp_path: Path) -> None:
    source = large(tmp_path / "source", 3)
    before = snapshot(source)
    done = run("convert", source, small_disk / "out", *TO)
    assert done.code == 2
    assert "bytes are needed" in done.err
    assert "nothing was written" in done.err
    assert run("convert", source, small_disk / "out", *TO, "--json").json["error"]["code"] == "no-space"
    assert list(small_disk.iterdir()) == []
    assert snapshot(source) == before


@pytest.mark.parametrize("options", [("--weights", "copy"), ("--weights", "link")], ids=lambda o: o[1])
def test_no_space_for_an_extension(options, small_disk: Path, run, tmp_path: Path) -> None:
    """A link cannot reach another file system: it becomes a copy, which has no room."""
    source = large(tmp_path / "source", 3)
    done = run("extend", source, small_disk / "out", "--method", "yarn", "--to", "256", *options, "--json")
    assert done.code == 2
    assert done.json["error"]["code"] == "no-space"
    assert list(small_disk.iterdir()) == []


def test_space_that_runs_out_while_writing(small_disk: Path, run, tmp_path: Path, monkeypatch) -> None:
    source = large(tmp_path / "source", 3)
    monkeypatch.setattr("ropetool.convert.check_room", lambda *ignored: None)
    done = run("convert", source, small_disk / "out", *TO)
    assert done.code == 2
    assert "no space left while writing" in done.err
    assert done.err.count("\n") == 1
    assert list(small_disk.iterdir()) == []


def test_a_read_only_source_is_fine(own, run, tmp_path: Path) -> None:
    source = own("llama")
    for path in (*source.iterdir(), source):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert run("convert", source, tmp_path / "out", *TO).code == 0
    assert run("extend", source, tmp_path / "longer", "--method", "ntk", "--factor", "2").code == 0


def test_a_read_only_place_to_write_is_named(own, run, tmp_path: Path, monkeypatch) -> None:
    """By a faked refusal: for root no mode refuses."""

    def refuse(*arguments: object, **options: object) -> str:
        raise OSError(30, "Read-only file system")

    source = own("llama")
    monkeypatch.setattr("ropetool.checkpoint.staging._make", refuse)
    done = run("convert", source, tmp_path / "out", *TO)
    assert done.code == 2
    assert "Read-only file system" in done.err
    assert str(tmp_path) in done.err


def test_a_shard_that_cannot_be_read_is_named(own, run, tmp_path: Path, monkeypatch) -> None:
    source = own("llama")
    real = os.open

    def refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if str(path).endswith(".safetensors"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    done = run("inspect", source)
    assert done.code == 2
    assert "model.safetensors: Permission denied" in done.err


# --- interruptions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raised", "code"), [(KeyboardInterrupt, 130), (app.Terminated, 143)], ids=["Ctrl-C", "SIGTERM"]
)
@pytest.mark.parametrize("where", ["move", "copied", "copy_side_files", "check_room"])
def test_interrupted_at_any_step(raised, code: int, where: str, own, run, tmp_path: Path, monkeypatch) -> None:
    source = own("llama")
    before, around = snapshot(source), listing(tmp_path)

    def interrupt(*arguments: object) -> None:
        raise raised

    monkeypatch.setattr(f"ropetool.convert.{where}", interrupt)
    done = run("convert", source, tmp_path / "out", *TO)
    assert done.code == code
    assert done.out == ""
    assert done.err.count("\n") == 1
    assert listing(tmp_path) == around
    assert snapshot(source) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_the_middle_leaves_nothing(number: int, code: int, start, tmp_path: Path) -> None:
    """The kernel copies 200 MB too fast to be hit for certain, so the run is slowed by a throttled copy."""
    source = large(tmp_path / "source", 200)
    before, around = snapshot(source), listing(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import os, time\n"
        "real = os.copy_file_range\n"
        "def slow(source, target, count, *rest):\n"
        "    time.sleep(0.02)\n"
        "    return real(source, target, min(count, 1 << 20), *rest)\n"
        "os.copy_file_range = slow\n",
        encoding="utf-8",
    )
    paths = f"{tmp_path / 'site'}{os.pathsep}{Path(__file__).resolve().parents[2]}"
    process = start("convert", source, tmp_path / "out", *TO, PYTHONPATH=paths)
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size > 5 << 20 for p in tmp_path.glob(".out.ropetool-*/*.safetensors")):
        assert process.poll() is None, "it ended before it could be interrupted"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert out == ""
    assert "Traceback" not in err
    assert err.count("\n") == 1
    assert (
        listing(tmp_path)
        - {"site", "site/sitecustomize.py", "site/__pycache__"}
        - {name for name in listing(tmp_path) if name.startswith("site/")}
        == around
    )
    assert snapshot(source) == before


def test_an_interrupted_extension_leaves_nothing(own, run, tmp_path: Path, monkeypatch) -> None:
    source = own("llama")
    around = listing(tmp_path)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ropetool.extend.copy_side_files", interrupt)
    done = run("extend", source, tmp_path / "out", "--method", "yarn", "--to", "256")
    assert done.code == 130
    assert listing(tmp_path) == around


# --- flags ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("convert", "{source}", "{out}"), "--to"),
        (("convert", "{source}", "{out}", "--to", "neox"), "neox"),
        (("convert", "{source}", "{out}", "--to", "interleaved", "--from", "meta"), "meta"),
        (("convert", "{source}"), "DST"),
        (("convert", "{source}", "{out}", "--to", "half"), "half already"),
        (("extend", "{source}", "{out}", "--to", "256"), "--method"),
        (("extend", "{source}", "{out}", "--method", "yarn"), "one of them"),
        (("extend", "{source}", "{out}", "--method", "yarn", "--to", "256", "--factor", "4"), "one of them"),
        (("extend", "{source}", "{out}", "--method", "yarn", "--to", "lots"), "'lots' is not a length"),
        (("extend", "{source}", "{out}", "--method", "yarn", "--to", "-5"), "-5"),
        (("extend", "{source}", "{out}", "--method", "yarn", "--factor", "0.5"), "at least 1"),
        (("extend", "{source}", "{out}", "--method", "yarn", "--factor", "nan"), "at least 1"),
        (("extend", "{source}", "{out}", "--method", "yarn", "--to", "32"), "above the trained 64"),
        (("extend", "{source}", "{out}", "--method", "magic", "--to", "256"), "magic"),
        (("extend", "{source}", "{out}", "--method", "yarn", "--to", "256", "--style", "v6"), "v6"),
        (("families", "plainformer"), "plainformer"),
        (("families", "gpt2"), "no rotary"),
        (("nonsense",), "nonsense"),
        (("inspect", "{source}", "--nonsense"), "--nonsense"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, tuple) else "",
)
def test_bad_flags(arguments: tuple[str, ...], named: str, checkpoint, run, tmp_path: Path) -> None:
    filled = [a.format(source=checkpoint("llama"), out=tmp_path / "out") for a in arguments]
    done = run(*filled)
    assert done.code == 2
    assert done.out == ""
    assert done.err.count("\n") == 1, done.err
    assert named in done.err
    as_json = run(*filled, "--json")
    assert as_json.code == 2
    assert set(as_json.json) == {"error"}
    assert {"code", "message"} <= as_json.json["error"].keys()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [(), ("--json",)], ids=str)
def test_a_file_name_that_is_not_text(options: tuple[str, ...], own, start, tmp_path: Path) -> None:
    source = own("llama").rename(tmp_path / os.fsdecode(b"broken-\xff"))
    for arguments in (("inspect", source), ("convert", source, tmp_path / "out", "--to", "half")):
        process = start(*arguments, *options, PYTHONIOENCODING="utf-8")
        out, err = process.communicate(timeout=60)
        assert process.returncode == (0 if arguments[0] == "inspect" else 2)
        assert "Traceback" not in err
        assert "broken-" in out + err
        if options:
            assert json.loads(out)


def test_the_traceback_comes_back_on_request(run, tmp_path: Path, monkeypatch) -> None:
    from ropetool.errors import MissingFileError

    monkeypatch.setenv("ROPETOOL_TRACEBACK", "1")
    with pytest.raises(MissingFileError):
        run("inspect", tmp_path / "nothing")


def test_a_reader_that_leaves_early_is_no_traceback(start, checkpoint) -> None:
    process = start("inspect", checkpoint("llama"))
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.wait(timeout=60)
    assert "Traceback" not in err
