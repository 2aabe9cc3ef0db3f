"""Keys of a config that tell a layout and that the model's own class does not read: who does, and what they say.

A key that every engine passes over still says what somebody meant. ``mrope_interleaved`` is none of them: it tells how
the sections of a multimodal rotation alternate, not which rows make a pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ropetool.engines.rows import ROWS
from ropetool.families.joined import KEY, OBEYED
from ropetool.families.reading import Evidence, Reading, Warn
from ropetool.rope.layout import Pairing


@dataclass(frozen=True)
class DeclaredKey:
    """What true means, and the program whose own config has the key, with its source."""

    true_means: Pairing
    whose: str


_ADJACENT = Pairing.INTERLEAVED
KEYS: Mapping[str, DeclaredKey] = {
    "rope_traditional": DeclaredKey(_ADJACENT, "mlx-lm 0.32.2, models/rope_utils.py"),
    "rope_is_neox_style": DeclaredKey(Pairing.HALF, "SGLang 0.5.23, srt/models/llama.py"),
    "is_neox_style": DeclaredKey(
        Pairing.HALF, "vLLM 0.33.0, layers/rotary_embedding: an argument, in no config of its own"
    ),
    "rope_interleave": DeclaredKey(_ADJACENT, "transformers 5.24, models/deepseek_v3, and litgpt 0.5.13"),
    "rope_interleaved": DeclaredKey(_ADJACENT, "nanotron, config/models_config.py: LlamaConfig"),
    "rotary_interleaved": DeclaredKey(_ADJACENT, "Megatron-LM, core/models/common/embeddings/rope_utils.py"),
    "rotary_emb_interleaved": DeclaredKey(_ADJACENT, "flash-attn, modules/mha.py"),
    "rotary_interleave": DeclaredKey(_ADJACENT, "CTranslate2 4.8.5, specs/attention_spec.py"),
}


def declared_keys(reading: Reading) -> tuple[tuple[Evidence, ...], tuple[Warn, ...]]:
    """What the keys say that the class does not obey, and warnings of values that say nothing."""
    found, warnings = [], []
    for key, row in KEYS.items():
        value = reading.config.get(key)
        if value is None or key == reading.family.pairing_key:
            continue
        if not isinstance(value, bool):
            warnings.append(
                Warn("pairing-key", f"{key} is {value!r} in config.json, neither true nor false; it is passed over")
            )
            continue
        says = row.true_means if value else row.true_means.other
        figures = {KEY: key, OBEYED: False, "read_by": list(_readers(key, reading))}
        found.append(Evidence("config", says.value, _detail(key, value, row, reading), figures=figures))
    return tuple(found), tuple(warnings)


def _detail(key: str, value: bool, row: DeclaredKey, reading: Reading) -> str:
    readers = ", ".join(_readers(key, reading))
    who = f"{readers} obeys it" if readers else f"a key of {row.whose}, which no engine that is known obeys"
    return f"{key} is {str(value).lower()}: {who} for {reading.model_type}, and its class in transformers does not"


def _readers(key: str, reading: Reading) -> Iterator[str]:
    """The engines whose class for this type obeys the key."""
    for engine in ROWS:
        if any(key in way.keys for way in engine.ways(reading).values()):
            yield f"{engine.name.value} {engine.version}"
