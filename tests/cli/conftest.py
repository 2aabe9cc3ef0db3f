"""Running the command line: inside this process, or as users do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ropetool.cli import app

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Done:
    """What a run gave."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """Stdout as exactly one JSON object."""
        value, end = json.JSONDecoder().raw_decode(self.out)
        assert self.out[end:].strip() == ""
        assert isinstance(value, dict)
        return value


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run in this process."""

    def call(*arguments: object) -> Done:
        capfd.readouterr()
        code = app.run([str(a) for a in arguments])
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return call


@pytest.fixture
def start() -> Callable[..., subprocess.Popen[str]]:
    """Start as a user does."""

    def call(*arguments: object, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "ropetool", *map(str, arguments)], text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    return call
