"""The rows of doctor: every engine that is known to hear a config, in the order in which it is told."""

from __future__ import annotations

from ropetool.engines import ctranslate2, mlx_lm, torchtune, transformers4, transformers5
from ropetool.engines.heard import Listener

LISTENERS: tuple[Listener, ...] = (
    transformers5.ROW, transformers4.ROW, mlx_lm.ROW, ctranslate2.ROW, torchtune.ROW,
)  # fmt: skip
