"""``ropetool verify CKPT --served URL``: what it asks for, and how it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import Named, local
from ropetool.cli.options import read_text
from ropetool.cli.sink import Sink
from ropetool.engines.client import KEY_VARIABLE
from ropetool.errors import UsageError
from ropetool.models.options import DType
from ropetool.models.ranks import rank

ServedUrl = Annotated[
    str | None,
    typer.Option(
        "--served", metavar="URL",
        help="Instead of B: an OpenAI-compatible server (vLLM, SGLang, llama.cpp), with or without /v1. Its key, if it "
        f"wants one, is taken from {KEY_VARIABLE}.",
    ),
]  # fmt: skip
ServedModel = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="With --served: which model; by default the only one.")
]
Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0.1, max=86400, help="With --served: seconds for each whole answer; default 120."),
]


def pair_with(a: Named, b: Named | None, *, model: str | None, timeout: float | None) -> tuple[Named, Named]:
    """The two checkpoints of a comparison without a server; raises `UsageError` for half of one."""
    lonely = [name for name, value in (("--model", model), ("--timeout", timeout)) if value is not None]
    if lonely:
        raise UsageError(f"{lonely[0]} is about a server; give --served URL, too")
    if b is None:
        raise UsageError("there is nothing to compare with: give a second checkpoint B, or --served URL")
    return a, b


def verify_served(
    checkpoint: Named, url: str, sink: Sink, out: Path | None, *, beside: Mapping[str, object], text: Path | None,
    timeout: float | None, dtype: DType | None, **options: Any,
) -> None:  # fmt: skip
    """Run it, keep the result in ``out``, and leave with exit code 1 if the server is not right.

    ``beside`` has what means nothing with a server, by name. Raises `UsageError` where one is given.
    """
    from ropetool import served as verb
    from ropetool.views import jsons

    for name, given in beside.items():
        if given:
            raise UsageError(f"--served compares one checkpoint with a server; leave out {name}")
    path = local(checkpoint, Need.WEIGHTS, sink)
    words = read_text(text) if text else None
    with sink.others_output():
        result = verb.verify_served(
            path, url, text=words, dtype=dtype or DType.FLOAT32, timeout_s=timeout or verb.DEFAULT_TIMEOUT_S,
            key=os.environ.get(KEY_VARIABLE, ""), talk=sink.talk, **options,
        )  # fmt: skip
    if out is not None and rank() == 0:
        out.write_text(jsons.dumps(jsons.served(result)) + "\n", encoding="utf-8")
    sink.result("served", result)
    if not result.found.passed:
        raise typer.Exit(1)
