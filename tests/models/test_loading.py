"""``ropetool.load``: right in any layout, with cache and generate, and plain about what it cannot do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel

import ropetool
from ropetool import convert, extend
from ropetool.checkpoint.folder import has_guard, read_config
from ropetool.detect import inspect
from ropetool.engines.names import EngineName
from ropetool.errors import CheckpointError, UnsupportedError, UsageError
from ropetool.families.methods import Method
from ropetool.families.reading import read_model
from ropetool.models import loading
from ropetool.models.tiny import build
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import TINY

PROMPT = torch.tensor([[5, 17, 3, 40, 9, 22, 61, 8]])


def converted(source: Path, destination: Path, **options: object) -> Path:
    to = read_model(read_config(source)).pairing.other
    convert.apply(convert.plan(source, destination, to, None, "same", **options))
    return destination


def continued(model: torch.nn.Module) -> list[int]:
    """A seeded continuation with the cache, as token ids; greedy ones of a random model soon repeat themselves."""
    torch.manual_seed(3)
    with torch.no_grad():
        return model.generate(
            PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=16, do_sample=True, use_cache=True,
            eos_token_id=None, pad_token_id=0,
        )[0].tolist()  # fmt: skip


@pytest.mark.parametrize("name", TINY)
def test_it_runs_as_the_stock_model_of_the_source(name: str, checkpoint, tmp_path: Path) -> None:
    stock = tiny.load(checkpoint(name))
    there = converted(checkpoint(name), tmp_path / "there")
    model = ropetool.load(there, dtype=torch.float32, attn_implementation="eager")
    assert type(model) is type(stock)
    assert not model.training
    assert torch.equal(tiny.logits(model), tiny.logits(stock))
    assert continued(model) == continued(stock)
    assert len(set(continued(stock)[PROMPT.shape[1] :])) > 6


@pytest.mark.parametrize("name", ["llama", "gptj", "gpt_neox"])
def test_without_putting_the_rows_back_it_would_be_wrong(name: str, checkpoint, tmp_path: Path, monkeypatch) -> None:
    """The comparison above proves something only if this fails."""
    there = converted(checkpoint(name), tmp_path / "there")
    monkeypatch.setattr(loading, "permuted", lambda tensor, index: tensor)
    wrong = ropetool.load(there, dtype=torch.float32, attn_implementation="eager")
    stock = tiny.load(checkpoint(name))
    assert float((tiny.logits(wrong) - tiny.logits(stock)).abs().max()) > 0.5
    assert continued(wrong) != continued(stock)


def test_a_checkpoint_that_the_class_reads_is_loaded_as_it_is(checkpoint) -> None:
    model = ropetool.load(str(checkpoint("qwen3")), dtype=torch.float32, attn_implementation="eager")
    assert torch.equal(tiny.logits(model), tiny.logits(tiny.load(checkpoint("qwen3"))))


def test_a_type_outside_the_table_is_loaded_as_it_is(tmp_path: Path) -> None:
    """Without a marker nothing says that the class is wrong on it."""
    config = GPT2Config(vocab_size=32, n_embd=16, n_head=2, n_layer=1, n_positions=16)
    stock = GPT2LMHeadModel(config).eval()
    stock.save_pretrained(tmp_path / "gpt2")
    assert torch.equal(ropetool.load(tmp_path / "gpt2").lm_head.weight, stock.lm_head.weight)


def test_the_class_is_the_one_that_config_json_names(checkpoint, tmp_path: Path) -> None:
    there = converted(checkpoint("llama"), tmp_path / "there")
    assert type(ropetool.load(there)).__name__ == "LlamaForCausalLM"
    assert loading.model_kind({"architectures": ["LlamaModel"]}).__name__ == "LlamaModel"
    assert loading.model_kind({"architectures": ["Unheard"]}) is AutoModelForCausalLM
    assert loading.model_kind({}) is AutoModelForCausalLM


def test_what_it_saves_is_marked_as_what_it_is(checkpoint, tmp_path: Path) -> None:
    """Saved again, the weights are in the class's layout: neither the marker nor an engine's key may say otherwise."""
    for engine in (None, EngineName.MLX_LM, EngineName.SGLANG):
        name = engine.value if engine else "guarded"
        there = converted(checkpoint("llama"), tmp_path / name, engine=engine)
        assert has_guard(there) == (engine is None)
        ropetool.load(there).save_pretrained(tmp_path / f"{name}-saved")
        saved = read_config(tmp_path / f"{name}-saved")
        assert inspect(tmp_path / f"{name}-saved").pairing == "half"
        assert not {"rope_traditional", "rope_is_neox_style"} & saved.keys()
        want = tiny.logits(tiny.load(checkpoint("llama")))
        assert torch.equal(tiny.logits(tiny.load(tmp_path / f"{name}-saved")), want)


def test_shards_and_an_extension(tmp_path: Path) -> None:
    source = tiny.save(tiny.model_of("qwen3"), tmp_path / "source", max_shard_size="60KB")
    there = converted(source, tmp_path / "there")
    for path, out in ((source, "a"), (there, "b")):
        extend.apply(extend.plan(path, tmp_path / out, Method.YARN, factor=4.0))
    assert has_guard(tmp_path / "b")
    stock = tiny.load(tmp_path / "a")
    model = ropetool.load(tmp_path / "b", dtype=torch.float32, attn_implementation="eager")
    assert torch.equal(tiny.logits(model, tokens=200), tiny.logits(stock, tokens=200))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_dtype_is_passed_on(dtype: torch.dtype, checkpoint, tmp_path: Path) -> None:
    there = converted(checkpoint("qwen2"), tmp_path / "there")
    model = ropetool.load(there, dtype=dtype, device_map={"": "cpu"})
    stock = AutoModelForCausalLM.from_pretrained(checkpoint("qwen2"), dtype=dtype)
    assert model.dtype is dtype
    assert all(torch.equal(tensor, stock.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.float64, torch.bfloat16])
def test_rows_move_as_bytes(dtype: torch.dtype) -> None:
    rows = torch.arange(16).reshape(4, 4).to(dtype)
    index = Pairing.HALF, Pairing.INTERLEAVED
    from ropetool.rope.pairing import rotary_index_map

    moved = loading.permuted(rows, rotary_index_map(4, *index))
    assert moved.dtype is dtype
    assert moved.float().tolist() == rows.float()[[0, 2, 1, 3]].tolist()
    assert loading.permuted(rows.reshape(2, 2, 4), rotary_index_map(4, *index)).shape == (2, 2, 4)


def test_what_cannot_be_put_back_is_refused(checkpoint, tmp_path: Path) -> None:
    there = converted(checkpoint("llama"), tmp_path / "there")
    with pytest.raises(UnsupportedError, match=r"quantization_config makes .* convert the checkpoint back"):
        ropetool.load(there, quantization_config=BitsAndBytesConfig(load_in_8bit=True))
    with pytest.raises(UsageError, match="config comes from the checkpoint itself"):
        ropetool.load(there, config=tiny.config_of("llama"))
    stored = json.loads((there / "config.json").read_text(encoding="utf-8"))
    stored["quantization_config"] = {"quant_method": "fp8"}
    (there / "config.json").write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(UnsupportedError, match="quantization_config makes"):
        ropetool.load(there)


# Types whose tensors have other names on disk than in the class, are joined there, or lie elsewhere.
RENAMED = (
    "exaone", "gte", "nomic_bert", "sarvam_moe", "hrm_text", "molmo2_text", "dory", "axk2", "mistral_large4_text",
)  # fmt: skip


@pytest.mark.parametrize("model_type", RENAMED)
def test_tensors_of_other_names_on_disk(model_type: str, tmp_path: Path) -> None:
    model = build(model_type).model
    there = converted(tiny.save(model, tmp_path / "source"), tmp_path / "there")
    again = ropetool.load(there, dtype=torch.float32).state_dict()
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


def test_a_missing_weight_is_not_made_up(own, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    there = converted(own("llama"), tmp_path / "there")
    tensors = load_file(there / "model.safetensors")
    tensors.pop("model.norm.weight")
    save_file(tensors, there / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 weights that its class needs, model\.norm\.weight"):
        ropetool.load(there)


def test_importing_ropetool_stays_light() -> None:
    code = "import sys, ropetool; ropetool.load; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
