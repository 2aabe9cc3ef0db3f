"""``ropetool evaluate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import Named, local, parse_checkpoint
from ropetool.cli.keeping import Out, check_out, keep
from ropetool.cli.options import Checkpoint, Json, MaxMemoryOption, Quiet, parse_lengths, parse_text, read_text
from ropetool.cli.sink import Sink
from ropetool.errors import UsageError
from ropetool.models.options import Device, DType, PasskeyPlan

Against = Annotated[
    Named | None,
    typer.Option("--against", parser=parse_checkpoint, metavar="CKPT", help="A checkpoint to run beside it."),
]
Lengths = Annotated[
    str | None, typer.Option("--lengths", metavar="1k,2k,4k", help="Ends of the position bins, in tokens.")
]
Windows = Annotated[
    int, typer.Option("--windows", min=1, help="Read up to so many pieces of the longest length, not one.")
]
TextFile = Annotated[
    Path | None,
    typer.Option("--text", parser=parse_text, metavar="FILE|bundled", help="Text; by default the bundled novel."),
]
Passkey = Annotated[
    bool, typer.Option("--passkey", help="Hide a number in filler and ask for it, at each of the lengths.")
]
Depths = Annotated[
    str | None,
    typer.Option("--depths", metavar="0,0.5,1", help="Where it is hidden, as shares; default 0,0.25,0.5,0.75,1."),
]
Trials = Annotated[int | None, typer.Option("--trials", min=1, help="Documents for each length and depth; default 5.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Draws the numbers and the filler; default 7.")]


def evaluate(
    ckpt: Checkpoint,
    against: Against = None,
    lengths: Lengths = None,
    text: TextFile = None,
    windows: Windows = 1,
    passkey: Passkey = False,
    depths: Depths = None,
    trials: Trials = None,
    seed: Seed = None,
    device: Annotated[Device, typer.Option("--device", help="Where to run.")] = Device.AUTO,
    dtype: Annotated[DType | None, typer.Option("--dtype", help="What to compute in; by default as stored.")] = None,
    max_memory: MaxMemoryOption = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure next-token loss by position, and passkeys found, to see what an extension gives and what it costs.

    Example: ropetool evaluate ./SmolLM2-135M-32k --against ./SmolLM2-135M --lengths 8k,16k,32k --passkey
    """
    from ropetool import evaluate as verb
    from ropetool.checkpoint.bundled import TEXT, bundled
    from ropetool.views import jsons

    sink = Sink(json, quiet)
    check_out(out, [named.path for named in (ckpt, against) if named])
    plan = _plan(passkey, depths, trials, seed)
    edges = parse_lengths(lengths) if lengths is not None else None
    words = read_text(text or bundled(TEXT))
    path, beside = local(ckpt, Need.WEIGHTS, sink), local(against, Need.WEIGHTS, sink) if against else None
    with sink.steps_progress("tokens") as progress:
        result = verb.evaluate(
            path, words, edges=edges, windows=windows, against=beside, passkey=plan, device=device, dtype=dtype,
            max_memory=max_memory, progress=progress, talk=sink.talk,
        )  # fmt: skip
    result = replace(result, checkpoint=str(ckpt), against=str(against) if against else None)
    sink.result("evaluation", result)
    keep(out, jsons.evaluation(result))


def _plan(passkey: bool, depths: str | None, trials: int | None, seed: int | None) -> PasskeyPlan | None:
    """What to ask; raises `UsageError` for its options without ``--passkey``, and for depths that are no shares."""
    given = {"depths": depths, "trials": trials, "seed": seed}
    if not passkey:
        without = next((name for name, value in given.items() if value is not None), None)
        if without:
            raise UsageError(f"--{without} is about passkeys; give --passkey as well")
        return None
    plan = PasskeyPlan()
    return PasskeyPlan(
        _shares(depths) if depths is not None else plan.depths,
        plan.trials if trials is None else trials,
        plan.seed if seed is None else seed,
    )


def _shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError as error:
        raise UsageError(f"--depths {text!r} is not a list of shares; write 0,0.5,1") from error
