"""A client of one server: JSON out, JSON in, each exchange within a time and a size. The only importer of httpx2.

httpx2 is the continuation of httpx, and what huggingface_hub 2 brings along.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ropetool import __version__
from ropetool.errors import (
    RopetoolError,
    ServerAnswerError,
    ServerRefusalError,
    ServerTimeoutError,
    ServerUnreachableError,
    UsageError,
)

if TYPE_CHECKING:
    import httpx2

VERSION_PATH = "/v1"
# Room for the log-probabilities of a whole vocabulary, at some 120 bytes each.
MOST_BYTES = 64 << 20
KEY_VARIABLE = "OPENAI_API_KEY"
LONGEST_QUOTE = 200
NEEDS_KEY = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)


@dataclass(frozen=True)
class Client:
    """An open connection to the server at ``base``, which ends in /v1; ``key`` is never part of a message."""

    http: httpx2.Client
    base: str
    timeout_s: float
    key: str


@dataclass(frozen=True)
class _Answer:
    status: int
    body: bytes
    location: str


def base_of(url: str) -> str:
    """The address of the API, ending in /v1, of one with or without it; raises `UsageError` for what is no address."""
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, brackets that are not closed
        parts, usable = None, False
    if parts is None or not usable or any(character.isspace() for character in url.strip()):
        raise UsageError(f"{_printable(url)!r} is not the address of a server; write http://host:port or https://host")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"the address of the server holds a password; give a key by {KEY_VARIABLE} instead")
    if parts.query or parts.fragment:
        raise UsageError(f"{_printable(url)!r} has more than a path: give the address of the API, as http://host:port")
    bare = f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")
    return bare if bare.endswith(VERSION_PATH) else bare + VERSION_PATH


@contextmanager
def connected(url: str, *, timeout_s: float, key: str = "") -> Iterator[Client]:
    """A client of the server at ``url``, which has ``timeout_s`` seconds for each whole answer.

    Redirects are not followed: they would carry the key to another place. Raises `UsageError` for what is no address,
    or no key.
    """
    import httpx2

    base = base_of(url)
    if not all("!" <= character <= "~" for character in key):
        raise UsageError(f"{KEY_VARIABLE} holds what no key can (a space, a line end, or a letter beyond ASCII)")
    # Compressed, a small answer could become one of any size.
    headers = {"accept": "application/json", "accept-encoding": "identity", "user-agent": f"ropetool/{__version__}"}
    headers |= {"authorization": f"Bearer {key}"} if key else {}
    try:
        httpx2.URL(base)
        http = httpx2.Client(headers=headers, timeout=timeout_s, follow_redirects=False)
    except (httpx2.InvalidURL, ValueError) as error:  # of the address, or of a proxy in the environment
        raise UsageError(f"no connection can be made to {_printable(base)!r}: {_printable(str(error))}") from None
    with http:
        yield Client(http, base, timeout_s, key)


def get(client: Client, path: str) -> Mapping[str, Any]:
    """The JSON object at ``path`` below /v1; raises `ServerError`."""
    return _object(client, path, _exchange(client, "GET", path, None))


def post(client: Client, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The JSON object that answers ``body``; raises `ServerError`."""
    return _object(client, path, _exchange(client, "POST", path, body))


def _exchange(client: Client, method: str, path: str, body: Mapping[str, Any] | None) -> _Answer:
    """One request and its answer. A server can spin out each step of it, so the time is kept from outside.

    The thread is left behind where the time is over: it ends with its next byte, or with the process.
    """
    done: SimpleQueue[_Answer | Exception] = SimpleQueue()
    deadline = time.monotonic() + client.timeout_s

    def work() -> None:
        try:
            done.put(_fetch(client, method, path, body, deadline))
        except Exception as error:  # noqa: BLE001  carried to whoever waits, and raised there
            done.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        answer = done.get(timeout=client.timeout_s)
    except Empty:
        raise _too_slow(client, path) from None
    if isinstance(answer, Exception):
        raise _failure(client, path, answer) from None
    return answer


