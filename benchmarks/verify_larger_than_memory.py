"""Verify a random Llama-shaped checkpoint that is larger than the memory it may take; prints the figures of one run.

Makes a checkpoint of 9 GB in bfloat16 in a folder of your choice, converts it, runs ``ropetool verify A B
--max-memory 3GB`` in a process of its own, and prints that process's peak of resident memory, its time and its
verdict. Everything that it wrote is removed after. Needs twice the size on disk, and some for the logits.

    python benchmarks/verify_larger_than_memory.py --dir /somewhere
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HIDDEN, INNER, HEADS, KEY_VALUE_HEADS, VOCABULARY = 4096, 14336, 32, 8, 32000
KEY_VALUE = HIDDEN * KEY_VALUE_HEADS // HEADS
SHARD_BYTES = 2_000_000_000
BFLOAT16_BYTES = 2
SEED = 20261130

Shape = tuple[int, ...]


def config(layers: int) -> dict[str, object]:
    """A Llama of this many layers."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": layers, "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS, "head_dim": HIDDEN // HEADS, "vocab_size": VOCABULARY,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "dtype": "bfloat16",
    }  # fmt: skip


def tensors(layers: int) -> Iterator[tuple[str, Shape]]:
    """The names and shapes of its tensors."""
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(layers):
        yield f"model.layers.{layer}.input_layernorm.weight", (HIDDEN,)
        yield f"model.layers.{layer}.post_attention_layernorm.weight", (HIDDEN,)
        for name, rows in (("q", HIDDEN), ("k", KEY_VALUE), ("v", KEY_VALUE), ("o", HIDDEN)):
            yield f"model.layers.{layer}.self_attn.{name}_proj.weight", (rows, HIDDEN)
        for name, rows, columns in (("gate", INNER, HIDDEN), ("up", INNER, HIDDEN), ("down", HIDDEN, INNER)):
            yield f"model.layers.{layer}.mlp.{name}_proj.weight", (rows, columns)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCABULARY, HIDDEN)


def size_bytes(shape: Shape) -> int:
    """Bytes in bfloat16."""
    return int(np.prod(shape)) * BFLOAT16_BYTES


def shards(layers: int) -> list[list[tuple[str, Shape]]]:
    """The tensors in files of about 2 GB."""
    files: list[list[tuple[str, Shape]]] = [[]]
    for name, shape in tensors(layers):
        if files[-1] and sum(size_bytes(s) for _, s in files[-1]) + size_bytes(shape) > SHARD_BYTES:
            files.append([])
        files[-1].append((name, shape))
    return files


def values(shape: Shape, random: np.random.Generator) -> Iterator[bytes]:
    """Norms near 1.2, weights that keep the size of what they multiply, as bytes of bfloat16, some rows at a time."""
    rows = max(1, (4 << 20) // int(np.prod(shape[1:]))) if len(shape) > 1 else shape[0]
    for start in range(0, shape[0], rows):
        part = random.standard_normal((min(rows, shape[0] - start), *shape[1:]), dtype=np.float32)
        part = part * (1.5 / np.sqrt(shape[1])) if len(shape) > 1 else 1.2 + 0.3 * part
        yield (part.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()


def make(directory: Path, layers: int) -> int:
    """Write the checkpoint, one tensor after the other; returns its bytes."""
    random, weight_map, total = np.random.default_rng(SEED), {}, 0
    directory.mkdir()
    files = shards(layers)
    for number, entries in enumerate(files, start=1):
        name, header, offset = f"model-{number:05d}-of-{len(files):05d}.safetensors", {}, 0
        for tensor, shape in entries:
            stop = offset + size_bytes(shape)
            header[tensor] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, stop]}
            weight_map[tensor], offset = name, stop
        total += offset
        raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
        raw += b" " * (-len(raw) % 8)
        with (directory / name).open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            for _, shape in entries:
                file.writelines(values(shape, random))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(config(layers)), encoding="utf-8")
    return total


def run(arguments: list[str]) -> tuple[int, str, int, float]:
    """Run ropetool; returns its exit code, what it printed, its peak of resident memory in bytes, and the seconds."""
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([sys.executable, "-m", "ropetool", *arguments], stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        kib = usage.ru_maxrss if sys.platform == "linux" else usage.ru_maxrss // 1024
        return process.returncode, out.read(), kib * 1024, time.monotonic() - started


def main() -> int:
    """Make, convert, verify, print; the exit code is that of verify."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True, help="where to write two checkpoints; removed after")
    parser.add_argument("--layers", type=int, default=20, help="20 layers are 9.2 GB, each is 0.44 GB")
    parser.add_argument("--max-memory", default="3GB")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    needed = 2 * sum(size_bytes(shape) for _, shape in tensors(options.layers)) + (1 << 30)
    free = shutil.disk_usage(options.dir).free
    if free < needed:
        print(f"{options.dir} has {free / 1e9:.1f} GB free, and {needed / 1e9:.1f} GB are needed")
        return 2
    place = Path(tempfile.mkdtemp(prefix="ropetool-benchmark-", dir=options.dir))
    try:
        a, b = place / "a", place / "b"
        total = make(a, options.layers)
        print(f"checkpoint: {total / 1e9:.2f} GB in bfloat16, {options.layers} layers", flush=True)
        code, _, peak, seconds = run(["convert", str(a), str(b), "--to", "interleaved", "--quiet"])
        print(f"convert: exit {code}, {seconds:.0f} s, peak {peak / 1e9:.2f} GB resident", flush=True)
        command = ["verify", str(a), str(b), "--max-memory", options.max_memory, "--tokens", str(options.tokens)]
        code, printed, peak, seconds = run([*command, "--json", "--quiet"])
        result = json.loads(printed)
        print(f"verify {' '.join(command[3:])}: exit {code}, {seconds:.0f} s, peak {peak / 1e9:.2f} GB resident")
        shown = {key: result[key] for key in ("passed", "relation", "max_abs_diff", "tolerance") if key in result}
        print(json.dumps(shown or result), f"on {os.cpu_count()} cores")
        return code
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    sys.exit(main())
