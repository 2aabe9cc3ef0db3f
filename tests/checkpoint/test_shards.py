"""Headers that lie, and rows rewritten in place: against safetensors and torch."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ropetool.checkpoint import shards
from ropetool.checkpoint.shards import Tensor, output_error, patch_rows, read_shard, write_tensor
from ropetool.errors import NoSpaceError, OutputError, ShapeError, ShardError
from ropetool.rope.pairing import Head, Keep, Pairing, closed_blocks, index_map
from tests.tiny import raw_tensors

MOST_SECONDS = 1.0


def raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, dtype: str = "F32", shape: object = None) -> dict:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


TWO = {"a": entry(0, 8), "b": entry(8, 16)}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes, too few for a header"),
    "seven bytes": (b"\0" * 7, "7 bytes, too few"),
    "header longer than the file": (raw(TWO)[:40], "its header claims"),
    "header of 2^63 bytes": ((1 << 63).to_bytes(8, "little") + b"{}", "9,223,372,036,854,775,808 bytes"),
    "header just over the limit": ((100_000_001).to_bytes(8, "little") + b" " * 64, "claims 100,000,001 bytes"),
    "no JSON": (raw(b"{nonsense"), "cannot be read as JSON"),
    "an empty header": (raw(b""), "cannot be read as JSON"),
    "not UTF-8": (raw(b'{"\xff\xfe": 1}'), "cannot be read as JSON"),
    "a list": (raw([1, 2]), "not a JSON object"),
    "deep nesting": (raw(b'{"a":' * 60_000), "cannot be read as JSON"),
    "a key twice": (raw(b'{"a": {"dtype":"F32","shape":[1],"data_offsets":[0,4]}, "a": {"dtype":"F32","shape":[1],'
                        b'"data_offsets":[0,4]}}', b"1234"), "'a' appears twice"),
    "an entry without offsets": (raw({"a": {"dtype": "F32", "shape": [1]}}), "the entry of a lacks"),
    "an entry that is a number": (raw({"a": 3}), "the entry of a lacks"),
    "unknown dtype": (raw({"a": entry(0, 4, "Q9", [1])}, b"1234"), "a has the unknown dtype 'Q9'"),
    "dtype of another kind": (raw({"a": entry(0, 4, ["F32"], [1])}, b"1234"), "a has the unknown dtype"),  # type: ignore[arg-type]  # planted
    "negative shape": (raw({"a": entry(0, 4, "F32", [-1])}, b"1234"), "a has the shape [-1]"),
    "shape of floats": (raw({"a": entry(0, 4, "F32", [1.0])}, b"1234"), "a has the shape [1.0]"),
    "shape of truth values": (raw({"a": entry(0, 4, "F32", [True])}, b"1234"), "a has the shape [True]"),
    "shape is a number": (raw({"a": entry(0, 4, "F32", 1)}, b"1234"), "a has the shape 1"),
    "shape that overflows 64 bits": (raw({"a": entry(0, 4, "F32", [1 << 40, 1 << 40])}, b"1234"), "but its offsets"),
    "shape of too few bytes": (raw({"a": entry(0, 4, "F32", [2])}, b"1234"), "F32[2] = 8 bytes, but its"),
    "shape of too many bytes": (raw({"a": entry(0, 8, "F16", [2])}, b"12345678"), "F16[2] = 4 bytes"),
    "reversed offsets": (raw({"a": entry(8, 0, "F32", [2])}, b"12345678"), "but its offsets [8, 0]"),
    "negative offsets": (raw({"a": entry(-4, 0, "F32", [1])}, b"1234"), "a has the data_offsets [-4, 0]"),
    "three offsets": (raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}}), "data_offsets [0, 4, 8]"),
    "offsets of text": (raw({"a": {"dtype": "F32", "shape": [1], "data_offsets": ["0", "4"]}}), "data_offsets"),
    "overlap": (raw({"a": entry(0, 8), "b": entry(4, 12)}, b"0" * 12), "b overlaps the tensor before it"),
    "the same bytes twice": (raw({"a": entry(0, 8), "b": entry(0, 8)}, b"0" * 8), "overlaps the tensor before it"),
    "a hole": (raw({"a": entry(0, 8), "b": entry(12, 20)}, b"0" * 20), "b leaves a hole before it"),
    "a hole at the start": (raw({"a": entry(4, 8)}, b"0" * 8), "a leaves a hole before it"),
    "100 GB": (raw({"a": entry(0, 100 << 30)}, b"0" * 8), "a ends 107,374,182,392 bytes beyond the end of the file"),
    "cut short": (raw(TWO, b"0" * 13), "b ends 3 bytes beyond the end"),
    "bytes after the last tensor": (raw(TWO, b"0" * 21), "5 bytes after the last tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_at_once_and_says_where(name: str, tmp_path: Path) -> None:
    content, said = HOSTILE[name]
    file = tmp_path / "model-00001.safetensors"
    file.write_bytes(content)
    began = time.perf_counter()
    with pytest.raises(ShardError) as caught:
        read_shard(file)
    assert time.perf_counter() - began < MOST_SECONDS
    assert said in caught.value.message
    assert "model-00001.safetensors" in caught.value.message
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 600
    assert caught.value.fields["file"] == str(file)


def test_a_header_length_that_the_file_has_room_for_is_not_read_beyond_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "sparse.safetensors"
    with file.open("wb") as handle:
        handle.write((200_000_000).to_bytes(8, "little"))
        handle.truncate(300_000_000)
    began = time.perf_counter()
    with pytest.raises(ShardError, match="claims 200,000,000 bytes, and at most 100,000,000"):
        read_shard(file)
    assert time.perf_counter() - began < MOST_SECONDS


def test_many_repeated_keys_are_found_fast(tmp_path: Path) -> None:
    text = "{" + ",".join(f'"key{i}": 0' for i in range(100_000)) + ', "key99999": 0}'
    file = tmp_path / "many.safetensors"
    file.write_bytes(raw(text.encode()))
    began = time.perf_counter()
    with pytest.raises(ShardError, match="'key99999' appears twice"):
        read_shard(file)
    assert time.perf_counter() - began < 5 * MOST_SECONDS


def test_metadata_that_is_not_an_object_does_not_break_reading(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    file.write_bytes(raw({"__metadata__": [1], **TWO}, b"0" * 16))
    assert set(read_shard(file).tensors) == {"a", "b"}


@given(seed=st.integers(0, 2**32 - 1))
def test_any_damaged_byte_gives_a_shard_error_or_a_sound_reading(seed: int, tmp_path_factory) -> None:
    file = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    content = bytearray(raw({"__metadata__": {"format": "pt"}, **TWO}, b"0" * 16))
    rng = random.Random(seed)
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(len(content) - 16)] = rng.randrange(256)
    file.write_bytes(bytes(content))
    try:
        shard = read_shard(file)
    except ShardError:
        return
    assert sum(t.size_bytes for t in shard.tensors.values()) == 16


def test_a_sound_file_is_read_as_safetensors_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    tensors = {
        "x": torch.zeros(3, 5),
        "n": torch.zeros(0, 4),
        "s": torch.tensor(1.0),
        "b": torch.zeros(7, dtype=torch.bool),
    }
    save_file(tensors, file, metadata={"format": "pt", "note": "kept"})
    shard = read_shard(file)
    assert {n: t.shape for n, t in shard.tensors.items()} == {n: tuple(t.shape) for n, t in tensors.items()}
    assert shard.metadata == {"format": "pt", "note": "kept"}
    assert shard.size_bytes == file.stat().st_size


# --- rows -----------------------------------------------------------------------------------------------------------

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int8, torch.uint8,
          torch.float8_e4m3fn, torch.float8_e5m2, torch.int64)  # fmt: skip
SPANS = [Head(16, 2, 8), Keep(5), Head(12, 0, 12)] * 2


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Any bytes at all, among them those that are NaN in the dtype."""
    itemsize = torch.empty(0, dtype=dtype).element_size()
    flat = torch.randint(0, 256, (int(np.prod(shape)) * itemsize,), dtype=torch.uint8, generator=generator)
    return flat.view(dtype).reshape(shape)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tail", [(), (7,), (3, 5)], ids=str)
