"""Probe every RoPE model type of the installed transformers and write what was read to tools/probe_all.json.

    python tools/probe_all.py [model types ...] [--out FILE]

Everything in the file is read from transformers' own code: from tiny random models (`ropetool.models.probe`), and from
the defaults of the config classes. Nothing in it is written by hand.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import transformers

from ropetool.models import catalog, tiny
from ropetool.models.probe import AttentionReport, Part, ProbeReport, Role, probe_model_type

SWITCHES = {
    "qk_layernorm": True, "use_qk_norm": True, "qk_norm": True, "qk_layer_norms": True, "rope_interleave": False,
    "rotary_value": True, "multi_query": False, "new_decoder_architecture": True, "q_lora_rank": None,
    "attention_k_eq_v": True, "use_shared_attention_adapter": True, "use_mem_rope": False, "swin_norm": True,
    "alibi": True, "index_rope_interleave": True, "indexer_rope_interleave": True,
    "use_qk_layernorm": True, "use_qk_l2norm": True, "query_key_norm": True,
}  # fmt: skip
"""Config values that change the rows, the norms or the pairing: each is tried where the config has it."""
THETA_KEYS = ("rope_theta", "rotary_emb_base", "rotary_embedding_base", "global_rope_theta", "local_rope_theta",
              "rope_local_base_freq", "compress_rope_theta", "swa_rope_theta", "rope_base")  # fmt: skip
DEFAULT_KEYS = ("head_dim", "num_key_value_heads", "num_attention_heads", "hidden_size", "max_position_embeddings",
                "qk_rope_head_dim", "qk_nope_head_dim", "rotary_dim", "n_head", "n_embd", "n_positions", "num_kv_heads",
                "global_head_dim", "num_global_key_value_heads")  # fmt: skip
_THETA, _PARTIAL = 12345.0, 0.75


def grammar(parts: tuple[Part, ...]) -> str:
    """The parts as a short pattern: ``8 q[16: 0+16]``, ``2 (4 q[8: 0+8] k[8: 0+8] v[8])``."""
    words = [f"{p.role.value}[{p.rows}{f': {p.rope_start}+{p.rope_dim}' if p.rope_dim else ''}]" for p in parts]
    for period in range(2, len(words) // 2 + 1):
        count, rest = divmod(len(words), period)
        if rest == 0 and words == words[:period] * count and len(set(words[:period])) > 1:
            return f"{count} ({_run_lengths(words[:period])})"
    return _run_lengths(words)


def _run_lengths(words: list[str]) -> str:
    runs = [(len(list(same)), word) for word, same in groupby(words)]
    return " ".join(word if n == 1 else f"{n} {word}" for n, word in runs)


def place(path: str) -> str:
    """The module's path with every number replaced by a star."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", path)


def attention_entry(a: AttentionReport, biased: dict[str, bool]) -> dict[str, Any]:
    """One kind of attention module as JSON."""
    entry: dict[str, Any] = {
        "kind": a.kind,
        "modules": sorted({place(p) for p in a.paths}),
        "layers": list(a.layers),
        "class": a.class_name,
        "interface": a.interface,
    }
    if a.unread:
        return entry | {"unread": a.unread}
    entry |= {
        "pairing": a.pairing.value if a.pairing else None,
        "rotary_dim": a.rotary_dim,
        "rope_start": a.rope_start,
        "inv_freq": [float(f"{f:.6g}") for f in a.inv_freq],
        "attention_scaling": a.attention_scaling,
        "query_scale": a.query_scale,
        "projections": {
            p.name: {
                "rows": grammar(p.parts),
                "moves": None if Role.UNREAD in p.roles else any(part.rope_dim for part in p.parts),
                "bias": p.bias,
                "bias_possible": p.bias or biased.get(f"{a.paths[0]}.{p.name}", False),
            }
            for p in a.projections
        },
    }
    entry |= {k: True for k, v in (("backwards", a.backwards), ("value_rotated", a.value_rotated)) if v}
    if a.norms:
        entry["norms"] = [
            {"name": n.name, "of": n.role.value, "weight": n.weight_shape, "covers": covers(a, n.role, n.weight_shape)}
            | ({"after_rotation": True} if n.after_rotation else {})
            for n in a.norms
        ]
    entry |= {
        k: v
        for k, v in (("other_tensors", list(a.other_tensors)), ("touching", list(a.touching)), ("key_from", a.key_from))
        if v
    }
    return entry


