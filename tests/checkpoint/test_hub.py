"""What a Hub id is, which files of a repository are taken, and headers that nothing takes for weights."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ropetool import convert, extend, verify
from ropetool.checkpoint import fetching, headers, hub
from ropetool.checkpoint.adapter import is_adapter, open_adapter
from ropetool.checkpoint.compare import first_wrong_row, same_bytes
from ropetool.checkpoint.fields import Axis, Lay
from ropetool.checkpoint.folder import INDEX, Checkpoint, open_checkpoint
from ropetool.checkpoint.headers import SMALL_BYTES, Held, origin
from ropetool.checkpoint.hub import Listing, snapshot_of, with_ids
from ropetool.checkpoint.hub_id import HubId, Need, hub_id
from ropetool.checkpoint.pickled import pickled_files
from ropetool.checkpoint.shards import Shard, Tensor, copy_without
from ropetool.errors import HubTransferError, MissingFileError, NoSpaceError, NotFetchedError, ShardError
from ropetool.families.methods import Method, Weights
from ropetool.rope.pairing import Pairing

COMMIT = "0123456789abcdef0123456789abcdef01234567"

IDS = {
    "org/name": ("org/name", None),
    "Org-1/na_me.v2": ("Org-1/na_me.v2", None),
    "org/name@main": ("org/name", "main"),
    "org/name@refs/pr/1": ("org/name", "refs/pr/1"),
    "org/name@v1.0+fp8": ("org/name", "v1.0+fp8"),
    f"org/name@{COMMIT}": ("org/name", COMMIT),
    f"{'o' * 96}/{'n' * 96}": (f"{'o' * 96}/{'n' * 96}", None),
}
PATHS = (
    "", "name", "name@main", "/org/name", "./org/name", "../name", "~/name", "a/b/c", "org/", "/name", "org/name/",
    "org//name", "org/name@", "org/name@/main", "org/name@a..b", "org/name@a b", "org/name@a@b", "org/name.git",
    "a--b/name", "org/na--me", "org/na..me", ".org/name", "org/.name", "org/name.", "-org/name", "org/na me",
    "örg/name", "org/model.safetensors", f"org/{'n' * 97}", "https://host/org/name", "C:\\org\\name",
)  # fmt: skip


@pytest.mark.parametrize("text", IDS)
def test_ids(text: str) -> None:
    found = hub_id(text)
    assert found == HubId(*IDS[text])
    assert str(found) == text


@pytest.mark.parametrize("text", PATHS)
def test_paths_are_no_ids(text: str) -> None:
    assert hub_id(text) is None


# The files of a directory, as those of a repository: which of them are the weights.
FOLDERS: dict[str, tuple[str, ...]] = {
    "one shard": ("model.safetensors",),
    "one shard and everything else": (
        "model.safetensors", "pytorch_model.bin", "model.gguf", "tf_model.h5", "consolidated.0.pth",
        "adapter_config.json"
    ),
    "shards": ("model-1.safetensors", "model-2.safetensors", INDEX),
    "shards and another": ("model-1.safetensors", "model-2.safetensors", "other.safetensors", INDEX),
    "shards beside pickles": ("model-1.safetensors", "model-2.safetensors", INDEX, "pytorch_model.bin"),
    "one shard by another name": ("consolidated.safetensors",),
    "two shards without an index": ("a.safetensors", "b.safetensors"),
    "a pickle": ("pytorch_model.bin", "training_args.bin"),
    "pickles": ("pytorch_model-1.bin", "pytorch_model-2.bin", "pytorch_model.bin.index.json", "scheduler.pt"),
    "a pickle by another name": ("weights.pth", "optimizer.pt"),
    "two pickles": ("a.bin", "b.bin"),
    "Meta's": ("consolidated.00.pth", "consolidated.01.pth", "params.json"),
    "an adapter": ("adapter_config.json", "adapter_model.safetensors"),
    "an adapter as a pickle": ("adapter_config.json", "adapter_model.bin"),
    "an adapter in both": ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"),
    "GGUF": ("model.gguf",),
    "nothing": (),
}  # fmt: skip
PICKLE_INDEX = "pytorch_model.bin.index.json"
INDEXED = {INDEX: "model-*.safetensors", PICKLE_INDEX: "pytorch_model-*.bin"}


def fill(directory: Path, names: tuple[str, ...]) -> Path:
    """A directory with such files: each shard holds a tensor named as it, and an index names them so."""
    directory.mkdir()
    (directory / "config.json").write_text("{}", encoding="utf-8")
    for name in names:
        if name.endswith(".safetensors"):
            save_file({name: torch.ones(2)}, directory / name)
        else:
            (directory / name).write_text("{}", encoding="utf-8")
    for index, of in INDEXED.items():
        if index in names:
            weight_map = {file.name: file.name for file in directory.glob(of)}
            (directory / index).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return directory


def opened(directory: Path) -> list[str]:
    """The files with weights that ropetool reads of a directory."""
    pickles = [file.name for file in pickled_files(directory)]
    if pickles == [PICKLE_INDEX]:
        pickles += [file.name for file in directory.glob(INDEXED[PICKLE_INDEX])]
    if pickles:
        return pickles
    try:
        checkpoint = open_adapter(directory) if is_adapter(directory) else open_checkpoint(directory)
    except MissingFileError:
        return []
    return [shard.path.name for shard in checkpoint.shards]


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_weights_of_a_repository_are_those_of_a_directory(kind: str, tmp_path: Path, monkeypatch) -> None:
    directory = fill(tmp_path / "d", FOLDERS[kind])
    monkeypatch.setattr(fetching, "fetch", lambda hub, commit, name: directory / name)
    listing = Listing(COMMIT, dict.fromkeys(path.name for path in directory.iterdir()))
    assert sorted(fetching._chosen(fetching._Repo(HubId("org/name"), listing, directory))) == sorted(opened(directory))


def test_the_table_of_folders_has_weights_of_each_kind(tmp_path: Path) -> None:
    found = {kind: opened(fill(tmp_path / str(n), names)) for n, (kind, names) in enumerate(FOLDERS.items())}
    assert {kind for kind, files in found.items() if not files} == {
        "two shards without an index", "two pickles", "GGUF", "nothing",
    }  # fmt: skip


# Everything that is not for a command stays where it is; sizes in bytes.
WANTED: dict[str, tuple[int | None, set[Need]]] = {
    "config.json": (700, set(Need)),
    "quantize_config.json": (None, set(Need)),
    INDEX: (20 << 20, set(Need)),
    "modeling_odd.py": (9000, set(Need)),
    "pkg/layers.py": (9000, set(Need)),
    "tokenizer.json": (17 << 20, set(Need) - {Need.HEADERS}),
    "evaluation.json": (2 << 20, set(Need) - {Need.HEADERS}),
    "merges.txt": (1 << 20, set(Need) - {Need.HEADERS}),
    "tokenizer.model": (None, set(Need) - {Need.HEADERS}),
    "assets/voice.json": (100, set(Need) - {Need.HEADERS}),
    "data.zip": (200 << 20, set()),
    "model.safetensors": (100, set()),
    "pytorch_model.bin": (100, set()),
    PICKLE_INDEX: (100, set()),
    "model.fp8.index.json": (100, set()),
    ".gitattributes": (100, set()),
    ".cache/x.json": (100, set()),
}


@pytest.mark.parametrize("name", WANTED)
def test_files_beside_the_weights(name: str) -> None:
    size_bytes, needs = WANTED[name]
    assert {need for need in Need if fetching._is_wanted(name, size_bytes, need)} == needs


# Headers alone.


@pytest.fixture
def cut(own: Callable[[str], Path], monkeypatch) -> Path:
    """A tiny llama of which only the header is here, as `fetching` leaves it."""
    directory = own("llama")
    shard = directory / "model.safetensors"
    size_bytes, whole = shard.stat().st_size, shard.read_bytes()
    shard.with_name("whole").write_bytes(whole)
    shard.write_bytes(whole[: 8 + int.from_bytes(whole[:8], "little")])
    Held("org/name", COMMIT, {shard.name: size_bytes}, (shard.name,)).write(directory)
    monkeypatch.setattr(headers, "keeps_headers", lambda place: place == directory)
    return directory


def test_a_cut_shard_reads_as_the_whole_one(cut: Path, checkpoint: Callable[[str], Path]) -> None:
    here, there = (open_checkpoint(path) for path in (cut, checkpoint("llama")))
    assert here.tensors == there.tensors
    assert here.size_bytes == there.size_bytes
    assert [shard.size_bytes for shard in here.shards] == [shard.size_bytes for shard in there.shards]


def test_a_size_that_is_not_the_headers_is_seen(cut: Path) -> None:
    record = headers.held(cut)
    assert record
    for off in (-4, 4):
        sizes = {name: size + off for name, size in record.sizes.items()}
        replace(record, sizes=sizes).write(cut)
        with pytest.raises(ShardError, match=r"4 bytes (beyond the end|after the last tensor)"):
            open_checkpoint(cut)


def test_without_the_record_it_is_a_broken_file(cut: Path) -> None:
    shutil.rmtree(cut / ".cache")
    with pytest.raises(ShardError, match="bytes beyond the end of the file"):
        open_checkpoint(cut)


def test_no_other_program_can_take_it_for_weights(cut: Path) -> None:
    with pytest.raises(SafetensorError):
        load_file(cut / "model.safetensors")
    with pytest.raises(SafetensorError):
        AutoModelForCausalLM.from_pretrained(cut)


Reader = Callable[[Checkpoint, Path], object]


def _first(checkpoint: Checkpoint) -> tuple[Shard, Tensor]:
    return checkpoint.shards[0], checkpoint.shards[0].tensors["model.norm.weight"]


# Whatever wants the weights: each must say that they are not here, and none may take what it finds instead.
READERS: dict[str, Reader] = {
    "same_bytes": lambda c, out: same_bytes(*_first(c), *_first(c)),
    "first_wrong_row": lambda c, out: first_wrong_row(*_first(c), *_first(c), np.arange(96)),
    "columns": lambda c, out: first_wrong_row(*_first(c), *_first(c), np.arange(96), Lay(Axis.LAST)),
    "copy_without": lambda c, out: copy_without(c.shards[0], out, ["model.norm.weight"]),
    "convert": lambda c, out: convert.apply(convert.plan(c.directory, out, Pairing.INTERLEAVED)),
    "extend by link": lambda c, out: extend.apply(_extension(c, out, Weights.LINK)),
    "extend by copy": lambda c, out: extend.apply(_extension(c, out, Weights.COPY)),
    "verify": lambda c, out: verify.verify(c.directory, c.directory),
    "a large tensor": lambda c, out: c.shards[0].read(replace(_first(c)[1], stop=_first(c)[1].start + SMALL_BYTES + 1)),
}


def _extension(checkpoint: Checkpoint, out: Path, weights: Weights) -> extend.Extension:
    return extend.plan(checkpoint.directory, out, Method.YARN, to=128, weights=weights)


@pytest.mark.parametrize("reader", READERS)
def test_whoever_reads_weights_is_told(reader: str, cut: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(NotFetchedError, match=rf"only the header was fetched from org/name.*org/name@{COMMIT}"):
        READERS[reader](open_checkpoint(cut), out)
    assert not out.is_dir()
    (cut / "whole").replace(cut / "model.safetensors")  # the readers are at no fault
    shutil.rmtree(cut / ".cache")
    if reader != "a large tensor":
        READERS[reader](open_checkpoint(cut), out)


def test_a_small_tensor_is_fetched_by_itself_once(cut: Path, monkeypatch) -> None:
    asked = []

    def read_range(hub: HubId, commit: str, file: str, start: int, stop: int) -> tuple[bytes, int]:
        asked.append((hub.repo, commit, file, start, stop))
        return (cut / "whole").read_bytes()[start:stop], 0

    monkeypatch.setattr(headers, "read_range", read_range)
    shard, tensor = _first(open_checkpoint(cut))
    expected = (cut / "whole").read_bytes()[tensor.start : tensor.stop]
    assert [shard.read(tensor), shard.read(tensor)] == [expected, expected]
    assert asked == [("org/name", COMMIT, "model.safetensors", tensor.start, tensor.stop)]


def test_a_fault_of_the_local_disk_is_told_as_one() -> None:
    hub_here = HubId("org/name")
    for number, raised in ((errno.ENOSPC, NoSpaceError), (errno.EDQUOT, NoSpaceError), (errno.EACCES, PermissionError)):
        with pytest.raises(raised), hub._asking(hub_here, "model.safetensors"):
            raise OSError(number, os.strerror(number))
    for fault in (ConnectionResetError(errno.ECONNRESET, "reset"), OSError("too short"), RuntimeError("of xet")):
        with pytest.raises(HubTransferError, match="did not arrive whole"), hub._asking(hub_here, "model.safetensors"):
            raise fault


# Where a directory comes from.


def test_origin(cut: Path, checkpoint, tmp_path: Path) -> None:
    assert origin(cut) == origin(cut / "model.safetensors") == f"org/name@{COMMIT}"
    assert origin(checkpoint("llama")) is None
    snapshot = tmp_path / "hub" / "models--org--na-me" / "snapshots" / COMMIT
    for path in (snapshot, snapshot / "sub", snapshot.parent, snapshot.with_name("main")):
        path.mkdir(parents=True, exist_ok=True)
        assert snapshot_of(path) == (("org/na-me", COMMIT) if path == snapshot else None)
    (snapshot / "model.safetensors").touch()
    assert origin(snapshot / "model.safetensors") == f"org/na-me@{COMMIT}"


@pytest.mark.parametrize("place", ["/h/hub/models--org--na-me/snapshots", "/h/assets/ropetool/org--na-me/headers"])
def test_messages_name_ids(place: str) -> None:
    told = with_ids(
        f"{place}/{COMMIT} has no x, and '{place}/{COMMIT}/a.json' is not JSON; ./models--org--name is no such"
    )
    ours = f"org/na-me@{COMMIT[:12]}"
    assert told == f"{ours} has no x, and '{ours}/a.json' is not JSON; ./models--org--name is no such"
