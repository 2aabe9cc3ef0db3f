"""Rows of types with multi-head latent attention (MLA), and of sparse attention with an indexer."""

from __future__ import annotations

from dataclasses import replace

from ropetool.families.family import HALF, INTERLEAVED, ONE_HEAD, ROTARY, Family, K, Moved, Nope, Q, Site
from ropetool.families.geometry import Each, GeometryKeys, Part, Rows
from ropetool.families.parts import (
    ADJACENT,
    ANY_BUT_LONGROPE,
    BLOCK_SHARE,
    CLASSES,
    GATED_Q,
    HEAD_NORMS,
    MLA,
    MLA_KEYS,
    MLA_STAYS,
    PARTIAL,
    ROTATE_HALF,
    SEPARATE,
    V_O,
    group,
)
from ropetool.rope.pairing import Pairing

# A q head with its rotary part last, then the rows of its gate.
GATED_LORA_Q: tuple[Rows, ...] = (Each("heads", (ROTARY, Part.VALUE)),)
# The scorer of sparse attention: a few query heads over one key head, with a LayerNorm on the key.
SCORER = (
    Moved("wq_b", Q, "q"),
    Moved("wk", ONE_HEAD, "k"),
    Moved("k_norm", ONE_HEAD),
)
SCORER_STAYS = ("weights_proj", "q_input_norm", "ssmax_scaling", "softmax_scaling", "rotary_emb")
# [rotated, unrotated] within a scorer's head, and the other order.
SCORER_KEYS = GeometryKeys(
    heads="index_n_heads", kv_heads=None, head_dim=("index_head_dim",), rotary=("qk_rope_head_dim",)
)
SCORER_KEYS_ROPE_LAST = replace(SCORER_KEYS, rope_at_end=True)


def indexer(
    keys: GeometryKeys = SCORER_KEYS, *, within: str = "self_attn", pairing: Pairing | None = None
) -> tuple[Site]:
    """The indexer of a sparse attention, inside the module ``within``."""
    return (Site(f"{within}.indexer", SCORER, SCORER_STAYS, keys, pairing),)


SLIDING_LATENT = {
    key: f"swa_{key}" for key in ("num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank")
}
BY_KEY = "apply_rotary_pos_emb_interleave when config.rope_interleave (default true)"
COMPLEX = "complex multiplication of adjacent pairs (freqs_cis)"

