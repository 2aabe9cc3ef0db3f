"""The examples run, and show what they say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def run(example: Path) -> str:
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, check=True, timeout=120)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture(scope="module")
def dog() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dog_bites_man", EXAMPLES / "dog_bites_man.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_runs_and_says_in_its_first_lines_how(example: Path) -> None:
    assert f"python examples/{example.name}" in example.read_text(encoding="utf-8")[:300]
    assert run(example)


def test_the_table_shows_who_can_tell() -> None:
    """One row for each scheme: bites with all words in sight, bites under a causal mask, the last word under one."""
    lines = [line for line in run(EXAMPLES / "dog_bites_man.py").splitlines()[3:] if line.strip()][:8]
    table = {line[:20].strip(): line[20:].split() for line in lines}
    told = {scheme: [cell != "same" for cell in cells] for scheme, cells in table.items()}
    positions = ("sinusoidal", "learned", "Shaw", "T5", "RoPE, half", "RoPE, interleaved")
    assert told == {
        "no positions": [False, True, False],
        "ALiBi": [False, True, True],
        **{scheme: [True, True, True] for scheme in positions},
    }
    assert all(float(cell) > 0.001 for cells in table.values() for cell in cells if cell != "same")


def test_same_is_the_same_but_for_rounding(dog: ModuleType) -> None:
    assert dog.difference("bites", "no positions") < 1e-15
    assert dog.difference("bites", "ALiBi") < 1e-15
    assert (
        min(dog.difference("bites", scheme) for scheme in dog.SCHEMES if scheme not in ("no positions", "ALiBi")) > 0.01
    )
