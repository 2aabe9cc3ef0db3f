"""What tables for a terminal are made of: a list of facts, a grid, sizes and warnings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ropetool.checkpoint.hub import with_ids
from ropetool.families.reading import Warn


def size(number_of_bytes: int) -> str:
    """Bytes in a unit that a person reads: 671088640 is 640.0 MiB."""
    amount, units = float(number_of_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def facts(title: str, rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Names with what is to say of each."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_header=False, title_style="bold")
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def grid(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[RenderableType]], *, numbers: bool = False
) -> Table:
    """A table with a header; columns of ``numbers`` are aligned right, but for the first."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 or not numbers else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def warnings(found: Iterable[Warn]) -> RenderableType:
    """One line per warning."""
    lines = [Text.assemble(("warning ", "yellow"), (f"[{w.code}] ", "dim"), with_ids(w.message)) for w in found]
    return Group(*lines)
