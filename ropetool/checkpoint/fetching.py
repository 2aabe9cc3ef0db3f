"""What a command needs of a repository at the Hub, brought here as a directory that reads like any other.

Whole files go to the cache of huggingface_hub. Where the headers of the shards are enough, they are read by ranges, to
the byte, and kept as `checkpoint.headers` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from ropetool.checkpoint.adapter import ADAPTER_PICKLE, ADAPTER_SINGLE
from ropetool.checkpoint.folder import (
    ADAPTER_CONFIG,
    CONFIG,
    INDEX,
    LARGE_SIDE_FILE_BYTES,
    SINGLE,
    check_space,
    staged,
)
from ropetool.checkpoint.headers import Held, held, put
from ropetool.checkpoint.hub import (
    Listing,
    endpoint,
    fetch,
    headers_directory,
    listing,
    not_cached,
    read_range,
    revision_of,
    show_bars,
)
from ropetool.checkpoint.hub_id import Found, HubId, Need
from ropetool.checkpoint.pickled import PICKLE_INDEX, PICKLE_SINGLE, pickled_names
from ropetool.checkpoint.shards import OF_HEADER, read_shard
from ropetool.checkpoint.strangers import OF_INDEX, WEIGHT_SUFFIXES, read_json_file
from ropetool.errors import HubNotFoundError, OutputError

# Another process fetches the same headers: then they are its.
PATIENCE_SECONDS = 60.0
T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 8
SMALL_JSON_BYTES = 1 << 20
VOCABULARIES = ("tokenizer.json", "vocab.json")


@dataclass(frozen=True)
class _Repo:
    """A repository while it is fetched: its files, and the directory of that commit in the library's cache."""

    hub: HubId
    files: Listing
    snapshot: Path

    @property
    def place(self) -> Path:
        """Where its headers are, or will be."""
        return headers_directory(self.hub.repo, self.files.commit)

    def fetch(self, name: str) -> Path:
        """One file, as a path in the cache."""
        return fetch(self.hub, self.files.commit, name)

    def has(self, names: Iterable[str]) -> bool:
        """Whether all of these are in the cache."""
        return all((self.snapshot / name).is_file() for name in names)


def bring(
    hub: HubId, need: Need, *, talk: Callable[[str], None] = lambda message: None, bars: bool = False
) -> Found:  # fmt: skip
    """What ``need`` says of a repository, as a directory; with ``bars``, the library shows how weights arrive.

    Raises `HubError` and those below it, one for each way in which that can fail.
    """
    show_bars(False)
    files = listing(hub)
    repo = _Repo(hub, files, _config(hub, files))
    side = [name for name, size in files.sizes.items() if _is_wanted(name, size, need)]
    _at_once(repo.fetch, side)
    return Found(_directory(repo, side, need, talk, bars), hub.repo, revision_of(hub), files.commit)


def _directory(repo: _Repo, side: list[str], need: Need, talk: Callable[[str], None], bars: bool) -> Path:
    """Fetch of the weights what is needed; returns the directory with that and the files ``side``."""
    if need is Need.CONFIGS:
        return repo.snapshot
    record = None if need is Need.WEIGHTS else held(repo.place)
    weights = tuple(record.sizes) if record else _weights(repo)
    shards = [name for name in weights if name.endswith(".safetensors")]
    if need is Need.WEIGHTS or (need is Need.PLAN and not shards):
        _fetch_weights(repo, weights or _weights(repo), talk, bars)
        return repo.snapshot
    if shards and repo.has(shards):
        return repo.snapshot
    if record is None:
        _fetch_headers(repo, shards)
    _put_beside(repo, (CONFIG, *side))
    return repo.place


def _config(hub: HubId, files: Listing) -> Path:
    """Fetch the file that makes it a checkpoint or an adapter; returns the snapshot's directory in the cache."""
    name = next((name for name in (CONFIG, ADAPTER_CONFIG) if name in files.sizes), None)
    if name is None:
        some = ", ".join(list(files.sizes)[:4]) or "none"
        raise HubNotFoundError(
            f"{hub} at {endpoint()} has no {CONFIG}, so it is no checkpoint of transformers; its {len(files.sizes)} "
            f"files are {some}{', ...' if len(files.sizes) > 4 else ''}",
            id=hub.repo,
            revision=hub.revision,
            endpoint=endpoint(),
            file=CONFIG,
        )
    return fetch(hub, files.commit, name, by_revision=True).parent


