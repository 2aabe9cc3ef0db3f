"""Tiny random models of any RoPE model type that the installed transformers builds.

The geometry avoids coincidences: 8 heads and 2 kv heads (heads/kv is not kv), heads x head_dim is not the hidden
size where the class allows it, biases and norm weights are random. Sizes are found by the config's own
attribute names; what a type needs beyond that is in `SPECIAL`.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ropetool.models.capture import TOKENS
from ropetool.models.catalog import config_class, config_names, default_config, inputs_of, known, model_class, quiet
from ropetool.models.tiny_cases import HEAD_DIM, HEADS, OTHER_SIZES, SECTIONS, SIZES, SPECIAL, UNSET_EXPERTS, WIDTH_KEYS

ROTARY_KEYS = (
    "rope_parameters", "rope_theta", "rotary_dim", "rotary_value", "rotary_pct", "rotary_emb_base",
    "partial_rotary_factor", "rotary_emb_fraction",
)  # fmt: skip
PARTIAL_KEYS = ("partial_rotary_factor", "rotary_pct", "rope_pct", "rotary_dim", "rotary_emb_fraction")

MAX_PARAMETERS = 64_000_000


_NO_ROPE = "no RoPE"


class CannotBuild(Exception):
    """No tiny model of the type could be built; the message is the reason."""


@dataclass(frozen=True)
class Built:
    """A tiny model, in eval mode, and the arguments of its forward for a batch size."""

    model: Any
    inputs: Callable[[int], dict[str, Any]]
    config: Any


def rope_model_types() -> tuple[str, ...]:
    """Every model type with token positions and RoPE, found by asking its config and its modeling file.

    A type counts if its config has a vocabulary, its model takes token ids, and either the config has a rotary key
    or the built model has a rotary module. Composite configs do not count unless they have a rotary key
    themselves: their text part has a type of its own.
    """
    return tuple(t for t, reason in _scope().items() if reason is None)


def outside() -> dict[str, str]:
    """The types whose config has a rotary key and which `rope_model_types` leaves out, each with the reason."""
    return {t: reason for t, reason in _scope().items() if reason is not None}


@lru_cache(maxsize=1)
def _scope() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    with quiet():
        for model_type in sorted(config_names()):
            reason = _out_of_scope(model_type)
            if reason != _NO_ROPE:
                found[model_type] = reason
    return found


def _out_of_scope(model_type: str) -> str | None:
    """None for a RoPE model type; `_NO_ROPE`, or why its RoPE is not one over token positions."""
    config = default_config(model_type)
    if config is None:
        return "its config class has no defaults" if _mentions_rope(config_class(model_type)) else _NO_ROPE
    keyed = any(hasattr(config, key) for key in ROTARY_KEYS)
    if not keyed and (config.sub_configs or not hasattr(config, "vocab_size") or not _defines_rotary(config)):
        return _NO_ROPE
    if config.model_type != model_type and config.model_type in config_names():
        return f"another name of {config.model_type}"
    kind = model_class(model_type)
    if kind is None:
        return "no model class takes its config"
    takes = list(inspect.signature(kind.forward).parameters)[1]
    if not hasattr(config, "vocab_size") or "input_ids" not in inspect.signature(kind.forward).parameters:
        reason = f"{kind.__name__} has no vocabulary or takes no token ids (its first input is {takes})"
        return reason if keyed else _NO_ROPE
    return None if keyed or _contains_rotary(model_type, kind) else _NO_ROPE


def _mentions_rope(kind: Any) -> bool:
    return "rope_parameters" in Path(inspect.getfile(kind)).read_text("utf-8")


def _contains_rotary(model_type: str, kind: Any) -> bool:
    """Whether the built model has a rotary module, for a config that has no rotary key."""
    try:
        with torch.device("meta"):
            model = kind(tiny_config(model_type, tiny_values(model_type)))
    except Exception:  # noqa: BLE001 - what cannot be built is kept, so that it gets listed with the reason
        return True
    return any(re.search("rotary|rope", type(m).__name__, re.I) for m in model.modules())


def modeling_file(config: Any) -> Path:
    """The modeling file beside the config's class."""
    path = Path(inspect.getfile(type(config)))
    return path.with_name(path.name.replace("configuration_", "modeling_"))


def _defines_rotary(config: Any) -> bool:
    path = modeling_file(config)
    return path.is_file() and re.search(r"^class \w*(Rotary|RoPE|Rope)\w*\(", path.read_text("utf-8"), re.M) is not None


def tiny_values(model_type: str) -> dict[str, Any]:
    """The config values for a tiny model of the type, before variants."""
    kind, default = config_class(model_type), default_config(model_type)
    values = _sizes(kind, default)
    partial = any(settable(kind, default, key) for key in PARTIAL_KEYS) or _is_partial(default)
    if partial or _has_sections(default) or model_type in SECTIONS:
        if "head_dim" in values:
            values["head_dim"] = 2 * HEAD_DIM
        else:
            values.update({k: HEADS * 2 * HEAD_DIM for k in WIDTH_KEYS if k in values})
    if "kv_lora_rank" in values:
        values.pop("head_dim", None)
        values["num_key_value_heads"] = HEADS
    if hasattr(default, "rotary_dim"):
        values["rotary_dim"] = 16
    values.update(_layer_values(kind, default))
    for name in getattr(default, "sub_configs", {}):
        nested = getattr(default, name, None)
        if nested is not None:
            values[name] = _sizes(type(nested), nested) | {"model_type": nested.model_type}
            values[name].update({k: HEADS * HEAD_DIM for k in WIDTH_KEYS if k in values[name]})
    values.update(SPECIAL[model_type].values if model_type in SPECIAL else {})
    return values


def tiny_config(model_type: str, values: Mapping[str, Any]) -> Any:
    """The config with these values; raises `CannotBuild` with the config's own words."""
    values = dict(values)
    block = values.get("rope_parameters", getattr(default_config(model_type), "rope_parameters", None))
    if model_type in SECTIONS:
        block = dict(block or {}) | {"mrope_section": [8, 12, 12]}
    if isinstance(block, dict) and block.get("mrope_section"):
        values["rope_parameters"] = _fitted(block, _rotary_pairs(values, block))
    try:
        return config_class(model_type)(**values)
    except Exception as error:  # a config's own validators raise what they like
        raise CannotBuild(f"no tiny config: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def _sizes(kind: Any, default: Any) -> dict[str, Any]:
    return {key: value for key, value in SIZES.items() if settable(kind, default, key)}


def _rotary_pairs(values: Mapping[str, Any], block: Mapping[str, Any]) -> int:
    width = next(values[k] for k in WIDTH_KEYS if k in values)
    heads = next(values[k] for k in ("num_attention_heads", "n_heads", "n_head") if k in values)
    head_dim = values.get("qk_rope_head_dim") or values.get("head_dim") or width // heads
    return int(head_dim * (block.get("partial_rotary_factor") or 1.0)) // 2


def _fitted(block: Mapping[str, Any], pairs: int) -> dict[str, Any]:
    """The rope block with its sections scaled to ``pairs``."""
    sections = list(block["mrope_section"])
    scaled = [max(1, s * pairs // sum(sections)) for s in sections]
    scaled[0] += pairs - sum(scaled)
    return dict(block) | {"mrope_section": scaled}


def _has_sections(default: Any) -> bool:
    block = getattr(default, "rope_parameters", None)
    return isinstance(block, dict) and bool(block.get("mrope_section"))


def settable(kind: Any, default: Any, key: str) -> bool:
    """Whether a config class takes a value under this key."""
    if key in getattr(kind, "attribute_map", {}):
        return False
    parameters = inspect.signature(kind.__init__).parameters
    return (
        key in parameters
        or key in getattr(kind, "__dataclass_fields__", {})
        or (default is not None and key in vars(default))
    )


def _is_partial(default: Any) -> bool:
    block = getattr(default, "rope_parameters", None)
    blocks = [block, *block.values()] if isinstance(block, dict) else []
    return any(isinstance(b, dict) and b.get("partial_rotary_factor", 1.0) not in (1.0, None) for b in blocks)


def _layer_values(kind: Any, default: Any) -> dict[str, Any]:
    """One layer of every kind that the default config has, in order of appearance; two at least.

    Where some layers have no RoPE by their number, four layers, as every such default has a period of four.
    """
    if any(hasattr(default, key) for key in ("no_rope_layers", "no_rope_layer_interval")):
        return {"num_hidden_layers": 4}
    kinds = getattr(default, "layer_types", None)
    if not isinstance(kinds, (list, tuple)) or not kinds or not settable(kind, default, "layer_types"):
        return {}
    chosen = list(dict.fromkeys(kinds))
    chosen = chosen * 2 if len(chosen) == 1 else chosen
    return {"layer_types": chosen, "num_hidden_layers": len(chosen)}


def build(model_type: str, seed: int = 0, **overrides: Any) -> Built:
    """A tiny random model of the type, in float32 and eval mode, the same for the same seed.

    Tries ever plainer geometries until one runs; raises `CannotBuild` with the first one's reason if none does.
    """
    if not known(model_type):
        raise CannotBuild(f"transformers {version('transformers')} has no model type {model_type}")
    with quiet(), torch.random.fork_rng(devices=[]):
        values = tiny_values(model_type) | overrides
        first: CannotBuild | None = None
        for variant in _variants(values):
            try:
                return _build(model_type, values | variant | overrides, seed)
            except CannotBuild as error:
                first = first or error
        raise first or CannotBuild("nothing was tried")


def build_like(config: Any, kind: Any = None, seed: int = 0, sizes: Mapping[str, Any] = SIZES) -> Built:
    """A tiny random model with the switches of ``config`` and the given ``sizes``; ``kind`` is its class, if known.

    Raises `CannotBuild` with the reason.
    """
    kind = kind or model_class(config.model_type)
    make = inputs_of(config.model_type)
    with quiet(), torch.random.fork_rng(devices=[]):
        values = _shrunk(config, sizes)
        first: CannotBuild | None = None
        for variant in _variants(values):
            try:
                return _random_model(kind, lambda v=values | variant: type(config)(**v), make, seed)  # type: ignore[misc]  # bound by default
            except CannotBuild as error:
                first = first or error
        raise first or CannotBuild("nothing was tried")


def _declares(kind: Any, key: str) -> bool:
    """Whether a config class has the key as its own, and does not just keep it."""
    return hasattr(kind, key) or key in inspect.signature(kind.__init__).parameters


def _shrunk(config: Any, sizes_of: Mapping[str, Any]) -> dict[str, Any]:
    """The config's values with its sizes replaced, and its lists of one entry per layer cut to what is left."""
    values = {k: v for k, v in config.to_dict().items() if k not in ("model_type", "transformers_version", "dtype")}
    if not _declares(type(config), "head_dim"):  # the class takes it from the other sizes, and has it twice otherwise
        values.pop("head_dim", None)
    sizes = {k: v for k, v in sizes_of.items() if values.get(k) is not None}
    rotary = values.get("partial_rotary_factor") is not None or _is_partial(config)
    heads, head_dim = sizes_of["num_attention_heads"], sizes_of["head_dim"]
    if "head_dim" not in sizes:
        sizes |= {k: heads * 2 * head_dim for k in WIDTH_KEYS if k in sizes}
    elif rotary:
        sizes["head_dim"] = 2 * head_dim
    if values.get("rotary_dim") is not None:
        sizes["rotary_dim"] = head_dim
    of_keys = values.get("num_key_value_heads")
    if of_keys is not None and of_keys == values.get("num_attention_heads"):
        sizes["num_key_value_heads"] = heads  # said, as a class may have another default
    if values.get("kv_lora_rank") is not None:
        sizes.pop("head_dim", None)
        values.pop("head_dim", None)
    if config.model_type in SPECIAL:
        special = SPECIAL[config.model_type].values
        sizes |= {k: v for k, v in special.items() if k in sizes and SIZES[k] == OTHER_SIZES[k]}
    sizes |= _layer_values(type(config), config)
    layers, kept = values.get("num_hidden_layers"), sizes.get("num_hidden_layers", 2)
    cut = {k: v[:kept] for k, v in values.items() if isinstance(v, list) and len(v) == layers}
    return values | cut | sizes


def _build(model_type: str, values: Mapping[str, Any], seed: int) -> Built:
    kind = model_class(model_type)
    if kind is None:
        raise CannotBuild("transformers has no model class for this config")
    make = inputs_of(model_type)
    return _random_model(kind, lambda: tiny_config(model_type, values), make, seed)


def _random_model(
    kind: Any, make_config: Callable[[], Any], make_inputs: Callable[[Any, torch.Tensor], dict[str, Any]], seed: int
) -> Built:
    torch.manual_seed(seed)
    step = "no tiny config"
    try:
        config = make_config()
        step = "no tiny model"
        with torch.device("meta"):
            check_size(kind(copy.deepcopy(config)))
        model = kind(config).float().eval()
        randomise(model)
        step = "the tiny model does not run"
        with torch.no_grad():
            model(**make_inputs(model, _ids(2)))
    except CannotBuild:
        raise
    except Exception as error:  # any model's code; the reason is kept and listed
        words = " ".join(str(error).split())[:200]
        raise CannotBuild(f"{step}: {type(error).__name__}: {words}") from error
    return Built(model, lambda batch: make_inputs(model, _ids(batch)), config)


def _ids(batch: int) -> torch.Tensor:
    ids = torch.randint(2, 60, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    return ids.expand(batch, -1).contiguous()


def _variants(values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Ever plainer geometries: as wanted, then heads x head_dim = hidden, then as many kv heads as heads, then both."""
    heads = next((values[k] for k in ("num_attention_heads", "n_heads", "n_head") if k in values), HEADS)
    width = heads * int(values.get("head_dim") or 2 * HEAD_DIM)
    square = {k: width for k in WIDTH_KEYS if k in values}
    full = {k: heads for k in ("num_key_value_heads", "num_kv_heads") if k in values}
    yield from ({}, square, full, square | full)


def check_size(model: Any) -> None:
    """Refuse a model that is not tiny, naming its largest parameter."""
    counts = {name: p.numel() for name, p in model.named_parameters()}
    if sum(counts.values()) > MAX_PARAMETERS:
        largest = max(counts, key=lambda name: counts[name])
        shape = tuple(dict(model.named_parameters())[largest].shape)
        raise CannotBuild(f"{sum(counts.values()):,} parameters are not tiny; the largest is {largest}, {shape}")


def randomise(model: Any) -> None:
    """Random biases, norm weights around 1 that are all different, and nothing that is all zero or left unset."""
    unset = getattr(model.config, "model_type", "") in UNSET_EXPERTS
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(0.0, 0.5)
            elif "norm" in name.lower() and name.endswith("weight") and parameter.dim() <= 2:
                parameter.uniform_(0.5, 1.5)
            elif unset and ".experts." in name and parameter.dim() == 3:
                parameter.normal_(0.0, 0.02)
            elif not parameter.any():
                parameter.normal_(0.0, 0.05)
