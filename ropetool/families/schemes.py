"""Model types without a rotary embedding, and what they have instead: named, so that a refusal can say why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scheme:
    """A position scheme other than RoPE: its name in ``inspect --json``, and what it means for a longer context."""

    name: str
    sentence: str


LEARNED = Scheme("learned", "it adds a learned table of positions, a hard ceiling on its length")
SINUSOIDAL = Scheme("sinusoidal", "it adds a fixed sinusoidal table to the embeddings")
ALIBI = Scheme("alibi", "it biases attention scores by distance, ALiBi")
RELATIVE_BIAS = Scheme("relative-bias", "it adds a learned bias per distance bucket to attention scores")
RELATIVE_VECTORS = Scheme("relative-vectors", "it attends with learned vectors per relative distance")
NONE = Scheme("none", "it has no position embedding at all")

# Read from transformers 5.24.0, models/<model type>/modeling_*.py: the position embedding module of each.
_BY_SCHEME: tuple[tuple[Scheme, tuple[str, ...]], ...] = (
    (LEARNED, (
        "gpt2", "gpt_neo", "openai-gpt", "bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra",
        "albert", "opt", "biogpt", "bart", "mbart", "blenderbot", "blenderbot-small", "plbart", "gpt_bigcode",
        "layoutlm", "longformer", "led", "clip", "vit", "git", "trocr",
    )),
    (SINUSOIDAL, ("marian", "pegasus", "m2m_100", "xglm", "fsmt", "speech_to_text", "whisper", "musicgen_decoder")),
    (ALIBI, ("bloom", "mpt")),
    (RELATIVE_BIAS, ("t5", "mt5", "umt5", "longt5", "switch_transformers", "udop", "pix2struct", "pop2piano")),
    (RELATIVE_VECTORS, ("xlnet", "transfo-xl", "deberta", "deberta-v2", "funnel")),
    (NONE, ("mamba", "mamba2", "rwkv", "falcon_mamba")),
)  # fmt: skip

_SCHEMES = {model_type: scheme for scheme, types in _BY_SCHEME for model_type in types}


def scheme_of(model_type: str) -> Scheme | None:
    """The scheme of a model type known to have no RoPE, None for any other type."""
    return _SCHEMES.get(model_type)