def _is_wanted(name: str, size_bytes: int | None, need: Need) -> bool:
    """Whether a file without weights is needed; its size is not always known."""
    path = PurePosixPath(name)
    other_index = name.endswith(".index.json") and name != INDEX
    if path.suffix in WEIGHT_SUFFIXES or other_index or any(part.startswith(".") for part in path.parts):
        return False
    if need is not Need.HEADERS:
        return (size_bytes or 0) <= LARGE_SIDE_FILE_BYTES
    config = path.suffix == ".json" and len(path.parts) == 1 and name not in VOCABULARIES
    return name == INDEX or path.suffix == ".py" or (config and (size_bytes or 0) <= SMALL_JSON_BYTES)


def _weights(repo: _Repo) -> tuple[str, ...]:
    """The files that `folder.open_checkpoint`, or else `pickled.pickled_files`, would take for the weights."""
    weights = _chosen(repo)
    if not repo.files.whole and not (weights and repo.has(weights)):
        missing = next((name for name in weights if not repo.has([name])), SINGLE)
        raise not_cached(repo.hub, missing)
    return weights


def _chosen(repo: _Repo) -> tuple[str, ...]:
    top = sorted(name for name in repo.files.sizes if "/" not in name)
    if ADAPTER_CONFIG in top and not {SINGLE, INDEX, PICKLE_SINGLE, PICKLE_INDEX} & set(top):
        return tuple(name for name in (ADAPTER_SINGLE, ADAPTER_PICKLE) if name in top)[:1]
    if INDEX in top:
        return _named_by(repo, INDEX)
    if SINGLE in top:
        return (SINGLE,)
    found = [name for name in top if PurePosixPath(name).suffix in WEIGHT_SUFFIXES]
    if len(found) == 1 and found[0].endswith(".safetensors"):
        return (found[0],)
    pickles = pickled_names(top)
    return (*pickles, *_named_by(repo, PICKLE_INDEX)) if pickles == (PICKLE_INDEX,) else pickles


def _named_by(repo: _Repo, index: str) -> tuple[str, ...]:
    """The files that an index names, but those that are not there: whoever opens the checkpoint says so of them."""
    weight_map = read_json_file(repo.fetch(index), OF_INDEX).get("weight_map")
    named = sorted(set(map(str, weight_map.values()))) if isinstance(weight_map, dict) else []
    return tuple(name for name in named if name in repo.files.sizes or not repo.files.whole)


def _fetch_weights(repo: _Repo, weights: Iterable[str], talk: Callable[[str], None], bars: bool) -> None:
    """One after the other, in this thread, so that an interrupt ends it; what arrived whole stays in the cache."""
    missing = [name for name in weights if not repo.has([name])]
    if not missing:
        return
    needed_bytes = sum(repo.files.sizes.get(name) or 0 for name in missing)
    check_space(repo.snapshot, needed_bytes)
    talk(f"fetching {len(missing)} files with weights ({needed_bytes / 1e6:,.1f} MB) of {repo.hub} from {endpoint()}")
    show_bars(bars)
    for name in missing:
        repo.fetch(name)
    show_bars(False)


def _fetch_headers(repo: _Repo, shards: list[str]) -> None:
    """Make the directory with the headers of ``shards`` and the record of them."""
    weights = tuple(name for name in repo.files.sizes if PurePosixPath(name).suffix in WEIGHT_SUFFIXES)
    try:
        with staged(repo.place, patience_seconds=PATIENCE_SECONDS) as stage:
            sizes = _at_once(lambda name: _read_header(repo, name, stage), shards)
            record = Held(repo.hub.repo, repo.files.commit, dict(zip(shards, sizes, strict=True)), weights)
            record.write(stage)
            for name in shards:  # what is kept was sound when it came
                read_shard(stage / name)
    except OutputError:
        if held(repo.place) is None:  # else another process was faster
            raise


def _put_beside(repo: _Repo, names: Iterable[str]) -> None:
    """Copy files of the snapshot beside the headers."""
    for name in names:
        if repo.has([name]) and not (repo.place / name).is_file():
            put(repo.place / name, (repo.snapshot / name).read_bytes())


def _read_header(repo: _Repo, shard: str, place: Path) -> int:
    """Write the first bytes of a shard into ``place``, to the end of its header; returns the size of the shard."""
    hub, commit = repo.hub, repo.files.commit
    head, size_bytes = read_range(hub, commit, shard, 0, 8)
    stop = 8 + int.from_bytes(head, "little")
    if len(head) == 8 and stop <= min(size_bytes, 8 + OF_HEADER.size_bytes):  # else its reader says what is wrong
        head, _ = read_range(hub, commit, shard, 0, stop)
    (place / shard).write_bytes(head)
    return size_bytes


def _at_once(work: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """``work`` on every item, a few at a time; the first error ends it."""
    pool = ThreadPoolExecutor(AT_ONCE)
    try:
        return list(pool.map(work, items))
    finally:
        pool.shutdown(cancel_futures=True)
