"""Rows of encoders."""

from __future__ import annotations

from collections.abc import Iterator

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


def rows() -> Iterator[Family]:
    """The rows."""
    yield from group(
        "esm", HALF, BERT, BERT_STAYS, ROTATE_HALF, attention="attention.self", keys=GeometryKeys(kv_heads=None),
        needs=(Needs("position_embedding_type", "rotary", "absolute", "it has learned positions", "learned"),),
    )  # fmt: skip
    yield from group(
        "roformer", INTERLEAVED, BERT, BERT_STAYS, "apply_rotary_position_embeddings pairs adjacent rows; base 10000",
        attention="attention.self", keys=GeometryKeys(kv_heads=None), theta_keys=(),
        methods=frozenset(("default",)),
        methods_reason="the model builds its table with base 10000 and reads no rope key from the config",
        needs=(Needs("rotary_value", False, False, VALUE_TURNS),),
    )  # fmt: skip
    yield from group(
        "esmc", HALF, SEPARATE + FULL_NORMS, V_O, f"{ROTATE_HALF}, after LayerNorms of all heads",
        keys=GeometryKeys(kv_heads=None),
    )  # fmt: skip
    yield from group(
        "nomic_bert", HALF, fused("Wqkv", *QKV), ("out_proj",), FUSED_ON_DISK, attention="attn",
        keys=GeometryKeys(kv_heads=None),
    )  # fmt: skip
    yield from group(
        "jina_embeddings_v3", HALF, fused("Wqkv", *QKV), ("out_proj",), FUSED_ON_DISK, attention="mixer",
        keys=GeometryKeys(kv_heads=None),
    )  # fmt: skip
    yield from group(
        "gte", HALF, fused("qkv_proj", *QKV), ("o_proj",), FUSED_ON_DISK, attention="attention",
        keys=GeometryKeys(kv_heads=None),
    )  # fmt: skip
    thetas = {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"}
    yield from group(
        "modernbert", HALF, fused("Wqkv"), ("Wo", "rotary_emb"),
        f"{ROTATE_HALF}, another base in sliding layers; rows are all q heads, all k heads, all v heads",
        attention="attn", keys=GeometryKeys(kv_heads=None), kinds=thetas,
    )  # fmt: skip
    yield from group(
        "modernbert-decoder", HALF, SEPARATE, ("v_proj", "Wo", "rotary_emb"),
        f"{ROTATE_HALF}, another base in sliding layers", attention="attn", keys=GeometryKeys(kv_heads=None),
        kinds=thetas,
    )  # fmt: skip
    yield from group(
        "clvp_encoder", HALF, SEPARATE, ("v_proj", "out_proj"), f"{ROTATE_HALF}; v turns too",
        keys=GeometryKeys(kv_heads=None), theta_keys=(), refusal=VALUE_TURNS,
    )  # fmt: skip
