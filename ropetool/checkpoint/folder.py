"""A checkpoint directory: opened and checked, and written beside its final name, then renamed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from ropetool.checkpoint.copying import copy_file
from ropetool.checkpoint.durable import is_temporary
from ropetool.checkpoint.foreign import format_without_config
from ropetool.checkpoint.guard import is_guarded, unguarded
from ropetool.checkpoint.headers import held
from ropetool.checkpoint.journal import refuse_half_converted
from ropetool.checkpoint.lock import PATIENCE_SECONDS, refuse_busy
from ropetool.checkpoint.shards import Shard, Stamp, Tensor, check_unchanged, output_error, read_shard, stamps_of
from ropetool.checkpoint.staging import own_stage
from ropetool.checkpoint.strangers import OF_INDEX, WEIGHT_SUFFIXES, is_file_name, own_file, read_json_file
from ropetool.errors import (
    CheckpointError,
    IndexFileError,
    MissingFileError,
    NoSpaceError,
    OutputError,
    OutputExistsError,
)

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LARGE_SIDE_FILE_BYTES = 128 << 20


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: its config, its shards' headers and which tensor counts where.

    ``stamps`` are of the other files that were read (the config, the index, pickles), of the moment before.
    """

    directory: Path
    config: dict[str, Any]
    shards: tuple[Shard, ...]
    index_file: str | None
    weight_map: Mapping[str, Shard]
    stamps: Mapping[Path, Stamp] = field(default_factory=dict, compare=False)

    def check_unchanged(self) -> None:
        """Raises `SourceChangedError` where a file is no longer the one that was read."""
        for shard in self.shards:
            shard.check_unchanged()
        for path, stamp in self.stamps.items():
            check_unchanged(path, stamp)

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor that counts, by name, in the order of the shards."""
        return {name: shard.tensors[name] for name, shard in self.weight_map.items()}

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors that count."""
        return sum(tensor.size_bytes for tensor in self.tensors.values())

    @cached_property
    def stale_copies(self) -> tuple[tuple[Shard, str], ...]:
        """Tensors that lie in a second shard too, where the index does not look for them."""
        return tuple((s, name) for s in self.shards for name in s.tensors if self.weight_map[name] is not s)


def checkpoint_directory(path: Path) -> Path:
    """The directory that ``path`` names: itself, or the one around a single .safetensors file.

    Raises `BusyError` for one that another process changes now, `HalfConvertedError` for one whose change in place was
    interrupted: nothing can be read there.
    """
    directory = _directory(path)
    refuse_busy(directory)
    refuse_half_converted(directory)
    return directory


def _directory(path: Path) -> Path:
    if path.is_file() and path.suffix == ".safetensors":
        return path.parent
    if not path.exists():
        raise MissingFileError(f"{path} does not exist", path=str(path))
    if not path.is_dir():
        raise CheckpointError(f"{path} is neither a directory nor a .safetensors file", path=str(path))
    return path


