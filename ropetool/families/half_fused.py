"""Rows of types that rotate halves, with q and k in one projection."""

from __future__ import annotations

from ropetool.families.family import HALF, ONE_HEAD, PLAIN, Family, K, Moved, Needs, Q, V
from ropetool.families.geometry import Each, GeometryKeys, Rows
from ropetool.families.parts import (
    HEAD_NORMS,
    PARTIAL,
    PER_GROUP_QKV,
    PER_HEAD_QKV,
    ROTATE_HALF,
    SEPARATE,
    V_O,
    fused,
    group,
    norms,
)

SARVAM_NORMS = (
    Moved("query_layernorm", ONE_HEAD, loaded_as=("q_norm",)),
    Moved("key_layernorm", ONE_HEAD, loaded_as=("k_norm",)),
)
# A gate, then all heads of q, k and v.
GATE_QKV: tuple[Rows, ...] = (Each("heads", (PLAIN,)), *Q, *K, *V)
LONGROPE_ALONE = frozenset(("default", "longrope", "ntk", "abf"))
LISTS_ALONE = ("type", "short_factor", "long_factor")

ROWS: tuple[Family, ...] = (
    *group(
        "gpt_neox", HALF, (Moved("query_key_value", PER_HEAD_QKV, "qk"),),
        ("dense", "rotary_emb", "bias", "masked_bias"), f"{ROTATE_HALF}; rows are [q, k, v] head by head",
        attention="attention",
        # configuration_gpt_neox.py, convert_rope_params_to_dict: rope_theta and partial_rotary_factor at the top level
        # are not read; inside a block they win.
        keys=GeometryKeys(kv_heads=None, rotary=("rotary_pct",)),
        defaults={"rotary_pct": 0.25},
        theta_keys=("rotary_emb_base",),
    ),
    *group(
        "persimmon", HALF, (Moved("query_key_value", PER_HEAD_QKV, "qk"), *norms("q_layernorm", "k_layernorm")),
        ("dense", "rotary_emb"), f"{ROTATE_HALF}; rows are [q, k, v] head by head",
        keys=GeometryKeys(kv_heads=None, head_dim=(), rotary=("partial_rotary_factor",)),
    ),
    *group(
        "phi3", HALF, fused("qkv_proj"), ("o_proj", "rotary_emb"),
        f"{ROTATE_HALF}; rows are all q heads, all k heads, all v heads",
        keys=PARTIAL, only_keys=LISTS_ALONE, methods=LONGROPE_ALONE,
        methods_reason="Phi3Config renames any yarn block to longrope, and refuses every type but longrope",
    ),
    *group(
        "gpt_neox_japanese", HALF, (Moved("query_key_value", PER_HEAD_QKV, "qk"),),
        ("dense", "dense_bias", "rotary_emb"),
        f"{ROTATE_HALF}; rows are [q, k, v] head by head", attention="attention",
        keys=GeometryKeys(kv_heads=None, head_dim=(), rotary=("rotary_pct",)), theta_keys=("rotary_emb_base",),
    ),
    *group(
        "falcon", HALF, (Moved("query_key_value", PER_GROUP_QKV, "qk"),), ("dense", "rotary_emb"),
        f"{ROTATE_HALF}; rows are [q ..., k, v] by key-value head, of which there may be one",
        attention="self_attention",
        keys=GeometryKeys(
            kv_heads="num_kv_heads", head_dim=(), one_kv_head=("multi_query", "new_decoder_architecture")
        ),
        needs=(Needs("alibi", False, False, "it has ALiBi in place of RoPE", "alibi"),),
    ),
    *group(
        "phi4_multimodal", HALF, fused("qkv_proj"), ("o_proj", "rotary_emb"),
        f"{ROTATE_HALF}; rows are all q heads, all k heads, all v heads", keys=PARTIAL,
        only_keys=LISTS_ALONE, methods=LONGROPE_ALONE,
        methods_reason="Phi4MultimodalConfig renames any yarn block to longrope, and refuses every type but longrope",
        towers=frozenset(("embed_tokens_extend",)),
    ),
    *group(
        "dbrx", HALF, fused("Wqkv"), ("out_proj", "rotary_emb"),
        f"{ROTATE_HALF}; rows are all q heads, all k heads, all v heads", attention="attn",
        keys=GeometryKeys(
            heads="n_heads", kv_heads="attn_config.kv_n_heads", hidden="d_model", head_dim=(), length="max_seq_len"
        ),
    ),
    *group(
        "sarvam_moe", HALF,
        (*fused("query_key_value", "q_proj", "k_proj", "v_proj"), *SARVAM_NORMS),
        ("dense", "rotary_emb"), f"{ROTATE_HALF}; rows are all q heads, all k heads, all v heads",
        attention="attention", keys=PARTIAL,
    ),
    *group(
        "gradium_phonon_tts pocket_tts", HALF, fused("in_proj", "q_proj", "k_proj", "v_proj") + SEPARATE,
        (*V_O, "out_proj"), f"{ROTATE_HALF}; on disk one in_proj: all q heads, all k heads, all v heads",
    ),
    *group(
        "molmo2_text", HALF, (*fused("att_proj", "q_proj", "k_proj", "v_proj"), *HEAD_NORMS),
        ("attn_out", "o_proj", "rotary_emb"), f"{ROTATE_HALF}; rows are all q heads, all k heads, all v heads",
    ),
    *group(
        "hrm_text", HALF, (Moved("gqkv_proj", GATE_QKV, "qk", loaded_as=("gate_proj", "q_proj", "k_proj", "v_proj")),),
        ("o_proj", "rotary_emb"), f"{ROTATE_HALF}; on disk one gqkv_proj: a gate, then all heads of q, k and v",
        attention="attn", keys=GeometryKeys(kv_heads=None),
    ),
)  # fmt: skip
