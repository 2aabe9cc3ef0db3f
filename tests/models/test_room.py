"""Out of memory: told from other faults, and gone on from with half the chunk."""

from __future__ import annotations

import pytest
import torch

from ropetool.errors import UnsupportedError
from ropetool.models import stream
from ropetool.models.fallbacks import out_of_memory
from ropetool.models.load import Runner
from ropetool.models.losses import Meter, text_losses
from ropetool.models.room import FEWEST_TOKENS
from ropetool.models.trial import How, Passes, choose
from tests.models.test_trial import extended, plain_losses, runner_of, some_ids

# What the allocators say: CUDA's class, python's own, torch 2.13's on the CPU (c10/core/impl/alloc_cpu.cpp) and on MPS.
NO_ROOM = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to "
                 "allocate 9000000000000 bytes. Error code 12 (Cannot allocate memory)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] data. DefaultCPUAllocator: not enough memory: you tried to "
                 "allocate 9000000000000 bytes."),
    RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
)  # fmt: skip


def planted(monkeypatch: pytest.MonkeyPatch, where: str, error: Exception, room: int) -> None:
    """``where`` of the stream fails on more than ``room`` tokens at a time."""
    sound = getattr(stream, where)

    def limited(runner: Runner, ids_BT: torch.Tensor, *args: object, **kwargs: object) -> object:
        if ids_BT.shape[1] > room:
            raise error
        return sound(runner, ids_BT, *args, **kwargs)

    monkeypatch.setattr(stream, where, limited)


def read(runner: Runner, ids: torch.Tensor, passes: Passes) -> tuple[torch.Tensor, Passes, list[str], Meter]:
    said: list[str] = []
    meter = Meter(lambda done, total: None, total=len(ids))
    losses, after = text_losses(runner, ids, (len(ids),), passes, meter, said.append)
    return losses, after, said, meter


def test_a_real_allocation_that_cannot_be_is_known() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert out_of_memory(raised.value)
    assert not out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


@pytest.mark.parametrize("error", NO_ROOM, ids=lambda error: str(error)[:30])
@pytest.mark.parametrize("where", ["_body", "_head"])
def test_half_the_chunk_is_taken_and_said(where: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of("llama")
    ids = some_ids(runner)
    passes = choose(runner, ids, chunk_tokens=160)
    planted(monkeypatch, where, error, 50)
    losses, after, said, meter = read(runner, ids, passes)
    assert (after.how, after.chunk_tokens) == (How.CACHED, 40)
    assert said == [f"out of memory: reading 230 tokens starts over in chunks of {chunk} tokens" for chunk in (80, 40)]
    assert torch.allclose(losses, plain_losses(runner.model, ids), atol=1e-4)
    assert meter.done == pytest.approx(len(ids))


def test_another_error_is_no_reason_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of("llama")
    passes = choose(runner, some_ids(runner), chunk_tokens=160)
    planted(monkeypatch, "_body", RuntimeError("sizes do not match"), 50)
    with pytest.raises(UnsupportedError, match="does not run on 230 tokens: sizes do not match"):
        read(runner, some_ids(runner), passes)


@pytest.mark.parametrize("by_length", [False, True])
def test_no_room_at_all_is_one_sentence(by_length: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = extended("dynamic") if by_length else runner_of("llama")
    passes = choose(runner, some_ids(runner), chunk_tokens=160)
    planted(monkeypatch, "_body", MemoryError(), FEWEST_TOKENS - 1)
    with pytest.raises(UnsupportedError, match="no room"):
        read(runner, some_ids(runner), passes)
