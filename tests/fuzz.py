"""Fuzzing of what strangers write: headers, indexes and every JSON file, from sound ones changed, and from noise.

``python -m tests.fuzz --inputs 20000`` is the full run. An input passes where ropetool reads it or refuses it by an
error of its own: no traceback, no hang, no growth. For headers the safetensors library is the oracle: what ropetool
reads, the library must read as the same tensors; what ropetool alone refuses, for a reason of `STRICTER`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis
import psutil
import safetensors
import typer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ropetool.checkpoint.folder import open_checkpoint
from ropetool.checkpoint.shards import read_shard
from ropetool.cli import app
from ropetool.errors import RopetoolError
from tests import tiny

HANGS_SECONDS = 20
MOST_GROWTH_MB = 64
BATCH = 1000
# Why a header may be refused that the library reads.
STRICTER = (
    "appears twice",
    "does not begin with an object",
    "cannot be printed",
    "half a surrogate pair",
    "nested more than",
    "digits",
    "is larger than any",
    "data_offsets",
    "unknown dtype",
)

HUGE = 10**350
ODD_NUMBERS = (0, 1, -1, 2, 3, 7, 0.0, -0.5, 1e-320, 1e308, 1 << 31, 1 << 40, 1 << 63, (1 << 64) + 4, -(1 << 63), HUGE)
ODD_TEXTS = (
    "",
    "\0",
    "a\nb",
    "\x1b[31m",
    "é" * 9,
    "../x",
    "/etc/passwd",
    "llama",
    "half",
    "default",
    "yarn",
    "F32",
    "9" * 500,
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(ODD_NUMBERS),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(ODD_TEXTS),
    st.text(st.characters(codec="utf-8"), max_size=8),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)
# (what, where, with what): read by `changed`.
changes = st.lists(
    st.tuples(
        st.sampled_from(("put", "put", "put", "drop", "swap", "wrap", "add", "twice")), st.integers(0, 1 << 20), values
    ),
    min_size=1,
    max_size=3,
)
# Bytes cut, written over or put in; read by `damaged`.
damages = st.lists(
    st.tuples(st.sampled_from(("flip", "cut", "in", "end")), st.integers(0, 1 << 20), st.binary(max_size=6)), max_size=2
)
KEYS = (
    "rope_theta", "rope_scaling", "rope_parameters", "rotary_pct", "partial_rotary_factor", "head_dim",
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "layer_types",
    "max_position_embeddings", "sliding_window", "text_config", "ropetool", "quantization_config", "auto_map",
    "architectures", "model_type", "rope_interleaved", "no_rope_layers", "factor", "type", "rope_type",
    "short_factor", "long_factor", "beta_fast", "attention_factor", "mscale", "original_max_position_embeddings",
    "qk_rope_head_dim", "kv_lora_rank", "q_lora_rank", "extension", "pairing", "guard", "undo", "settings",
    "files", "tie_word_embeddings",
)  # fmt: skip


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
        yield node, key
        yield from places(node[key])


def changed(sound: Any, steps: list[tuple[str, int, Any]]) -> str:
    """A JSON text of ``sound``, changed in so many places."""
    tree, twice = copy.deepcopy(sound), ""
    for what, at, value in steps:
        found = list(places(tree))
        if not found:
            break
        node, key = found[at % len(found)]
        other, other_key = found[at * 7 % len(found)]
        match what:
            case "put":
                node[key] = value
            case "drop":
                del node[key]
            case "swap":
                node[key], other[other_key] = copy.deepcopy(other[other_key]), copy.deepcopy(node[key])
            case "wrap":
                node[key] = [node[key]] if at % 2 else {KEYS[at % len(KEYS)]: node[key]}
            case "add" if isinstance(node, dict):
                node[KEYS[at % len(KEYS)]] = value
            case "twice" if isinstance(node, dict):
                twice = json.dumps({key: value})[1:-1]
    text = json.dumps(tree)
    return f"{text[:-1]}, {twice}}}" if twice and text.endswith("}") and len(text) > 2 else text


def damaged(raw: bytes, steps: list[tuple[str, int, bytes]]) -> bytes:
    """``raw`` with bytes written over, cut out or put in."""
    for what, at, with_what in steps:
        place = at % (len(raw) + 1)
        match what:
            case "flip":
                raw = raw[:place] + with_what + raw[place + len(with_what) :]
            case "cut":
                raw = raw[:place] + raw[place + len(with_what) * 3 :]
            case "in":
                raw = raw[:place] + with_what + raw[place:]
            case "end":
                raw = raw[:place]
    return raw


@dataclass
class Ground:
    """Sound checkpoints to start from, the place to write inputs to, and what was counted."""

    place: Path
    configs: list[tuple[Path, Path, Any]] = field(default_factory=list)
    counted: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0


TENSOR = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
HEADER: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": TENSOR,
    "b": {"dtype": "BF16", "shape": [3], "data_offsets": [16, 22]},
    "c": {"dtype": "U8", "shape": [], "data_offsets": [22, 23]},
    "d": {"dtype": "I64", "shape": [0, 4], "data_offsets": [23, 23]},
    "e": {"dtype": "F8_E4M3", "shape": [1, 1, 5], "data_offsets": [23, 28]},
}
DATA = bytes(range(28))
noise = st.one_of(st.binary(max_size=200), st.text(max_size=60).map(str.encode), values.map(json.dumps).map(str.encode))
headers = st.one_of(
    st.tuples(changes, damages).map(lambda parts: damaged(changed(HEADER, parts[0]).encode(), parts[1])),
    changes.map(lambda steps: changed(HEADER, steps).encode()),
    changes.map(lambda steps: changed(HEADER, steps).encode()),
    noise,
)
# How far the length of the header lies, and how many bytes of data there are beside those that it should have.
lengths = st.one_of(st.just(0), st.just(0), st.integers(-3, 3), st.sampled_from((1 << 40, -(1 << 40), 100_000_000)))


def header_input(ground: Ground, text: bytes, off: int, data_off: int) -> str:
    """Read one header; returns what came of it."""
    claimed = max(0, min(len(text) + off, (1 << 64) - 1))
    content = claimed.to_bytes(8, "little") + text + (DATA + b"xyz")[: len(DATA) + data_off]
    file = ground.place / "x.safetensors"
    file.write_bytes(content)
    try:
        theirs: dict[str, Any] | None = dict(safetensors.deserialize(content))
    except Exception:  # noqa: BLE001  whatever the library raises, it does not read it
        theirs = None
    try:
        ours = read_shard(file)
    except RopetoolError as error:
        if theirs is not None and not any(reason in error.message for reason in STRICTER):
            raise AssertionError(f"only we refuse: {error.message}") from error
        return "refused"
    assert theirs is not None, f"only we read {content!r}"
    assert {name: list(t.shape) for name, t in ours.tensors.items()} == {name: t["shape"] for name, t in theirs.items()}
    for name, tensor in ours.tensors.items():
        assert content[tensor.start : tensor.stop] == bytes(theirs[name]["data"])
    return "read"


INDEX = {
    "metadata": {"total_size": 44},
    "weight_map": {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"},
}
indexes = st.one_of(
    st.tuples(changes, damages).map(lambda parts: damaged(changed(INDEX, parts[0]).encode(), parts[1])),
    changes.map(lambda steps: changed(INDEX, steps).encode()),
    noise,
)


def index_input(ground: Ground, text: bytes) -> str:
    """Open a checkpoint of two shards by one index."""
    directory = ground.place / "indexed"
    (directory / "model.safetensors.index.json").write_bytes(text)
    try:
        opened = open_checkpoint(directory)
    except RopetoolError:
        return "refused"
    assert all(shard.path.parent == directory for shard in opened.shards)
    return "read"


def run(*arguments: object) -> tuple[int, str, str]:
    """The command line, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = app.run([str(part) for part in arguments])
    return code, out.getvalue(), err.getvalue()


