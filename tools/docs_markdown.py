"""Markdown that the pages of the site are made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

# An option in running text, not yet marked as code.
OPTION = re.compile(r"(?<![\w`-])--[a-z][a-z-]*[a-z](?![\w`-])")


def code(text: str) -> str:
    """Text as code, also in a cell of a table, which a bar would end: none can be escaped within backticks."""
    return f"<code>{escape(text).replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def prose(text: str) -> str:
    """Running text, with its options as code, and with nothing that Markdown would take for a tag."""
    return OPTION.sub(lambda found: code(found[0]), text.replace("<", "&lt;"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A table; the columns in ``right`` hold numbers. Cells are Markdown."""
    rule = ["---:" if index in right else "---" for index in range(len(head))]
    lines = [head, rule, *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", "<br>") for cell in line) + " |" for line in lines
    )
