"""transformers 5: how its configs make rope keys of both styles into one block, and what its classes compute from it.

Read in modeling_rope_utils.py (`convert_rope_params_to_dict`, `standardize_rope_params`, `validate_rope`, the functions
of ROPE_INIT_FUNCTIONS) of version 5.24.0, and run: tests/engines/test_transformers.py builds the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines.dialect import NAMES, ORIGINAL, YARN_KEYS, Dialect, Found, Place, TypeRead, find_block
from ropetool.engines.heard import Case, Heard, Listener, Refused, Turn, Unread, answer, meaningful, pairing_heard
from ropetool.engines.listen import heard_turn
from ropetool.engines.names import EngineName, Origin
from ropetool.engines.transformers_classes import ClassRow, read_version
from ropetool.families.family import Kind
from ropetool.families.geometry import SHARE
from ropetool.rope.frequencies import MSCALES, Default, NtkAware, Scaling

VERSION = read_version(5)
BLOCK, TOP, LENGTH = Place.BLOCK, Place.TOP, Place.LENGTH
FLAT_ORIGINAL = (TOP, BLOCK, LENGTH)  # a top-level one beats the block's own; without either, the maximum is filled in
NESTED_ORIGINAL = (BLOCK, LENGTH)


def fixed_alpha(scaling: Scaling, case: Case) -> Scaling:
    """modeling_hunyuan_v1_dense.py: a dynamic block with alpha raises the base once, whatever the length."""
    block = case.turning.get(BLOCKS[1]) or case.turning.get(BLOCKS[0]) or {}
    alpha = block.get("alpha") if case.reading.family.fixed_alpha else None
    return scaling if alpha is None else NtkAware(scaling.theta, float(alpha))


def _types(original: tuple[Place | int, ...], yarn_keys: tuple[str, ...]) -> Mapping[str, TypeRead]:
    return {
        "default": TypeRead("default"),
        "linear": TypeRead("linear", ("factor",)),
        "dynamic": TypeRead("dynamic", ("factor",), computes=fixed_alpha),
        "yarn": TypeRead("yarn", ("factor",), yarn_keys, {"factor": None, "truncate": False}, original=original),
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
# modeling_phimoe.py: cos and sin have a factor of their own with each list.
LISTS = FLAT.types["longrope"]
CLASS_TYPES = {"phimoe": {"longrope": replace(LISTS, needs=(*LISTS.needs, *MSCALES), takes=LISTS.takes[:1])}}
YARN = "yarn"
# The types whose table has the width that the class turns.
WIDE = ("default", "proportional")
# The methods of a class whose table is fixed: the family table has it so.
FIXED = frozenset(("default",))
# _compute_yarn_parameters asks the whole of rope_parameters for truncate, where blocks per layer type have none.
NESTED = Dialect(
    (), _types(NESTED_ORIGINAL, tuple(key for key in YARN_KEYS if key != "truncate")), theta=(BLOCK, TOP),
    share=(BLOCK,), null=True,
)  # fmt: skip


def hear(case: Case) -> Heard:
    """What transformers 5 makes of a config."""
    return hear_by(FLAT, NESTED, case)


def hear_by(flat: Dialect, nested: Dialect, case: Case) -> Heard:
    """The same for a program whose configs transformers 5 makes, and whose classes compute from them by dialects of
    their own.
    """
    own_type, common = case.reading.family.model_type, _common(case)
    row = VERSION.rows.get(own_type)
    if row is None or not VERSION.has(case.reading.model_type):
        return Heard(unknown=f"its class for {case.reading.model_type} was not read", **common)
    if case.reading.family.methods == FIXED and not case.reading.family.section:
        return Heard(turns=_fixed(case), ignores=meaningful((*BLOCKS, "rope_theta"), case.text), **common)
    try:
        if case.reading.family.kinds:
            turns, passed_over = _kinds(nested, case, row)
        else:
            turns, passed_over = _flat(flat, case, row)
    except Refused as refused:
        return answer(refused, **common)
    methods = case.reading.family.methods
    if methods is not None and any(turn.scaling.name not in methods for turn in turns):
        return Heard(refusal=case.reading.family.methods_reason, **common)
    return Heard(turns=turns, ignores=passed_over, **common)


def _fixed(case: Case) -> tuple[Turn, ...]:
    """Classes that build one table, whatever the config says."""
    base = Default(case.reading.family.theta_default)
    return tuple(Turn(rotation.layers, base, rotation.geometry.rotary_dim) for rotation in case.reading.rotations)


def _flat(flat: Dialect, case: Case, row: ClassRow) -> tuple[tuple[Turn, ...], tuple[str, ...]]:
    family = case.reading.family
    share = flat.share if SHARE in family.keys.rotary else (BLOCK,)
    blocks = tuple(key for key in flat.blocks if key in family.blocks)
    types = {
        **flat.types,
        **CLASS_TYPES.get(family.model_type, {}),
        **{other: _spelled(flat, other, name) for other, name in row.spelled.items()},
    }
    passes_over = row.names == () and blocks == flat.blocks
    dialect = replace(flat, blocks=blocks, share=share, types=types, names=() if passes_over else flat.names)
    found = find_block(dialect, row.top(case), case.reading.length)
    if not found.where and row.block:
        found = replace(found, where="its own block", block=row.block)
    turn, passed_over = heard_turn(dialect, case, found, family.theta_keys or ("",), family.theta_default)
    if flat is FLAT:
        row.check_head_dim(turn, case)
        _check_width(case, found, turn)
    if row.names is None and family.methods is None and turn.scaling.name != "default":
        raise Unread(f"how its class for {family.model_type} takes {found.where} was not read")
    return tuple(replace(turn, layers=rotation.layers) for rotation in case.reading.rotations), passed_over


def _check_width(case: Case, found: Found, turn: Turn, index: int = 0) -> None:
    """The functions of the scaled types take a rotary share from the block also where the class turns the whole head.

    Then the table is narrower than what turns, and the first forward pass raises.
    """
    family, share = case.reading.family, found.block.get(SHARE)
    whole = not (family.keys.rotary or family.keys.share_in_block)
    head_dim = case.reading.rotations[index].geometry.head_dim
    if whole and share and turn.scaling.name not in WIDE and int(head_dim * share) != turn.rotary_dim:
        raise Refused(
            f"its {turn.scaling.name} turns {int(head_dim * share)} rows by {found.where}.{SHARE}, and its class for "
            f"{family.model_type} turns {turn.rotary_dim}: the first forward pass raises"
        )


def _common(case: Case) -> dict[str, Any]:
    return {"pairing": pairing_heard(EngineName.TRANSFORMERS, case), "length": case.reading.length}


def _spelled(flat: Dialect, other: str, name: str) -> TypeRead:
    """configuration_phi3.py renames a block after a trained length was filled in: for one called yarn, not su."""
    read = flat.types[name]
    return replace(read, needs=(*read.needs, ORIGINAL)) if read.original and other not in flat.types else read


def _kinds(nested: Dialect, case: Case, row: ClassRow) -> tuple[tuple[Turn, ...], tuple[str, ...]]:
    """Classes with a block per layer type; what stands flat in rope_parameters is not looked at."""
    top, family = case.turning, case.reading.family
    blocks, scaling = (top.get(key) or {} for key in BLOCKS)
    if scaling and row.names is None:
        raise Unread(f"how its class for {family.model_type} takes {BLOCKS[1]} was not read")
    turns, passed_over = [], []
    for index, kind in enumerate(family.kinds):
        own = {"rope_type": "default"} if kind.scaled_by_flat and scaling else {}
        given = blocks.get(kind.layer_type) or own or _default_block(kind)
        if not isinstance(given, Mapping):
            raise Refused(f"{BLOCKS[0]}.{kind.layer_type} is {given!r}, and it takes it for an object")
        block = dict(given)
        if scaling and kind.scaled_by_flat:
            block |= {**(kind.added_to_flat_yarn if YARN in map(scaling.get, NAMES) else {}), **scaling}
        found = Found(f"{BLOCKS[0]}.{kind.layer_type}", block, top, case.reading.length)
        default = kind.default.get("rope_theta", family.theta_default)
        turn, unread = heard_turn(nested, case, found, (kind.theta_key,), default, index)
        if nested is NESTED:
            row.check_head_dim(turn, case)
            _check_width(case, found, turn, index)
        turns.append(turn)
        passed_over += [key for key in unread if key not in BLOCKS]
    kinds = {kind.layer_type for kind in family.kinds}
    passed_over += [f"{BLOCKS[0]}.{key}" for key, value in blocks.items() if key not in kinds and value is not None]
    return tuple(turns), tuple(passed_over)


def _default_block(kind: Kind) -> Mapping[str, Any]:
    return {key: value for key, value in kind.default.items() if key != "rope_theta"} or {"rope_type": "default"}


ROW = Listener(
    EngineName.TRANSFORMERS, VERSION.version, "modeling_rope_utils.py and models/*/configuration_*.py", Origin.RAN, hear
)  # fmt: skip
