"""HTML as a tree of elements: every text and every value of an attribute is escaped when it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree import ElementTree

from ropetool.errors import printable

Node = ElementTree.Element
MOST_CHARACTERS = 2000


def clean(text: str) -> str:
    """A text without invisible characters, which could hide or turn round what is around them; a long one is cut."""
    half = MOST_CHARACTERS // 2
    return printable(text if len(text) <= MOST_CHARACTERS else f"{text[:half]} ... {text[-half:]}")


def tag(name: str, *children: Node | str, **attributes: str) -> Node:
    """An element; a trailing underscore of an attribute's name is dropped, another one is a hyphen."""
    node = ElementTree.Element(name, {k.rstrip("_").replace("_", "-"): clean(v) for k, v in attributes.items()})
    last: Node | None = None
    for child in children:
        if isinstance(child, ElementTree.Element):
            node.append(child)
            last = child
        elif last is None:
            node.text = (node.text or "") + clean(child)
        else:
            last.tail = (last.tail or "") + clean(child)
    return node


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Node | str]], *, narrow: bool = True) -> Node:
    """A table whose first column heads its rows; on a ``narrow`` screen each row becomes a card, with every label."""
    head = tag("tr", *(tag("th", column, scope="col") for column in columns))
    body = [
        tag("tr", *(tag("td" if at else "th", cell, **_of_cell(at, columns[at])) for at, cell in enumerate(row)))
        for row in rows
    ]
    kind = {"class_": "cards"} if narrow else {}
    return tag("table", tag("caption", caption), tag("thead", head), tag("tbody", *body), **kind)


def _of_cell(at: int, column: str) -> dict[str, str]:
    return {"data_label": column} if at else {"scope": "row"}


def html(*nodes: Node) -> str:
    """The nodes as HTML."""
    return "\n".join(ElementTree.tostring(node, encoding="unicode", method="html") for node in nodes)
