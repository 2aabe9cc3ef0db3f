"""Llama-shaped checkpoints of any size, made as fast as the disk takes them: one block of random weights, repeated."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

BFLOAT16_BYTES = 2
BLOCK_BYTES = 8 << 20
SEED = 20261130
TENSORS_OF_LAYER = 9

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Llama:
    """The numbers of a Llama: rows of the embedding, widths, layers, heads."""

    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int

    def config(self) -> dict[str, object]:
        """Its config.json."""
        return {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": self.hidden,
            "intermediate_size": self.inner, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "head_dim": self.hidden // self.heads,
            "vocab_size": self.vocabulary, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5,
            "hidden_act": "silu", "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "dtype": "bfloat16",
        }  # fmt: skip

    def tensors(self) -> Iterator[tuple[str, Shape]]:
        """The names and shapes of its tensors."""
        hidden, inner, key_value = self.hidden, self.inner, self.hidden // self.heads * self.kv_heads
        yield "model.embed_tokens.weight", (self.vocabulary, hidden)
        for layer in range(self.layers):
            yield f"model.layers.{layer}.input_layernorm.weight", (hidden,)
            for name, rows in (("q", hidden), ("k", key_value), ("v", key_value), ("o", hidden)):
                yield f"model.layers.{layer}.self_attn.{name}_proj.weight", (rows, hidden)
            yield f"model.layers.{layer}.post_attention_layernorm.weight", (hidden,)
            for name, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
                yield f"model.layers.{layer}.mlp.{name}_proj.weight", (rows, columns)
        yield "model.norm.weight", (hidden,)
        yield "lm_head.weight", (self.vocabulary, hidden)


def eight_billion(layers: int) -> Llama:
    """The shape of an 8-billion-parameter Llama with fewer layers; 8 are 4.0 GB."""
    return Llama(32000, 4096, 14336, layers, 32, 8)


def of_bytes(tensors: int, total_bytes: int) -> Llama:
    """A Llama of about so many tensors that has ``total_bytes``: what the layers leave is embedding."""
    layers = max(1, tensors // TENSORS_OF_LAYER)
    hidden = (
        64  # four heads of 16, of which one is for keys and values; a layer has 13 * hidden^2 values, inner = 3.5 h
    )
    while (hidden + 64) ** 2 * 13 * layers * BFLOAT16_BYTES < total_bytes * 0.9:
        hidden += 64
    left = total_bytes - hidden**2 * 13 * layers * BFLOAT16_BYTES
    return Llama(
        max(1, left // (2 * hidden * BFLOAT16_BYTES)), hidden, hidden * 7 // 2, layers, hidden // 16, hidden // 64
    )


def make(directory: Path, model: Llama, shards: int) -> int:
    """Write it in so many shards of about the same size; returns the bytes of its tensors."""
    entries = [(name, shape, prod(shape) * BFLOAT16_BYTES) for name, shape in model.tensors()]
    total = sum(size for _, _, size in entries)
    files: list[list[tuple[str, Shape, int]]] = [[] for _ in range(shards)]
    at = 0
    for entry in entries:
        files[min(shards - 1, (at + entry[2] // 2) * shards // total)].append(entry)
        at += entry[2]
    files = [file for file in files if file]
    directory.mkdir()
    block, places = memoryview(_block()), {}
    for number, file in enumerate(files, start=1):
        name = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        places.update(dict.fromkeys((tensor for tensor, _, _ in file), name))
        _write(directory / name, file, block)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(model.config()), encoding="utf-8")
    return total


def _block() -> bytes:
    """Random bfloat16 of either sign, between 1/128 and 1/32."""
    block = bytearray(random.Random(SEED).randbytes(BLOCK_BYTES))
    block[1::2] = block[1::2].translate(bytes(0x3C | byte & 0x80 for byte in range(256)))
    return bytes(block)


def _write(path: Path, entries: list[tuple[str, Shape, int]], block: memoryview) -> None:
    header, offset = {}, 0
    for tensor, shape, size in entries:
        header[tensor] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    raw += b" " * (-len(raw) % 8)
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for _ in range(offset // len(block)):
            file.write(block)
        file.write(block[: offset % len(block)])
