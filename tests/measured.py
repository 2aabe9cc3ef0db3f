"""Runs of the command line, each in a process of its own, with what it took: seconds of a processor and peak memory.

As a script: reads ``[[argument, ...], ...]`` from stdin, and prints a JSON line for each. The interpreter is fresh, and
imports ropetool once; each run is a fork of it, so that its peak is that of a start from the shell.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HANGS_SECONDS = 60


@dataclass(frozen=True)
class Run:
    """What a run printed, its exit code (negative: the signal that ended it), and what it took."""

    code: int
    out: str
    err: str
    cpu_seconds: float
    peak_mb: float


def measured(commands: Iterable[Sequence[object]]) -> list[Run]:
    """Run command lines one after another."""
    asked = json.dumps([[str(part) for part in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-m", "tests.measured"], input=asked, capture_output=True, text=True, check=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return [Run(**json.loads(line)) for line in done.stdout.splitlines()]


def _one(arguments: list[str]) -> Run:
    from ropetool.cli import app

    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if child == 0:
            signal.alarm(HANGS_SECONDS)
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
            code = 99
            with contextlib.suppress(BaseException):
                code = app.run(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        _, status, usage = os.wait4(child, 0)
        out.seek(0)
        err.seek(0)
        code = os.waitstatus_to_exitcode(status)
        return Run(code, out.read(), err.read(), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def main() -> None:
    """Run what stdin says."""
    from ropetool.checkpoint import strangers  # noqa: F401 - imported before the forks, with what it brings
    from ropetool.cli import app  # noqa: F401 - the same

    for arguments in json.load(sys.stdin):
        sys.stdout.write(json.dumps(_one(arguments).__dict__) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
