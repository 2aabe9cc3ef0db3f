"""Find every pair of model types whose classes differ by the pairing alone; write ropetool/families/twins.json.

    python tools/find_twins.py

For every pair of types of the family table with opposite pairing: tiny models of the same geometry are built, under
every setting of their switches (biases, norms). Where the state dicts have the same names and shapes, A's weights with
the rows of q and k permuted go into B, and the logits must agree to 1e-5 of their standard deviation. Then one config
key after the other gets another value in both: those under which the logits still agree are carried over, the others
must keep the value that makes them twins. Nothing in the file is written by hand.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.families.twin_rows import EACH_LAYER, HEAD_DIM_POWER, TWINS_FILE, meant
from ropetool.models import catalog, tiny
from ropetool.rope.pairing import Pairing, index_map

TOKENS, LAYERS, MANY_LAYERS, HEAD_DIM, LENGTH = 48, 2, 24, 16, 64
# Of the standard deviation of the logits; the weights not permuted must be further apart than the second.
ALLOWED, CONTROL = 1e-5, 1e-2
GEOMETRY = {
    "vocab_size": 64, "hidden_size": 128, "intermediate_size": 48, "num_hidden_layers": LAYERS,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": HEAD_DIM,
}  # fmt: skip
NOT_SQUARE = {"hidden_size": 96}
# The value that switches a feature off, for features that only some classes have.
NEUTRAL: Mapping[str, Any] = {
    "sliding_window": None, "use_sliding_window": False, "layer_types": {EACH_LAYER: "full_attention"},
    "no_rope_layers": {EACH_LAYER: 1}, "embedding_multiplier": 1.0, "logits_scaling": 1.0, "residual_multiplier": 1.0,
    "attention_dropout": 0.0, "residual_dropout": 0.0, "attention_multiplier": {HEAD_DIM_POWER: -0.5},
    "logit_scale": 1.0, "final_logit_softcapping": None,
    "attn_logit_softcapping": None, "query_pre_attn_scalar": HEAD_DIM,
}  # fmt: skip
# Another value for keys where a step up would show nothing.
OTHER: Mapping[str, Any] = {
    "sliding_window": 4, "max_window_layers": 0, "no_rope_layer_interval": 2, "hidden_act": "gelu",
    "rms_norm_eps": 0.1, "initializer_range": 0.03, "layer_types": ["sliding_attention"] * LAYERS,
    "no_rope_layers": [0] * LAYERS,
}  # fmt: skip
ROPE: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": LENGTH // 4},
    "longrope": {
        "factor": 4.0, "original_max_position_embeddings": LENGTH // 4,
        "short_factor": [1.0] * (HEAD_DIM // 2), "long_factor": [1.0 + i for i in range(HEAD_DIM // 2)],
    },
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": LENGTH // 4,
    },
}  # fmt: skip
# The target to take by default comes first: what most engines know.
PREFERENCE = ("llama", "ernie4_5", "mistral", "helium")
NOT_LOGITS = ("use_cache", "is_encoder_decoder", "tie_encoder_decoder")
Values = dict[str, Any]


def fields(model_type: str) -> dict[str, Any]:
    """The config class's own keys with their defaults: None where there is none, or where it depends on other keys."""
    base = PreTrainedConfig.__dataclass_fields__
    found = {}
    for key, field in catalog.config_class(model_type).__dataclass_fields__.items():
        if key in base or key in NOT_LOGITS or key == "rope_parameters":
            continue
        plain = isinstance(field.default, (bool, int, float, str, type(None)))
        found[key] = field.default if plain and field.default is not dataclasses.MISSING else None
        if key.endswith("_token_id"):  # some are filled in when the config is made
            found[key] = getattr(catalog.default_config(model_type), key)
    return found


def reads(model_type: str) -> list[str]:
    """Names that the class's own code reads from its config, beside its fields and those of every config."""
    config = catalog.config_class(model_type)
    files = {inspect.getfile(config), inspect.getfile(catalog.model_class(model_type))}
    code = "\n".join(Path(file).read_text("utf-8") for file in sorted(files))
    patterns = (
        r"config\.(\w+)", r"getattr\((?:self\.)?config, \"(\w+)\"",
        r"kwargs\.(?:pop|get)\(\"(\w+)\"", r"\"(\w+)\" in kwargs",
    )  # fmt: skip
    names = {name for pattern in patterns for name in re.findall(pattern, code)}
    known = {*fields(model_type), *GEOMETRY, *dir(PreTrainedConfig), "rope_parameters", "rope_scaling", "rope_theta"}
    return sorted(name for name in names - known if not name.startswith("_"))


def switches(model_type: str) -> tuple[str, ...]:
    """Keys that decide which tensors there are."""
    return tuple(k for k, v in fields(model_type).items() if isinstance(v, bool) and re.search("bias|norm", k))


def settings(model_type: str) -> Iterator[Values]:
    """Every setting of the switches."""
    keys = switches(model_type)
    for values in itertools.product((False, True), repeat=len(keys)):
        yield dict(zip(keys, values, strict=True))


