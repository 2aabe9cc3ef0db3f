"""Tiny random multimodal models: the text decoder as `tiny` makes it, every other part as small as can be."""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ropetool.models import tiny
from ropetool.models.catalog import config_class, default_config, quiet
from ropetool.models.tiny import CannotBuild
from ropetool.models.tiny_cases import HIDDEN, SIZES, VOCAB

# Sizes of a tower, by the attribute names that configs use; a class's own value is kept where it is smaller.
TOWER_SIZES: dict[str, Any] = {
    **SIZES,
    "hidden_size": 64, "d_model": 64, "embed_dim": 64, "intermediate_size": 32, "projection_dim": 64,
    "num_attention_heads": 4, "num_key_value_heads": 4, "num_heads": 4, "head_dim": 16, "depth": 2,
    "encoder_attention_heads": 4, "encoder_ffn_dim": 32, "image_size": 28, "patch_size": 14, "num_mel_bins": 16,
    "out_hidden_size": HIDDEN, "hidden_dim": 64, "input_dim": 32, "num_latents": 4, "base_channels": 32,
    "projector_hidden_size": 64,
}  # fmt: skip

# What single types need beyond that: values by the part they belong to, "" for the whole.
SPECIAL: dict[str, dict[str, dict[str, Any]]] = {
    "emu3": {"": {"vocabulary_map": {"<image>": 5}}},
    "fun_asr_nano": {"adaptor_config": {"hidden_size": HIDDEN, "intermediate_size": HIDDEN // 4}},
    "granite4_vision": {"": {"deepstack_layer_map": [[0, 0]], "spatial_target_layers": [0], "downsample_rate": "1/2"}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "muse_spark": {"audio_config": {"num_hidden_layers": 4}},
    "shieldgemma2": {"": {"yes_token_index": 5, "no_token_index": 6}},
    "perception_lm": {"vision_config": {"model_args": {"embed_dim": 64}}},
}


def is_rotary_text(config: Any) -> bool:
    """Whether a config is that of a text model with RoPE."""
    return hasattr(config, "rope_parameters") and hasattr(config, "vocab_size")


def parts(config: Any) -> Iterator[tuple[str, Any]]:
    """The parts of a composite config by name; one that it leaves out by default, as its class makes it."""
    for name, kind in getattr(type(config), "sub_configs", {}).items():
        part = getattr(config, name, None)
        if part is None:
            part = kind() if hasattr(kind, "model_type") else type(config).sub_configs_defaults[name].default_config
        if part is not None and not isinstance(part, dict):
            yield name, part


def _sizes(config: Any) -> dict[str, Any]:
    """Smaller values for the numbers that a part's config has."""
    held = {key: getattr(config, key, None) for key in TOWER_SIZES if tiny.settable(type(config), config, key)}
    return {
        key: TOWER_SIZES[key]
        for key, value in held.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > TOWER_SIZES[key]
    }


def _part(config: Any, special: Mapping[str, Any]) -> Any:
    """One part, small: as `tiny` makes it where it is a rotary text model."""
    model_type = getattr(config, "model_type", "")
    if is_rotary_text(config):
        return tiny.tiny_config(model_type, {**tiny.tiny_values(model_type), **special})
    named = {"model_type": model_type} if model_type else {}
    return {**named, **_sizes(config), **{name: _part(part, {}) for name, part in parts(config)}, **special}


def tiny_config(model_type: str, **overrides: Any) -> Any:
    """The tiny config of a composite type; raises `CannotBuild` with the config's own words."""
    default = default_config(model_type)
    if default is None:
        raise CannotBuild("its config class has no defaults")
    special = SPECIAL.get(model_type, {})
    vocabulary = {"vocab_size": VOCAB} if "vocab_size" in _sizes(default) else {}
    try:
        with quiet():
            values = {name: _part(part, special.get(name, {})) for name, part in parts(default)}
            return config_class(model_type)(**{**vocabulary, **values, **special.get("", {}), **overrides})
    except CannotBuild:
        raise
    except Exception as error:  # a config's own validators raise what they like
        raise CannotBuild(f"no tiny config: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def model_classes(model_type: str) -> tuple[Any, ...]:
    """Every class that takes the whole config: those of its own modeling file, and those that the auto classes name."""
    import transformers
    from transformers.models.auto import modeling_auto

    kind, found = config_class(model_type), {}
    for name, mapping in vars(modeling_auto).items():
        if re.fullmatch(r"MODEL_\w*MAPPING_NAMES", name) and model_type in mapping:
            names = mapping[model_type] if isinstance(mapping[model_type], tuple) else (mapping[model_type],)
            found.update({n: getattr(transformers, n) for n in names if hasattr(transformers, n)})
    with_own = {**found, **{c.__name__: c for c in _own_classes(kind)}}
    return tuple(with_own[name] for name in sorted(with_own))


def _own_classes(kind: Any) -> Iterator[Any]:
    from transformers import PreTrainedModel

    try:
        module = importlib.import_module(kind.__module__.replace("configuration_", "modeling_"))
    except ImportError:
        return
    for found in vars(module).values():
        own = inspect.isclass(found) and issubclass(found, PreTrainedModel) and found.__module__ == module.__name__
        if own and getattr(found, "config_class", None) is kind and "forward" in vars(found):
            yield found


def whole_class(model_type: str) -> Any:
    """The class of the checkpoints on the Hub: with a head, for generation where there is one."""

    own = config_class(model_type)

    def rank(kind: Any) -> tuple[bool, bool, bool, str]:
        name = kind.__name__
        return (kind.config_class is not own, "ForConditionalGeneration" not in name, "For" not in name, name)

    classes = sorted(model_classes(model_type), key=rank)
    if not classes:
        raise CannotBuild("transformers has no model class for this config")
    return classes[0]


def on_meta(kind: Any, config: Any) -> Any:
    """A model without memory; raises `CannotBuild` with the class's own words."""
    try:
        with quiet(), torch.device("meta"):
            return kind(copy.deepcopy(config))
    except Exception as error:  # any model's code; the reason is kept and listed
        words = " ".join(str(error).split())[:200]
        raise CannotBuild(f"no tiny model: {type(error).__name__}: {words}") from error


def build(model_type: str, seed: int = 0, **overrides: Any) -> Any:
    """A tiny random model of a composite type, in float32 and eval mode; raises `CannotBuild` with the reason."""
    kind, config = whole_class(model_type), tiny_config(model_type, **overrides)
    tiny.check_size(on_meta(kind, config))
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind(config).float().eval()
        tiny.randomise(model)
    return model