def _fetch(client: Client, method: str, path: str, body: Mapping[str, Any] | None, deadline: float) -> _Answer:
    with client.http.stream(method, client.base + path, json=body) as response:
        chunks, size = [], 0
        for chunk in response.iter_raw():
            size += len(chunk)
            if time.monotonic() > deadline:
                raise _too_slow(client, path)
            if size > MOST_BYTES:
                raise ServerAnswerError(
                    f"{client.base}{path} answers with more than {MOST_BYTES >> 20} MiB; that is no list of "
                    f"log-probabilities, and the rest was not read",
                    url=client.base,
                    bytes=size,
                )
            chunks.append(chunk)
        return _Answer(response.status_code, b"".join(chunks), response.headers.get("location", ""))


def _too_slow(client: Client, path: str) -> ServerTimeoutError:
    return ServerTimeoutError(
        f"{client.base}{path} gave no whole answer within {client.timeout_s:g} seconds; is the server busy? Allow more "
        f"by --timeout",
        url=client.base,
        seconds=client.timeout_s,
    )


def _failure(client: Client, path: str, error: Exception) -> Exception:
    """What a person is told of an exchange that broke down."""
    import httpx2

    if isinstance(error, RopetoolError):
        return error
    if isinstance(error, httpx2.TimeoutException):
        return _too_slow(client, path)
    if isinstance(error, (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError)):
        said = quoted(client, str(error)) or type(error).__name__
        return ServerUnreachableError(
            f"{client.base}{path} cannot be asked: {said}; is the server running, and is that its address?",
            url=client.base,
        )
    return error


def _object(client: Client, path: str, answer: _Answer) -> Mapping[str, Any]:
    found = _parsed(answer.body)
    if answer.status != HTTPStatus.OK:
        raise _refusal(client, path, answer, found)
    if not isinstance(found, Mapping):
        start = quoted(client, answer.body[:LONGEST_QUOTE].decode("utf-8", "replace"))
        raise ServerAnswerError(
            f"{client.base}{path} answers with no JSON object but with {start[:60]!r}; is it the address of an "
            f"OpenAI-compatible server?",
            url=client.base,
        )
    return found


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _refusal(client: Client, path: str, answer: _Answer, found: Any) -> ServerRefusalError:
    """An answer that is no 200: its status, what the server says, and what to do."""
    said = quoted(client, _message(found))
    says = f" ({said})" if said else ""
    where, status = f"{client.base}{path}", answer.status
    if answer.location:
        text = f"{where} answers {status} and points to {quoted(client, answer.location)}; give that address itself"
    elif status in NEEDS_KEY:
        key = f"the key in {KEY_VARIABLE}" if client.key else f"anyone without a key; set {KEY_VARIABLE}"
        text = f"{where} answers {status}: it does not take {key}{says}"
    elif status == HTTPStatus.NOT_FOUND and not said:
        text = f"{where} answers 404: there is no OpenAI-compatible API at that address"
    else:
        text = f"{where} answers {status}{says or ', without saying why'}"
    return ServerRefusalError(text, url=client.base, status=status)


def _message(found: Any) -> str:
    """What an error says: ``error.message`` (llama.cpp, vLLM), ``message`` (SGLang), or ``detail`` (FastAPI)."""
    if not isinstance(found, Mapping):
        return ""
    error = found.get("error")
    inner = error.get("message") if isinstance(error, Mapping) else error
    return next((text for text in (inner, found.get("message"), found.get("detail")) if isinstance(text, str)), "")


def quoted(client: Client, text: str) -> str:
    """What a stranger wrote, fit to be printed: one line, not long, without the key."""
    return _printable(text.replace(client.key, "***") if client.key else text)


def _printable(text: str) -> str:
    line = " ".join(text.split())[:LONGEST_QUOTE]
    return "".join(character if character.isprintable() else "?" for character in line)