def base_values(model_type: str) -> Values:
    """Geometry, plain rope, and every feature of the class that has an off position off."""
    own = fields(model_type)
    neutral = {k: meant(v, HEAD_DIM, LAYERS) for k, v in NEUTRAL.items() if k in own}
    if {
        "layer_types",
        "sliding_window",
    } <= own.keys():  # which then say that no layer has the window; some of these classes need one to be there
        neutral["sliding_window"] = own["sliding_window"]
    return {
        **GEOMETRY, "max_position_embeddings": LENGTH, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
        "tie_word_embeddings": False, "rms_norm_eps": 1e-6, "hidden_act": "silu", **neutral,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip


def build(model_type: str, values: Values, device: str = "cpu") -> Any:
    """A random model with these config values; None where the class refuses them."""
    kind = catalog.model_class(model_type)
    try:
        with catalog.quiet(), torch.random.fork_rng(devices=[]), torch.device(device):
            torch.manual_seed(0)
            model = kind(catalog.config_class(model_type)(**values)).float().eval()
            return model if device == "meta" else sharpened(model)
    except Exception:  # noqa: BLE001 - a class's validators and modules raise what they like
        return None


@torch.no_grad()
def sharpened(model: Any) -> Any:
    """The model with weights large enough that attention looks at some tokens more than at others."""
    tiny.randomise(model)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.normal_(0.0, parameter.shape[1] ** -0.5)
    return model


@cache
def signatures(model_type: str) -> dict[frozenset[Any], Values]:
    """Names and shapes of the weights, by setting of the switches."""
    found: dict[frozenset[Any], Values] = {}
    for setting in settings(model_type):
        model = build(model_type, base_values(model_type) | setting, "meta")
        if model is not None:
            found.setdefault(frozenset((n, tuple(t.shape)) for n, t in model.state_dict().items()), setting)
    return found


def permuted(model: Any, model_type: str, to: Pairing) -> dict[str, torch.Tensor]:
    """The state dict with the rows of q and k in layout ``to``, by the row of the family table."""
    family = TABLE[model_type]
    reading = read_model({**model.config.to_dict(), "model_type": model_type})
    rows = {m.module: index_map(reading.geometry.spans(m.rows), to.other, to) for m in family.moves}
    weights = dict(model.state_dict())
    for name, tensor in weights.items():
        _, found, rest = name.rpartition(f".{family.attention}.")
        index = rows.get(rest.split(".")[0]) if found else None
        if index is not None:
            weights[name] = tensor[torch.as_tensor(index)]
    return weights


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    """The logits of one sequence."""
    ids = torch.randint(3, GEOMETRY["vocab_size"], (1, TOKENS), generator=torch.Generator().manual_seed(3))
    return model(input_ids=ids, use_cache=False).logits[0]


def apart(a: str, b: str, values_a: Values, values_b: Values, *, control: bool = False) -> float:
    """How far B is from A, in standard deviations of the logits; infinite where one of them does not run.

    The ``control`` leaves the rows as they are.
    """
    model_a, model_b = build(a, values_a), build(b, values_b)
    if model_a is None or model_b is None:
        return float("inf")
    try:
        model_b.load_state_dict(model_a.state_dict() if control else permuted(model_a, a, TABLE[b].pairing))
        want = logits(model_a)
        return float((logits(model_b) - want).abs().max() / want.std())
    except Exception:  # noqa: BLE001 - shapes that do not fit, blocks that the class cannot run
        return float("inf")


def other_value(key: str, value: Any) -> Any:
    """Another value for a key."""
    if key in OTHER:
        return OTHER[key]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 3
    return 5 if value is None else value * 1.5 + 0.25 if isinstance(value, float) else value


def split_keys(a: str, b: str, values_a: Values, values_b: Values) -> tuple[Values, list[str]]:
    """The other values that both can have together, and the keys that must keep theirs.

    One after the other, each on top of those before: a key that another one masks must not pass for harmless. Flags
    come last, for they mask numbers.
    """
    changed: Values = {}
    fixed = []
    own = [k for k in fields(a) if k not in GEOMETRY and k not in switches(a)]
    for key in sorted(own, key=lambda k: isinstance(fields(a)[k], bool)):
        value = other_value(key, values_a.get(key, fields(a)[key]))
        trial = changed | {key: value}
        shared = {k: v for k, v in trial.items() if k in fields(b)}
        if value == values_a.get(key, fields(a)[key]) or apart(a, b, values_a | trial, values_b | shared) > ALLOWED:
            fixed.append(key)
        else:
            changed = trial
    return changed, fixed


def computed_value(a: str, values_a: Values, changed: Values, key: str) -> Values | None:
    """Which flag of A, with which value, makes A compute a key as it must be; {}: none has to, None: none does.

    Asked of the config, with many layers: a window wider than the tokens, or a rare kind of layer, shows in no logit.
    """
    lists = {k: meant(NEUTRAL[k], HEAD_DIM, MANY_LAYERS) for k, v in values_a.items() if isinstance(v, list)}
    many = {"num_hidden_layers": MANY_LAYERS, **lists, key: None}
    for free in [(), *((k,) for k, v in changed.items() if isinstance(v, bool))]:
        kept = {k: v for k, v in changed.items() if k not in free}
        config = catalog.config_class(a)(**{**values_a, **kept, **many})
        if getattr(config, key) == meant(NEUTRAL.get(key), HEAD_DIM, MANY_LAYERS):
            return {k: values_a.get(k, fields(a)[k]) for k in free}
    return None


def rope_types(a: str, b: str, values_a: Values, values_b: Values) -> list[str]:
    """The scaling methods under which both still agree, with another base too."""
    found = []
    for name, block in ROPE.items():
        rope = {"rope_parameters": {"rope_type": name, "rope_theta": 500.0, **block}}
        if name == "dynamic":
            rope["max_position_embeddings"] = LENGTH // 4
        if apart(a, b, values_a | rope, values_b | rope) <= ALLOWED:
            found.append(name)
    return found


def twin(a: str, b: str) -> tuple[Values | None, float]:
    """The row from A to B, and how far apart they were at their closest."""
    ours, theirs = signatures(a), signatures(b)
    start_a, start_b = base_values(a), base_values(b)
    distances = [(apart(a, b, start_a | ours[s], start_b | theirs[s]), ours[s], theirs[s]) for s in ours if s in theirs]
    cases = [{"source": x, "target": y} for distance, x, y in distances if distance <= ALLOWED]
    if not cases:
        return None, min((distance for distance, _, _ in distances), default=float("inf"))
    values_a, values_b = start_a | cases[0]["source"], start_b | cases[0]["target"]
    if not apart(a, b, values_a, values_b, control=True) > CONTROL:
        raise SystemExit(f"{a} and {b}: the rows as they are give the same logits, so nothing is shown")
    changed, fixed = split_keys(a, b, values_a, values_b)
    computed = {k: computed_value(a, values_a, changed, k) for k in fixed if fields(a)[k] is None and values_a.get(k)}
    own = [k for k in fields(b) if k not in fields(a) and k not in GEOMETRY and k not in switches(b)]
    start = {k: _spec(k, start_b, fields(b)) for k in own}
    return {
        "source": a,
        "target": b,
        "cases": cases,
        "required": {k: _spec(k, values_a, fields(a)) for k in fixed},
        "computed": {k: v for k, v in computed.items() if v is not None},
        "sets": {k: v for k, v in start.items() if v != fields(b)[k]},
        "square": apart(a, b, values_a | NOT_SQUARE, values_b | NOT_SQUARE) > ALLOWED,
        "rope_types": rope_types(a, b, values_a, values_b),
    }, 0.0


def _spec(key: str, values: Values, defaults: Values) -> Any:
    """The value that a key has in ``values``, said so that it holds for other geometries too."""
    return NEUTRAL[key] if isinstance(NEUTRAL.get(key), dict) else values.get(key, defaults[key])


def candidates() -> Iterator[tuple[str, str]]:
    """Ordered pairs of opposite pairing, with the same names on disk; a type that obeys a config key needs no twin.

    transformers renames the tensors of some types on loading (exaone): a model has then the names of many others, and
    its checkpoint does not.
    """
    types = [t for t, row in TABLE.items() if row.pairing_key is None and buildable(t)]
    for a, b in itertools.product(types, types):
        if TABLE[a].pairing is TABLE[b].pairing or TABLE[a].attention != TABLE[b].attention:
            continue
        if signatures(a).keys() & signatures(b).keys():
            yield a, b


def buildable(model_type: str) -> bool:
    """Whether the type has a causal language model, and a config with defaults."""
    return model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and catalog.default_config(model_type) is not None


def rank(row: Values) -> tuple[Any, ...]:
    """Rows by source, the target to prefer first."""
    target = row["target"]
    return row["source"], PREFERENCE.index(target) if target in PREFERENCE else len(PREFERENCE), target


def class_entry(model_type: str) -> Values:
    """What the mechanism must know of a class."""
    kind = catalog.config_class(model_type)
    return {
        "architecture": MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type],
        "fields": fields(model_type),
        "aliases": dict(kind.attribute_map),
        "reads": reads(model_type),
        "tokenizer": TOKENIZER_MAPPING_NAMES.get(model_type),
    }


def lines(entries: list[str]) -> str:
    """One entry a line."""
    return ",\n  ".join(entries)


def main() -> None:
    """Write the file."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows, unlike = [], []
    for a, b in candidates():
        row, distance = twin(a, b)
        if row is not None:
            rows.append(row)
        else:
            unlike.append({"source": a, "target": b, "apart": distance if distance < float("inf") else None})
    rows.sort(key=rank)
    types = sorted({row["source"] for row in rows} | {row["target"] for row in rows})
    TWINS_FILE.write_text(
        f'{{"transformers": "{transformers.__version__}",\n "classes": {{\n  '
        + lines([f'"{name}": {json.dumps(class_entry(name))}' for name in types])
        + '\n },\n "twins": [\n  '
        + lines([json.dumps(row) for row in rows])
        + '\n ],\n "unlike": [\n  '
        + lines([json.dumps(row) for row in unlike])
        + "\n ]}\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
