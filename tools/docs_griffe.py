"""Docstrings as the site shows them: mkdocstrings takes them for Markdown, which writes tables and blocks otherwise."""

from __future__ import annotations

import re
from typing import Any

import griffe

from tools.docs_markdown import table

RULE = re.compile(r"^=+(?: +=+)+$")


def as_markdown(text: str) -> str:
    """A docstring of which the simple tables (reStructuredText's, between rules of =) are tables of Markdown.

    A ``::`` alone, before a block that is indented, goes: Markdown needs none.
    """
    done, lines = [], text.splitlines()
    while lines:
        line = lines.pop(0)
        if not RULE.fullmatch(line):
            done.append("" if line.strip() == "::" else line)
            continue
        starts = [found.start() for found in re.finditer("=+", line)]
        rows = []
        for _ in range(2):  # the head, then the body; each ends with a rule
            while lines and not RULE.fullmatch(lines[0]):
                rows.append(_cells(lines.pop(0), starts))
            lines = lines[1:]
        done += table(rows[0], rows[1:]).splitlines()
    return "\n".join(done)


def _cells(line: str, starts: list[int]) -> list[str]:
    return [line[start:stop].strip() for start, stop in zip(starts, [*starts[1:], None], strict=True)]


class Docstrings(griffe.Extension):
    """Lets every docstring through `as_markdown`."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """See griffe: called when an object is whole."""
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
