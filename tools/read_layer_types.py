"""Write ropetool/families/layer_types.json: the layers that a class gives a window, or a mixer, of its own accord.

Each config class of the table is built without ``layer_types`` for several numbers of layers, and what it fills in is
told as a cycle of types where that explains all of them. Run from the top of the tree: ``python
tools/read_layer_types.py``. A test compares the result with the classes again.
"""

import json
from pathlib import Path
from typing import Any

from ropetool.families.table import TABLE
from ropetool.models import tiny
from ropetool.models.catalog import default_config, quiet

OUT = Path(__file__).resolve().parent.parent / "ropetool" / "families" / "layer_types.json"
LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_num_hidden_layers")
# Lists of one entry per layer, which the class may take its types from.
PER_LAYER = ("layer_types", "layers_block_type", "block_types", "no_rope_layers", "attn_layer_indices")
# Keys that give the length of the cycle, as the config classes call them.
EVERY = (
    *("sliding_window_pattern", "global_attn_every_n_layers", "full_attention_interval", "no_rope_layer_interval"),
    *("layer_group_size", "window_pattern", "attn_layer_period"),
)
LONGEST_CYCLE = 8
COUNTS = (24, 25, 31)
FULL = "full_attention"


def built(model_type: str, layers_key: str, count: int, **more: Any) -> Any:
    """The config of a tiny model with ``count`` layers, whose types are left to the class; None where it refuses."""
    values = {k: v for k, v in tiny.tiny_values(model_type).items() if k not in PER_LAYER}
    alike = {k: v for k, v in values.items() if not (isinstance(v, list) and len(v) == values.get(layers_key))}
    try:
        return tiny.tiny_config(model_type, {**alike, layers_key: count, **more})
    except tiny.CannotBuild:
        return None


def types_of(config: Any, layers: int) -> list[str] | None:
    """The types that a config class filled in; None where it could not be built."""
    return None if config is None else getattr(config, "layer_types", None) or [FULL] * layers


def cycle_of(found: dict[int, list[str]]) -> dict[str, Any] | None:
    """The shortest cycle, with a last layer of its own if need be, that gives the types for every number of layers."""
    for last in (None, FULL):
        for length in range(1, LONGEST_CYCLE + 1):
            cycle = found[COUNTS[0]][:length]
            if all(types == expanded(cycle, last, count) for count, types in found.items()):
                return {"cycle": cycle} | ({"last": last} if last else {})
    return None


def expanded(cycle: list[str], last: str | None, count: int) -> list[str]:
    """The types of ``count`` layers."""
    types = [cycle[index % len(cycle)] for index in range(count)]
    return [*types[:-1], last] if last else types


def entry(model_type: str) -> dict[str, Any]:
    """What the class of one type does; empty where every layer is plain attention and the count has its usual key."""
    default = default_config(model_type)
    values = tiny.tiny_values(model_type)
    layers_key = next((key for key in LAYER_KEYS if key in values), None)
    if default is None or layers_key is None:
        return {}
    told: dict[str, Any] = {"layers": layers_key} if layers_key != LAYER_KEYS[0] else {}
    shared = getattr(default, "num_kv_shared_layers", None)
    if shared:
        told["shared"] = shared
    found = {count: types_of(built(model_type, layers_key, count), count) for count in COUNTS}
    if all(types is not None and set(types) == {FULL} for types in found.values()):
        return told | window_from(model_type, layers_key)
    rule = None if None in found.values() else cycle_of(found)
    return told | (rule | every(model_type, layers_key, rule["cycle"]) if rule else {"unstated": "always"})


def every(model_type: str, layers_key: str, cycle: list[str]) -> dict[str, str]:
    """The key that gives the length of the cycle, where there is one."""
    wanted = [cycle[0]] * 2 + [cycle[-1]]
    for key in EVERY if len(cycle) > 1 and cycle[:3] != wanted else ():
        if (types_of(built(model_type, layers_key, COUNTS[0], **{key: 3}), COUNTS[0]) or [])[:3] == wanted:
            return {"every": key}
    return {}


def window_from(model_type: str, layers_key: str) -> dict[str, Any]:
    """The key of the first layer that has a window, where a class has one; with what it is where absent."""
    on = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 5}
    types = types_of(built(model_type, layers_key, 12, **on), 12)
    default = getattr(default_config(model_type), "max_window_layers", None)
    if types == [FULL] * 5 + ["sliding_attention"] * 7:
        return {"window_from": default}
    return {} if types is None or set(types) == {FULL} else {"unstated": "with a window"}


def main() -> None:
    """Write the file."""
    with quiet():
        entries = {name: entry(name) for name in sorted(TABLE)}
    lines = [f'  "{name}": {json.dumps(told)}' for name, told in entries.items() if told]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
