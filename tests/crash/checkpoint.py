"""The checkpoint that is converted while it is killed: a small Llama in four shards, and pictures of directories."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB, SHARDS = 8, 128, 8, 2, 16, 2048, 4
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": HIDDEN,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 2048,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "vocab_size": VOCAB,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
}
SIDE_FILES: Mapping[str, bytes] = {
    "tokenizer.json": b'{"version": "1.0"}' + b" " * 100_000,
    "generation_config.json": b'{"max_new_tokens": 32}',
    "README.md": b"# A model\n",
    "original/params.json": b'{"dim": 128}',
}
READ_ONLY = "README.md"


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    rows, kv_rows = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, size in (("q", rows), ("k", kv_rows), ("v", kv_rows)):
            yield f"{at}.self_attn.{name}_proj.weight", (size, HIDDEN)
            yield f"{at}.self_attn.{name}_proj.bias", (size,)
        yield f"{at}.self_attn.o_proj.weight", (HIDDEN, rows)
        yield f"{at}.self_attn.o_proj.bias", (HIDDEN,)
        yield f"{at}.mlp.gate_proj.weight", (256, HIDDEN)
        yield f"{at}.mlp.up_proj.weight", (256, HIDDEN)
        yield f"{at}.mlp.down_proj.weight", (HIDDEN, 256)
        yield f"{at}.input_layernorm.weight", (HIDDEN,)
        yield f"{at}.post_attention_layernorm.weight", (HIDDEN,)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def build(directory: Path, seed: int = 7) -> Path:
    """Write the checkpoint; one shard has saved frequencies too, which an extension rewrites."""
    random = np.random.default_rng(seed)
    tensors = {name: random.standard_normal(shape).astype(np.float16) for name, shape in _shapes()}
    steps = np.arange(0, HEAD_DIM, 2, dtype=np.float64) / HEAD_DIM
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = (10000.0**-steps).astype(np.float32)
    names = list(tensors)
    weight_map, per_shard = {}, -(-len(names) // SHARDS)
    directory.mkdir(parents=True)
    for number in range(SHARDS):
        mine = names[number * per_shard : (number + 1) * per_shard]
        if number == 0:
            mine = [*mine, names[-1]]
        file = f"model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        mine = [name for name in mine if number == 0 or name != names[-1]]
        save_file({name: tensors[name] for name in mine}, directory / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(mine, file))
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")
    for name, content in SIDE_FILES.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(content)
    (directory / READ_ONLY).chmod(0o444)
    return directory


Picture = Mapping[str, str]


def picture(directory: Path) -> Picture:
    """Every entry below a directory: of a file its mode and a digest of its bytes, of a directory its mode."""
    shown = {}
    for path in sorted(directory.rglob("*")):
        mode = f"{path.stat().st_mode:o}"
        if path.is_file():
            mode += " " + hashlib.sha256(path.read_bytes()).hexdigest()
        shown[path.relative_to(directory).as_posix()] = mode
    return shown


def difference(seen: Picture, wanted: Picture) -> str:
    """The first entries in which two pictures differ, for a message."""
    names = [name for name in sorted(seen.keys() | wanted.keys()) if seen.get(name) != wanted.get(name)]
    what = ("is missing" if n not in seen else "is too much" if n not in wanted else "differs" for n in names)
    return ", ".join(f"{name} {how}" for name, how in list(zip(names, what, strict=True))[:4])
