"""The arguments of a model's forward for given token ids, with whatever else its class cannot run without.

What is not token ids (an encoder's output, embeddings, patches) is random and the same every time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

ENCODER_TOKENS = 7
Inputs = dict[str, Any]


def default_inputs(model: Any, ids_BT: Tensor) -> Inputs:
    """Token ids, without a cache."""
    parameters = inspect.signature(model.forward).parameters
    values: Inputs = {"input_ids": ids_BT}
    if "use_cache" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        values["use_cache"] = False
    return values


def _random(model: Any, ids_BT: Tensor, *shape: int) -> Tensor:
    """The same random values for every sample, [B, *shape], where and in what the model computes."""
    x = torch.randn(1, *shape, generator=torch.Generator().manual_seed(1))
    return x.expand(len(ids_BT), *shape).contiguous().to(ids_BT.device, model.dtype)


def encoder_inputs(model: Any, ids_BT: Tensor) -> Inputs:
    """Token ids and a random encoder output, for cross attention."""
    config = model.config
    width = getattr(config, "cross_hidden_size", None) or config.hidden_size
    width = config.encoder_config.hidden_size if hasattr(config, "encoder_config") else width
    return default_inputs(model, ids_BT) | {"encoder_hidden_states": _random(model, ids_BT, ENCODER_TOKENS, width)}


def embedded_inputs(model: Any, ids_BT: Tensor) -> Inputs:
    """Embeddings instead of token ids, one random row for each id."""
    table = _random(model, ids_BT[:1], int(ids_BT.max()) + 1, model.config.hidden_size)[0]
    return {"inputs_embeds": table[ids_BT], "use_cache": False}


def codes(channels: Callable[[Any], int]) -> Callable[[Any, Tensor], Inputs]:
    """Several codebooks, all with the same ids."""

    def inputs(model: Any, ids_BT: Tensor) -> Inputs:
        return {"input_ids": ids_BT[:, :, None].expand(-1, -1, channels(model.config)), "use_cache": False}

    return inputs


def dia_inputs(model: Any, ids_BT: Tensor) -> Inputs:
    """Dia's decoder: codebooks and an encoder output."""
    return encoder_inputs(model, ids_BT) | codes(lambda config: int(config.num_channels))(model, ids_BT)


def image_inputs(model: Any, ids_BT: Tensor) -> Inputs:
    """Idefics: token ids and one image that every token sees."""
    width = model.config.vision_config.embed_dim
    return default_inputs(model, ids_BT) | {
        "image_encoder_embeddings": _random(model, ids_BT, 1, ENCODER_TOKENS, width),
        "image_attention_mask": torch.ones(*ids_BT.shape, 1, device=ids_BT.device),
    }


def conditioned_inputs(model: Any, ids_BT: Tensor) -> Inputs:
    """Voxtral's realtime text model: token ids and a condition on the time."""
    return default_inputs(model, ids_BT) | {"t_cond": _random(model, ids_BT, 1, model.config.hidden_size)}


def patch_inputs(model: Any, ids_BT: Tensor) -> Inputs:
    """BLT's local models: one patch for each token."""
    (batch, tokens), config = ids_BT.shape, model.config
    width = getattr(config, "hidden_size_global", config.hidden_size)
    return {
        "input_ids": ids_BT,
        "inputs_embeds": _random(model, ids_BT, tokens, config.hidden_size),
        "patch_embeds": _random(model, ids_BT, tokens, width),
        "num_patches": tokens,
        "patch_ids": torch.arange(tokens, device=ids_BT.device).expand(batch, -1),
        "use_cache": False,
    }
