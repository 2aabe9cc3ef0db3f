"""``ropetool inspect``."""

from __future__ import annotations

from ropetool.cli.options import Base, Checkpoint, Json, Quiet, TrustRemoteCode
from ropetool.cli.sink import Sink


def inspect(
    ckpt: Checkpoint,
    base: Base = None,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show pairing, base, heads, scaling and lengths of a checkpoint, and which witness says so.

    Example: ropetool inspect ./Llama-3.1-8B --json
    """
    from ropetool import detect

    Sink(json, quiet).result("inspection", detect.inspect(ckpt, base=base, trust_remote_code=trust_remote_code))
