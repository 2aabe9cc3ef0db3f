"""``ropetool verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import Named, local, parse_checkpoint
from ropetool.cli.options import Json, MaxMemoryOption, Quiet, TrustRemoteCode
from ropetool.cli.sink import Sink
from ropetool.errors import OutputError, UsageError
from ropetool.models.options import Device, DType
from ropetool.models.ranks import rank

First = Annotated[Named, typer.Argument(parser=parse_checkpoint, metavar="A", help="The source: a path or a Hub id.")]
Second = Annotated[
    Named, typer.Argument(parser=parse_checkpoint, metavar="B", help="The checkpoint to test against it, likewise.")
]
Tokens = Annotated[
    int | None,
    typer.Option("--tokens", min=2, max=1 << 20, help="Length of the sequence; by default 512, or the trained length."),
]
TextFile = Annotated[
    Path | None, typer.Option("--text", exists=True, dir_okay=False, help="Text to run instead of random tokens.")
]
DeviceOption = Annotated[Device, typer.Option("--device", help="Where to run; auto takes a GPU when there is one.")]
DTypeOption = Annotated[
    DType | None,
    typer.Option("--dtype", help="What to compute in; by default float32, and float64 where that leaves a doubt."),
]
Tolerance = Annotated[
    float | None,
    typer.Option("--tolerance", min=0.0, help="Largest |logit difference|; by default derived, and shown."),
]
Quick = Annotated[bool, typer.Option("--quick", help="Compare the files alone, byte by byte; nothing is run.")]
Bases = Annotated[
    list[Named] | None,
    typer.Option(
        "--base",
        parser=parse_checkpoint,
        metavar="CKPT",
        help="For adapters, twice: the bases of A and of B, to run them merged.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", metavar="FILE.json", help="Keep the result as JSON.")]


def verify(
    a: First,
    b: Second,
    tokens: Tokens = None,
    text: TextFile = None,
    device: DeviceOption = Device.AUTO,
    dtype: DTypeOption = None,
    tolerance: Tolerance = None,
    max_memory: MaxMemoryOption = None,
    quick: Quick = False,
    base: Bases = None,
    out: Out = None,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Prove by files and a forward pass of each that two checkpoints are the same model; exit 1 when they are not.

    Example: ropetool verify ./Llama-3.1-8B ./Llama-3.1-8B-meta
    """
    from ropetool import verify as verb
    from ropetool.views import jsons

    sink = Sink(json, quiet)
    if out is not None:
        _check_out(out, (a.path, b.path))
    if base and len(base) != len((a, b)):
        raise UsageError(f"--base was given {len(base)} times; give the base of A, then that of B")
    if base and max_memory is not None:
        raise UsageError("adapters are merged into their bases in memory; leave out --max-memory, or --base")
    first, second, *bases = (local(named, Need.WEIGHTS, sink) for named in (a, b, *(base or ())))
    words = text.read_text(encoding="utf-8", errors="replace") if text else None
    if quick:
        _refuse_beside_quick(
            max_memory=max_memory, tokens=tokens, text=text, dtype=dtype, tolerance=tolerance, base=base
        )
        with sink.stages_progress() as progress:
            result = verb.verify_files(first, second, talk=sink.talk, progress=progress)
    else:
        with sink.stages_progress() as progress, sink.others_output():
            result = verb.verify(
                first, second, tokens=tokens, text=words, device=device, dtype=dtype, tolerance=tolerance,
                max_memory=max_memory, bases=(bases[0], bases[1]) if bases else None,
                talk=sink.talk, progress=progress, trust_remote_code=trust_remote_code,
            )  # fmt: skip
    if out is not None and rank() == 0:
        out.write_text(jsons.dumps(jsons.verification(result)) + "\n", encoding="utf-8")
    sink.result("verification", result)
    if not result.passed:
        raise typer.Exit(1)


def _refuse_beside_quick(**options: object) -> None:
    """Options of the forward pass mean nothing where there is none."""
    given = next((name for name, value in options.items() if value is not None), None)
    if given:
        raise UsageError(
            f"--quick runs nothing, so --{given.replace('_', '-')} has no meaning beside it; leave one of the two out"
        )


def _check_out(out: Path, checkpoints: tuple[Path, Path]) -> None:
    """The result must not land in a checkpoint: those are only read."""
    for checkpoint in checkpoints:
        directory = checkpoint if checkpoint.is_dir() else checkpoint.parent
        if directory.resolve() in (out.resolve(), *out.resolve().parents):
            raise OutputError(f"--out {out} lies inside the checkpoint {directory}; name a place outside it")
    if not out.resolve().parent.is_dir():
        raise OutputError(f"{out.resolve().parent}, where {out.name} would be, is not a directory")
