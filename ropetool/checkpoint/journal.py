"""The journal of a conversion in place: a file in the directory from which it can be finished or taken back.

::

    magic, length and sha256 of the plan      64 bytes
    the plan, JSON                            everything that finishing or taking back needs; never written again
    two slots, written in turn                a head of one page, then the bytes that a batch had before it was changed

A slot is written before its batch is changed. So the batches before the newest whole slot's are done, its own may be
changed in part and can be given back from the slot, and those after it are untouched. A slot that was torn (its head or
its bytes do not have their checksums) was never acted on: the other one counts. Batches may be walked forwards or
backwards; a slot says which. Synced, each arrow waits for the disk: plan -> slot -> batch -> next slot. Not synced, all
of it outlives the process and not the machine; then the writes keep their order, and a slot's head, which comes after
its bytes, is checksum enough.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from ropetool.checkpoint.durable import publish, reserve, sync_directory
from ropetool.checkpoint.shards import read_exactly, write_exactly
from ropetool.errors import HalfConvertedError, JournalError, ShardError

JOURNAL = "ropetool.journal"
FORMAT = 1
PAGE_BYTES = 4096
MAX_PLAN_BYTES = 256 << 20
_MAGIC, _SLOT_MAGIC = b"ropetool journal", b"ropeslot"
_PROLOGUE = struct.Struct("<16sQ32s8x")
_HEAD = struct.Struct("<8sQQIIQ")
_CHECK = struct.Struct("<I")


class Kind(IntEnum):
    """What a slot was written before."""

    START = 0
    FORWARDS = 1
    BACKWARDS = 2


@dataclass(frozen=True)
class Record:
    """What a slot says: its number in the row of all slots, the batch that is changed, and in which direction."""

    sequence: int
    kind: Kind
    batch: int


def remedy(directory: Path) -> str:
    """What to do about an interrupted conversion."""
    return f"`ropetool convert {directory} --resume` finishes it, `ropetool convert {directory} --undo` takes it back"


def is_half_converted(directory: Path) -> bool:
    """Whether a conversion of ``directory`` in place was begun and not ended."""
    return os.path.lexists(directory / JOURNAL)


def refuse_half_converted(directory: Path) -> None:
    """Raises `HalfConvertedError` for a directory with a journal: some rows lie in one layout, some in the other."""
    if is_half_converted(directory):
        raise HalfConvertedError(
            f"a conversion of {directory} in place was interrupted, and its rows lie in both layouts: "
            f"{remedy(directory)}",
            path=str(directory),
            resume=f"ropetool convert {directory} --resume",
            undo=f"ropetool convert {directory} --undo",
        )


@dataclass(frozen=True)
class Journal:
    """An open journal. ``capacity_bytes`` is the room in a slot; with ``sync`` records wait for the disk."""

    path: Path
    descriptor: int
    plan: Mapping[str, Any]
    slots_start: int
    capacity_bytes: int
    sync: bool

    def close(self) -> None:
        """Close the file; it stays."""
        os.close(self.descriptor)

    def write(self, record: Record, before: memoryview) -> None:
        """Put a record and the bytes of its batch into the slot that is not the newest."""
        check = zlib.crc32(before) if self.sync else 0
        head = _HEAD.pack(_SLOT_MAGIC, record.sequence, record.batch, record.kind, check, len(before))
        start = self._slot(record.sequence)
        write_exactly(self.descriptor, before, start + PAGE_BYTES)
        write_exactly(self.descriptor, head + _CHECK.pack(zlib.crc32(head)), start)
        if self.sync:
            os.fsync(self.descriptor)

    def newest(self, before: memoryview) -> tuple[Record, int]:
        """The newest whole record; its bytes are put into ``before``, and counted. Raises `JournalError` for none."""
        found = [slot for slot in (self._head(0), self._head(1)) if slot]
        for record, size_bytes, check in sorted(found, key=lambda slot: -slot[0].sequence):
            data = read_exactly(self.descriptor, size_bytes, self._slot(record.sequence) + PAGE_BYTES)
            if not self.sync or zlib.crc32(data) == check:
                before[:size_bytes] = data
                return record, size_bytes
        raise _damaged(self.path, "neither of its slots is whole")

    def _slot(self, sequence: int) -> int:
        return self.slots_start + sequence % 2 * (PAGE_BYTES + self.capacity_bytes)

    def _head(self, slot: int) -> tuple[Record, int, int] | None:
        """The record in a slot with the length of its bytes and their checksum; None for one that is not whole."""
        raw = read_exactly(self.descriptor, _HEAD.size + _CHECK.size, self._slot(slot))
        magic, sequence, batch, kind, check, size_bytes = _HEAD.unpack(raw[: _HEAD.size])
        sound = _CHECK.unpack(raw[_HEAD.size :])[0] == zlib.crc32(raw[: _HEAD.size]) and magic == _SLOT_MAGIC
        if not sound or sequence % 2 != slot or size_bytes > self.capacity_bytes or kind not in set(Kind):
            return None
        return Record(sequence, Kind(kind), batch), size_bytes, check


def create(directory: Path, plan: Mapping[str, Any], capacity_bytes: int, *, sync: bool) -> Journal:
    """Write a journal with room for all that will ever be in it; it has its name when it is whole."""
    capacity_bytes += -capacity_bytes % PAGE_BYTES
    text = json.dumps({**plan, "format": FORMAT, "capacity_bytes": capacity_bytes}, separators=(",", ":")).encode()
    path = directory / JOURNAL

    def fill(descriptor: int) -> None:
        write_exactly(descriptor, _PROLOGUE.pack(_MAGIC, len(text), hashlib.sha256(text).digest()) + text, 0)
        reserve(descriptor, _slots_start(len(text)) + 2 * (PAGE_BYTES + capacity_bytes))
        unsynced = Journal(path, descriptor, {}, _slots_start(len(text)), capacity_bytes, sync=False)
        unsynced.write(Record(0, Kind.START, 0), memoryview(b""))

    publish(path, fill, sync=sync)
    return open_journal(directory, sync=sync)


def open_journal(directory: Path, *, sync: bool) -> Journal:
    """Open the journal of a directory; raises `JournalError` where there is none, or a damaged one."""
    path = directory / JOURNAL
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError as error:
        raise JournalError(
            f"{directory} has no {JOURNAL}: no conversion in place was interrupted there, and there is nothing to "
            f"finish or to take back",
            path=str(directory),
        ) from error
    try:
        return _opened(path, descriptor, sync)
    except BaseException:
        os.close(descriptor)
        raise


def _opened(path: Path, descriptor: int, sync: bool) -> Journal:
    try:
        magic, size_bytes, digest = _PROLOGUE.unpack(read_exactly(descriptor, _PROLOGUE.size, 0))
        if magic != _MAGIC or size_bytes > MAX_PLAN_BYTES:
            raise _damaged(path, "it does not begin as one does")
        text = read_exactly(descriptor, size_bytes, _PROLOGUE.size)
        if hashlib.sha256(text).digest() != digest:
            raise _damaged(path, "its plan does not have its checksum")
        plan = json.loads(text)
        if plan["format"] != FORMAT:
            raise _damaged(path, f"it has the format {plan['format']}, and this ropetool reads {FORMAT}")
        capacity_bytes, start = int(plan["capacity_bytes"]), _slots_start(size_bytes)
        if os.fstat(descriptor).st_size != start + 2 * (PAGE_BYTES + capacity_bytes):
            raise _damaged(path, "it was cut short")
    except (ShardError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"{error}") from error
    return Journal(path, descriptor, plan, start, capacity_bytes, sync)


def _slots_start(plan_bytes: int) -> int:
    end = _PROLOGUE.size + plan_bytes
    return end + -end % PAGE_BYTES


def _damaged(path: Path, why: str) -> JournalError:
    return JournalError(
        f"{path} cannot be used: {why}. Without it the rows cannot be told apart; get the checkpoint anew",
        path=str(path),
    )


def remove(directory: Path, *, sync: bool) -> None:
    """Take the journal away: the directory is whole."""
    os.unlink(directory / JOURNAL)
    if sync:
        sync_directory(directory)
