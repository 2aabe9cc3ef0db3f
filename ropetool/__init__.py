"""ropetool: inspect, convert, extend, verify and evaluate the rotary position embeddings of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

__version__ = "0.1.0"


def load(path: str | Path, **options: Any) -> Any:
    """The model of a checkpoint directory, which runs right whatever layout its weights are stored in.

    A plain transformers model of the checkpoint's own class; ``options`` (``dtype``, ``device_map`` ...) go to
    ``from_pretrained``. See `ropetool.models.loading` for what it raises.
    """
    from ropetool.models import loading

    return loading.load(path, **options)
