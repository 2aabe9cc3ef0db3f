"""``ropetool inspect``."""

from __future__ import annotations

from dataclasses import replace

from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import found, local
from ropetool.cli.options import Base, Checkpoint, Json, Quiet, TrustRemoteCode, WitnessText, read_text
from ropetool.cli.sink import Sink


def inspect(
    ckpt: Checkpoint,
    base: Base = None,
    text: WitnessText = None,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show pairing, base, heads, scaling and lengths of a checkpoint, and which witness says so.

    Example: ropetool inspect ./Llama-3.1-8B --text bundled --json
    """
    from ropetool import detect

    sink = Sink(json, quiet)
    words = read_text(text) if text else None
    fetched = found(ckpt, Need.WEIGHTS if text else Need.HEADERS, sink)
    path = fetched.path if fetched else ckpt.path
    of_base = local(base, Need.HEADERS, sink) if base else None
    result = detect.inspect(path, base=of_base, trust_remote_code=trust_remote_code, text=words, talk=sink.talk)
    sink.result("inspection", replace(result, checkpoint=str(ckpt)), found=fetched)
