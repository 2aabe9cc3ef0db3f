"""The rows of doctor: every engine that is known to hear a config, in the order in which it is told."""

from __future__ import annotations

from ropetool.engines import (
    ctranslate2,
    exllamav2,
    llama_cpp,
    llama_cpp_runtime,
    mlx_lm,
    sglang,
    torchtune,
    transformers4,
    transformers5,
    vllm,
)
from ropetool.engines.heard import Listener

LISTENERS: tuple[Listener, ...] = (
    transformers5.ROW,
    transformers4.ROW,
    vllm.ROW,
    sglang.ROW,
    mlx_lm.ROW,
    llama_cpp.ROW,
    llama_cpp_runtime.ROW,
    exllamav2.ROW,
    ctranslate2.ROW,
    torchtune.ROW,
)
