"""The hard ceiling that a class puts on its length: a table with a row for each position."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

# Learned embeddings (GPT-2, OPT), and the rotary table that GPT-J and CodeGen make once.
_POSITIONS = re.compile(r"wpe|embed_positions|pos(ition)?_embed(ding)?s?|embed_pos")
# OPT and BART keep rows for padding before the first position.
_SPARE_ROWS = 4


def table_tokens(model: Any) -> int | None:
    """How many positions the table of a loaded model has, None where it makes its positions as it goes.

    Tables of towers do not count: their rows are not the text's length.
    """
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(length, int):
        return None
    tables = [(name, m.num_embeddings) for name, m in model.named_modules() if isinstance(m, nn.Embedding)]
    tables += [(name, len(buffer)) for name, buffer in model.named_buffers() if buffer.dim() > 1]
    held = any(
        length <= rows < length + _SPARE_ROWS and _POSITIONS.fullmatch(name.rpartition(".")[2]) for name, rows in tables
    )
    return length if held else None
