"""Write ropetool/families/classes.json: what each config class of transformers uses where config.json is silent.

Reads ``tools/probe_all.json``, which the probe wrote from the installed transformers. Run from the top of the tree:
``python tools/read_classes.py``. A test compares the result with the classes again.
"""

import json
from pathlib import Path

import transformers

TOP = Path(__file__).resolve().parent.parent
OUT = TOP / "ropetool" / "families" / "classes.json"
# Keys of geometry and length, in the order in which a row is written.
KEYS = (
    *("head_dim", "num_key_value_heads", "num_kv_heads", "qk_nope_head_dim", "qk_rope_head_dim", "kv_lora_rank"),
    *("rotary_dim", "max_position_embeddings", "n_positions", "global_head_dim", "num_global_key_value_heads"),
    *("swa_head_dim", "swa_num_attention_heads", "swa_num_key_value_heads", "swa_qk_nope_head_dim"),
    *("index_n_heads", "index_head_dim", "kv_channels", "v_head_dim", "num_local_experts", "max_seq_len"),
    "attn_config.kv_n_heads",
)


def own(kind: type, key: str) -> object:
    """What a config class uses for a key, which may be one of a config inside it (``a.b``)."""
    outer, _, inner = key.rpartition(".")
    return getattr(kind.sub_configs.get(outer) if outer else kind, inner, None)


def fills_in_a_block(kind: type, block: dict) -> bool:
    """Whether a base at the top level of config.json is lost on the class unless there is a block."""
    base, sections = 12345.0, {key: value for key, value in block.items() if key == "mrope_section"}
    try:
        alone, beside = (
            kind(rope_theta=base),
            kind(rope_theta=base, rope_parameters={"rope_type": "default"} | sections),
        )
    except Exception:  # noqa: BLE001  a config's own validators raise what they like; then it needs more than a base
        return False
    return alone.rope_parameters.get("rope_theta") != base == beside.rope_parameters.get("rope_theta")


def facts(entry: dict) -> dict[str, object]:
    """The numbers of one type."""
    defaults, kind = entry["defaults"], getattr(transformers, entry["config"])
    found = {key: own(kind, key) for key in KEYS}
    found = {key: value for key, value in found.items() if isinstance(value, int)}
    if getattr(kind, "use_sliding_window", None) is False:
        found["use_sliding_window"] = False
    block = defaults.get("rope_parameters") or {}
    nested = {layers: inner for layers, inner in block.items() if isinstance(inner, dict)}
    if nested:
        found["blocks"] = nested
    else:
        own_block = bool(block) and fills_in_a_block(kind, block)
        theta = kind.default_theta if own_block else block.get("rope_theta", defaults.get("default_theta"))
        if own_block:
            found["own_block"] = 1
        if isinstance(theta, (int, float)) and theta != 10000:
            found["rope_theta"] = float(theta)
        if block.get("rope_type", "default") != "default":
            found["scaled_rope"] = 1
    share = entry["partial"]["default"]
    if share is not None and not nested and "own_block" not in found:
        found["partial_rotary_factor"] = share
    return found


def main() -> None:
    """Write the module."""
    probed = json.loads((TOP / "tools" / "probe_all.json").read_text(encoding="utf-8"))
    entries = [
        f'  "{name}": {json.dumps({"module": Path(entry["file"]).parent.name, **facts(entry)})}'
        for name, entry in sorted(probed["types"].items())
        if entry.get("attentions")
    ]
    OUT.write_text("{\n" + ",\n".join(entries) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
