"""What docs/engines.md shows: every line is asked of the rows in ropetool/engines while the site is built.

The model that all of them are asked about is a Llama of 32 layers, trained on 8192 tokens with the base 500000: its
config, written in each of the ways of `WAYS`, lies in a directory, and `ropetool.doctor` diagnoses it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ropetool import doctor, extend
from ropetool.checkpoint.config import Style
from ropetool.engines import ctranslate2, exllamav2, mlx_lm, sglang, transformers4, transformers5, vllm
from ropetool.engines.declared import KEYS
from ropetool.engines.dialect import TYPE_KEYS, Dialect, Place, TypeRead
from ropetool.engines.heard import Listener
from ropetool.engines.listeners import LISTENERS
from ropetool.engines.opening import open_case
from ropetool.engines.rows import ROWS
from tools.docs_markdown import code, prose, table

TRAINED, THETA, FACTOR = 8192, 500000.0, 4
PLAIN: Mapping[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336,
    "vocab_size": 128256, "max_position_embeddings": TRAINED, "rms_norm_eps": 1e-05, "tie_word_embeddings": False,
    "rope_theta": THETA,
}  # fmt: skip
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
_LONGER = {**PLAIN, "max_position_embeddings": TRAINED * FACTOR}
_V5 = {key: value for key, value in _LONGER.items() if key != "rope_theta"}


@dataclass(frozen=True)
class WayOfWriting:
    """One way of writing the config: its keys, or the method by which `ropetool extend` writes it."""

    title: str
    about: str
    config: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


_LISTS = {"short_factor": [1.0] * 64, "long_factor": [1.0 + 0.1 * pair for pair in range(64)]}
WAYS = (
    WayOfWriting("plain, v4 keys", "The base at the top level, as transformers 4 saves it.", PLAIN),
    WayOfWriting(
        "plain, v5 keys", "The base inside `rope_parameters` alone, as transformers 5 saves it.",
        {**{k: v for k, v in PLAIN.items() if k != "rope_theta"},
         "rope_parameters": {"rope_type": "default", "rope_theta": THETA}},
    ),
    WayOfWriting("yarn, v4 keys", "`rope_scaling` and a top-level base.", {**_LONGER, "rope_scaling": _YARN}),
    WayOfWriting(
        "yarn, v5 keys", "`rope_parameters` alone.", {**_V5, "rope_parameters": {**_YARN, "rope_theta": THETA}}
    ),
    WayOfWriting("yarn by ropetool", "Both styles with equal values, as `ropetool extend` writes it.", method="yarn"),
    WayOfWriting(
        "yarn, no trained length", "`original_max_position_embeddings` left out, and the maximum raised.",
        {**_LONGER, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
    ),
    WayOfWriting(
        "yarn, attention_factor 1", "An explicit `attention_factor`: cos and sin are not to grow.",
        method="yarn", settings={"attention_factor": 1.0},
    ),
    WayOfWriting("linear by ropetool", "Position interpolation.", method="linear"),
    WayOfWriting("ntk by ropetool", "A new base, and no block.", method="ntk"),
    WayOfWriting("dynamic by ropetool", "A base that grows with the length in play.", method="dynamic"),
    WayOfWriting("llama3 by ropetool", "By wavelength.", method="llama3"),
    WayOfWriting("longrope by ropetool", "A factor for each pair.", method="longrope", settings=_LISTS),
    WayOfWriting(
        "two styles that disagree", "`rope_theta` 10000 at the top level, 500000 in the block.",
        {**_V5, "rope_theta": 10000.0, "max_position_embeddings": TRAINED,
         "rope_parameters": {"rope_type": "default", "rope_theta": THETA}},
    ),
)  # fmt: skip
SHOWN = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "original_max_position_embeddings")
SIGNS = {"right": "✓", "wrong": "✗", "loads-not": "–", "unknown": "?"}


def name_of(row: Listener) -> str:
    """An engine's name, with the part or the version of it that is asked where there are two."""
    several = [other for other in LISTENERS if other.engine is row.engine and other.part == row.part]
    return f"{row.engine.value} {row.part or (row.version.split('.')[0] if len(several) > 1 else '')}".strip()


