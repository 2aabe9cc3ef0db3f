"""Checkpoints that reports are made of: configs of many kinds, and the bundled one, extended and measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ropetool import evaluate, extend, verify
from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.cli import app
from ropetool.families.methods import Method, Weights
from ropetool.models.options import Device, PasskeyPlan
from ropetool.views import jsons

BASE = {
    "vocab_size": 96, "hidden_size": 96, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
LOCAL = {"rope_type": "default", "rope_theta": 1e4}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {**BASE, "model_type": "llama", "max_position_embeddings": 64, "rope_theta": 1e4},
    "llama3": {
        **BASE, "model_type": "llama", "head_dim": 128, "max_position_embeddings": 131072, "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 8192},
    },
    "qwen3": {**BASE, "model_type": "qwen3", "head_dim": 128, "max_position_embeddings": 40960, "rope_theta": 1e6},
    "dynamic": {
        **BASE, "model_type": "llama", "max_position_embeddings": 64, "rope_theta": 1e4,
        "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
    },
    "longrope": {
        **BASE, "model_type": "phi3", "hidden_size": 128, "max_position_embeddings": 256, "rope_theta": 1e4,
        "original_max_position_embeddings": 64,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0 + at for at in range(8)]},
    },
    "gemma3": {
        **BASE, "model_type": "gemma3_text", "num_hidden_layers": 6, "head_dim": 256, "sliding_window": 1024,
        "max_position_embeddings": 131072, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                            "sliding_attention": LOCAL},
    },
    "gemma4": {
        **BASE, "model_type": "gemma4_text", "head_dim": 64, "global_head_dim": 128, "sliding_window": 1024,
        "max_position_embeddings": 131072, "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                               "rope_theta": 1e6}, "sliding_attention": LOCAL},
    },
    "one pair": {**BASE, "model_type": "llama", "head_dim": 2, "max_position_embeddings": 64, "rope_theta": 1e4},
    "a wide head": {
        **BASE, "model_type": "llama", "head_dim": 2048, "max_position_embeddings": 1 << 40, "rope_theta": 1e18,
    },
    "no length": {**BASE, "model_type": "recurrent_gemma", "rope_theta": 1e4},
    "bloom": {"model_type": "bloom", "hidden_size": 96, "n_head": 8, "n_layer": 2, "vocab_size": 96},
}  # fmt: skip


def written(directory: Path, config: Mapping[str, Any]) -> Path:
    """A checkpoint of config.json alone."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


class Measured(NamedTuple):
    """The bundled checkpoint, extended by YaRN, what verify and evaluate kept of the two, and a search."""

    source: Path
    extended: Path
    verified: Path
    evaluated: Path
    searched: Path

    @property
    def arguments(self) -> list[str]:
        """Those of a report of everything."""
        pair = [str(self.extended), "--against", str(self.source)]
        return [
            *pair,
            "--verify",
            str(self.verified),
            "--evaluate",
            str(self.evaluated),
            "--search",
            str(self.searched),
        ]


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Made once; what is measured is little, and real."""
    place, source = tmp_path_factory.mktemp("measured"), bundled(CHECKPOINT)
    target = place / "yarn-1024"
    extend.apply(extend.plan(source, target, Method.YARN, to=1024, weights=Weights.COPY))
    proof = verify.verify(source, target, tokens=64, device=Device.CPU)
    losses = evaluate.evaluate(
        target, bundled(TEXT).read_text(encoding="utf-8"), edges=(128, 256, 384), against=source, device=Device.CPU,
        passkey=PasskeyPlan(depths=(0.0, 1.0), trials=2),
    )  # fmt: skip
    words = "--method auto --to 512 --text bundled --trials 6 --dtype float32 --dry-run --quiet --json --out"
    search = place / "made.json"
    assert app.run(["extend", str(source), str(place / "auto"), *words.split(), str(search)]) == 0
    found = {**json.loads(search.read_text()), "output": str(target)}  # shown beside the checkpoint of the others
    kept = {
        "verify.json": jsons.verification(proof), "loss.json": jsons.evaluation(losses), "search.json": found,
    }  # fmt: skip
    for name, result in kept.items():
        (place / name).write_text(jsons.dumps(result), encoding="utf-8")
    return Measured(source, target, *(place / name for name in kept))


def make_page(out: Path, *arguments: object) -> Path:
    """Run ``ropetool report`` for a page."""
    assert app.run(["report", *map(str, arguments), "--out", str(out), "--quiet"]) == 0
    return out
