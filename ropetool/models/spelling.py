"""Pieces of a document as token ids, so that pieces put together are the document as its tokenizer would read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropetool.models.text import tokenizer_of

Ids = tuple[int, ...]
# How tokenizers write what parts words: GPT-2's bytes, SentencePiece, and themselves.
_GAPS = ("Ġ", "Ċ", "▁", " ", "\n")
_ANCHOR = "x"


def opening(path: Path) -> Ids:
    """The special tokens that the tokenizer puts before a text: a beginning of sequence, or none."""
    tokenizer = tokenizer_of(path)
    whole, plain = list(tokenizer(_ANCHOR, verbose=False)["input_ids"]), list(_plain(tokenizer, _ANCHOR))
    starts = (at for at in range(len(whole)) if whole[at : at + len(plain)] == plain)
    return tuple(whole[: next(starts, 0)])


def spell(path: Path, piece: str, after: str = "") -> Ids:
    """The tokens of ``piece`` where it follows ``after``.

    A tokenizer that puts a space before every text (SentencePiece) puts none inside one. Where the last token of
    ``after`` would run on into the piece, the piece is spelled on its own.
    """
    tokenizer = tokenizer_of(path)
    for before in (after, _ANCHOR) if after else ():
        head, whole = _plain(tokenizer, before), _plain(tokenizer, before + piece)
        if whole[: len(head)] == head:
            return whole[len(head) :]
    return _plain(tokenizer, piece)


def _plain(tokenizer: Any, text: str) -> Ids:
    return tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def word_starts(path: Path, ids: Sequence[int]) -> list[bool]:
    """For every token whether a word begins with it: it has the space before it, or follows a token that is one."""
    tokens = [str(token) for token in tokenizer_of(path).convert_ids_to_tokens(list(ids))]
    gaps = [token != "" and all(character in _GAPS for character in token) for token in tokens]
    follows = [True, *gaps[:-1]]
    return [
        not gap and (token.startswith(_GAPS) or after) for token, gap, after in zip(tokens, gaps, follows, strict=True)
    ]
