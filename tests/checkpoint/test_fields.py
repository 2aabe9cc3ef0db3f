"""Permuting output rows along the last dimension and in packed words, and finding a wrong one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool.checkpoint import compare, fields
from ropetool.checkpoint.compare import first_wrong_row
from ropetool.checkpoint.fields import ROWS, Axis, Lay
from ropetool.checkpoint.shards import Shard, read_shard, read_tensor
from ropetool.rope.pairing import Head, Keep, Pairing, index_map
from tests.moving import patched
from tests.quantised import cut_words, fill_words
from tests.tiny import raw_tensors

INDEX = index_map([Head(16, 0, 8), Keep(16), Head(32, 8, 24)], Pairing.INTERLEAVED, Pairing.HALF)
ROWS_ = len(INDEX)
LINES = 5
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int8, torch.float8_e4m3fn, torch.float64]
PACKED = [(bits, axis) for bits in (2, 3, 4, 8) for axis in Axis]


def written(file: Path, tensor: torch.Tensor) -> Shard:
    """A file with ``tensor`` between two others."""
    others = {"a": torch.arange(7, dtype=torch.int16), "z": torch.arange(9, dtype=torch.int16)}
    save_file({**others, "t": tensor.contiguous()}, file, metadata={"format": "pt"})
    return read_shard(file)


def values_of(tensor: torch.Tensor, lay: Lay) -> torch.Tensor:
    """The values [lines, rows] of a tensor, read without ropetool."""
    words = tensor.T if lay.axis is Axis.FIRST else tensor
    return cut_words(words, lay.bits) if lay.bits else words


def random_values(bits: int) -> torch.Tensor:
    return torch.randint(0, 1 << bits, (LINES, ROWS_), generator=torch.Generator().manual_seed(bits))


def packed(bits: int, axis: Axis) -> tuple[torch.Tensor, Lay]:
    words = fill_words(random_values(bits), bits)
    return (words.T if axis is Axis.FIRST else words), Lay(axis, bits)


@pytest.fixture(params=[1, 64, 200, 1 << 20])
def buffer_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the buffer is."""
    monkeypatch.setattr(fields, "BUFFER_BYTES", request.param)
    monkeypatch.setattr(compare, "BUFFER_BYTES", request.param)


@pytest.mark.usefixtures("buffer_bytes")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_columns_of_any_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    elements = torch.randint(0, 256, (LINES, ROWS_ * dtype.itemsize), dtype=torch.uint8)
    shard, before = written(tmp_path / "t", elements.view(dtype)), written(tmp_path / "b", elements.view(dtype))
    patched(shard.path, shard.tensors["t"], INDEX, Lay(Axis.LAST))
    got = load_file(shard.path)["t"].view(torch.uint8).reshape(LINES, ROWS_, -1)
    assert torch.equal(got, elements.reshape(LINES, ROWS_, -1)[:, INDEX])
    ends = (before, before.tensors["t"], shard, shard.tensors["t"], INDEX)
    assert first_wrong_row(*ends, Lay(Axis.LAST)) is None
    assert raw_tensors(before.path)[0] == raw_tensors(shard.path)[0]


@pytest.mark.usefixtures("buffer_bytes")
@pytest.mark.parametrize(("bits", "axis"), PACKED, ids=str)
def test_packed_values_are_permuted_and_nothing_else_changes(bits: int, axis: Axis, tmp_path: Path) -> None:
    tensor, lay = packed(bits, axis)
    shard, before = written(tmp_path / "t", tensor), written(tmp_path / "b", tensor)
    patched(shard.path, shard.tensors["t"], INDEX, lay)
    after = load_file(shard.path)
    assert torch.equal(values_of(after["t"], lay), random_values(bits)[:, INDEX])
    assert not torch.equal(after["t"], tensor)
    assert all(torch.equal(after[name], load_file(before.path)[name]) for name in "az")
    assert first_wrong_row(before, before.tensors["t"], shard, shard.tensors["t"], INDEX, lay) is None
    patched(shard.path, shard.tensors["t"], np.argsort(INDEX), lay)
    assert shard.path.read_bytes() == before.path.read_bytes()


@pytest.mark.parametrize("row", [0, 10, 21, 31, ROWS_ - 1])
@pytest.mark.parametrize(("bits", "axis"), PACKED, ids=str)
def test_the_row_of_one_wrong_value_is_named(bits: int, axis: Axis, row: int, tmp_path: Path) -> None:
    """Rows 10 and 21 of 3-bit values lie across two words."""
    tensor, lay = packed(bits, axis)
    values = random_values(bits)[:, INDEX]
    values[LINES - 1, row] ^= 1 << (bits - 1)
    words = fill_words(values, bits)
    before = written(tmp_path / "b", tensor)
    after = written(tmp_path / "t", words.T if axis is Axis.FIRST else words)
    assert first_wrong_row(before, before.tensors["t"], after, after.tensors["t"], INDEX, lay) == row


@pytest.mark.parametrize("row", [0, 40, ROWS_ - 1])
def test_the_row_of_a_wrong_column_is_named(row: int, tmp_path: Path) -> None:
    tensor = torch.randn(LINES, ROWS_, generator=torch.Generator().manual_seed(2))
    wrong = tensor[:, INDEX].clone()
    wrong[3, row] += 1
    before, after = written(tmp_path / "b", tensor), written(tmp_path / "t", wrong)
    ends = (before, before.tensors["t"], after, after.tensors["t"], INDEX)
    assert first_wrong_row(*ends, Lay(Axis.LAST)) == row
    assert first_wrong_row(*ends[:4], np.arange(LINES), ROWS) == 0


def test_a_tensor_is_read_whole(tmp_path: Path) -> None:
    shard = written(tmp_path / "t", torch.tensor(3, dtype=torch.uint8))
    assert read_tensor(shard.path, shard.tensors["t"]) == b"\x03"
    assert read_tensor(shard.path, shard.tensors["a"]) == torch.arange(7, dtype=torch.int16).numpy().tobytes()
