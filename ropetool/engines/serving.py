"""What vLLM and SGLang share: configs that transformers 5 reads for them, and tables of cos and sin of their own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ropetool.checkpoint.config import BLOCKS
from ropetool.engines import transformers5
from ropetool.engines.dialect import Dialect, TypeRead
from ropetool.engines.heard import Case, Heard
from ropetool.engines.known import Server
from ropetool.families.decoder import COMPOSITES
from ropetool.families.table import TABLE
from ropetool.rope.frequencies import Default, Dynamic, Floats, LongRope, Scaling, Yarn

# Why nothing is said of some types.
OF_ITS_OWN = "its code for this type reads the rope keys in a way of its own, which was not read"
# vllm/models/hy_v4 and llama.cpp's converter say that its checkpoints are interleaved, and permute nothing.
HY_V4 = "it rotates hy_v4 interleaved, transformers 5.24 rotates it half: in which its checkpoints are is not known"


@dataclass(frozen=True)
class Fixed(Dynamic):
    """Dynamic scaling in a table that is computed once, for ``tokens``: so it turns at every length."""

    tokens: int

    name = "dynamic as one table"

    def inv_freq(self, rotary_dim: int, length: int | None = None) -> Floats:
        """See `Scaling.inv_freq`."""
        return super().inv_freq(rotary_dim, self.tokens)


def fixed_at_longest(scaling: Scaling, case: Case) -> Scaling:
    """Dynamic scaling as a table for the trained length times the factor."""
    if not isinstance(scaling, Dynamic):
        return scaling
    tokens = int(scaling.original_length * scaling.factor)
    return Fixed(scaling.theta, scaling.factor, scaling.original_length, tokens)


def plain(scaling: Scaling, case: Case) -> Scaling:
    """No scaling, whatever the block says."""
    return Default(scaling.theta)


def with_attention_of_length(scaling: Scaling, case: Case) -> Scaling:
    """LongRoPE with the attention factor of the maximum length over the original one; nothing else is looked at."""
    if not isinstance(scaling, LongRope) or case.reading.length is None:
        return scaling
    ratio = case.reading.length / scaling.original_length
    factor = 1.0 if ratio <= 1 else math.sqrt(1 + math.log(ratio) / math.log(scaling.original_length))
    return replace(scaling, explicit_attention_factor=factor)


def yarn_of_deepseek(scaling: Scaling, case: Case) -> Scaling:
    """YaRN with DeepSeek's attention factor: mscale is 1 and mscale_all_dim 0 where they are absent."""
    if not isinstance(scaling, Yarn):
        return scaling

    def term(mscale: float) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * mscale * math.log(scaling.factor) + 1.0

    above = 1.0 if scaling.mscale is None else scaling.mscale
    factor = term(above) / term(scaling.mscale_all_dim or 0.0)
    return replace(scaling, explicit_attention_factor=factor)


# The keys that both read of DeepSeek's block, whatever type it names.
DEEPSEEK_YARN = TypeRead(
    "yarn", ("factor",), ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), computes=yarn_of_deepseek
)


def always(read: TypeRead, types: Mapping[str, TypeRead]) -> dict[str, TypeRead]:
    """Types for a class that computes one thing from a block of any type but ``default``."""
    return {
        name: known if name == "default" else replace(read, original=types["yarn"].original)
        for name, known in types.items()
    }


def unscaled(types: Mapping[str, TypeRead]) -> dict[str, TypeRead]:
    """Types for a class that hands the base on, and nothing else of the block."""
    return {name: replace(known, takes=(), computes=plain) for name, known in types.items()}


def file_of(case: Case, server: Server) -> str:
    """The file of the class that rotates; a multimodal class hands its text to that of the text type."""
    return server.native.get(case.reading.family.model_type) or server.native.get(case.reading.model_type, "")


def _objects(case: Case) -> Iterator[str]:
    """Blocks within the blocks."""
    for where in BLOCKS:
        block = case.text.get(where)
        if isinstance(block, Mapping):
            yield from (f"{where}.{key}" for key, value in block.items() if isinstance(value, Mapping))


def hear_served(case: Case, server: Server, flat: Dialect, nested: Dialect, unread: Mapping[str, str]) -> Heard:
    """What a server hears by its own class, or else by transformers'; ``unread`` says why it is not known of a type."""
    model_type = case.reading.model_type
    unknown = unread.get(model_type) or unread.get(case.reading.family.model_type)
    if unknown:
        return Heard(unknown=unknown)
    inner = next(_objects(case), None)
    if model_type in server.native and inner and not case.reading.family.kinds:
        return Heard(refusal=f"{inner} is an object, and its class for {model_type} reads one flat block")
    if model_type in server.native:
        return transformers5.hear_by(flat, nested, case)
    if model_type in server.backend:
        return transformers5.hear(case)
    if model_type in TABLE or model_type in COMPOSITES:
        return Heard(refusal=f"it has no class for {model_type}, and cannot run that of transformers")
    return Heard(unknown=f"whether it has a class for {model_type} was not read")
