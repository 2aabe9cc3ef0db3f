"""Tables and figures of what was measured: from docs/measured/*.json, which benchmarks/methods.py writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tools.docs_figures import Axis, Line, chart
from tools.docs_markdown import code, table

MEASURED = Path(__file__).resolve().parents[1] / "docs" / "measured"


def read(name: str) -> Mapping[str, Any]:
    """One file of measurements."""
    found: Mapping[str, Any] = json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))
    return found


def label(row: Mapping[str, Any]) -> str:
    """What was done to the model."""
    return f"{row['method']} x{row['factor']}" if row["method"] else "as trained"


def loss(name: str) -> str:
    """Loss by position, a row for each method and factor, in nats per token."""
    rows = read(name)["rows"]
    bins = list(rows[0]["loss"])
    cells = [(_marked(row), *(f"{row['loss'][key]:.3f}" for key in bins)) for row in rows]
    return table(("Method", *(key.replace("-", " to ") for key in bins)), cells, right=range(1, len(bins) + 1))


def recall(name: str) -> str:
    """The share of values recalled, by length."""
    rows = [row for row in read(name)["rows"] if "recall" in row]
    lengths = list(rows[0]["recall"])
    cells = [(_marked(row), *(_share(row["recall"][length]) for length in lengths)) for row in rows]
    return table(("Method", *(f"{length} tokens" for length in lengths)), cells, right=range(1, len(lengths) + 1))


def _marked(row: Mapping[str, Any]) -> str:
    return code(label(row)) if row["method"] else label(row)


def _share(counted: tuple[int, int]) -> str:
    correct, trials = counted
    return f"{correct / trials:.1%}".replace("%", " %")


def how(name: str) -> str:
    """How a file was measured, in a sentence."""
    found = read(name)
    rows, windows = found["rows"], found["windows"]
    said = [f"{found['model']}, as stored (bfloat16)"]
    if "loss" in rows[0]:
        pieces = f"{windows} pieces" if windows > 1 else "one piece"
        said.append(f"{found['text']} in {pieces}, {rows[0]['tokens']:,} tokens")
    said += [f"recall: {found['recall']}"] if "recall" in rows[0] else []
    said.append(", ".join(f"{package} {number}" for package, number in found["versions"].items()) + ", on a processor")
    return f"*{'; '.join(said)}. All of it: [{name}.json](measured/{name}.json).*"


def recall_figure(name: str, factor: int = 4) -> str:
    """Recall over the length, a line for each method by one factor."""
    rows = [row for row in read(name)["rows"] if row["factor"] in (1, factor)]
    lines = [
        Line(label(row), [(int(at), 100 * right / trials) for at, (right, trials) in row["recall"].items()])
        for row in rows
    ]
    lengths = [int(at) for at in rows[0]["recall"]]
    said = f"Values recalled by {read(name)['model']}, by the length of the document: " + ", ".join(
        f"{line.name} {line.points[-1][1]:.0f} %" for line in lines
    ) + f" at {lengths[-1]} tokens."  # fmt: skip
    x = Axis("tokens", lengths[0], lengths[-1], lengths, log=True)
    return chart(said, x, Axis("% recalled", 0, 100, range(0, 101, 20)), lines)


ENOUGH = 0.9


def claims(name: str) -> str:
    """What each config says and what is found at that length, for every method by the largest factor."""
    found = read(name)
    factor = max(row["factor"] for row in found["rows"])
    length = str(found["trained"] * factor)
    cells = []
    for row in found["rows"]:
        if row["factor"] == factor:
            far = [int(at) for at, (right, trials) in row["recall"].items() if right / trials >= ENOUGH]
            cells.append(
                (_marked(row), length, _share(row["recall"][length]), str(max(far, default=0)) if far else "none")
            )
    head = (
        "Method",
        "The config says",
        "Recalled at that length",
        f"Longest length with {ENOUGH:.0%} recalled".replace("%", " %"),
    )
    return table(head, cells, right=(1, 2, 3))


def parts() -> dict[str, Callable[[], str]]:
    """What pages can ask for."""
    made: dict[str, Callable[[], str]] = {}
    for file in sorted(MEASURED.glob("*.json")):
        name, rows = file.stem, read(file.stem)["rows"]
        tables: dict[str, Callable[[str], str]] = {"how": how}
        tables |= {"loss": loss} if "loss" in rows[0] else {}
        tables |= {"recall": recall, "figure recall": recall_figure, "claims": claims} if "recall" in rows[0] else {}
        made |= {f"{what} {name}": partial(make, name) for what, make in tables.items()}
    return made
