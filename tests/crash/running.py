"""Commands of ropetool in children of this process, which has imported it once: whole, traced, or killed in time."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ropetool.cli import app
from tests.crash.ptrace import GO_ON, TIMEOUT_SECONDS, Act, Decide, Ended, Observe, trace

Body = Callable[[Sequence[str]], int]


@dataclass(frozen=True)
class Done:
    """What a run gave; ``code`` is minus the signal where one ended it."""

    code: int
    out: str
    err: str
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL


class Log:
    """Stdout and stderr of a child, in memory: no file of it is on a disk that is watched."""

    def __init__(self) -> None:
        self.out, self.err = os.memfd_create("out"), os.memfd_create("err")

    def body(self, arguments: Sequence[str], run: Body) -> Callable[[], int]:
        """What the child does."""
        sys.stdout.flush()
        sys.stderr.flush()

        def run_it() -> int:
            os.dup2(self.out, 1)
            os.dup2(self.err, 2)
            sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(fd, "w", closefd=False)) for fd in (1, 2))
            code = run(arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            return code

        return run_it

    def done(self, ended: Ended, began: float) -> Done:
        """The result, read back."""
        seconds, texts = time.perf_counter() - began, []
        for fd in (self.out, self.err):
            texts.append(os.pread(fd, 1 << 20, 0).decode(errors="replace"))
            os.close(fd)
        if ended.timed_out:
            raise TimeoutError(f"a command did not end within {TIMEOUT_SECONDS} s: {texts}")
        return Done(ended.code, *texts, seconds)


def ropetool(arguments: Sequence[str]) -> int:
    """The command line, as `python -m ropetool` runs it."""
    return app.run(list(arguments))


def traced(
    arguments: Sequence[str],
    root: Path,
    decide: Decide = lambda call: GO_ON,
    observe: Observe | None = None,
    run: Body = ropetool,
) -> Done:
    """Run a command and ask ``decide`` at each call on files below ``root``."""
    log, began = Log(), time.perf_counter()
    return log.done(trace(log.body(arguments, run), root, decide, observe), began)


def plain(arguments: Sequence[str], kill_after: float | None = None, run: Body = ropetool) -> Done:
    """Run a command untraced; SIGKILL after so many seconds, if any."""
    log, began = Log(), time.perf_counter()
    body = log.body(arguments, run)
    pid = os.fork()
    if pid == 0:
        os._exit(_code_of(body))
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return log.done(Ended(os.waitstatus_to_exitcode(status), False), began)


def _code_of(body: Callable[[], int]) -> int:
    try:
        return body()
    except BaseException:  # noqa: BLE001  a forked child must not go on as its parent
        return 99


__all__ = ["Act", "Body", "Done", "plain", "ropetool", "traced"]
