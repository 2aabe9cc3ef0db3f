"""mlx-lm's row against mlx-lm itself, where it is installed: its classes are built from each config."""

from __future__ import annotations

import copy
import importlib.util
import json
from typing import Any

import numpy as np
import pytest

from ropetool.engines import mlx_lm
from ropetool.engines.opening import open_case
from tests.engines.test_transformers import BASE, BLOCKS, KINDS, ODD, THETA, TYPES, WITH_16, v4, v5

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mlx_lm") is None,
    reason="mlx-lm is no dependency; its row is checked where it is installed (make test)",
)

LLAMA = {"rms_norm_eps": 1e-5, "tie_word_embeddings": False, "head_dim": 16, "attention_bias": False}
YARN = BLOCKS["yarn"]
V4_OR_V5 = {"plain": {}, "v4": v4(YARN), "v5": v5(YARN), "dual": v5(YARN) | v4(YARN)}
GEMMA3 = {"model_type": "gemma3_text", **KINDS, "sliding_window_pattern": 2, "layer_types": TYPES[::-1]}
PHI3 = {"model_type": "phi3", **LLAMA}
LISTS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
CONFIGS: dict[str, dict[str, Any]] = {
    **{f"{name}, v5": v5(block) for name, block in BLOCKS.items()},
    **{f"{name}, v4": v4(block) for name, block in BLOCKS.items()},
    **ODD,
    **{
        f"{model_type}, {name}": {"model_type": model_type, **config}
        for model_type in ("mistral", "qwen2", "qwen3", "cohere", "gemma2", "mixtral", "ernie4_5", "granite")
        for name, config in V4_OR_V5.items()
    },
    "phi3, v4": {**PHI3, "rope_scaling": {**LISTS, "type": "longrope"}, **WITH_16},
    "phi3, su": {**PHI3, "rope_scaling": {**LISTS, "type": "su"}, **WITH_16},
    "phi3, no type": {**PHI3, "rope_scaling": {**LISTS, "rope_type": "longrope"}, **WITH_16},
    "phi3, v5": {**PHI3, **v5({**LISTS, "rope_type": "longrope"}, **WITH_16)},
    "phi3, unknown type": {**PHI3, "rope_scaling": {**LISTS, "type": "yarn"}, **WITH_16},
    "gemma3_text, v4": {**GEMMA3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_theta": THETA},
    "gemma3_text, v5": {
        **GEMMA3, "rope_parameters": {name: {"rope_type": "default", "rope_theta": THETA} for name in TYPES},
    },
}  # fmt: skip
# What mlx-lm asks for and transformers fills in, by its own class's name.
MORE: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 2, "num_experts_per_tok": 1}, "granite": {
        "logits_scaling": 1.0, "attention_multiplier": 1.0, "embedding_multiplier": 1.0, "residual_multiplier": 1.0,
        "mlp_bias": False,
    }, "ernie4_5": {"use_bias": False}, "gemma3_text": {"num_hidden_layers": 2},
}  # fmt: skip


def live(config: dict[str, Any]) -> dict[str, tuple[list[float], float, bool]] | None:
    """By kind of layer: frequencies, factor on q and k, adjacent pairs; None where mlx-lm raises."""
    from mlx.nn import RoPE
    from mlx_lm.models import rope_utils
    from mlx_lm.utils import _get_classes

    model_class, arguments = _get_classes(config)
    try:
        model = model_class(arguments.from_dict(copy.deepcopy(config)))
    except (TypeError, ValueError, KeyError, AttributeError, AssertionError):
        return None
    own = tuple(found for name, found in vars(rope_utils).items() if isinstance(found, type) and "RoPE" in name)
    found = {}
    for name, module in sorted(model.named_modules(), key=lambda entry: entry[0]):
        if isinstance(module, (RoPE, *own)):
            layer = int(name.split("layers.")[1].split(".")[0])
            found[TYPES[1 - layer] if "gemma3" in config["model_type"] else "all"] = numbers(module)
    return None if any(np.isnan(factor) for _, factor, _ in found.values()) else found


def numbers(module: Any) -> tuple[list[float], float, bool]:
    dims = getattr(module, "dims", None) or module.dim
    if hasattr(module, "_freqs"):
        inv_freq = 1 / np.array(module._freqs, dtype=np.float64)
    elif module.base is None:  # it fails on the first token
        return [], float("nan"), False
    else:
        inv_freq = getattr(module, "scale", 1.0) * module.base ** (-np.arange(0, dims, 2) / dims)
    factor = getattr(module, "mscale", getattr(module, "_scale", 1.0))
    return inv_freq.tolist(), float(factor), bool(getattr(module, "traditional", False))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_row_hears_what_the_class_computes(name: str) -> None:
    config = {**BASE, **LLAMA, **CONFIGS[name]}
    config |= MORE.get(config["model_type"], {})
    heard, truth = mlx_lm.ROW.hears(open_case(json.loads(json.dumps(config)))), live(config)
    said = f"heard {heard}; live {truth}"
    assert bool(heard.refusal) == (truth is None), said
    for turn in heard.turns:
        inv_freq, factor, traditional = (truth or {})[turn.layers]
        assert len(inv_freq) == turn.rotary_dim // 2, said
        assert np.allclose(turn.scaling.inv_freq(turn.rotary_dim), inv_freq, rtol=1e-5, atol=0), said
        assert np.isclose(turn.scaling.attention_factor, factor, rtol=1e-6), said
        assert (heard.pairing == "interleaved") == traditional, said
