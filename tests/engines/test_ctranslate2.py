"""CTranslate2's row against CTranslate2 itself, where it is installed: what it computes is what the row hears."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from ropetool.engines import ctranslate2
from ropetool.engines.compare import faults
from ropetool.engines.heard import Heard
from ropetool.engines.listen import values_of
from ropetool.engines.opening import open_case
from tests.engines.test_transformers import BASE, KINDS, LLAMA3, LONG, THETA, WITH_16, v4, v5

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ctranslate2") is None,
    reason="ctranslate2 is no dependency; its row is checked where it is installed (make test)",
)

VOCAB, TOKENS = 40, 160
ALLOWED, WIDE = 2e-3, 0.2  # nats: the largest difference of a log-probability
SIZES = {
    "vocab_size": VOCAB, "num_hidden_layers": 2, "tie_word_embeddings": False, "head_dim": 16, "pad_token_id": 0,
    "max_position_embeddings": 512,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0}
GPTJ = {"n_embd": 64, "n_head": 4, "n_layer": 2, "rotary_dim": 8}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama, base, v5": v5({"rope_type": "default"}),
    "llama, base, v4": {"rope_theta": THETA},
    "llama, linear": v4(LINEAR),
    "llama, linear by type": v4({"type": "linear", "factor": 4.0}),
    "llama, llama3": v5({**LLAMA3, **WITH_16}),
    "llama, yarn": v5({"rope_type": "yarn", "factor": 4.0, **WITH_16}),
    "llama, dynamic": v5({"rope_type": "dynamic", "factor": 4.0}),
    "llama, longrope": v5({**LONG, **WITH_16}),
    "mistral": {"model_type": "mistral", "sliding_window": None, **v5(LINEAR)},
    "qwen2": {"model_type": "qwen2", **v5(LINEAR)},
    "qwen3": {"model_type": "qwen3", **v5(LINEAR)},
    "gemma, base": {"model_type": "gemma", "rope_theta": THETA},
    "gemma3_text": {
        "model_type": "gemma3_text", **KINDS, "sliding_window": 4096,
        "rope_parameters": {name: {"rope_type": "default", "rope_theta": THETA} for name in KINDS["layer_types"]},
    },
    "gptj": {"model_type": "gptj", **GPTJ},
    "gpt_neox": {"model_type": "gpt_neox", "rotary_emb_base": THETA},
    "phi3": {"model_type": "phi3", **v5({"rope_type": "default"})},
    "phi3, longrope": {"model_type": "phi3", "rope_scaling": {**LONG, "type": "longrope"}, **WITH_16},
}  # fmt: skip


def saved(config: dict[str, Any], directory: Path) -> Path:
    """A tiny random model whose config.json is ``config`` as given, with a tokenizer."""
    from tokenizers import Tokenizer, models

    torch.manual_seed(0)
    plain = {key: value for key, value in config.items() if not key.startswith("rope")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(plain.pop("model_type"), **plain)).float()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.0 if "embed" in name else 0.35)
    model.save_pretrained(directory)
    write(directory, config)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t3"))
    names = {"unk_token": "t3", "bos_token": "t1", "eos_token": "t2", "pad_token": "t0"}
    PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained(directory)
    return directory


def write(directory: Path, config: dict[str, Any]) -> None:
    file = directory / "config.json"
    kept = {key: value for key, value in json.loads(file.read_text()).items() if not key.startswith("rope")}
    file.write_text(json.dumps(kept | config), encoding="utf-8")


def converted(checkpoint: Path, tokens: list[int]) -> torch.Tensor | None:
    """Its log-probabilities; None where the converter raises."""
    from ctranslate2 import Generator
    from ctranslate2.converters import TransformersConverter

    with tempfile.TemporaryDirectory() as directory:
        try:
            TransformersConverter(str(checkpoint)).convert(directory, quantization="float32", force=True)
        except Exception:  # noqa: BLE001  whatever it raises, it does not load
            return None
        generator = Generator(directory, device="cpu", compute_type="float32", intra_threads=1)
        return torch.tensor(np.array(generator.forward_batch([tokens], return_log_probs=True))[0])


def as_config(heard: Heard) -> dict[str, Any]:
    """A config in which transformers computes what was heard."""
    blocks = {turn.layers: dict(values_of(turn.scaling)) for turn in heard.turns}
    return {"rope_parameters": blocks.get("all", blocks)}


def in_transformers(checkpoint: Path, tokens: list[int]) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


@pytest.mark.parametrize("name", CONFIGS)
def test_the_row_hears_what_is_computed(name: str, tmp_path: Path) -> None:
    config = {**BASE, **SIZES, **CONFIGS[name]}
    if config["model_type"] in ("phi3", "gpt_neox", "gptj"):
        del config["head_dim"]
    config = {key: value for key, value in config.items() if value is not None}
    checkpoint = saved(config, tmp_path / "tiny")
    heard = ctranslate2.ROW.hears(open_case(config))
    tokens = np.random.RandomState(0).randint(4, VOCAB, TOKENS).tolist()
    found = converted(checkpoint, tokens)
    assert bool(heard.refusal) == (found is None), heard
    if found is None:
        return
    as_meant = in_transformers(checkpoint, tokens)
    write(checkpoint, as_config(heard) if config["model_type"] != "gptj" else {})
    difference = (found - in_transformers(checkpoint, tokens)).abs().max()
    assert difference < ALLOWED, difference
    right = not faults(open_case(config), heard)
    assert bool((found - as_meant).abs().max() < WIDE) == right  # a wrong verdict is a wrong result
