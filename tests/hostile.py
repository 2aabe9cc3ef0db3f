"""Files that strangers could send: each a change of a sound checkpoint directory, and what the refusal must say."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

CONFIG, SHARD, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
FULL = 16 << 20  # the most bytes of a header, and of a config
Spoil = Callable[[Path], None]


def header(text: bytes, data: bytes = b"", claimed: int | None = None) -> Spoil:
    """The whole shard: length, header, data."""

    def write(directory: Path) -> None:
        size = len(text) if claimed is None else claimed
        (directory / SHARD).write_bytes(size.to_bytes(8, "little") + text + data)

    return write


def entry(begin: Any, end: Any, shape: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def tensors(data_bytes: int = 16, **entries: Any) -> Spoil:
    return header(json.dumps(entries).encode(), b"0" * data_bytes)


def filled(begin: bytes, unit: bytes, end: bytes, size: int = FULL) -> bytes:
    """A text of just under ``size`` bytes that repeats one part."""
    return begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end


def many(count: int, last: str) -> bytes:
    """A header of ``count`` tensors, all sound but for the last."""
    sound = [
        f'"model.layers.0.mlp.experts.{at:06}.up_proj.lora_A.weight":'
        f'{{"dtype":"BF16","shape":[1,2],"data_offsets":[{4 * at},{4 * at + 4}]}}'
        for at in range(count)
    ]
    return ("{" + ",".join([*sound, last]) + "}").encode()


def sparse(name: str, size: int, begin: bytes = b"") -> Spoil:
    def write(directory: Path) -> None:
        with (directory / name).open("wb") as file:
            file.write(begin)
            file.truncate(size)

    return write


HUNDRED_MB = 100_000_000
HEADERS: dict[str, tuple[Spoil, str]] = {
    "a length of 0": (header(b"", claimed=0), "does not begin with an object"),
    "a length of 2^64 - 1": (header(b"{}", claimed=(1 << 64) - 1), "18,446,744,073,709,551,615 bytes"),
    "a length beyond the file": (header(b"{}", claimed=1000), "claims 1,000 bytes, and at most 2"),
    "a length of less than 8 bytes": (sparse(SHARD, 7), "too few for a header"),
    "100 MB of header": (sparse(SHARD, HUNDRED_MB + 8, HUNDRED_MB.to_bytes(8, "little")), "claims 100,000,000 bytes"),
    "a length of 200 MB in a file of 300": (
        sparse(SHARD, 300_000_000, (200_000_000).to_bytes(8, "little")), "at most 16,777,216"),
    "16 MB of spaces": (header(filled(b"{", b" ", b"")), "cannot be read as JSON"),
    "16 MB of empty lists": (header(filled(b'{"a":[', b"[],", b"[]]}")), "values, and a file of this kind at most"),
    "16 MB of empty objects": (header(filled(b'{"a":[', b"{},", b"{}]}")), "values, and a file of this kind at most"),
    "1,080,000 values of lists": (header(b'{"a":[' + b"[]," * 540_000 + b"[]]}"), "lacks dtype"),
    "1,095,000 values of objects": (header(b'{"a":[' + b'{"b":0},' * 365_000 + b"{}]}"), "lacks dtype"),
    "540,000 keys": (header(b"{" + b",".join(b'"%d":0' % at for at in range(540_000)) + b"}"), "the entry of 0 lacks"),
    "16 MB in one text": (header(filled(b'{"a":"', b"x", b'"}')), "lacks dtype"),
    "16 MB in one text of wide characters": (
        header(filled('{"a":"\U0001f600'.encode(), b"x", b'"}')), "lacks dtype"),
    "16 MB in one name": (header(filled(b'{"', b"x", b'":1}')), "lacks dtype"),
    "16 MB in one number": (header(filled(b'{"a":', b"9", b"}")), "a number has 16,777,"),
    "16 MB in one fraction": (header(filled(b'{"a":0.', b"1", b"}")), "the number 0.111"),
    "16 MB of backslashes": (header(filled(b'{"a":"', b"\\\\", b'"}')), "lacks dtype"),
    "16 MB of nesting": (header(filled(b'{"a":', b"[", b"")), "values, and a file of this kind"),
    "90,000 tensors, and one that overlaps": (
        header(many(90_000, '"z":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}'), b"0" * 360_000),
        "overlaps the tensor before it"),
    "90,000 tensors, and one twice": (
        header(many(90_000, '"z":{},"z":{}')), "the key 'z' appears twice"),
    "nested 900 deep": (header(b'{"a":' + b"[" * 900 + b"]" * 900 + b"}"), "more than 64 levels"),
    "nested 900 deep as a shape": (
        header(b'{"a":{"dtype":"F32","data_offsets":[0,4],"shape":' + b"[" * 900 + b"]" * 900 + b"}}"),
        "more than 64 levels"),
    "nested 60,000 deep": (header(b'{"a":' * 60_000), "more than 64 levels"),
    "no JSON": (header(b"{nonsense"), "cannot be read as JSON"),
    "a space before it": (header(b" {}"), "does not begin with an object"),
    "text after it": (header(b"{} {}"), "cannot be read as JSON"),
    "not UTF-8": (header(b'{"\xff\xfe": 1}'), "cannot be read as JSON"),
    "UTF-16": (header('{"a": 1}'.encode("utf-16")), "does not begin with an object"),
    "a byte order mark": (header(b"\xef\xbb\xbf{}"), "does not begin with an object"),
    "half a surrogate pair": (header(b'{"__metadata__":{"a":"\\ud800"}}'), "half a surrogate pair"),
    "NaN": (header(b'{"a":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', b"1234"), "NaN is not a JSON number"),
    "a number of 5,000 digits": (header(b'{"a":' + b"9" * 5000 + b"}"), "a number has 5,000 digits"),
    "a key twice": (
        header(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
               b'"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"), "'a' appears twice"),
    "a key of an entry twice": (
        header(b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
        "'dtype' appears twice"),
    "a list": (header(b"[]"), "does not begin with an object"),
    "one tensor and no name": (header(b'{"dtype":"F32","shape":[],"data_offsets":[0,4]}', b"1234"), "of tensors"),
    "a name with NUL": (tensors(4, **{"a\0b": entry(0, 4, [1])}), "characters that cannot be printed"),
    "a name that turns the terminal red": (
        tensors(4, **{"\x1b[31m": entry(0, 4, [1])}), "characters that cannot be printed"),
    "metadata of numbers": (tensors(0, __metadata__={"a": 1}), "__metadata__ is no object of texts"),
    "metadata that is a tensor": (tensors(4, __metadata__=entry(0, 4, [1])), "__metadata__ is no object of texts"),
    "an entry that is a number": (tensors(0, a=3), "lacks dtype"),
    "an entry without offsets": (tensors(0, a={"dtype": "F32", "shape": [1]}), "lacks dtype, shape or data_offsets"),
    "an unknown dtype": (tensors(4, a=entry(0, 4, [1], "Q9")), "unknown dtype 'Q9'"),
    "a dtype in small letters": (tensors(4, a=entry(0, 4, [1], "f32")), "unknown dtype 'f32'"),
    "a dtype that is a list": (tensors(4, a=entry(0, 4, [1], ["F32"])), "unknown dtype"),
    "a dtype of a megabyte": (tensors(4, a=entry(0, 4, [1], "x" * (1 << 20))), "unknown dtype"),
    "a wrong size of the dtype": (tensors(8, a=entry(0, 8, [2], "F16")), "F16[2] = 4 bytes"),
    "4 bits that are no whole bytes": (tensors(2, a=entry(0, 2, [3], "F4")), "F4[3] = 1 bytes"),
    "a negative shape": (tensors(4, a=entry(0, 4, [-1, -1])), "the shape [-1, -1]"),
    "a shape of truth values": (tensors(4, a=entry(0, 4, [True])), "the shape [True]"),
    "a shape of floats": (tensors(4, a=entry(0, 4, [1.0])), "the shape [1.0]"),
    "a shape of texts": (tensors(4, a=entry(0, 4, ["1"])), "the shape ['1']"),
    "a shape whose product overflows": (tensors(0, a=entry(0, 0, [1 << 32, 1 << 32])), "but its offsets [0, 0]"),
    "a shape whose product overflows to 4 bytes": (
        tensors(4, a=entry(0, 4, [(1 << 64) + 1])), "but its offsets [0, 4]"),
    "a shape of 100,000 dimensions of 10^300": (
        tensors(4, a=entry(0, 4, [10**300] * 40_000)), "is larger than any file"),
    "a shape of a million zeros": (tensors(4, a=entry(0, 4, [0] * 900_000)), "but its offsets [0, 4]"),
    "reversed offsets": (tensors(8, a=entry(8, 0, [2])), "but its offsets [8, 0]"),
    "negative offsets": (tensors(4, a=entry(-4, 0, [1])), "the data_offsets [-4, 0]"),
    "offsets of floats": (tensors(4, a=entry(0.0, 4.0, [1])), "the data_offsets [0.0, 4.0]"),
    "offsets of truth values": (tensors(4, a=entry(False, 4, [1])), "the data_offsets [False, 4]"),
    "offsets beyond 64 bits": (tensors(4, a=entry(0, 1 << 66, [1 << 64])), "bytes beyond the end of the file"),
    "three offsets": (tensors(4, a={"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]}), "data_offsets"),
    "an overlap": (tensors(12, a=entry(0, 8, [2]), b=entry(4, 12, [2])), "b overlaps the tensor before it"),
    "the same bytes twice": (tensors(8, a=entry(0, 8, [2]), b=entry(0, 8, [2])), "overlaps the tensor before it"),
    "a hole": (tensors(20, a=entry(0, 8, [2]), b=entry(12, 20, [2])), "b leaves a hole before it"),
    "a hole at the start": (tensors(8, a=entry(4, 8, [1])), "a leaves a hole before it"),
    "a file that was cut": (tensors(5, a=entry(0, 8, [2])), "a ends 3 bytes beyond the end of the file"),
    "bytes after the last tensor": (tensors(9, a=entry(0, 8, [2])), "1 bytes after the last tensor"),
}  # fmt: skip


def config(text: bytes) -> Spoil:
    return lambda directory: (directory / CONFIG).write_bytes(text) and None


def changed(**changes: Any) -> Spoil:
    def write(directory: Path) -> None:
        content = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        (directory / CONFIG).write_text(json.dumps({**content, **changes}), encoding="utf-8")

    return write


def literal(key: str, text: str) -> Spoil:
    """A value that Python's own writer would not write so."""

    def write(directory: Path) -> None:
        content = json.loads((directory / CONFIG).read_text(encoding="utf-8"))
        whole = json.dumps({**content, key: "@"}).replace('"@"', text)
        (directory / CONFIG).write_text(whole, encoding="utf-8")

    return write


