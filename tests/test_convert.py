"""Converting every row of the table: exact, reversible, and nothing but what must move."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool import convert
from ropetool.checkpoint import copying
from ropetool.checkpoint.folder import has_guard, open_checkpoint, read_config
from ropetool.errors import AlreadyConvertedError, CheckpointError, ConfigError, OutputError, OutputExistsError
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import TINY, digest, edit_json, raw_tensors, read_json, snapshot

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED
MOVING = ("q_proj", "k_proj", "q_b_proj", "kv_a_proj_with_mqa", "q_norm", "k_norm", "query_key_value", "qkv_proj")


def converted(source: Path, destination: Path, to: Pairing | None = None, declared: Pairing | None = None) -> Path:
    """The other layout, under the same type; tests/families/test_twins.py writes it for another."""
    to = to or read_model(open_checkpoint(source).config).pairing.other
    convert.apply(convert.plan(source, destination, to, declared, "same"))
    return destination


def shard_digests(directory: Path) -> dict[str, str]:
    return {p.name: digest(p) for p in sorted(directory.glob("*.safetensors*"))}


# --- an oracle in reshapes ------------------------------------------------------------------------------------------


def head_reshape(x: np.ndarray, source: Pairing) -> np.ndarray:
    """One rotary span [R, ...] from ``source`` to the other layout, by reshape and transpose."""
    n = x.shape[0] // 2
    split = (2, n) if source is HALF else (n, 2)
    return x.reshape(*split, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)


def by_hand(model: str, name: str, tensor: np.ndarray, source: Pairing) -> np.ndarray:
    """What a conversion makes of one tensor of a tiny model, written per class from its modeling file.

    All tiny models have 8 query heads of 16 rows; 2 key-value heads, but 8 in gpt_neox and gptj; a rotary width of
    16, or 8 where the class turns a part. deepseek_v3: heads of 4 + 8 rows, a latent of 24.
    """
    module = name.split(".")[-2]
    x = tensor.copy()

    def turn(start: int, rotary: int) -> None:
        x[start : start + rotary] = head_reshape(x[start : start + rotary], source)

    rotary = 8 if model in ("glm4", "gpt_neox", "phi3", "gptj") else 16
    if module in ("q_proj", "k_proj", "q_b_proj") and model.startswith("deepseek"):
        for head in range(8):
            turn(12 * head + 4, 8)
    elif module == "kv_a_proj_with_mqa":
        turn(24, 8)
    elif module in ("q_proj", "k_proj"):
        for head in range(x.shape[0] // 16):
            turn(16 * head, rotary)
    elif module in ("q_norm", "k_norm"):
        shape, x = x.shape, x.reshape(-1).copy()
        for head in range(x.shape[0] // 16):
            turn(16 * head, rotary)
        x = x.reshape(shape)
    elif module == "query_key_value":
        for head in range(8):
            turn(48 * head, rotary)
            turn(48 * head + 16, rotary)
    elif module == "qkv_proj":
        for head in range(8 + 2):
            turn(16 * head, rotary)
    return x


@pytest.mark.parametrize("name", TINY)
def test_every_tensor_is_what_the_reshapes_make_of_it(name: str, checkpoint, tmp_path: Path) -> None:
    source, pairing = checkpoint(name), TABLE[TINY[name].model_type].pairing
    before = load_file(source / "model.safetensors")
    after = load_file(converted(source, tmp_path / "out") / "model.safetensors")
    assert before.keys() == after.keys()
    moved = 0
    for key, tensor in before.items():
        expected = by_hand(name, key, tensor.numpy(), pairing)
        np.testing.assert_array_equal(after[key].numpy(), expected, err_msg=key)
        moved += not np.array_equal(expected, tensor.numpy())
    assert moved == sum(moves(key) for key in before)


def moves(tensor: str) -> bool:
    """Whether a tensor of a tiny model is one that moves."""
    return tensor.split(".")[-2] in MOVING


# --- what must not change -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_round_trip_and_what_stays(name: str, checkpoint, tmp_path: Path) -> None:
    source = checkpoint(name)
    before = snapshot(source)
    there = converted(source, tmp_path / "there")
    back = converted(there, tmp_path / "back")
    assert shard_digests(back) == shard_digests(source)
    assert shard_digests(there) != shard_digests(source)
    assert snapshot(source) == before
    header_a, data_a, entries_a = raw_tensors(source / "model.safetensors")
    header_b, data_b, entries_b = raw_tensors(there / "model.safetensors")
    assert header_a == header_b
    assert entries_a == entries_b
    stays = [n for n in data_a if not moves(n)]
    assert {n.split(".")[-2] for n in stays} & {"v_proj", "o_proj", "dense", "out_proj", "kv_b_proj"}
    assert all(data_a[tensor] == data_b[tensor] for tensor in stays)
    assert {p.name for p in there.iterdir()} == {p.name for p in source.iterdir()}


@pytest.mark.parametrize("name", TINY)
def test_the_marker_tells_the_layout_and_a_second_conversion_is_refused(name: str, checkpoint, tmp_path: Path) -> None:
    source = checkpoint(name)
    row = TABLE[TINY[name].model_type]
    target = row.pairing.other
    there = converted(source, tmp_path / "there")
    config = read_config(there)
    assert config["ropetool"]["pairing"] == target.value
    assert has_guard(there) == (row.pairing_key is None)
    kept = {key: value for key, value in config.items() if key not in ("ropetool", row.pairing_key)}
    assert kept == {k: v for k, v in read_json(source / "config.json").items() if k != row.pairing_key}
    reading = read_model(config)
    assert reading.pairing is target
    assert reading.class_pairing is (target if row.pairing_key else row.pairing)
    with pytest.raises(AlreadyConvertedError, match=f"is {target.value} already"):
        convert.plan(there, tmp_path / "again", target)
    with pytest.raises(AlreadyConvertedError, match="already"):
        convert.plan(source, tmp_path / "again", row.pairing)


@pytest.mark.parametrize("name", ["deepseek_v3", "deepseek_v3-no-q-lora"])
def test_the_key_that_the_class_obeys_is_flipped_and_the_stock_class_agrees(name, checkpoint, tmp_path: Path) -> None:
    source = checkpoint(name)
    there = converted(source, tmp_path / "there")
    assert read_json(there / "config.json")["rope_interleave"] is False
    before, after = tiny.logits(tiny.load(source)), tiny.logits(tiny.load(there))
    assert float((before - after).abs().max()) < 2e-4
    assert read_json(converted(there, tmp_path / "back") / "config.json")["rope_interleave"] is True


def test_deepseek_in_the_wrong_layout_is_far_off(checkpoint, own) -> None:
    """The comparison above proves something only if this fails."""
    wrong = own("deepseek_v3")
    edit_json(wrong / "config.json", rope_interleave=False)
    before, after = tiny.logits(tiny.load(checkpoint("deepseek_v3"))), tiny.logits(tiny.load(wrong))
    assert float((before - after).abs().max()) > 0.5


# --- which layout it has --------------------------------------------------------------------------------------------


def test_from_overrides_the_family_but_never_the_marker(checkpoint, tmp_path: Path) -> None:
    source = checkpoint("llama")
    declared = converted(source, tmp_path / "declared", HALF, INTERLEAVED)
    assert read_json(declared / "config.json")["ropetool"]["pairing"] == "half"
    q = load_file(source / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    moved = load_file(declared / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    assert torch.equal(moved[:16], q[[0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15]])
    with pytest.raises(AlreadyConvertedError, match="you say so"):
        convert.plan(source, tmp_path / "x", HALF, HALF)
    there = converted(source, tmp_path / "there", INTERLEAVED)
    with pytest.raises(ConfigError, match=r"--from says half, but config\.json was marked interleaved"):
        convert.plan(there, tmp_path / "x", INTERLEAVED, HALF)
    back = convert.plan(there, tmp_path / "x", HALF, INTERLEAVED)
    assert back.plan.source is INTERLEAVED


@pytest.mark.parametrize("name", TINY)
def test_a_result_that_its_own_class_would_turn_wrongly_is_said(name: str, checkpoint, tmp_path: Path) -> None:
    row = TABLE[TINY[name].model_type]
    plan = convert.plan(checkpoint(name), tmp_path / "x", row.pairing.other, written_as="same")
    codes = {warning.code for warning in plan.warnings}
    assert ("class-rotates-other-layout" in codes) == (row.pairing_key is None)


# --- files ----------------------------------------------------------------------------------------------------------


def test_sharded_checkpoints(tmp_path: Path) -> None:
    source = tiny.save(tiny.model_of("qwen3"), tmp_path / "source", max_shard_size="60KB")
    shards = sorted(source.glob("*.safetensors"))
    assert len(shards) > 4
    before = snapshot(source)
    there = converted(source, tmp_path / "there")
    assert {p.name for p in there.iterdir()} == {p.name for p in source.iterdir()}
    index = "model.safetensors.index.json"
    assert (there / index).read_bytes() == (source / index).read_bytes()
    single = converted(tiny.save(tiny.model_of("qwen3"), tmp_path / "one"), tmp_path / "one-there")
    whole = load_file(single / "model.safetensors")
    parts = {name: t for p in there.glob("*.safetensors") for name, t in load_file(p).items()}
    assert all(torch.equal(parts[name], whole[name]) for name in whole)
    for shard in shards:
        assert raw_tensors(shard)[0] == raw_tensors(there / shard.name)[0]
    assert shard_digests(converted(there, tmp_path / "back")) == shard_digests(source)
    assert snapshot(source) == before


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_other_dtypes(dtype: torch.dtype, tmp_path: Path) -> None:
    source = tiny.save(tiny.model_of("qwen2").to(dtype), tmp_path / "source")
    there = converted(source, tmp_path / "there")
    before, after = (load_file(d / "model.safetensors") for d in (source, there))
    name = "model.layers.1.self_attn.k_proj.bias"
    assert before[name].dtype == after[name].dtype == dtype
    rows = [0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]
    assert torch.equal(after[name], before[name][[*rows, *(16 + r for r in rows)]])
    assert shard_digests(converted(there, tmp_path / "back")) == shard_digests(source)


def test_tied_embeddings_and_metadata_stay(tmp_path: Path) -> None:
    source = tiny.save(tiny.model_of("llama", tie_word_embeddings=True), tmp_path / "source")
    there = converted(source, tmp_path / "there")
    assert "lm_head.weight" not in load_file(there / "model.safetensors")
    assert open_checkpoint(there).shards[0].metadata == open_checkpoint(source).shards[0].metadata == {"format": "pt"}


def test_other_weights_are_left_behind_and_named(own, tmp_path: Path) -> None:
    source = own("llama")
    (source / "pytorch_model.bin").write_bytes(b"stale")
    (source / "tokenizer.json").write_text("{}", encoding="utf-8")
    plan = convert.plan(source, tmp_path / "out", INTERLEAVED)
    assert next(w.message for w in plan.warnings if w.code == "left-behind").startswith("pytorch_model.bin")
    convert.apply(plan)
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()
    assert (tmp_path / "out" / "tokenizer.json").read_text(encoding="utf-8") == "{}"


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.weight", "model.norm.weight"])
def test_of_a_tensor_in_two_shards_the_unmapped_copy_is_left_out(name: str, tmp_path: Path) -> None:
    source = tiny.save(tiny.model_of("llama"), tmp_path / "source", max_shard_size="60KB")
    clean = converted(source, tmp_path / "clean")
    mapped = open_checkpoint(source).weight_map[name].path
    for other in (p for p in sorted(source.glob("*.safetensors")) if p != mapped):
        stale = torch.full_like(load_file(mapped)[name], 7.0)
        save_file({**load_file(other), name: stale}, other, metadata={"format": "pt"})
    plan = convert.plan(source, tmp_path / "out", INTERLEAVED, written_as="same")
    assert any(w.code == "stale-copy" and "left out" in w.message for w in plan.warnings)
    convert.apply(plan)
    out = open_checkpoint(tmp_path / "out")
    assert out.stale_copies == ()
    assert all(shard.metadata == {"format": "pt"} for shard in out.shards)
    for shard in out.shards:
        ours, wanted = load_file(shard.path), load_file(clean / shard.path.name)
        assert list(ours) == list(wanted)
        assert all(torch.equal(ours[key], wanted[key]) for key in wanted)


def links_to(files: Path, place: Path) -> Path:
    place.mkdir(parents=True)
    for file in files.iterdir():
        (place / file.name).symlink_to(file)
    return place


@pytest.mark.parametrize("place", ["linked", "models--org--name/snapshots/" + "1" * 40])
def test_symbolic_links_are_read_through_and_written_as_files(place: str, checkpoint, tmp_path: Path) -> None:
    """A directory of links to another, and one of links into the blobs of the Hub's cache."""
    linked = links_to(checkpoint("llama"), tmp_path / place)
    there = converted(linked, tmp_path / "there")
    assert not any(p.is_symlink() for p in there.iterdir())
    assert shard_digests(there) == shard_digests(converted(checkpoint("llama"), tmp_path / "plain"))


