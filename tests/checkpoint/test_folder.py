"""A checkpoint directory: what is opened, what is refused, what is taken along, and how it is written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ropetool.checkpoint.folder import (
    check_output,
    check_space,
    checkpoint_directory,
    copy_side_files,
    open_checkpoint,
    read_config,
    side_files,
    staged,
)
from ropetool.errors import (
    CheckpointError,
    ConfigError,
    IndexFileError,
    MissingFileError,
    NoSpaceError,
    OutputError,
    OutputExistsError,
    ShardError,
)

INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three tensors in two shards."""
    directory = tmp_path / "ckpt"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, directory / "one.safetensors")
    save_file({"c": torch.ones(4)}, directory / "two.safetensors")
    index(directory, a="one.safetensors", b="one.safetensors", c="two.safetensors")
    return directory


def index(directory: Path, **weight_map: object) -> None:
    content = {"metadata": {"total_size": 36}, "weight_map": weight_map}
    (directory / INDEX).write_text(json.dumps(content), encoding="utf-8")


def test_a_sharded_checkpoint(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert [s.path.name for s in checkpoint.shards] == ["one.safetensors", "two.safetensors"]
    assert set(checkpoint.tensors) == {"a", "b", "c"}
    assert checkpoint.size_bytes == 36
    assert checkpoint.stale_copies == ()
    assert checkpoint.index_file == INDEX


def test_a_single_file_by_its_own_name_or_by_its_directory(folder: Path) -> None:
    one = open_checkpoint(folder / "one.safetensors")
    assert set(one.tensors) == {"a", "b"}
    assert one.directory == folder
    (folder / INDEX).unlink()
    (folder / "two.safetensors").unlink()
    assert set(open_checkpoint(folder).tensors) == {"a", "b"}
    assert checkpoint_directory(folder / "one.safetensors") == folder


def test_the_config_alone_is_enough_without_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    assert open_checkpoint(folder, with_weights=False).shards == ()
    with pytest.raises(MissingFileError, match=r"no weights: neither model\.safetensors nor"):
        open_checkpoint(folder)


# --- an index that lies ---------------------------------------------------------------------------------------------


def test_a_missing_shard_is_named_with_its_tensors(folder: Path) -> None:
    (folder / "two.safetensors").unlink()
    with pytest.raises(IndexFileError, match=r"two\.safetensors, which is not there; 1 tensors .* c among them"):
        open_checkpoint(folder)


def test_a_tensor_that_its_shard_lacks_is_named(folder: Path) -> None:
    index(folder, a="one.safetensors", b="one.safetensors", c="two.safetensors", d="two.safetensors")
    with pytest.raises(IndexFileError, match=r"says that d is in two\.safetensors, but that shard has no such tensor"):
        open_checkpoint(folder)


def test_a_tensor_that_the_index_lacks_is_named(folder: Path) -> None:
    index(folder, a="one.safetensors", c="two.safetensors")
    with pytest.raises(IndexFileError, match=r"1 tensors are in the shards but not in .*, b among them"):
        open_checkpoint(folder)


def test_a_tensor_in_two_shards_counts_where_it_is_mapped(folder: Path) -> None:
    save_file({"c": torch.ones(4), "a": torch.zeros(2)}, folder / "two.safetensors")
    checkpoint = open_checkpoint(folder)
    assert checkpoint.weight_map["a"].path.name == "one.safetensors"
    assert [(shard.path.name, name) for shard, name in checkpoint.stale_copies] == [("two.safetensors", "a")]
    assert checkpoint.size_bytes == 36


@pytest.mark.parametrize(
    "name",
    ["../one.safetensors", "/etc/passwd", "sub/one.safetensors", "..", ".", "", "..\\one.safetensors", None, 3,
     ["one.safetensors"], {"a": 1}],
)  # fmt: skip
def test_an_index_cannot_name_a_file_elsewhere(name: object, folder: Path) -> None:
    index(folder, a="one.safetensors", b="one.safetensors", c=name)
    with pytest.raises(IndexFileError, match=INDEX.replace(".", r"\.")):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", ["{}", '{"weight_map": null}', '{"weight_map": []}', '{"weight_map": {}}'])
def test_an_index_without_a_map(content: str, folder: Path) -> None:
    (folder / INDEX).write_text(content, encoding="utf-8")
    with pytest.raises(IndexFileError, match="has no weight_map"):
        open_checkpoint(folder)


def test_an_index_that_is_no_json(folder: Path) -> None:
    (folder / INDEX).write_text("{", encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        open_checkpoint(folder)


def test_a_damaged_shard_is_named(folder: Path) -> None:
    file = folder / "two.safetensors"
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(ShardError, match=r"two\.safetensors"):
        open_checkpoint(folder)


def test_two_files_and_no_index_are_not_guessed_about(folder: Path) -> None:
    (folder / INDEX).unlink()
    with pytest.raises(MissingFileError, match=r"2 weight files and no .*: one\.safetensors, two\.safetensors"):
        open_checkpoint(folder)


def test_other_formats_alone_are_named(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(MissingFileError, match=r"no \.safetensors weights, only pytorch_model\.bin"):
        open_checkpoint(folder)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="does not exist"):
        read_config(tmp_path / "nothing")
    (tmp_path / "file.txt").write_text("x", encoding="utf-8")
    with pytest.raises(CheckpointError, match="neither a directory nor"):
        read_config(tmp_path / "file.txt")
    with pytest.raises(MissingFileError, match=r"has no config\.json: a checkpoint is a directory with"):
        read_config(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(MissingFileError, match="it is an adapter; give its base model"):
        read_config(tmp_path)


def test_shards_that_are_links_into_the_blobs_of_the_hub_are_read_through(folder: Path, tmp_path: Path) -> None:
    snapshot = in_hub_cache(folder, tmp_path)
    assert set(open_checkpoint(snapshot).tensors) == {"a", "b", "c"}


def in_hub_cache(folder: Path, tmp_path: Path) -> Path:
    """The files as huggingface_hub lays them: blobs, and a snapshot of links to them."""
    repo = tmp_path / "hub" / "models--org--name"
    snapshot = repo / "snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    shutil.copytree(folder, repo / "blobs")
    for file in folder.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    return snapshot


def test_a_dangling_link_is_a_missing_shard(folder: Path, tmp_path: Path) -> None:
    (folder / "two.safetensors").unlink()
    (folder / "two.safetensors").symlink_to(tmp_path / "gone")
    with pytest.raises(IndexFileError, match=r"two\.safetensors, which is not there"):
        open_checkpoint(folder)


# --- side files -----------------------------------------------------------------------------------------------------


def test_side_files_are_taken_and_other_weights_are_left(folder: Path) -> None:
    taken = ("tokenizer.json", "generation_config.json", "chat_template.jinja", "README.md", "sub/notes.txt", INDEX)
    left = ("pytorch_model.bin", "pytorch_model.bin.index.json", "old.safetensors", "model.gguf", "tf_model.h5",
            "original/consolidated.00.pth")  # fmt: skip
    never = (".git/HEAD", ".cache/x", "__pycache__/a.pyc")
    for name in (*taken, *left, *never):
        (folder / name).parent.mkdir(exist_ok=True)
        if name != INDEX:
            (folder / name).write_text(name, encoding="utf-8")
    files = side_files(open_checkpoint(folder))
    assert sorted(map(str, files.taken)) == sorted(taken)
    assert sorted(map(str, files.left)) == sorted(left)


def test_a_large_file_of_unknown_kind_is_left(folder: Path) -> None:
    with (folder / "weights.bin2").open("wb") as file:
        file.truncate((128 << 20) + 1)
    assert [str(path) for path in side_files(open_checkpoint(folder)).left] == ["weights.bin2"]


def test_side_files_are_copied_and_a_link_becomes_the_file_it_names(folder: Path, tmp_path: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "blob").write_text("tokens", encoding="utf-8")
    (folder / "tokenizer.json").symlink_to("sub/blob")
    (folder / "sub" / "code.py").write_text("pass", encoding="utf-8")
    (tmp_path / "out").mkdir()
    checkpoint = open_checkpoint(folder)
    copy_side_files(checkpoint, tmp_path / "out", side_files(checkpoint))
    assert (tmp_path / "out" / "tokenizer.json").read_text(encoding="utf-8") == "tokens"
    assert not (tmp_path / "out" / "tokenizer.json").is_symlink()
    assert (tmp_path / "out" / "sub" / "code.py").read_text(encoding="utf-8") == "pass"
    assert (tmp_path / "out" / INDEX).read_bytes() == (folder / INDEX).read_bytes()
    assert not list((tmp_path / "out").rglob("*.safetensors"))


# --- writing --------------------------------------------------------------------------------------------------------


def test_staged_writes_beside_and_renames(tmp_path: Path) -> None:
    with staged(tmp_path / "out", sync=True) as stage:
        assert stage.parent == tmp_path
        assert not (tmp_path / "out").exists()
        (stage / "sub").mkdir()
        (stage / "sub" / "file").write_text("whole", encoding="utf-8")
    assert (tmp_path / "out" / "sub" / "file").read_text(encoding="utf-8") == "whole"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~mask


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ValueError, ShardError])
def test_staged_leaves_nothing_after_an_exception(kind: type[BaseException], tmp_path: Path) -> None:
    def write() -> None:
        with staged(tmp_path / "out") as stage:
            (stage / "file").write_bytes(b"half")
            raise kind("stop")

    with pytest.raises(kind):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "kind"), [(28, NoSpaceError), (122, NoSpaceError), (5, OutputError)])