COMMANDS: tuple[Callable[[Path, Path], tuple[object, ...]], ...] = (
    lambda source, out: ("inspect", source),
    lambda source, out: ("inspect", source, "--weights"),
    lambda source, out: ("convert", source, out, "--to", "interleaved", "--dry-run"),
    lambda source, out: ("convert", source, out, "--to", "half", "--dry-run", "--as", "same"),
    lambda source, out: ("extend", source, out, "--method", "yarn", "--factor", "4", "--weights", "none", "--dry-run"),
    lambda source, out: ("extend", source, out, "--method", "none", "--weights", "none", "--dry-run"),
    lambda source, out: ("diff", source, source),
    lambda source, out: ("doctor", source, "--engine", "ctranslate2"),
    lambda source, out: ("doctor", source, "--engine", "mlx-lm", "--length", "8k"),
    lambda source, out: ("doctor", source, "--engine", "llama.cpp"),
    lambda source, out: ("report", source, "--out", out.with_suffix(".html")),
)


def config_input(
    ground: Ground, which: int, steps: list[Any], damage: list[Any], raw: bytes | None, command: int
) -> str:
    """Run one command on a checkpoint one of whose JSON files was changed."""
    directory, file, sound = ground.configs[which % len(ground.configs)]
    kept = file.read_bytes()
    file.write_bytes(damaged(changed(sound, steps).encode(), damage) if raw is None else raw)
    arguments = COMMANDS[command % len(COMMANDS)](directory, ground.place / "out")
    try:
        code, out, err = run(*arguments, "--json", "--quiet")
        said = json.loads(out) if out else {}
        assert code in (0, 1, 2), (code, err)
        assert out or code == 1, (code, err)
        error = said.get("error")
        assert (error is not None) == (code == 2), (code, out[:500])
        assert not error or error["code"] != "internal", (
            f"{' '.join(map(str, arguments))}: {error}\n{file.name}: {file.read_text()}"
        )
        return f"{error['code'] if error else 'read'}"
    finally:
        file.write_bytes(kept)


