"""Rows of types that rotate adjacent rows."""

from __future__ import annotations

from ropetool.families.family import INTERLEAVED, Family, Moved, Nope, Site
from ropetool.families.geometry import GeometryKeys
from ropetool.families.parts import (
    ADJACENT,
    BASE_ALONE,
    FOUR_BLOCKS_QVK,
    FULL_NORMS,
    PARTIAL,
    SEPARATE,
    V_O,
    group,
)

FULL_LAYERS_ARE_NOPE = Nope(layer_type="full_attention", interval_key="sliding_window_pattern", interval=4)

LOCAL_ENCODER, LOCAL_DECODER, PATCHER, WHOLE = (
    GeometryKeys(
        heads=f"{part}.num_attention_heads", kv_heads=f"{part}.num_key_value_heads", hidden=f"{part}.hidden_size",
        head_dim=(f"{part}.head_dim",),
    )
    for part in ("encoder_config", "decoder_config", "patcher_config", "global_config")
)  # fmt: skip
TABLE_BY_POSITION = "rotate_every_two over rotary_dim; base 10000 in create_sinusoidal_positions"
FIXED_BASE = {
    "attention": "attn",
    "keys": GeometryKeys(
        heads="n_head", kv_heads=None, hidden="n_embd", head_dim=(), rotary=("rotary_dim",), length="n_positions"
    ),
    "theta_keys": (),
    "methods": frozenset(("default",)),
    "methods_reason": "the model builds its table with base 10000 and reads no rope key from the config",
}
BUFFERS = ("out_proj", "bias", "masked_bias", "causal_mask", "embed_positions")

ROWS: tuple[Family, ...] = (
    *group("helium ernie4_5 ernie4_5_moe", INTERLEAVED, SEPARATE, V_O, ADJACENT),
    *group("glm glm4 glm4v_text glm_ocr_text", INTERLEAVED, SEPARATE, V_O, ADJACENT, keys=PARTIAL),
    *group(
        "ernie4_5_vl_moe_text", INTERLEAVED, SEPARATE, V_O,
        f"{ADJACENT}; mRoPE: pairs take their position from three axes, the same for text",
        methods=BASE_ALONE,
        methods_reason="Ernie4_5_VLMoeTextRotaryEmbedding refuses every rope type but default",
    ),
    *group("blt_local_decoder blt_local_encoder blt_patcher", INTERLEAVED, SEPARATE, V_O, ADJACENT),
    *group(
        "blt", INTERLEAVED, SEPARATE, V_O, f"{ADJACENT}, in four models with a config each", keys=WHOLE,
        within="global_transformer", section="global_config", methods=frozenset(("default",)),
        methods_reason="its four models have a rope block each in a config of their own, and an extension writes one",
        others=tuple(
            Site("self_attn", SEPARATE, V_O, keys, within=name, section=section)
            for name, section, keys in (
                ("local_encoder", "encoder_config", LOCAL_ENCODER), ("local_decoder", "decoder_config", LOCAL_DECODER),
                ("patcher", "patcher_config", PATCHER),
            )
        ),
    ),
    *group("openai_privacy_filter", INTERLEAVED, SEPARATE, (*V_O, "sinks"), ADJACENT),
    *group(
        "moonshine", INTERLEAVED, SEPARATE, V_O, f"{ADJACENT}; cross attention is not rotated",
        keys=GeometryKeys(
            heads="decoder_num_attention_heads", kv_heads="decoder_num_key_value_heads", head_dim=(),
            rotary=("partial_rotary_factor",),
        ),
        towers=frozenset(("encoder",)), still=("encoder_attn",),
    ),
    *group(
        "moonshine_streaming", INTERLEAVED, SEPARATE, V_O, f"{ADJACENT}; cross attention is not rotated",
        keys=PARTIAL, towers=frozenset(("encoder",)), still=("encoder_attn",),
        methods=frozenset(("default", "dynamic")),
        methods_reason="its decoder holds a table of max_position_embeddings rows, so a config with more does not load",
    ),
    *group(
        "llama4_text", INTERLEAVED, SEPARATE, V_O,
        "complex multiplication of adjacent pairs, where no_rope_layers is 1; norms without weights after it",
        nope=Nope(flags="no_rope_layers", interval_key="no_rope_layer_interval", interval=4),
    ),
    *group(
        "cohere", INTERLEAVED, SEPARATE + FULL_NORMS, V_O,
        "repeat_interleave of the angles; with use_qk_norm, norms stored as [heads, head_dim]",
    ),
    *group(
        "cohere2", INTERLEAVED, SEPARATE, V_O, "repeat_interleave of the angles, in sliding layers",
        nope=FULL_LAYERS_ARE_NOPE,
    ),
    *group(
        "cohere2_moe", INTERLEAVED, SEPARATE, V_O, "repeat_interleave of the angles, in sliding layers",
        nope=Nope(layer_type="full_attention"), blocks=("rope_parameters",),
    ),
    *group("gptj", INTERLEAVED, SEPARATE, ("v_proj", *BUFFERS), TABLE_BY_POSITION, **FIXED_BASE),
    *group(
        "codegen", INTERLEAVED, (Moved("qkv_proj", FOUR_BLOCKS_QVK, "qk"),), BUFFERS,
        f"{TABLE_BY_POSITION}; rows are four blocks of [q heads, v heads, k heads], v in the middle", **FIXED_BASE,
    ),
)  # fmt: skip