def test_a_link_that_leads_elsewhere_than_the_weights_is_not_followed(checkpoint, tmp_path: Path) -> None:
    linked = links_to(checkpoint("llama"), tmp_path / "linked")
    (tmp_path / "secret").write_text("what nobody may copy", encoding="utf-8")
    (linked / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(CheckpointError, match=r"notes\.txt is a symbolic link to .*secret, outside of"):
        converted(linked, tmp_path / "there")
    assert not (tmp_path / "there").exists()


def test_a_single_file_is_a_source_too(checkpoint, tmp_path: Path) -> None:
    there = converted(checkpoint("llama") / "model.safetensors", tmp_path / "there", INTERLEAVED)
    assert shard_digests(there) == shard_digests(converted(checkpoint("llama"), tmp_path / "plain"))


def test_the_source_is_opened_for_reading_only(checkpoint, tmp_path: Path) -> None:
    source = checkpoint("llama")
    opened: list[tuple[str, int]] = []
    watching = [True]

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and watching and str(arguments[0]).startswith(str(source)):
            opened.append((str(arguments[0]), arguments[2]))

    sys.addaudithook(watch)
    try:
        converted(source, tmp_path / "there")
    finally:
        watching.clear()
    assert len(opened) >= 3
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    assert [path for path, flags in opened if flags & writing] == []


def test_a_read_only_source_is_converted_and_the_result_is_writable(own, tmp_path: Path) -> None:
    source = own("llama")
    for path in (*source.iterdir(), source):
        path.chmod(0o555 if path.is_dir() else 0o444)
    there = converted(source, tmp_path / "there")
    assert all(p.stat().st_mode & 0o200 for p in there.iterdir())
    assert shard_digests(converted(there, tmp_path / "back")) == shard_digests(source)


def test_progress_counts_every_byte_of_the_shards(checkpoint, tmp_path: Path) -> None:
    counted: list[int] = []
    plan = convert.plan(checkpoint("llama"), tmp_path / "out", INTERLEAVED)
    result = convert.apply(plan, counted.append, sync=True)
    assert sum(counted) == plan.total_bytes == (checkpoint("llama") / "model.safetensors").stat().st_size
    assert (result.source, result.target, result.tensors) == ("half", "interleaved", 8)
    assert result.bytes == plan.plan.size_bytes
    assert result.seconds > 0


def test_planning_and_previewing_write_nothing(checkpoint, tmp_path: Path) -> None:
    plan = convert.plan(checkpoint("llama"), tmp_path / "out", INTERLEAVED)
    assert convert.preview(plan).tensors == 8
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_is_there_is_refused_and_kept(checkpoint, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "theirs").write_text("kept", encoding="utf-8")
    with pytest.raises(OutputExistsError):
        convert.plan(checkpoint("llama"), tmp_path / "out", INTERLEAVED)
    assert (tmp_path / "out" / "theirs").read_text(encoding="utf-8") == "kept"


# --- memory, and shards side by side --------------------------------------------------------------------------------

MOST_MEMORY_BYTES = 120 << 20
# The peak that wait4 tells of a child begins with that of the parent that it was forked from.
AND_ITS_PEAK = """
import sys
from ropetool.cli.app import run
code = run(sys.argv[1:])
print(open("/proc/self/status").read())
sys.exit(code)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of memory is read from Linux's /proc")
def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    """A layer of an 8-billion Llama in two shards, 0.5 GB: its q and k alone would be 84 MB as float32."""
    source, out = tmp_path / "source", tmp_path / "out"
    config = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 2,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 64,
        "max_position_embeddings": 8192, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    }  # fmt: skip
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    places = {}
    for layer in range(2):
        name = f"model-{layer + 1:05d}-of-00002.safetensors"
        rows = {"q": 4096, "k": 1024, "v": 1024, "o": 4096}
        shapes = {f"model.layers.{layer}.self_attn.{key}_proj.weight": (n, 4096) for key, n in rows.items()}
        shapes[f"model.layers.{layer}.mlp.up_proj.weight"] = (14336, 4096)
        save_file({key: torch.full(shape, 0.01, dtype=torch.bfloat16) for key, shape in shapes.items()}, source / name)
        places.update(dict.fromkeys(shapes, name))
    index = {"metadata": {}, "weight_map": places}
    (source / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert sum(p.stat().st_size for p in source.iterdir()) > 3 * MOST_MEMORY_BYTES
    done = subprocess.run(
        [sys.executable, "-c", AND_ITS_PEAK, "convert", str(source), str(out), "--to", "interleaved", "--as", "same"],
        stdout=subprocess.PIPE, check=True, text=True, timeout=120,
    )  # fmt: skip
    peak = next(line for line in done.stdout.splitlines() if line.startswith("VmHWM"))
    assert int(peak.split()[1]) * 1024 < MOST_MEMORY_BYTES


def test_an_error_in_one_shard_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    source = tiny.save(tiny.model_of("llama"), tmp_path / "source", max_shard_size="60KB")
    monkeypatch.setattr(copying, "cores", lambda: 4)
    plan = convert.plan(source, tmp_path / "out", INTERLEAVED)
    broken = sorted(source.glob("*.safetensors"))[2]
    original = convert.copied

    def failing(file: Path, *arguments: Any) -> Any:
        if file == broken:
            raise OSError(5, "Input/output error")
        return original(file, *arguments)

    monkeypatch.setattr(convert, "copied", failing)
    with pytest.raises(OutputError, match="Input/output error; nothing was kept"):
        convert.apply(plan)
    assert {p.name for p in tmp_path.iterdir()} == {"source"}


@pytest.mark.parametrize("workers", [2, 5])
def test_one_thread_and_several_write_the_same(workers: int, tmp_path: Path, monkeypatch) -> None:
    source = tiny.save(tiny.model_of("qwen3"), tmp_path / "source", max_shard_size="60KB")
    monkeypatch.setattr(copying, "cores", lambda: 1)
    alone = converted(source, tmp_path / "alone")
    monkeypatch.setattr(copying, "cores", lambda: workers)
    assert shard_digests(converted(source, tmp_path / "together")) == shard_digests(alone)


def test_on_a_file_system_that_shares_blocks_the_result_is_the_same(tmp_path: Path, monkeypatch) -> None:
    source = tiny.save(tiny.model_of("qwen3"), tmp_path / "source", max_shard_size="60KB")
    plain = converted(source, tmp_path / "plain")
    cloned: list[int] = []

    def clone(reader: int, writer: int) -> bool:
        cloned.append(os.pwrite(writer, os.pread(reader, 1 << 30, 0), 0))
        return True

    monkeypatch.setattr(copying, "_cloned", clone)
    assert shard_digests(converted(source, tmp_path / "shared")) == shard_digests(plain)
    assert len(cloned) > 4
