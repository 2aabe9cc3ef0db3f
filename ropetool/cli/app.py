"""The command line: the commands by name, and the one place that turns errors into text."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from ropetool import __version__
from ropetool.checkpoint.hub import with_ids
from ropetool.checkpoint.journal import is_half_converted, remedy
from ropetool.checkpoint.lock import directory_of, session
from ropetool.cli.convert import convert
from ropetool.cli.demo import demo
from ropetool.cli.diff import diff
from ropetool.cli.doctor import doctor
from ropetool.cli.evaluate import evaluate
from ropetool.cli.extend import extend
from ropetool.cli.families import families
from ropetool.cli.inspect import inspect
from ropetool.cli.report import report
from ropetool.cli.verify import verify
from ropetool.errors import InternalError, RopetoolError, UsageError
from ropetool.models.ranks import rank

app = typer.Typer(
    name="ropetool",
    help="Inspect, convert, extend and verify the rotary position embeddings of Hugging Face checkpoints.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (inspect, convert, extend, verify, evaluate, diff, doctor, report, families, demo):
    app.command()(command)

EXIT_INTERRUPTED = 128 + signal.SIGINT
EXIT_TERMINATED = 128 + signal.SIGTERM


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Inspect, convert, extend and verify the rotary position embeddings of Hugging Face checkpoints."""
    if version:
        sys.stdout.write(f"ropetool {__version__}\n")
        raise typer.Exit


class Terminated(BaseException):
    """SIGTERM, as an exception, so that what was half-written is removed on the way out."""


def _stop(signum: int, frame: FrameType | None) -> None:
    """Unwind once; a second signal must not cut the cleaning up short."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt if signum == signal.SIGINT else Terminated


def main() -> None:
    """Run the command line and exit with its code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a file name need not be text, and must not end in a traceback
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; returns the exit code. Every deliberate error becomes one message here."""
    try:
        with session():
            code = app(arguments or ["--help"], prog_name="ropetool", standalone_mode=False)
        if code == EXIT_INTERRUPTED:  # typer turns Ctrl-C into this code, without a word
            return _interrupted("interrupted", EXIT_INTERRUPTED, arguments)
        return code if isinstance(code, int) else 0
    except RopetoolError as error:
        return _report(error, arguments)
    except typer.Abort:
        return _interrupted("interrupted", EXIT_INTERRUPTED, arguments)
    except KeyboardInterrupt:
        return _interrupted("interrupted", EXIT_INTERRUPTED, arguments)
    except Terminated:
        return _interrupted("terminated", EXIT_TERMINATED, arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_INTERRUPTED
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _report(UsageError(f"{where}{error.strerror or error}"), arguments)
    except Exception as error:  # noqa: BLE001  the last stop: a usage error of typer (known by its shape), or a fault
        if hasattr(error, "format_message"):
            return _report(UsageError(_usage(error)), arguments)
        return _report(_internal(error), arguments)


def _internal(error: Exception) -> RopetoolError:
    """A fault of ropetool's own: still one sentence, and never the exit code of a check that failed."""
    said = " ".join(str(error).split())[:200]
    found = InternalError(
        f"{type(error).__name__}: {said}. This is a fault of ropetool; please report it with what "
        f"ROPETOOL_TRACEBACK=1 prints",
    )
    found.__cause__ = error
    return found


def _usage(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ropetool"
    message: str = error.format_message()  # type: ignore[attr-defined]  # checked by the caller
    return f"{' '.join(message.split()).rstrip('.')}. See `{path} --help`."


def _interrupted(what: str, code: int, arguments: list[str]) -> int:
    """Say what was left: nothing, or a directory that was being converted in place, and what to do with that."""
    places = (directory_of(Path(argument)) for argument in arguments)
    half = next((place for place in places if is_half_converted(place)), None)
    left = f"{half} is half converted: {remedy(half)}" if half else "nothing half-written was left"
    sys.stderr.write(f"{what}: {left}\n")
    return code


def _report(error: RopetoolError, arguments: list[str]) -> int:
    if os.environ.get("ROPETOOL_TRACEBACK") == "1":
        raise error from error.__cause__
    if rank() > 0 and not isinstance(error, InternalError):  # the first process says the same
        return error.exit_code
    if "--json" in arguments:
        from ropetool.views import jsons

        sys.stdout.write(jsons.dumps(jsons.error(error)) + "\n")
    else:
        sys.stderr.write(f"error: {with_ids(error.message)}\n")
    return error.exit_code
