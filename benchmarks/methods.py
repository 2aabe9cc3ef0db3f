"""What each extension method gives and costs, without training: the tables of docs/methods.md.

A checkpoint is extended by every method and factor with `ropetool.extend`, and read with `ropetool.evaluate`: the
next-token loss of the bundled novel by position, as stored. Of a checkpoint that has a task of its own (recall.json)
the values recalled by length are measured as well, from 100 seeded documents for each length.

    python benchmarks/methods.py --out docs/measured/recall-256.json                      the bundled checkpoint
    python benchmarks/methods.py DIR --lengths 1024,8192,16384 --windows 1 --out ...      another one
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ropetool import evaluate, extend
from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.checkpoint.folder import read_config
from ropetool.families.context import context_of
from ropetool.models.options import PasskeyPlan
from ropetool.models.recall import RecallTask

# longrope is not here: its factors are searched for by training, and no list is true of any model.
METHODS = ("linear", "ntk", "dynamic", "yarn", "llama3")
DOCUMENTS = 100
SEED = 7
DEPTHS = (0.25, 0.75)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    return tuple(int(part) for part in text.split(","))


def rows_of(model: Path, asked: argparse.Namespace, place: Path) -> list[dict[str, Any]]:
    """The model as it is, then by every method and factor."""
    rows = [measured(model, None, 1, asked)]
    trained = context_of(read_config(model)).trained
    if trained is None:
        raise SystemExit(f"{model} does not say how long it was trained")
    for factor in asked.factors:
        for method in asked.methods:
            out = place / f"{method}-{factor}"
            extend.apply(extend.plan(model, out, extend.Method(method), to=trained * factor))
            rows.append(measured(out, method, factor, asked))
    return rows


def measured(path: Path, method: str | None, factor: int, asked: argparse.Namespace) -> dict[str, Any]:
    """One row: losses by position and, where there is a task, the share of values recalled."""
    text, started = bundled(TEXT).read_text(encoding="utf-8"), time.process_time()
    row: dict[str, Any] = {"method": method, "factor": factor}
    if asked.windows:
        found = evaluate.evaluate(path, text, edges=asked.lengths, windows=asked.windows)
        row["loss"] = {f"{part.start}-{part.stop}": round(part.loss, 4) for part in found.lengths}
        row["tokens"] = found.tokens
    if asked.passkeys:
        plan = PasskeyPlan(DEPTHS, asked.passkeys, SEED)
        row["recall"] = by_length(evaluate.measure_passkey(path, asked.lengths, text, plan))
    elif (path / "recall.json").is_file():
        task = RecallTask.load(path / "recall.json")
        lengths = [length for length in asked.lengths if length >= asked.least]
        cells = evaluate.measure_recall(path, task, text, lengths, documents=DOCUMENTS, seed=SEED)
        row["recall"] = {str(cell.length): [cell.correct, cell.trials] for cell in cells}
    print(f"{time.process_time() - started:.0f} s {row}", file=sys.stderr, flush=True)
    return row


def by_length(cells: tuple[evaluate.Cell, ...]) -> dict[str, list[int]]:
    """Passkeys found, and asked for, at each length over all depths."""
    found: dict[str, list[int]] = {}
    for cell in cells:
        correct, trials = found.setdefault(str(cell.length), [0, 0])
        found[str(cell.length)] = [correct + cell.correct, trials + cell.trials]
    return found


def recall_in_words(passkeys: int) -> str:
    """How recall was measured."""
    if not passkeys:
        return f"{DOCUMENTS} seeded documents for each length, three values asked for in each"
    depths = " and ".join(f"{depth:.0%}" for depth in DEPTHS)
    return f"{passkeys * len(DEPTHS)} seeded documents for each length, a number hidden at {depths} of each"


def main() -> None:
    """Measure, and write what was measured with how it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?", default=bundled(CHECKPOINT))
    parser.add_argument("--factors", type=numbers, default=(2, 4))
    parser.add_argument("--methods", type=lambda text: tuple(text.split(",")), default=METHODS)
    parser.add_argument("--lengths", type=numbers, default=(128, 256, 512, 1024))
    parser.add_argument("--least", type=int, default=256, help="no recall below this length")
    parser.add_argument("--windows", type=int, default=32, help="pieces of the text; 0: no loss")
    parser.add_argument("--passkeys", type=int, default=0, help="hide so many numbers at each depth and length")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory(dir=asked.out.parent) as place:
        rows = rows_of(asked.model, asked, Path(place))
    how = {
        "model": asked.model.name,
        "trained": context_of(read_config(asked.model)).trained,
        "text": Path(TEXT).name,
        "windows": asked.windows,
        "recall": recall_in_words(asked.passkeys),
        "seed": SEED,
        "versions": {name: version(name) for name in ("torch", "transformers")},
    }
    asked.out.write_text(json.dumps({**how, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
