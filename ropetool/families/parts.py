"""The parts that rows of the family table share: projections, norms, geometry keys, and groups of like types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ropetool.families.cannot import cannot_of
from ropetool.families.family import ONE_HEAD, PLAIN, ROTARY, Family, K, Kind, Moved, Q, V
from ropetool.families.geometry import Each, GeometryKeys, Part, Rows
from ropetool.families.twin_rows import twin_rows
from ropetool.rope.pairing import Pairing

CLASSES: Mapping[str, Mapping[str, Any]] = json.loads(Path(__file__).with_name("classes.json").read_text("utf-8"))

# What a class uses whatever its geometry keys are.
CLASS_SWITCHES = ("rope_theta", "scaled_rope", "own_block", "use_sliding_window")

SEPARATE = (Moved("q_proj", Q, "q"), Moved("k_proj", K, "k"))
V_O = ("v_proj", "o_proj", "rotary_emb")
PARTIAL = GeometryKeys(rotary=("partial_rotary_factor",))
# The share is read inside the rope block only.
BLOCK_SHARE = GeometryKeys(share_in_block=True)


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
PER_GROUP_QKV: tuple[Rows, ...] = (Each("kv_heads", (Each("group", (ROTARY,)), ROTARY, PLAIN)),)
FOUR_BLOCKS_QVK: tuple[Rows, ...] = (
    Each("four", (Each("quarter", (ROTARY,)), Each("quarter", (PLAIN,)), Each("quarter", (ROTARY,)))),
)
GATED_Q: tuple[Rows, ...] = (Each("heads", (ROTARY, PLAIN)),)

# What a class can take that builds the frequencies of the default type alone: another base.
BASE_ALONE = frozenset(("default", "ntk", "abf"))
NONE_AT_ALL = frozenset(("default",))
ANY_BUT_LONGROPE = frozenset(("default", "linear", "dynamic", "yarn", "llama3", "ntk", "abf"))
FACTOR_ALONE = ("type", "factor")

ROTATE_HALF = "rotate_half over the two halves of the rotary span"
ADJACENT = "rotate_half takes x[..., 0::2] and x[..., 1::2]"


def fused(module: str, *loaded_as: str) -> tuple[Moved, ...]:
    """All q heads, all k heads, all v heads in one projection."""
    return (Moved(module, Q + K + V, "qk", loaded_as=loaded_as),)


def _kinds(model_type: str, theta_keys: Mapping[str, str], facts: Mapping[str, Mapping[str, Any]]) -> tuple[Kind, ...]:
    """The kinds of layers of a type, the scaled one first, with the class's own blocks.

    A class with a version-4 name for the base takes a flat ``rope_scaling`` for the first kind, if not told otherwise.
    """
    blocks = CLASSES[model_type].get("blocks", {})
    first = next(iter(theta_keys), None)
    return tuple(
        Kind(
            layer_type,
            blocks.get(layer_type, {}),
            key,
            **{"scaled_by_flat": bool(key) and layer_type == first, **facts.get(layer_type, {})},
        )
        for layer_type, key in theta_keys.items()
    )


def _keys_read(keys: GeometryKeys) -> set[str]:
    named = (
        keys.kv_heads,
        *keys.head_dim,
        *keys.rotary,
        keys.latent,
        keys.value,
        keys.length,
        keys.experts,
        keys.heads,
    )
    return {str(key) for key in named if key} | ({"partial_rotary_factor"} if keys.share_in_block else set())


def group(
    types: str, pairing: Pairing, moves: tuple[Moved, ...], stays: tuple[str, ...], what: str, **shared: Any
) -> Iterator[Family]:
    """Rows that differ in nothing but the class's own values, which `CLASSES` has.

    ``kinds`` names the types of layers with a rope block each, and the top-level key of each base; ``kind_facts`` are
    fields of `Kind` by layer type.
    """
    own, theta_keys = shared.pop("defaults", {}), shared.pop("kinds", {})
    kind_facts = shared.pop("kind_facts", {})
    all_keys = [shared.get("keys", GeometryKeys()), *(site.keys for site in shared.get("others", ()))]
    read = set(CLASS_SWITCHES).union(*map(_keys_read, all_keys))
    read |= {other for facts in kind_facts.values() for other in facts.get("instead", {}).values()}
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
            kinds=_kinds(model_type, theta_keys, kind_facts),
            cannot=cannot_of(model_type),
            twins=tuple(row.target for row in twin_rows(model_type)),
            **shared,
        )