@lru_cache(maxsize=1)
def asked() -> tuple[tuple[WayOfWriting, Mapping[str, Any], doctor.Diagnosis], ...]:
    """Each way of writing, its config, and what all engines make of it."""
    found = []
    with tempfile.TemporaryDirectory() as place:
        source = _written(Path(place) / "plain", PLAIN)
        for index, way in enumerate(WAYS):
            path = _written(Path(place) / str(index), way.config) if way.config else Path(place) / str(index)
            if way.method:
                planned = extend.plan(
                    source, path, extend.Method(way.method), to=TRAINED * FACTOR, settings=way.settings,
                    weights=extend.Weights.NONE, style=Style.DUAL,
                )  # fmt: skip
                _written(path, planned.config)
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
            found.append((way, config, doctor.diagnose(path)))
    return tuple(found)


def _written(path: Path, config: Mapping[str, Any]) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    return path


def overview() -> str:
    """A row for each way of writing, a column for each engine."""
    head = ("Config", *(name_of(row) for row in LISTENERS))
    rows = [(way.title, *(SIGNS[found.verdict.value] for found in said.findings)) for way, _, said in asked()]
    return table(head, rows)


def in_full() -> str:
    """A tab for each way of writing: its rope keys, and every engine that does not hear what is meant."""
    return "\n\n".join(_tab(way, config, said) for way, config, said in asked())


def _tab(way: WayOfWriting, config: Mapping[str, Any], said: doctor.Diagnosis) -> str:
    shown = {key: _short(value) for key, value in config.items() if key in SHOWN}
    rows = [
        (name_of(found.listener), SIGNS[found.verdict.value], _hears(found), prose(found.fix) or "-")
        for found in said.findings
    ]
    answers = table(("Engine", "", "What it hears", "What to do"), rows)
    body = f"{way.about}\n\n```json\n{json.dumps(shown, indent=2)}\n```\n\n{answers}"
    return f'=== "{way.title}"\n\n' + "\n".join(f"    {line}".rstrip() for line in body.splitlines())


def _hears(found: doctor.Finding) -> str:
    """What an engine hears otherwise; of a config that contradicts itself, the base that it takes."""
    if found.verdict is doctor.Verdict.UNKNOWN and found.heard.turns and not found.heard.unknown:
        return f"the base {found.heard.turns[0].scaling.theta:g}"
    return prose(found.why) or "what is meant"


def _short(value: Any) -> Any:
    """A value of a config, without the lists that nobody reads."""
    if isinstance(value, Mapping):
        return {key: _short(entry) for key, entry in value.items()}
    return [*value[:3], "..."] if isinstance(value, list) else value


def sources() -> str:
    """What each row was read from or run against: the row itself, and the words that its module begins with."""
    rows = []
    for row in LISTENERS:
        about, *read = (" ".join(part.split()) for part in str(sys.modules[row.hears.__module__].__doc__).split("\n\n"))
        said = about.split(": ", 1)[-1]
        rows.append(
            (f"**{name_of(row)}**", row.version, row.origin.value, prose(said), prose(read[0] if read else row.file))
        )
    return table(("Engine", "Version", "Known", "In a sentence", "From"), rows)


def layouts() -> str:
    """By what each engine comes to read a layout."""
    asked_types = {name: open_case(config).reading for name, config in _TYPES.items()}
    rows = [
        (row.name.value, *(_ways(row.ways(reading)) for reading in asked_types.values()), code(row.file))
        for row in ROWS
    ]
    return table(("Engine", *map(code, asked_types), "Read in"), rows)


