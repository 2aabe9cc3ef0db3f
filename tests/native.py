"""Tiny checkpoints with the names that Meta, Mistral and torchtune give their tensors, written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

# As llama3/params.json and Mistral's have it: 4 heads of 8 rows, 2 of k, in a width of 16.
PARAMS = {"dim": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "vocab_size": 32, "rope_theta": 5e5}
CONFIG = {
    "model_type": "llama", "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "num_hidden_layers": 2, "rope_theta": 5e5, "max_position_embeddings": 64,
}  # fmt: skip
META = ("layers.{}.attention.wq.weight", "layers.{}.attention.wk.weight", "layers.{}.attention_norm.weight")
TORCHTUNE = ("layers.{}.attn.q_proj.weight", "layers.{}.attn.k_proj.weight", "layers.{}.sa_norm.scale")


def native(
    directory: Path, names: tuple[str, ...], file: str, *, config: dict[str, Any] | None = None, params: bool = True
) -> Path:
    """Write a checkpoint of two layers; pickles of Meta's are empty files, which nothing reads."""
    directory.mkdir()
    q, k, norm = names
    tensors = {"tok_embeddings.weight": np.zeros((32, 16), np.float32)}
    for layer in range(2):
        tensors[q.format(layer)] = np.zeros((32, 16), np.float32)
        tensors[k.format(layer)] = np.zeros((16, 16), np.float32)
        tensors[norm.format(layer)] = np.ones(16, np.float32)
    if file.endswith(".safetensors"):
        save_file(tensors, directory / file)
    else:
        (directory / file).write_bytes(b"")
    if params:
        (directory / "params.json").write_text(json.dumps(PARAMS), encoding="utf-8")
    if config is not None:
        (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
