"""``ropetool report``."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import Named, found, parse_checkpoint
from ropetool.cli.keeping import check_out
from ropetool.cli.options import Checkpoint, Json, Quiet, TrustRemoteCode, parse_length
from ropetool.cli.sink import Sink
from ropetool.errors import OutputError, RopetoolError

if TYPE_CHECKING:
    from ropetool.checkpoint.results import KeptEvaluation, KeptVerification
    from ropetool.checkpoint.search_results import KeptSearch
    from ropetool.families.reading import Warn
    from ropetool.views.report.model import Report, Subject

Against = Annotated[
    Named | None,
    typer.Option("--against", parser=parse_checkpoint, metavar="CKPT", help="A checkpoint to show beside it."),
]
Original = Annotated[
    int | None,
    typer.Option(
        "--original", parser=parse_length, metavar="LEN", help="The trained length, where config.json does not tell it."
    ),
]
Verified = Annotated[
    Path | None, typer.Option("--verify", metavar="FILE.json", help="What `verify --out` kept, to be shown.")
]
Evaluated = Annotated[
    Path | None, typer.Option("--evaluate", metavar="FILE.json", help="What `evaluate --out` kept, to be shown.")
]
Searched = Annotated[
    Path | None,
    typer.Option("--search", metavar="FILE.json", help="What a search by `extend --out` kept, to be shown."),
]
Page = Annotated[Path | None, typer.Option("--out", metavar="PAGE.html", help="Write one page that needs no network.")]
Png = Annotated[Path | None, typer.Option("--png", metavar="DIR", help="Write the main figures as PNG files.")]


def report(
    ckpt: Checkpoint,
    against: Against = None,
    original: Original = None,
    verify: Verified = None,
    evaluate: Evaluated = None,
    search: Searched = None,
    out: Page = None,
    png: Png = None,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show a checkpoint's RoPE as figures: on one HTML page, as PNG files, or as tables here where neither is given.

    Verdict and witnesses, frequency bands under each scaling method, what was measured, what each engine will read.

    Example: ropetool report ./SmolLM2-135M-32k --against ./SmolLM2-135M --evaluate loss.json --out page.html
    """
    from ropetool.checkpoint.results import read_evaluation, read_verification
    from ropetool.checkpoint.search_results import read_search
    from ropetool.views.report.model import Report
    from ropetool.views.report.plots import need_matplotlib

    sink = Sink(json, quiet)
    _check_places(out, png, [named.path for named in (ckpt, against) if named])
    if png is not None:
        need_matplotlib()
    verified = read_verification(verify) if verify else None
    evaluated = read_evaluation(evaluate) if evaluate else None
    searched = read_search(search) if search else None
    subject = _subject(ckpt, original, trust_remote_code, sink)
    beside = _subject(against, None, trust_remote_code, sink) if against else None
    of_others = _of_others(verified, evaluated, searched, ckpt, against)
    result = Report(subject, beside, verified, evaluated, searched, of_others)
    result = replace(result, written=_written(result, out, png))
    sink.result("report", result)


def _check_places(out: Path | None, png: Path | None, checkpoints: list[Path]) -> None:
    """Raises `OutputError` for places that cannot be written to, before the work."""
    check_out(out, checkpoints)
    if png is None:
        return
    check_out(png / "bands.png" if png.is_dir() else png, checkpoints)
    if png.exists() and not png.is_dir():
        raise OutputError(f"--png {png} is a file; name a directory", path=str(png))


def _subject(named: Named, original: int | None, trust_remote_code: bool, sink: Sink) -> Subject:
    """All that is known of one checkpoint. What can be inspected is shown, though it has no RoPE."""
    from ropetool import detect
    from ropetool import doctor as engines
    from ropetool import report as verb
    from ropetool.views.report.model import Subject

    fetched = found(named, Need.HEADERS, sink)
    path = fetched.path if fetched else named.path
    spectrum, diagnosis = None, None
    no_spectrum, no_diagnosis = "", ""
    with sink.others_output():
        inspection = detect.inspect(path, weights=True, trust_remote_code=trust_remote_code, talk=sink.talk)
        try:
            spectrum = verb.spectrum(path, original=original, trust_remote_code=trust_remote_code)
        except RopetoolError as error:
            no_spectrum = error.message
        try:
            diagnosis = engines.diagnose(path)
        except RopetoolError as error:
            no_diagnosis = error.message
    inspection = replace(inspection, checkpoint=str(named))
    return Subject(inspection, spectrum, no_spectrum, diagnosis, no_diagnosis)


def _of_others(
    verified: KeptVerification | None,
    evaluated: KeptEvaluation | None,
    searched: KeptSearch | None,
    ckpt: Named,
    against: Named | None,
) -> tuple[Warn, ...]:
    """A warning where a kept result names other checkpoints than the report is of."""
    from ropetool.families.reading import Warn

    other: list[tuple[str, str]] = []
    if verified and verified.checkpoints and not any(_is_same(name, ckpt) for name in verified.checkpoints):
        other.append((verified.file, f"{' and '.join(verified.checkpoints)}, not of {ckpt}"))
    if evaluated:
        told = ((evaluated.checkpoint, ckpt), (evaluated.against, against))
        other += [
            (evaluated.file, f"{name}, not of {of}") for name, of in told if name and of and not _is_same(name, of)
        ]
    if searched and not any(_is_same(name, ckpt) for name in (searched.output, searched.checkpoint)):
        other.append((searched.file, f"{searched.output}, made of {searched.checkpoint}, not of {ckpt}"))
    return tuple(Warn("result-of-another", f"{file} is of {said}: see that it belongs here") for file, said in other)


def _is_same(name: str, named: Named) -> bool:
    return name == str(named) or os.path.abspath(name) == os.path.abspath(named.path)


def _written(result: Report, out: Path | None, png: Path | None) -> tuple[str, ...]:
    """Write what was asked for; returns the paths."""
    from ropetool.models.ranks import rank
    from ropetool.views import jsons

    if rank() > 0 or (out is None and png is None):
        return ()
    written = []
    told = jsons.report(result)
    if out is not None:
        from ropetool.checkpoint.durable import replace as put
        from ropetool.views.report.page import page

        content = page(told).encode("utf-8")
        put(out, lambda descriptor: _fill(descriptor, content), 0o644, sync=False)
        written.append(str(out))
    if png is not None:
        from ropetool.views.report.plots import draw

        png.mkdir(parents=True, exist_ok=True)
        written += [str(path) for path in draw(told, png)]
    return tuple(written)


def _fill(descriptor: int, content: bytes) -> None:
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
