"""The Hub, as the library huggingface_hub shows it: what a repository holds, one file of it, a few bytes of one file.

The only importer of that library, and inside functions alone: work on local files does not wait for it. What it reads
from the environment holds here too (HF_HOME, HF_TOKEN, HF_ENDPOINT, HF_HUB_OFFLINE and the others). Its HTTP library is
requests in version 0, httpx in 1 and httpx2 in 2: nothing here names one.
"""

from __future__ import annotations

import errno
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any

from ropetool import __version__
from ropetool.checkpoint.hub_id import HubId
from ropetool.errors import (
    HubAccessError,
    HubError,
    HubNotFoundError,
    HubOfflineError,
    HubTransferError,
    NoSpaceError,
    RopetoolError,
)

CHUNK_BYTES = 1 << 16
_CALLER = {"library_name": "ropetool", "library_version": __version__}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CACHE_FOLDER = "models--"
# Of `snapshot_of` and `headers_directory`; twelve digits of a commit are enough to know it by.
_PLACES = re.compile(
    rf"[^\s'\"(]*/(?:{_CACHE_FOLDER}([\w.\-]+)/snapshots|ropetool/([\w.\-]+)/headers)/([0-9a-f]{{12}})[0-9a-f]{{28}}"
)


@dataclass(frozen=True)
class Listing:
    """The files of a repository at one commit by their path in it, with the size in bytes where the server tells it.

    ``whole`` is False for what the cache has of a repository, which need not be all.
    """

    commit: str
    sizes: Mapping[str, int | None]
    whole: bool = True


def endpoint() -> str:
    """The address of the Hub in use: HF_ENDPOINT, or the library's own default."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


def cache_directory() -> Path:
    """Where the library keeps what it fetches."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def headers_directory(repo: str, commit: str) -> Path:
    """Where the headers of the shards of ``repo`` are kept: in the part of HF_HOME for callers of the library."""
    from huggingface_hub import cached_assets_path

    return Path(cached_assets_path("ropetool", namespace=repo, subfolder="headers")) / commit


def keeps_headers(directory: Path) -> bool:
    """Whether ``directory`` lies where `headers_directory` puts them."""
    from huggingface_hub import constants

    return Path(constants.HF_ASSETS_CACHE, "ropetool").resolve() in directory.resolve().parents


def snapshot_of(directory: Path) -> tuple[str, str] | None:
    """The repository and commit whose snapshot in the library's cache ``directory`` is; None for any other one."""
    folder, snapshots, commit = ("", "", *directory.resolve().parts)[-3:]
    if snapshots != "snapshots" or not folder.startswith(_CACHE_FOLDER) or not _COMMIT.fullmatch(commit):
        return None
    return folder.removeprefix(_CACHE_FOLDER).replace("--", "/"), commit


def with_ids(message: str) -> str:
    """A message for a person, with ids in place of the paths at which repositories lie here."""
    return _PLACES.sub(lambda found: f"{(found[1] or found[2]).replace('--', '/')}@{found[3]}", message)


