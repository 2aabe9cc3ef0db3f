"""One model over two processes under torchrun (gloo, no GPU): the same logits, the same verdicts, one voice."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool import convert, verify
from ropetool.models import passes
from ropetool.models.options import DType
from ropetool.models.run import load, logits
from ropetool.models.tiny import build
from tests.tiny import TINY

ROOT = Path(__file__).resolve().parents[2]
# Heads that are shared, norms by head and over all heads (whose plan gathers q and k first), one table for all of them.
DIVIDED = ("llama", "qwen3", "olmo2", "gpt_neox", "phi3", "deepseek_v3", "gemma2")

LOGITS = """
import sys, torch
from pathlib import Path
from ropetool import verify
from ropetool.models import passes
from ropetool.models.options import DType
from ropetool.models.ranks import rank
from ropetool.models.run import load, logits
torch.set_num_threads(1)
for path in map(Path, sys.argv[2:]):
    runner, side = load(path, torch.device("cpu"), DType.FLOAT32), verify._side(path)
    ids = torch.arange(2, 42)
    other = side.reading.pairing.other
    tables = [logits(runner, ids), *(passes.by_reference(runner, side, side, ids, p) for p in (other.other, other))]
    torch.save(tables, Path(sys.argv[1]) / f"{path.name}.{rank()}.pt")
"""


def torchrun(*arguments: object, processes: int = 2) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300, cwd=ROOT
    )


@pytest.fixture(scope="module")
def divided(checkpoint, tmp_path_factory):
    """The logits of every process, for every family: by its own class, by reference, and in the wrong layout."""
    place = tmp_path_factory.mktemp("divided")
    (place / "script.py").write_text(LOGITS, encoding="utf-8")
    done = torchrun(place / "script.py", place, *map(checkpoint, DIVIDED))
    assert done.returncode == 0, done.stderr[-2000:]
    return place


@pytest.mark.parametrize("name", DIVIDED)
def test_every_process_has_the_logits_of_one_process(name, divided, checkpoint):
    path, ids = checkpoint(name), torch.arange(2, 42)
    runner, side = load(path, torch.device("cpu"), DType.FLOAT32), verify._side(path)
    other = side.reading.pairing.other
    here = [logits(runner, ids), *(passes.by_reference(runner, side, side, ids, p) for p in (other.other, other))]
    for rank in (0, 1):
        there = torch.load(divided / f"{path.name}.{rank}.pt")
        assert all(torch.allclose(a, b, rtol=0, atol=5e-5) for a, b in zip(here, there, strict=True))
        assert (there[1] - there[2]).abs().max() > 0.1


def converted(source, out):
    convert.apply(convert.plan(source, out, verify._side(source).reading.pairing.other))
    return out


def test_a_sound_conversion_passes_and_one_process_prints(checkpoint, tmp_path):
    source = checkpoint("llama")
    out, kept = converted(source, tmp_path / "out"), tmp_path / "result.json"
    done = torchrun("-m", "ropetool", "verify", source, out, "--json", "--out", kept)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout) == json.loads(kept.read_text(encoding="utf-8"))
    assert json.loads(done.stdout)["passed"]
    assert done.stderr.count("comparing tensors and configs") == 1


def test_a_planted_fault_fails(checkpoint, tmp_path):
    source = checkpoint("llama")
    out = converted(source, tmp_path / "out")
    tensors = load_file(out / "model.safetensors")
    tensors["model.layers.1.self_attn.k_proj.weight"] = tensors["model.layers.1.self_attn.k_proj.weight"].flip(0)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    done = torchrun("-m", "ropetool", "verify", source, out, "--json", "--quiet")
    assert done.returncode == 1
    failed = {check["name"] for check in json.loads(done.stdout)["checks"] if not check["passed"]}
    assert {"tensors-moved", "logits"} <= failed


REFUSED = {
    "falcon": (2, "no tensor-parallel plan for FalconForCausalLM"),
    "cohere-qk-norm": (2, "does not run by transformers' tensor-parallel plan"),
    "llama": (3, "num_attention_heads is 8, which 3 processes cannot share"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_divided_is_refused_once_and_nothing_hangs(name, checkpoint, tmp_path):
    processes, said = REFUSED[name]
    if name in TINY:
        source = checkpoint(name)
    else:
        source = tmp_path / name
        build(name).model.save_pretrained(source)
    done = torchrun("-m", "ropetool", "verify", source, source, "--quiet", processes=processes)
    assert done.returncode != 0
    assert done.stdout == ""
    assert done.stderr.count("error: ") == 1
    assert said in done.stderr
    assert "exitcode  : 2" in done.stderr


def test_memory_and_processes_are_not_combined(checkpoint):
    source = checkpoint("llama")
    done = torchrun("-m", "ropetool", "verify", source, source, "--max-memory", "3GB", "--quiet")
    assert "leave out --max-memory" in done.stderr
    assert done.stderr.count("error: ") == 1
