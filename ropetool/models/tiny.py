"""Tiny random models of any RoPE model type that the installed transformers builds.

The geometry avoids coincidences: 8 heads and 2 kv heads (heads/kv is not kv), heads x head_dim is not the hidden
size where the class allows it, biases and norm weights are random. Sizes are found by the config's own
attribute names; what a type needs beyond that is in `SPECIAL`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ropetool.models.capture import ENCODER_TOKENS, TOKENS

ROTARY_KEYS = (
    "rope_parameters", "rope_theta", "rotary_dim", "rotary_value", "rotary_pct", "rotary_emb_base",
    "partial_rotary_factor", "rotary_emb_fraction",
)  # fmt: skip
PARTIAL_KEYS = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_dim", "rotary_emb_fraction")

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 96, 8, 2, 16, 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "n_embd": HIDDEN, "d_model": HIDDEN, "dim": HIDDEN,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2,
    "num_attention_heads": HEADS, "n_head": HEADS, "n_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "num_kv_heads": KV_HEADS, "head_dim": HEAD_DIM,
    "intermediate_size": 32, "n_inner": 32, "ffn_dim": 32, "moe_intermediate_size": 16, "ffn_hidden_size": 32,
    "shared_expert_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16, "shared_intermediate_size": 16,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "moe_num_experts": 4, "num_experts_per_tok": 2,
    "moe_topk": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1, "num_shared_experts": 1,
    "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
    "index_n_heads": 4, "index_head_dim": 16, "index_topk": 4,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "sliding_window": 16, "attention_chunk_size": 16,
    "embedding_size": HIDDEN, "type_vocab_size": 2, "first_k_dense_replace": 1,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB, "laurel_rank": 8,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1,
    "mamba_d_state": 8, "mamba_n_heads": 8, "mamba_d_head": 24, "mamba_n_groups": 1, "mamba_chunk_size": 8,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip


class CannotBuild(Exception):
    """No tiny model of the type could be built; the message is the reason."""


@dataclass(frozen=True)
class Built:
    """A tiny model, in eval mode, and the arguments of its forward for a batch size."""

    model: Any
    inputs: Callable[[int], dict[str, Any]]
    config: Any


@dataclass(frozen=True)
class Special:
    """What one model type needs beyond `SIZES`: config values, ways of building, inputs."""

    values: Mapping[str, Any] = field(default_factory=dict)
    class_name: str | None = None
    inputs: Callable[[Any, int], dict[str, Any]] | None = None


SPECIAL: dict[str, Special] = {}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def rope_model_types() -> tuple[str, ...]:
    """Every model type with token positions and RoPE, found by asking its config and its modeling file.

    A type counts if its config has a vocabulary, a modeling file has a class for it, and either the config has a
    rotary key or the modeling file defines a rotary embedding. Composite configs do not count: their
    text part has a type of its own.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    with _quiet():
        return tuple(t for t in sorted(CONFIG_MAPPING_NAMES) if _has_rope(t))


def config_class(model_type: str) -> Any:
    """The config class of a model type."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type]


def _default(model_type: str) -> Any:
    try:
        return config_class(model_type)()
    except Exception:  # noqa: BLE001 - a config without defaults raises what it likes
        return None


def _has_rope(model_type: str) -> bool:
    config = _default(model_type)
    if config is None or not isinstance(getattr(config, "vocab_size", None), int):
        return False
    keyed = any(hasattr(config, key) for key in ROTARY_KEYS)
    if not keyed and (config.sub_configs or not _defines_rotary(config)):
        return False
    return model_class(model_type) is not None


def modeling_file(config: Any) -> Path:
    """The modeling file beside the config's class."""
    path = Path(inspect.getfile(type(config)))
    return path.with_name(path.name.replace("configuration_", "modeling_"))


def _defines_rotary(config: Any) -> bool:
    path = modeling_file(config)
    return path.is_file() and re.search(r"^class \w*(Rotary|RoPE|Rope)\w*\(", path.read_text("utf-8"), re.M) is not None


