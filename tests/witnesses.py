"""A witness of the weights for tests: it knows the rows of a tiny checkpoint, and finds them again in either layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool.checkpoint.folder import Checkpoint
from ropetool.families import doubt
from ropetool.families.reading import Evidence, Reading

Q, K = "model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.k_proj.weight"


def interleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of half pairs as adjacent ones, as Meta's format has them: the inverse of transformers' own permute."""
    dim = rows.shape[0] // heads
    return rows.view(heads, 2, dim // 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def never_permuted(directory: Path, layers: tuple[int, ...] = (0, 1)) -> Path:
    """Put the rows of a tiny Llama (8 heads, 2 of k) into the layout of Meta's format, and tell nobody."""
    file = directory / "model.safetensors"
    tensors = load_file(file)
    for layer in layers:
        for name, heads in ((Q, 8), (K, 2)):
            for key in (name.format(layer), name.format(layer).replace("weight", "bias")):
                if key in tensors:
                    tensors[key] = interleaved(tensors[key], heads).contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    return directory


class KnowsRows:
    """Says half where q of a layer is as it was in ``original``, and interleaved where it is in the other order."""

    def __init__(self, original: Path) -> None:
        self.known = load_file(original / "model.safetensors")
        self.asked = 0

    def __call__(self, checkpoint: Checkpoint, reading: Reading, read: object = None) -> Evidence:
        self.asked += 1
        held = load_file(checkpoint.shards[0].path)
        layers = range(int(reading.config["num_hidden_layers"]))
        says = [self._of(held[Q.format(layer)], self.known[Q.format(layer)]) for layer in layers]
        if "unknown" in says:
            return Evidence("weights", "unknown", "rows that nobody knows")
        one = says[0] if len(set(says)) == 1 else "mixed"
        return Evidence("weights", one, f"by layer: {', '.join(says)}", 0.9999, {"layers": says})

    def _of(self, rows: torch.Tensor, known: torch.Tensor) -> str:
        if torch.equal(rows, known):
            return "half"
        return "interleaved" if torch.equal(rows, interleaved(known, 8)) else "unknown"


def believe(monkeypatch: pytest.MonkeyPatch, witness: Any) -> Any:
    """Every verb asks ``witness`` for what the weights say."""
    monkeypatch.setattr(doubt, "weights_evidence", witness)
    return witness
