"""The family table: one row per model type, read from the model's own code.

Everything is data: no other module asks for a model type by name. Types that are alike share a group; what each config
class uses where config.json is silent lies in ``classes.json``, which ``tools/read_classes.py`` writes. Sources are
files of transformers 5.24.0 under ``models/``; the probe (`models.probe`) checks every row against the class itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ropetool.families.family import (
    HALF,
    INTERLEAVED,
    ONE_HEAD,
    PLAIN,
    ROTARY,
    Family,
    K,
    LocalRope,
    Moved,
    Nope,
    Q,
    V,
)
from ropetool.families.geometry import Each, GeometryKeys, Part, Rows
from ropetool.families.twin_rows import twin_rows
from ropetool.rope.pairing import Pairing

CLASSES: Mapping[str, Mapping[str, Any]] = json.loads(Path(__file__).with_name("classes.json").read_text("utf-8"))

# What a class uses whatever its geometry keys are.
CLASS_SWITCHES = ("rope_theta", "scaled_rope", "use_sliding_window")

SEPARATE = (Moved("q_proj", Q, "q"), Moved("k_proj", K, "k"))
V_O = ("v_proj", "o_proj", "rotary_emb")
PARTIAL = GeometryKeys(rotary=("partial_rotary_factor",))


def norms(q: str, k: str, *, of_all_heads: bool = False) -> tuple[Moved, ...]:
    """Norms between projection and rotation: over one head, or over all heads together."""
    return (Moved(q, Q if of_all_heads else ONE_HEAD), Moved(k, K if of_all_heads else ONE_HEAD))


HEAD_NORMS = norms("q_norm", "k_norm")
FULL_NORMS = norms("q_norm", "k_norm", of_all_heads=True)

MLA = (
    Moved("q_proj", Q, "q"),
    Moved("q_b_proj", Q, "q"),
    Moved("kv_a_proj_with_mqa", (Part.LATENT, Part.ROTARY_ONLY), "k"),
)
MLA_STAYS = ("q_a_proj", "q_a_layernorm", "kv_a_layernorm", "kv_b_proj", "o_proj", "rotary_emb")
MLA_KEYS = GeometryKeys(
    kv_heads=None,
    head_dim=("qk_nope_head_dim", "qk_rope_head_dim"),
    rotary=("qk_rope_head_dim",),
    latent="kv_lora_rank",
    rope_at_end=True,
)
PER_HEAD_QKV: tuple[Rows, ...] = (Each("heads", (ROTARY, ROTARY, PLAIN)),)
FOUR_BLOCKS_QVK: tuple[Rows, ...] = (
    Each("four", (Each("quarter", (ROTARY,)), Each("quarter", (PLAIN,)), Each("quarter", (ROTARY,)))),
)
GATED_Q: tuple[Rows, ...] = (Each("heads", (ROTARY, PLAIN)),)
FULL_LAYERS_ARE_NOPE = Nope(layer_type="full_attention", interval_key="sliding_window_pattern", interval=4)

ROTATE_HALF = "rotate_half over the two halves of the rotary span"
ADJACENT = "rotate_half takes x[..., 0::2] and x[..., 1::2]"


def _group(
    types: str, pairing: Pairing, moves: tuple[Moved, ...], stays: tuple[str, ...], what: str, **shared: Any
) -> Iterator[Family]:
    """Rows that differ in nothing but the class's own values."""
    own = shared.pop("defaults", {})
    keys = shared.get("keys", GeometryKeys())
    read = {keys.kv_heads, *keys.head_dim, *keys.rotary, keys.latent, keys.length, *CLASS_SWITCHES}
    for model_type in types.split():
        facts = CLASSES[model_type]
        module = facts["module"]
        yield Family(
            model_type,
            pairing,
            moves,
            stays,
            f"{module}/modeling_{module}.py: {what}",
            defaults={key: value for key, value in facts.items() if key in read} | own,
            twins=tuple(row.target for row in twin_rows(model_type)),
            **shared,
        )


