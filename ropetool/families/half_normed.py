"""Rows of types that rotate halves, with norms over q and k."""

from __future__ import annotations

from ropetool.families.family import HALF, Family, K, Moved, Nope
from ropetool.families.parts import (
    FACTOR_ALONE,
    FULL_NORMS,
    GATED_Q,
    HEAD_NORMS,
    PARTIAL,
    ROTATE_HALF,
    SEPARATE,
    V_O,
    group,
    norms,
)

ROWS: tuple[Family, ...] = (
    *group(
        "qwen3 qwen3_moe", HALF, SEPARATE + HEAD_NORMS, V_O, f"{ROTATE_HALF}, after norms of one head",
    ),
    *group(
        "apertus dots1 hy_v3 apertus1p5_text qwen3_omni_moe_talker_code_predictor qwen3_omni_moe_talker_text "
        "qwen3_omni_moe_text qwen3_vl_moe_text qwen3_vl_text",
        HALF,
        SEPARATE + HEAD_NORMS,
        V_O,
        f"{ROTATE_HALF}, after norms of one head",
    ),
    *group(
        "doge", HALF, SEPARATE + HEAD_NORMS, (*V_O, "A", "dt_proj"), f"{ROTATE_HALF}, after norms of one head"
    ),
    *group(
        "exaone4 exaone_moe", HALF, SEPARATE + HEAD_NORMS, V_O, f"{ROTATE_HALF}, in sliding layers where there are any",
        nope=Nope("", "full_attention", "sliding_window_pattern", 4, only_with="sliding_window"),
    ),
    *group(
        "afmoe", HALF, SEPARATE + HEAD_NORMS, (*V_O, "gate_proj"), f"{ROTATE_HALF}, in sliding layers",
        nope=Nope("", "full_attention", "global_attn_every_n_layers", 4),
    ),
    *group(
        "flex_olmo olmoe olmo_hybrid",
        HALF,
        SEPARATE + FULL_NORMS,
        V_O,
        f"{ROTATE_HALF}, after norms of all heads",
    ),
    *group(
        "olmo2", HALF, SEPARATE + FULL_NORMS, V_O, f"{ROTATE_HALF}, after norms of all heads", only_keys=FACTOR_ALONE,
    ),
    *group(
        "minimax_m2", HALF, SEPARATE + FULL_NORMS, V_O, f"{ROTATE_HALF}, after norms of all heads", keys=PARTIAL
    ),
    *group(
        "lfm2 lfm2_moe", HALF, SEPARATE + norms("q_layernorm", "k_layernorm"), ("v_proj", "out_proj", "rotary_emb"),
        f"{ROTATE_HALF}, after norms of one head",
    ),
    *group(
        "qwen3_next qwen3_5_text qwen3_5_moe_text", HALF,
        (Moved("q_proj", GATED_Q, "q"), Moved("k_proj", K, "k"), *HEAD_NORMS), V_O,
        f"{ROTATE_HALF}; each q head is followed by the rows of its gate", keys=PARTIAL,
    ),
    *group(
        "chameleon", HALF, SEPARATE + FULL_NORMS, V_O,
        f"{ROTATE_HALF}, after LayerNorms of one head, with weights stored as [heads, head_dim]",
        towers=frozenset(("vqmodel",)), only_keys=FACTOR_ALONE,
    ),
    *group(
        "hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text", HALF, SEPARATE + norms("query_layernorm", "key_layernorm"),
        V_O, f"{ROTATE_HALF}, before norms of one head", fixed_alpha=True,
    ),
    *group(
        "lara_mini", HALF, SEPARATE + HEAD_NORMS, V_O, f"{ROTATE_HALF}, in sliding layers",
        nope=Nope("", "full_attention"),
    ),
    *group(
        "kolibri1", HALF, SEPARATE + HEAD_NORMS, V_O, f"{ROTATE_HALF}, in sliding layers where there are any",
        nope=Nope("", "full_attention", interval=5, only_with="sliding_window"),
    ),
    *group(
        "flint", HALF, SEPARATE + HEAD_NORMS, (*V_O, "softmax_offset", "sinks"), f"{ROTATE_HALF}, in sliding layers",
        nope=Nope("", "full_attention"),
    ),
    *group(
        "muse_glimmer_text muse_spark_text", HALF, SEPARATE, (*V_O, "gate_proj"),
        f"{ROTATE_HALF}, where layer_rope_theta is not 0, after norms without weights",
        nope=Nope(flags="layer_rope_theta", interval=4, from_last=True),
    ),
    *group(
        "beam", HALF, SEPARATE + HEAD_NORMS, (*V_O, "gate_proj", "gate_bias"), f"{ROTATE_HALF}, in sliding layers",
        nope=Nope("", "full_attention"), kinds={"sliding_attention": ""},
    ),
)  # fmt: skip
