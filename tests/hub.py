"""A Hub on the loopback: the routes that huggingface_hub asks, ranges, and a second host for large files.

It answers as the Hub does (headers read from huggingface_hub 2.4, file_download.py and utils/_http.py): small files
itself, files with weights by a redirect to another origin. It counts what it sent, and can be told to fail.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
LARGE = (".safetensors", ".bin", ".gguf", ".pth")
TOKEN = "hf_" + "a" * 34  # made up


def commit_of(files: Mapping[str, bytes]) -> str:
    """A commit id for these files."""
    digests = (name.encode() + hashlib.sha1(content).digest() for name, content in sorted(files.items()))
    return hashlib.sha1(b"".join(digests)).hexdigest()


def files_of(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by its path in it."""
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@dataclass
class Repo:
    """Files by commit, and commits by the names of branches and tags."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def push(self, files: Mapping[str, bytes], *names: str) -> str:
        """Add a commit under ``names``, by default main; returns its id."""
        commit = commit_of(files)
        self.commits[commit] = dict(files)
        self.names |= dict.fromkeys(names or ("main",), commit)
        return commit


@dataclass(frozen=True)
class Asked:
    """One request: what for ("api", "file" or "large"), its method, the file, and the range if it asked for one."""

    kind: str
    method: str
    file: str
    range: str | None
    authorised: bool


# What may be planted: it gets the handler and what is asked, and returns True where it has answered itself.
Fault = Callable[["Answer", Asked], bool]


@dataclass
class Hub:
    """The state of the two servers."""

    repos: dict[str, Repo] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    sent: Counter[str] = field(default_factory=Counter)
    fault: Fault | None = None
    ranges: bool = True
    endpoint: str = ""
    large: str = ""

    def repo(self, name: str, files: Mapping[str, bytes], **options: Any) -> str:
        """Add a repository with one commit on main; returns the commit."""
        self.repos[name] = Repo(**options)
        return self.repos[name].push(files)

    def forget(self) -> None:
        """Begin counting anew."""
        self.asked.clear()
        self.sent.clear()


class Answer(BaseHTTPRequestHandler):
    """What both servers do with a request."""

    hub: Hub
    is_large = False
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def _route(self) -> None:
        url = urlsplit(self.path)
        for pattern, answer in ROUTES[self.is_large].items():
            found = re.fullmatch(pattern, url.path)
            if found:  # a slash within a revision is quoted
                answer(self, *map(unquote, found.groups()))
                return
        self.error(404, message="no such route")

    def _planted(self, kind: str, file: str) -> bool:
        asked = Asked(kind, self.command, file, self.headers.get("Range"), "authorization" in self.headers)
        self.hub.asked.append(asked)
        return bool(self.hub.fault and self.hub.fault(self, asked))

    def _repo(self, name: str) -> Repo | None:
        token = self.headers.get("authorization")
        if token and token != f"Bearer {TOKEN}":
            self.error(401, message="Invalid credentials in Authorization header")
            return None
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not token):
            # The Hub does not tell whether there is one: 401 to the anonymous, else 404.
            self.error(404 if token else 401, "RepoNotFound", "Repository not found")
            return None
        return repo

    def _large(self, name: str, commit: str, file: str) -> None:
        if not self._planted("large", file):
            self.content(file, self.hub.repos[name].commits[commit][file])

    def _model(self, name: str, revision: str) -> None:
        if self._planted("api", name):
            return
        repo = self._repo(name)
        if repo is None:
            return
        commit = repo.names.get(revision, revision)
        if commit not in repo.commits:
            self.error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
            return
        files = repo.commits[commit]
        siblings = [
            {"rfilename": n, **({"size": len(c)} if "blobs" in parse_qs(urlsplit(self.path).query) else {})}
            for n, c in files.items()
        ]
        self.send(json.dumps({"id": name, "sha": commit, "private": repo.private, "siblings": siblings}).encode())

    def _file(self, name: str, revision: str, file: str) -> None:
        if self._planted("file", file):
            return
        repo = self._repo(name)
        if repo is None:
            return
        commit = repo.names.get(revision, revision)
        content = repo.commits.get(commit, {}).get(file)
        if content is None:
            self.error(404, "EntryNotFound" if commit in repo.commits else "RevisionNotFound")
        elif repo.gated and "authorization" not in self.headers:
            self.error(401, "GatedRepo", f"Access to model {name} is restricted.")
        elif file.endswith(LARGE):
            etag = hashlib.sha256(content).hexdigest()
            linked = {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
            self.send(
                b"", 302, {**linked, "X-Repo-Commit": commit, "Location": f"{self.hub.large}/{name}/{commit}/{file}"}
            )
        else:
            self.content(file, content, {"X-Repo-Commit": commit})

    def content(self, file: str, content: bytes, headers: Mapping[str, str] = {}) -> None:
        """A file, or the range of it that was asked for."""
        etag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span is None or not self.hub.ranges:
            self.send(content, 200, {**etag, **headers}, file)
            return
        first, last = int(span[1]), min(int(span[2] or len(content)), len(content) - 1)
        total = {"Content-Range": f"bytes {first}-{last}/{len(content)}"}
        self.send(content[first : last + 1], 206, {**etag, **headers, **total}, file)

    def send(
        self, body: bytes, status: int = 200, headers: Mapping[str, str] = {}, file: str = "", *, cut: int | None = None
    ) -> None:  # fmt: skip
        """An answer; with ``cut`` the connection ends after so many of its bytes."""
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        with suppress(ConnectionError):  # whoever asked may have heard enough
            for start in range(0, len(body[:cut]), 1 << 16):
                self.hub.sent[file] += self.wfile.write(body[:cut][start : start + (1 << 16)])
        self.close_connection = self.close_connection or cut is not None

    def error(self, status: int, code: str = "", message: str = "") -> None:
        """An error as the Hub answers it."""
        told = {"X-Error-Code": code, "X-Error-Message": message}
        self.send(json.dumps({"error": message}).encode(), status, {k: v for k, v in told.items() if v})


ROUTES = {
    True: {r"/([^/]+/[^/]+)/(\w+)/(.+)": Answer._large},
    False: {
        r"/api/models/([^/]+/[^/]+)/revision/([^/]+)": Answer._model,
        r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)": Answer._file,
    },
}


@contextmanager
def serving() -> Iterator[Hub]:
    """A Hub without repositories, as long as the block lasts."""
    hub = Hub()
    kinds = (type("Small", (Answer,), {"hub": hub}), type("Large", (Answer,), {"hub": hub, "is_large": True}))
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), kind) for kind in kinds]
    # Another name makes it another host, to which the library sends no token.
    hosts = ("127.0.0.1", "localhost")
    hub.endpoint, hub.large = (f"http://{h}:{s.server_address[1]}" for h, s in zip(hosts, servers, strict=True))
    for server in servers:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05}).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


# Runs one command line for each line of JSON, in a process whose huggingface_hub knows this Hub from its start.
DRIVER = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from ropetool.cli.app import run
told = sys.stdout
for line in sys.stdin:
    job = json.loads(line)
    os.environ.update(job["env"])
    os.chdir(job["cwd"])
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(job["arguments"])
    told.write(json.dumps([code, out.getvalue(), err.getvalue()]) + "\\n")
    told.flush()
"""


