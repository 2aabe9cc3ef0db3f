"""``ropetool doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import local
from ropetool.cli.options import Checkpoint, Json, Quiet, parse_length
from ropetool.cli.sink import Sink
from ropetool.engines.names import EngineName

Engine = Annotated[EngineName | None, typer.Option("--engine", help="Ask this engine alone.")]
Length = Annotated[
    int | None,
    typer.Option("--length", parser=parse_length, metavar="LEN", help="The length to be served: 32768, 32k."),
]


def doctor(
    ckpt: Checkpoint, engine: Engine = None, length: Length = None, json: Json = False, quiet: Quiet = False
) -> None:
    """Show what every engine will make of a checkpoint's rope keys. Exit 1 if one reads it wrongly or will not load it.

    Example: ropetool doctor ./SmolLM2-135M-32k --engine mlx-lm --length 32k
    """
    from ropetool import doctor as verb

    sink = Sink(json, quiet)
    path = local(ckpt, Need.HEADERS, sink)
    diagnosis = verb.diagnose(path, engine=engine, length=length)
    sink.result("diagnosis", diagnosis)
    if not diagnosis.passed:
        raise typer.Exit(1)
