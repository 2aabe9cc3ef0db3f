"""Models larger than memory: what stays in the shards computes as what is in memory, and memory is bounded."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ropetool import verify
from ropetool.errors import CheckpointError, NoSpaceError, UnsupportedError, UsageError
from ropetool.models import passes, placement
from ropetool.models.options import EACH, DType
from ropetool.models.run import load, logits
from ropetool.models.tiny import build
from tests import tiny

CPU = torch.device("cpu")
AMPLE = {EACH: 1 << 50}
# Beside the rows of `tiny`: tied tables, a scaled embedding, joined experts, one table of q, k and v, kinds of layers.
# Llama 4 asks the embedding for its device; DBRX and LongCat take weights out of modules that they do not run.
MORE = (
    "gemma3_text", "mixtral", "qwen3_moe", "gpt_oss", "falcon", "llama4_text", "codegen", "zamba2", "dbrx",
    "longcat_flash",
)  # fmt: skip


@pytest.fixture
def no_room(monkeypatch):
    """Nothing but what must be in memory has room there."""
    monkeypatch.setattr(placement, "_room", lambda need, max_memory, with_gpus: 0)


@pytest.fixture
def made(checkpoint, tmp_path):
    """A checkpoint by name: of `tests.tiny`, or by the maker of tiny models."""

    def make(name: str) -> Path:
        if name in tiny.TINY:
            return checkpoint(name)
        build(name).model.save_pretrained(tmp_path / name)
        return tmp_path / name

    return make


def ids_for(runner):
    vocabulary = runner.model.config.get_text_config().vocab_size
    return torch.randint(min(vocabulary, 60), (40,), generator=torch.Generator().manual_seed(3))


def away_names(model):
    return [name for name, parameter in model.named_parameters() if parameter.is_meta]


def by_reference(runner, path):
    side = verify._side(path)
    return passes.by_reference(runner, side, side, ids_for(runner), side.reading.pairing)


@pytest.mark.usefixtures("no_room")
@pytest.mark.parametrize("name", [*tiny.TINY, *MORE])
def test_weights_on_disk_give_the_logits_that_weights_in_memory_give(name, made):
    """Exactly: the same numbers are multiplied by the same functions."""
    path = made(name)
    here, there = load(path, CPU, DType.FLOAT32), load(path, CPU, DType.FLOAT32, max_memory=AMPLE)
    ids = ids_for(here)
    matrices = [n for n, p in there.model.named_parameters() if p.dim() > 1]
    assert len(away_names(there.model)) >= len(matrices) - 1 > 0  # all but the embedding
    assert torch.equal(logits(here, ids), logits(there, ids))
    assert torch.equal(by_reference(here, path), by_reference(there, path))


def test_what_has_room_is_in_memory(checkpoint, monkeypatch):
    path = checkpoint("llama")
    assert not away_names(load(path, CPU, DType.FLOAT32, max_memory=AMPLE).model)
    sizes = [p.nbytes for p in load(path, CPU, DType.FLOAT32).model.parameters() if p.dim() > 1]
    monkeypatch.setattr(placement, "_room", lambda need, max_memory, with_gpus: sum(sizes) // 2)
    model = load(path, CPU, DType.FLOAT32, max_memory=AMPLE).model
    resident = sum(p.nbytes for p in model.parameters() if p.dim() > 1 and not p.is_meta)
    assert away_names(model)
    assert sum(sizes) // 2 - 2 * max(sizes) <= resident <= sum(sizes) // 2  # accelerate sets one of the largest aside


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_converted_on_their_way_and_counted_as_converted(dtype, tmp_path, monkeypatch):
    tiny.save(tiny.model_of("llama").to(dtype), tmp_path / "half")
    monkeypatch.setattr(placement, "_room", lambda need, max_memory, with_gpus: 0)
    here = load(tmp_path / "half", CPU, DType.FLOAT32)
    there = load(tmp_path / "half", CPU, DType.FLOAT32, max_memory=AMPLE)
    parameters = zip(here.model.parameters(), there.model.parameters(), strict=True)
    assert all(a.dtype is b.dtype and a.nbytes == b.nbytes for a, b in parameters)
    assert torch.equal(logits(here, ids_for(here)), logits(there, ids_for(here)))


@pytest.mark.usefixtures("no_room")
def test_the_dtype_of_the_files_is_kept_when_none_is_asked_for(tmp_path):
    tiny.save(tiny.model_of("llama").to(torch.bfloat16), tmp_path / "half")
    model = load(tmp_path / "half", CPU, None, max_memory=AMPLE).model
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.usefixtures("no_room")
def test_tied_tables_are_one_and_stay_so(made):
    model = load(made("gemma3_text"), CPU, DType.FLOAT32, max_memory=AMPLE).model
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight


def test_too_little_memory_is_refused_with_the_numbers(checkpoint):
    with pytest.raises(
        UsageError, match=r"0\.10 GB for cpu is too small: .* for the process .* give .* or more"
    ) as told:
        load(checkpoint("llama"), CPU, DType.FLOAT32, max_memory={EACH: 100_000_000})
    assert told.value.fields["needed_bytes"] > told.value.fields["given_bytes"] == 100_000_000


def test_the_least_that_the_refusal_names_is_enough(checkpoint):
    with pytest.raises(UsageError) as told:
        load(checkpoint("llama"), CPU, DType.FLOAT32, max_memory={EACH: 1})
    more = told.value.fields["needed_bytes"] + (64 << 20)  # this process may have grown since
    load(checkpoint("llama"), CPU, DType.FLOAT32, max_memory={EACH: more})


def refusal(path, tokens=8):
    with pytest.raises(UsageError) as told:
        load(path, CPU, DType.FLOAT32, max_memory={EACH: 1}, tokens=tokens)
    return told.value


def test_the_refusal_names_the_largest_weights_and_counts_the_tokens(made):
    assert ".experts)" in refusal(made("mixtral")).message
    long, short = (refusal(made("llama"), tokens=n).fields["needed_bytes"] for n in (4096, 8))
    assert long > short + 8 * 3 * 4096**2 * 4 // 2


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Where temporary folders are made."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.mark.usefixtures("no_room")
def test_only_what_the_class_joins_is_written_and_goes_with_the_model(made, folders):
    def written():
        return sum(file.stat().st_size for file in folders.rglob("*") if file.is_file())

    load(made("llama"), CPU, DType.FLOAT32, max_memory=AMPLE)
    gc.collect()
    assert not list(folders.iterdir())
    runner = load(made("llama"), CPU, DType.FLOAT32, max_memory=AMPLE)
    assert not written()
    joined = load(made("mixtral"), CPU, DType.FLOAT32, max_memory=AMPLE)
    experts = sum(p.nbytes for name, p in joined.model.named_parameters() if ".experts." in name)
    assert experts <= written() < experts + 100_000
    del runner, joined
    gc.collect()
    assert not list(folders.iterdir())


@pytest.mark.usefixtures("no_room")
def test_a_disk_too_full_for_joined_weights_is_refused_before_anything_is_written(made, folders, monkeypatch):
    path = made("mixtral")
    monkeypatch.setattr(shutil, "disk_usage", lambda where: SimpleNamespace(free=1000))
    load(made("llama"), CPU, DType.FLOAT32, max_memory=AMPLE)
    with pytest.raises(NoSpaceError, match="1,000 are free"):
        load(path, CPU, DType.FLOAT32, max_memory=AMPLE)
    gc.collect()
    assert not list(folders.iterdir())


@pytest.mark.usefixtures("no_room")
def test_a_lost_weight_is_missed_without_reading_any(own):
    path = own("llama")
    from safetensors.torch import load_file, save_file

    tensors = load_file(path / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lacks 1 weights .*up_proj"):
        load(path, CPU, DType.FLOAT32, max_memory=AMPLE)


def test_quantised_weights_are_refused(own):
    path = own("llama")
    tiny.edit_json(path / "config.json", quantization_config={"quant_method": "fp8"})
    with pytest.raises(UnsupportedError, match="quantised"):
        load(path, CPU, DType.FLOAT32, max_memory=AMPLE)


# In a process of its own, whose memory nothing else has touched: loads, runs both ways, prints its peak.
MEASURED = """
import json, re, sys, torch
from pathlib import Path
from ropetool import verify
from ropetool.models import passes
from ropetool.models.options import DType
from ropetool.models.run import load, logits
path, budget = Path(sys.argv[1]), json.loads(sys.argv[2])
runner = load(path, torch.device("cpu"), DType.FLOAT32, max_memory=budget, tokens=32)
ids, side = torch.arange(32), verify._side(path)
own = logits(runner, ids)
other = passes.by_reference(runner, side, side, ids, side.reading.pairing)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())  # ru_maxrss would count the parent
print(int(peak[1]) * 1024, float((own - other).abs().max()))
"""


def measured(path, budget):
    arguments = [sys.executable, "-c", MEASURED, str(path), json.dumps(budget)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    peak, apart = done.stdout.split()
    return int(peak), float(apart)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/status")
def test_the_peak_of_the_process_stays_within_the_budget(tmp_path):
    """A model of 1.1 GB in float32, half of that on disk, under 0.9 GB; without a budget it takes more."""
    values = {"hidden_size": 1024, "num_attention_heads": 8, "head_dim": 128, "intermediate_size": 8192}
    model = tiny.model_of("llama", **values, num_hidden_layers=10).to(torch.bfloat16)
    size = sum(4 * p.numel() for p in model.parameters())
    tiny.save(model, tmp_path / "large")
    del model
    budget = 900_000_000
    peak, apart = measured(tmp_path / "large", {EACH: budget})
    free, without = measured(tmp_path / "large", None)
    assert peak <= budget < size < free
    assert apart == without == 0.0
