"""Change the shards of a directory and its config in place, under a journal: finished or taken back from any point.

In this order: the journal; links broken, where that is wanted; a config.json that no stock code loads, since half the
rows are in either layout from now on; the rows, batch by batch; the new config.json; the journal away. Finishing and
taking back walk the same batches, forwards or backwards, and end with the new or the old config.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ropetool import __version__
from ropetool.checkpoint.copying import copy_file
from ropetool.checkpoint.durable import beside, replace
from ropetool.checkpoint.fields import Axis, Lay
from ropetool.checkpoint.folder import ADAPTER_CONFIG, CONFIG, check_space
from ropetool.checkpoint.guard import guarded
from ropetool.checkpoint.journal import (
    JOURNAL,
    Journal,
    Kind,
    Record,
    create,
    is_half_converted,
    open_journal,
    refuse_half_converted,
    remedy,
    remove,
)
from ropetool.checkpoint.lock import directory_of, exclusive
from ropetool.checkpoint.pieces import Piece, Step, batched
from ropetool.checkpoint.shards import no_progress, output_error, read_shard, write_exactly
from ropetool.errors import JournalError, LinkedFileError, MissingFileError, NoSpaceError, OutputError, ShardError

Batches = Sequence[tuple[Piece, ...]]
Progress = Callable[[int], None]
# Bytes of a batch: with syncing fewer and longer ones, for each waits for the disk twice.
BATCH_BYTES, SYNCED_BATCH_BYTES = 2 << 20, 16 << 20
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Change:
    """What is to become of a directory: ``pieces`` of its shards permuted, and ``text`` in ``config_file``.

    ``summary`` is kept in the journal for whoever finishes it.
    """

    directory: Path
    pieces: tuple[Piece, ...]
    config_file: str
    text: str
    summary: Mapping[str, Any]

    @property
    def shards(self) -> tuple[str, ...]:
        """The names of the files that change."""
        return tuple(dict.fromkeys(piece.step.shard for piece in self.pieces))


def carry_out(
    change: Change, progress: Progress = no_progress, *, sync: bool = True, break_links: bool = False
) -> None:
    """Make a change. Interrupted, it leaves its journal; before that is whole, nothing."""
    with exclusive(change.directory):
        refuse_half_converted(change.directory)
        linked = _linked(change.directory, (*change.shards, change.config_file))
        if linked and not break_links:
            raise _links(change.directory, linked)
        _check_writable(change)
        batches = list(batched(change.pieces, SYNCED_BATCH_BYTES if sync else BATCH_BYTES))
        capacity = max((sum(p.size_bytes for p in batch) for batch in batches), default=0)
        needed = sum((change.directory / name).stat().st_size for name in linked)
        check_space(change.directory, needed + 2 * capacity)
        try:
            journal = create(change.directory, _plan(change, batches, sync, break_links), capacity, sync=sync)
        except OSError as error:
            if not isinstance(error, FileExistsError):  # it may have its name, and not be known to be on disk
                with suppress(OSError):
                    os.unlink(change.directory / JOURNAL)
            raise output_error(error, change.directory / JOURNAL) from error
        with _open(journal), _half_way(change.directory):
            _run(change.directory, journal, batches, progress, back=False)


def resume(path: Path, progress: Progress = no_progress, *, break_links: bool = False) -> Mapping[str, Any]:
    """Finish an interrupted change; returns its summary."""
    return _go_on(path, progress, break_links, back=False)


def undo(path: Path, progress: Progress = no_progress, *, break_links: bool = False) -> Mapping[str, Any]:
    """Take an interrupted change back: every file has its old bytes again; returns its summary."""
    return _go_on(path, progress, break_links, back=True)


def _go_on(path: Path, progress: Progress, break_links: bool, *, back: bool) -> Mapping[str, Any]:
    directory = directory_of(path)
    if not directory.is_dir():
        raise MissingFileError(f"{path} does not exist", path=str(path))
    with exclusive(directory):
        journal = open_journal(directory, sync=True)
        with _open(journal):
            _check_boot(journal)
            journal = Journal(**{**vars(journal), "sync": bool(journal.plan["sync"])})
            batches = _batches(directory, journal)
            linked = _linked(directory, tuple(journal.plan["shards"]))
            if linked and not (break_links or journal.plan["break_links"]):
                raise _links(directory, linked)
            with _half_way(directory):
                _run(directory, journal, batches, progress, back=back)
        summary: Mapping[str, Any] = journal.plan["summary"]
        return summary


@contextmanager
def _open(journal: Journal) -> Iterator[None]:
    try:
        yield
    finally:
        journal.close()


@contextmanager
def _half_way(directory: Path) -> Iterator[None]:
    """Within, a failed write says what there is to do: the journal stays."""
    try:
        yield
    except OSError as error:
        kind = NoSpaceError if isinstance(output_error(error, directory), NoSpaceError) else OutputError
        said = error.strerror or str(error)
        if not is_half_converted(directory):
            raise OutputError(
                f"{directory} is whole, but its last step is not known to be on disk: {said}. After a power cut it may "
                f"be half converted; then {remedy(directory)}",
                path=str(directory),
            ) from error
        raise kind(
            f"{directory} cannot be written: {said}. Its rows lie in both layouts now; when that is mended, "
            f"{remedy(directory)}",
            path=str(directory),
        ) from error


# --- the walk -------------------------------------------------------------------------------------------------------


def _run(directory: Path, journal: Journal, batches: Batches, progress: Progress, *, back: bool) -> None:
    """Walk to one of the two ends, from wherever the journal says that the batches are."""
    plan, sync = journal.plan, journal.sync
    for name in _linked(directory, tuple(plan["shards"])):
        _break_link(directory / name, sync)
    _put_config(directory, plan, _guard(directory), sync)
    buffer = memoryview(bytearray(journal.capacity_bytes))
    record = _settled(directory, journal, batches, buffer)
    way = range(record.batch - 1, -1, -1) if back else range(record.batch, len(batches))
    for sequence, number in enumerate(way, record.sequence + 1):
        record = Record(sequence, Kind.BACKWARDS if back else Kind.FORWARDS, number)
        progress(_change(directory, journal, record, batches[number], buffer))
    _put_config(directory, plan, plan["before" if back else "after"], sync)
    remove(directory, sync=sync)


def _settled(directory: Path, journal: Journal, batches: Batches, buffer: memoryview) -> Record:
    """Give back the batch that was being changed; the record's batch is then the first that is untouched."""
    record, size_bytes = journal.newest(buffer)
    if record.kind is Kind.START:
        return record
    if record.batch >= len(batches) or size_bytes != sum(piece.size_bytes for piece in batches[record.batch]):
        raise _unfit(journal.path, f"its slot is of batch {record.batch} with {size_bytes:,} bytes")
    with _files(directory, batches[record.batch], journal.sync) as files:
        at = 0
        for piece in batches[record.batch]:
            write_exactly(files[piece.step.shard], buffer[at : at + piece.size_bytes], piece.start)
            at += piece.size_bytes
    return Record(record.sequence, record.kind, record.batch + (record.kind is Kind.BACKWARDS))


