"""The code in README and docs, run: how a block of a page is found, run, and held against what the page shows.

Sybil finds the blocks and makes a test of each (conftest.py). The blocks of a page run in order, in a directory of the
page's own in which ``fixtures`` is the repository's; those marked ``python`` share their names, and a ``text`` block
is what the ``python`` block above it prints.

A ``console`` block holds commands after ``$ `` and, below each, what it prints on stdout; of a command that ends with
an error (exit code 2 or more) also what it prints on stderr. How it is spaced and broken into lines does not count, nor
do the rules of tables. In what is shown,

* ``...`` stands for anything;
* a number with an exponent (1.43e-05) is what rounding left on some processor, and may be ten times off;
* seconds (0.01 s) are those of some machine, and may be any.

A block that cannot run has a comment before it, with the reason: ``<!-- skip: next "it needs a server" -->``.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from sybil import Example, Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, SkipParser

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md", "docs/**/*.md", "fixtures/recall-256/README.md")
LONGEST_SECONDS = 300
PLACE, PRINTED = "place", "printed"
ERROR = 2  # from this exit code on, what was said on stderr is shown

PROMPT = "$ "
RULE = re.compile(r"[\s─━═-]*")
ROUNDING = re.compile(r"\d\.\d+e[+-]\d\d")
ELLIPSIS = "..."
SECONDS = re.compile(r"\d+\.\d\d s\b")
VARIES = re.compile(rf"( ?\.\.\. ?|{ROUNDING.pattern}|{SECONDS.pattern})")
TIMES = 10.0

# `python` is this one, and `ropetool` the package that is tested, whatever else is installed.
SHIM = '#!/bin/sh\nexec "{python}" {more}"$@"\n'


def open_page(namespace: dict[str, Any]) -> None:
    """Make the directory of a page, and the two commands that it calls."""
    place = Path(tempfile.mkdtemp(prefix="ropetool-page-"))
    namespace[PLACE] = place
    (place / "bin").mkdir()
    for name, more in (("python", ""), ("ropetool", "-m ropetool ")):
        shim = place / "bin" / name
        shim.write_text(SHIM.format(python=sys.executable, more=more), encoding="utf-8")
        shim.chmod(0o755)
    work = place / "work"
    work.mkdir()
    (work / "fixtures").symlink_to(ROOT / "fixtures")


def close_page(namespace: dict[str, Any]) -> None:
    """Remove what the page made."""
    shutil.rmtree(namespace[PLACE])
    if namespace.get(PRINTED):
        raise AssertionError(f"the last block prints what is not shown: {namespace[PRINTED]!r}")


def run_command(command: str, place: Path, before: int) -> tuple[str, int]:
    """What a command shows, and its exit code; ``before`` is that of the command above."""
    path = [str(place / "bin"), os.environ.get("PATH", "")]
    environment = {
        **os.environ, "PATH": os.pathsep.join(path), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
    }  # fmt: skip
    done = subprocess.run(
        ["sh", "-c", f"(exit {before})\n{command}"], cwd=place / "work", env=environment, capture_output=True,
        text=True, check=False, timeout=LONGEST_SECONDS,
    )  # fmt: skip
    return done.stdout + (done.stderr if done.returncode >= ERROR else ""), done.returncode


def commands(source: str) -> Iterator[tuple[str, str]]:
    """Each command of a block with what is shown below it."""
    command, shown = "", ""
    for line in source.splitlines():
        if line.startswith(PROMPT):
            if command:
                yield command, shown
            command, shown = line.removeprefix(PROMPT), ""
        elif command.endswith("\\"):
            command += "\n" + line
        else:
            shown += line + "\n"
    yield command, shown


def run_console(example: Example) -> str | None:
    """Run the commands of a block; returns what is not as shown, None where all is."""
    code = 0
    for command, shown in commands(example.parsed):
        if not command:
            return f"the block begins with {shown.splitlines()[:1]}, and no {PROMPT!r}"
        printed, code = run_command(command, example.namespace[PLACE], code)
        if not alike(shown, printed):
            return f"{PROMPT}{command}\nis shown with\n\n{shown}\nand prints\n\n{printed}"
    return None


def run_python(example: Example) -> None:
    """Run a block in the page's directory, with the names of the blocks above; what it prints is kept to be shown."""
    _check_shown(example)
    before, printed = Path.cwd(), io.StringIO()
    os.chdir(example.namespace[PLACE] / "work")
    try:
        with redirect_stdout(printed):
            PYTHON(example)
    finally:
        os.chdir(before)
    example.namespace[PRINTED] = printed.getvalue()


def hold_text(example: Example) -> str | None:
    """Hold a ``text`` block against what the ``python`` block above it printed."""
    printed = example.namespace.get(PRINTED, "")
    if not printed:
        return "a block of text is what the block of python above it prints, and that prints nothing"
    example.namespace[PRINTED] = ""
    return None if alike(example.parsed, printed) else f"is shown as\n\n{example.parsed}\nand printed is\n\n{printed}"


def _check_shown(example: Example) -> None:
    left = example.namespace.get(PRINTED, "")
    if left:
        raise AssertionError(f"{example.path}: a block above line {example.line} prints what is not shown: {left!r}")


def alike(shown: str, printed: str) -> bool:
    """Whether what was printed is what is shown, but for what `...` stands for and for rounding."""
    tokens = VARIES.split(_words(shown))
    found = re.fullmatch("".join(map(_pattern, tokens)), _words(printed))
    figures = [token for token in tokens if ROUNDING.fullmatch(token)]
    return found is not None and all(map(_near, figures, found.groups()))


def _words(text: str) -> str:
    """A text without the rules of tables, with single spaces between its words."""
    return " ".join(" ".join(line for line in text.splitlines() if not RULE.fullmatch(line)).split())


def _pattern(token: str) -> str:
    if token.strip() == ELLIPSIS:
        return ".*"
    if SECONDS.fullmatch(token):
        return SECONDS.pattern
    return f"({ROUNDING.pattern})" if ROUNDING.fullmatch(token) else re.escape(token)


def _near(shown: str, printed: str) -> bool:
    a, b = float(shown), float(printed)
    return a == b or (a > 0 and 1 / TIMES <= b / a <= TIMES)


PYTHON = PythonEvaluator()
PARSERS = (
    SkipParser(),
    CodeBlockParser("console", evaluator=run_console),
    CodeBlockParser("python", evaluator=run_python),
    CodeBlockParser("text", evaluator=hold_text),
)


def pages_of(root: Path) -> list[Path]:
    """The pages whose code is run."""
    return sorted(path for pattern in PAGES for path in root.glob(pattern))


def sybil() -> Sybil:
    """What finds and runs the blocks of a page."""
    return Sybil(PARSERS, path=str(ROOT), patterns=PAGES, setup=open_page, teardown=close_page)
