"""transformers 4: it reads the top-level base and rope_scaling alone; how, differs by class.

Read in modeling_rope_utils.py and models/*/ of version 4.57.6, and run: tools/read_transformers4.py asked each class
how it takes a block, and tests/engines/test_transformers.py builds the classes under that version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines.dialect import ORIGINAL, YARN_KEYS, Dialect, Place, TypeRead, find_block
from ropetool.engines.heard import Case, Heard, Listener, Refused, Turn, answer, pairing_heard
from ropetool.engines.listen import checked, heard_turn
from ropetool.engines.names import EngineName, Origin
from ropetool.engines.transformers5 import fixed_alpha
from ropetool.engines.transformers_classes import ClassRow, read_version
from ropetool.families.family import Kind
from ropetool.rope.frequencies import Default, LongRope, Scaling

VERSION = read_version(4)
BLOCK, TOP, LENGTH = Place.BLOCK, Place.TOP, Place.LENGTH


class Local(Enum):
    """What the layers of the other kinds are built from."""

    BASE = "a base of their own"
    BASE_AND_BLOCK = "a base of their own and the block"
    SAME = "the same base and block"


# modeling_modernbert.py changes the base alone; modeling_modernbert_decoder.py makes both tables from one config, so
# its local layers turn by the global base. Elsewhere (Gemma 3, Olmo 3) the block is taken away too.
LOCAL = {"modernbert": Local.BASE_AND_BLOCK, "modernbert-decoder": Local.SAME}


def _longrope(scaling: Scaling, case: Case) -> Scaling:
    """_compute_longrope_parameters: beside a top-level original length, max / original beats the block's factor."""
    original = VERSION.rows[case.reading.family.model_type].top(case).get(ORIGINAL)
    if not isinstance(scaling, LongRope):
        return scaling
    if original and case.reading.length:
        return replace(scaling, factor=case.reading.length / original, original_length=int(original))
    block = case.text.get(BLOCKS[1]) or {}
    if scaling.explicit_attention_factor is None and block.get("factor") is None:
        raise Refused(f"{BLOCKS[1]} has no factor, and there is no top-level {ORIGINAL} to take it from")
    return scaling


TYPES: Mapping[str, TypeRead] = {
    "default": TypeRead("default"),
    "linear": TypeRead("linear", ("factor",)),
    "dynamic": TypeRead("dynamic", ("factor",), computes=fixed_alpha),
    "yarn": TypeRead(
        "yarn", ("factor",), YARN_KEYS, {"truncate": False, ORIGINAL: None}, original=(BLOCK, LENGTH)
    ),
    "longrope": TypeRead(
        "longrope", ("short_factor", "long_factor"), ("factor", "attention_factor"), {ORIGINAL: None},
        original=(TOP, LENGTH), computes=_longrope,
    ),
    "llama3": TypeRead("llama3", ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)),
}  # fmt: skip
DIALECT = Dialect((BLOCKS[1],), TYPES, theta=(TOP,), share=(TOP,), null=True, unnamed=None, empty=True)

# configuration_phi3.py, configuration_olmo.py, configuration_olmo2.py, _rope_scaling_validation: a block must have
# these keys and no other, and one of these types.
PHI3 = ("type", "short_factor", "long_factor")
OLMO = ("type", "factor")
EXACTLY: Mapping[str, tuple[str, ...]] = {"phi3": PHI3, "phi4_multimodal": PHI3, "olmo": OLMO, "olmo2": OLMO}
ONLY_TYPES: Mapping[tuple[str, ...], Mapping[str, TypeRead]] = {
    PHI3: dict.fromkeys(("longrope", "su", "yarn"), TYPES["longrope"]),
    OLMO: {name: TYPES[name] for name in ("linear", "dynamic")},
}


def hear(case: Case) -> Heard:
    """What transformers 4 makes of a config."""
    reading = case.reading
    common: dict[str, Any] = {
        "pairing": pairing_heard(EngineName.TRANSFORMERS, case), "length": reading.length,
    }  # fmt: skip
    own_type = reading.family.model_type
    row = VERSION.rows.get(own_type)
    if not VERSION.has(reading.model_type):
        return Heard(refusal=f"it has no model type {reading.model_type}", **common)
    if row is None:
        return Heard(unknown=f"its class for {own_type} was not read", **common)
    if row.names is None and own_type not in EXACTLY and case.text.get(BLOCKS[1]):
        return Heard(unknown=f"how its class for {own_type} takes {BLOCKS[1]} was not read", **common)
    try:
        turns, passed_over = _turns(case, row)
    except Refused as refused:
        return answer(refused, **common)
    return Heard(turns=turns, ignores=passed_over, **common)


def _turns(case: Case, row: ClassRow) -> tuple[tuple[Turn, ...], tuple[str, ...]]:
    family = case.reading.family
    dialect = _dialect(family.model_type, row)
    found = find_block(dialect, row.top(case), case.reading.length)
    if row.block and BLOCKS[1] not in case.text:
        found = replace(found, where="its own block", block=row.block)
    theta_key = family.kinds[0].theta_key if family.kinds else (*family.theta_keys, "")[0]
    default = row.theta if row.theta is not None else family.theta_default
    first, passed_over = heard_turn(dialect, case, found, (theta_key,), default)
    row.check_head_dim(first, case)
    if not family.kinds:
        return tuple(replace(first, layers=rotation.layers) for rotation in case.reading.rotations), passed_over
    others = enumerate(family.kinds[1:], start=1)
    local = (Turn(kind.layer_type, _local(case, first, kind, default), case.width(i, None)) for i, kind in others)
    return (first, *local), passed_over


def _local(case: Case, first: Turn, kind: Kind, default: float) -> Scaling:
    """How the layers of another kind than the first turn."""
    family = case.reading.family
    built_from = LOCAL.get(family.model_type, Local.BASE)
    if built_from is Local.SAME:
        return first.scaling
    same_key = kind.theta_key == family.kinds[0].theta_key
    own_default = default if same_key else kind.default.get("rope_theta", default)
    theta = checked(kind.theta_key, case.text.get(kind.theta_key) or own_default)
    return replace(first.scaling, theta=theta) if built_from is Local.BASE_AND_BLOCK else Default(theta)


def _dialect(model_type: str, row: ClassRow) -> Dialect:
    exactly = EXACTLY.get(model_type)
    if exactly:
        return replace(DIALECT, names=("type",), types=ONLY_TYPES[exactly], exactly=exactly)
    types = {**TYPES, **{other: TYPES[name] for other, name in row.spelled.items()}}
    blocks = DIALECT.blocks if row.names else ()
    return replace(DIALECT, names=row.names or (), blocks=blocks, unnamed=row.unnamed, types=types)


ROW = Listener(
    EngineName.TRANSFORMERS, VERSION.version, "modeling_rope_utils.py and models/*/", Origin.RAN, hear
)  # fmt: skip
