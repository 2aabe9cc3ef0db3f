"""The flags that make each engine serve an extended checkpoint at its new length.

Read in the engines' sources, versions as in each row; not run here. A row is a function from the facts to a flag line.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Served:
    """What the flags depend on: the method as written, lengths in tokens, the base."""

    method: str
    factor: float
    original_length: int
    length: int
    theta: float


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
    note = "ignores attention_factor in the block" if served.method == "yarn" else "reads config.json as written"
    return EngineFlags("sglang", f"--context-length {served.length}", note)


def _llama_cpp(served: Served) -> EngineFlags:
    scale = f"{served.factor:g}"
    flags = {
        "yarn": f"--rope-scaling yarn --rope-scale {scale} --yarn-orig-ctx {served.original_length} -c {served.length}",
        "linear": f"--rope-scaling linear --rope-scale {scale} -c {served.length}",
        "ntk": f"--rope-freq-base {served.theta:.10g} -c {served.length}",
    }[served.method]
    return EngineFlags("llama.cpp", flags, "for a GGUF made before the extension; one made after holds them")


def _transformers(served: Served) -> EngineFlags:
    return EngineFlags("transformers", "", "needs no flag: config.json says it in the style of versions 4 and 5")


ROWS: tuple[Callable[[Served], EngineFlags], ...] = (_transformers, _vllm, _sglang, _llama_cpp)


def engine_flags(served: Served) -> tuple[EngineFlags, ...]:
    """The flags of every engine known, in a fixed order."""
    return tuple(row(served) for row in ROWS)