def model_class(model_type: str) -> Any:
    """The class to build: the causal language model, else the base model, else the file's own class for the config."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    special = SPECIAL.get(model_type)
    kind = config_class(model_type)
    if special is None or special.class_name is None:
        for mapping in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING):
            if kind in mapping:
                found = mapping[kind]
                found = found[0] if isinstance(found, tuple) else found
                if _takes(found, kind):
                    return found
    return _own_class(kind, special.class_name if special else None)


def _takes(model: Any, kind: Any) -> bool:
    wanted = getattr(model, "config_class", None)
    return wanted is None or issubclass(kind, wanted) or not getattr(wanted, "sub_configs", None)


def _own_class(kind: Any, name: str | None) -> Any:
    from transformers import PreTrainedModel

    try:
        module = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
    except ImportError:
        return None
    if name is not None:
        return getattr(module, name)
    own = [
        c
        for c in vars(module).values()
        if inspect.isclass(c)
        and issubclass(c, PreTrainedModel)
        and c.__module__ == module.__name__
        and getattr(c, "config_class", None) is kind
        and "forward" in vars(c)
    ]
    own.sort(key=lambda c: ("CausalLM" not in c.__name__, not c.__name__.endswith("Model"), c.__name__))
    return own[0] if own else None


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """A config of the type with tiny sizes; raises `CannotBuild` with the config's own words."""
    kind = config_class(model_type)
    default = _default(model_type)
    values = {key: value for key, value in SIZES.items() if _settable(kind, default, key)}
    if any(_settable(kind, default, key) for key in PARTIAL_KEYS) or _is_partial(default):
        values.update({"head_dim": 32} if "head_dim" in values else {})
        if "head_dim" not in values:
            values.update({k: 256 for k in ("hidden_size", "n_embd", "d_model", "embedding_size") if k in values})
    if "kv_lora_rank" in values:
        values.pop("head_dim", None)
        values["num_key_value_heads"] = HEADS
    if "rotary_dim" in values or hasattr(default, "rotary_dim"):
        values["rotary_dim"] = 16
    values.update(_layer_values(default))
    values.update(SPECIAL[model_type].values if model_type in SPECIAL else {})
    values.update(overrides)
    try:
        return kind(**values)
    except Exception as error:  # noqa: BLE001 - config validators raise what they like
        raise CannotBuild(f"no tiny config: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def _settable(kind: Any, default: Any, key: str) -> bool:
    if key in getattr(kind, "attribute_map", {}):
        return False
    parameters = inspect.signature(kind.__init__).parameters
    return key in parameters or key in getattr(kind, "__dataclass_fields__", {}) or (
        default is not None and key in vars(default)
    )


def _is_partial(default: Any) -> bool:
    block = getattr(default, "rope_parameters", None)
    blocks = [block, *block.values()] if isinstance(block, dict) else []
    return any(isinstance(b, dict) and b.get("partial_rotary_factor", 1.0) not in (1.0, None) for b in blocks)


def _layer_values(default: Any) -> dict[str, Any]:
    """One layer of every kind that the default config has, in order of appearance; two at least."""
    kinds = getattr(default, "layer_types", None)
    if not isinstance(kinds, (list, tuple)) or not kinds:
        return {}
    chosen = list(dict.fromkeys(kinds))
    chosen = chosen * 2 if len(chosen) == 1 else chosen
    return {"layer_types": chosen, "num_hidden_layers": len(chosen)}


def build(model_type: str, seed: int = 0, **overrides: Any) -> Built:
    """A tiny random model of the type, in float32 and eval mode, the same for the same seed.

    Raises `CannotBuild` with the reason if config or model refuse.
    """
    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = tiny_config(model_type, **overrides)
        kind = model_class(model_type)
        if kind is None:
            raise CannotBuild("transformers has no model class for this config")
        try:
            model = kind(config) if not hasattr(kind, "_from_config") else kind._from_config(config)
        except Exception as error:  # noqa: BLE001 - model constructors raise what they like
            words = " ".join(str(error).split())[:200]
            raise CannotBuild(f"no tiny model: {type(error).__name__}: {words}") from error
        model = model.float().eval()
        randomise(model)
    special = SPECIAL.get(model_type)
    make = special.inputs if special and special.inputs else default_inputs
    return Built(model, lambda batch: make(model, batch), config)


def randomise(model: Any) -> None:
    """Random biases, and norm weights around 1 that are all different."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.5)
            elif "norm" in name.lower() and name.endswith("weight") and parameter.dim() <= 2:
                parameter.uniform_(0.5, 1.5)


def default_inputs(model: Any, batch: int) -> dict[str, Any]:
    """Token ids, the same for every sample, and what else the forward insists on."""
    ids = torch.randint(2, VOCAB, (1, TOKENS), generator=torch.Generator().manual_seed(0)).expand(batch, -1).contiguous()
    parameters = inspect.signature(model.forward).parameters
    values: dict[str, Any] = {"input_ids": ids}
    if "use_cache" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        values["use_cache"] = False
    return values


def encoder_inputs(model: Any, batch: int) -> dict[str, Any]:
    """Token ids and a random encoder output, for cross attention."""
    width = getattr(model.config, "cross_attention_hidden_size", None) or model.config.hidden_size
    states = torch.randn(1, ENCODER_TOKENS, width, generator=torch.Generator().manual_seed(1))
    return default_inputs(model, batch) | {"encoder_hidden_states": states.expand(batch, -1, -1)}
