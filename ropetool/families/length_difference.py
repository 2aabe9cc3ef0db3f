"""How two checkpoints differ in their lengths, in every file that holds one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ropetool.checkpoint.strangers import read_json_file
from ropetool.families.difference import Difference, What
from ropetool.families.layer_types import CHUNKED, SLIDING, window_tokens
from ropetool.families.lengths import GENERATION_CONFIG, NO_LIMIT_TOKENS, OTHER_LENGTH_KEYS, TOKENIZER_CONFIG
from ropetool.families.reading import Reading

WINDOWS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
# Files beside config.json, the key that holds a length in each, and who obeys it.
FILES = (
    (TOKENIZER_CONFIG, "model_max_length", "the tokenizer warns, or cuts, beyond it"),
    (GENERATION_CONFIG, "max_length", "generate stops there"),
)


def length_differences(a: Reading, b: Reading, directories: tuple[Path, Path]) -> Iterator[Difference]:
    """The lengths that differ, in tokens; None where there is no limit."""
    key = a.family.keys.length
    if a.length != b.length:
        yield Difference(What.LENGTH, f"config.json: {key}", a.length, b.length, "the length that the model serves")
    for other in OTHER_LENGTH_KEYS:
        one, two = a.config.get(other), b.config.get(other)
        if other != key and one != two:
            yield Difference(What.LENGTH, f"config.json: {other}", one, two, "some classes and engines read it")
    for layer_type, name in WINDOWS.items():
        one, two = window_tokens(a, layer_type), window_tokens(b, layer_type)
        if one != two:
            yield Difference(What.LENGTH, name, one, two, "layers that use it look no further back")
    for file, entry, obeyed in FILES:
        one, two = (_held(directory / file, entry) for directory in directories)
        if one != two:
            yield Difference(What.LENGTH, f"{file}: {entry}", one, two, obeyed)


def _held(file: Path, key: str) -> int | None:
    """The length in a file; None where there is none, or one that means no limit."""
    value = read_json_file(file).get(key) if file.is_file() else None
    unlimited = not isinstance(value, (int, float)) or isinstance(value, bool) or value >= NO_LIMIT_TOKENS
    return None if unlimited else value
