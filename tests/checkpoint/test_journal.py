"""The journal as a file: slots that were torn, a plan that is not what was written, or that comes from someone else."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropetool import convert
from ropetool.checkpoint import in_place
from ropetool.checkpoint.journal import JOURNAL, PAGE_BYTES, Journal, Kind, Record, create, open_journal
from ropetool.errors import JournalError, LinkedFileError

CAPACITY = 2 * PAGE_BYTES


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return create(tmp_path, {"plan": "x" * 5000}, CAPACITY - 100, sync=True)


def newest(journal: Journal) -> tuple[Record, bytes]:
    room = memoryview(bytearray(journal.capacity_bytes))
    record, size_bytes = journal.newest(room)
    return record, bytes(room[:size_bytes])


def test_the_newest_whole_slot_counts(journal: Journal, tmp_path: Path) -> None:
    assert newest(journal) == (Record(0, Kind.START, 0), b"")
    for sequence in range(1, 6):
        data = bytes([sequence]) * (1000 * sequence)
        journal.write(Record(sequence, Kind.FORWARDS, sequence - 1), memoryview(data))
        again = open_journal(tmp_path, sync=True)
        assert newest(again) == (Record(sequence, Kind.FORWARDS, sequence - 1), data)
        assert again.plan["plan"] == "x" * 5000
        again.close()


@pytest.mark.parametrize("at", [0, 8, 20, 30, 40, PAGE_BYTES, PAGE_BYTES + 999], ids=str)
def test_a_torn_slot_gives_way_to_the_one_before(at: int, journal: Journal) -> None:
    """Whatever byte of it is not what was written."""
    for sequence in (1, 2):
        journal.write(Record(sequence, Kind.BACKWARDS, 7 - sequence), memoryview(bytes([sequence]) * 1000))
    place = journal.slots_start + at
    byte = os.pread(journal.descriptor, 1, place)
    os.pwrite(journal.descriptor, bytes([byte[0] ^ 0x40]), place)
    assert newest(journal) == (Record(1, Kind.BACKWARDS, 6), b"\1" * 1000)


def test_two_torn_slots_are_not_taken_for_the_beginning(journal: Journal) -> None:
    journal.write(Record(1, Kind.FORWARDS, 0), memoryview(b"one"))
    for slot in (0, 1):
        os.pwrite(journal.descriptor, b"\0" * 8, journal.slots_start + slot * (PAGE_BYTES + journal.capacity_bytes))
    with pytest.raises(JournalError, match="neither of its slots is whole"):
        newest(journal)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: os.truncate(file, 10), "ended"),
        (lambda file: os.truncate(file, file.stat().st_size - 1), "cut short"),
        (lambda file: file.write_bytes(b"\0" * 5000), "does not begin as one does"),
        (lambda file: file.write_bytes(file.read_bytes().replace(b"xxx", b"xyx", 1)), "does not have its checksum"),
    ],
)
def test_a_damaged_plan_is_refused(damage: Callable[[Path], None], said: str, journal: Journal, tmp_path: Path) -> None:
    damage(tmp_path / JOURNAL)
    with pytest.raises(JournalError, match=said):
        open_journal(tmp_path, sync=True)


# --- a plan that comes from someone else, with its checksum ----------------------------------------------------------


@pytest.fixture
def half(own, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint in the middle of a conversion without syncing."""
    directory: Path = own("llama")
    plan = convert.plan(directory, None, convert.Pairing.INTERLEAVED)

    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(in_place, "remove", stop)
        with pytest.raises(KeyboardInterrupt):
            convert.apply(plan, sync=False)
    return directory


def forge(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the plan of a journal, and give it its checksum; the slots stay."""
    raw = (directory / JOURNAL).read_bytes()
    length = int(struct.unpack("<16sQ", raw[:24])[1])
    plan = json.loads(raw[64 : 64 + length])
    slots = raw[64 + length + -(64 + length) % PAGE_BYTES :]
    change(plan)
    text = json.dumps(plan).encode()
    head = raw[:16] + struct.pack("<Q", len(text)) + hashlib.sha256(text).digest() + bytes(8)
    (directory / JOURNAL).write_bytes(head + text + bytes(-(64 + len(text)) % PAGE_BYTES) + slots)


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a shard elsewhere": lambda p: p.update(shards={"../x.safetensors": [1, ""]}),
    "a shard that is not there": lambda p: p["shards"].update({"x.safetensors": [1, ""]}),
    "another shard": lambda p: p["shards"]["model.safetensors"].__setitem__(1, "0" * 64),
    "another file to write": lambda p: p.update(config_file="../config.json"),
    "no permutation": lambda p: p["maps"][0].__setitem__(0, p["maps"][0][1]),
    "a map of nothing": lambda p: p.update(maps=[["a"]]),
    "rows that are not closed": lambda p: p["batches"][0][0].__setitem__(2, 3),
    "rows beyond the tensor": lambda p: p["batches"][0][0].__setitem__(1, 10**6),
    "rows before the tensor": lambda p: p["batches"][0][0].__setitem__(1, -16),
    "a tensor that is not there": lambda p: p["steps"][0].__setitem__(1, "no.such"),
    "a way of lying that is none": lambda p: p["steps"][0].__setitem__(3, "middle"),
    "no steps": lambda p: p.pop("steps"),
    "a batch too many": lambda p: p["batches"].pop(),
    "a list for a summary": lambda p: p.update(summary=[]),
    "another format": lambda p: p.update(format=2),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_plan_writes_nothing(forgery: str, half: Path) -> None:
    forge(half, FORGERIES[forgery])
    shards = (half / "model.safetensors").read_bytes()
    around = sorted(path.name for path in half.parent.iterdir())
    for end in (convert.resume, convert.undo):
        with pytest.raises(JournalError):
            end(half)
    assert (half / "model.safetensors").read_bytes() == shards
    assert sorted(path.name for path in half.parent.iterdir()) == around


def test_the_forger_can_leave_it_as_it_was(half: Path) -> None:
    forge(half, lambda plan: None)
    assert convert.resume(half).target == "interleaved"


def test_without_syncing_a_restart_of_the_machine_ends_it(half: Path) -> None:
    forge(half, lambda plan: plan.update(boot="before"))
    for end in (convert.resume, convert.undo):
        with pytest.raises(JournalError, match="the machine was restarted since"):
            end(half)
    forge(half, lambda plan: plan.update(sync=True))
    convert.undo(half)


def test_a_shard_that_got_another_name_meanwhile_is_not_written_to(half: Path, tmp_path: Path) -> None:
    os.link(half / "model.safetensors", tmp_path / "backup")
    backup = (tmp_path / "backup").read_bytes()
    with pytest.raises(LinkedFileError, match="has 2 names"):
        convert.undo(half)
    convert.undo(half, break_links=True)
    assert (tmp_path / "backup").read_bytes() == backup != (half / "model.safetensors").read_bytes()