def test_patching_is_the_permutation_that_torch_makes(dtype, tail: tuple[int, ...], tmp_path: Path) -> None:
    index = index_map(SPANS, Pairing.HALF, Pairing.INTERLEAVED)
    generator = torch.Generator().manual_seed(3)
    before = random_tensor((len(index), *tail), dtype, generator)
    others = {"first": random_tensor((9,), dtype, generator), "zlast": random_tensor((4, 4), dtype, generator)}
    file = tmp_path / "a.safetensors"
    save_file({"first": others["first"], "q": before, "zlast": others["zlast"]}, file, metadata={"format": "pt"})
    header, _, _ = raw_tensors(file)
    patch_rows(file, read_shard(file).tensors["q"], index, list(closed_blocks(index)))
    after = load_file(file)
    as_bytes = before.view(torch.uint8).reshape(len(index), -1)
    assert bytes_of(after["q"]) == bytes_of(as_bytes[torch.from_numpy(index)])
    assert bytes_of(after["q"]) != bytes_of(before)
    assert all(bytes_of(after[name]) == bytes_of(others[name]) for name in others)
    assert raw_tensors(file)[0] == header


@pytest.mark.parametrize("buffer_bytes", [1, 64, 300, 1 << 20])
def test_the_size_of_the_buffer_does_not_matter(buffer_bytes: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shards, "BUFFER_BYTES", buffer_bytes)
    index = index_map(SPANS, Pairing.INTERLEAVED, Pairing.HALF)
    before = torch.arange(len(index) * 6, dtype=torch.float32).reshape(-1, 6)
    file = tmp_path / "a.safetensors"
    save_file({"q": before}, file)
    patch_rows(file, read_shard(file).tensors["q"], index, list(closed_blocks(index)))
    assert torch.equal(load_file(file)["q"], before[torch.from_numpy(index)])


