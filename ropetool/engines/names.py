"""The engines by name, in a module of their own so that naming them costs no import."""

from __future__ import annotations

from enum import Enum


class EngineName(str, Enum):
    """What may load a checkpoint."""

    TRANSFORMERS = "transformers"
    MLX_LM = "mlx-lm"
    SGLANG = "sglang"
    TORCHTUNE = "torchtune"
    CTRANSLATE2 = "ctranslate2"
    VLLM = "vllm"
    LLAMA_CPP = "llama.cpp"
    EXLLAMAV2 = "exllamav2"


class Origin(str, Enum):
    """How a fact about an engine is known: run here, read in its source, or told in its documents and threads."""

    RAN = "ran"
    READ = "read"
    TOLD = "told"
