"""Two runs give the same figures, and float32 is float32: what torch must be told for that, before a GPU starts."""

from __future__ import annotations

import os

import torch

# cuBLAS is deterministic with a workspace of a fixed size (its manual, "Results reproducibility").
WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def prepare() -> None:
    """What CUDA reads when it starts."""
    os.environ.setdefault(*WORKSPACE)


def exactly(device: torch.device) -> None:
    """No TensorFloat-32, and on a GPU no kernel that adds in any order where torch has another."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(torch.backends, "fp32_precision"):  # torch 2.9; the two ways to say it must not be mixed
        for where in (torch.backends, matmul, cudnn, cudnn.conv, cudnn.rnn):  # type: ignore[attr-defined]  # by a module's own getattr
            where.fp32_precision = "ieee"
    else:
        matmul.allow_tf32 = cudnn.allow_tf32 = False
    if device.type != "cpu":
        torch.use_deterministic_algorithms(True, warn_only=True)