def covers(a: AttentionReport, role: Role, shape: tuple[int, ...] | None) -> str:
    """What one weight of a norm covers: a head, all heads, heads x head_dim, or a latent."""
    if shape is None:
        return "no weight"
    if role not in (Role.Q, Role.K):
        return role.value
    if len(shape) == 2:
        return "heads x head_dim"
    heads = [part.rows for p in a.projections for part in p.parts if part.role is role]
    if heads and shape[0] == heads[0]:
        return "one head"
    return "all heads" if heads and shape[0] == sum(heads) else "other"


def biases(model_type: str) -> tuple[list[str], dict[str, bool]]:
    """The config's bias switches, and which modules have a bias with all of them on."""
    default = catalog.config_class(model_type)()
    keys = [k for k, v in vars(default).items() if "bias" in k and isinstance(v, bool)]
    try:
        model = tiny.build(model_type, **dict.fromkeys(keys, True)).model
    except tiny.CannotBuild:
        return keys, {}
    return keys, {n: getattr(m, "bias", None) is not None for n, m in model.named_modules() if hasattr(m, "weight")}


def rope_blocks(config: Any) -> list[dict[str, Any]]:
    """The rope block, or the blocks of each layer type."""
    block = getattr(config, "rope_parameters", None)
    if not isinstance(block, dict):
        return []
    nested = [b for b in block.values() if isinstance(b, dict)]
    return nested or [block]


def accepted(model_type: str, keys: tuple[str, ...], value: Any, field: str) -> list[str]:
    """Which top-level keys of config.json the class understands: they end up in the rope block or on a known field."""
    kind = catalog.config_class(model_type)
    found = []
    for key in keys:
        wanted = 8 if key == "rotary_dim" else value
        try:
            config = kind(**{key: wanted})
        except Exception:  # noqa: BLE001 - config validators raise what they like
            continue
        known = key in getattr(kind, "__dataclass_fields__", {}) or key in inspect.signature(kind.__init__).parameters
        if any(b.get(field) == value for b in rope_blocks(config)) or (known and getattr(config, key, None) == wanted):
            found.append(key)
    return found


def honours_partial(model_type: str, report: ProbeReport) -> bool | str:
    """Whether the model's rotated pairs follow ``partial_rotary_factor`` in the rope block."""
    block = getattr(tiny.build(model_type).config, "rope_parameters", None)
    if not isinstance(block, dict):
        return "no rope block"
    nested = any(isinstance(b, dict) for b in block.values())
    blocks = [b for b in block.values() if isinstance(b, dict)] if nested else [block]
    factor = 0.25 if any(b.get("partial_rotary_factor") == 0.5 for b in blocks) else 0.5
    changed = {k: b | {"partial_rotary_factor": factor} if isinstance(b, dict) else b for k, b in block.items()}
    after = probe_model_type(
        model_type, rope_parameters=changed if nested else {**block, "partial_rotary_factor": factor}
    )
    reason = after.unread or next((a.unread for a in after.attentions if a.unread), None)
    return f"fails: {reason}" if reason else turning(after) != turning(report)


def turning(report: ProbeReport) -> list[tuple[str, int]]:
    """How many pairs turn, by kind of layer."""
    return [(a.kind, sum(f > 0 for f in a.inv_freq)) for a in report.attentions]


def field_default(kind: Any, key: str) -> Any:
    """The class's default for a key as written: None means that it is computed."""
    found = getattr(kind, "__dataclass_fields__", {}).get(key)
    value = getattr(found, "default", None)
    return value if isinstance(value, (int, float, str, type(None))) else str(value)


