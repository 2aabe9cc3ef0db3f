"""The flags that make each engine serve an extended checkpoint at its new length.

Read in the engines' sources, versions as in each row; not run here. A row is a function from the facts to a flag line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ropetool.checkpoint.config import Style


@dataclass(frozen=True)
class Served:
    """What the flags depend on: the method as written, lengths in tokens, the base."""

    method: str
    factor: float
    original_length: int
    length: int
    theta: float
    style: Style


@dataclass(frozen=True)
class EngineFlags:
    """One engine's line: what to pass, and what to know."""

    engine: str
    flags: str
    note: str


def _vllm(served: Served) -> EngineFlags:
    note = "reads config.json as written"
    if served.method == "linear":
        note = "multiplies max_position_embeddings by the factor on its own; the flag holds it to the real length"
    return EngineFlags("vllm", f"--max-model-len {served.length}", note)


def _sglang(served: Served) -> EngineFlags:
    note = {
        "yarn": "ignores attention_factor in the block",
        "linear": "multiplies max_position_embeddings by the factor on its own; the flag holds it to the real length",
    }.get(served.method, "reads config.json as written")
    return EngineFlags("sglang", f"--context-length {served.length}", note)


def _llama_cpp(served: Served) -> EngineFlags:
    scale = f"{served.factor:g}"
    flags = {
        "yarn": f"--rope-scaling yarn --rope-scale {scale} --yarn-orig-ctx {served.original_length} -c {served.length}",
        "linear": f"--rope-scaling linear --rope-scale {scale} -c {served.length}",
        "ntk": f"--rope-freq-base {served.theta:.10g} -c {served.length}",
    }.get(served.method, f"-c {served.length}")
    return EngineFlags("llama.cpp", flags, "for a GGUF made before the extension; one made after holds them")


def _transformers(served: Served) -> EngineFlags:
    versions = "version 5 alone" if served.style is Style.V5 else "versions 4 and 5"
    return EngineFlags("transformers", "", f"needs no flag; config.json is read so by {versions}")


ROWS: tuple[Callable[[Served], EngineFlags], ...] = (_transformers, _vllm, _sglang, _llama_cpp)


def engine_flags(served: Served) -> tuple[EngineFlags, ...]:
    """The flags of every engine known, in a fixed order."""
    return tuple(row(served) for row in ROWS)
