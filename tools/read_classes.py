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
    *("index_n_heads", "index_head_dim", "kv_channels", "v_head_dim"),
)


def facts(entry: dict) -> dict[str, object]:
    """The numbers of one type."""
    defaults, kind = entry["defaults"], getattr(transformers, entry["config"])
    found = {key: getattr(kind, key, None) for key in KEYS}
    found = {key: value for key, value in found.items() if isinstance(value, int)}
    if getattr(kind, "use_sliding_window", None) is False:
        found["use_sliding_window"] = False
    block = defaults.get("rope_parameters") or {}
    nested = {layers: inner for layers, inner in block.items() if isinstance(inner, dict)}
    if nested:
        found["blocks"] = nested
    else:
        theta = block.get("rope_theta", defaults.get("default_theta"))
        if isinstance(theta, (int, float)) and theta != 10000:
            found["rope_theta"] = float(theta)
        if block.get("rope_type", "default") != "default":
            found["scaled_rope"] = 1
    share = entry["partial"]["default"]
    if share is not None and not nested:
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
