"""A short run of the fuzzing, and faults planted for it to find."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from ropetool.checkpoint import folder
from ropetool.checkpoint.shards import Shard
from ropetool.families import reading
from tests import fuzz

INPUTS, SEED = 400, 3


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> fuzz.Ground:
    return fuzz.ground_at(tmp_path_factory.mktemp("fuzz"))


def test_whatever_a_stranger_writes_is_read_or_refused(ground: fuzz.Ground) -> None:
    fuzz.fuzz(ground, INPUTS, SEED)
    assert ground.counted.total() >= INPUTS
    came = {"header: read", "header: refused", "index: read", "index: refused", "config: read", "config: bad-config"}
    assert came <= set(ground.counted)


def test_a_reader_that_takes_more_than_the_library_is_found(ground: fuzz.Ground, monkeypatch) -> None:
    monkeypatch.setattr(fuzz, "read_shard", lambda path: Shard(path, 0, {}))
    with pytest.raises(AssertionError):
        fuzz.fuzz(ground, INPUTS, SEED)


def test_a_path_out_of_the_directory_is_found(ground: fuzz.Ground, monkeypatch) -> None:
    monkeypatch.setattr(folder, "is_file_name", lambda name: True)
    shutil.copy(ground.place / "indexed" / "one.safetensors", ground.place)
    away = dict.fromkeys("ab", "../one.safetensors")
    with pytest.raises(AssertionError):
        fuzz.index_input(ground, json.dumps({"weight_map": away}).encode())


def test_a_traceback_is_found(ground: fuzz.Ground, monkeypatch) -> None:
    monkeypatch.setattr(reading, "check_layers", lambda config: {}[config["num_hidden_layers"]])
    with pytest.raises(AssertionError, match="internal"):
        fuzz.fuzz(ground, INPUTS, SEED)


def test_a_hang_is_found(ground: fuzz.Ground, monkeypatch) -> None:
    def wait(path: Path) -> None:
        while True:
            time.sleep(0.1)

    monkeypatch.setattr(fuzz, "HANGS_SECONDS", 1)
    monkeypatch.setattr(fuzz, "read_shard", wait)
    with pytest.raises(fuzz.Hang):
        fuzz.fuzz(ground, 5, SEED)