def _change(directory: Path, journal: Journal, record: Record, batch: Sequence[Piece], buffer: memoryview) -> int:
    """Change one batch, when its bytes of before are in the journal; returns how many there are."""
    with _files(directory, batch, journal.sync) as files:
        at = 0
        for piece in batch:
            _read_into(files[piece.step.shard], buffer[at : at + piece.size_bytes], piece.start)
            at += piece.size_bytes
        journal.write(record, buffer[:at])
        at = 0
        for piece in batch:
            moved = piece.moved(buffer[at : at + piece.size_bytes], back=record.kind is Kind.BACKWARDS)
            write_exactly(files[piece.step.shard], moved, piece.start)
            at += piece.size_bytes
    return at


@contextmanager
def _files(directory: Path, batch: Sequence[Piece], sync: bool) -> Iterator[dict[str, int]]:
    """The files of a batch, open; on disk at the end of the block, where that is wanted."""
    with ExitStack() as stack:
        files = {}
        for name in dict.fromkeys(piece.step.shard for piece in batch):
            files[name] = os.open(directory / name, os.O_RDWR | os.O_NOFOLLOW)
            stack.callback(os.close, files[name])
        yield files
        if sync:
            for descriptor in files.values():
                os.fsync(descriptor)


def _read_into(descriptor: int, room: memoryview, offset: int) -> None:
    while room:
        count = os.preadv(descriptor, [room], offset)
        if not count:
            raise ShardError(f"a file ended {len(room):,} bytes early: it changed while it was read")
        room, offset = room[count:], offset + count


# --- config.json and links ------------------------------------------------------------------------------------------


def _guard(directory: Path) -> str:
    """A config that no stock code loads, with the reason in its place; PEFT reads the type of an adapter in its own."""
    said = f"half converted in place: ropetool convert {directory.name} --resume (or --undo)"
    return json.dumps({"peft_type": said, **guarded({}, said)}, indent=2) + "\n"


def _put_config(directory: Path, plan: Mapping[str, Any], text: str, sync: bool) -> None:
    data = text.encode("utf-8")
    mode = int(plan["config_mode"]) & 0o7777
    replace(directory / plan["config_file"], lambda file: write_exactly(file, data, 0), mode, sync=sync)


def _linked(directory: Path, names: Sequence[str]) -> dict[str, int]:
    """The files that are symbolic links, or have other names, with the number of their names."""
    found = {}
    for name in names:
        path = directory / name
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode) or (status.st_nlink > 1 and name.endswith(".safetensors")):
            found[name] = path.stat().st_nlink
    return found


