"""Checkpoints with code of their own, written by the tests: the files of ``custom`` and random weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoConfig
from transformers.dynamic_module_utils import get_class_from_dynamic_module

CODE = Path(__file__).with_name("custom")
AUTO_MAP = {"AutoConfig": "configuration_odd.OddConfig", "AutoModelForCausalLM": "modeling_odd.OddForCausalLM"}
SIZES = {
    "vocab_size": 96, "hidden_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2,
    "head_dim": 16, "rope_theta": 5000.0, "max_position_embeddings": 64, "partial_rotary_factor": 1.0,
}  # fmt: skip


def write_code(directory: Path, attention: str, *edits: tuple[str, str]) -> None:
    """The code of a checkpoint whose attention is the file ``attention``, with strings of it replaced."""
    for name in ("configuration_odd.py", "modeling_odd.py"):
        shutil.copy(CODE / name, directory / name)
    text = (CODE / f"attention_{attention}.py").read_text(encoding="utf-8")
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (directory / "attention_odd.py").write_text(text, encoding="utf-8")


def write(directory: Path, attention: str, *edits: tuple[str, str], **config: Any) -> Path:
    """A checkpoint with its own code and random weights."""
    directory.mkdir(parents=True)
    write_code(directory, attention, *edits)
    values = {"model_type": "odd", "architectures": ["OddForCausalLM"], "auto_map": AUTO_MAP, **SIZES, **config}
    (directory / "config.json").write_text(json.dumps(values), encoding="utf-8")
    live = AutoConfig.from_pretrained(directory, trust_remote_code=True)
    model = get_class_from_dynamic_module(AUTO_MAP["AutoModelForCausalLM"], str(directory))(live)
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        tensors[name] = noise / tensor.shape[1] ** 0.5 * 1.5 if tensor.dim() == 2 else 1.2 + 0.3 * noise
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
