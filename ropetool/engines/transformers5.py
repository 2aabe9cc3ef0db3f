"""transformers 5: how its configs make rope keys of both styles into one block, and what its classes compute from it.

Read in modeling_rope_utils.py (`convert_rope_params_to_dict`, `standardize_rope_params`, `validate_rope`, the functions
of ROPE_INIT_FUNCTIONS) of version 5.24.0, and run: tests/engines/test_transformers.py builds the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines.dialect import YARN_KEYS, Dialect, Found, Place, TypeRead
from ropetool.engines.heard import Case, Heard, Listener, Refused, pairing_heard
from ropetool.engines.listen import heard_flat, heard_turn
from ropetool.engines.names import EngineName, Origin
from ropetool.families.geometry import SHARE

BLOCK, TOP, LENGTH = Place.BLOCK, Place.TOP, Place.LENGTH
FLAT_ORIGINAL = (TOP, BLOCK, LENGTH)  # a top-level one beats the block's own; without either, the maximum is filled in
NESTED_ORIGINAL = (BLOCK, LENGTH)


def _types(original: tuple[Place | int, ...], yarn_keys: tuple[str, ...]) -> Mapping[str, TypeRead]:
    return {
        "default": TypeRead("default"),
        "linear": TypeRead("linear", ("factor",)),
        "dynamic": TypeRead("dynamic", ("factor",)),
        "yarn": TypeRead("yarn", ("factor",), yarn_keys, {"factor": None, "truncate": False}, original),
        "longrope": TypeRead(
            "longrope", ("short_factor", "long_factor"), ("factor", "attention_factor"), original=original
        ),
        "llama3": TypeRead("llama3", ("factor", "low_freq_factor", "high_freq_factor"), original=original),
        "proportional": TypeRead("proportional", (), ("factor", SHARE)),
    }


FLAT = Dialect(
    ("rope_scaling", "rope_parameters"), _types(FLAT_ORIGINAL, YARN_KEYS), theta=(BLOCK, TOP), share=(BLOCK, TOP),
    null=True,
)  # fmt: skip
# _compute_yarn_parameters asks the whole of rope_parameters for truncate, where blocks per layer type have none.
NESTED = Dialect(
    (), _types(NESTED_ORIGINAL, tuple(key for key in YARN_KEYS if key != "truncate")), theta=(BLOCK, TOP),
    share=(BLOCK,), null=True,
)  # fmt: skip


def hear(case: Case) -> Heard:
    """What transformers 5 makes of a config."""
    return hear_by(FLAT, NESTED, case)


def hear_by(flat: Dialect, nested: Dialect, case: Case) -> Heard:
    """What a program makes of a config that its classes get from transformers 5, and compute by types of their own."""
    family = case.reading.family
    if family.kinds:
        return _hear_kinds(nested, case)
    share = flat.share if SHARE in family.keys.rotary else (BLOCK,)
    blocks = tuple(key for key in flat.blocks if key in family.blocks)
    dialect = replace(flat, blocks=blocks, share=share)
    theta_keys = family.theta_keys or ("",)
    heard = heard_flat(dialect, case, theta_keys, family.theta_default, **_common(case))
    return _within_methods(case, heard)


def _common(case: Case) -> dict[str, Any]:
    return {"pairing": pairing_heard(EngineName.TRANSFORMERS, case), "length": case.reading.length}


def _within_methods(case: Case, heard: Heard) -> Heard:
    """Classes that cannot take every method refuse the others."""
    methods = case.reading.family.methods
    for turn in heard.turns:
        if methods is not None and turn.scaling.name not in methods:
            return replace(heard, turns=(), refusal=case.reading.family.methods_reason)
    return heard


def _hear_kinds(dialect: Dialect, case: Case) -> Heard:
    """Classes with a block per layer type; what stands flat in rope_parameters is not looked at."""
    top, family = case.text, case.reading.family
    blocks = top.get(BLOCKS[0]) if isinstance(top.get(BLOCKS[0]), Mapping) else {}
    scaling = top.get(BLOCKS[1])
    if scaling and not any(kind.theta_key for kind in family.kinds):
        return Heard(unknown=f"its class for {family.model_type} has no place for {BLOCKS[1]}", **_common(case))
    turns, passed_over = [], []
    for index, kind in enumerate(family.kinds):
        own = (blocks or {}).get(kind.layer_type)
        block = dict(own) if own else {key: value for key, value in kind.default.items() if key != "rope_theta"}
        if index == 0 and scaling:
            block.update(scaling)
        found = Found(f"{BLOCKS[0]}.{kind.layer_type}", block, top, case.reading.length)
        try:
            turn, unread = heard_turn(
                dialect, case, found, (kind.theta_key,), kind.default.get("rope_theta", family.theta_default), index
            )
        except Refused as refused:
            return Heard(refusal=str(refused), **_common(case))
        turns.append(turn)
        passed_over += [key for key in unread if key not in BLOCKS]
    flat = [key for key in (blocks or {}) if key not in {kind.layer_type for kind in family.kinds}]
    passed_over += [f"{BLOCKS[0]}.{key}" for key in flat]
    return _within_methods(case, Heard(turns=tuple(turns), ignores=tuple(passed_over), **_common(case)))


ROW = Listener(
    EngineName.TRANSFORMERS, "5.24.0", "modeling_rope_utils.py and models/*/configuration_*.py", Origin.RAN, hear
)  # fmt: skip
