"""SGLang: transformers 5 reads its configs; the tables of cos and sin, and the length that it derives, are its own.

Read in sglang 0.5.23 (it needs transformers 5.19.0): srt/layers/rotary_embedding (`get_rope`, and the classes behind
it), srt/utils/hf_transformers/common.py (`get_rope_config`, `get_context_length`) and config.py (the override), and the
calls of get_rope in srt/models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines import transformers5
from ropetool.engines.compare import faults
from ropetool.engines.dialect import ORIGINAL, YARN_KEYS, Dialect, Place, TypeRead, find_block
from ropetool.engines.heard import Case, Heard, Listener, Turn, pairing_heard
from ropetool.engines.known import SGLANG
from ropetool.engines.listen import values_of
from ropetool.engines.names import EngineName, Origin
from ropetool.engines.serving import (
    DEEPSEEK_YARN,
    HY_V4,
    OF_ITS_OWN,
    always,
    file_of,
    fixed_at_longest,
    hear_served,
    plain,
    unscaled,
    with_attention_of_length,
)
from ropetool.families.decoder import with_text_keys
from ropetool.families.geometry import SHARE
from ropetool.rope.frequencies import Scaling, Yarn

ATTN_FACTOR = "attn_factor"
_YARN = (*(key for key in YARN_KEYS if key != "attention_factor"), ATTN_FACTOR)


def _types(types: Mapping[str, TypeRead]) -> dict[str, TypeRead]:
    """What get_rope computes from the types that transformers reads."""
    yarn = TypeRead("yarn", ("factor",), _YARN, {"truncate": False}, original=types["yarn"].original)
    longrope = replace(types["longrope"], takes=(), computes=with_attention_of_length)
    dynamic = replace(types["dynamic"], computes=fixed_at_longest)
    return {**types, "yarn": yarn, "longrope": longrope, "dynamic": dynamic, "proportional": TypeRead("proportional")}


def _with_original(types: Mapping[str, TypeRead], places: tuple[Place, ...]) -> dict[str, TypeRead]:
    """The same types, with the original length looked for in ``places``."""
    return {name: replace(read, original=places if read.original else ()) for name, read in types.items()}


FLAT = replace(
    transformers5.FLAT,
    types=_with_original(_types(transformers5.FLAT.types), (transformers5.BLOCK, transformers5.LENGTH)),
)
NESTED = replace(transformers5.NESTED, types=_types(transformers5.NESTED.types))
# deepseek_v2.py, which others subclass: every type but default becomes deepseek_yarn.
MLA_FILES = ("deepseek_v2", "glm4_moe_lite")
# Classes that lay a top-level original length over that of the block; transformers 5.19 fills in the maximum without.
ORIGINAL_ABOVE_FILES = (
    "apertus", "arcee", "exaone4", "exaone_moe", "granite", "hunyuan", "llama", "ministral3", "mistral",
)  # fmt: skip
# Classes that call get_rope with the base, and without the block.
UNSCALED_FILES = (
    *("gemma", "gemma2", "gpt_j", "granitemoe", "hunyuan_v3", "mixtral", "olmo", "persimmon", "phi", "stablelm"),
    *("starcoder2",),
)
# Classes that cut the base down to a whole number.
WHOLE_FILES = ("granitemoe", "llama4", "mixtral", "starcoder2")
# getattr(config, "rope_theta", 1000000), of a config that keeps the base in rope_parameters: always the default.
THETA_FIXED = {"exaone4": 1e6, "exaone_moe": 1e6}
# gemma3_causal.py computes the full layers by transformers' own functions, and the local ones from their base alone;
# gemma3n_causal.py takes the block of the full layers, and of the local ones the base; gemma4_causal.py the base, the
# type and the rotary share.
LOCAL_PLAIN_FILES = ("gemma3_causal", "gemma3n_causal")
BY_TRANSFORMERS_FILES = ("gemma3_causal",)
GEMMA4_FILES = ("gemma4_causal",)
_OWN_WAYS = (
    "afmoe", "beam", "dbrx", "deepseek_v4", "dots3_note", "dots3_note_text", "embedding_gemma2",
    "embedding_gemma2_text", "exaone", "falcon_h1", "granite_swa", "granitemoe_swa", "granitemoehybrid",
    "laguna", "longcat_flash", "mellum", "mimo_v2_flash", "minicpmv4_6", "minimax_m3_vl", "muse_glimmer",
    "muse_spark", "olmo3", "qwen3_next", "qwen4_exp", "qwen4_exp_text", "step3p7", "zaya",
)  # fmt: skip
UNREAD = dict.fromkeys(_OWN_WAYS, OF_ITS_OWN) | {"hy_v4": HY_V4}
LENGTH_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")


def hear(case: Case) -> Heard:
    """What SGLang makes of a config."""
    file = file_of(case, SGLANG)
    flat, nested = _dialects(file, bool(case.text.get(ORIGINAL)))
    heard = hear_served(case, SGLANG, flat, nested, UNREAD)
    if heard.refusal or heard.unknown:
        return heard
    turns = tuple(_turn(turn, index, file, case) for index, turn in enumerate(heard.turns))
    pairing = pairing_heard(EngineName.SGLANG, case)
    return replace(heard, turns=turns, pairing=pairing, length=_length(case), stops=True)


def _dialects(file: str, above: bool) -> tuple[Dialect, Dialect]:
    """How the class in ``file`` reads a block of all layers, and of one kind; ``above``: has an original length."""
    flat, nested = FLAT, NESTED
    if file in MLA_FILES:
        flat = replace(FLAT, types=always(DEEPSEEK_YARN, FLAT.types))
    elif file in UNSCALED_FILES:
        flat = replace(FLAT, types=unscaled(FLAT.types))
    elif file in ORIGINAL_ABOVE_FILES and above:
        flat = replace(FLAT, types=_with_original(FLAT.types, (transformers5.TOP,)))
    elif file in BY_TRANSFORMERS_FILES:
        nested = transformers5.NESTED
    elif file in GEMMA4_FILES:
        kept = {"default": NESTED.types["default"], "proportional": TypeRead("proportional", (), (SHARE,))}
        nested = replace(NESTED, types={**unscaled(NESTED.types), **kept})
    return flat, nested


def _turn(turn: Turn, index: int, file: str, case: Case) -> Turn:
    """The rotation after what the class does to the base, and to the block of a kind of layers."""
    scaling: Scaling = turn.scaling
    if index and file in LOCAL_PLAIN_FILES:
        scaling = plain(scaling, case)
    if file in WHOLE_FILES:
        scaling = replace(scaling, theta=float(int(scaling.theta)))
    if file in THETA_FIXED:
        scaling = replace(scaling, theta=THETA_FIXED[file])
    factor = _block(case).get(ATTN_FACTOR)
    if isinstance(scaling, Yarn) and isinstance(factor, (int, float)):
        scaling = replace(scaling, explicit_attention_factor=scaling.attention_factor * factor)
    return replace(turn, scaling=scaling)


def _block(case: Case) -> Mapping[str, Any]:
    return find_block(FLAT, case.text, case.reading.length).block


def _length(case: Case) -> int | None:
    """get_context_length: the factor counts unless the block holds the original length, as transformers makes it."""
    length = next((case.text[key] for key in LENGTH_KEYS if isinstance(case.text.get(key), int)), case.reading.length)
    block = _block(case)
    name = block.get("rope_type", block.get("type"))
    # A block per kind of layers has no factor of its own.
    counted = ORIGINAL in block or name in ("llama3", "yarn", "longrope") or bool(case.reading.family.kinds)
    factor = 1.0 if counted else block.get("factor", 1.0)
    return int(length * factor) if isinstance(length, int) and isinstance(factor, (int, float)) else length


def flags(case: Case) -> str:
    """attn_factor is the key by which it takes an attention factor: a multiple of the one that it computes itself."""
    heard, rotation = hear(case), case.reading.rotations[0]
    if len(heard.turns) != 1 or heard.turns[0].scaling.attention_factor == rotation.scaling.attention_factor:
        return ""
    meant = {key: value for key, value in values_of(rotation.scaling).items() if key != "attention_factor"}
    factor = rotation.scaling.attention_factor / heard.turns[0].scaling.attention_factor
    keys: dict[str, Any] = {BLOCKS[0]: {**_block(case), **meant, ATTN_FACTOR: factor}}
    overridden = with_text_keys(case.config, case.reading.decoder.path, **keys, **{BLOCKS[1]: None})
    again = hear(Case(overridden, case.reading))
    if not again.turns or any(fault.about != "length" for fault in faults(case, again)):
        return ""
    for key in reversed(case.reading.decoder.path):
        keys = {key: keys}
    return ROW.override.format(json.dumps(keys))


ROW = Listener(
    EngineName.SGLANG, "0.5.23", "python/sglang/srt/layers/rotary_embedding and srt/utils/hf_transformers", Origin.READ,
    hear, length_flag="--context-length {}", override="--json-model-override-args '{}'", flags=flags,
)  # fmt: skip
