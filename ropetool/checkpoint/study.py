"""A study: what a search measured, kept as JSON lines, so that a search that was killed goes on from there.

The first line says what was measured: ``{"ropetool_study": 1, "identity": {...}}``; each further one is a measurement:
``{"key": ..., "blocks": [[...], ...] or null, "answers": [...] or null, "seconds": ...}``, of equal keys the last.
Lines are only added, and each is on disk before the next measurement begins. What a killed process left of a line is
none, and the next one takes its place. One process at a time has a study: flock(2), which a dead process lets go.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from ropetool.checkpoint.durable import sync_directory
from ropetool.checkpoint.lock import holders
from ropetool.checkpoint.shards import write_exactly
from ropetool.checkpoint.strangers import Limits, open_regular, parse_json
from ropetool.errors import BusyError, ConfigError, InternalError, NoSpaceError, OutputError, SourceChangedError

FORMAT = 1
NAME, IDENTITY = "ropetool_study", "identity"
KEYS = ("key", "blocks", "answers", "seconds")
MOST_KEY = 200
LARGEST_LOSS = 1e6
LARGEST_SECONDS = 1e9
# 500 readings of a thousand blocks, several times over.
LIMITS = Limits(64 << 20, 2_000_000)
ANOTHER = "name another --study file, or remove this one"
# How every header begins: a file with less than a line is a study only if it begins so.
_BEGINS = json.dumps({NAME: FORMAT, IDENTITY: {}}).encode()[:-2]
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True)
class Measured:
    """One measurement: the mean loss in nats of successive blocks of tokens, a row for each window, or no rows.

    ``answers`` are 1 or 0 for each passkey document, or none; ``seconds`` is what it took.
    """

    blocks: tuple[tuple[float, ...], ...]
    answers: tuple[int, ...]
    seconds: float

    @property
    def shape(self) -> tuple[int, int, int]:
        """Windows, blocks of each, answers."""
        return len(self.blocks), len(self.blocks[0]) if self.blocks else 0, len(self.answers)


@dataclass(frozen=True)
class _Line:
    """Where a measurement stands, for what is said about it."""

    file: str
    number: int
    remedy: str = f"remove the line, or {ANOTHER}"

    def fault(self, said: str, key: object = None) -> ConfigError:
        """The error for a line that cannot be used."""
        named = f" ({key[:MOST_KEY]!r})" if isinstance(key, str) else ""
        return ConfigError(
            f"{self.file}, line {self.number}{named}: {said}; {self.remedy}",
            file=self.file, line=self.number, key=key[:MOST_KEY] if isinstance(key, str) else None,
        )  # fmt: skip


class Study:
    """An open study, by `Study.open`; a context manager."""

    def __init__(self, path: Path | None, identity: Mapping[str, Any]) -> None:
        if not _is_identity(identity):
            raise InternalError(f"the identity of a study must be plain values by name, and is {identity!r}")
        self.earlier = 0
        self._path, self._name = path, "the study" if path is None else path.name
        self._identity = dict(identity)
        self._found: dict[str, tuple[_Line, Measured]] = {}
        self._descriptor: int | None = None
        self._closed = False
        # What is sound of the file ends here.
        self._end_bytes, self._lines, self._values = 0, 0, 0

    @classmethod
    def open(cls, path: Path | None, identity: Mapping[str, Any]) -> Study:
        """The study in a file, which is made by the first `put` if it is not there; without one, in memory alone.

        ``identity`` is what measurements depend on beside their keys: plain values by name. Raises `ConfigError` for a
        file of another identity, or none of a study, `BusyError` where another process has it, `OutputError` and
        `CheckpointError` for a place where no such file can be.
        """
        study = cls(None if path is None else _place(path), identity)
        try:
            study._open()
        except BaseException:
            study.close()
            raise
        study.earlier = len(study._found)
        return study

    def __enter__(self) -> Study:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        self._closed = True
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def get(
        self, key: str, windows: int | None = None, blocks: int | None = None, answers: int | None = None
    ) -> Measured | None:
        """What was measured under ``key``, None if nothing was.

        Raises `ConfigError` where it has another number of windows, of blocks in each, or of answers than is given.
        """
        if key not in self._found:
            return None
        line, measured = self._found[key]
        wanted = (windows, blocks, answers)
        if any(number not in (None, has) for number, has in zip(wanted, measured.shape, strict=True)):
            said = [has if number is None else number for number, has in zip(wanted, measured.shape, strict=True)]
            raise line.fault(f"it has {_counted(*measured.shape)}, and this search has {_counted(*said)}", key)
        return measured

    def put(self, key: str, measured: Measured) -> None:
        """Keep a measurement; it is on disk when this returns.

        Raises `ConfigError` for one that could not be read again, a loss that is no number for one, and where the file
        has no room for more; `NoSpaceError` where the disk has none.
        """
        if self._closed:
            raise InternalError(f"{self._name} is closed, and {key!r} was to be put into it")
        entry: dict[str, Any] = {
            "key": key, "blocks": [list(row) for row in measured.blocks] or None,
            "answers": list(measured.answers) or None, "seconds": measured.seconds,
        }  # fmt: skip
        number = max(self._lines, 1) + 1
        checked = _measured(entry, _Line(self._name, number, "so it cannot be kept"))
        if self._path is not None:
            self._append(self._path, json.dumps(entry).encode() + b"\n")
        self._lines = number
        self._found[key] = _Line(self._name, number), checked

    def _open(self) -> None:
        if self._path is None:
            return
        try:
            with open_regular(self._path) as file:
                self._descriptor = os.open(self._path, _OLD)
                if not os.path.samestat(os.fstat(file.fileno()), os.fstat(self._descriptor)):
                    raise SourceChangedError(f"{self._path} was replaced while it was opened; run again")
                _lock(self._descriptor, self._path)
                self._read(file.read(LIMITS.size_bytes + 1))
        except FileNotFoundError:
            return

    def _read(self, raw: bytes) -> None:
        self._check_room(len(raw), _values(raw))
        lines = raw.split(b"\n")
        torn = lines.pop()
        if not lines:
            if not (_BEGINS.startswith(torn) or torn.startswith(_BEGINS)):
                raise self._no_study("it has no line that ends")
            return
        self._check_header(lines[0])
        self._sound(1, lines[0])
        for number, text in enumerate(lines[1:], 2):
            line = _Line(self._name, number)
            try:
                entry = parse_json(text, LIMITS)
            except ValueError as error:
                if number == len(lines) and not torn:
                    return
                raise line.fault(f"it cannot be read as JSON ({error})") from error
            measured = _measured(entry, line)
            self._found[entry["key"]] = line, measured
            self._sound(number, text)

    def _sound(self, number: int, text: bytes) -> None:
        """Count a line as one that stays."""
        self._lines, self._end_bytes = number, self._end_bytes + len(text) + 1
        self._values += _values(text)

    def _check_room(self, size_bytes: int, values: int) -> None:
        if size_bytes > LIMITS.size_bytes or values > LIMITS.values:
            raise ConfigError(
                f"{self._name} comes to {size_bytes:,} bytes and about {values:,} values; a study has at most "
                f"{LIMITS.size_bytes:,} and {LIMITS.values:,}; {ANOTHER}",
                file=str(self._path),
            )

    def _check_header(self, text: bytes) -> None:
        try:
            header = parse_json(text, LIMITS)
        except ValueError as error:
            raise self._no_study(f"its first line cannot be read as JSON ({error})") from error
        if not isinstance(header, dict) or NAME not in header:
            raise self._no_study(f"its first line has no {NAME}")
        form, there = header[NAME], header.get(IDENTITY)
        if type(form) is not int or form != FORMAT:
            raise self._no_study(f"its first line has {NAME} {str(form)[:40]}, and this ropetool reads {FORMAT}")
        if header.keys() != {NAME, IDENTITY} or not isinstance(there, dict) or not _is_identity(there):
            raise self._no_study(f"its first line must have an {IDENTITY} of plain values by name, and nothing else")
        self._check_identity(there)

    def _check_identity(self, there: Mapping[str, Any]) -> None:
        here = self._identity
        apart = [key for key in dict.fromkeys((*here, *there)) if _said(here, key) != _said(there, key)]
        if apart:
            told = "; ".join(
                f"{key[:40]} is {_said(there, key)[:60]} there and {_said(here, key)[:60]} here" for key in apart
            )
            raise ConfigError(
                f"{self._name} has measurements of another search: {told}; {ANOTHER}", file=str(self._path), keys=apart
            )

    def _no_study(self, why: str) -> ConfigError:
        said = f"{self._name} is not a study, or was damaged: {why}; {ANOTHER}"
        return ConfigError(said, file=str(self._path))

    def _append(self, path: Path, line: bytes) -> None:
        header = json.dumps({NAME: FORMAT, IDENTITY: self._identity}).encode() + b"\n"
        data = line if self._end_bytes else header + line
        self._check_room(self._end_bytes + len(data), self._values + _values(data))
        is_new = self._descriptor is None
        if self._descriptor is None:
            self._descriptor = _created(path)
            _lock(self._descriptor, path)
        try:
            os.ftruncate(self._descriptor, self._end_bytes)  # of what a killed process, or a full disk, left
            write_exactly(self._descriptor, data, self._end_bytes)
            os.fsync(self._descriptor)
        except OSError as error:
            raise _unwritten(error, path, len(self._found)) from error
        if is_new:
            sync_directory(path.parent)
        self._end_bytes, self._values = self._end_bytes + len(data), self._values + _values(data)


def _place(path: Path) -> Path:
    """Where the file of a study lies; raises `OutputError` where none can be."""
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent}, where {path.name} would be, is not a directory; make it, or name another")
    if not path.is_symlink():
        return path
    home, target = Path(os.path.realpath(path.parent)), Path(os.path.realpath(path))
    if home not in target.parents:
        raise OutputError(
            f"{path} is a symbolic link to {target}, outside of its directory, and a study is written to; name the "
            f"file itself by --study",
            path=str(path),
            target=str(target),
        )
    return target


def _created(path: Path) -> int:
    try:
        return os.open(path, _NEW, 0o666)
    except FileExistsError as error:
        raise BusyError(
            f"{path} was made by another process since this one began; run again, when that has ended or with another "
            f"--study file",
            path=str(path),
        ) from error


def _lock(descriptor: int, path: Path) -> None:
    """Have an open file alone until it is closed; raises `BusyError`. A file system without locks goes without."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        first = next(iter(holders(descriptor)), None)
        who = f"process {first.pid} ({first.command}, since {first.since})" if first else "another process"
        raise BusyError(
            f"{path} is in use: {who} adds to it; wait until that has ended, or name another --study file",
            path=str(path), pid=first.pid if first else None, command=first.command if first else None,
            since=first.since if first else None,
        ) from error  # fmt: skip
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _unwritten(error: OSError, path: Path, kept: int) -> OutputError:
    before = f"the {kept} measurements before are kept" if kept else "nothing was kept"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        said = f"no space left while writing {path}; {before}. Free space and run the same command again"
        return NoSpaceError(said, path=str(path))
    return OutputError(f"{path} cannot be written: {error.strerror or error}; {before}", path=str(path))


