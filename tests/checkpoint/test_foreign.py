"""The formats of others: told by names of tensors and files, and none where the names are Hugging Face's."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropetool.checkpoint.foreign import FORMATS, format_of, format_without_config
from tests.native import META, TORCHTUNE, native

HUGGING_FACE = ("model.layers.{}.self_attn.q_proj.weight", "model.layers.{}.self_attn.k_proj.weight", "model.norm.{}")
# Names of tensors, the file that they lie in, and the format.
FOUND = (
    (META, "consolidated.safetensors", "mistral"),
    (META, "consolidated-00001-of-00002.safetensors", "mistral"),
    (META, "model.safetensors", "meta"),
    (META, "consolidated.00.pth", "meta"),
    (TORCHTUNE, "model.safetensors", "torchtune"),
    (HUGGING_FACE, "model.safetensors", None),
    (HUGGING_FACE, "model.pth", None),
    (HUGGING_FACE, "consolidated.safetensors", None),  # the names go before the file's
)


@pytest.mark.parametrize(("names", "file", "expected"), FOUND)
def test_a_directory_without_config(names: tuple[str, ...], file: str, expected: str | None, tmp_path: Path) -> None:
    found = format_without_config(native(tmp_path / "a", names, file))
    assert (found.name if found else None) == expected


def test_a_file_name_alone_is_no_format_without_params(tmp_path: Path) -> None:
    assert format_without_config(native(tmp_path / "a", META, "consolidated.00.pth", params=False)) is None
    found = format_without_config(native(tmp_path / "b", META, "weights.safetensors", params=False))
    assert found is not None
    assert found.name == "meta"


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.attention.wq.weight", "layers.0.attention.wqkv.weight", "transformer.h.0.attn.q_proj.weight",
     "layers.0.attn.q_proj.lora_a.weight", "vision.layers.0.attn.q_proj.weight", "layers.0.attention.wq.weight.scale"],
)  # fmt: skip
def test_names_that_are_only_alike(name: str) -> None:
    assert format_of([name], ["model.safetensors"]) is None


def test_every_format_says_what_it_is_read_from_and_what_to_do() -> None:
    for form in FORMATS:
        assert form.source
        assert "interleaved" in form.sentence
        assert form.converter in form.sentence
        assert "ropetool does not rename tensors" in form.sentence


def test_torchtune_turns_by_type() -> None:
    torchtune = next(form for form in FORMATS if form.name == "torchtune")
    assert [torchtune.layout(t) for t in ("llama", "qwen2", "phi3", None)] == ["interleaved", "half", "half", "unknown"]
    assert all(form.layout(None) == "interleaved" for form in FORMATS if form is not torchtune)
