"""The one output sink: data to stdout, talk to stderr, as a table or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from ropetool.checkpoint.hub import with_ids
from ropetool.models.ranks import rank

# Tables that go to a file or a pipe are this wide.
PIPE_COLUMNS = 120


class Sink:
    """Where a command's result and talk go; of several processes under torchrun only the first has a voice."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet or rank() > 0

    @property
    def shows_bars(self) -> bool:
        """Whether progress is to be seen: on a terminal, unless the person wants none."""
        return not self.quiet and sys.stderr.isatty()

    def result(self, view: str, result: object, **options: Any) -> None:
        """Print a result once, by the function called ``view`` of `views.jsons` or of `views.tables`."""
        if rank() > 0:
            return
        if self.as_json:
            from ropetool.views import jsons

            sys.stdout.write(jsons.dumps(getattr(jsons, view)(result, **options)) + "\n")
            return
        from rich.console import Console

        from ropetool.views import tables

        width = None if sys.stdout.isatty() else PIPE_COLUMNS
        Console(width=width, highlight=False, markup=False).print(getattr(tables, view)(result, **options))

    def talk(self, message: str) -> None:
        """Say something on stderr."""
        if not self.quiet:
            sys.stderr.write(with_ids(message) + "\n")
            sys.stderr.flush()

    @contextmanager
    def others_output(self) -> Iterator[None]:
        """Within, whatever prints (a checkpoint's own code) prints on stderr: stdout is for the result."""
        with redirect_stdout(sys.stderr):
            yield

    @contextmanager
    def bytes_progress(self, what: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
        """A progress bar over bytes, on a terminal only; yields a function that takes the bytes just done."""
        if not self.shows_bars:
            yield lambda step: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=total_bytes)
            yield lambda step: progress.advance(task, step)

    @contextmanager
    def steps_progress(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """A progress bar over steps, on a terminal only; yields a function that takes (done, total)."""
        if not self.shows_bars:
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=None)
            yield lambda done, total: progress.update(task, completed=done, total=total)

    @contextmanager
    def stages_progress(self) -> Iterator[Callable[[str, int, int], None]]:
        """A bar for each stage of a long command, on a terminal only; yields a function of (stage, done, total)."""
        if not self.shows_bars:
            yield lambda stage, done, total: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), "{task.percentage:>3.0f}%", TimeRemainingColumn())
        tasks: dict[str, TaskID] = {}
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

            def show(stage: str, done: int, total: int) -> None:
                if stage not in tasks:
                    tasks[stage] = progress.add_task(stage, total=total)
                progress.update(tasks[stage], completed=min(done, total), total=total)

            yield show