def defaults(model_type: str) -> dict[str, Any]:
    """What the config class fills in where config.json has no such key."""
    kind = catalog.config_class(model_type)
    config = kind()
    entry: dict[str, Any] = {"rope_parameters": _plain(getattr(config, "rope_parameters", None))}
    for key in DEFAULT_KEYS:
        resolved = value_of(config, key)
        if resolved is not None or key in getattr(kind, "__dataclass_fields__", {}):
            entry[key] = {"class": field_default(kind, key), "resolved": resolved}
    for key in ("no_rope_layers", "layer_types", "no_rope_layer_interval", "nope_layer_interval", "sliding_window"):
        value = value_of(config, key)
        if value is not None:
            entry[key] = _plain([*value[:8], "..."] if isinstance(value, list) and len(value) > 8 else value)
    if getattr(kind, "default_theta", None) is not None:
        entry["default_theta"] = kind.default_theta
    return entry


def value_of(config: Any, key: str) -> Any:
    """The config's value as JSON; configs whose layers differ refuse to give one."""
    try:
        return _plain(getattr(config, key, None))
    except Exception:  # noqa: BLE001 - transformers raises an error of its own for it
        return "differs by layer"


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def renames(model_type: str) -> list[str]:
    """Renamings and reshapings between checkpoint and modules that touch attention, as transformers declares them."""
    try:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        rules = get_checkpoint_conversion_mapping(model_type) or []
    except Exception:  # noqa: BLE001 - an internal of transformers
        return []
    lines = [f"{getattr(r, 'source_patterns', '')} -> {getattr(r, 'target_patterns', '')}" for r in rules]
    return [line for line in lines if re.search("attn|attention|q_|k_|qkv|query|key", line)]


def variants(model_type: str, report: ProbeReport) -> dict[str, Any]:
    """The attention modules under each switch that changes them."""
    config = tiny.build(model_type).config
    found: dict[str, Any] = {}
    for key, value in SWITCHES.items():
        if value_of(config, key) in (None, value) and not (value is None and value_of(config, key) is not None):
            continue
        other = probe_model_type(model_type, **{key: value})
        name = f"{key}={json.dumps(value)}"
        if other.unread and other.unread.startswith("no tiny config"):
            continue  # the class refuses the value
        if other.unread:
            found[name] = {"unread": other.unread}
        elif other.attentions != report.attentions:
            found[name] = [attention_entry(a, {}) for a in other.attentions]
    return found


def type_entry(model_type: str) -> dict[str, Any]:
    """Everything about one model type."""
    report = probe_model_type(model_type)
    kind = catalog.model_class(model_type)
    entry: dict[str, Any] = {
        "class": kind.__name__,
        "config": catalog.config_class(model_type).__name__,
        "file": "/".join(Path(inspect.getfile(kind)).parts[-4:]),
    }
    if report.unread:
        return entry | {"unread": report.unread, "defaults": defaults(model_type)}
    switches, biased = biases(model_type)
    partial = {"default": next((b["partial_rotary_factor"] for b in rope_blocks(catalog.config_class(model_type)())
                                if b.get("partial_rotary_factor") is not None), None),
               "keys": accepted(model_type, tiny.PARTIAL_KEYS, _PARTIAL, "partial_rotary_factor"),
               "honoured": honours_partial(model_type, report)}  # fmt: skip
    return entry | {
        "attentions": [attention_entry(a, biased) for a in report.attentions],
        "variants": variants(model_type, report),
        "bias_switches": switches,
        "partial": partial,
        "theta_keys": accepted(model_type, THETA_KEYS, _THETA, "rope_theta"),
        "defaults": defaults(model_type),
        "renames": renames(model_type),
    }


def main() -> None:
    """Write the file; types given on the command line replace their entries in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="*")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    known = json.loads(arguments.out.read_text("utf-8"))["types"] if arguments.types and arguments.out.is_file() else {}
    started = time.monotonic()
    for model_type in arguments.types or tiny.rope_model_types():
        try:
            known[model_type] = type_entry(model_type)
        except Exception as error:  # noqa: BLE001 - one bad type must not end the sweep; it is listed
            known[model_type] = {"unread": f"the sweep failed on it: {type(error).__name__}: {error}"}
        print(f"{time.monotonic() - started:6.1f} s  {model_type}", flush=True)  # noqa: T201
    document = {
        "transformers": transformers.__version__,
        "outside": tiny.outside(),
        "types": dict(sorted(known.items())),
    }
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