def _values(raw: bytes) -> int:
    """About how many values a text of JSON has, as `parse_json` counts them."""
    return sum(map(raw.count, (b"{", b"[", b",", b'":')))


def _is_identity(value: Any) -> bool:
    """Whether it is an object of texts, finite numbers, true, false and null."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        return False
    plain = (isinstance(inner, (str, int, float, type(None))) for inner in value.values())
    return all(plain) and all(math.isfinite(inner) for inner in value.values() if isinstance(inner, float))


def _said(identity: Mapping[str, Any], key: str) -> str:
    """A value of an identity as JSON has it, so that true is not 1."""
    return json.dumps(identity[key]) if key in identity else "absent"


def _counted(windows: int, blocks: int, answers: int) -> str:
    return f"{windows} windows of {blocks} blocks and {answers} answers"


def _measured(entry: Any, line: _Line) -> Measured:
    """A measurement from its line; raises `ConfigError` naming what cannot be used."""
    if not isinstance(entry, dict) or set(entry) != set(KEYS):
        named = entry.get("key") if isinstance(entry, dict) else None
        raise line.fault(f"it must be an object of {', '.join(KEYS)}", named)
    key, rows, answers, seconds = (entry[name] for name in KEYS)
    if not isinstance(key, str) or len(key) > MOST_KEY:
        raise line.fault(f"key is {repr(key)[:40]}; it must be a text of at most {MOST_KEY} characters", key)
    if rows is None and answers is None:
        raise line.fault("both blocks and answers are null; it must have one", key)
    if rows is not None and not _is_table(rows):
        raise line.fault(
            f"blocks is {repr(rows)[:40]}; it must be null, or lists of equal length, above 0, of numbers from "
            f"{-LARGEST_LOSS:,.0f} to {LARGEST_LOSS:,.0f}",
            key,
        )
    if answers is not None and not (answers and isinstance(answers, list) and all(map(_is_answer, answers))):
        raise line.fault(f"answers is {repr(answers)[:40]}; it must be null, or a list of 0 and 1", key)
    if not _is_number(seconds) or not 0 <= seconds <= LARGEST_SECONDS:
        raise line.fault(f"seconds is {repr(seconds)[:40]}; it must be a number of seconds, 0 or more", key)
    return Measured(tuple(tuple(map(float, row)) for row in rows or ()), tuple(answers or ()), float(seconds))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_answer(value: Any) -> bool:
    return type(value) is int and value in (0, 1)


def _is_table(rows: Any) -> bool:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        return False
    alike = len({len(row) for row in rows}) == 1
    return alike and all(_is_number(value) and -LARGEST_LOSS <= value <= LARGEST_LOSS for row in rows for value in row)