def _half() -> Iterator[Family]:
    yield from _group(
        "llama mistral gemma gemma2 arcee cwm falcon_h1 granite granitemoe granitemoehybrid granitemoeshared "
        "hyperclovax internlm3 iquestcoder jais2 ministral ministral3 mixtral olmo seed_oss starcoder2 vaultgemma",
        HALF, SEPARATE, V_O, ROTATE_HALF,
    )  # fmt: skip
    yield from _group("gpt_oss granite_swa granitemoe_swa", HALF, SEPARATE, (*V_O, "sinks"), ROTATE_HALF)
    yield from _group("bitnet", HALF, SEPARATE, (*V_O, "attn_sub_norm"), ROTATE_HALF)
    yield from _group(
        "diffllama", HALF, SEPARATE, (*V_O, "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"),
        f"{ROTATE_HALF}; the lambdas are learned scalars, not rows of q or k",
    )  # fmt: skip
    yield from _group(
        "qwen2 qwen2_moe", HALF, SEPARATE, V_O, f"{ROTATE_HALF}; q, k and v have biases",
    )  # fmt: skip
    yield from _group("glm4_moe nemotron solar_open", HALF, SEPARATE, V_O, ROTATE_HALF, keys=PARTIAL)
    yield from _group(
        "phi stablelm", HALF, SEPARATE + norms("q_layernorm", "k_layernorm"), (*V_O, "dense"), ROTATE_HALF,
        keys=PARTIAL,
    )  # fmt: skip
    yield from _group(
        "smollm3", HALF, SEPARATE, V_O, f"{ROTATE_HALF}, in layers where no_rope_layers is 1",
        nope=Nope(flags="no_rope_layers", interval_key="no_rope_layer_interval", interval=4),
    )  # fmt: skip
    yield from _group(
        "qwen3 qwen3_moe", HALF, SEPARATE + HEAD_NORMS, V_O, f"{ROTATE_HALF}, after norms of one head",
    )  # fmt: skip
    yield from _group(
        "apertus dots1 hy_v3", HALF, SEPARATE + HEAD_NORMS, V_O, f"{ROTATE_HALF}, after norms of one head"
    )
    yield from _group(
        "doge", HALF, SEPARATE + HEAD_NORMS, (*V_O, "A", "dt_proj"), f"{ROTATE_HALF}, after norms of one head"
    )
    yield from _group(
        "exaone4 exaone_moe", HALF, SEPARATE + HEAD_NORMS, V_O, f"{ROTATE_HALF}, in sliding layers where there are any",
        nope=Nope("", "full_attention", "sliding_window_pattern", 4, only_with="sliding_window"),
    )  # fmt: skip
    yield from _group(
        "afmoe", HALF, SEPARATE + HEAD_NORMS, (*V_O, "gate_proj"), f"{ROTATE_HALF}, in sliding layers",
        nope=Nope("", "full_attention", "global_attn_every_n_layers", 4),
    )  # fmt: skip
    yield from _group(
        "olmo2 flex_olmo olmoe olmo_hybrid",
        HALF,
        SEPARATE + FULL_NORMS,
        V_O,
        f"{ROTATE_HALF}, after norms of all heads",
    )
    yield from _group(
        "minimax_m2", HALF, SEPARATE + FULL_NORMS, V_O, f"{ROTATE_HALF}, after norms of all heads", keys=PARTIAL
    )
    yield from _group(
        "lfm2 lfm2_moe", HALF, SEPARATE + norms("q_layernorm", "k_layernorm"), ("v_proj", "out_proj", "rotary_emb"),
        f"{ROTATE_HALF}, after norms of one head",
    )  # fmt: skip
    yield from _group(
        "qwen3_next", HALF, (Moved("q_proj", GATED_Q, "q"), Moved("k_proj", K, "k"), *HEAD_NORMS), V_O,
        f"{ROTATE_HALF}; each q head is followed by the rows of its gate", keys=PARTIAL,
    )  # fmt: skip
    yield from _group("minicpm3", HALF, MLA, MLA_STAYS, ROTATE_HALF, keys=MLA_KEYS)


