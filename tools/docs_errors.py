"""The table of errors: every class of ropetool.errors, with its code and what it means."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ropetool import errors
from tools.docs_markdown import code, table


def _below(parent: type[errors.RopetoolError], depth: int = 0) -> Iterator[tuple[int, type[errors.RopetoolError]]]:
    yield depth, parent
    for child in parent.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _below(child, depth + 1)


def tree() -> str:
    """Every error below the one that stands for all, indented by its depth."""
    rows = []
    for depth, error in _below(errors.RopetoolError):
        name = "&nbsp;&nbsp;&nbsp;" * depth + code(error.__name__)
        rows.append((code(error.code), name, str(error.__doc__).split("\n\n")[0], str(error.exit_code)))
    return table(("Code", "Class in `ropetool.errors`", "What it says", "Exit"), rows, right=(3,))


def parts() -> dict[str, Callable[[], str]]:
    """What pages can ask for."""
    return {"errors": tree}
