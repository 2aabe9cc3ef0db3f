"""Tiny random checkpoints, one or more per model type of the family table, built with transformers' own classes.

Chosen so that mistakes cannot coincide: 8 query and 2 key-value heads where the class has both, heads x head_dim
unlike the hidden size where the class allows it, a rotary span of 8 rows or more, narrower than the head in some,
biases that are not zero and norm weights that are not one.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

from ropetool.checkpoint.folder import read_config
from ropetool.families.methods import Method
from ropetool.families.reading import read_model
from ropetool.models.unguarded import config_options

VOCAB = 96
LENGTH = 64


@dataclass(frozen=True)
class Tiny:
    """A model type and what its tiny config says; ``norms`` tells that q and k pass a norm that is on."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    norms: bool = False


COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": LENGTH,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
BIASES = {"attention_bias": True}
# Classes that take head_dim from hidden_size / heads, and only from there.
FROM_HIDDEN = {"hidden_size": 128, "head_dim": None}
DEEPSEEK = {
    "num_key_value_heads": 8,
    "head_dim": None,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 4,
    "qk_rope_head_dim": 8,
    "v_head_dim": 6,
    "first_k_dense_replace": 2,
    "n_routed_experts": 4,
    "num_mtp_layers": 0,
    **BIASES,
}

TINY: dict[str, Tiny] = {
    "llama": Tiny("llama", BIASES),
    "mistral": Tiny("mistral"),
    "qwen2": Tiny("qwen2"),
    "qwen3": Tiny("qwen3", BIASES, norms=True),
    "olmo2": Tiny("olmo2", BIASES, norms=True),
    "gemma2": Tiny("gemma2", {**BIASES, "layer_types": ["sliding_attention", "full_attention"]}),
    "helium": Tiny("helium", {**BIASES, **FROM_HIDDEN, "head_dim": 16}),
    "ernie4_5": Tiny("ernie4_5", {"use_bias": True}),
    "cohere": Tiny("cohere", {**BIASES, "logit_scale": 1.0}),
    "cohere-qk-norm": Tiny("cohere", {**BIASES, "logit_scale": 1.0, "use_qk_norm": True}, norms=True),
    "glm4": Tiny("glm4", BIASES),
    "gpt_neox": Tiny("gpt_neox", {**BIASES, **FROM_HIDDEN, "rotary_pct": 0.5}),
    "phi3": Tiny(
        "phi3", {"hidden_size": 128, "partial_rotary_factor": 0.5, "original_max_position_embeddings": LENGTH}
    ),
    "gptj": Tiny(
        "gptj",
        {"n_embd": 128, "n_head": 8, "n_layer": 2, "n_positions": LENGTH, "rotary_dim": 8, "n_inner": 48},
    ),
    "deepseek_v3": Tiny("deepseek_v3", {**DEEPSEEK, "q_lora_rank": 20}),
    "deepseek_v3-no-q-lora": Tiny("deepseek_v3", {**DEEPSEEK, "q_lora_rank": None}),
}


def config_of(name: str, **changes: Any) -> Any:
    """The transformers config of a tiny model."""
    tiny = TINY[name]
    common = {} if tiny.model_type == "gptj" else COMMON
    if tiny.model_type == "gptj":
        common = {key: COMMON[key] for key in ("vocab_size", "bos_token_id", "eos_token_id", "tie_word_embeddings")}
    values = {**common, **tiny.config, **changes}
    return AutoConfig.for_model(tiny.model_type, **{k: v for k, v in values.items() if k != "head_dim" or v})


def model_of(name: str, *, seed: int = 11, **changes: Any) -> torch.nn.Module:
    """A tiny model with every parameter random: no bias is zero, no norm weight is one."""
    return random_model(config_of(name, **changes), seed)


def random_model(config: Any, seed: int = 11) -> torch.nn.Module:
    """The causal-LM class of a config with every parameter random."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 2 and "norm" not in key:
                parameter.copy_(noise / parameter.shape[1] ** 0.5 * 1.5)
            elif key.endswith("bias"):
                parameter.copy_(noise * 0.3)
            else:
                parameter.copy_(1.2 + 0.3 * noise)
    return model.eval()


def save(model: torch.nn.Module, directory: Path, **options: Any) -> Path:
    """Save as transformers does."""
    model.save_pretrained(directory, **options)
    return directory


def load(directory: Path, **options: Any) -> Any:
    """Load with the stock class, in float32."""
    transformers.logging.set_verbosity_error()
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **options
    )
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    return model.eval()


def load_stored(directory: Path) -> Any:
    """The tensors as they are stored, in the class that they are named for, rotated rightly or not: for comparing."""
    return load(directory, **config_options(directory))


def logits(model: Any, tokens: int = LENGTH, seed: int = 5) -> torch.Tensor:
    """The logits of one seeded sequence, [T, V]."""
    ids = torch.randint(VOCAB, (1, tokens), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file as a dictionary."""
    return json.loads(path.read_text(encoding="utf-8"))


def edit_json(path: Path, /, *removed: str, **changes: Any) -> None:
    """Change keys of a JSON file in place, and remove some."""
    content = {key: value for key, value in read_json(path).items() if key not in removed}
    path.write_text(json.dumps({**content, **changes}, indent=2), encoding="utf-8")


def digest(path: Path) -> str:
    """The sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def snapshot(directory: Path) -> dict[str, tuple[str, int, int]]:
    """Every file below a directory with its digest, modification time and mode."""
    return {
        str(p.relative_to(directory)): (digest(p), p.stat().st_mtime_ns, p.stat().st_mode)
        for p in sorted(directory.rglob("*"))
        if p.is_file()
    }


def raw_tensors(shard: Path) -> tuple[bytes, dict[str, bytes], dict[str, dict[str, Any]]]:
    """A shard read without ropetool and without safetensors: header bytes, data by name, entries by name."""
    content = shard.read_bytes()
    stop = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:stop])
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    data = {name: content[stop + e["data_offsets"][0] : stop + e["data_offsets"][1]] for name, e in entries.items()}
    return content[:stop], data, entries


def needed(source: Path, method: Method, factor: float = 1.0) -> dict[str, Any]:
    """The settings without which a method cannot be asked for, others for another ``factor``."""
    if method is Method.ABF:
        return {"base": 1e9 * factor}
    if method is Method.LONGROPE:
        pairs = read_model(read_config(source)).geometry.rotary_dim // 2
        return {"short_factor": [1.0] * pairs, "long_factor": [1.0 + factor * pair / 4 for pair in range(pairs)]}
    return {}