def test_staged_names_what_the_system_refused(number: int, kind: type[OutputError], tmp_path: Path) -> None:
    with pytest.raises(kind, match="nothing was kept") as caught, staged(tmp_path / "out"):
        raise OSError(number, os.strerror(number))
    assert "out" in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_staged_where_the_output_appeared_meanwhile_keeps_what_is_there(tmp_path: Path) -> None:
    def write() -> None:
        with staged(tmp_path / "out") as stage:
            (stage / "file").write_bytes(b"new")
            (tmp_path / "out").mkdir()
            (tmp_path / "out" / "theirs").write_bytes(b"theirs")

    with pytest.raises(OutputError):
        write()
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")] == ["out", "out/theirs"]


def test_staged_in_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"), staged(tmp_path / "no" / "out"):
        pass


def test_check_output(folder: Path, tmp_path: Path) -> None:
    check_output(tmp_path / "new", folder)
    with pytest.raises(OutputExistsError, match="is already there"):
        check_output(folder, folder)
    (tmp_path / "dangling").symlink_to(tmp_path / "gone")
    with pytest.raises(OutputExistsError):
        check_output(tmp_path / "dangling", folder)
    with pytest.raises(OutputError, match="lies inside the source"):
        check_output(folder / "out", folder)
    (tmp_path / "alias").symlink_to(folder)
    with pytest.raises(OutputError, match="lies inside the source"):
        check_output(tmp_path / "alias" / "out", folder)
    with pytest.raises(OutputError, match="is not a directory"):
        check_output(tmp_path / "no" / "out", folder)


def test_an_output_inside_the_directory_around_a_single_file_is_refused(folder: Path) -> None:
    with pytest.raises(OutputError, match="lies inside the source"):
        check_output(folder / "out", folder / "one.safetensors")


def test_check_space_names_the_bytes(tmp_path: Path) -> None:
    check_space(tmp_path, 1)
    with pytest.raises(NoSpaceError, match="1,152,921,504,606,846,976 bytes are needed") as caught:
        check_space(tmp_path, 1 << 60)
    assert caught.value.fields["needed_bytes"] == 1 << 60


def test_a_part_that_cannot_be_listed_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "original").mkdir()
    (folder / "original" / "params.json").write_text("{}", encoding="utf-8")
    assert Path("original/params.json") in side_files(open_checkpoint(folder)).taken
    list_directory = os.scandir

    def refuse(place: str | Path) -> object:
        if Path(place).name == "original":
            raise PermissionError(13, "Permission denied", str(place))
        return list_directory(place)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="original"):
        side_files(open_checkpoint(folder))
