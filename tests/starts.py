"""The sources that faults are planted in: tiny checkpoints, some with numbers that are no class's default."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from ropetool import convert, extend
from ropetool.checkpoint.adapter import is_adapter, open_adapter
from ropetool.checkpoint.folder import read_config
from ropetool.families.adapter import read_adapter
from ropetool.families.methods import Method, Weights
from ropetool.families.reading import read_model
from ropetool.models.tiny import build
from ropetool.rope.layout import Pairing
from tests import planting, quantised, tiny

SAME, CONVERTED = "same", "converted"
TRAINED, FACTOR = tiny.LENGTH, 4.0


@dataclass(frozen=True)
class Start:
    """A model of `tests.tiny` or a type of `models.tiny`, and what its config says otherwise.

    ``shard_size`` splits it, ``way`` quantises it, ``saved`` keeps the frequencies of every layer among the weights.
    ``adapter``: it is a LoRA adapter of such a model, with these values in its config; or lies in its folder.
    """

    model: str
    config: Mapping[str, Any] = field(default_factory=dict)
    shard_size: str | None = None
    way: str | None = None
    saved: bool = False
    adapter: Mapping[str, Any] | None = None
    inside: bool = False


def scaled(rope_type: str, factor: float, **values: Any) -> dict[str, Any]:
    """The keys of a model that is extended already, in the style of version 5."""
    length = TRAINED if rope_type == "dynamic" else int(TRAINED * factor)
    block = {"rope_type": rope_type, "factor": factor, "rope_theta": 10000.0, **values}
    return {"rope_parameters": block, "max_position_embeddings": length}


ORIGINAL = {"original_max_position_embeddings": TRAINED}
PAIRS = 8
STARTS: dict[str, Start] = {
    **{name: Start(name) for name in tiny.TINY},
    **{name: Start(name) for name in ("gemma3_text", "mixtral", "smollm3", "falcon", "granite", "qwen3_moe")},
    **{name: Start(name) for name in ("qwen2_5_vl_text", "ministral3")},
    "lora": Start("llama", adapter={}),
    "lora-mla": Start("deepseek_v3-no-q-lora", adapter={}),
    "dora": Start("qwen2", adapter={"use_dora": True}),
    "llama-and-lora": Start("llama", adapter={}, inside=True),
    "llama-5e5": Start("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama-sharded": Start("llama", shard_size="60KB"),
    "llama-saved": Start("llama", saved=True),
    "llama-int8": Start("llama", way="int8-channel"),
    "llama-undeclared": Start("llama", way="undeclared"),
    "qwen3-gptq": Start("qwen3", {}, way="gptq-4"),
    "gpt_neox-fp8": Start("gpt_neox", way="fp8-channel"),
    "glm4-share": Start(
        "glm4", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}}
    ),
    "gpt_oss": Start(
        "gpt_oss",
        scaled("yarn", 2.0, truncate=False, beta_fast=32.0, beta_slow=1.0, rope_theta=150000.0, **ORIGINAL),
    ),
    "llama-yarn": Start("llama", scaled("yarn", 2.0, beta_fast=24.0, beta_slow=2.0, **ORIGINAL)),
    "llama-yarn-given": Start("llama", scaled("yarn", 2.0, attention_factor=1.25, **ORIGINAL)),
    "deepseek-yarn": Start("deepseek_v3", scaled("yarn", 2.0, mscale=0.707, mscale_all_dim=0.707, **ORIGINAL)),
    "llama-3.1": Start("llama", scaled("llama3", 2.0, low_freq_factor=1.5, high_freq_factor=6.0, **ORIGINAL)),
    "llama-linear": Start("llama", scaled("linear", 2.0)),
    "phi3-long": Start(
        "phi3",
        scaled("longrope", 2.0, short_factor=[1.0] * 4, long_factor=[1.0, 2.0, 3.0, 4.0], partial_rotary_factor=0.5,
               **ORIGINAL),
    ),
}  # fmt: skip


def built(name: str, directory: Path) -> Path:
    """The checkpoint of a start."""
    start = STARTS[name]
    kept = {"max_shard_size": start.shard_size} if start.shard_size else {}
    if start.model in tiny.TINY:
        model = tiny.model_of(start.model)
    else:
        bare = build(start.model)
        causal = type(bare.config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
        model = tiny.random_model(bare.config) if causal else bare.model
    plain = tiny.save(model, directory / f"plain-{name}" if start.way else directory / name, **kept)
    if start.config:
        tiny.edit_json(plain / planting.CONFIG, **start.config)
    if start.saved:
        _save_frequencies(plain)
    if start.adapter is not None:
        return _adapter(plain, start)
    return quantised.quantise(plain, quantised.WAYS[start.way], directory / name) if start.way else plain


def _adapter(base: Path, start: Start) -> Path:
    """A LoRA adapter as PEFT saves one, of every projection that is separate; or the base that it lies in."""
    directory = base / "adapter" if start.inside else base.with_name(f"{base.name}-adapter")
    directory.mkdir()
    generator, tensors = torch.Generator().manual_seed(9), {}
    for name, weight in load_file(base / planting.SINGLE).items():
        module = name.removesuffix(".weight")
        if module.endswith(("q_proj", "k_proj", "v_proj", "kv_a_proj_with_mqa")):
            rows, columns = weight.shape
            tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(4, columns, generator=generator)
            tensors[f"base_model.model.{module}.lora_B.weight"] = torch.randn(rows, 4, generator=generator)
            if (start.adapter or {}).get("use_dora"):
                tensors[f"base_model.model.{module}.lora_magnitude_vector"] = torch.rand(rows, generator=generator)
    planting.write(directory / planting.ADAPTER, tensors)
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "base_model_name_or_path": str(base),
        **(start.adapter or {}),
    }
    (directory / planting.ADAPTER_CONFIG).write_text(json.dumps(config), encoding="utf-8")
    return base if start.inside else directory


def _save_frequencies(directory: Path) -> None:
    config, file = tiny.read_json(directory / planting.CONFIG), directory / planting.SINGLE
    dim, theta = config["head_dim"], config["rope_parameters"]["rope_theta"]
    table = theta ** (-torch.arange(0, dim, 2) / dim)
    names = [f"model.layers.{layer}.self_attn.rotary_emb.inv_freq" for layer in range(config["num_hidden_layers"])]
    planting.write(file, load_file(file) | {name: table.clone() for name in names})


SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "abf": {"base": 5e5},
    "longrope": {"short_factor": [1.0 + i / 100 for i in range(8)], "long_factor": [1.0 + i for i in range(8)]},
}


def made(source: Path, relation: str, destination: Path) -> Path:
    """What ropetool makes of a source: converted, or extended by a method; with weights of its own in any case."""
    if relation == SAME:
        return copied(source, destination)
    if relation == CONVERTED:
        to = layout_of(source).other
        convert.apply(convert.plan(source, destination, to, written_as=None if is_adapter(source) else "same"))
        return destination
    method = Method(relation)
    factor = FACTOR if method is not Method.DYNAMIC else 2.0
    plan = extend.plan(
        source, destination, method, factor=factor, original=TRAINED, settings=_settings(source, method),
        weights=Weights.COPY,
    )  # fmt: skip
    extend.apply(plan)
    return destination


def layout_of(source: Path) -> Pairing:
    return read_adapter(open_adapter(source)).pairing if is_adapter(source) else read_model(read_config(source)).pairing


def copied(source: Path, destination: Path) -> Path:
    """A copy without links to the source."""
    return Path(shutil.copytree(source, destination))


def _settings(source: Path, method: Method) -> dict[str, Any]:
    given = dict(SETTINGS.get(method.value, {}))
    if method is Method.LONGROPE:
        pairs = read_model(read_config(source)).geometry.rotary_dim // 2
        given = {key: values[:pairs] for key, values in given.items()}
    return given
