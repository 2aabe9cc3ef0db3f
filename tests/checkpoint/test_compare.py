"""Digests of tensors: streamed, of both sides, and of a file that both share only once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ropetool.checkpoint import compare
from ropetool.checkpoint.compare import Pair, digest, digests, first_wrong_row, same_place
from ropetool.checkpoint.shards import read_shard
from ropetool.errors import ShardError

RNG = np.random.default_rng(3)
TENSORS = {
    "long": RNG.standard_normal((3 * compare.HASHED_BYTES // 8 + 5, 2)).astype(np.float32),
    "one": np.ones(1, np.int8),
    "none": np.zeros((0, 4), np.float16),
}


def pairs(a: Path, b: Path) -> list[Pair]:
    one, other = read_shard(a), read_shard(b)
    return [(one, one.tensors[name], other, other.tensors[name]) for name in TENSORS]


def test_a_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file(TENSORS, tmp_path / name)
    found = list(digests(pairs(tmp_path / "a", tmp_path / "b")))
    right = [hashlib.sha256(tensor.tobytes()).digest() for tensor in TENSORS.values()]
    assert found == list(zip(right, right, strict=True))


def test_one_bit_makes_another(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a")
    raw = bytearray((tmp_path / "a").read_bytes())
    shard = read_shard(tmp_path / "a")
    raw[shard.tensors["long"].stop - 1] ^= 1
    (tmp_path / "b").write_bytes(raw)
    differing = [one != other for one, other in digests(pairs(tmp_path / "a", tmp_path / "b"))]
    assert differing == [True, False, False]


def test_a_hard_link_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(TENSORS, tmp_path / "a")
    os.link(tmp_path / "a", tmp_path / "b")
    save_file(TENSORS, tmp_path / "c")
    read: list[str] = []
    monkeypatch.setattr(compare, "digest", lambda shard, tensor: read.append(shard.path.name) or b"")
    list(digests(pairs(tmp_path / "a", tmp_path / "b")))
    assert read == ["a", "a", "a"]
    assert not any(same_place(*pair) for pair in pairs(tmp_path / "a", tmp_path / "c"))
    list(digests(pairs(tmp_path / "a", tmp_path / "c")))
    assert sorted(read[3:]) == ["a", "a", "a", "c", "c", "c"]


def test_a_file_that_is_cut_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "a")
    shard = read_shard(tmp_path / "a")
    with (tmp_path / "a").open("r+b") as file:
        file.truncate(shard.tensors["long"].stop - 8)
    with pytest.raises(ShardError, match="ended 8 bytes early in long: it changed while it was read"):
        digest(shard, shard.tensors["long"])


def test_rows_can_be_asked_alone(tmp_path: Path) -> None:
    rows = np.arange(32, dtype=np.float32).reshape(8, 4)
    save_file({"x": rows}, tmp_path / "a")
    other = rows.copy()
    other[[2, 5]] += 1
    save_file({"x": other}, tmp_path / "b")
    one, two = read_shard(tmp_path / "a"), read_shard(tmp_path / "b")
    pair = one, one.tensors["x"], two, two.tensors["x"]
    for only, wrong in (([2, 5], 2), ([5], 5), ([0, 7], None)):
        mask = np.isin(np.arange(8), only)
        assert first_wrong_row(*pair, np.arange(8), only=mask) == wrong
