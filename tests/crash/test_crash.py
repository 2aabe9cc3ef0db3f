"""Commands that are killed and that fail, at a few points each: the whole run is `python -m tests.crash`.

In a process of its own, without torch: it forks for every run.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.crash.faults import FAULTS
from tests.crash.killing import FAILED
from tests.crash.planted import PLANTS
from tests.crash.scenes import COMMANDS, Command

ROOT = Path(__file__).resolve().parents[2]
# Kills, power cuts, and calls for each fault: of the three commands that differ most, and of the others.
MOST, LEAST, CUTS = (10, 1), (5, 0), 6
# Faults of calls that the command never makes.
NEVER = {
    "convert": {"EMLINK on link", "EIO on sync"},
    "extend": {"EIO on sync"},
    "convert --in-place": {"no copying in the kernel", "EROFS on mkdir"},
}


def _why_not() -> str:
    """Why nothing can be traced here, asked in a process that has one thread."""
    ask = "from tests.crash.ptrace import why_not; print(why_not())"
    done = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


WHY_NOT = _why_not()
needs_ptrace = pytest.mark.skipif(bool(WHY_NOT), reason=f"system calls cannot be traced here: {WHY_NOT}")


def harness(module: str, *arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=600,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


@needs_ptrace
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_whatever_happens_it_is_old_or_new(command: Command) -> None:
    points, faults = MOST if command.name in NEVER else LEAST
    outcomes: Sequence[dict[str, str]] = harness(
        "tests.crash", "--command", command.name, "--points", points, "--cuts", CUTS, "--faults", faults, "--json"
    )
    assert [outcome for outcome in outcomes if outcome["outcome"] == FAILED] == []
    ways = Counter(outcome["how"] for outcome in outcomes)
    assert ways["before a call"] + ways["within a write"] + ways["after a delay"] == points
    assert ways["within a write"], "no write was torn"
    assert ways["a power cut"] == (CUTS if command.synced else 0)
    recovered = "resumed and undone" if command.in_place else "leftovers removed"
    assert any(outcome["outcome"] == recovered for outcome in outcomes), "no kill left anything to recover from"
    if faults:
        assert {fault.name for fault in FAULTS} - NEVER[command.name] <= ways.keys()
        assert any(outcome["outcome"] == "got round" for outcome in outcomes)
        assert any(outcome["outcome"].startswith("refused") for outcome in outcomes)


@pytest.fixture(scope="module")
def said() -> dict[str, list[str]]:
    """What the harness said of every planted fault."""
    return dict(harness("tests.crash.planted"))


@needs_ptrace
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_seen(name: str, said: dict[str, list[str]]) -> None:
    assert any(re.search(PLANTS[name].said, sentence) for sentence in said[name]), said[name]
