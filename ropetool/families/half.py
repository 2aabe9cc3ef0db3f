"""Rows of types that rotate halves, with q and k in projections of their own."""

from __future__ import annotations

from ropetool.families.family import HALF, Family, K, Moved, Needs, Nope, Q, V
from ropetool.families.geometry import Each, GeometryKeys
from ropetool.families.parts import (
    BASE_ALONE,
    BLOCK_SHARE,
    FACTOR_ALONE,
    HEAD_NORMS,
    PARTIAL,
    ROTATE_HALF,
    SEPARATE,
    V_O,
    group,
    norms,
)

MROPE = f"{ROTATE_HALF}; mRoPE: pairs take their position from three axes, the same for text"

ROWS: tuple[Family, ...] = (
    *group(
        "llama mistral gemma gemma2 arcee cwm falcon_h1 granite granitemoe granitemoeshared "
        "hyperclovax internlm3 iquestcoder jais2 ministral ministral3 mixtral seed_oss starcoder2 vaultgemma "
        "aria_text deepseek_ocr2_text emu3_text_model granite4_vision_text granite_docling_text "
        "higgs_audio_v2 unlimited_ocr_text voxtral_realtime_text eurobert",
        HALF, SEPARATE, V_O, ROTATE_HALF,
    ),
    *group(
        "granitemoehybrid", HALF, SEPARATE, V_O, ROTATE_HALF,
        needs=(Needs("position_embedding_type", "rope", None, "its attention has no positions", "none"),),
    ),
    *group("olmo", HALF, SEPARATE, V_O, ROTATE_HALF, only_keys=FACTOR_ALONE),
    *group(
        "phimoe", HALF, SEPARATE, V_O, ROTATE_HALF, methods=BASE_ALONE,
        methods_reason="PhimoeConfig refuses a scaled block without a short_mscale and a long_mscale",
    ),
    *group(
        "paddleocr_vl_text qwen2_5_omni_talker qwen2_5_omni_text qwen2_5_vl_text qwen2_vl_text",
        HALF, SEPARATE, V_O, MROPE,
    ),
    *group(
        "cosmos3_edge_text", HALF, SEPARATE, V_O, MROPE, methods=BASE_ALONE,
        methods_reason="Cosmos3EdgeTextConfig refuses every rope type but default",
    ),
    *group(
        "mllama_text_model", HALF, SEPARATE, V_O, f"{ROTATE_HALF}; cross attention is not rotated",
        still=("cross_attn",),
    ),
    *group("csm_depth_decoder_model", HALF, SEPARATE, V_O, ROTATE_HALF),
    *group(
        "csm", HALF, SEPARATE, V_O, f"{ROTATE_HALF} in the backbone; the depth decoder is a model of its own",
        towers=frozenset(("depth_decoder", "codec_model")),
    ),
    *group(
        "evolla", HALF, SEPARATE, V_O, ROTATE_HALF, towers=frozenset(("protein_encoder",)),
    ),
    *group(
        "idefics", HALF, SEPARATE + norms("q_layer_norm", "k_layer_norm"), V_O, ROTATE_HALF,
        keys=GeometryKeys(kv_heads=None), towers=frozenset(("vision_model", "perceiver_resampler")),
        still=("cross_attn",),
    ),
    *group(
        "exaone", HALF, SEPARATE, ("v_proj", "out_proj", "rotary"), ROTATE_HALF, attention="attn.attention",
    ),
    *group(
        "bamba", HALF, SEPARATE, V_O, f"{ROTATE_HALF}; its config sets the share to 0.5 whatever the top level says",
        keys=BLOCK_SHARE,
    ),
    *group(
        "t5_gemma_module", HALF, SEPARATE, V_O, f"{ROTATE_HALF}; cross attention is not rotated", still=("cross_attn",),
    ),
    *group(
        "dia_decoder dia_encoder", HALF, SEPARATE, V_O, f"{ROTATE_HALF}; cross attention is not rotated",
        attention="self_attention", still=("cross_attention",),
    ),
    *group(
        "zamba2", HALF, SEPARATE, (*V_O, *(f"linear_{p}_adapter_list" for p in "qkv")),
        f"{ROTATE_HALF}, when use_mem_rope", keys=GeometryKeys(head_dim=("attention_head_dim",), widening=2),
        needs=(Needs("use_mem_rope", True, False, "its attention has no positions", "none"),
               Needs("use_shared_attention_adapter", False, False,
                     "adapters are added to q and k, and their rows are not described by the row")),
    ),
    *group(
        "minimax", HALF, SEPARATE,
        (*V_O, "qkv_proj", "out_proj", "output_gate", "norm", "slope_rate", "query_decay", "key_decay",
         "diagonal_decay"),
        f"{ROTATE_HALF}; linear-attention layers are not rotated", may_lack="qk",
    ),
    *group(
        "recurrent_gemma", HALF, SEPARATE,
        ("v_proj", "o_proj", "linear_x", "linear_y", "linear_out", "conv_1d", "rg_lru", "rotary_emb"),
        f"{ROTATE_HALF}; recurrent layers have no q and k", attention="temporal_block", keys=PARTIAL, may_lack="qk",
        methods=BASE_ALONE, methods_reason="RecurrentGemmaRotaryEmbedding refuses every rope type but default",
    ),
    *group(
        "nanochat", HALF, SEPARATE, V_O, "rotate_half takes (x2, -x1): pairs turn backwards; norms without weights",
        backwards=True,
    ),
    *group(
        "moshi kyutai_speech_to_text", HALF,
        (Moved("q_proj.linear", Q, "q"), Moved("k_proj.linear", K, "k")), ("v_proj", "o_proj", "rotary_emb"),
        ROTATE_HALF, towers=frozenset(("depth_decoder", "audio_encoder", "codec_model")),
    ),
    *group(
        "jetmoe", HALF,
        (Moved("experts.input_linear", (Each("experts", K),), "q"), Moved("kv_proj", K + V, "k")),
        ("experts.output_linear", "experts.router", "experts.bias", "rotary_emb"),
        f"{ROTATE_HALF}; q is a mixture of experts, each with as many heads as k has", attention="self_attention",
        keys=GeometryKeys(head_dim=("kv_channels",), experts="num_local_experts"),
    ),
    *group("gpt_oss", HALF, SEPARATE, (*V_O, "sinks"), ROTATE_HALF),
    *group(
        "granite_swa granitemoe_swa", HALF, SEPARATE, (*V_O, "sinks"), f"{ROTATE_HALF}, by layer_rope_theta",
        nope=Nope(flags="layer_rope_theta"), theta_list="layer_rope_theta",
    ),
    *group("bitnet", HALF, SEPARATE, (*V_O, "attn_sub_norm"), ROTATE_HALF),
    *group(
        "diffllama", HALF, SEPARATE, (*V_O, "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"),
        f"{ROTATE_HALF}; the lambdas are learned scalars, not rows of q or k",
    ),
    *group(
        "qwen2 qwen2_moe", HALF, SEPARATE, V_O, f"{ROTATE_HALF}; q, k and v have biases",
    ),
    *group(
        "nemotron solar_open glm4v_moe_text glm_image_text", HALF, SEPARATE, V_O, ROTATE_HALF, keys=PARTIAL
    ),
    *group(
        "glm4_moe", HALF, SEPARATE + HEAD_NORMS, V_O, f"{ROTATE_HALF}, after norms of one head when use_qk_norm",
        keys=PARTIAL,
    ),
    *group(
        "phi", HALF, SEPARATE + norms("q_layernorm", "k_layernorm"), (*V_O, "dense"), ROTATE_HALF, keys=PARTIAL,
    ),
    *group(
        "stablelm", HALF, SEPARATE + norms("q_layernorm.norms.*", "k_layernorm.norms.*"), V_O,
        f"{ROTATE_HALF}, after a norm of its own for every head when qk_layernorm", keys=PARTIAL,
    ),
    *group(
        "smollm3", HALF, SEPARATE, V_O, f"{ROTATE_HALF}, in layers where no_rope_layers is 1",
        nope=Nope(flags="no_rope_layers", interval_key="no_rope_layer_interval", interval=4),
    ),
)  # fmt: skip