def _two_rotations() -> Iterator[Family]:
    yield from _group(
        "gemma3_text", HALF, SEPARATE + HEAD_NORMS, V_O, f"{ROTATE_HALF}, another base in sliding layers",
        local=LocalRope("sliding_attention", "rope_local_base_freq", 10000.0), defaults={"rope_theta": 1000000.0},
    )  # fmt: skip
    yield from _group(
        "olmo3", HALF, SEPARATE + FULL_NORMS, V_O, f"{ROTATE_HALF}; only full-attention layers are scaled",
        local=LocalRope("sliding_attention", "rope_theta", 500000.0), defaults={"rope_theta": 500000.0},
    )  # fmt: skip


def _half_fused() -> Iterator[Family]:
    yield from _group(
        "gpt_neox", HALF, (Moved("query_key_value", PER_HEAD_QKV, "qk"),),
        ("dense", "rotary_emb", "bias", "masked_bias"), f"{ROTATE_HALF}; rows are [q, k, v] head by head",
        attention="attention",
        # configuration_gpt_neox.py, convert_rope_params_to_dict: rope_theta and partial_rotary_factor at the top level
        # are not read; inside a block they win.
        keys=GeometryKeys(kv_heads=None, rotary=("rotary_pct",)),
        defaults={"rotary_pct": 0.25},
        theta_keys=("rotary_emb_base",),
    )  # fmt: skip
    yield from _group(
        "persimmon", HALF, (Moved("query_key_value", PER_HEAD_QKV, "qk"), *norms("q_layernorm", "k_layernorm")),
        ("dense", "rotary_emb"), f"{ROTATE_HALF}; rows are [q, k, v] head by head",
        keys=GeometryKeys(kv_heads=None, head_dim=(), rotary=("partial_rotary_factor",)),
    )  # fmt: skip
    yield from _group(
        "phi3", HALF, (Moved("qkv_proj", Q + K + V, "qk"),), ("o_proj", "rotary_emb"),
        f"{ROTATE_HALF}; rows are all q heads, all k heads, all v heads",
        keys=PARTIAL,
        methods=frozenset(("default", "longrope", "ntk", "abf")),
        methods_reason="Phi3Config renames any yarn block to longrope, and refuses every type but longrope",
    )  # fmt: skip


def _interleaved() -> Iterator[Family]:
    yield from _group("helium ernie4_5 ernie4_5_moe", INTERLEAVED, SEPARATE, V_O, ADJACENT)
    yield from _group("glm glm4", INTERLEAVED, SEPARATE, V_O, ADJACENT, keys=PARTIAL)
    yield from _group(
        "cohere", INTERLEAVED, SEPARATE + FULL_NORMS, V_O,
        "repeat_interleave of the angles; with use_qk_norm, norms stored as [heads, head_dim]",
    )  # fmt: skip
    yield from _group(
        "cohere2", INTERLEAVED, SEPARATE, V_O, "repeat_interleave of the angles, in sliding layers",
        nope=FULL_LAYERS_ARE_NOPE,
    )  # fmt: skip
    table = "rotate_every_two over rotary_dim; base 10000 in create_sinusoidal_positions"
    fixed = {
        "attention": "attn",
        "keys": GeometryKeys(
            heads="n_head", kv_heads=None, hidden="n_embd", head_dim=(), rotary=("rotary_dim",), length="n_positions"
        ),
        "theta_keys": (),
        "methods": frozenset(("default",)),
        "methods_reason": "the model builds its table with base 10000 and reads no rope key from the config",
    }
    buffers = ("out_proj", "bias", "masked_bias", "causal_mask", "embed_positions")
    yield from _group("gptj", INTERLEAVED, SEPARATE, ("v_proj", *buffers), table, **fixed)
    yield from _group(
        "codegen", INTERLEAVED, (Moved("qkv_proj", FOUR_BLOCKS_QVK, "qk"),), buffers,
        f"{table}; rows are four blocks of [q heads, v heads, k heads], v in the middle", **fixed,
    )  # fmt: skip
    yield from _group(
        "deepseek_v3 axk1 glm4_moe_lite sarvam_mla youtu", INTERLEAVED, MLA, MLA_STAYS,
        "apply_rotary_pos_emb_interleave when config.rope_interleave (default true)",
        keys=MLA_KEYS, pairing_key="rope_interleave",
    )  # fmt: skip


TABLE: Mapping[str, Family] = {
    row.model_type: row for row in (*_half(), *_two_rotations(), *_half_fused(), *_interleaved())
}
