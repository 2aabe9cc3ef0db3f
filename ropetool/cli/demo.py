"""``ropetool demo``: the main job, end to end, on the bundled checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropetool.cli.options import Json, Quiet
from ropetool.cli.sink import Sink
from ropetool.families.methods import Method, Weights
from ropetool.rope.layout import Pairing

Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the results go; must not exist.")]

EXTENDED_TOKENS = 1024
LOSS_WINDOWS = 32
RECALL_DOCUMENTS = 64


def demo(out: Out = Path("demo-out"), json: Json = False, quiet: Quiet = False) -> None:
    """Inspect, convert, verify and extend the bundled checkpoint, and measure what the extension gives.

    Example: ropetool demo --out ./demo-out
    """
    from ropetool import convert, detect, extend, verify
    from ropetool.checkpoint.bundled import CHECKPOINT, bundled
    from ropetool.checkpoint.folder import check_output
    from ropetool.views import jsons

    sink = Sink(json, quiet)
    source = bundled(CHECKPOINT)
    check_output(out, source)
    out.mkdir()
    converted, extended = out / "interleaved", out / f"yarn-{EXTENDED_TOKENS}"

    _step(sink, 1, f"inspect: {source.name}, a small model trained to recall values within 256 tokens")
    inspection = detect.inspect(source)
    _show(sink, "inspection", inspection)

    _step(sink, 2, "convert: the same model with the rows of q and k in the other order")
    conversion = convert.apply(convert.plan(source, converted, Pairing.INTERLEAVED))
    _show(sink, "converted", conversion)

    _step(sink, 3, "verify: a forward pass of each proves that nothing changed")
    verdict = verify.verify(source, converted, talk=sink.talk)
    _show(sink, "verification", verdict)

    _step(sink, 4, f"extend: YaRN to {EXTENDED_TOKENS} tokens, by the config alone")
    plan = extend.plan(source, extended, Method.YARN, to=EXTENDED_TOKENS, weights=Weights.COPY)
    extension = extend.apply(plan)
    _show(sink, "extended", extension)

    _step(sink, 5, "evaluate: recall and loss, before and after")
    before_after = _measure(sink, source, extended)
    report = {
        "inspect": jsons.inspection(inspection),
        "convert": jsons.converted(conversion),
        "verify": jsons.verification(verdict),
        "extend": jsons.extended(extension),
        **before_after,
    }
    (out / "results.json").write_text(jsons.dumps(report) + "\n", encoding="utf-8")
    if json:
        sink.result("plain", report)
    sink.talk(f"results are in {out}")
    if not verdict.passed:
        raise typer.Exit(1)


def _step(sink: Sink, number: int, what: str) -> None:
    sink.talk(f"\n[{number}/5] {what}")


def _show(sink: Sink, view: str, result: object) -> None:
    if not sink.as_json:
        sink.result(view, result)


def _measure(sink: Sink, source: Path, extended: Path) -> dict[str, object]:
    """Recall by length and loss by position of both checkpoints, as tables and as a part of the report."""
    from ropetool import evaluate
    from ropetool.checkpoint.bundled import TEXT, bundled
    from ropetool.models.recall import RecallTask
    from ropetool.views import jsons

    text = bundled(TEXT).read_text(encoding="utf-8")
    task = RecallTask.load(source / "recall.json")
    lengths = (256, 512, EXTENDED_TOKENS)
    rows = []
    for name, path in (("no extension", source), (f"YaRN to {EXTENDED_TOKENS}", extended)):
        with sink.steps_progress(f"recall, {name}") as progress:
            found = evaluate.measure_recall(path, task, text, lengths, documents=RECALL_DOCUMENTS, progress=progress)
            rows.append((name, found))
    losses = evaluate.evaluate(extended, text, edges=lengths, windows=LOSS_WINDOWS, against=source)
    if not sink.as_json:
        sink.result("recall", rows)
        sink.result("evaluation", losses)
    return {"recall": jsons.recall(rows), "evaluate": jsons.evaluation(losses)}