ROWS: tuple[Family, ...] = (
    *group("minicpm3", HALF, MLA, MLA_STAYS, ROTATE_HALF, keys=MLA_KEYS),
    *group(
        "deepseek_v3 axk1 glm4_moe_lite sarvam_mla youtu", INTERLEAVED, MLA, MLA_STAYS, BY_KEY,
        keys=MLA_KEYS, pairing_key="rope_interleave",
    ),
    *group(
        "mistral4", INTERLEAVED, MLA, MLA_STAYS, BY_KEY, keys=replace(MLA_KEYS, scales_by_share=True),
        pairing_key="rope_interleave", methods=frozenset(("linear", "dynamic", "yarn", "longrope", "llama3")),
        methods_reason="Mistral4RotaryEmbedding computes the default type over the whole head, of which only "
        "qk_rope_head_dim rows turn, and does not run",
    ),
    *group("deepseek_v2", INTERLEAVED, MLA, MLA_STAYS, COMPLEX, keys=MLA_KEYS),
    *group(
        "longcat_flash", INTERLEAVED, MLA, MLA_STAYS, f"{ADJACENT}; two attentions in each layer",
        attention="self_attn.0", others=(Site("self_attn.1", MLA, MLA_STAYS, MLA_KEYS),), keys=MLA_KEYS,
    ),
    *group(
        "bailing_hybrid", INTERLEAVED, MLA,
        (*MLA_STAYS, "dense", "g_proj"), f"{ADJACENT}; linear-attention layers are not rotated, and have a q_proj too",
        attention="attention", keys=replace(MLA_KEYS, length="model_max_length"),
        defaults={"model_max_length": CLASSES["bailing_hybrid"]["max_position_embeddings"]},
        mixers=frozenset(("linear_attention",)),
    ),
    *group(
        "deepseek_v32", INTERLEAVED, MLA, MLA_STAYS, f"{COMPLEX}; the indexer rotates halves",
        keys=MLA_KEYS, others=indexer(pairing=Pairing.HALF),
    ),
    *group(
        "axk2", INTERLEAVED, (*MLA[:1], Moved("q_b_proj", GATED_LORA_Q, "q", loaded_as=("q_gate_proj",)), MLA[2]),
        (*MLA_STAYS, "q_gate_proj"), f"{ADJACENT}; each q head is followed by its gate; the indexer rotates halves",
        keys=replace(MLA_KEYS, value="v_head_dim"), others=indexer(pairing=Pairing.HALF),
    ),
    *group(
        "glm_moe_dsa", INTERLEAVED, MLA, MLA_STAYS, f"{ADJACENT}, in the indexer too",
        keys=MLA_KEYS, others=indexer(),
    ),
    *group(
        "dots3_note_text", INTERLEAVED, (*MLA, Moved("k_rope_only_layernorm", (Part.ROTARY_ONLY,))),
        (*MLA_STAYS, "g_proj"), f"{ADJACENT}, in the indexer too, after a norm of the key's rotary part",
        keys=MLA_KEYS, others=indexer(),
        kinds={"indexed_attention": "rope_theta", "sliding_attention": "swa_rope_theta"},
        kind_facts={
            "indexed_attention": {"scaled_by_flat": False}, "sliding_attention": {"instead": SLIDING_LATENT},
        },
        methods=ANY_BUT_LONGROPE,
        methods_reason="Dots3NoteTextConfig wants one head_dim for layers that differ in it when it checks longrope's "
        "lists",
    ),
    *group(
        "hy_v4", HALF, MLA, (*MLA_STAYS, "linear_gate", "learnable_sink_param"),
        f"{ROTATE_HALF}, in the indexer too", keys=MLA_KEYS, others=indexer(SCORER_KEYS_ROPE_LAST),
    ),
    *group(
        "hy_v4_vl_text", INTERLEAVED, MLA, (*MLA_STAYS, "linear_gate", "learnable_sink_param"),
        f"{ADJACENT}, in the indexer too", keys=MLA_KEYS, others=indexer(SCORER_KEYS_ROPE_LAST),
    ),
    *group(
        "mistral_large4_text", INTERLEAVED,
        (Moved("wq", Q, "q", loaded_as=("q_proj",)),
         Moved("wkv_a_with_mqa", (Part.LATENT, Part.ROTARY_ONLY), "k", loaded_as=("kv_a_proj_with_mqa",))),
        ("wkv_b", "kv_a_norm", "o_proj", "ssmax_scaling", "softmax_scaling"),
        f"{ADJACENT}, in the indexer too, but for some layers",
        attention="attention", keys=MLA_KEYS, others=indexer(within="attention"), may_lack="k", learned=True,
        nope=Nope(flags="no_rope_layers", interval_key="no_rope_layer_interval", interval=4, unmoved=True),
    ),
    *group(
        "minimax_m3_vl_text", HALF, SEPARATE + HEAD_NORMS, V_O,
        f"{ROTATE_HALF}, after norms of one head, in the indexer too",
        keys=PARTIAL,
        others=(
            Site(
                "self_attn.indexer", (*SEPARATE[:1], Moved("k_proj", ONE_HEAD, "k"), *HEAD_NORMS), (),
                GeometryKeys(heads="index_n_heads", kv_heads=None, head_dim=("index_head_dim",)),
            ),
        ),
    ),
    *group(
        "qwen4_exp_text", HALF, (Moved("q_proj", GATED_Q, "q"), Moved("k_proj", K, "k"), *HEAD_NORMS), V_O,
        f"{ROTATE_HALF}; each q head is followed by the rows of its gate", keys=PARTIAL,
        others=(Site("self_attn.indexer", (), ("index_qk_proj", "q_layernorm", "k_layernorm"), PARTIAL, Pairing.HALF),),
    ),
    *group(
        "deepseek_v4", INTERLEAVED, (Moved("wq_b", Q, "q"), Moved("wkv", ONE_HEAD, "k")), (), COMPLEX, attention="attn",
        keys=GeometryKeys(share_in_block=True, rope_at_end=True),
        kinds={"compress": "compress_rope_theta", "main": "rope_theta"},
        kind_facts={"compress": {"added_to_flat_yarn": {"attention_factor": 1.0}}},
        methods=ANY_BUT_LONGROPE - {"dynamic"},
        methods_reason="compressed keys are turned by the length of their own positions, queries by that of all "
        "tokens, so frequencies that change with the length would differ between the two",
        refusal="one latent is both k and v, and is rotated back after the attention: v turns with k, so the layout "
        "cannot change without the columns of the output projection",
    ),
    *group(
        "zaya", HALF, (Moved("qkv_proj.q_proj", Q, "q"), Moved("qkv_proj.k_proj", K, "k")), (), ROTATE_HALF,
        keys=BLOCK_SHARE, kinds={"hybrid": "", "hybrid_sliding": ""},
        unread="each row of q_proj reaches several slots of q",
        refusal="convolutions mix q and k after the projection and before the rotation, so no permutation of "
        "projection rows changes the layout",
    ),
)  # fmt: skip
