"""Out of memory: the head in pieces first, then weights that stay away; each with a word, and only for that error."""

from __future__ import annotations

import pytest
import torch

from ropetool import verify
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.errors import DeviceMemoryError
from ropetool.models import exact, fallbacks, forward, load, passes, placement
from ropetool.models.options import EACH, DType
from ropetool.models.runner import Runner
from ropetool.models.tiny import build
from tests import tiny

CPU = torch.device("cpu")
METAL = "MPS backend out of memory (MPS allocated: 1.00 GB, other allocations: 1.00 GB, max allowed: 2.00 GB)"


def fails_with(error):
    def attempt():
        raise error

    return attempt


@pytest.mark.parametrize("error", [torch.cuda.OutOfMemoryError("CUDA out of memory"), RuntimeError(METAL)])
def test_the_next_attempt_follows_and_is_announced(error):
    said = []
    attempts = [("", fails_with(error)), ("in pieces", lambda: 1), ("never", lambda: 2)]
    assert fallbacks.within_memory(attempts, said.append) == 1
    assert said == ["out of memory: in pieces"]


def test_any_other_error_is_raised_at_once():
    said = []
    with pytest.raises(RuntimeError, match="shapes differ"):
        fallbacks.within_memory([("", fails_with(RuntimeError("shapes differ"))), ("never", lambda: 1)], said.append)
    assert said == []


def test_where_nothing_helps_it_is_one_sentence():
    error = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
    with pytest.raises(DeviceMemoryError, match=r"Tried to allocate 2 GiB; give fewer --tokens"):
        fallbacks.within_memory([("", fails_with(error)), ("again", fails_with(error))], lambda message: None)


def short_of_memory(module, most_tokens):
    """``module`` cannot take more than so many tokens at once."""

    def check(_module, args):
        if args[0].shape[1] > most_tokens:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    module.register_forward_pre_hook(check)


def runner_of(name, said):
    model = build(name).model if name not in tiny.TINY else tiny.model_of(name)
    return Runner(model, CPU, said.append)


@pytest.mark.parametrize("name", ["llama", "cohere", "gemma2", "gpt_neox", "gptj", "mixtral", "falcon"])
def test_logits_in_pieces_are_the_logits(name, monkeypatch):
    """With soft caps and scales after the head, and by reference too."""
    said = []
    runner = runner_of(name, said)
    ids = torch.arange(2, 42)
    head = runner.model.get_output_embeddings()
    monkeypatch.setattr(forward, "PIECE_BYTES", 7 * len(head.weight) * 4)
    whole = forward.logits(runner, ids)
    assert said == []
    short_of_memory(head, 7)
    assert torch.allclose(forward.logits(runner, ids), whole, rtol=0, atol=1e-5)
    assert said == ["out of memory: the head runs in pieces"]


def test_pieces_go_with_the_reference_rotation(checkpoint, monkeypatch):
    path, said = checkpoint("llama"), []
    runner = load.load(path, CPU, DType.FLOAT32, talk=said.append)
    side = verify._side(path)
    whole = passes.by_reference(runner, side, side, torch.arange(40), side.reading.pairing)
    monkeypatch.setattr(forward, "PIECE_BYTES", 7 * tiny.VOCAB * 4)
    short_of_memory(runner.model.lm_head, 7)
    pieces = passes.by_reference(runner, side, side, torch.arange(40), side.reading.pairing)
    assert torch.allclose(pieces, whole, rtol=0, atol=1e-5)
    assert said == ["out of memory: the head runs in pieces"]


def test_a_body_that_has_no_room_is_out_of_memory_in_a_sentence(checkpoint):
    runner = load.load(checkpoint("llama"), CPU, DType.FLOAT32)
    short_of_memory(runner.model.model.layers[0], 7)
    with pytest.raises(DeviceMemoryError, match="fewer --tokens"):
        forward.logits(runner, torch.arange(40))


