"""Real clients run a real trained model in the layout that each expects, and miss in the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.clients import programs
from tests.clients.compare import ALLOWED, WIDE, difference

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("installed")]

CONTROL_TOKENS = 32

Program = Callable[[Path, list[int]], torch.Tensor]
RIGHT: tuple[tuple[Program, str], ...] = (
    (programs.torchtune, "interleaved, for torchtune"),
    (programs.mlx_lm, "interleaved, for mlx-lm"),
    (programs.transformers, "interleaved, for a twin's class"),
    (programs.mlx_lm, "half, rope_traditional false"),
    (programs.ctranslate2, "half"),
    (programs.llama_cpp, "half"),
)
WRONG: tuple[tuple[Program, str], ...] = (
    (programs.transformers, "interleaved, for torchtune"),
    (programs.torchtune, "half"),
    (programs.mlx_lm, "interleaved, rope_traditional false"),
    (programs.mlx_lm, "half, rope_traditional true"),
    (programs.mlx_lm, "half"),  # config.json in the style of transformers 5: the base is not found
    (programs.ctranslate2, "interleaved, for torchtune"),
    (programs.llama_cpp, "interleaved, for torchtune"),
)


def row(value: Program | str) -> str:
    return value if isinstance(value, str) else value.__name__


@pytest.fixture(scope="module")
def truth(smollm2, tokens) -> torch.Tensor:
    """The log-probabilities of the original in transformers."""
    return programs.transformers(smollm2, tokens)


@pytest.mark.parametrize(("program", "name"), RIGHT, ids=row)
def test_a_client_gives_the_log_probabilities_of_the_original(program, name, checkpoints, tokens, truth) -> None:
    assert difference(program(checkpoints[name], tokens), truth) <= ALLOWED


@pytest.mark.parametrize(("program", "name"), WRONG, ids=row)
def test_the_wrong_layout_or_base_misses_by_a_wide_margin(program, name, checkpoints, tokens, truth) -> None:
    assert difference(program(checkpoints[name], tokens[:CONTROL_TOKENS]), truth[:CONTROL_TOKENS]) > WIDE


def test_the_conversion_is_the_permutation_that_torchtune_applies_on_import(smollm2, checkpoints) -> None:
    """torchtune's own import of a Hugging Face Llama, from the original, against ropetool's conversion: bit by bit."""
    theirs = programs.torchtune_import(smollm2)
    ours = programs.torchtune_names(checkpoints["interleaved, for torchtune"])
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []
