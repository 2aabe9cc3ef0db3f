"""Write ropetool/families/composites.json: the multimodal types of transformers, and where each keeps its text decoder.

Reads the installed transformers: the config classes tell the type of the text part and how the class reads it, a tiny
model without memory tells which modules hold the text decoder's layers and which the rest, and the class's own renaming
tells what they are called on disk. ``tools/probe_all.json`` tells how the text types name their attention. Run from the
top of the tree: ``python -m tools.read_composites``. A test compares the result with the classes again.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    WeightConverter,
    WeightRenaming,
    rename_source_key,
    revert_weight_conversion,
)

from ropetool.models import tiny_composites
from ropetool.models.catalog import config_class, config_names, default_config, quiet
from ropetool.models.tiny import CannotBuild

TOP = Path(__file__).resolve().parent.parent
OUT = TOP / "ropetool" / "families" / "composites.json"
PROBED = json.loads((TOP / "tools" / "probe_all.json").read_text(encoding="utf-8"))["types"]

TWO_MODELS = (
    "it has several rotary text models ({}), each with a config of its own; converting one of them is not supported"
)
RENAMED = (
    "its checkpoints call the text decoder's attention otherwise ({}) than its class does, and the row of the type has "
    "the names of the class"
)
# Why a composite is not converted, though its main text decoder can be read.
REFUSED: Mapping[str, str] = {
    "cosmos3_edge": RENAMED.format("to_q, to_k"),
    "cosmos3_omni": RENAMED.format("to_q, to_k, norm_q, norm_k"),
    "minimax_m3_vl": RENAMED.format("index_q_proj, index_k_proj, index_q_norm, index_k_norm"),
    "mistral_large4": RENAMED.format("attention.wq, attention.wkv_a_with_mqa"),
    "clvp": TWO_MODELS.format("text encoder, speech encoder"),
    "dia": TWO_MODELS.format("encoder, decoder"),
    "pi0": TWO_MODELS.format("language model, action expert"),
    "qwen2_5_omni": TWO_MODELS.format("thinker, talker"),
    "qwen3_omni_moe": TWO_MODELS.format("thinker, talker, code predictor"),
    "t5gemma": TWO_MODELS.format("encoder, decoder"),
    "t5gemma2": TWO_MODELS.format("encoder, decoder"),
    "gemma4_unified_assistant": "its attention takes the keys of another checkpoint, so the two would have to be "
    "converted together, which is not supported",
}
# The decoder is the one that is read where there are several.
MAIN_PART: Mapping[str, tuple[str, ...]] = {
    "t5gemma": ("decoder",), "t5gemma2": ("decoder",), "dia": ("decoder_config",), "pi0": ("vlm_config", "text_config"),
}  # fmt: skip
# Where checkpoints of one class or another keep a decoder's layers: each is tried on every class.
USUAL_PLACES = (
    "layers", "model.layers", "language_model.layers", "language_model.model.layers", "model.language_model.layers",
    "model.language_model.model.layers", "text_model.layers", "text_model.model.layers", "model.text_model.layers",
)  # fmt: skip
CLASS_NUMBERS = ("num_attention_heads", "hidden_size", "num_hidden_layers")


def text_parts(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The rotary text parts of a config: the keys that lead to each, and its type."""
    for name, part in tiny_composites.parts(config):
        model_type = getattr(part, "model_type", "")
        if model_type in PROBED:
            yield (*path, name), model_type
        else:
            yield from text_parts(part, (*path, name))


def composite_types() -> dict[str, tuple[tuple[str, ...], str]]:
    """Every type with a rotary text part: the keys that lead to its config, and its default type.

    A type that is a rotary text model itself is none: its row tells of its other parts.
    """
    found = {}
    with quiet():
        for name in sorted(config_names()):
            config = default_config(name)
            if config is None or name in PROBED or config.model_type != name:
                continue
            choices = list(text_parts(config))
            wanted = MAIN_PART.get(name)
            if choices:
                found[name] = next(c for c in choices if wanted in (None, c[0]))
    return found


def at(config: Any, path: Iterable[str]) -> Any:
    """The part of a config at the end of a path of keys."""
    for key in path:
        config = getattr(config, key)
    return config


def at_keys(config: Mapping[str, Any], path: Iterable[str]) -> Any:
    """The part of a config.json at the end of a path of keys."""
    for key in path:
        config = config[key]
    return config


def made(model_type: str, path: tuple[str, ...], inner: Any, **top: Any) -> Any:
    """The text part that the class makes of a config.json with ``inner`` there; None if it refuses."""
    for key in reversed(path[1:]):
        inner = {key: inner}
    try:
        with quiet():
            return at(config_class(model_type)(**({path[0]: inner} if path else {}), **top), path)
    except Exception:  # noqa: BLE001  a config's own validators raise what they like
        return None


def obeys_type(model_type: str, path: tuple[str, ...]) -> bool:
    """Whether the class takes the text part's own model_type, rather than a class of its own whatever that says."""
    kind = config_class(model_type)
    for key in path[:-1]:
        kind = type(getattr(default_config(kind.model_type), key))
    return kind.sub_configs[path[-1]] is AutoConfig


def reads_flat(model_type: str, path: tuple[str, ...]) -> bool:
    """Whether the class takes the keys of its text decoder at the top level where there is no part for it."""
    length = 777
    try:
        with quiet():
            text = at(config_class(model_type)(max_position_embeddings=length), path)
    except Exception:  # noqa: BLE001  as above
        return False
    return bool(path) and getattr(text, "max_position_embeddings", None) == length


# --- where the modules are ------------------------------------------------------------------------------------------


def starred(path: str) -> str:
    """A module's path with every number replaced by a star."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)


def attention_names(text_type: str) -> frozenset[str]:
    """How a text type calls its attention within a layer: ``self_attn``, ``attention.self``."""
    modules = {m for entry in PROBED[text_type]["attentions"] for m in entry["modules"]}
    return frozenset(m.partition("*.")[2] for m in modules)


def config_beside(model: nn.Module, path: str) -> Any:
    """The config of the nearest module, upwards, that has one."""
    while True:
        config = getattr(model.get_submodule(path), "config", None)
        if config is not None:
            return config
        path = path.rpartition(".")[0]


def text_modules(model: nn.Module, text: Any, text_type: str) -> list[str]:
    """The paths of the text decoder's attention modules."""
    names = attention_names(text_type)
    paths = [path for path, _ in model.named_modules() if starred(path).partition("*.")[2] in names - {""}]
    return [path for path in paths if type(config_beside(model, path)) is type(text)]


def place(path: str) -> str:
    """The list of layers that a module or tensor lies in."""
    return re.split(r"\.\d+(?:\.|$)", path)[0]


def on_disk(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """What transformers calls these tensors of a model when it saves it."""
    try:
        return set(revert_weight_conversion(model, dict(tensors)))
    except Exception:  # noqa: BLE001  a conversion of values that needs memory; the names in memory remain
        return set()


def loaded_from(model: nn.Module, name: str) -> set[str]:
    """The usual places from which transformers would load this tensor of a text decoder's layer."""
    conversions = get_model_conversion_mapping(model)
    renamings = [c for c in conversions if isinstance(c, WeightRenaming)]
    converters = [c for c in conversions if isinstance(c, WeightConverter)]
    state, prefix, rest = model.state_dict(), model.base_model_prefix, name.removeprefix(place(name))
    return {p for p in USUAL_PLACES if rename_source_key(p + rest, renamings, converters, prefix, state)[0] == name}


def drafts(model: nn.Module) -> set[str]:
    """The places of layers that predict further tokens: rotated as the text decoder is, though the class skips them."""
    ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    patterns = [re.sub(r"[\^\\]|\(.*?\)\??|\.\*", "", pattern) for pattern in ignored]
    names = {pattern.strip(".") for pattern in patterns if "mtp" in pattern}
    return {name if name.endswith("layers") else f"{name}.layers" for name in names}


def _is_tower(module: nn.Module) -> bool:
    """Whether a module may hold attention: it has some, or it is a model of its own."""
    kinds = (type(m) for m in module.modules())
    return any("Attention" in kind.__name__ or issubclass(kind, transformers.PreTrainedModel) for kind in kinds)


def _others(model: nn.Module, mine: set[str], path: str = "") -> Iterator[str]:
    """The topmost modules that hold none of the text decoder's attention, and may hold other."""
    for name, child in model.get_submodule(path).named_children():
        inner = f"{path}.{name}".lstrip(".")
        if any(f"{p}.".startswith(f"{inner}.") for p in mine):
            if inner not in mine:
                yield from _others(model, mine, inner)
        elif _is_tower(child):
            yield inner


def anatomy(model: nn.Module, path: tuple[str, ...], text_type: str) -> tuple[set[str], set[str]]:
    """The places of the text decoder's layers, and the names of the other parts, in memory and on disk."""
    modules = text_modules(model, at(model.config, path), text_type)
    if not modules:
        return set(), set()
    state = model.state_dict()
    mine = {n: t for n, t in state.items() if any(n.startswith(f"{m}.") for m in modules)}
    first = [n for n in mine if n.startswith(f"{modules[0]}.")]
    places = {place(name) for name in {*mine, *on_disk(model, mine)}} | drafts(model)
    places |= {p for name in first for p in loaded_from(model, name)}
    spoken = {word for p in places for word in p.split(".")}
    towers = set()
    for other in _others(model, {place(m) for m in modules}):
        held = {n: t for n, t in state.items() if n.startswith(f"{other}.")}
        towers |= {tower for name in {*held, *on_disk(model, held)} if (tower := _tower(name, spoken))}
    return places, towers


def _tower(name: str, spoken: set[str]) -> str | None:
    """The first word of a tensor's name that no place of the text decoder has."""
    return next((word for word in name.split(".") if word not in spoken and not word.isdigit()), None)


def models(model_type: str) -> Iterator[nn.Module]:
    """A model without memory of every class that takes the whole config, with tiny sizes if the class allows them."""
    for kind in tiny_composites.model_classes(model_type):
        for make in (tiny_composites.tiny_config, default_config):
            try:
                yield tiny_composites.on_meta(kind, make(model_type))
                break
            except CannotBuild:
                continue


def look(model_type: str, path: tuple[str, ...], text_type: str) -> tuple[list[str], list[str]]:
    """The places and the other parts by every class of the type."""
    places: set[str] = set()
    towers: set[str] = set()
    for model in models(model_type):
        if type(model.config) is config_class(model_type):
            more_places, more_towers = anatomy(model, path, text_type)
            places, towers = places | more_places, towers | more_towers
    return sorted(places), sorted(towers)


def without_timm(build: Callable[[], None]) -> None:
    """Run ``build`` with a bare convolution in place of timm's models: their names are all that matters here."""
    from transformers.models.timm_wrapper import modeling_timm_wrapper as timm

    def init(self: Any, config: Any) -> None:
        super(timm.TimmWrapperPreTrainedModel, self).__init__(config)
        self.timm_model = nn.Sequential(nn.Conv2d(3, 8, 1))

    kinds = (timm.TimmWrapperModel, timm.TimmWrapperForImageClassification)
    before = [kind.__init__ for kind in kinds]
    for kind in kinds:
        kind.__init__ = init  # type: ignore[method-assign]  # undone below
    try:
        build()
    finally:
        for kind, original in zip(kinds, before, strict=True):
            kind.__init__ = original  # type: ignore[method-assign]  # as it was


def row(model_type: str, path: tuple[str, ...], text_type: str, *, with_places: bool = True) -> dict[str, Any]:
    """One row of the file."""
    bare = getattr(made(model_type, path, {}), "model_type", text_type) if path else text_type
    places, towers = look(model_type, path, text_type) if with_places else ([], [])
    return {
        "text_type": bare,
        "path": list(path),
        "via": at(default_config(model_type), path[:-1]).model_type if len(path) > 1 else "",
        "obeys_type": bool(path) and obeys_type(model_type, path),
        "reads_flat": reads_flat(model_type, path),
        "places": places,
        "towers": towers,
        "refusal": REFUSED.get(model_type, ""),
    }


def class_numbers() -> dict[str, dict[str, int]]:
    """The numbers that the class of each text type uses where its part of config.json is silent."""
    found = {}
    for text_type in PROBED:
        held = {key: getattr(config_class(text_type), key, None) for key in CLASS_NUMBERS}
        found[text_type] = {key: value for key, value in held.items() if isinstance(value, int)}
    return found


def lines(rows: Mapping[str, Any]) -> str:
    """A JSON object with one entry a line."""
    return "{\n" + ",\n".join(f'    "{name}": {json.dumps(entry)}' for name, entry in rows.items()) + "\n  }"


def main() -> None:
    """Write the file; types given on the command line replace their rows in it."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    only = sys.argv[1:]
    rows = json.loads(OUT.read_text(encoding="utf-8"))["composites"] if only else {}

    def fill() -> None:
        found = composite_types()
        for name in only or found:
            path, text_type = found[name]
            rows[name] = row(name, path, text_type)
            print(name, rows[name]["places"], rows[name]["towers"], flush=True)  # noqa: T201  a tool talks

    without_timm(fill)
    composites, numbers = lines(dict(sorted(rows.items()))), lines(class_numbers())
    OUT.write_text(f'{{\n  "composites": {composites},\n  "class_numbers": {numbers}\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
