"""What people convert with otherwise: load, permute in memory, save. Run by speed.py, each in a process of its own.

python benchmarks/rivals.py safetensors|transformers|same SRC DST
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path


def interleaved(weight, heads: int):
    """The rows of q or k of a Llama from the half to the interleaved layout: what its conversion script inverts."""
    rows, inputs = weight.shape
    return weight.view(heads, 2, rows // heads // 2, inputs).transpose(1, 2).reshape(rows, inputs)


def heads_of(source: Path) -> dict[str, int]:
    """How many heads each projection that moves has."""
    config = json.loads((source / "config.json").read_text())
    return {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}


def safetensors(source: Path, destination: Path) -> None:
    """Shard by shard, with the library's own load_file and save_file."""
    from safetensors.torch import load_file, save_file

    destination.mkdir()
    heads = heads_of(source)
    for file in sorted(source.iterdir()):
        if file.suffix != ".safetensors":
            shutil.copy(file, destination)
            continue
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if name.split(".")[-2] in heads:
                tensors[name] = interleaved(tensor, heads[name.split(".")[-2]])
        save_file(tensors, destination / file.name, metadata={"format": "pt"})


def transformers(source: Path, destination: Path) -> None:
    """The whole model, with from_pretrained and save_pretrained."""
    import torch
    from transformers import AutoModelForCausalLM

    model, heads = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16), heads_of(source)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.split(".")[-2] in heads:
                parameter.copy_(interleaved(parameter, heads[name.split(".")[-2]]))
    model.save_pretrained(destination, max_shard_size="1050MB")


def same(first: Path, second: Path) -> None:
    """Fails unless both have the same tensors."""
    import torch
    from safetensors import safe_open

    places = [
        {name: file for file in sorted(directory.glob("*.safetensors")) for name in safe_open(file, "pt").keys()}  # noqa: SIM118 - no dictionary
        for directory in (first, second)
    ]
    if places[0].keys() != places[1].keys():
        sys.exit("not the same tensors")
    for name in places[0]:
        a, b = (safe_open(where[name], "pt").get_tensor(name) for where in places)
        if not torch.equal(a, b):
            sys.exit(f"{name} differs")


if __name__ == "__main__":
    {"safetensors": safetensors, "transformers": transformers, "same": same}[sys.argv[1]](*map(Path, sys.argv[2:4]))
