"""Checkpoints in .bin and .pth: read without running code, written as safetensors, and the same model."""

from __future__ import annotations

import json
import os
import shutil
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file

from ropetool import convert, verify
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.checkpoint.shards import read_shard
from ropetool.detect import inspect
from ropetool.errors import CheckpointError, IndexFileError, MissingFileError, PickleFileError
from ropetool.models.pickles import DTYPES, as_safetensors, open_pickled
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import edit_json, read_json, snapshot

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED
INDEX = "model.safetensors.index.json"
Q = "model.layers.0.self_attn.q_proj.weight"


def tensors_of(directory: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in directory.glob("*.safetensors") for name, t in load_file(file).items()}


def pickled(source: Path, place: Path, name: str = "pytorch_model.bin", wrap: Callable[[dict], Any] = dict) -> Path:
    """A checkpoint with its weights in one pickle instead."""
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("*.safetensors*"))
    torch.save(wrap(tensors_of(source)), place / name)
    return place


def split(source: Path, place: Path, names: list[str], *, index: bool) -> Path:
    """A checkpoint with its weights in several pickles."""
    shutil.copytree(source, place, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors = tensors_of(source)
    parts = {name: dict(list(tensors.items())[at :: len(names)]) for at, name in enumerate(names)}
    for name, part in parts.items():
        torch.save(part, place / name)
    if index:
        places = {tensor: name for name, part in parts.items() for tensor in part}
        content = {"metadata": {"total_size": 1}, "weight_map": places}
        (place / "pytorch_model.bin.index.json").write_text(json.dumps(content), encoding="utf-8")
    return place


def to(target: Pairing, source: Path, destination: Path) -> Path:
    convert.apply(convert.plan(source, destination, target))
    return destination


@pytest.fixture(scope="module")
def yardstick(checkpoint, tmp_path_factory) -> dict[str, torch.Tensor]:
    """The tensors of the tiny llama, converted from safetensors."""
    return tensors_of(to(INTERLEAVED, checkpoint("llama"), tmp_path_factory.mktemp("yardstick") / "there"))


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


SHARDS = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
FORMS: dict[str, tuple[Callable[[Path, Path], Path], int]] = {
    "single": (lambda s, p: pickled(s, p), 1),
    "sharded": (lambda s, p: split(s, p, SHARDS, index=True), 2),
    "one consolidated": (lambda s, p: pickled(s, p, "consolidated.00.pth"), 1),
    "two consolidated": (lambda s, p: split(s, p, ["consolidated.00.pth", "consolidated.01.pth"], index=False), 2),
    "another name": (lambda s, p: pickled(s, p, "weights.pt"), 1),
    "under state_dict": (lambda s, p: pickled(s, p, wrap=lambda t: {"state_dict": t, "epoch": 3}), 1),
    "under model": (lambda s, p: pickled(s, p, wrap=lambda t: {"model": t, "optimizer": {"lr": 0.1}}), 1),
    "parameters": (
        lambda s, p: pickled(s, p, wrap=lambda t: {n: torch.nn.Parameter(v) for n, v in t.items()}), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_becomes_the_safetensors_conversion(form: str, checkpoint, yardstick, tmp_path: Path) -> None:
    build, shards = FORMS[form]
    source = build(checkpoint("llama"), tmp_path / "source")
    (source / "training_args.bin").write_bytes(b"not weights")
    before = snapshot(source)
    counted: list[int] = []
    plan = convert.plan(source, tmp_path / "there", INTERLEAVED)
    assert not (tmp_path / "there").exists()
    convert.apply(plan, counted.append)
    there = tmp_path / "there"
    assert snapshot(source) == before
    files = sorted(file.name for file in there.glob("*.safetensors"))
    assert len(files) == shards
    assert files == (["model.safetensors"] if shards == 1 else [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)])
    assert not [p for p in there.iterdir() if p.suffix in (".bin", ".pth", ".pt") or "bin" in p.name]
    assert same(tensors_of(there), yardstick)
    assert sum(counted) == plan.total_bytes == sum((there / name).stat().st_size for name in files)
    checked = open_checkpoint(there)  # header, offsets and index are sound
    assert all(shard.metadata == {"format": "pt"} for shard in checked.shards)
    assert [s.tensors for s in plan.checkpoint.shards] == [
        read_shard(there / s.path.name).tensors for s in checked.shards
    ]
    if shards == 2:
        total = sum(t.nbytes for t in yardstick.values())
        assert read_json(there / INDEX)["metadata"] == {"total_size": total}
    said = [warning.message for warning in plan.warnings if warning.code == "pickle"]
    assert len(said) == shards
    assert ("left out" in said[0]) == (form.startswith("under"))
    assert "left-behind" in {w.code for w in plan.warnings}


def test_the_header_is_the_one_that_the_library_writes(checkpoint, tmp_path: Path) -> None:
    source = pickled(checkpoint("llama"), tmp_path / "source")
    with as_safetensors(source) as place:
        ours = place / "model.safetensors"
        safetensors.torch.save_file(load_file(ours), tmp_path / "theirs", metadata={"format": "pt"})
        assert ours.read_bytes() == (tmp_path / "theirs").read_bytes()
    assert not place.exists()


def test_the_logits_are_those_of_the_pickle(checkpoint, tmp_path: Path) -> None:
    """deepseek_v3 obeys a key, so the stock class runs both sides: transformers reads the .bin itself."""
    source = pickled(checkpoint("deepseek_v3"), tmp_path / "source")
    want = tiny.logits(tiny.load(source))
    there = to(HALF, source, tmp_path / "there")
    assert float((tiny.logits(tiny.load(there)) - want).abs().max()) < 2e-4
    edit_json(there / "config.json", rope_interleave=True)
    assert float((tiny.logits(tiny.load(there)) - want).abs().max()) > 0.5


def test_a_stale_table_in_a_pickle_is_a_warning(checkpoint, tmp_path: Path) -> None:
    source = pickled(checkpoint("llama"), tmp_path / "source")
    (file,) = source.glob("*.bin")
    table = 500000.0 ** (-torch.arange(0, 16, 2) / 16)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    torch.save({**torch.load(file, weights_only=True), name: table}, file)
    (said,) = (w for w in convert.plan(source, tmp_path / "there", INTERLEAVED).warnings if w.code == "stale-inv-freq")
    assert "was saved for base 500000" in said.message


def test_verify_reads_pickles_on_either_side_and_sees_a_fault(checkpoint, tmp_path: Path) -> None:
    source = split(checkpoint("llama"), tmp_path / "source", SHARDS, index=True)
    there = to(INTERLEAVED, source, tmp_path / "there")
    assert verify.verify(source, there).passed
    assert verify.verify(source, checkpoint("llama")).passed
    tensors = load_file(there / "model-00001-of-00002.safetensors")
    name = next(n for n in tensors if n.endswith("v_proj.weight") or n.endswith("o_proj.weight"))
    tensors[name] = tensors[name].flip(0)
    safetensors.torch.save_file(tensors, there / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    assert not verify.verify(source, there).passed


# --- tensors of every kind ------------------------------------------------------------------------------------------


def test_tied_weights_are_written_each(tmp_path: Path) -> None:
    model = tiny.model_of("llama", tie_word_embeddings=True)
    tiny.save(model, tmp_path / "source")
    (tmp_path / "source" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "source" / "pytorch_model.bin")
    there = to(INTERLEAVED, tmp_path / "source", tmp_path / "there")
    tensors = tensors_of(there)
    assert torch.equal(tensors["lm_head.weight"], tensors["model.embed_tokens.weight"])
    loaded = tiny.load_stored(there)
    assert loaded.lm_head.weight.data_ptr() == loaded.model.embed_tokens.weight.data_ptr()
    assert verify.verify(tmp_path / "source", there).passed


def test_views_are_written_in_order(checkpoint, yardstick, tmp_path: Path) -> None:
    def views(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: torch.stack([t, t], -1)[..., 1] for name, t in tensors.items()}

    source = pickled(checkpoint("llama"), tmp_path / "source", wrap=views)
    assert not torch.load(source / "pytorch_model.bin")[Q].is_contiguous()
    assert same(tensors_of(to(INTERLEAVED, source, tmp_path / "there")), yardstick)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(dtype: torch.dtype, checkpoint, tmp_path: Path) -> None:
    raw = torch.randint(256, (128, 8 * dtype.itemsize), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    tensor = (raw % 2).view(dtype) if dtype is torch.bool else raw.view(dtype)
    more = {"a.scalar": tensor[0, 0], "a.none": tensor[:0], Q + "_also": tensor.T}
    source = pickled(checkpoint("llama"), tmp_path / "source", wrap=lambda t: {**t, **more, "x.proj": tensor})
    with as_safetensors(_renamed(source)) as place:
        written = load_file(place / "model.safetensors")
    assert written["x.proj"].dtype is dtype
    assert written["x.proj"].view(torch.uint8).equal(tensor.view(torch.uint8))
    assert written[Q + "_also"].T.contiguous().view(torch.uint8).equal(tensor.view(torch.uint8))
    assert (written["a.scalar"].shape, written["a.none"].shape) == ((), (0, 8))


def _renamed(source: Path) -> Path:
    """Any single file of weights will do."""
    return Path((source / "pytorch_model.bin").rename(source / "some.bin").parent)


def test_files_of_the_format_before_zip_are_read(checkpoint, yardstick, tmp_path: Path) -> None:
    source = pickled(checkpoint("llama"), tmp_path / "source")
    torch.save(tensors_of(checkpoint("llama")), source / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert same(tensors_of(to(INTERLEAVED, source, tmp_path / "there")), yardstick)


# --- refused --------------------------------------------------------------------------------------------------------


class Hostile:
    """A pickle of this makes a directory when it is loaded as pickles are."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


def one(value: Any) -> Callable[[dict, Path], Any]:
    return lambda tensors, mark: {**tensors, Q: value}


REFUSED: dict[str, tuple[Callable[[dict, Path], Any], str]] = {
    "code": (lambda t, mark: {**t, "x": Hostile(mark)}, r"posix\.mkdir would have to be called"),
    "an object": (lambda t, mark: {**t, "args": Namespace(lr=1)}, r"argparse\.Namespace would have to be called"),
    "a whole model": (lambda t, mark: torch.nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear"),
    "a list": (lambda t, mark: list(t.values()), "holds a list, not tensors by name"),
    "a number": (one(3), f"'{Q}' is of the type int"),
    "a number for a name": (lambda t, mark: {**t, 7: torch.ones(1)}, "7 is of the type Tensor, not a plain"),
    "the name of the header": (lambda t, mark: {**t, "__metadata__": torch.ones(1)}, "__metadata__"),
    "nothing": (lambda t, mark: {}, "no tensors"),
    "two candidates": (lambda t, mark: {"model": t, "state_dict": t}, "under state_dict and model"),
    "a sparse tensor": (one(torch.eye(4).to_sparse()), f"{Q} is torch.sparse_coo"),
    "a quantized tensor": (one(torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)), f"{Q} is quantized"),
    "a tensor without data": (one(torch.ones(4, device="meta")), f"{Q} is torch.strided on meta"),
    "a dtype of its own": (one(torch.ones(4, dtype=torch.complex128)), f"{Q} is torch.complex128"),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", REFUSED)
def test_a_pickle_that_is_not_plain_tensors_is_refused(what: str, checkpoint, tmp_path: Path) -> None:
    make, said = REFUSED[what]
    mark = tmp_path / "executed"
    source = pickled(checkpoint("llama"), tmp_path / "source", wrap=lambda tensors: make(tensors, mark))
    with pytest.raises(PickleFileError, match=r"pytorch_model\.bin is refused: .*" + said) as raised:
        convert.plan(source, tmp_path / "there", INTERLEAVED)
    assert "\n" not in raised.value.message
    assert "\x1b" not in raised.value.message
    with pytest.raises(PickleFileError):
        verify.verify(source, checkpoint("llama"))
    assert {p.name for p in tmp_path.iterdir()} == {"source"}


def test_the_hostile_pickle_would_have_run(tmp_path: Path) -> None:
    torch.save({"x": Hostile(tmp_path / "executed")}, tmp_path / "file")
    torch.load(tmp_path / "file", weights_only=False)
    assert (tmp_path / "executed").is_dir()


@pytest.mark.parametrize("data", [b"", b"junkjunk", b"PK\x05\x06" + b"\0" * 18, b"\x80\x02}q\x00."], ids=str)
def test_damaged_files_are_refused(data: bytes, checkpoint, tmp_path: Path) -> None:
    source = pickled(checkpoint("llama"), tmp_path / "source")
    (source / "pytorch_model.bin").write_bytes(data)
    with pytest.raises(PickleFileError, match=r"pytorch_model\.bin is refused"):
        convert.plan(source, tmp_path / "there", INTERLEAVED)
    whole = pickled(checkpoint("llama"), tmp_path / "whole") / "pytorch_model.bin"
    os.truncate(whole, whole.stat().st_size // 2)
    with pytest.raises(PickleFileError, match=r"pytorch_model\.bin is refused"):
        convert.plan(whole.parent, tmp_path / "there", INTERLEAVED)


# --- which files count ----------------------------------------------------------------------------------------------


def test_safetensors_win_over_pickles_beside_them(own, yardstick, tmp_path: Path) -> None:
    source = own("llama")
    torch.save({Q: torch.zeros(1)}, source / "pytorch_model.bin")
    assert open_pickled(source) is None
    there = to(INTERLEAVED, source, tmp_path / "there")
    assert same(tensors_of(there), yardstick)
    assert not (there / "pytorch_model.bin").exists()


def test_slices_are_not_shards(checkpoint, tmp_path: Path) -> None:
    source = pickled(checkpoint("llama"), tmp_path / "source", "consolidated.00.pth")
    shutil.copy(source / "consolidated.00.pth", source / "consolidated.01.pth")
    with pytest.raises(PickleFileError, match=r"is in consolidated\.01\.pth and in another file: these are the slices"):
        convert.plan(source, tmp_path / "there", INTERLEAVED)


def test_several_files_without_an_index_are_not_guessed_at(checkpoint, tmp_path: Path) -> None:
    source = split(checkpoint("llama"), tmp_path / "source", ["a.bin", "b.bin"], index=False)
    with pytest.raises(MissingFileError, match=r"only a\.bin, b\.bin"):
        convert.plan(source, tmp_path / "there", INTERLEAVED)


def test_metas_own_names_are_not_taken_for_a_model(checkpoint, tmp_path: Path) -> None:
    def meta(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name.replace("model.", "").replace("self_attn", "attention"): t for name, t in tensors.items()}

    source = pickled(checkpoint("llama"), tmp_path / "source", "consolidated.00.pth", wrap=meta)
    with pytest.raises(CheckpointError, match="lies in an attention called attention"):
        convert.plan(source, tmp_path / "there", INTERLEAVED)


def test_faults_of_the_index_are_those_of_safetensors(checkpoint, tmp_path: Path) -> None:
    source = split(checkpoint("llama"), tmp_path / "source", SHARDS, index=True)
    index = source / "pytorch_model.bin.index.json"
    good = read_json(index)
    edit_json(index, weight_map={**good["weight_map"], "ghost": SHARDS[0]})
    with pytest.raises(IndexFileError, match=r"ghost is in pytorch_model-00001"):
        convert.plan(source, tmp_path / "there", INTERLEAVED)
    for places in ({"x": "../outside.bin"}, {"x": 3}, [], {}, None):
        edit_json(index, weight_map=places)
        with pytest.raises(IndexFileError):
            convert.plan(source, tmp_path / "there", INTERLEAVED)
    edit_json(index, weight_map=good["weight_map"])
    (source / SHARDS[1]).unlink()
    with pytest.raises(IndexFileError, match="is not there"):
        convert.plan(source, tmp_path / "there", INTERLEAVED)


def test_inspect_says_what_convert_will_do(checkpoint, tmp_path: Path) -> None:
    result = inspect(pickled(checkpoint("llama"), tmp_path / "source"))
    assert (result.pairing, result.moves) == ("half", None)
    (warning,) = (w for w in result.warnings if w.code == "no-weights")
    assert (
        "only pytorch_model.bin; convert and verify read pickles of plain tensors, and convert writes"
        in warning.message
    )


def test_an_adapter_in_a_pickle(checkpoint, tmp_path: Path) -> None:
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": str(checkpoint("llama"))}
    (adapter / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    name = "base_model.model." + Q.replace(".weight", ".lora_B.weight")
    tensor = torch.randn(128, 4)
    torch.save({name: tensor}, adapter / "adapter_model.bin")
    assert inspect(adapter).moves is None
    there = to(INTERLEAVED, adapter, tmp_path / "there")
    assert {p.name for p in there.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    moved = load_file(there / "adapter_model.safetensors")[name]
    assert torch.equal(moved[:16], tensor[[0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]])