_TYPES: Mapping[str, Mapping[str, Any]] = {
    "llama": PLAIN,
    "ernie4_5": {**PLAIN, "model_type": "ernie4_5", "architectures": ["Ernie4_5ForCausalLM"]},
    "qwen3": {**PLAIN, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
    "glm4": {**PLAIN, "model_type": "glm4", "architectures": ["Glm4ForCausalLM"]},
    "deepseek_v3": {
        **PLAIN, "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "kv_lora_rank": 512, "q_lora_rank": 1536, "head_dim": 64,
    },
}  # fmt: skip


def _ways(ways: Any) -> str:
    said = []
    for pairing, way in ways.items():
        keys = ", ".join(code(f"{key}: {str(value).lower()}") for key, value in way.keys.items())
        default = " (by default)" if keys and way.by_default else ""
        said.append(f"{pairing.value}{f' by {keys}' if keys else ''}{default}")
    return "<br>".join(said) or "no class"


def keys() -> str:
    """Keys that tell a layout, in whatever program's config they come from."""
    rows = [(code(key), row.true_means.value, prose(row.whose)) for key, row in KEYS.items()]
    return table(("Key", "`true` means", "Whose"), rows)


_LLAMA = mlx_lm.ROWS["llama"]
DIALECTS: Mapping[str, Dialect] = {
    "transformers 5": transformers5.FLAT,
    "transformers 4": transformers4.DIALECT,
    "vllm": vllm.FLAT,
    "sglang": sglang.FLAT,
    "mlx-lm (Llama)": Dialect(
        _LLAMA.blocks, {name: mlx_lm.TYPES[name] for name in _LLAMA.types}, _LLAMA.theta, names=_LLAMA.names
    ),
    "exllamav2": exllamav2.DIALECT,
    "ctranslate2": ctranslate2.BLOCK_READ,
}
MANY_KEYS = ("yarn", "longrope", "llama3")  # the others have a factor and nothing that an engine could pass over
SAID = {Place.BLOCK: "the block", Place.TOP: "the top level", Place.LENGTH: "`max_position_embeddings`"}


def dialects() -> str:
    """Where each engine looks for what."""
    rows = []
    for name, dialect in DIALECTS.items():
        order = (map(code, dialect.blocks), map(code, dialect.names), map(_place, dialect.theta))
        known = ", ".join(code(key) for key in dialect.types if key != "default")
        rows.append((name, *map(_in_order, order), dialect.other.value, known))
    return table(("Engine", "Block", "Type under", "Base in", "Another type", "Types that it knows"), rows)


def _in_order(parts: Any) -> str:
    return ", then ".join(parts)


def _place(place: Place | int) -> str:
    return SAID[place] if isinstance(place, Place) else f"{place} (its own)"


def types() -> str:
    """What each engine does with each key of each type of block."""
    rows = []
    for method in MANY_KEYS:
        known = TYPE_KEYS[method]
        for name, dialect in DIALECTS.items():
            read = dialect.types.get(method)
            if read is not None:
                rows.append((code(method), name, *_keys_of(method, read, known)))
            else:
                rows.append((code(method), name, "does not know it", "", ""))
    return table(("Type", "Engine", "Needs", "Passes over", "Trained length in"), rows)


def _keys_of(method: str, read: TypeRead, known: tuple[str, ...]) -> tuple[str, str, str]:
    heard = {*read.needs, *read.takes, *(("original_max_position_embeddings",) if read.original else ())}
    unread = [key for key in known if key not in heard]
    if read.method != method:
        return f"computes {code(read.method)}", ", ".join(map(code, unread)), ""
    needs, passed_over = (", ".join(map(code, names)) or "-" for names in (read.needs, unread))
    return needs, passed_over, _in_order(map(_place, read.original)) or "-"


def parts() -> dict[str, Callable[[], str]]:
    """What pages can ask for."""
    return {
        "engines overview": overview, "engines in full": in_full, "engines sources": sources,
        "engines layouts": layouts, "engines keys": keys, "engines dialects": dialects, "engines types": types,
    }  # fmt: skip
