"""What strangers wrote: files that are regular and stay in their directory, and JSON, bounded before it is parsed.

Two rules. Weights may be symbolic links to anywhere: what is no sound file of weights is refused, and nothing of it
gets out. Any other file of a checkpoint that is one must lead to a place inside the directory, or to where a link of
its weights leads (the Hub's cache, a directory of links to another), for its content is read, shown and copied. (A path
that a person types is followed wherever it leads.) And JSON is measured before it is made into objects: its bytes, and
the characters that begin a value, so that no file costs more time or memory than the largest sound one.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ropetool.errors import CheckpointError, ConfigError

# Deeper than any config: what reads, compares and writes it may recurse.
MOST_DEPTH = 64
MOST_DIGITS = 400
MOST_NAME_BYTES = 255
WEIGHT_SUFFIXES = frozenset(
    (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".ggml", ".h5", ".msgpack", ".onnx", ".onnx_data", ".npz")
)
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)

Pairs = Sequence[tuple[str, Any]]


@dataclass(frozen=True)
class Limits:
    """The most that a file of one kind may have: bytes of JSON, and values: ``{``, ``[``, ``,`` and ``":``, counted."""

    size_bytes: int
    values: int


# Sound ones: tokenizer_config.json of Gemma 3 has 1.2 MB, an index of 200,000 tensors 20 MB.
OF_CONFIG = Limits(16 << 20, 500_000)
OF_INDEX = Limits(64 << 20, 1_200_000)


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Within, a file opened for reading; raises `CheckpointError` for what is no file, and waits for no pipe's end.

    An error while it is read names it: those of read(2) name no file.
    """
    with _opened(path) as file:
        try:
            yield file
        except OSError as error:
            error.filename = error.filename or str(path)
            raise


def _opened(path: Path) -> BinaryIO:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            raise _no_file(path, "a socket") from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _no_file(path, next((kind for is_kind, kind in _KINDS if is_kind(mode)), "something else"))
    return os.fdopen(descriptor, "rb")


def _no_file(path: Path, kind: str) -> CheckpointError:
    return CheckpointError(f"{path.name} in {path.parent} is {kind}, and must be a file; remove it", path=str(path))


def own_file(path: Path, directory: Path | None = None) -> Path:
    """``path``, a file beside the weights of the checkpoint in ``directory`` (else the one that it lies in).

    Raises `CheckpointError` where it is a symbolic link that leads out of there, and not to where the weights are.
    """
    if not path.is_symlink():
        return path
    home, target = Path(os.path.realpath(directory or path.parent)), Path(os.path.realpath(path))
    if home not in target.parents and target.parent not in _linked_places(home):
        raise CheckpointError(
            f"{path.name} is a symbolic link to {target}, outside of {home} and not beside its weights; if it belongs "
            f"to the checkpoint, put the file itself there (a copy, or a hard link), else remove the link",
            path=str(path),
            target=str(target),
        )
    return path


def _linked_places(home: Path) -> Iterator[Path]:
    """Where the links of the weights in a directory lead; of the Hub's cache its blobs, though none be fetched yet."""
    if home.parent.name == "snapshots" and home.parent.parent.name.startswith("models--"):
        yield home.parent.parent / "blobs"
    weights = (path for path in home.iterdir() if path.suffix in WEIGHT_SUFFIXES and path.is_symlink())
    yield from (Path(os.path.realpath(path)).parent for path in weights)


def is_file_name(name: str) -> bool:
    """Whether ``name`` is that of a file in a directory, and no path out of it on any system."""
    fits = name.isprintable() and len(name.encode()) <= MOST_NAME_BYTES
    return fits and name not in ("", ".", "..") and not {"/", "\\"} & set(name)


def unique(pairs: Pairs) -> dict[str, Any]:
    """A JSON object; raises `ValueError` for a key that appears twice."""
    entries = dict(pairs)
    if len(entries) != len(pairs):
        twice = next(name for name, times in Counter(name for name, _ in pairs).items() if times > 1)
        raise ValueError(f"the key {twice!r} appears twice")
    return entries


def parse_json(raw: bytes, limits: Limits, make: Callable[[Pairs], Any] = unique) -> Any:
    """The value of a JSON text, ``make`` of each object; raises `ValueError`, with the reason, for any other text.

    Refused too: more values than ``limits`` allow, more than `MOST_DEPTH` levels, a number of more than `MOST_DIGITS`
    characters or beyond the largest float, NaN and Infinity, and half a surrogate pair, which no UTF-8 file can hold.
    """
    values = sum(map(raw.count, (b"{", b"[", b",", b'":')))
    if values > limits.values:
        raise ValueError(f"it has about {values:,} values, and a file of this kind at most {limits.values:,}")
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=make, parse_constant=_constant, parse_int=_int, parse_float=_float
        )
    except RecursionError as error:
        raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep") from error
    _check_depth(value)
    if _LONE_SURROGATE.search(raw):
        _check_text(value)
    return value


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _int(text: str) -> int:
    if len(text) > MOST_DIGITS + 1:
        raise ValueError(f"a number has {len(text):,} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text) if len(text) <= MOST_DIGITS else math.inf
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is larger than any that a computer counts with")
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        inner = (node.values() if isinstance(node, dict) else node for node in level if isinstance(node, (dict, list)))
        level = [child for children in inner for child in children if isinstance(child, (dict, list))]
        if not level:
            return
    raise ValueError(f"it is nested more than {MOST_DEPTH} levels deep")


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("a text has half a surrogate pair, which is no character") from error


def read_json_file(path: Path, limits: Limits = OF_CONFIG) -> dict[str, Any]:
    """A JSON file of a checkpoint, which must hold one object; raises `ConfigError` naming the file."""
    return read_named_json(own_file(path), limits)


def read_named_json(path: Path, limits: Limits = OF_CONFIG) -> dict[str, Any]:
    """A JSON file that a person named, which must hold one object; raises `ConfigError` naming the file."""
    with open_regular(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if size_bytes > limits.size_bytes:
            raise ConfigError(
                f"{path.name} has {size_bytes:,} bytes; a file of this kind has at most {limits.size_bytes:,}",
                file=str(path),
            )
        raw = file.read(limits.size_bytes)
    try:
        value = parse_json(raw, limits)
    except ValueError as error:
        raise ConfigError(f"{path.name} cannot be read as JSON: {error}", file=str(path)) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path.name} holds a JSON {type(value).__name__}, not an object", file=str(path))
    return value
