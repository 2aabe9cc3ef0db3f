"""Text to token ids, by the checkpoint's own tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropetool.errors import CheckpointError, UsageError
from ropetool.families.reading import Reading
from ropetool.models.loading import reason
from ropetool.models.unguarded import config_options

SEED = 20260101
# Of a long text no more is read at first than so many characters for each token wanted.
MOST_CHARACTERS = 32


# What the tokenizers of transformers 5.24 are loaded from.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt", "tekken.json")


@lru_cache(maxsize=4)
def tokenizer_of(path: Path) -> Any:
    """The tokenizer that lies in a checkpoint directory; raises `CheckpointError` when none can be loaded."""
    import transformers

    transformers.logging.set_verbosity_error()
    directory = path if path.is_dir() else path.parent
    try:
        return transformers.AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False, **config_options(path)
        )
    except (ValueError, OSError, KeyError, TypeError, ImportError) as error:
        why = reason(error).rstrip(" ,:;.")
        if not any((directory / name).exists() for name in TOKENIZER_FILES):
            why = "it has no file of one"
        said = f"no tokenizer can be loaded from {directory}: {why}; copy its tokenizer.json there, say"
        raise CheckpointError(said, path=str(directory)) from error


def text_of(path: Path, ids: Sequence[int]) -> str | None:
    """The text that the tokenizer makes exactly these ids of; None where there is none."""
    text = str(tokenizer_of(path).decode(list(ids), skip_special_tokens=True))
    return text if encode(path, text).tolist() == list(ids) else None


@lru_cache(maxsize=1)
def ids_by_text(path: Path) -> Mapping[str, int]:
    """Every token by its text; those that share one are left out."""
    tokenizer = tokenizer_of(path)
    texts = [str(tokenizer.decode([token])) for token in range(len(tokenizer))]
    often = Counter(texts)
    return {text: token for token, text in enumerate(texts) if often[text] == 1}


def encode(path: Path, text: str) -> Tensor:
    """The token ids of ``text``, [T], with the special tokens that the tokenizer adds."""
    ids = tokenizer_of(path)(text, verbose=False)["input_ids"]
    return torch.tensor(ids, dtype=torch.long)


def token_ids(path: Path, reading: Reading, tokens: int, text: str | None) -> Tensor:
    """So many token ids, [T]: the first of ``text``, or seeded random ones.

    Raises `UsageError` for a text of one token, `CheckpointError` where nothing tells how many ids there are.
    """
    if text is not None:
        ids = encode(path, text[: tokens * MOST_CHARACTERS])[:tokens]
        if len(ids) < tokens:  # long tokens
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
