"""mlx-lm: most of its classes read the base and the block at the top level only, as transformers 4 writes them.

Read in mlx_lm/models/rope_utils.py (`initialize_rope` and its classes) of version 0.32.2; which keys each model class
takes was found by building it (tools/ask_mlx_lm.py), and tests/engines/test_mlx_lm.py does so again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropetool.engines.dialect import ORIGINAL, Dialect, Other, Place, TypeRead, find_block
from ropetool.engines.heard import Case, Heard, Listener, Refused, Turn, answer, pairing_heard
from ropetool.engines.listen import heard_turn
from ropetool.engines.names import EngineName, Origin
from ropetool.engines.rows import MLX_LM
from ropetool.families.geometry import SHARE
from ropetool.rope.frequencies import LongRope, Scaling, Yarn
from ropetool.rope.pairing import Pairing

BLOCK, TOP = Place.BLOCK, Place.TOP
NAMES = ("type", "rope_type")  # `scaling_config.get("type") or scaling_config.get("rope_type", "default")`


def _yarn(scaling: Scaling, case: Case) -> Scaling:
    """YarnRoPE: mscale is 1 and mscale_all_dim 0 where the block has none, each on its own."""
    if not isinstance(scaling, Yarn):
        return scaling
    mscale, all_dim = 1.0 if scaling.mscale is None else scaling.mscale, scaling.mscale_all_dim or 0.0
    grown = 0.1 * math.log(max(scaling.factor, 1.0))
    return replace(scaling, explicit_attention_factor=(grown * mscale + 1.0) / (grown * all_dim + 1.0))


def _longrope(scaling: Scaling, case: Case) -> Scaling:
    """SuScaledRoPE: the long list at every length, and a factor of max / original."""
    if not isinstance(scaling, LongRope):
        return scaling
    factor = (case.reading.length or scaling.original_length) / scaling.original_length
    return replace(scaling, short_factor=scaling.long_factor, factor=factor)


LISTS = ("short_factor", "long_factor")
TYPES: Mapping[str, TypeRead] = {
    "default": TypeRead("default"),
    "linear": TypeRead("linear", ("factor",)),
    "dynamic": TypeRead("dynamic", ("factor",)),
    "yarn": TypeRead(
        "yarn", ("factor",), ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), original=(BLOCK, 4096),
        computes=_yarn,
    ),
    "longrope": TypeRead("longrope", (*LISTS, ORIGINAL), computes=_longrope),
    "llama3": TypeRead(
        "llama3", ("factor",), ("low_freq_factor", "high_freq_factor"),
        defaults={"low_freq_factor": 1.0, "high_freq_factor": 4.0}, original=(BLOCK, 8192),
    ),
    "proportional": TypeRead("proportional", (), ("factor", "partial_rotary_factor")),
    "mrope": TypeRead("default"),
}  # fmt: skip
# models/phi3.py calls SuScaledRoPE itself, with a top-level original length, and drops a type that it does not know.
PHI3_LONGROPE = TypeRead("longrope", LISTS, original=(TOP, 4096), computes=_longrope)
PHI3 = Dialect(
    ("rope_scaling",), {"longrope": PHI3_LONGROPE, "su": PHI3_LONGROPE, "linear": TYPES["linear"]},
    names=("type",), other=Other.PLAIN, requires=("long_factor", "type"), null=True,
)  # fmt: skip
V5 = Dialect(("rope_parameters",), {})
BY_HAND: Mapping[str, Dialect] = {"phi3": PHI3}


@dataclass(frozen=True)
class KeysRow:
    """What a class takes; tools/ask_mlx_lm.py says what each field is and how it was found."""

    theta_key: str
    theta_default: float | None
    theta: tuple[Place, ...]
    blocks: tuple[str, ...]
    names: tuple[str, ...]
    types: tuple[str, ...]
    plain: tuple[str, ...]
    share: tuple[Place, ...]
    turns: float
    needs: tuple[str, ...]


@dataclass(frozen=True)
class KindsRow:
    """A class whose kinds of layers turn differently: the top-level base of each kind, and the class's own.

    Only the first kind's is scaled by rope_scaling, if any is.
    """

    theta: Mapping[str, tuple[str, float | None]]
    blocks: tuple[str, ...] = ("rope_scaling",)


# models/gemma3_text.py, gemma3n.py, olmo3.py.
KINDS: Mapping[str, KindsRow] = {
    "gemma3_text": KindsRow(
        {"full_attention": ("rope_theta", 1e6), "sliding_attention": ("rope_local_base_freq", 1e4)}
    ),
    "gemma3n_text": KindsRow(
        {"full_attention": ("rope_theta", None), "sliding_attention": ("rope_local_base_freq", None)}, blocks=()
    ),
    "olmo3": KindsRow({"full_attention": ("rope_theta", None), "sliding_attention": ("rope_theta", None)}),
}


def _rows() -> tuple[frozenset[str], Mapping[str, KeysRow]]:
    found = json.loads(Path(__file__).with_name("mlx_lm_keys.json").read_text("utf-8"))
    rows = {}
    for name, values in found["rows"].items():
        places = {key: tuple(Place[place] for place in values[key]) for key in ("theta", "share")}
        lists = {key: tuple(values[key]) for key in ("blocks", "names", "types", "plain", "needs")}
        rows[name] = KeysRow(**{**values, **lists, **places})
    return frozenset(found["model_types"]), rows


MODEL_TYPES, ROWS = _rows()


def hear(case: Case) -> Heard:
    """What mlx-lm makes of a config."""
    reading = case.reading
    common: dict[str, Any] = {"pairing": pairing_heard(EngineName.MLX_LM, case), "length": reading.length}
    own_type = reading.family.model_type
    if reading.model_type not in MODEL_TYPES:
        return Heard(refusal=f"it has no model type {reading.model_type}", **common)
    try:
        if own_type in KINDS and reading.family.kinds:
            turns, passed_over = _kinds(case, KINDS[own_type])
        elif own_type in ROWS:
            turns, passed_over = _flat(case, ROWS[own_type])
        else:
            return Heard(unknown=f"which keys its class for {reading.model_type} takes was not read", **common)
    except Refused as refused:
        return answer(refused, **common)
    if isinstance(turns[0].scaling, LongRope) and common["pairing"] is not None:
        common["pairing"] = Pairing.HALF  # SuScaledRoPE passes traditional=False whatever the config says
    return Heard(turns=turns, ignores=passed_over, **common)


def _flat(case: Case, row: KeysRow) -> tuple[tuple[Turn, ...], tuple[str, ...]]:
    for key in row.needs:
        if case.text.get(key) is None:
            raise Refused(f"it needs {key} at the top level, and finds none")
    dialect = replace(_dialect(case.reading.family.model_type, row), share=row.share)
    found = find_block(dialect, case.turning, case.reading.length)
    v5 = find_block(V5, case.turning, case.reading.length)
    base = replace(found, where=v5.where, block=v5.block)  # no class looks for the base in rope_scaling
    turn, passed_over = heard_turn(dialect, case, found, (row.theta_key,), row.theta_default, base=base)
    told = TOP in row.share and case.text.get(SHARE) is not None
    turn = turn if told else replace(turn, rotary_dim=int(turn.rotary_dim * row.turns))
    return tuple(replace(turn, layers=rotation.layers) for rotation in case.reading.rotations), passed_over


def _dialect(model_type: str, row: KeysRow) -> Dialect:
    if model_type in BY_HAND:
        return BY_HAND[model_type]
    computed = {name: TYPES[name] for name in ("default", *row.types)}
    types = computed | dict.fromkeys(row.plain, TYPES["default"])
    unnamed = "default" if row.names in ((), NAMES) else None
    return Dialect(row.blocks, types, theta=row.theta, names=row.names or NAMES, unnamed=unnamed, null=True)


def _kinds(case: Case, row: KindsRow) -> tuple[tuple[Turn, ...], tuple[str, ...]]:
    dialect = Dialect(row.blocks, TYPES, names=NAMES, null=True)
    turns, passed_over = [], set()
    for index, kind in enumerate(case.reading.family.kinds):
        own = dialect if index == 0 else replace(dialect, blocks=())
        found = find_block(own, case.turning, case.reading.length)
        key, default = row.theta[kind.layer_type]
        turn, unread = heard_turn(own, case, found, (key,), default, index)
        turns.append(turn)
        passed_over |= {name for name in unread if index == 0}
    return tuple(turns), tuple(sorted(passed_over))


ROW = Listener(EngineName.MLX_LM, MLX_LM["version"], "mlx_lm/models/*.py", Origin.RAN, hear)
