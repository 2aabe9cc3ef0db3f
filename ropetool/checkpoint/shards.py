"""One .safetensors file: its header, checked, and the rewriting of rows in a copy of it.

A permutation of rows changes no name, shape, dtype or size. So a shard is converted by copying the file and writing
the moved rows over the copy, as raw bytes: the header and every other tensor stay what they were by construction.
Format: huggingface/safetensors, README, "Format" (8 bytes little-endian header length, JSON, data).
"""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeGuard

from ropetool.checkpoint.headers import Remote, held
from ropetool.checkpoint.strangers import Limits, Pairs, open_regular, parse_json, unique
from ropetool.errors import NoSpaceError, OutputError, ShapeError, ShardError, SourceChangedError

# The safetensors library takes 100 MB. This has room for 90,000 tensors in one file, and is read in a second.
OF_HEADER = Limits(16 << 20, 1_100_000)
LARGEST_PRODUCT = 1 << 128
# Of a file at once: it stays in the cache of a core from reading to writing.
BUFFER_BYTES = 512 << 10

DTYPE_BITS: Mapping[str, int] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}

Progress = Callable[[int], None]
# Where a part of a file begins and ends, in bytes.
Range = tuple[int, int]


def no_progress(done_bytes: int) -> None:
    """Swallow progress."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a shard; ``start`` and ``stop`` are byte offsets in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the data."""
        return self.stop - self.start

    def row_bytes(self, rows: int) -> int:
        """Bytes of one row when the leading dimensions are read as ``rows`` rows.

        A weight [rows, in], a bias [rows] and a norm stored as [heads, head_dim] are all rows so. Raises
        `ShapeError` when no leading part of the shape has that many entries.
        """
        for axis in range(1, len(self.shape) + 1):
            if math.prod(self.shape[:axis]) == rows:
                bits = DTYPE_BITS[self.dtype] * math.prod(self.shape[axis:])
                if bits % 8 == 0:
                    return bits // 8
        raise ShapeError(
            f"{self.name} has shape {list(self.shape)}, which is not {rows} rows; "
            f"check the head counts and head_dim in config.json",
            tensor=self.name,
            shape=list(self.shape),
            expected_rows=rows,
        )


Stamp = tuple[int, int, int]


def stamp_of(file: Path | int) -> Stamp:
    """What another write to a file, or to an open one, changes: its size, its time in ns, its inode."""
    status = os.stat(file)
    return status.st_size, status.st_mtime_ns, status.st_ino


def stamps_of(paths: Iterable[Path]) -> Mapping[Path, Stamp]:
    """The stamps of those of the files that are there."""
    return {path: stamp_of(path) for path in paths if path.is_file()}


def check_unchanged(path: Path, stamp: Stamp) -> None:
    """Raises `SourceChangedError` where a file no longer has the stamp that it had before it was read."""
    if not path.is_file() or stamp_of(path) != stamp:
        raise SourceChangedError(
            f"{path} changed while it was read; nothing was kept. Run again when nobody writes to it", file=str(path)
        )


@dataclass(frozen=True)
class Shard:
    """A .safetensors file and what its header says; ``remote`` is where the rest is, if the header alone is here.

    ``stamp`` is of the moment before the header was read.
    """

    path: Path
    size_bytes: int
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    remote: Remote | None = None
    stamp: Stamp | None = field(default=None, compare=False)

    def check_unchanged(self) -> None:
        """Raises `SourceChangedError` where the file is no longer the one whose header was read."""
        if self.stamp is not None:
            check_unchanged(self.path, self.stamp)

    @property
    def data(self) -> Path:
        """The file, for whoever reads weights from it; raises `NotFetchedError` where only its header is here."""
        if self.remote is not None:
            raise self.remote.not_fetched()
        return self.path

    def read(self, tensor: Tensor) -> bytes:
        """The data of one small tensor, from wherever it is."""
        if self.remote is not None:
            return self.remote.read(tensor.start, tensor.stop)
        return read_tensor(self.path, tensor)


def _reject(path: Path, reason: str, **fields: Any) -> ShardError:
    return ShardError(f"{path.name} is not a sound .safetensors file: {reason}", file=str(path), **fields)