def ground_at(place: Path) -> Ground:
    """Sound checkpoints, and the JSON files that are changed: of several families, scaled, converted, extended."""
    ground = Ground(place)
    (place / "indexed").mkdir()
    (place / "indexed" / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    for name, tensors in (("one", {"a": TENSOR, "b": {**TENSOR, "data_offsets": [16, 32]}}), ("two", {"c": TENSOR})):
        text = json.dumps(tensors).encode()
        data = bytes(16 * len(tensors))
        (place / "indexed" / f"{name}.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}
    for name, changes_of in (
        ("llama", {}), ("llama-yarn", {"rope_parameters": yarn}), ("deepseek_v3", {}), ("gemma2", {}),
        ("phi3", {}), ("gpt_neox", {}), ("gptj", {}), ("cohere", {}), ("helium", {}), ("ernie4_5", {}),
    ):  # fmt: skip
        directory = place / name
        tiny.save(tiny.model_of(name.split("-")[0]), directory)
        tiny.edit_json(directory / "config.json", **changes_of)
        (directory / "tokenizer_config.json").write_text(
            '{"model_max_length": 64, "tokenizer_class": "LlamaTokenizer"}'
        )
        (directory / "generation_config.json").write_text('{"max_length": 64}')
    for made, verb, *options in (
        ("converted", "convert", "--to", "interleaved", "--as", "same"),
        ("extended", "extend", "--method", "yarn", "--factor", "2"),
    ):
        assert run(verb, place / "llama", place / made, *options, "--quiet")[0] == 0
    _adapter(place)
    for directory in sorted(path for path in place.iterdir() if path.is_dir() and path.name != "indexed"):
        for file in sorted(directory.glob("*.json")):
            times = 4 if file.name in ("config.json", "adapter_config.json") else 1
            ground.configs += [(directory, file, tiny.read_json(file))] * times
    return ground


def _adapter(place: Path) -> None:
    rows = {"dtype": "F32", "shape": [128, 4], "data_offsets": [0, 2048]}
    text = json.dumps({"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": rows}).encode()
    (place / "adapter").mkdir()
    (place / "adapter" / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(2048))
    says = {"peft_type": "LORA", "base_model_name_or_path": str(place / "llama"), "r": 4, "target_modules": ["q_proj"]}
    (place / "adapter" / "adapter_config.json").write_text(json.dumps(says), encoding="utf-8")


class Hang(BaseException):
    """An input took longer than any may."""


def _rang(number: int, frame: FrameType | None) -> None:
    raise Hang


def fuzz(ground: Ground, inputs: int, seed: int) -> None:
    """So many inputs: two fifths headers, a fifth indexes, two fifths the other JSON files."""
    targets: tuple[tuple[str, int, Callable[..., str], dict[str, Any]], ...] = (
        (
            "header",
            2,
            header_input,
            {"text": headers, "off": lengths, "data_off": st.sampled_from((0, 0, 0, 0, -1, 3))},
        ),
        ("index", 1, index_input, {"text": indexes}),
        (
            "config",
            2,
            config_input,
            {
                "which": st.integers(0, 1 << 16),
                "steps": changes,
                "damage": st.one_of(*[st.just([])] * 9, damages),
                "raw": st.one_of(*[st.none()] * 19, noise),
                "command": st.integers(0, 1 << 8),
            },
        ),
    )
    signal.signal(signal.SIGALRM, _rang)
    for name, share, check, drawn in targets:
        _run(ground, name, inputs * share // 5, seed, check, drawn)


def _run(ground: Ground, name: str, inputs: int, seed: int, check: Callable[..., str], drawn: dict[str, Any]) -> None:
    @hypothesis.seed(seed)
    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        verbosity=hypothesis.Verbosity.quiet,
    )
    @given(**drawn)
    def each(**inputs_of: Any) -> None:
        began = time.perf_counter()
        signal.alarm(HANGS_SECONDS)
        try:
            ground.counted[f"{name}: {check(ground, **inputs_of)}"] += 1
        finally:
            signal.alarm(0)
            ground.slowest_seconds = max(ground.slowest_seconds, time.perf_counter() - began)

    each()


def rss_mb() -> float:
    """The memory that this process holds now."""
    return float(psutil.Process().memory_info().rss / (1 << 20))


def main() -> None:
    """The full run, with its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    app.app = typer.main.get_command(app.app)  # made once: it takes longer than most inputs
    place = Path(tempfile.mkdtemp(prefix="ropetool-fuzz-"))
    try:
        ground = ground_at(place)
        fuzz(ground, asked.inputs // 10, asked.seed + 1)
        begin_mb, began = rss_mb(), time.perf_counter()
        warm = ground.counted.total()
        for at in range(0, asked.inputs, BATCH):  # hypothesis keeps a record of every input of a batch
            fuzz(ground, BATCH, asked.seed + 2 + at)
        grown_mb = rss_mb() - begin_mb
        said = {
            "date": str(date.today()),
            "seed": asked.seed,
            "inputs": ground.counted.total() - warm,
            "seconds": round(time.perf_counter() - began),
            "slowest_seconds": round(ground.slowest_seconds, 2),
            "rss_begin_mb": round(begin_mb),
            "rss_growth_mb": round(grown_mb, 1),
            "came_of_it": dict(sorted(ground.counted.items())),
        }
    finally:
        shutil.rmtree(place)
    sys.stdout.write(json.dumps(said, indent=2) + "\n")
    sys.exit(int(grown_mb > MOST_GROWTH_MB or said["inputs"] < asked.inputs))


if __name__ == "__main__":
    main()
