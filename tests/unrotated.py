"""Tiny random models without RoPE, built with transformers' own classes: what each type's config says, by name.

Every number that a row of the schemes may name is unlike every other, and unlike the class's default.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel

WIDE, TOKENS = 32, 90
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "emb_dim", "embedding_size", "hidden_dim"), WIDE),
    **dict.fromkeys(("decoder_hidden_size", "true_hidden_size", "word_embed_proj_dim"), WIDE),
    **dict.fromkeys(("n_layer", "n_layers", "encoder_layers", "decoder_layers", "num_layers", "num_decoder_layers"), 1),
    **dict.fromkeys(("num_encoder_layers", "num_blocks"), 1),
    **dict.fromkeys(("n_head", "n_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner", "dff"), 40),
    "num_key_value_heads": 4, "vocab_size": TOKENS, "d_kv": 8, "dim_head": 8, "attention_head_size": 8, "d_head": 8,
    "max_position_embeddings": 23, "n_positions": 23, "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 21, "max_source_positions": 26, "max_target_positions": 19, "max_seq_len": 27,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "type_vocab_size": 2, "image_size": 24,
    "patch_size": 4, "num_mel_bins": 8, "intra_bottleneck_size": 16, "max_encoder_position_embeddings": 24,
    "max_decoder_position_embeddings": 18, "entity_emb_size": 16, "entity_vocab_size": 9, "attention_window": [4],
    "layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 2, "context_size": 10, "num_patches": 25,
}  # fmt: skip
# Set where the class takes them: some derive them from lists of their own, or want lists.
DROP = object()
IF_TAKEN = {"num_hidden_layers": 1, "num_attention_heads": 4, "num_heads": 4, "pad_token_id": None}


@dataclass(frozen=True)
class Unrotated:
    """What the tiny config of a type says beyond the common numbers; ``kind`` is its class, where no Auto class is."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    kind: str = ""


def small_config(model_type: str, changes: dict[str, Any]) -> Any:
    """The config of a type with every size that it has made small."""
    config = AutoConfig.for_model(model_type)
    own = config.to_dict()
    values = {key: value for key, value in SMALL.items() if key in own}
    for key, value in IF_TAKEN.items():
        if isinstance(own.get(key), int) and isinstance(value, int):
            values[key] = value
    if isinstance(own.get("pad_token_id"), int) and own["pad_token_id"] >= TOKENS:
        values["pad_token_id"] = 0
    for part, value in own.items():
        if isinstance(value, dict) and value.get("model_type"):
            values[part] = small_config(value["model_type"], changes.get(part, {})).to_dict()
    own_changes = {k: v for k, v in changes.items() if not isinstance(own.get(k), dict) or not own[k].get("model_type")}
    merged = {**values, **own_changes}
    return type(config)(**{key: value for key, value in merged.items() if value is not DROP})


def random_model(entry: Unrotated, seed: int = 3) -> Any:
    """A model of the class, its parameters random, no dropout."""
    torch.manual_seed(seed)
    config = small_config(entry.model_type, entry.config)
    model = getattr(transformers, entry.kind)(config) if entry.kind else AutoModel.from_config(config)
    switched = any("sinusoidal" in key and value for key, value in entry.config.items())

    def sines(name: str) -> bool:
        kind = type(model.get_submodule(name.rpartition(".")[0])).__name__.lower()
        return "sinusoidal" in kind or (switched and "position" in name)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and parameter.ndim > 1 and "norm" not in name.lower() and not sines(name):
                parameter.copy_(0.2 * torch.randn(parameter.shape))
    return model.eval()
