"""The KV cache by the config against the tensors that the classes of transformers really keep, over the whole table."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from ropetool.families.kv_cache import ENCODERS, UNCOUNTED, KvCache, kv_cache
from ropetool.families.reading import Reading, read_model
from ropetool.families.table import TABLE
from ropetool.models import tiny
from ropetool.models.catalog import inputs_of

TOKENS = 40  # more than the windows of tiny models, which are 16
# What the layers of a cache hold for each token; conv_states and recurrent_states do not grow.
KEPT = ("keys", "values", "indexer_keys", "idx_keys", "prefill_keys", "prefill_values")
# Models inside another one, which makes their cache.
HANDED = {"dia_decoder", "granite4_vision_text", "recurrent_gemma"}


def filled(built: tiny.Built, tokens: int) -> Any:
    """The cache of a model after ``tokens`` tokens; None where it keeps none."""
    ids = torch.randint(2, 60, (1, tokens), generator=torch.Generator().manual_seed(3))
    arguments = inputs_of(built.config.model_type)(built.model, ids) | {"use_cache": True}
    if built.config.model_type in HANDED:
        own = (DynamicCache(config=built.config) for _ in range(2))
        both = "encoder_hidden_states" in arguments
        arguments["cache"] = EncoderDecoderCache(*own) if both else next(own)
    if "cache" not in inspect.signature(built.model.forward).parameters:
        del arguments["use_cache"]
    with torch.no_grad():
        out = built.model(**arguments)
    return arguments.get("cache") or getattr(out, "cache", None)


def values_in(cache: Any) -> int:
    """The entries of all tensors that grow with the text."""
    own = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    held = (getattr(layer, name, None) for layer in own.layers for name in KEPT)
    return sum(tensor.numel() for tensor in held if isinstance(tensor, torch.Tensor))


def read(built: tiny.Built) -> Reading:
    """The config as it would be saved."""
    return read_model(json.loads(built.config.to_json_string(use_diff=False)))


@pytest.mark.parametrize("model_type", sorted(TABLE.keys() - UNCOUNTED.keys()))
def test_the_bytes_are_those_that_the_class_keeps(model_type: str) -> None:
    built = tiny.build(model_type)
    told, cache = kv_cache(read(built), TOKENS), filled(built, TOKENS)
    assert (cache is None) == (model_type in ENCODERS), told.note
    if cache is None:
        assert (told.bytes, told.note) == ({}, "an encoder keeps no cache")
        return
    # A layer with a window drops one more than it must once that is full: the next token comes in its place
    # (transformers 5.24.0, cache_utils.py, DynamicSlidingWindowLayer.update).
    dropped = kv_cache(read(built), 1).bytes_per_token["bf16"] - told.bytes_per_token["bf16"]
    assert told.bytes["bf16"] - dropped == 2 * values_in(cache) > 0
    assert told.bytes["fp8"] * 2 == told.bytes["bf16"]


LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_hidden_layers": 32, "max_position_embeddings": 8192, "rope_theta": 500000.0,
}  # fmt: skip
MISTRAL = {**LLAMA_3_8B, "model_type": "mistral", "sliding_window": 4096}
QWEN2 = {**LLAMA_3_8B, "model_type": "qwen2", "num_key_value_heads": 4, "sliding_window": 4096, "max_window_layers": 28}
GEMMA_2 = {
    "model_type": "gemma2", "hidden_size": 3584, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
    "num_hidden_layers": 42, "max_position_embeddings": 8192, "sliding_window": 4096,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_attention_heads": 128, "num_key_value_heads": 128,
    "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "max_position_embeddings": 4096, "rope_theta": 10000.0,
}  # fmt: skip
QWEN3_NEXT = {
    "model_type": "qwen3_next", "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "num_hidden_layers": 48, "max_position_embeddings": 262144, "rope_theta": 1e7,
}  # fmt: skip
K = 1024
# config, tokens, bytes per further token in bf16, bytes at that length; both counted by hand.
COUNTED = (
    (LLAMA_3_8B, 128 * K, 32 * 2 * 8 * 128 * 2, 16 << 30),
    (MISTRAL, 2 * K, 131072, 131072 * 2 * K),
    (MISTRAL, 32 * K, 0, 131072 * 4 * K),
    (QWEN2, 32 * K, 32 * 2 * 4 * 128 * 2, 65536 * 32 * K),
    ({**QWEN2, "use_sliding_window": True}, 32 * K, 28 * 2048, (28 * 32 * K + 4 * 4 * K) * 2048),
    ({**QWEN2, "use_sliding_window": True, "max_window_layers": 8}, 32 * K, 8 * 2048, (8 * 32 + 24 * 4) * K * 2048),
    (GEMMA_2, 8 * K, 21 * 2 * 8 * 256 * 2, 21 * 8192 * (8 + 4) * K),
    (DEEPSEEK_V3, 128 * K, 61 * 576 * 2, 61 * 576 * 2 * 128 * K),
    (QWEN3_NEXT, 256 * K, 12 * 2 * 2 * 256 * 2, 12 * 2048 * 256 * K),
)  # fmt: skip


@pytest.mark.parametrize(("config", "tokens", "per_token", "total"), COUNTED)
def test_numbers_counted_by_hand(config: dict[str, Any], tokens: int, per_token: int, total: int) -> None:
    told = kv_cache(read_model(config), tokens)
    assert (told.bytes_per_token["bf16"], told.bytes["bf16"], told.length) == (per_token, total, tokens)
    assert "at most:" not in told.note


def test_mla_says_what_it_is_expanded() -> None:
    told = kv_cache(read_model(DEEPSEEK_V3), 1000)
    assert told.expanded_bytes == {"bf16": 61 * 128 * (192 + 128) * 2 * 1000, "fp8": 61 * 128 * (192 + 128) * 1000}
    assert kv_cache(read_model(LLAMA_3_8B), 1000).expanded_bytes == {}


def without(config: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in keys}


SHARED = {
    **GEMMA_2, "model_type": "gemma3n_text", "num_hidden_layers": 30,
    "layer_types": ["sliding_attention"] * 4 * 6 + ["full_attention"] * 6,
}  # fmt: skip
# config, words of the note, and how many layers keep every token.
NOTED = (
    (QWEN3_NEXT, "36 of 48 layers keep a state that does not grow", 12),
    (MISTRAL, "32 of 32 layers keep at most 4096 tokens", 0),
    (GEMMA_2, "21 of 42 layers keep at most 4096 tokens", 21),
    (without(GEMMA_2, "sliding_window"), "at most: config.json names no window for sliding_attention layers", 42),
    (SHARED, "15 of 30 layers keep no keys of the text", 0),
    ({**SHARED, "num_kv_shared_layers": 0}, "24 of 30 layers keep at most", 6),
    ({**LLAMA_3_8B, "model_type": "smollm3", "sliding_window": 512, "use_sliding_window": True}, "at most: config", 32),
)  # fmt: skip


@pytest.mark.parametrize(("config", "words", "layers"), NOTED)
def test_the_note_says_what_is_counted(config: dict[str, Any], words: str, layers: int) -> None:
    told = kv_cache(read_model(config), 1 << 20)
    assert words in told.note
    assert told.bytes_per_token["bf16"] == layers * one_layer(config)


def one_layer(config: dict[str, Any]) -> int:
    geometry = read_model(config).geometry
    return 2 * geometry.kv_heads * 2 * geometry.head_dim


# config, and why there is no figure.
WITHOUT_FIGURE = (
    (without(LLAMA_3_8B, "num_hidden_layers"), "no num_hidden_layers, so the number of layers is not known"),
    ({**QWEN3_NEXT, "layer_types": ["new_mixer"] * 48}, "layers of type new_mixer keep of a token is not known"),
    ({**QWEN3_NEXT, "layer_types": ["full_attention"] * 40}, "layer_types has 40 entries for 48 layers"),
    ({**LLAMA_3_8B, "model_type": "modernbert"}, "an encoder keeps no cache"),
)  # fmt: skip


@pytest.mark.parametrize(("config", "words"), WITHOUT_FIGURE)
def test_no_figure_without_a_reason(config: dict[str, Any], words: str) -> None:
    told = kv_cache(read_model(config), 4096)
    assert words in told.note
    assert told == KvCache(4096, note=told.note)


def test_a_multimodal_config_counts_its_text_decoder() -> None:
    whole = {"model_type": "llava", "text_config": LLAMA_3_8B, "vision_config": {"num_hidden_layers": 24}}
    assert kv_cache(read_model(whole), 100) == kv_cache(read_model(LLAMA_3_8B), 100)