@contextmanager
def as_directory(path: Path) -> Iterator[Path]:
    """Within, a directory in which every loader finds the weights of the checkpoint at ``path``, and no others.

    For one file among others that is a temporary one of links: to that file, and to what is no weights.
    """
    directory = checkpoint_directory(path)
    if path.is_dir() or (path.name == SINGLE and not (directory / INDEX).exists()):
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="ropetool-") as links:
        for file in directory.iterdir():
            if file.is_file() and file.suffix not in (".safetensors", ".bin", ".pth") and file.name != INDEX:
                (Path(links) / file.name).symlink_to(file.resolve())
        (Path(links) / SINGLE).symlink_to(path.resolve())
        yield Path(links)


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of the checkpoint at ``path``, without the guard if it has one."""
    return unguarded(_raw_config(path))


def has_guard(path: Path) -> bool:
    """Whether stock code refuses the checkpoint at ``path``, because `checkpoint.guard` made it."""
    return is_guarded(_raw_config(path))


def _raw_config(path: Path) -> dict[str, Any]:
    directory = checkpoint_directory(path)
    file = directory / CONFIG
    if not file.is_file():
        raise MissingFileError(f"{directory} has no {CONFIG}: {_without_config(directory)}", path=str(file))
    return read_json_file(file)


def _without_config(directory: Path) -> str:
    """What a directory without config.json is, and what to do."""
    if (directory / ADAPTER_CONFIG).is_file():
        return "it is an adapter; give its base model instead (convert, inspect and verify take an adapter's directory)"
    form = format_without_config(directory)
    return form.sentence if form else "a checkpoint is a directory with config.json and .safetensors files"


def open_checkpoint(path: Path, *, with_weights: bool = True) -> Checkpoint:
    """Open a checkpoint: read config.json and every shard's header, and check the index against them.

    ``path`` is a directory, or one .safetensors file with config.json beside it. No tensor data is read. Without
    ``with_weights`` the shards are not looked for.
    """
    directory = checkpoint_directory(path)
    stamps = stamps_of((directory / CONFIG, directory / INDEX))
    config = read_config(path)
    if not with_weights:
        return Checkpoint(directory, config, (), None, {}, stamps)
    return replace(_with_weights(path, directory, config), stamps=stamps)


def _with_weights(path: Path, directory: Path, config: dict[str, Any]) -> Checkpoint:
    if path.is_file():
        return single_checkpoint(directory, config, path)
    index = directory / INDEX
    if index.is_file():
        return sharded_checkpoint(directory, config, index)
    single = directory / SINGLE
    if single.is_file():
        return single_checkpoint(directory, config, single)
    found = weight_files(directory)
    if len(found) == 1 and found[0].endswith(".safetensors"):
        return single_checkpoint(directory, config, directory / found[0])
    raise MissingFileError(_no_weights(directory, found), path=str(directory), found=found)


def weight_files(directory: Path) -> list[str]:
    """The names of all files with weights, whatever their format, in a directory or where its headers are from."""
    record = held(directory)
    names = record.weights if record else (path.name for path in directory.iterdir() if path.is_file())
    return sorted(name for name in names if PurePosixPath(name).suffix in WEIGHT_SUFFIXES)


def _no_weights(directory: Path, found: list[str]) -> str:
    if not found:
        return f"{directory} has no weights: neither {SINGLE} nor {INDEX} is there"
    if any(name.endswith(".safetensors") for name in found):
        return (
            f"{directory} has {len(found)} weight files and no {INDEX} that says which counts: {', '.join(found[:4])}"
        )
    return (
        f"{directory} has no .safetensors weights, only {', '.join(found[:4])}; convert and verify read pickles of "
        f"plain tensors, and convert writes safetensors; for anything else save it as safetensors first"
    )


def single_checkpoint(directory: Path, config: dict[str, Any], file: Path) -> Checkpoint:
    """A checkpoint of one shard, ``file``."""
    shard = read_shard(file)
    return Checkpoint(directory, config, (shard,), None, dict.fromkeys(shard.tensors, shard))


def sharded_checkpoint(
    directory: Path, config: dict[str, Any], index: Path, read: Callable[[Path], Shard] = read_shard
) -> Checkpoint:
    """A checkpoint of the shards that ``index`` names, each opened by ``read``; the two must agree."""
    weight_map = read_json_file(index, OF_INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise IndexFileError(f"{index.name} has no weight_map", file=str(index))
    shards: dict[str, Shard] = {}
    for name in weight_map.values():
        if not isinstance(name, str) or not is_file_name(name):
            raise IndexFileError(f"{index.name} names the shard {name!r}, which is not a file name", file=str(index))
    for name in dict.fromkeys(weight_map.values()):
        if not (directory / name).is_file():
            missing = sorted(tensor for tensor, shard in weight_map.items() if shard == name)
            raise IndexFileError(
                f"{index.name} names the shard {name}, which is not there; "
                f"{len(missing)} tensors would be in it, {missing[0]} among them",
                file=str(index),
                shard=name,
            )
        shards[name] = read(directory / name)
    for tensor, name in weight_map.items():
        if tensor not in shards[name].tensors:
            raise IndexFileError(
                f"{index.name} says that {tensor} is in {name}, but that shard has no such tensor",
                file=str(index),
                tensor=tensor,
                shard=name,
            )
    unmapped = sorted({name for s in shards.values() for name in s.tensors} - weight_map.keys())
    if unmapped:
        raise IndexFileError(
            f"{len(unmapped)} tensors are in the shards but not in {index.name}, {unmapped[0]} among them",
            file=str(index),
            tensor=unmapped[0],
        )
    mapped = {tensor: shards[name] for tensor, name in weight_map.items()}
    return Checkpoint(directory, config, tuple(shards.values()), index.name, mapped)


@dataclass(frozen=True)
class SideFiles:
    """The files beside the weights: those that a copy takes along, and those it leaves, by relative path."""

    taken: tuple[Path, ...]
    left: tuple[Path, ...]


def side_files(checkpoint: Checkpoint) -> SideFiles:
    """Sort everything but the weights and config.json.

    Tokenizer, templates, generation config, code and text are taken. Weights in any other format and adapters would be
    stale beside a changed checkpoint, so they are left, as is any file over `LARGE_SIDE_FILE_BYTES` of unknown kind.
    One that is a link to somewhere else is refused: its content is not the checkpoint's, and a copy would spread it.
    """
    known = {shard.path for shard in checkpoint.shards} | {checkpoint.directory / CONFIG}
    taken: list[Path] = []
    left: list[Path] = []
    for file in sorted(p for p in _files_below(checkpoint.directory) if p.is_file() and p not in known):
        relative = file.relative_to(checkpoint.directory)
        if any(part in (".git", ".cache", "__pycache__") for part in relative.parts) or is_temporary(file):
            continue
        stale_index = file.name.endswith(".index.json") and str(relative) != checkpoint.index_file
        stale = file.suffix in WEIGHT_SUFFIXES or stale_index or file.name == ADAPTER_CONFIG
        stale = stale or file.stat().st_size > LARGE_SIDE_FILE_BYTES
        if not stale:
            own_file(file, checkpoint.directory)
        (left if stale else taken).append(relative)
    return SideFiles(tuple(taken), tuple(left))


def _files_below(directory: Path) -> Iterator[Path]:
    """Every file below a directory; raises `OSError` for a part that cannot be listed, which Path.rglob leaves out."""

    def unlisted(error: OSError) -> None:
        raise error

    for at, _, names in os.walk(directory, onerror=unlisted):
        yield from (Path(at) / name for name in names)


def check_output(destination: Path, source: Path) -> None:
    """Refuse an output that exists, lies inside the source, or has no directory to be in."""
    if destination.exists() or destination.is_symlink():
        raise OutputExistsError(
            f"{destination} is already there; name a new directory, or remove it first", path=str(destination)
        )
    try:
        inside, place = source.resolve(), destination.resolve()
    except (OSError, RuntimeError) as error:  # a loop of symbolic links
        raise OutputError(f"{source} or {destination} cannot be followed: {error}", path=str(source)) from error
    inside = inside.parent if inside.is_file() else inside
    if inside in place.parents:
        raise OutputError(
            f"{destination} lies inside the source {source}; name a place outside it", path=str(destination)
        )
    parent = destination.resolve().parent
    if not parent.is_dir():
        raise OutputError(f"{parent}, where {destination.name} would be, is not a directory", path=str(parent))


def check_room(destination: Path, checkpoint: Checkpoint, files: SideFiles) -> None:
    """Refuse before writing when there is no room beside ``destination`` for the shards and the files beside them.

    Raises `SourceChangedError` where one of those changed since it was read.
    """
    checkpoint.check_unchanged()
    beside = sum((checkpoint.directory / path).stat().st_size for path in files.taken)
    check_space(destination.resolve().parent, beside + sum(shard.size_bytes for shard in checkpoint.shards))


def check_space(parent: Path, needed_bytes: int) -> None:
    """Refuse before writing when the file system has not ``needed_bytes`` free."""
    free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        raise NoSpaceError(
            f"{needed_bytes:,} bytes are needed in {parent}, and {free:,} are free; nothing was written",
            path=str(parent),
            needed_bytes=needed_bytes,
            free_bytes=free,
        )


@contextmanager
def staged(
    destination: Path, *, like: Path | None = None, sync: bool = False, patience_seconds: float = PATIENCE_SECONDS
) -> Iterator[Path]:
    """A sibling directory to write into; it becomes ``destination`` when the block ends well, else it is removed.

    It and its files get the modes of those in ``like``, but that their owner may write. With ``sync`` every file is on
    disk before the rename, and the rename before the block is left. A run that is killed leaves the sibling, which the
    next one to the same place removes; one that is at it still is waited for so long (`BusyError`).
    """
    parent = destination.resolve().parent
    with ExitStack() as stack:
        try:
            stage = stack.enter_context(own_stage(destination, patience_seconds))
        except OSError as error:
            raise output_error(error, parent) from error
        with _becoming(stage, destination, like, sync):
            yield stage


@contextmanager
def _becoming(stage: Path, destination: Path, like: Path | None, sync: bool) -> Iterator[None]:
    try:
        yield
        stage.chmod(0o777 & ~_umask())
        if like is not None:
            _take_modes(stage, like)
        if sync:
            _sync(*(path for path in stage.rglob("*")), stage)
        os.rename(stage, destination)
    except BaseException as error:
        shutil.rmtree(stage, ignore_errors=True)
        if isinstance(error, OSError):
            raise output_error(error, destination) from error
        raise
    if not sync:
        return
    try:
        _sync(destination.resolve().parent)
    except OSError as error:
        raise OutputError(
            f"{destination} is whole, but its name is not known to be on disk: {error.strerror or error}. After a "
            f"power cut look whether it is there",
            path=str(destination),
        ) from error


def _take_modes(stage: Path, like: Path) -> None:
    """Give what is in ``stage``, and itself, the modes of what is in ``like`` by the same name."""
    for path in (stage, *stage.rglob("*")):
        original = like / path.relative_to(stage)
        if original.exists() and not path.is_symlink() and not path.samefile(original):
            mode = original.stat().st_mode & 0o777 | (0o700 if path.is_dir() else 0o200)
            if mode != path.stat().st_mode & 0o777:
                path.chmod(mode)


def _sync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def copy_side_files(checkpoint: Checkpoint, stage: Path, files: SideFiles) -> None:
    """Copy the taken side files into ``stage``; a symbolic link is copied as the file that it names."""
    for relative in files.taken:
        (stage / relative.parent).mkdir(parents=True, exist_ok=True)
        copy_file(checkpoint.directory / relative, stage / relative)
