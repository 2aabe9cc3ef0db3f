"""Rows of encoders."""

from __future__ import annotations

from ropetool.families.family import HALF, INTERLEAVED, Family, K, Moved, Needs, Q
from ropetool.families.geometry import GeometryKeys
from ropetool.families.parts import (
    FULL_NORMS,
    ROTATE_HALF,
    SEPARATE,
    V_O,
    fused,
    group,
)

BERT = (Moved("query", Q, "q"), Moved("key", K, "k"))
BERT_STAYS = ("value", "rotary_embeddings")
QKV = ("q_proj", "k_proj", "v_proj")
FUSED_ON_DISK = f"{ROTATE_HALF}; on disk one projection: all q heads, all k heads, all v heads"
VALUE_TURNS = (
    "it rotates v as well as q and k, so its layout cannot change without the columns of the output projection"
)

LOCAL_AND_GLOBAL_THETA = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
# A flat rope_scaling goes into both.
BOTH_SCALED = {layers: {"scaled_by_flat": True} for layers in LOCAL_AND_GLOBAL_THETA}

ROWS: tuple[Family, ...] = (
    *group(
        "esm", HALF, BERT, BERT_STAYS, ROTATE_HALF, attention="attention.self", keys=GeometryKeys(kv_heads=None),
        blocks=(), methods=frozenset(("default", "ntk", "abf")),
        methods_reason="its class reads rope_theta alone, and no rope block",
        needs=(Needs("position_embedding_type", "rotary", "absolute", "it has learned positions", "learned"),),
    ),
    *group(
        "roformer", INTERLEAVED, BERT, BERT_STAYS, "apply_rotary_position_embeddings pairs adjacent rows; base 10000",
        attention="attention.self", keys=GeometryKeys(kv_heads=None), theta_keys=(),
        methods=frozenset(("default",)),
        methods_reason="the model builds its table with base 10000 and reads no rope key from the config",
        needs=(Needs("rotary_value", False, False, VALUE_TURNS),),
    ),
    *group(
        "esmc", HALF, SEPARATE + FULL_NORMS, V_O, f"{ROTATE_HALF}, after LayerNorms of all heads",
        keys=GeometryKeys(kv_heads=None),
    ),
    *group(
        "nomic_bert", HALF, fused("Wqkv", *QKV), ("out_proj",), FUSED_ON_DISK, attention="attn",
        keys=GeometryKeys(kv_heads=None),
    ),
    *group(
        "jina_embeddings_v3", HALF, fused("Wqkv", *QKV), ("out_proj",), FUSED_ON_DISK, attention="mixer",
        keys=GeometryKeys(kv_heads=None),
    ),
    *group(
        "gte", HALF, fused("qkv_proj", *QKV), ("o_proj",), FUSED_ON_DISK, attention="attention",
        keys=GeometryKeys(kv_heads=None),
    ),
    *group(
        "modernbert", HALF, fused("Wqkv"), ("Wo", "rotary_emb"),
        f"{ROTATE_HALF}, another base in sliding layers; rows are all q heads, all k heads, all v heads",
        attention="attn", keys=GeometryKeys(kv_heads=None), kinds=LOCAL_AND_GLOBAL_THETA, kind_facts=BOTH_SCALED,
    ),
    *group(
        "modernbert-decoder", HALF, SEPARATE, ("v_proj", "Wo", "rotary_emb"),
        f"{ROTATE_HALF}, another base in sliding layers", attention="attn", keys=GeometryKeys(kv_heads=None),
        kinds=LOCAL_AND_GLOBAL_THETA, kind_facts=BOTH_SCALED,
    ),
    *group(
        "clvp_encoder", HALF, SEPARATE, ("v_proj", "out_proj"), f"{ROTATE_HALF}; v turns too",
        keys=GeometryKeys(kv_heads=None), theta_keys=(), refusal=VALUE_TURNS,
    ),
)  # fmt: skip
