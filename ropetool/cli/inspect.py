"""``ropetool inspect``."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import found, local
from ropetool.cli.options import Base, Checkpoint, Json, Quiet, TrustRemoteCode, WitnessText, read_text
from ropetool.cli.sink import Sink

Code = Annotated[
    bool, typer.Option("--code", help="Ask the model's own class too, on a tiny random model (needs torch).")
]
Weights = Annotated[
    bool,
    typer.Option(
        "--weights", help="Look at the rows of q and k too; no forward pass. Of a Hub id, the weights are fetched."
    ),
]


def inspect(
    ckpt: Checkpoint,
    code: Code = False,
    weights: Weights = False,
    text: WitnessText = None,
    base: Base = None,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show pairing, base, heads, scaling and lengths of a checkpoint, and which witness says so.

    The config alone proves no layout: --code, --weights and --text ask further witnesses, and what contradicts it
    is the first line.

    Example: ropetool inspect ./Llama-3.1-8B --weights --text bundled
    """
    from ropetool import detect

    sink = Sink(json, quiet)
    words = read_text(text) if text else None
    fetched = found(ckpt, Need.WEIGHTS if weights or text else Need.HEADERS, sink)
    path = fetched.path if fetched else ckpt.path
    of_base = local(base, Need.HEADERS, sink) if base else None
    with sink.others_output():
        result = detect.inspect(
            path, base=of_base, trust_remote_code=trust_remote_code, code=code, weights=weights, text=words,
            talk=sink.talk,
        )  # fmt: skip
    sink.result("inspection", replace(result, checkpoint=str(ckpt)), found=fetched)
