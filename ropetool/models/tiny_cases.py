"""Data for `tiny`: sizes by the attribute names that configs use, and what single model types need beyond them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ropetool.models.inputs import (
    codes,
    conditioned_inputs,
    dia_inputs,
    embedded_inputs,
    encoder_inputs,
    image_inputs,
    patch_inputs,
)

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 96, 8, 2, 16, 64
WIDTH_KEYS = ("hidden_size", "n_embd", "d_model", "embedding_size", "lru_width")

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "n_embd": HIDDEN, "d_model": HIDDEN, "dim": HIDDEN,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": HEADS, "n_head": HEADS, "n_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM,
    "intermediate_size": 32, "n_inner": 32, "ffn_dim": 32, "moe_intermediate_size": 16, "ffn_hidden_size": 32,
    "shared_expert_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16, "shared_intermediate_size": 16,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_topk": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "num_shared_experts": 1,
    "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "index_n_heads": 4, "index_head_dim": 16, "index_topk": 4,
    "global_head_dim": 2 * HEAD_DIM,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "sliding_window": 16, "attention_chunk_size": 16,
    "embedding_size": HIDDEN, "type_vocab_size": 2, "first_k_dense_replace": 1,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB, "laurel_rank": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
    "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 24, "mamba_n_groups": 1, "mamba_chunk_size": 8,
    "linear_head_dim": 8, "linear_num_heads": 2, "mamba_d_ssm": 64, "moe_k": 2, "top_k_experts": 2,
    "expert_ffn_hidden_size": 16, "hidden_size_global": 128,
    "zero_expert_num": 2, "hc_mult": 2, "o_groups": 2, "o_lora_rank": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip

# A second geometry, in which no two counts or widths are to each other what they are in `SIZES`: what fits the rows of
# both holds for any.
OTHER_SIZES: dict[str, Any] = SIZES | {
    "num_attention_heads": 12, "n_head": 12, "n_heads": 12, "num_key_value_heads": 4, "num_kv_heads": 4, "head_dim": 20,
    "q_lora_rank": 26, "kv_lora_rank": 28, "qk_nope_head_dim": 10, "qk_rope_head_dim": 12, "v_head_dim": 18,
    "global_head_dim": 40,
}  # fmt: skip


@dataclass(frozen=True)
class Special:
    """What one model type needs beyond `SIZES`: config values, a class, the forward's inputs."""

    values: Mapping[str, Any] = field(default_factory=dict)
    class_name: str | None = None
    inputs: Callable[[Any, Tensor], dict[str, Any]] | None = None


# Types whose class leaves its stacked experts as the memory was (modeling_qwen3_omni_moe.py of transformers 5.24).
UNSET_EXPERTS = frozenset(("qwen3_omni_moe_talker_text",))
SECTIONS = frozenset(
    {
        "glm4v_moe_text", "glm4v_text", "glm_image_text", "glm_ocr_text", "paddleocr_vl_text",
        "qwen2_5_omni_talker", "qwen2_5_omni_text", "qwen2_5_vl_text", "qwen2_vl_text",
    }
)  # fmt: skip
"""Types whose modeling code falls back to sections for the full-size head if the rope block names none."""


_DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
SPECIAL: dict[str, Special] = {
    "bailing_hybrid": Special({"num_expert_group": 1, "num_experts_per_token": 2}),
    "bamba": Special({"attn_layer_indices": [1], "mamba_d_head": 64}),
    "blt": Special({"encoder_hash_byte_group_vocab": 50}),
    "blt_local_decoder": Special({"hidden_size": 128, "cross_attn_k": 1}, inputs=patch_inputs),
    "blt_local_encoder": Special({"hidden_size": 128, "cross_attn_k": 1}, inputs=patch_inputs),
    "chameleon": Special({"vocabulary_map": {"<image>": 5}}),
    "clvp_encoder": Special({"projection_dim": 96, "num_attention_heads": 2, "hidden_size": 96}),
    "cohere_compass_text": Special(
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"sliding_attention": _DEFAULT_ROPE, "full_attention": _DEFAULT_ROPE},
        }
    ),
    "csm_depth_decoder_model": Special({"num_codebooks": 64}),
    "csm": Special(class_name="CsmBackboneModel", inputs=codes(lambda c: c.num_codebooks)),
    "dbrx": Special(
        {
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
            "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": HIDDEN},
        }
    ),
    "deepseek_ocr2_text": Special({"mlp_layer_types": ["dense", "sparse"]}),
    "deepseek_v4": Special({"head_dim": 64, "compress_rates": {
        "compressed_sparse_attention": 1, "heavily_compressed_attention": 2}}),
    "dia_decoder": Special(
        {"cross_num_attention_heads": 8, "cross_num_key_value_heads": 8, "cross_head_dim": 16, "cross_hidden_size": 80},
        inputs=dia_inputs,
    ),
    "diffusion_gemma_text": Special({"global_head_dim": 32, "num_experts": 4, "moe_intermediate_size": 16}),
    "dots3_note_text": Special(
        {"swa_num_attention_heads": 8, "swa_num_key_value_heads": 8, "swa_q_lora_rank": 24, "swa_kv_lora_rank": 20,
         "swa_head_dim": 20, "swa_qk_nope_head_dim": 12, "swa_v_head_dim": 10}
    ),
    "ernie4_5_vl_moe_text": Special(
        {"moe_intermediate_size": [16, 16], "hidden_size": 256,
         "rope_parameters": {**_DEFAULT_ROPE, "mrope_section": [6, 6, 4]}}
    ),
    "embedding_gemma2_text": Special({"global_head_dim": 32}),
    # Its config refuses fewer key-value heads.
    "esmc": Special({"num_key_value_heads": HEADS}),
    "esm": Special({"position_embedding_type": "rotary", "pad_token_id": 0, "mask_token_id": 3}),
    "falcon_h1": Special({"mamba_d_ssm": 64, "mamba_d_head": 8}),
    "gemma3n_text": Special(
        {
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
        }
    ),
    "gemma4_text": Special({"global_head_dim": 32}),
    "gemma4_unified_text": Special({"global_head_dim": 32}),
    "glm5_next_text": Special({"qk_rope_head_dim": 0, "index_topk": 16}),
    "gradium_phonon_tts": Special({"flow_head_config": {"condition_dim": HIDDEN}, "num_key_value_heads": HEADS}),
    "granitemoehybrid": Special(
        {"layer_types": ["linear_attention", "full_attention"], "position_embedding_type": "rope"}
    ),
    "hunyuan_vl_text": Special({"rope_parameters": {**_DEFAULT_ROPE, "mrope_section": [2, 2, 2, 2]}}),
    "idefics": Special(inputs=image_inputs),
    "inkling2_text": Special({"unpadded_vocab_size": VOCAB}),
    "jetmoe": Special({"num_local_experts": 1, "num_experts_per_tok": 1, "kv_channels": HEAD_DIM,
                       "num_key_value_heads": 8}),
    "kyutai_speech_to_text": Special({"codebook_vocab_size": 64, "audio_pad_token_id": 5, "audio_bos_token_id": 6,
                                      "num_codebooks": 4, "vocab_size": VOCAB},
                                     inputs=codes(lambda c: c.num_codebooks + 1)),
    "longcat_flash": Special({"head_dim": 8}),
    "minimax_m3_vl_text": Special(
        {"layer_types": ["full_attention", "minimax_m3_sparse"], "index_head_dim": 32, "index_block_size": 2,
         "index_topk_blocks": 2}
    ),
    "moonshine": Special(
        {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 8,
         "decoder_num_key_value_heads": 8, "hidden_size": 256},
        class_name="MoonshineDecoder", inputs=encoder_inputs,
    ),
    "moonshine_streaming": Special({"hidden_size": 320, "head_dim": 40, "num_key_value_heads": 2},
                                   class_name="MoonshineStreamingDecoder", inputs=encoder_inputs),
    "pocket_tts": Special({"flow_head_config": {"condition_dim": HIDDEN}}),
    "lfm2_moe": Special({"layer_types": ["conv", "full_attention"], "num_dense_layers": 1}),
    "qwen3_omni_moe_talker_code_predictor": Special(inputs=embedded_inputs),
    "qwen3_omni_moe_talker_text": Special({"shared_expert_intermediate_size": 16}, inputs=embedded_inputs),
    "qwen4_exp_text": Special(
        {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 16, "indexer_budget": 4,
         "indexer_compress_ratio": 1, "hc_count": 2, "hc_lowrank": 8}
    ),
    "recurrent_gemma": Special({"block_types": ["recurrent", "attention"], "lru_width": HIDDEN}),
    "t5_gemma_module": Special({"dropout_rate": 0.0, "cross_attention_hidden_size": HIDDEN, "is_decoder": True},
                               class_name="T5GemmaDecoder", inputs=encoder_inputs),
    "t5gemma2_decoder": Special({"dropout_rate": 0.0}, inputs=encoder_inputs),
    "t5gemma2_text": Special({"dropout_rate": 0.0}),
    # Its eager attention does not repeat keys.
    "unlimited_ocr_text": Special({"num_key_value_heads": HEADS}),
    "voxtral_realtime_text": Special(inputs=conditioned_inputs),
    "zamba2": Special({"use_mem_rope": True, "layers_block_type": ["linear_attention", "hybrid"], "chunk_size": 8}),
    "zaya": Special({"num_experts_per_tok": 1}),
}  # fmt: skip
