"""Rows of types whose local and global layers rotate differently: a rope block for each kind of layer."""

from __future__ import annotations

from ropetool.families.family import HALF, Family, Moved, Needs, Q
from ropetool.families.parts import (
    ANY_BUT_LONGROPE,
    BLOCK_SHARE,
    FULL_NORMS,
    HEAD_NORMS,
    ROTATE_HALF,
    SEPARATE,
    V_O,
    group,
)

FULL_THEN_SLIDING = {"full_attention": "", "sliding_attention": ""}
FULL_THEN_SLIDING_V4 = {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"}
WIDER_GLOBAL_HEADS = {
    "full_attention": {"instead": {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}}
}
KEY_IS_VALUE = (
    "full-attention layers take v from the rows of k_proj, so its rows cannot move without the columns of o_proj"
)
LOCAL_AND_GLOBAL = f"{ROTATE_HALF}, another base in sliding layers"

ROWS: tuple[Family, ...] = (
    *group(
        "gemma3_text t5gemma2_decoder t5gemma2_text", HALF, SEPARATE + HEAD_NORMS, V_O, LOCAL_AND_GLOBAL,
        kinds=FULL_THEN_SLIDING_V4,
    ),
    *group(
        "olmo3", HALF, SEPARATE + FULL_NORMS, V_O, f"{ROTATE_HALF}; only full-attention layers are scaled",
        kinds={"full_attention": "rope_theta", "sliding_attention": "rope_theta"},
        kind_facts={"sliding_attention": {"theta_lost": True}},
    ),
    *group(
        "gemma3n_text", HALF, SEPARATE + HEAD_NORMS, (*V_O, "v_norm"),
        f"{LOCAL_AND_GLOBAL}; the last layers take k and v from earlier ones", may_lack="k",
        kinds=FULL_THEN_SLIDING_V4,
    ),
    *group(
        "gemma4_text gemma4_unified_text", HALF, SEPARATE + HEAD_NORMS, (*V_O, "v_norm"),
        f"{LOCAL_AND_GLOBAL}; full layers turn the first pairs of wider heads (proportional)", may_lack="k",
        kinds=FULL_THEN_SLIDING, kind_facts=WIDER_GLOBAL_HEADS, defaults={"global_head_dim": 512},
        needs=(Needs("attention_k_eq_v", False, False, KEY_IS_VALUE),),
    ),
    *group(
        "diffusion_gemma_text", HALF, SEPARATE + HEAD_NORMS, (*V_O, "v_norm"),
        f"{LOCAL_AND_GLOBAL}; full layers turn the first pairs of wider heads, and take v from k",
        kinds=FULL_THEN_SLIDING, kind_facts=WIDER_GLOBAL_HEADS, defaults={"global_head_dim": 512},
        refusal=KEY_IS_VALUE,
    ),
    *group(
        "embedding_gemma2_text", HALF, SEPARATE + HEAD_NORMS, (*V_O, "v_norm"),
        f"{LOCAL_AND_GLOBAL}; full layers have wider heads", kinds=FULL_THEN_SLIDING, kind_facts=WIDER_GLOBAL_HEADS,
        methods=ANY_BUT_LONGROPE,
        methods_reason="EmbeddingGemma2TextConfig wants one head_dim for layers that differ in it when it checks "
        "longrope's lists",
    ),
    *group("ultrabert cohere_compass_text", HALF, SEPARATE, V_O, LOCAL_AND_GLOBAL, kinds=FULL_THEN_SLIDING),
    *group("mellum", HALF, SEPARATE + HEAD_NORMS, V_O, LOCAL_AND_GLOBAL, kinds=FULL_THEN_SLIDING),
    *group(
        "dory", HALF, (*SEPARATE, Moved("sqk", Q, tensors=("",))), (*V_O, "g_proj", "s_gate"),
        f"{LOCAL_AND_GLOBAL}; q is scaled by sqk after it", kinds=FULL_THEN_SLIDING,
    ),
    *group(
        "neomme", HALF, SEPARATE, (*V_O, "output_projection", "exclusive_self_attention"),
        f"{LOCAL_AND_GLOBAL}, and another share of the head, after norms without weights", keys=BLOCK_SHARE,
        kinds=FULL_THEN_SLIDING,
    ),
    *group(
        "laguna lfm3 step3p5", HALF, SEPARATE + HEAD_NORMS, (*V_O, "g_proj", "gate_proj"),
        f"{LOCAL_AND_GLOBAL}, and another share of the head", keys=BLOCK_SHARE, kinds=FULL_THEN_SLIDING,
    ),
    *group(
        "mimo_v2_flash", HALF, SEPARATE, (*V_O, "attention_sink_bias"),
        f"{LOCAL_AND_GLOBAL}; sliding layers have twice the key-value heads", keys=BLOCK_SHARE,
        kinds=FULL_THEN_SLIDING, kind_facts={"sliding_attention": {"kv_factor": 2}},
    ),
)  # fmt: skip