def _header(path: Path, remote: Remote | None) -> tuple[dict[str, Any], int, int]:
    """The header's JSON object, the file offset at which the data begins, and the bytes of the whole file."""
    with open_regular(path) as file:
        size_bytes = remote.size_bytes if remote else os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            raise _reject(path, f"it has {size_bytes} bytes, too few for a header")
        header_bytes = int.from_bytes(prefix, "little")
        if header_bytes > OF_HEADER.size_bytes or 8 + header_bytes > size_bytes:
            limit = min(OF_HEADER.size_bytes, size_bytes - 8)
            raise _reject(path, f"its header claims {header_bytes:,} bytes, and at most {limit:,} are possible")
        raw = file.read(header_bytes)
    if not raw.startswith(b"{"):
        raise _reject(path, "its header cannot be read as JSON (it does not begin with an object)")
    try:
        header = parse_json(raw, OF_HEADER, _entry)
    except ValueError as error:
        raise _reject(path, f"its header cannot be read as JSON ({error})") from error
    if not isinstance(header, dict):
        raise _reject(path, "its header is not a JSON object of tensors")
    return header, 8 + header_bytes, size_bytes


def _entry(pairs: Pairs) -> dict[str, Any] | tuple[str, tuple[int, ...], int, int]:
    """A JSON object of a header; a sound tensor's as dtype, shape and offsets, which takes a third of the memory."""
    found = unique(pairs)
    dtype, shape, offsets = found.get("dtype"), found.get("shape"), found.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return found
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        return found
    return sys.intern(dtype), tuple(shape), offsets[0], offsets[1]


def _are_counts(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and {*map(type, value)} <= {int} and min(value, default=0) >= 0


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> Tensor:
    """One header entry, checked on its own."""
    if not name.isprintable():
        raise _reject(path, f"the name {name!r} holds characters that cannot be printed", tensor=name)
    if not isinstance(entry, tuple):
        raise _unsound(path, name, entry)
    dtype, shape, begin, end = entry
    needed_bits = _elements(path, name, shape) * DTYPE_BITS[dtype]
    if needed_bits != (end - begin) * 8:
        raise _reject(
            path,
            f"{name} is {dtype}{list(shape)} = {needed_bits // 8:,} bytes, "
            f"but its offsets [{begin:,}, {end:,}] hold {end - begin:,}",
            tensor=name,
        )
    return Tensor(name, dtype, shape, data_start + begin, data_start + end)


def _elements(path: Path, name: str, shape: tuple[int, ...]) -> int:
    """The product of a shape, which a stranger may have made too large to be computed."""
    product = 1 if all(shape) else 0
    for size in shape:
        product *= size
        if product > LARGEST_PRODUCT:
            raise _reject(path, f"the shape of {name}, {list(shape)!r}, is larger than any file", tensor=name)
    return product


def _unsound(path: Path, name: str, entry: Any) -> ShardError:
    """What is wrong with an entry that `_entry` did not take for a tensor's."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        return _reject(path, f"the entry of {name} lacks dtype, shape or data_offsets", tensor=name)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        return _reject(path, f"{name} has the unknown dtype {dtype!r}", tensor=name)
    if not _are_counts(shape):
        return _reject(path, f"{name} has the shape {shape!r}", tensor=name)
    return _reject(path, f"{name} has the data_offsets {offsets!r}", tensor=name)


def _metadata(path: Path, found: Any) -> dict[str, str]:
    """The texts beside the tensors; null is none, as the safetensors library reads it."""
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise _reject(path, "its __metadata__ is no object of texts")
    return found


def read_shard(path: Path) -> Shard:
    """Read and check the header of one shard; the data is not read.

    Raises `ShardError` for anything that a sound file cannot have: a header longer than the file, offsets that
    overlap, leave a hole or point beyond the end, a shape that does not fill them.
    """
    record = held(path.parent)
    remote = record.remote(path) if record else None
    stamp = None if remote else stamp_of(path)
    header, data_start, size_bytes = _header(path, remote)
    metadata = _metadata(path, header.pop("__metadata__", None))
    tensors = {name: _tensor(path, name, entry, data_start) for name, entry in header.items()}
    position = data_start
    for tensor in sorted(tensors.values(), key=attrgetter("start", "stop")):
        if tensor.start != position:
            what = "overlaps the tensor before it" if tensor.start < position else "leaves a hole before it"
            raise _reject(path, f"{tensor.name} {what} (it starts at byte {tensor.start:,})", tensor=tensor.name)
        position = tensor.stop
        if position > size_bytes:
            missing = position - size_bytes
            raise _reject(
                path,
                f"{tensor.name} ends {missing:,} bytes beyond the end of the file; "
                f"it was cut short, or its header lies",
                tensor=tensor.name,
                file_bytes=size_bytes,
            )
    if position != size_bytes:
        raise _reject(path, f"{size_bytes - position:,} bytes after the last tensor belong to no tensor")
    return Shard(path, size_bytes, tensors, metadata, remote, stamp)


def copy_without(shard: Shard, target: Path, names: Collection[str], progress: Progress = no_progress) -> None:
    """Copy a shard without some of its tensors; the others keep their order, and the header its metadata."""
    kept = [tensor for name, tensor in shard.tensors.items() if name not in names]
    position, header = 0, {"__metadata__": dict(shard.metadata)} if shard.metadata else {}
    offsets = {}
    for tensor in sorted(kept, key=lambda tensor: tensor.start):
        offsets[tensor.name] = [position, position + tensor.size_bytes]
        position += tensor.size_bytes
    entries = {t.name: {"dtype": t.dtype, "shape": t.shape, "data_offsets": offsets[t.name]} for t in kept}
    raw = json.dumps({**header, **entries}, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    raw += b" " * (-len(raw) % 8)
    with shard.data.open("rb") as reader, target.open("xb") as writer:
        writer.write(len(raw).to_bytes(8, "little") + raw)
        for tensor in sorted(kept, key=lambda tensor: tensor.start):
            for start in range(tensor.start, tensor.stop, BUFFER_BYTES):
                size_bytes = min(BUFFER_BYTES, tensor.stop - start)
                writer.write(read_exactly(reader.fileno(), size_bytes, start))
                progress(size_bytes)
        os.fchmod(writer.fileno(), os.fstat(reader.fileno()).st_mode & 0o7777 | 0o200)


def batches(blocks: Sequence[tuple[int, int]], row_bytes: int) -> Iterator[tuple[int, int]]:
    """Cut the blocks, and the few rows between two of them, into runs of about `BUFFER_BYTES`, or of one block."""
    if not blocks:
        return
    at, end = blocks[0]
    for start, stop in blocks[1:]:
        apart = (start - end) * row_bytes > BUFFER_BYTES
        if apart or (stop - at) * row_bytes > BUFFER_BYTES:
            yield at, end if apart else start
            at = start
        end = stop
    yield at, end


def read_tensor(file: Path, tensor: Tensor) -> bytes:
    """The data of one small tensor of ``file``."""
    with file.open("rb", buffering=0) as handle:
        return read_exactly(handle.fileno(), tensor.size_bytes, tensor.start)


def write_tensor(file: Path, tensor: Tensor, data: bytes) -> None:
    """Overwrite the whole data of one tensor in ``file``."""
    with file.open("r+b", buffering=0) as handle:
        write_exactly(handle.fileno(), data, tensor.start)


def read_exactly(fd: int, size_bytes: int, offset: int) -> bytes:
    """``size_bytes`` bytes of an open file from ``offset`` on; raises `ShardError` where it ends before."""
    parts = []
    while size_bytes:
        try:
            part = os.pread(fd, size_bytes, offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, name_of(fd)) from error
        if not part:
            raise ShardError(f"a file ended {size_bytes:,} bytes early: it changed while it was read")
        parts.append(part)
        size_bytes, offset = size_bytes - len(part), offset + len(part)
    return b"".join(parts)


def name_of(fd: int) -> str | None:
    """The file that an open descriptor is of, where the system tells; an error of pread(2) names none."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None


def write_exactly(fd: int, data: bytes | memoryview, offset: int) -> None:
    """All of ``data`` over the bytes of an open file from ``offset`` on."""
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written


def output_error(error: OSError, where: Path) -> OutputError:
    """The error a person should see for a failed write, when what was half-written is gone.

    A file that the error names and that is there is one that was read.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpaceError(
            f"no space left while writing {where}; nothing was kept. Free space and run again", path=str(where)
        )
    said = error.strerror or str(error)
    if error.filename is not None and os.path.exists(error.filename):
        said = f"{os.fsdecode(error.filename)}: {said}"
    return OutputError(f"{where} cannot be written: {said}; nothing was kept", path=str(where))