def show_bars(shown: bool) -> None:
    """Turn the library's progress bars on or off, and its log off: what goes wrong is said once, as an error."""
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars, logging

    logging.set_verbosity(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where HF_HUB_DISABLE_PROGRESS_BARS has the say
        (enable_progress_bars if shown else disable_progress_bars)()


def listing(hub: HubId) -> Listing:
    """The files of a repository; with HF_HUB_OFFLINE those that the cache has of it."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return _cached_listing(hub)
    with _asking(hub):
        info = HfApi(**_CALLER).model_info(
            hub.repo, revision=revision_of(hub), files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        files = {sibling.rfilename: sibling.size for sibling in info.siblings or ()}
        commit = str(info.sha)
    return Listing(commit, {name: size for name, size in files.items() if _stays_inside(name)})


def _cached_listing(hub: HubId) -> Listing:
    from huggingface_hub import try_to_load_from_cache

    for name in ("config.json", "adapter_config.json"):
        found = try_to_load_from_cache(hub.repo, name, revision=revision_of(hub))
        if isinstance(found, str):
            snapshot = Path(found).parent
            files = [path for path in sorted(snapshot.rglob("*")) if path.is_file()]
            sizes = {path.relative_to(snapshot).as_posix(): path.stat().st_size for path in files}
            return Listing(snapshot.name, sizes, whole=False)
    raise not_cached(hub, None)


def revision_of(hub: HubId) -> str:
    """The branch, tag or commit that was asked for, be it by naming none."""
    from huggingface_hub import constants

    return hub.revision or str(constants.DEFAULT_REVISION)


def _stays_inside(name: str) -> bool:
    """Whether a path of a repository stays within the directory that it is put in."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def fetch(hub: HubId, commit: str, file: str, *, by_revision: bool = False) -> Path:
    """One file at ``commit`` as a path in the library's cache, downloaded where it is not there yet.

    ``by_revision`` asks for it as the person did, so that the cache knows later, offline, which commit that was.
    """
    from huggingface_hub import hf_hub_download

    revision = revision_of(hub) if by_revision else commit
    with _asking(hub, file):
        path = Path(hf_hub_download(hub.repo, file, revision=revision, **_CALLER))
    found = snapshot_of(path.parents[len(PurePosixPath(file).parts) - 1])
    if found is None or found[1] != commit:
        raise HubTransferError(
            f"{hub} moved on from commit {commit[:12]} while it was read; run again", **_fields(hub, file)
        )
    return path


def read_range(hub: HubId, commit: str, file: str, start: int, stop: int) -> tuple[bytes, int]:
    """The bytes [start, stop) of a file, fewer only where it ends before, and the size of the whole file in bytes.

    A server that knows no ranges is read from the beginning and left as soon as there is enough; from anywhere else
    that would be fetching the file, and is an error.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    url = hf_hub_url(hub.repo, file, revision=commit)
    span = {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    how = {"headers": {**build_hf_headers(**_CALLER), **span}, "timeout": constants.HF_HUB_DOWNLOAD_TIMEOUT}
    session: Any = get_session()
    with _asking(hub, file):
        # httpx has a method for it, requests an option.
        opened = session.stream("GET", url, **how) if callable(session.stream) else session.get(url, stream=True, **how)
        with opened as response:
            hf_raise_for_status(response)
            first, total_bytes = _span(response)
            wanted = min(stop, total_bytes) - start
            data = _take(response, wanted) if first == start else b""
    if len(data) != wanted:
        raise HubTransferError(
            f"{endpoint()} sent {len(data):,} of the {wanted:,} bytes from byte {start:,} of {file} of {hub}: it broke "
            f"off, or knows no range requests; run again, or download the whole repository and give its directory",
            **_fields(hub, file),
        )
    return data, total_bytes


def _span(response: Any) -> tuple[int, int]:
    """The first byte that an answer holds, and the size of the whole file."""
    span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
    if response.status_code == HTTPStatus.PARTIAL_CONTENT and span:
        return int(span[1]), int(span[2])
    return 0, int(response.headers["Content-Length"])


def _take(response: Any, wanted_bytes: int) -> bytes:
    chunks = getattr(response, "iter_bytes", None) or response.iter_content
    data = b""
    for chunk in chunks(min(CHUNK_BYTES, max(wanted_bytes, 1))):
        data += chunk
        if len(data) >= wanted_bytes:
            break
    return data[:wanted_bytes]


@contextmanager
def _asking(hub: HubId, file: str | None = None) -> Iterator[None]:
    """Within, whatever the library raises becomes one sentence; a fault of the local disk stays what it is."""
    try:
        yield
    except Exception as error:  # its HTTP library is another by version, and xet raises errors of its own
        if isinstance(error, OSError) and error.errno and not isinstance(error, (ConnectionError, TimeoutError)):
            raise _local(error, hub, file) from error
        raise _translated(error, hub, file) from error


def _fields(hub: HubId, file: str | None = None) -> dict[str, Any]:
    return {"id": hub.repo, "revision": hub.revision, "endpoint": endpoint(), "file": file}


def _local(error: OSError, hub: HubId, file: str | None) -> Exception:
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    return NoSpaceError(
        f"no space left in {cache_directory()} while {file} of {hub} was fetched; free space, or name another place by "
        f"HF_HOME",
        **_fields(hub, file),
    )


def _translated(error: Exception, hub: HubId, file: str | None) -> RopetoolError:
    """The sentence for what the library raised; its own message is the cause's."""
    from huggingface_hub import errors as theirs

    while isinstance(error, theirs.LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    at, fields = endpoint(), _fields(hub, file)
    match error:
        case theirs.GatedRepoError():
            said = (
                f"{hub.repo} is gated: accept its terms at {at}/{hub.repo}, and set HF_TOKEN to a token of that account"
            )
            return HubAccessError(said, **fields)
        case theirs.RepositoryNotFoundError():
            return _no_repository(hub)
        case theirs.RevisionNotFoundError():
            said = f"{hub.repo} at {at} has no revision {revision_of(hub)!r}; give a branch, a tag or a commit"
            return HubNotFoundError(said, **fields)
        case theirs.OfflineModeIsEnabled() | theirs.LocalEntryNotFoundError():
            return not_cached(hub, file)
        case theirs.EntryNotFoundError():
            return HubNotFoundError(f"{hub} at {at} has no file {file}, though it lists it; run again", **fields)
        case theirs.HfHubHTTPError():
            return _refused(error, hub, file)
        case theirs.FileMetadataError():
            return _no_hub(error, hub, file)
        case ValueError() | LookupError() | TypeError() if file is None:  # its answer is not what the library reads
            return _no_hub(error, hub, file)
    if file is None:
        return HubOfflineError(
            f"{hub} is no local path, and {at} cannot be reached ({_reason(error)}); check the network and "
            f"HF_ENDPOINT, or set HF_HUB_OFFLINE=1 to use what the cache has",
            **fields,
        )
    return HubTransferError(
        f"{file} of {hub} did not arrive whole from {at} ({_reason(error)}), and was not kept; run again: files that "
        f"arrived whole are not fetched a second time",
        **fields,
    )


def _no_repository(hub: HubId) -> HubNotFoundError:
    from huggingface_hub import get_token

    private = "use a token that may read it, if it is private" if get_token() else "set HF_TOKEN if it is private"
    return HubNotFoundError(
        f"{hub.repo} is neither a local path nor a repository at {endpoint()}; check the name, or {private}",
        **_fields(hub),
    )


def _no_hub(error: Exception, hub: HubId, file: str | None) -> HubError:
    said = f"{endpoint()} does not answer as a Hub does ({_reason(error)}); check HF_ENDPOINT, and proxies on the way"
    return HubError(said, **_fields(hub, file))


def not_cached(hub: HubId, file: str | None) -> HubOfflineError:
    """The sentence for what would have to be fetched, and must not be."""
    return HubOfflineError(
        f"{hub} is no local path, and HF_HUB_OFFLINE is set: {file or 'its config.json'} is not in the cache "
        f"{cache_directory()}; unset HF_HUB_OFFLINE to fetch it",
        **_fields(hub, file),
    )


def _refused(error: Any, hub: HubId, file: str | None) -> HubError:
    """The sentence for an answer of the server that is an error and nothing more special."""
    at, status = endpoint(), int(error.response.status_code)
    fields = {**_fields(hub, file), "status": status}
    told = " ".join(str(error.server_message or "").split())[:200]
    match status:
        case HTTPStatus.UNAUTHORIZED:
            said = f"{at} does not accept the token; set HF_TOKEN to one that is valid, made at {at}/settings/tokens"
            return HubAccessError(said, **fields)
        case HTTPStatus.FORBIDDEN:
            said = f"{at} forbids {file or 'to read'} {'of ' * bool(file)}{hub}: {told or 'no reason given'}; the token"
            return HubAccessError(f"{said} in HF_TOKEN needs the right to read it", **fields)
        case HTTPStatus.NOT_FOUND if file is None:
            return _no_repository(hub)
    what = f"{at} answered {status}{f' ({told})' if told else ''} when asked for {file or 'the files'} of {hub}"
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return HubError(f"{what}: too many requests; wait a few minutes, or set HF_TOKEN", **fields)
    return HubError(f"{what}; nothing here can mend that: try again later", **fields)


def _reason(error: BaseException) -> str:
    """The first cause in the system's words, else the library's."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    by_system = [c.strerror for c in causes if isinstance(c, OSError) and c.strerror]
    if by_system:
        return by_system[-1]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}".rstrip(": ")
