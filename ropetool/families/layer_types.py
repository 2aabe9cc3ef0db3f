"""Which kind of mixer each layer of a model has: attention over all tokens, over a window, or none that keeps tokens.

A config tells it by a list, by indices, or not at all; then the class fills in a pattern, which ``layer_types.json``
holds for transformers 5.24.0 as ``tools/read_layer_types.py`` found it by building the classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.checkpoint.config import count
from ropetool.errors import ConfigError
from ropetool.families.reading import Reading

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
# What keeps every token; `reference_sliding_attention` keeps the whole prompt, and a window of what follows.
ATTENTION = frozenset(
    (FULL, "attention", "hybrid", "indexed_attention", "minimax_m3_sparse", "reference_sliding_attention")
)
# What keeps a window of tokens, and the keys of its width.
WINDOWED: Mapping[str, tuple[str, ...]] = {
    SLIDING: ("sliding_window", "attention_window_size"),
    "hybrid_sliding": ("sliding_window",),
    CHUNKED: ("attention_chunk_size",),
}
# Mixers that keep a state of one size however many tokens there are, and layers that mix no tokens.
WITHOUT_TOKENS = frozenset(("linear_attention", "mamba", "conv", "short_conv", "recurrent", "moe", "mlp"))
# Lists of one type per layer, and one that is repeated to the number of layers.
LISTS = ("layer_types", "layers_block_type")
REPEATED = "block_types"
# Lists of the layers that have attention; all others have another mixer.
ATTENTION_AT = ("attn_layer_indices", "full_attn_idxs")
FILLED_IN: Mapping[str, Mapping[str, Any]] = json.loads(Path(__file__).with_name("layer_types.json").read_text("utf-8"))


@dataclass(frozen=True)
class LayerTypes:
    """One type per layer; ``unstated`` is why they are not known, empty where they are: then all are taken as full."""

    types: tuple[str, ...]
    unstated: str = ""


def layer_types(reading: Reading) -> LayerTypes:
    """The type of every layer of the text decoder; raises `ConfigError` where their number is not known."""
    config, rule = reading.config, FILLED_IN.get(reading.family.model_type, {})
    key = rule.get("layers", "num_hidden_layers")
    layers = count(config, key)
    if layers is None:
        raise ConfigError(f"config.json has no {key}, so the number of layers is not known; add it", key=key)
    return _stated(config, layers) or _filled_in(reading, rule, layers)


def _stated(config: Mapping[str, Any], layers: int) -> LayerTypes | None:
    """What config.json says itself."""
    for name in (*LISTS, REPEATED):
        stated = config.get(name)
        if isinstance(stated, list) and stated:
            if len(stated) < layers and name != REPEATED:
                raise ConfigError(f"{name} has {len(stated)} entries for {layers} layers", key=name)
            return LayerTypes(tuple(str(stated[index % len(stated)]) for index in range(layers)))
    for name in ATTENTION_AT:
        chosen = config.get(name)
        if isinstance(chosen, list):
            return LayerTypes(tuple(FULL if index in chosen else "linear_attention" for index in range(layers)))
    return None


def _filled_in(reading: Reading, rule: Mapping[str, Any], layers: int) -> LayerTypes:
    """What the class fills in where config.json has no list."""
    config, windowed = reading.config, window_tokens(reading, SLIDING) is not None
    if reading.family.probed and windowed:
        rule = {"unstated": "always"}  # no class of the table, so what it fills in was never read
    if "cycle" in rule:
        every = count(config, rule["every"]) if "every" in rule else None
        cycle = [rule["cycle"][0]] * (every - 1) + [rule["cycle"][-1]] if every else rule["cycle"]
        types = [cycle[index % len(cycle)] for index in range(layers)]
        return LayerTypes(tuple([*types[:-1], rule["last"]] if "last" in rule else types))
    if rule.get("unstated") == "always" or ("unstated" in rule and windowed):
        said = f"config.json has no layer_types, and the class of {reading.family.model_type} fills in its own"
        return LayerTypes((FULL,) * layers, said)
    if windowed:  # transformers 5.24.0, cache_utils.py, get_layer_types_and_kwargs: a window alone is every layer's
        first = count(config, "max_window_layers") or rule["window_from"] if "window_from" in rule else 0
        return LayerTypes(tuple(SLIDING if index >= first else FULL for index in range(layers)))
    kind = CHUNKED if window_tokens(reading, CHUNKED) else FULL
    return LayerTypes((kind,) * layers)


def window_tokens(reading: Reading, layer_type: str) -> int | None:
    """How many tokens a layer of a type looks back, None where it has no limit or config.json names none."""
    config = reading.config
    used = config.get("use_sliding_window", reading.family.defaults.get("use_sliding_window", True))
    if layer_type == SLIDING and not used:
        return None
    return next((width for key in WINDOWED.get(layer_type, ()) if (width := _width(config, key)) is not None), None)


def _width(config: Mapping[str, Any], key: str) -> int | None:
    """A window in tokens; 0 means none, as null does (Qwen2-MoE's class writes it so)."""
    return None if config.get(key) == 0 else count(config, key)


def unknown_types(types: Iterable[str]) -> list[str]:
    """The types of which it is not known what they keep."""
    return sorted(set(types) - ATTENTION - WINDOWED.keys() - WITHOUT_TOKENS)
