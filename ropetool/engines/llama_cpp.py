"""llama.cpp's converter: what convert_hf_to_gguf.py writes of the rope keys into a GGUF.

Read in build 11549 (the source package xllamacpp 2026.10.11549): conversion/base.py (`TextModel.__init__`,
`set_gguf_parameters`), and `generate_extra_tensors` in conversion/llama.py, phi.py, minicpm.py and gemma.py. It takes
config.json through transformers 4.57.6, which fills in what its classes have by default.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines.dialect import ORIGINAL, Dialect, Found, Other, Place, TypeRead
from ropetool.engines.heard import Case, Heard, Listener, Refused, Turn
from ropetool.engines.known import LLAMA_CPP, Gguf
from ropetool.engines.listen import checked, heard_turn
from ropetool.engines.names import EngineName, Origin
from ropetool.engines.serving import HY_V4, OF_ITS_OWN
from ropetool.families.decoder import COMPOSITES
from ropetool.families.geometry import SHARE
from ropetool.families.table import TABLE
from ropetool.rope.frequencies import Default, LongRope, Scaling
from ropetool.rope.pairing import Pairing

BLOCK, TOP = Place.BLOCK, Place.TOP
FULL, LOCAL = "full_attention", "sliding_attention"
LOCAL_THETAS = ("local_rope_theta", "rope_local_theta", "rope_theta_local", "swa_rope_theta", "rope_local_base_freq")
LLAMA3_DEFAULTS = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
RUNTIME_THETA = 10000.0  # what the runtime takes where the GGUF has no base
VERSION = "b11549"
_OWN_WAYS = (
    "deepseek_v4", "dots3_note", "dots3_note_text", "embedding_gemma2", "hunyuan_v1_dense", "hunyuan_v1_moe",
    "hunyuan_vl", "laguna", "mellum", "mimo_v2_flash", "modernbert", "muse_glimmer", "pocket_tts", "step3p7",
)  # fmt: skip
UNREAD = dict.fromkeys(_OWN_WAYS, OF_ITS_OWN) | {"hy_v4": HY_V4}
# deepseek.py and mistral3.py write mscale_all_dim, for graphs that read it.
WITH_MSCALE = ("DEEPSEEK2", "DEEPSEEK32", "GLM_DSA", "MISTRAL3")


@dataclass(frozen=True)
class Read:
    """The block that the converter takes: under which key it lies, and all that it sees beside it."""

    where: str
    block: Mapping[str, Any]
    top: Mapping[str, Any]
    local: Mapping[str, Any] | None

    @property
    def nested(self) -> bool:
        """Whether there is a block per kind of layer; nothing at the top level counts then."""
        return self.local is not None


def gguf_of(case: Case) -> Gguf:
    """What the converter makes of the model type."""
    return LLAMA_CPP[case.reading.model_type]


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def read_block(case: Case) -> Read:
    """rope_parameters where the key is there, else rope_scaling; ``text_config`` is laid over the top level."""
    top = {**case.config, **case.text}
    where = BLOCKS[0] if BLOCKS[0] in top else BLOCKS[1]
    raw = _object(top.get(where))
    if FULL not in raw and LOCAL not in raw:
        return Read(where, raw, top, None)
    full, local = raw.get(FULL, raw), raw.get(LOCAL)
    return Read(f"{where}.{FULL}", _object(full), top, _object(local))


def hear(case: Case) -> Heard:
    """What lands in the GGUF."""
    model_type = case.reading.model_type
    kinds = {kind.layer_type for kind in case.reading.family.kinds}
    if model_type in UNREAD:
        return Heard(unknown=UNREAD[model_type])
    if model_type not in LLAMA_CPP and (model_type in TABLE or model_type in COMPOSITES):
        return Heard(refusal=f"it has no class for {model_type}")
    if model_type not in LLAMA_CPP or not kinds <= {FULL, LOCAL}:
        return Heard(unknown=f"whether it has a class for {model_type} was not read")
    read = read_block(case)
    try:
        main, passed_over = _main_turn(case, read)
        local = tuple(_local_turn(case, index, read) for index in range(1, len(kinds)))
    except Refused as refused:
        return Heard(refusal=str(refused), length=case.reading.length)
    pairing = Pairing(gguf_of(case).pairing)
    return Heard((main, *local), pairing, case.reading.length, ignores=passed_over)


def _types(gguf: Gguf) -> dict[str, TypeRead]:
    """The types that it writes for an architecture; of all others it writes the base alone."""
    lists = TypeRead("longrope", ("short_factor", "long_factor"), original=(BLOCK, TOP, 4096), computes=_with_attention)
    if gguf.gguf == "PHI3":  # phi.py writes the lists, and no scaling of another type
        return {"longrope": lists, "su": lists}
    if gguf.gguf == "NEMOTRON":  # a factor is linear, whatever the type is called
        return dict.fromkeys(("linear", "dynamic", "yarn", "llama3"), TypeRead("linear", ("factor",)))
    types = {}
    if gguf.llama3:
        types["llama3"] = TypeRead("llama3", tuple(LLAMA3_DEFAULTS), original=(BLOCK, TOP, 8192))
    if gguf.unscaled:
        return types
    types["linear"] = TypeRead("linear", ("factor",))
    yarn_keys: tuple[str, ...] = ("attention_factor", "beta_fast", "beta_slow")
    if gguf.gguf in WITH_MSCALE:
        yarn_keys += ("mscale", "mscale_all_dim")
    types["yarn"] = TypeRead("yarn", ("factor",), yarn_keys, original=(BLOCK, TOP))
    if gguf.gguf.startswith("GEMMA4"):
        types["proportional"] = TypeRead("proportional", (SHARE,))
    if gguf.longrope:
        types |= {"longrope": lists, "su": lists}
    return types


def _with_attention(scaling: Scaling, case: Case) -> Scaling:
    """phi.py writes the attention factor of the maximum length over the original one; minicpm.py writes none."""
    if not isinstance(scaling, LongRope) or case.reading.length is None:
        return scaling
    ratio = case.reading.length / scaling.original_length
    written = ratio > 1 and gguf_of(case).gguf == "PHI3"
    factor = math.sqrt(1 + math.log(ratio) / math.log(scaling.original_length)) if written else 1.0
    return replace(scaling, explicit_attention_factor=factor)


def _main_turn(case: Case, read: Read) -> tuple[Turn, tuple[str, ...]]:
    """The rotation of all layers, or of those with full attention, and the keys passed over; raises `Refused`."""
    block, gguf = dict(read.block), gguf_of(case)
    # transformers 4 lays type over rope_type, in the block that it knows.
    names = ("type", "rope_type") if read.where == BLOCKS[1] else ("rope_type", "type")
    name = next((block[key] for key in names if key in block), None)
    if name is None and "rope_type" in block and gguf.llama3:
        raise Refused(f"{read.where}.rope_type is null, and it computes with it")
    if name in _needing_original(gguf, read) and _original(read) is None:
        raise Refused(f"{read.where} has no {ORIGINAL}, which it needs")
    types = _types(gguf)
    if name in ("linear", "yarn") and block.get("factor") is None:
        types = {}  # it warns of an unknown rope type, and goes on
    if name == "llama3":
        block = {**LLAMA3_DEFAULTS, **block}
    if "attn_factor" in block:
        block.setdefault("attention_factor", block["attn_factor"])
    block["rope_theta"] = _theta(case, read)
    share = (BLOCK,) if read.nested else (BLOCK, TOP)
    dialect = Dialect((), types, theta=(BLOCK,), share=share, names=names, other=Other.PLAIN)
    found = Found(read.where, block, {} if read.nested else read.top, case.reading.length)
    return heard_turn(dialect, case, found, (), None)


def _needing_original(gguf: Gguf, read: Read) -> tuple[Any, ...]:
    """The types that it raises for where no original length is found.

    transformers 4 fills Phi-3's in, but refuses a rope_scaling of another type, and then the bare config.json is read.
    """
    if gguf.gguf != "PHI3":
        return ("yarn",) if read.block.get("factor") is not None else ()
    return (read.block.get("rope_type", read.block.get("type")),) if read.where == BLOCKS[1] and read.block else ()


def _original(read: Read) -> Any:
    return read.block.get(ORIGINAL) if ORIGINAL in read.block or read.nested else read.top.get(ORIGINAL)


def _theta(case: Case, read: Read) -> float:
    """The base: of the block, else of the top level, else of transformers' class; for a null, that of the runtime."""
    family, found = case.reading.family, read.block.get("rope_theta")
    if found is None and not read.nested and "rope_theta" not in read.block:
        key = next((key for key in family.theta_keys if key in read.top), None)
        if key is None:
            return _class_theta(case, 0)
        found = read.top[key]
    if found is not None:
        return checked("the base", found)
    if gguf_of(case).gguf == "PHI3":
        raise Refused("the base is null, and it needs it")
    return 1e6 if gguf_of(case).gguf == "GEMMA3" else RUNTIME_THETA


def _class_theta(case: Case, index: int) -> float:
    family = case.reading.family
    default = family.kinds[index].default.get("rope_theta") if family.kinds else None
    return float(default or family.theta_default)


def _local_turn(case: Case, index: int, read: Read) -> Turn:
    """The rotation of local layers: of these it writes the base alone."""
    if read.local is None:
        theta = next((read.top[key] for key in LOCAL_THETAS if read.top.get(key) is not None), None)
    else:
        theta = read.local.get("rope_theta")
    rotation = case.reading.rotations[index]
    absent = RUNTIME_THETA if read.nested else _class_theta(case, index)
    base = absent if theta is None else checked("the base of local layers", theta)
    return Turn(rotation.layers, Default(base), rotation.geometry.rotary_dim)


ROW = Listener(
    EngineName.LLAMA_CPP, VERSION, "convert_hf_to_gguf.py, conversion/*.py", Origin.READ, hear, part="converter",
)  # fmt: skip
