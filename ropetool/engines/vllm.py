"""vLLM: transformers 5 reads its configs; the tables of cos and sin, and the length that it derives, are its own.

Read in vllm 0.33.0 (commit 4ba787ec9; it needs transformers 5.16.1 to 5.20): model_executor/layers/rotary_embedding
(`get_rope` and the classes behind it), transformers_utils/config.py (`patch_rope_parameters`), config/model.py
(`_get_and_verify_max_len`), transformers_utils/model_arch_config_convertor.py (`derive_max_model_len_and_key`), and
the calls of get_rope in model_executor/models and models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines import transformers5
from ropetool.engines.dialect import ORIGINAL, YARN_KEYS, TypeRead
from ropetool.engines.heard import Case, Heard, Listener, pairing_heard
from ropetool.engines.known import VLLM
from ropetool.engines.names import EngineName, Origin
from ropetool.engines.serving import (
    DEEPSEEK_YARN,
    HY_V4,
    OF_ITS_OWN,
    always,
    file_of,
    hear_served,
    plain,
    with_attention_of_length,
)
from ropetool.families.geometry import SHARE
from ropetool.families.table import TABLE
from ropetool.rope.frequencies import LongRope, Scaling, Yarn
from ropetool.rope.pairing import Pairing


def _types(types: Mapping[str, TypeRead]) -> dict[str, TypeRead]:
    """What get_rope computes from the types that transformers reads."""
    yarn = TypeRead("yarn", ("factor",), YARN_KEYS, {"truncate": False}, original=types["yarn"].original)
    longrope = replace(types["longrope"], takes=(), computes=with_attention_of_length)
    # DynamicNTKScalingRotaryEmbedding: with max_trained_positions absent, as it is in every config of transformers, the
    # scale comes out as factor * 1 - (factor - 1), which is 1.
    dynamic = replace(types["dynamic"], computes=plain)
    mrope = TypeRead("default", ("mrope_section",))
    own = {"yarn": yarn, "longrope": longrope, "su": longrope, "dynamic": dynamic, "mrope": mrope}
    return {**types, **own, "proportional": TypeRead("proportional", (), (SHARE,))}


FLAT = replace(transformers5.FLAT, types=_types(transformers5.FLAT.types))
NESTED = replace(transformers5.NESTED, types=_types(transformers5.NESTED.types))
# deepseek_v2.py, models/deepseek_v32 and AXK1.py: every type but default becomes deepseek_yarn.
MLA_FILES = ("deepseek_v2", "AXK1", "glm4_moe_lite", "vllm.models.deepseek_v32")
# It then takes the original length from the block, where transformers puts it for these types alone.
_MLA_TYPES = always(DEEPSEEK_YARN, FLAT.types) | dict.fromkeys(
    ("linear", "dynamic", "proportional"),
    replace(DEEPSEEK_YARN, needs=("factor", ORIGINAL), original=(transformers5.BLOCK,)),
)
# gpt_oss.py hands six keys of the block on, as yarn, whatever type it names.
GPT_OSS = TypeRead(
    "yarn",
    ("factor", "beta_fast", "beta_slow"),
    ("truncate",),
    {"truncate": False},
    original=transformers5.FLAT_ORIGINAL,
)
TYPES_OF_FILES: Mapping[str, Mapping[str, TypeRead]] = {
    **dict.fromkeys(MLA_FILES, _MLA_TYPES),
    "gpt_oss": dict.fromkeys(FLAT.types, GPT_OSS),
}
LONG_FOR_ALL = "serving past the original length, it takes the long factors for short prompts too"
_OWN_WAYS = (
    "deepseek_v4", "dots3_note", "dots3_note_text", "laguna", "longcat_flash", "mimo_v2_flash", "minimax_m3_vl",
    "muse_spark", "step3p5", "step3p7",
)  # fmt: skip
UNREAD = dict.fromkeys(_OWN_WAYS, OF_ITS_OWN) | {"hy_v4": HY_V4}
# _get_and_verify_max_len leaves the length of these as it is, and multiplies that of every other type by its factor.
UNMULTIPLIED = ("longrope", "su", "llama3", "yarn")
LEGACY = (("su", "longrope"), ("mrope", "default"))  # two names that it takes for one
# It leaves every type with this in its name alone, whatever the block says.
SCALED_ALREADY = frozenset(name for name in TABLE if "gemma3" in name)
LENGTH_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)


def hear(case: Case) -> Heard:
    """What vLLM makes of a config."""
    if any(block.get("rope_type", block.get("type")) == "ntk" for _, block in _blocks(case)):
        return Heard(unknown="its rope type ntk is a formula of its own, which was not read")
    types = TYPES_OF_FILES.get(file_of(case, VLLM), FLAT.types)
    heard = hear_served(case, VLLM, replace(FLAT, types=types), NESTED, UNREAD)
    if heard.refusal or heard.unknown:
        return heard
    pairing, length = pairing_heard(EngineName.VLLM, case), _length(case, heard)
    heard = replace(heard, pairing=pairing, length=length, stops=True, refusal=next(_two_names(case), ""))
    if any(isinstance(turn.scaling, LongRope) for turn in heard.turns):
        return _with_longrope(heard)
    return replace(heard, advice=_short_table(heard))


def _short_table(heard: Heard) -> str:
    """YaRNScalingRotaryEmbedding makes a table of original x factor rows, whatever length is served."""
    rows = [
        int(turn.scaling.original_length * turn.scaling.factor)
        for turn in heard.turns
        if isinstance(turn.scaling, Yarn)
    ]
    if heard.length is None or min(rows, default=heard.length) >= heard.length:
        return ""
    return f"its tables end at {min(rows)} tokens, and it serves {heard.length}: pass --max-model-len {min(rows)}"


def _with_longrope(heard: Heard) -> Heard:
    if heard.pairing is Pairing.INTERLEAVED:
        return replace(heard, refusal="its longrope rotates halves only, and its class for this type interleaved")
    turns = tuple(replace(turn, scaling=_one_set(turn.scaling, heard.length)) for turn in heard.turns)
    return replace(heard, turns=turns, advice=LONG_FOR_ALL)


def _one_set(scaling: Scaling, length: int | None) -> Scaling:
    """Phi3LongRoPEScaledRotaryEmbedding takes the long factors for all, where it serves past the original length."""
    if not isinstance(scaling, LongRope) or length is None or length <= scaling.original_length:
        return scaling
    return replace(scaling, short_factor=scaling.long_factor)


def _two_names(case: Case) -> Iterator[str]:
    """patch_legacy_rope_type: two names of the type that disagree are an error."""
    for where, block in _blocks(case):
        new, old = block.get("rope_type"), block.get("type")
        if "rope_type" in block and "type" in block and new != old and (old, new) not in LEGACY:
            yield f"{where} has rope_type {new!r} and type {old!r}, which it raises on"
    for turn in transformers5.hear(case).turns[:1]:
        old, new = next((block.get("type") for _, block in _blocks(case)), None), turn.scaling.name
        if old is not None and old != new and (old, new) not in LEGACY:
            yield f"transformers makes its type {old!r} into {new!r}, and it raises on both"


def _blocks(case: Case) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The blocks that transformers takes from the config, each with its name."""
    found = next((key for key in reversed(BLOCKS) if isinstance(case.text.get(key), Mapping) and case.text[key]), None)
    if found is None:
        return
    block = case.text[found]
    nested = {f"{found}.{key}": inner for key, inner in block.items() if isinstance(inner, Mapping)}
    yield from nested.items() if nested else [(found, block)]


def _length(case: Case, heard: Heard) -> int | None:
    """The length that it serves where its user names none."""
    found = [case.text[key] for key in LENGTH_KEYS if isinstance(case.text.get(key), int)]
    length = case.text.get("model_max_length") or min(found, default=case.reading.length)
    if not isinstance(length, int):
        return case.reading.length
    if any(isinstance(turn.scaling, LongRope) for turn in heard.turns):
        row = transformers5.VERSION.rows.get(case.reading.family.model_type)
        original = (row.top(case) if row else case.text).get(ORIGINAL)
        return original if isinstance(original, int) else length
    if case.reading.family.model_type in SCALED_ALREADY:
        return length
    factor = 1.0
    for _, block in _blocks(case):
        if block.get("rope_type", block.get("type")) not in UNMULTIPLIED:
            said = block.get("factor", factor)
            factor = said if isinstance(said, (int, float)) and said else 1.0
    return int(length * factor)


ROW = Listener(
    EngineName.VLLM, "0.33.0", "vllm/model_executor/layers/rotary_embedding and vllm/config/model.py", Origin.READ,
    hear, length_flag="--max-model-len {}", override="--hf-overrides '{}'",
)  # fmt: skip