def test_nothing_to_move_writes_nothing(tmp_path: Path) -> None:
    patch_rows(tmp_path / "not there", Tensor("q", "F32", (4,), 0, 16), np.arange(4), [])


def test_a_norm_stored_by_head_is_rows_of_all_heads() -> None:
    assert Tensor("q_norm", "F32", (8, 16), 0, 512).row_bytes(128) == 4
    assert Tensor("q", "BF16", (128, 96), 0, 128 * 96 * 2).row_bytes(128) == 192
    assert Tensor("b", "F8_E4M3", (128,), 0, 128).row_bytes(128) == 1


@pytest.mark.parametrize("shape", [(96, 128), (64, 2, 3), (), (0,)])
def test_a_shape_that_does_not_fit_is_named_with_its_numbers(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError) as caught:
        Tensor("layers.0.q_proj.weight", "F32", shape, 0, 0).row_bytes(130)
    assert "layers.0.q_proj.weight" in caught.value.message
    assert str(list(shape)) in caught.value.message
    assert "130 rows" in caught.value.message


def test_rows_that_are_no_whole_bytes_are_refused() -> None:
    with pytest.raises(ShapeError):
        Tensor("q", "F4", (8, 3), 0, 12).row_bytes(8)


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"q": torch.zeros(8, 4)}, file)
    tensor = read_shard(file).tensors["q"]
    os.truncate(file, tensor.start + 40)
    index = index_map([Head(8, 0, 8)], Pairing.HALF, Pairing.INTERLEAVED)
    with pytest.raises(ShardError, match="ended 72 bytes early"):
        patch_rows(file, tensor, index, list(closed_blocks(index)))


def test_write_tensor_writes_that_tensor_only(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    save_file({"a": torch.ones(4), "b": torch.ones(4)}, file)
    write_tensor(file, read_shard(file).tensors["a"], torch.zeros(4).numpy().tobytes())
    assert load_file(file)["a"].sum() == 0
    assert load_file(file)["b"].sum() == 4


# --- errors -----------------------------------------------------------------------------------------------------------


def test_what_a_failed_write_is_called() -> None:
    assert isinstance(output_error(OSError(28, "No space left on device"), Path("x")), NoSpaceError)
    denied = output_error(OSError(13, "Permission denied"), Path("x"))
    assert type(denied) is OutputError
    assert "Permission denied" in denied.message