def nested(depth: int) -> bytes:
    return b'{"model_type":"llama","a":' + b"[" * depth + b"]" * depth + b"}"


CONFIGS: dict[str, tuple[Spoil, str]] = {
    "10 million entries": (config(filled(b'{"a":[', b"0,", b"0]}", 20 << 20)), "at most 16,777,216"),
    "5 million entries": (config(filled(b'{"a":[', b"0,", b"0]}", 10 << 20)), "values, and a file of this kind"),
    "a gigabyte": (sparse(CONFIG, 1 << 30), "1,073,741,824 bytes; a file of this kind has at most 16,777,216"),
    "nested 65 deep": (config(nested(65)), "more than 64 levels"),
    "nested 900 deep": (config(nested(900)), "more than 64 levels"),
    "nested 100,000 deep": (config(nested(100_000)), "more than 64 levels"),
    "objects nested 900 deep": (config(b'{"a":' * 900 + b"1" + b"}" * 900), "more than 64 levels"),
    "a number of 5,000 digits": (literal("hidden_size", "9" * 5000), "a number has 5,000 digits"),
    "10 MB in one number": (config(filled(b'{"a":', b"9", b"}", 10 << 20)), "a number has 10,485,"),
    "NaN": (literal("rms_norm_eps", "NaN"), "NaN is not a JSON number"),
    "Infinity": (literal("rms_norm_eps", "-Infinity"), "-Infinity is not a JSON number"),
    "1e999": (literal("rope_theta", "1e999"), "the number 1e999 is larger than any"),
    "a key twice": (config(b'{"model_type":"llama","model_type":"llama"}'), "'model_type' appears twice"),
    "a list": (config(b"[]"), "holds a JSON list, not an object"),
    "a text": (config(b'"llama"'), "holds a JSON str, not an object"),
    "null": (config(b"null"), "holds a JSON NoneType, not an object"),
    "nothing": (config(b""), "cannot be read as JSON"),
    "a byte order mark": (config(b"\xef\xbb\xbf{}"), "Unexpected UTF-8 BOM"),
    "not UTF-8": (config(b'{"model_type":"\xff"}'), "invalid start byte"),
    "half a surrogate pair": (config(b'{"model_type":"llama","a":"\\udc00"}'), "half a surrogate pair"),
    "a type that is a list": (changed(model_type=["llama"]), "model_type"),
    "a type that is nested": (changed(model_type={"a": [[[]]]}), "model_type"),
    "heads of 2^63": (changed(num_attention_heads=1 << 63), "num_attention_heads"),
    "heads of -8": (changed(num_attention_heads=-8), "num_attention_heads"),
    "heads of 0": (changed(num_attention_heads=0), "num_attention_heads"),
    "heads of true": (changed(num_attention_heads=True), "num_attention_heads"),
    "heads of 8.0": (changed(num_attention_heads=8.5), "num_attention_heads"),
    "heads of text": (changed(num_attention_heads="8"), "num_attention_heads"),
    "layers of 10^300": (changed(num_hidden_layers=10**300), "num_hidden_layers"),
    "layers of true": (changed(num_hidden_layers=True), "num_hidden_layers"),
    "a width of 0": (changed(hidden_size=0, head_dim=None), "hidden_size"),
    "a head of 2^62": (changed(head_dim=1 << 62), "head_dim"),
    "a base of -1": (changed(rope_parameters=None, rope_theta=-1), "rope_theta"),
    "a base of 0": (changed(rope_parameters=None, rope_theta=0), "rope_theta"),
    "a base of true": (changed(rope_parameters=None, rope_theta=True), "rope_theta"),
    "a base of 10^400": (changed(rope_parameters=None, rope_theta=10**399), "rope_theta"),
    "a base of 1e-320": (changed(rope_parameters=None, rope_theta=1e-320), "rope_theta"),
    "a block of 400,000 keys": (
        changed(rope_parameters={str(at): at for at in range(400_000)}), "values, and a file of this kind"),
    "a length of -1": (changed(max_position_embeddings=-1), "max_position_embeddings"),
    "a length of 10^30": (changed(max_position_embeddings=10**30), "max_position_embeddings"),
}  # fmt: skip


