"""Text to token ids, by the checkpoint's own tokenizer."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropetool.errors import CheckpointError, UsageError
from ropetool.families.reading import Reading
from ropetool.models.unguarded import config_options

SEED = 20260101


@lru_cache(maxsize=4)
def tokenizer_of(path: Path) -> Any:
    """The tokenizer that lies in a checkpoint directory; raises `CheckpointError` when none can be loaded."""
    import transformers

    transformers.logging.set_verbosity_error()
    directory = path if path.is_dir() else path.parent
    try:
        return transformers.AutoTokenizer.from_pretrained(directory, local_files_only=True, **config_options(path))
    except (ValueError, OSError, KeyError, TypeError, ImportError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"no tokenizer can be loaded from {directory}: {reason}", path=str(directory)) from error


def encode(path: Path, text: str) -> Tensor:
    """The token ids of ``text``, [T], with the special tokens that the tokenizer adds."""
    ids = tokenizer_of(path)(text, verbose=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


def token_ids(path: Path, reading: Reading, tokens: int, text: str | None) -> Tensor:
    """So many token ids, [T]: the first of ``text``, or seeded random ones.

    Raises `UsageError` for a text of one token, `CheckpointError` where nothing tells how many ids there are.
    """
    if text is not None:
        ids = encode(path, text)[:tokens]
        if len(ids) < 2:
            raise UsageError("the text gives fewer than two tokens; at position 0 every rotation is the identity")
        return ids
    vocabulary = reading.config.get("vocab_size")
    if not isinstance(vocabulary, int):
        raise CheckpointError(
            "config.json has no vocab_size, so no token ids can be drawn; give --text", key="vocab_size"
        )
    return torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(SEED))