def test_a_device_without_room_gets_what_is_free(checkpoint, monkeypatch):
    """As on a GPU: the model, or a pass of it, has no room, and is loaded again within the free memory."""
    said, path = [], checkpoint("llama")
    whole = load.load(path, CPU, DType.FLOAT32)

    def rehearsed(runner, tokens):
        raise torch.cuda.OutOfMemoryError(f"no room for {tokens} tokens")

    monkeypatch.setattr(load, "_rehearsed", rehearsed)
    monkeypatch.setattr(load, "free_memory", lambda device: {EACH: 1 << 40})
    monkeypatch.setattr(placement, "_room", lambda need, max_memory, with_gpus: 0)
    monkeypatch.setattr(load, "_where", lambda *arguments: {"device_map": {"": CPU}})
    runner = load.load(path, torch.device("meta"), DType.FLOAT32, talk=said.append)  # for the processor none is tried
    assert said == ["out of memory: what has no room on meta stays in memory and on disk"]
    assert any(parameter.is_meta for parameter in runner.model.parameters())
    ids = torch.arange(40)
    assert torch.equal(forward.logits(Runner(runner.model, CPU), ids), forward.logits(whole, ids))


def test_float32_is_float32_and_gpus_are_deterministic(monkeypatch):
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    monkeypatch.delenv(exact.WORKSPACE[0], raising=False)
    try:
        load.pick_device(load.Device.CPU)
        exact.exactly(torch.device("cuda"))
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cudnn.conv.fp32_precision == "ieee"
        assert exact.os.environ[exact.WORKSPACE[0]] == exact.WORKSPACE[1]
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


cuda = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")]


def on_cuda(function):
    for mark in cuda:
        function = mark(function)
    return function


@on_cuda
@pytest.mark.parametrize("name", list(tiny.TINY))
def test_weights_on_gpu_processor_and_disk_compute_the_same_on_cuda(name, checkpoint):
    """A third of the weights in each place."""
    path, device = checkpoint(name), torch.device("cuda", 0)
    whole = load.load(path, device, DType.FLOAT32)
    size = sum(p.nbytes for p in whole.model.parameters())
    need = placement._need(whole.model, open_checkpoint(path), 40, placement._always_there(whole.model))
    limits = {0: need.at(0) + size // 3, "cpu": need.process + need.weights + size // 3}
    runner = load.load(path, device, DType.FLOAT32, max_memory=limits, tokens=40)
    assert len(set(runner.model.hf_device_map.values())) > 1
    ids = torch.arange(2, 42)
    assert torch.allclose(forward.logits(runner, ids), forward.logits(whole, ids), rtol=0, atol=1e-4)


@on_cuda
def test_a_gpu_without_room_falls_back_on_cuda(tmp_path):
    values = {"hidden_size": 1024, "num_attention_heads": 8, "head_dim": 128, "intermediate_size": 8192}
    path, said = tiny.save(tiny.model_of("llama", **values, num_hidden_layers=10), tmp_path / "large"), []
    whole = forward.logits(load.load(path, CPU, DType.FLOAT32), torch.arange(2, 42))
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(700e6 / total)
    try:
        runner = load.load(path, torch.device("cuda", 0), DType.FLOAT32, tokens=40, talk=said.append)
        assert torch.allclose(forward.logits(runner, torch.arange(2, 42)), whole, rtol=0, atol=1e-3)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("stays in memory and on disk" in message for message in said)


@on_cuda
def test_float32_products_are_not_rounded_to_tensorfloat_on_cuda():
    exact.exactly(torch.device("cuda"))
    a, b = (torch.randn(512, 512, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    right = a.double() @ b.double()
    apart = ((a.cuda() @ b.cuda()).cpu().double() - right).abs().max() / right.abs().max()
    assert apart < 1e-5  # TensorFloat-32 has 10 bits of mantissa: about 1e-3


@on_cuda
def test_two_runs_give_the_same_figures_on_cuda(checkpoint):
    source = checkpoint("llama")
    first, second = (verify.verify(source, source, device=load.Device.CUDA) for _ in range(2))
    assert first == second
