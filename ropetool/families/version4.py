"""What a class of transformers 4.57 does not compute though the class of version 5 does: read there, and run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BASES = frozenset(("ntk", "abf"))
SCALED = frozenset(("linear", "dynamic", "yarn", "longrope", "llama3"))


@dataclass(frozen=True)
class Untaken:
    """Methods that a class of transformers 4.57.6 passes over, or refuses when it loads; and why, in a clause."""

    methods: frozenset[str]
    reason: str


_TWO_KEYS = "its config refuses a rope_scaling with other keys than type and factor"

UNTAKEN: Mapping[str, Untaken] = {
    "chameleon": Untaken(SCALED - {"linear", "dynamic"}, _TWO_KEYS),
    "olmo": Untaken(SCALED - {"linear", "dynamic"}, _TWO_KEYS),
    "olmo2": Untaken(SCALED - {"linear", "dynamic"}, _TWO_KEYS),
    "dbrx": Untaken(SCALED | BASES, "its class reads attn_config.rope_theta alone, and no rope block"),
    "llama4_text": Untaken(SCALED - {"llama3"}, "its class takes every block for llama3, and fails without its keys"),
    "hunyuan_v1_dense": Untaken(frozenset(("dynamic",)), "its class wants alpha in a dynamic block, and fails without"),
    "hunyuan_v1_moe": Untaken(frozenset(("dynamic",)), "its class wants alpha in a dynamic block, and fails without"),
    "nemotron": Untaken(SCALED, "its class passes over rope_scaling"),
    "idefics": Untaken(SCALED | BASES, "its class computes with base 10000, and reads no rope key from the config"),
    "esm": Untaken(BASES, "its class computes with base 10000, and reads no rope key from the config"),
    "modernbert-decoder": Untaken(SCALED | BASES, "its class turns the sliding layers by the base of the global ones"),
}
