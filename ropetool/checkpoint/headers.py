"""A directory with the headers of a repository's shards and not the shards: what it is, and where the rest is.

Each shard is there cut off after its header, so that no other program can load it, and no zeros can be taken for
weights. The record beside them says how long each is, and of which commit of which repository.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ropetool.checkpoint.hub import keeps_headers, read_range, snapshot_of
from ropetool.checkpoint.hub_id import HubId
from ropetool.checkpoint.strangers import read_json_file
from ropetool.errors import NotFetchedError

# What may be fetched by itself: saved tables and scales, no weights.
SMALL_BYTES = 1 << 20
RECORD = Path(".cache") / "ropetool-headers.json"


@dataclass(frozen=True)
class Remote:
    """Where the rest of a shard is whose header alone is here; what is read of it is kept in ``pieces``."""

    repo: str
    commit: str
    file: str
    size_bytes: int
    pieces: Path

    def read(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop) of the whole file; raises `NotFetchedError` for more than `SMALL_BYTES`."""
        if stop - start > SMALL_BYTES:
            raise self.not_fetched()
        piece = self.pieces / f"{self.file}.{start}-{stop}"
        if not piece.is_file():
            data, _ = read_range(HubId(self.repo, self.commit), self.commit, self.file, start, stop)
            put(piece, data)
        return piece.read_bytes()

    def not_fetched(self) -> NotFetchedError:
        """What whoever asks for the weights gets."""
        return NotFetchedError(
            f"of {self.file} only the header was fetched from {self.repo}, and its weights are asked for; give "
            f"{self.repo}@{self.commit} itself to a command that reads weights",
            id=self.repo,
            commit=self.commit,
            file=self.file,
        )


@dataclass(frozen=True)
class Held:
    """The record of such a directory: the true size of each shard, and the names of all files with weights."""

    repo: str
    commit: str
    sizes: Mapping[str, int]
    weights: tuple[str, ...]

    def write(self, directory: Path) -> None:
        """Put the record into ``directory``."""
        record = {"repo": self.repo, "commit": self.commit, "sizes": self.sizes, "weights": self.weights}
        put(directory / RECORD, json.dumps(record).encode())

    def remote(self, shard: Path) -> Remote | None:
        """Where the rest of ``shard`` is; None for one that is here whole."""
        size_bytes = self.sizes.get(shard.name)
        if size_bytes is None:
            return None
        return Remote(self.repo, self.commit, shard.name, size_bytes, (shard.parent / RECORD).parent)


def held(directory: Path) -> Held | None:
    """The record of ``directory``; None for one that has none.

    It counts only where `fetching` puts it: one that came with a stranger's files would have ropetool fetch from a
    repository of his choice.
    """
    if not (directory / RECORD).is_file() or not keeps_headers(directory):
        return None
    record = read_json_file(directory / RECORD)
    return Held(record["repo"], record["commit"], record["sizes"], tuple(record["weights"]))


def origin(path: Path) -> str | None:
    """``org/name@commit`` for a checkpoint that was fetched from the Hub, headers alone or whole; else None."""
    directory = path.parent if path.is_file() else path
    record = held(directory)
    found = (record.repo, record.commit) if record else snapshot_of(directory)
    return "@".join(found) if found else None


def hub_entry(path: Path) -> dict[str, str]:
    """What the marker of a result tells of where its source came from: nothing where that is no Hub."""
    source = origin(path)
    return {"hub": source} if source else {}


def put(file: Path, data: bytes) -> None:
    """Write a small file so that whoever finds it finds all of it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    beside.write_bytes(data)
    beside.replace(file)