@dataclass
class Client:
    """The command line in a process of its own, with an own HF_HOME."""

    hub: Hub
    home: Path
    process: subprocess.Popen[str]

    def __call__(self, *arguments: object, token: str = "", cwd: Path | None = None) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of one command."""
        assert self.process.stdin
        assert self.process.stdout
        job = {"arguments": [str(a) for a in arguments], "env": {"HF_TOKEN": token}, "cwd": str(cwd or self.home)}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process ended"
        code, out, err = json.loads(answer)
        return code, out, err


def environment(hub: Hub, home: Path, **more: str) -> dict[str, str]:
    """The environment of somebody who uses this Hub; waiting is short, so that tests of it are."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    short = {"HF_HUB_ETAG_TIMEOUT": "2", "HF_HUB_DOWNLOAD_TIMEOUT": "2", "HF_HUB_OFFLINE": "0", "HF_TOKEN": ""}
    paths = {"HF_HOME": str(home), "HF_ENDPOINT": hub.endpoint, "PYTHONPATH": path, "NO_PROXY": "127.0.0.1,localhost"}
    others = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGINGFACE_"))}
    return {**others, **short, **paths, **more}


@contextmanager
def client(hub: Hub, home: Path) -> Iterator[Client]:
    """A client as long as the block lasts."""
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER], env=environment(hub, home), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Client(hub, home, process)
    finally:
        process.kill()
        process.communicate()