def _links(directory: Path, linked: Mapping[str, int]) -> LinkedFileError:
    name, names = next(iter(linked.items()))
    what = "is a symbolic link" if (directory / name).is_symlink() else f"has {names} names (hard links)"
    more = f", and {len(linked) - 1} more files are linked" if len(linked) > 1 else ""
    return LinkedFileError(
        f"{directory / name} {what}{more}: changed in place, it would change for everyone who shares it; give "
        f"--break-links to copy it first, or convert to another directory",
        path=str(directory / name),
        links=names,
    )


def _break_link(path: Path, sync: bool) -> None:
    """Put a copy of its own in the place of a link."""
    copy = beside(path)
    copy.unlink(missing_ok=True)
    mode = path.stat().st_mode & 0o7777
    copy_file(path, copy)
    copy.chmod(mode)
    if sync:
        _sync(copy)
    os.rename(copy, path)
    if sync:
        _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_writable(change: Change) -> None:
    for name in change.shards:
        try:
            os.close(os.open(change.directory / name, os.O_RDWR))
        except OSError as error:
            raise OutputError(
                f"{change.directory / name} cannot be written: {error.strerror}; nothing was changed",
                path=str(change.directory / name),
            ) from error


# --- the plan in the journal ----------------------------------------------------------------------------------------


def _plan(change: Change, batches: Batches, sync: bool, break_links: bool) -> dict[str, Any]:
    """Everything that `_batches` and `_run` need, independent of how a later version would cut the pieces."""
    config = change.directory / change.config_file
    steps = list({id(piece.step): piece.step for piece in change.pieces}.values())
    maps = {step.index.tobytes(): step.index for step in steps}
    place = {key: at for at, key in enumerate(maps)}
    number = {id(step): at for at, step in enumerate(steps)}
    return {
        "ropetool": __version__,
        "sync": sync,
        "boot": None if sync else _boot(),
        "break_links": break_links,
        "config_file": change.config_file,
        "config_mode": config.stat().st_mode & 0o7777,
        "before": config.read_bytes().decode("utf-8"),
        "after": change.text,
        "summary": dict(change.summary),
        "shards": {name: _identity(change.directory / name) for name in change.shards},
        "maps": [index.tolist() for index in maps.values()],
        "steps": [
            [s.shard, s.tensor.name, place[s.index.tobytes()], s.lay.axis.value, s.lay.bits] for s in steps
        ],
        "batches": [[[number[id(p.step)], p.first, p.count] for p in batch] for batch in batches],
    }  # fmt: skip


def _identity(shard: Path) -> list[Any]:
    """What a conversion in place never changes of a shard: its size, and the hash of its header."""
    with shard.open("rb") as file:
        length = file.read(8)
        header = file.read(int.from_bytes(length, "little"))
    return [shard.stat().st_size, hashlib.sha256(length + header).hexdigest()]


def _batches(directory: Path, journal: Journal) -> Batches:
    """The batches of a journal, each checked against the shards that are there: a journal may come from anyone."""
    plan = journal.plan
    try:
        if not isinstance(plan["summary"], dict) or plan["config_file"] not in (CONFIG, ADAPTER_CONFIG):
            raise _unfit(journal.path, f"it would write {plan['config_file']!r}")
        for name, identity in plan["shards"].items():
            if PurePosixPath(name).name != name or not (directory / name).is_file():
                raise _unfit(journal.path, f"it names the shard {name!r}, which is not there")
            if _identity(directory / name) != identity:
                raise _unfit(journal.path, f"{name} is not the file that it was written for")
        headers = {name: read_shard(directory / name).tensors for name in plan["shards"]}
        maps = [np.array(index, np.int64) for index in plan["maps"]]
        if any(not np.array_equal(np.sort(index), np.arange(len(index))) for index in maps):
            raise _unfit(journal.path, "one of its maps is no permutation")
        steps = [
            Step(shard, headers[shard][tensor], maps[index], Lay(Axis(axis), bits))
            for shard, tensor, index, axis, bits in plan["steps"]
        ]
        batches = [tuple(Piece(steps[at], first, count) for at, first, count in batch) for batch in plan["batches"]]
        closed = all(piece.is_closed for batch in batches for piece in batch)
        fits = all(sum(p.size_bytes for p in batch) <= journal.capacity_bytes for batch in batches)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise _unfit(journal.path, f"{type(error).__name__}: {error}") from error
    if not closed or not fits:
        raise _unfit(journal.path, "it would write rows outside a closed run")
    return batches


def _unfit(path: Path, why: str) -> JournalError:
    return JournalError(f"{path} does not fit the files beside it: {why}; nothing was written", path=str(path))


def _boot() -> str | None:
    return _BOOT.read_text(encoding="ascii").strip() if _BOOT.exists() else None


def _check_boot(journal: Journal) -> None:
    """What was not synced is in the kernel's memory until the machine stops: after that no one knows what there is."""
    boot = journal.plan.get("boot")
    if not journal.plan.get("sync") and boot and boot != _boot():
        raise JournalError(
            f"{journal.path} is of a run with --no-sync, and the machine was restarted since: which of its writes "
            f"reached the disk is not known, so it can be neither finished nor taken back; get the checkpoint anew",
            path=str(journal.path),
        )
