"""Where a class changes with the length: a table with a row for each position, and windows of its attention."""

from __future__ import annotations

import re
from typing import Any

from torch import nn

# Learned embeddings (GPT-2, OPT), and the rotary table that GPT-J and CodeGen make once.
_POSITIONS = re.compile(r"wpe|embed_positions|pos(ition)?_embed(ding)?s?|embed_pos")
# OPT and BART keep rows for padding before the first position.
_SPARE_ROWS = 4
# Numbers of tokens from which on a cache does something else than before: what slides, what is cut into chunks, and how
# many keys an indexer takes (transformers 5.24.0, models/*/configuration_*.py).
WINDOWS = (
    *("sliding_window", "attention_window_size", "local_attention_window_len", "local_attention", "keep_window_size"),
    *("attention_chunk_size", "mamba_chunk_size", "chunk_size", "block_size", "index_topk"),
)


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


def windows_of(model: Any) -> list[int]:
    """The numbers of tokens from which on a cache of a loaded model does something else than before."""
    config = model.config.get_text_config()
    values = config.to_dict()  # of a config with values by layer, an attribute raises
    found = [values[key] if key in values else getattr(config, key, None) for key in WINDOWS]
    found.append((values.get("index_topk_blocks") or 0) * (values.get("index_block_size") or 0))
    return [window for window in found if isinstance(window, int) and window > 0]
