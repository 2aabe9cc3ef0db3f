"""Every place in a checkpoint that holds its context length, and what an extension does to each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from ropetool.checkpoint.config import earlier_extension
from ropetool.checkpoint.strangers import open_regular, own_file, read_json_file
from ropetool.families.reading import Reading, Warn

TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
SENTENCE_CONFIG = "sentence_bert_config.json"
ADAPTER_CONFIG = "adapter_config.json"
# transformers writes int(1e30) for "no limit".
NO_LIMIT_TOKENS = 10**12
# Keys of config.json by which some classes or engines know the length under another name.
OTHER_LENGTH_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "n_ctx", "model_max_length", "max_seq_length")


@dataclass(frozen=True)
class Change:
    """One key of one file that gets a new value."""

    file: str
    key: str
    old: Any
    new: Any


@dataclass(frozen=True)
class LengthEdits:
    """Side files to rewrite, the changes within them, and what a person must look at."""

    files: Mapping[str, dict[str, Any]]
    changes: tuple[Change, ...]
    warnings: tuple[Warn, ...]


def _raise_key(directory: Path, file: str, key: str, old: int | None, new: int) -> tuple[dict[str, Any], Change] | None:
    """Raise ``key`` to ``new`` where the file holds a finite, smaller whole number there."""
    path = directory / file
    if not path.is_file():
        return None
    content = read_json_file(path)
    value = content.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value >= min(new, NO_LIMIT_TOKENS):
        return None
    if old is not None and value != old:
        return None
    return {**content, key: new}, Change(file, key, value, new)


def length_edits(directory: Path, reading: Reading, new: int) -> LengthEdits:
    """What must follow when the length grows to ``new`` tokens, outside the rope block.

    The tokenizer's limit is raised when finite and smaller; a generation limit, and that of a sentence encoder, when it
    was the old length. A sliding window, a chunk of attention, a truncation inside tokenizer.json and an adapter in the
    same folder are named, not changed: they may be meant.
    """
    files: dict[str, dict[str, Any]] = {}
    changes: list[Change] = []
    for file, key, only in (
        (TOKENIZER_CONFIG, "model_max_length", None),
        (GENERATION_CONFIG, "max_length", reading.length),
        (SENTENCE_CONFIG, "max_seq_length", reading.length),
    ):
        raised = _raise_key(directory, file, key, only, new)
        if raised is not None:
            files[file], change = raised
            changes.append(change)
    named = (*_window(reading, new), *_chunk(reading, new), *_truncation(directory, new), *_adapter(directory))
    return LengthEdits(files, tuple(changes), named)


def restored_lengths(directory: Path, config: Mapping[str, Any]) -> LengthEdits:
    """The side files as they were before every extension, by what the marker of ``config`` kept of them."""
    files: dict[str, dict[str, Any]] = {}
    changes: list[Change] = []
    for file, keys in (earlier_extension(config).get("files") or {}).items():
        path = directory / PurePath(file).name
        content = read_json_file(path) if path.is_file() else {}
        for key, old in keys.items():
            if key in content:
                changes.append(Change(path.name, key, content[key], old))
                files[path.name] = {**files.get(path.name, content), key: old}
    return LengthEdits(files, tuple(changes), ())


def _window(reading: Reading, new: int) -> tuple[Warn, ...]:
    window = reading.config.get("sliding_window")
    used = reading.config.get("use_sliding_window", reading.family.defaults.get("use_sliding_window", True))
    if not isinstance(window, int) or not used or window >= new:
        return ()
    message = f"sliding_window is {window} tokens: layers that use it do not look further back, whatever the length"
    return (Warn("sliding-window", message),)


def _chunk(reading: Reading, new: int) -> tuple[Warn, ...]:
    chunk = reading.config.get("attention_chunk_size")
    if not isinstance(chunk, int) or chunk >= new:
        return ()
    said = f"attention_chunk_size is {chunk} tokens: layers that use it see no further than their chunk"
    return (Warn("attention-chunk", said),)


def _adapter(directory: Path) -> tuple[Warn, ...]:
    if not (directory / ADAPTER_CONFIG).is_file():
        return ()
    said = f"{ADAPTER_CONFIG} lies beside the model: that adapter was trained at the old length, and is copied as it is"
    return (Warn("adapter-of-old-length", said),)


def _truncation(directory: Path, new: int) -> tuple[Warn, ...]:
    path = directory / "tokenizer.json"
    if not path.is_file():
        return ()
    with open_regular(own_file(path)) as file:
        head = file.read(4096).decode("utf-8", "replace")
    found = re.search(r'"truncation"\s*:\s*\{[^{}]*?"max_length"\s*:\s*(\d+)', head)
    if found is None or int(found[1]) >= new:
        return ()
    return (Warn("tokenizer-truncates", f"tokenizer.json truncates at {int(found[1])} tokens; remove its truncation"),)


def other_length_keys(config: Mapping[str, Any], old: int | None) -> tuple[str, ...]:
    """Keys of config.json, other than the class's own, that hold the same length."""
    return tuple(key for key in OTHER_LENGTH_KEYS if old is not None and config.get(key) == old)


def to_json(content: Mapping[str, Any]) -> str:
    """How ropetool writes a JSON file: two spaces, keys in their order, text as it is."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
