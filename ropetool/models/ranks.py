"""Which of the processes that torchrun started this is; without torch, so that the command line can ask."""

from __future__ import annotations

import os


def world_size() -> int:
    """How many processes torchrun started together; 1 without it (its variables: torch.distributed.run, 2.13)."""
    return int(os.environ["WORLD_SIZE"]) if {"WORLD_SIZE", "LOCAL_RANK", "RANK"} <= os.environ.keys() else 1


def rank() -> int:
    """The number of this process among them; only 0 prints and writes."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_rank() -> int:
    """The number of this process on its machine, and so of its GPU."""
    return int(os.environ["LOCAL_RANK"]) if world_size() > 1 else 0
