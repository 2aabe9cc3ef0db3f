"""``ropetool verify``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import Named, local, parse_checkpoint
from ropetool.cli.keeping import Out, check_out, keep
from ropetool.cli.options import Json, MaxMemoryOption, Quiet, TrustRemoteCode, read_text
from ropetool.cli.served import ServedModel, ServedUrl, Timeout, pair_with, verify_served
from ropetool.cli.sink import Sink
from ropetool.errors import UsageError
from ropetool.models.options import Device, DType

First = Annotated[Named, typer.Argument(parser=parse_checkpoint, metavar="A", help="The source: a path or a Hub id.")]
Second = Annotated[
    Named | None,
    typer.Argument(parser=parse_checkpoint, metavar="[B]", help="The checkpoint to test against it, likewise."),
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


def verify(
    a: First,
    b: Second = None,
    tokens: Tokens = None,
    text: TextFile = None,
    device: DeviceOption = Device.AUTO,
    dtype: DTypeOption = None,
    tolerance: Tolerance = None,
    max_memory: MaxMemoryOption = None,
    quick: Quick = False,
    base: Bases = None,
    out: Out = None,
    served: ServedUrl = None,
    model: ServedModel = None,
    timeout: Timeout = None,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Prove by files and a forward pass of each that two checkpoints are the same model; exit 1 when they are not.

    Example: ropetool verify ./Llama-3.1-8B ./Llama-3.1-8B-meta

    With --served URL: prove by its log-probabilities that a running server rotates as A means.
    """
    from ropetool import verify as verb
    from ropetool.views import jsons

    sink = Sink(json, quiet)
    check_out(out, [named.path for named in (a, b) if named])
    if served is not None:
        verify_served(
            a, served, sink, out, beside={"B": b, "--base": base, "--quick": quick}, model=model, timeout=timeout,
            tokens=tokens, text=text, device=device, dtype=dtype, tolerance=tolerance, max_memory=max_memory,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
        return
    pair = pair_with(a, b, model=model, timeout=timeout)
    _check_bases(base or [], max_memory)
    first, second, *bases = (local(named, Need.WEIGHTS, sink) for named in (*pair, *(base or ())))
    words = read_text(text) if text else None
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
    result = replace(result, a=str(pair[0]), b=str(pair[1]))
    sink.result("verification", result)
    keep(out, jsons.verification(result))
    if not result.passed:
        raise typer.Exit(1)


def _check_bases(bases: list[Named], max_memory: object) -> None:
    if bases and len(bases) != len(("A", "B")):
        raise UsageError(f"--base was given {len(bases)} times; give the base of A, then that of B")
    if bases and max_memory is not None:
        raise UsageError("adapters are merged into their bases in memory; leave out --max-memory, or --base")


def _refuse_beside_quick(**options: object) -> None:
    """Options of the forward pass mean nothing where there is none."""
    given = next((name for name, value in options.items() if value is not None), None)
    if given:
        raise UsageError(
            f"--quick runs nothing, so --{given.replace('_', '-')} has no meaning beside it; leave one of the two out"
        )
