"""Checkpoints in the format of whoever trained them, not Hugging Face's: told by the names of their tensors and files.

The code that reads such a format rotates one layout, so the format says which layout the rows have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropetool.checkpoint.headers import held
from ropetool.checkpoint.shards import read_shard
from ropetool.checkpoint.strangers import read_json_file

PARAMS = "params.json"
INTERLEAVED, HALF, UNKNOWN = "interleaved", "half", "unknown"


@dataclass(frozen=True)
class Format:
    """A format: how its attention and its q and k projections are called, and the weight files that only it has.

    ``by_type`` has the layout of each model type, where its classes differ; without it, it is interleaved always.
    ``converter`` makes Hugging Face's names of it, with the rows that those want. ``source`` is what was read.
    """

    name: str
    title: str
    attention: str
    tensor: re.Pattern[str]
    converter: str
    source: str
    file: re.Pattern[str] | None = None
    by_type: Mapping[str, str] = field(default_factory=dict)

    def layout(self, model_type: str | None) -> str:
        """The layout of the rows, half or interleaved; unknown where the names alone do not tell."""
        return self.by_type.get(str(model_type), UNKNOWN) if self.by_type else INTERLEAVED

    @property
    def sentence(self) -> str:
        """What the format means for whoever has such a checkpoint."""
        kinds: dict[str, list[str]] = {}
        for model_type, layout in self.by_type.items():
            kinds.setdefault(layout, []).append(model_type)
        said = "; ".join(f"{layout} for {', '.join(types)}" for layout, types in kinds.items())
        return (
            f"it has {self.title}: {said or f'{INTERLEAVED} always'}; convert it to Hugging Face names with "
            f"{self.converter}, which permutes q and k; ropetool does not rename tensors"
        )


# Both turn (x[2i], x[2i+1]) as one complex number (view_as_complex), and have the same names; so has llama2.c.
_WQ = re.compile(r"layers\.\d+\.attention\.w[qk]\.(weight|bias)")
MISTRAL = Format(
    "mistral", "Mistral's native names", "attention", _WQ,
    "transformers' convert_mistral_weights_to_hf.py", "mistral-inference, src/mistral_inference/rope.py",
    file=re.compile(r"consolidated(-\d+-of-\d+)?\.safetensors"),
)  # fmt: skip
META = Format(
    "meta", "Meta's native names", "attention", _WQ,
    "transformers' convert_llama_weights_to_hf.py", "llama3, llama/model.py: apply_rotary_emb",
    file=re.compile(r"consolidated\.\d+\.pth"),
)  # fmt: skip
# modules/position_embeddings.py takes adjacent pairs; models/qwen2 and models/phi3 have a rotate-half of their own.
TORCHTUNE = Format(
    "torchtune", "torchtune's names", "attn", re.compile(r"layers\.\d+\.attn\.[qk]_proj\.(weight|bias)"),
    "torchtune's FullModelHFCheckpointer", "torchtune 0.6.1, models/*/_component_builders.py",
    by_type={**dict.fromkeys(("llama", "mistral", "gemma", "gemma2"), INTERLEAVED), "qwen2": HALF, "phi3": HALF},
)  # fmt: skip
FORMATS = (META, MISTRAL, TORCHTUNE)


def format_of(tensors: Iterable[str], files: Iterable[str]) -> Format | None:
    """The format of a checkpoint with such names of tensors (and files); None for Hugging Face's, or any other."""
    names = list(tensors)
    fitting = [form for form in FORMATS if any(form.tensor.fullmatch(name) for name in names)]
    return _by_file(fitting, files) or next(iter(fitting), None)


def format_without_config(directory: Path) -> Format | None:
    """The format of a directory that has no config.json: by the names of its tensors, or of its files alone."""
    files = _files(directory)
    shards = [name for name in files if name.endswith(".safetensors")]
    for name in shards:
        if found := format_of(read_shard(directory / name).tensors, files):
            return found
    return _by_file(FORMATS, files) if PARAMS in files and not shards else None


def _by_file(formats: Iterable[Format], files: Iterable[str]) -> Format | None:
    names = list(files)
    own = (form for form in formats if form.file and any(form.file.fullmatch(name) for name in names))
    return next(own, None)


def _files(directory: Path) -> list[str]:
    record = held(directory)
    here = [path.name for path in directory.iterdir() if path.is_file()]
    return sorted({*here, *(record.weights if record else ())})


def params_of(directory: Path) -> Mapping[str, Any]:
    """The numbers that Meta and Mistral write beside their weights; empty without params.json."""
    file = directory / PARAMS
    return read_json_file(file) if file.is_file() else {}
