"""llama.cpp's runtime: how it turns by the GGUF that its converter makes of a checkpoint.

Read in build 11549 (the source package xllamacpp 2026.10.11549): src/llama-context.cpp (the constructor of
llama_context), src/llama-model.cpp (`load_hparams`, `get_rope_factors`), src/models, ggml/src/ggml-cpu/ops.cpp
(`rope_yarn`), common/arg.cpp.
"""

from __future__ import annotations

from dataclasses import replace

from ropetool.engines import llama_cpp
from ropetool.engines.compare import TOLERANCE
from ropetool.engines.heard import Case, Heard, Listener
from ropetool.engines.llama_cpp import WITH_MSCALE, gguf_of, read_block
from ropetool.engines.llama_cpp_flags import scaling_flags
from ropetool.engines.names import EngineName, Origin
from ropetool.rope.frequencies import Default, Linear, Llama3, LongRope, Scaling, Yarn

# Graphs that take beta_fast and beta_slow from the GGUF; all others turn by 32 and 1 unless flags say otherwise.
WITH_BETAS = ("MISTRAL3",)
# Architectures that the converter writes llama3's factors for, and whose graphs take no such tensor.
NO_ROPE_FREQS = ("AFMOE", "SMOLLM3")
BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}


def hear(case: Case) -> Heard:
    """What the runtime makes of the GGUF, served without flags at its full length."""
    heard = llama_cpp.hear(case)
    if heard.refusal or heard.unknown:
        return heard
    gguf = gguf_of(case).gguf
    if gguf in NO_ROPE_FREQS and isinstance(heard.turns[0].scaling, Llama3):
        return Heard(refusal=f"the GGUF holds llama3's factors, and its graph for {case.reading.model_type} takes none")
    turns = tuple(replace(turn, scaling=_turned(turn.scaling, gguf, heard.length)) for turn in heard.turns)
    overwritten = _overwritten(case, gguf) if isinstance(turns[0].scaling, Yarn) else ()
    # tools/server, n_ctx_slot: no request is longer than the GGUF's context_length, whatever -c says.
    return replace(heard, turns=turns, ignores=(*heard.ignores, *overwritten), stops=True)


def _turned(scaling: Scaling, gguf: str, length: int | None) -> Scaling:
    if isinstance(scaling, LongRope):
        # One set of factors for a whole context, by its size; minicpm.py writes no original length to go by.
        long = length is not None and length > scaling.original_length and gguf == "PHI3"
        factors = scaling.long_factor if long else scaling.short_factor
        return replace(scaling, short_factor=factors, long_factor=factors)
    if not isinstance(scaling, Yarn):
        return scaling
    # The attention factor is set anew from the factor, and the ends of the ramp are always whole pairs.
    bare = Yarn(scaling.theta, scaling.factor, scaling.original_length)
    if gguf in WITH_BETAS:
        bare = replace(bare, beta_fast=scaling.beta_fast, beta_slow=scaling.beta_slow)
    if gguf in WITH_MSCALE and scaling.mscale_all_dim:
        same = gguf == "DEEPSEEK2" and scaling.mscale_all_dim != 1
        bare = replace(bare, mscale=scaling.mscale_all_dim if same else 1.0, mscale_all_dim=scaling.mscale_all_dim)
    return bare


def _overwritten(case: Case, gguf: str) -> tuple[str, ...]:
    """Keys that the converter writes into the GGUF, and that the runtime does not turn by."""
    read = read_block(case)
    betas = () if gguf in WITH_BETAS else BETAS
    keys = [key for key in betas if read.block.get(key) not in (None, BETAS[key])]
    if read.block.get("attention_factor") is not None:
        keys.append("attention_factor")
    return tuple(f"{read.where}.{key}" for key in keys)


def flags(case: Case) -> str:
    """Flags by which it turns as the checkpoint means, whatever the GGUF says; empty where there are none."""
    heard, rotation = hear(case), case.reading.rotations[0]
    true, length = rotation.scaling, case.reading.reach
    if not heard.turns or length is None or not isinstance(heard.turns[0].scaling, (Default, Linear, Yarn)):
        return ""
    text = scaling_flags(true, length)
    if not text or (isinstance(true, Yarn) and not _is_standard(true)):
        return ""
    for key in [key for key, standard in BETAS.items() if getattr(true, key, standard) != standard]:
        text += f" --yarn-{key.replace('_', '-')} {getattr(true, key):g}"
    if not isinstance(true, Default) and heard.turns[0].scaling.theta != true.theta:
        text += f" --rope-freq-base {true.theta:.10g}"
    return text


def _is_standard(yarn: Yarn) -> bool:
    """Whether nothing but the betas, which have flags, differs from what it computes itself."""
    plain = Yarn(yarn.theta, yarn.factor, yarn.original_length)
    return yarn.truncate and abs(yarn.attention_factor / plain.attention_factor - 1) < TOLERANCE


ROW = Listener(
    EngineName.LLAMA_CPP, llama_cpp.VERSION, "src/llama-context.cpp, src/llama-model.cpp, src/models", Origin.READ,
    hear, part="runtime", length_flag="-c {}", flag_lifts=False, flags=flags,
)  # fmt: skip