# A type that the table lacks: transformers is imported and asked.
TYPES: dict[str, tuple[Spoil, str]] = {
    "a type of a megabyte": (changed(model_type="x" * (1 << 20)), "model type"),
    "a type that turns the terminal red": (changed(model_type="\x1b[31m\nllama"), "the model type \\x1b[31m\\nllama"),
    "a type with a path": (changed(model_type="../../etc/passwd"), "model type"),
}


def index(weight_map: Any) -> Spoil:
    def write(directory: Path) -> None:
        (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")

    return write


def outside(directory: Path) -> Path:
    """The same shard, beside the directory."""
    there = directory.parent / "outside.safetensors"
    there.write_bytes((directory / SHARD).read_bytes())
    return there


def away(name: Callable[[Path], str]) -> Spoil:
    """An index whose every tensor is in a shard with a name of that kind."""

    def write(directory: Path) -> None:
        content = (directory / SHARD).read_bytes()
        names = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        there = name(outside(directory))
        index({tensor: there for tensor in names if tensor != "__metadata__"})(directory)

    return write


def link(name: str, target: str) -> Spoil:
    def write(directory: Path) -> None:
        outside(directory)
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to(target)

    return write


def instead(name: str, make: Callable[[Path], object]) -> Spoil:
    def write(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        make(directory / name)

    return write


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(path.name)
    finally:
        os.chdir(here)


def loop(name: str) -> Spoil:
    def write(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        (directory / name).symlink_to("other")
        (directory / "other").symlink_to(name)

    return write


def index_that_is_a_pipe(directory: Path) -> None:
    (directory / SHARD).unlink()
    os.mkfifo(directory / INDEX)


PLACES: dict[str, tuple[Spoil, str]] = {
    "an index that climbs out": (away(lambda there: f"../{there.name}"), "which is not a file name"),
    "an index with an absolute path": (away(str), "which is not a file name"),
    "an index with a backslash": (away(lambda there: f"..\\{there.name}"), "which is not a file name"),
    "an index with NUL": (away(lambda there: "a\0.safetensors"), "which is not a file name"),
    "an index with an empty name": (away(lambda there: ""), "which is not a file name"),
    "an index that names its directory": (away(lambda there: "."), "which is not a file name"),
    "an index that names the directory above": (away(lambda there: ".."), "which is not a file name"),
    "an index that names a number": (index({"a": 1}), "which is not a file name"),
    "an index that names a list": (index({"a": [SHARD]}), "which is not a file name"),
    "an index of lists": (index([]), "has no weight_map"),
    "an index of 590,000 entries that are not there": (
        index({f"t{at}": SHARD for at in range(590_000)}), "but that shard has no such tensor"),
    "an index of a million entries": (index({f"t{at}": "s" for at in range(1_000_000)}), "values, and a file of this"),
    "an index of 590,000 shards": (index({f"t{at}": f"s{at}" for at in range(590_000)}), "which is not there"),
    "a text that is a link out": (link("notes.txt", "../outside.safetensors"), "is a symbolic link to"),
    "a shard that is a device": (
        instead(SHARD, lambda path: path.symlink_to("/dev/zero")), "has no weights"),
    "a config that is a link out": (
        instead(CONFIG, lambda path: path.symlink_to(Path(json.__file__))), "is a symbolic link to"),
    "shards in a loop of links": (loop(SHARD), "has no weights"),
    "a config in a loop of links": (loop(CONFIG), "has no config.json"),
    "a shard that is a directory": (instead(SHARD, Path.mkdir), "has no weights"),
    "a shard that is a pipe": (instead(SHARD, os.mkfifo), "has no weights"),
    "a shard that is a socket": (instead(SHARD, a_socket), "has no weights"),
    "a config that is a pipe": (instead(CONFIG, os.mkfifo), "has no config.json"),
    "a config that is a directory": (instead(CONFIG, Path.mkdir), "has no config.json"),
    "an index that is a pipe": (index_that_is_a_pipe, "has no weights"),
}  # fmt: skip
