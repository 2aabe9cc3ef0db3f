"""Tiny random models without RoPE, built with transformers' own classes, one or more per row of the schemes' table.

Every number that a row may name is unlike every other, and unlike the class's default.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embed_dim", "emb_dim", "dim_model", "embedding_size"), 32),
    **dict.fromkeys(("decoder_hidden_size", "hidden_dim"), 32),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
         "num_encoder_layers", "num_decoder_layers", "num_blocks", "speech_decoder_prenet_layers"), 1),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
         "num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
    **dict.fromkeys(
        ("intermediate_size", "encoder_ffn_dim", "decoder_ffn_dim", "d_ff", "n_inner", "dff", "ffn_dim", "d_inner",
         "dim_ff"), 40),
    "num_key_value_heads": 4, "vocab_size": 90, "d_kv": 8, "dim_head": 8, "attention_head_size": 8,
    "max_position_embeddings": 23, "n_positions": 23, "relative_attention_num_buckets": 12,
    "relative_attention_max_distance": 21, "max_source_positions": 26, "max_target_positions": 19, "seq_length": 29,
    "max_seq_len": 27, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "word_embed_proj_dim": 32,
    "type_vocab_size": 2, "image_size": 24, "patch_size": 4, "num_mel_bins": 8, "n_mels": 8, "true_hidden_size": 32,
    "intra_bottleneck_size": 16, "layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "max_encoder_position_embeddings": 24, "max_decoder_position_embeddings": 18, "entity_emb_size": 16,
    "entity_vocab_size": 9, "sliding_window": None, "attention_window": [4], "classifier_dropout": None,
}  # fmt: skip
# A pad token at 0 in some classes and 1 in others: what their rows of a table begin after.
SPEECH_SMALL = {"conv_dim": [8, 8], "conv_kernel": [3, 3], "conv_stride": [2, 2], "num_feat_extract_layers": 2,
                "num_conv_pos_embeddings": 6, "num_conv_pos_embedding_groups": 2}  # fmt: skip


@dataclass(frozen=True)
class Unrotated:
    """A model type and what its tiny config says beyond the common numbers."""

    model_type: str
    config: dict[str, Any] = field(default_factory=dict)
    kind: Any = AutoModel


def small_config(model_type: str, changes: dict[str, Any]) -> Any:
    """The config of a type with every size that it has made small."""
    config = AutoConfig.for_model(model_type)
    values = {key: value for key, value in SMALL.items() if hasattr(config, key)}
    own = config.to_dict()
    for part, value in own.items():
        if isinstance(value, dict) and "model_type" in value:
            values[part] = small_config(value["model_type"], changes.get(part, {})).to_dict()
    rest = {key: value for key, value in changes.items() if not isinstance(value, dict)}
    return type(config)(**{**values, **rest})


def random_model(entry: Unrotated, seed: int = 3) -> Any:
    """A model of the class with every parameter random and no dropout."""
    torch.manual_seed(seed)
    model = entry.kind.from_config(small_config(entry.model_type, entry.config))
    return model.eval()
