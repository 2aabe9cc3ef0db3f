"""exllamav2: it reads config.json itself, by the version-4 keys, at the top level or under text_config.

Read in exllamav2 0.3.2: config.py (`ExLlamaV2Config.prepare`), rope.py, architecture.py, device.py, model_init.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines.dialect import ORIGINAL, Dialect, Found, Other, Place, TypeRead
from ropetool.engines.heard import Case, Heard, Listener, Refused, Turn
from ropetool.engines.known import EXLLAMAV2
from ropetool.engines.listen import heard_turn
from ropetool.engines.names import EngineName, Origin
from ropetool.rope.frequencies import Default, Linear, LongRope, Scaling, Yarn
from ropetool.rope.pairing import Pairing

BLOCK, TOP = Place.BLOCK, Place.TOP
LENGTH_KEYS = ("max_sequence_length", "model_max_length", "max_position_embeddings", "max_seq_len", "n_positions")
THETA_DEFAULT, THETA_DEFAULT_GEMMA3, THETA_LOCAL = 10000.0, 1e6, 10000.0
GEMMA3 = ("gemma3", "shieldgemma2")
# architecture.py: rope_freq_half.
ROUNDED = ("qwen2_vl", "qwen2_5_vl")


def _yarn_over_length(scaling: Scaling, case: Case) -> Scaling:
    """get_rope_params_yarn: the ramp is that of the maximum length, not of the trained one; below, no scaling."""
    length = _length(case)
    if not isinstance(scaling, Yarn) or length is None:
        return scaling
    if length <= scaling.original_length:
        return Default(scaling.theta)
    factor = 0.1 * math.log(scaling.factor) + 1.0
    return Yarn(scaling.theta, scaling.factor, length, explicit_attention_factor=factor)


def _one_set(scaling: Scaling, case: Case) -> Scaling:
    """get_rope_params_su: the maximum length decides on the factors, and on the attention factor, once for all."""
    length = _length(case)
    if not isinstance(scaling, LongRope) or length is None:
        return scaling
    ratio = length / scaling.original_length
    factors = scaling.long_factor if ratio > 1 else scaling.short_factor
    attention = math.sqrt(1 + math.log(ratio) / math.log(scaling.original_length)) if ratio > 1 else 1.0
    return replace(scaling, short_factor=factors, long_factor=factors, explicit_attention_factor=attention)


_LISTS = ("short_factor", "long_factor")
_SU = TypeRead("longrope", _LISTS, original=(TOP,), computes=_one_set)
DIALECT = Dialect(
    (BLOCKS[1],),
    {
        "linear": TypeRead("linear", ("factor",)),
        "su": _SU,
        "longrope": _SU,
        "yarn": TypeRead("yarn", ("factor", ORIGINAL), original=(BLOCK,), computes=_yarn_over_length),
        "llama3": TypeRead(
            "llama3", ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL), original=(BLOCK,)
        ),
    },
    names=("type", "rope_type"),
    other=Other.PLAIN,
)  # fmt: skip


def hear(case: Case) -> Heard:
    """What exllamav2 makes of a config."""
    model_type = case.reading.model_type
    if model_type in ROUNDED:
        return Heard(
            unknown=f"it rounds the frequencies of {model_type} to half precision, and what that does is not known"
        )
    if model_type not in EXLLAMAV2:
        return Heard(unknown=f"it has no class for {model_type}, and takes it for a Llama with a warning")
    common: dict[str, Any] = {"pairing": Pairing(EXLLAMAV2[model_type]), "length": _length(case), "stops": True}
    try:
        turns, passed_over = _turns(case)
    except Refused as refused:
        return Heard(refusal=str(refused), **common)
    return Heard(turns, ignores=passed_over, **common)


def _top(case: Case) -> Mapping[str, Any]:
    """What it looks at: the top level, and under it the text config; null is absent."""
    inner = case.config.get("text_config")
    under = inner if isinstance(inner, Mapping) else {}
    return {**under, **{key: value for key, value in case.config.items() if value is not None}}


def _length(case: Case) -> int | None:
    top = _top(case)
    found = next((top[key] for key in LENGTH_KEYS if isinstance(top.get(key), int)), None)
    return found if found is not None else case.reading.length


def _turns(case: Case) -> tuple[tuple[Turn, ...], tuple[str, ...]]:
    """The rotation of each kind of layer, and the keys passed over; raises `Refused` where it would raise."""
    top = _top(case)
    block = top.get(BLOCKS[1])
    block = block if isinstance(block, Mapping) else {}
    architectures = top.get("architectures")
    if isinstance(architectures, list) and len(architectures) != 1:
        raise Refused(f"architectures has {len(architectures)} entries, and it takes exactly one")
    if block.get("type") and block.get("rope_type"):
        raise Refused(f"{BLOCKS[1]} has both type and rope_type, and it takes exactly one")
    name = block.get("type") or block.get("rope_type")
    if name in ("su", "longrope") and ORIGINAL not in case.config:
        raise Refused(f"it needs {ORIGINAL} at the top level with longrope, and finds none")
    needs = DIALECT.types[name].needs if isinstance(name, str) and name in DIALECT.types else ()
    null = next((key for key in needs if key in block and block[key] is None), None)
    if null:
        raise Refused(f"{BLOCKS[1]}.{null} is null, and it computes with it")
    default = THETA_DEFAULT_GEMMA3 if case.reading.model_type in GEMMA3 else THETA_DEFAULT
    found = Found(BLOCKS[1] if block else "", block, top, _length(case))
    main, passed_over = heard_turn(DIALECT, case, found, ("rope_theta",), default)
    return tuple(_of_kind(main, index, case) for index in range(len(case.reading.rotations))), passed_over


def _of_kind(main: Turn, index: int, case: Case) -> Turn:
    """Local layers of Gemma 3 have a base of their own, and all of the scaling but a linear one."""
    rotation = case.reading.rotations[index]
    if not index or case.reading.model_type not in GEMMA3:
        return replace(main, layers=rotation.layers)
    scaling = Default(THETA_LOCAL) if isinstance(main.scaling, Linear) else main.scaling
    return Turn(rotation.layers, replace(scaling, theta=THETA_LOCAL), rotation.geometry.rotary_dim)


ROW = Listener(
    EngineName.EXLLAMAV2, "0.3.2", "exllamav2/config.py, exllamav2/rope.py", Origin.READ, hear, length_flag="-l {}",
)  # fmt: skip
