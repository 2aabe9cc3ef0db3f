"""``ropetool convert``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ropetool.checkpoint.adapter import is_adapter
from ropetool.checkpoint.hub_id import Need
from ropetool.cli.checkpoints import local
from ropetool.cli.in_place import BreakLinks, InPlace, Resume, Sync, Undo, alone, check_together, end
from ropetool.cli.options import Base, DryRun, Json, Quiet, Source, TrustRemoteCode, WitnessText, read_text
from ropetool.cli.sink import Sink
from ropetool.engines.names import EngineName
from ropetool.errors import NotVerifiedError, UsageError
from ropetool.rope.layout import Pairing

if TYPE_CHECKING:
    from ropetool.families.reading import Evidence
    from ropetool.families.verdict import Verification

To = Annotated[Pairing | None, typer.Option("--to", help="The layout to write.")]
From = Annotated[
    Pairing | None,
    typer.Option("--from", help="The layout that the weights have, where you know better than config.json."),
]
For = Annotated[
    EngineName | None,
    typer.Option("--for", help="Write what this engine reads, or refuse where it would read the result wrongly."),
]
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="MODEL_TYPE|same",
        help="The class to write the result for, one that rotates the new layout; by default one that can express this "
        "model, if there is any. same: keep the type.",
    ),
]
Verify = Annotated[bool, typer.Option("--verify", help="Prove the result by forward passes before it gets its name.")]
DestinationOrNone = Annotated[
    Path | None, typer.Argument(metavar="[DST]", help="Directory to write; must not exist. None with --in-place.")
]


def convert(
    ctx: typer.Context,
    src: Source,
    dst: DestinationOrNone = None,
    to: To = None,
    from_: From = None,
    as_: As = None,
    base: Base = None,
    for_: For = None,
    dry_run: DryRun = False,
    verify: Verify = False,
    text: WitnessText = None,
    sync: Sync = None,
    in_place: InPlace = False,
    break_links: BreakLinks = False,
    resume: Resume = False,
    undo: Undo = False,
    trust_remote_code: TrustRemoteCode = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write SRC to DST in the other RoPE layout: the same model, with the rows of q and k in the other order.

    Unless --from says what SRC is, its weights are asked (and with --text the whole model, which is run): where they
    contradict config.json, nothing is written. --in-place makes SRC itself the result; --resume or --undo end that.

    Example: ropetool convert ./Llama-3.1-8B ./Llama-3.1-8B-meta --to interleaved
    """
    from ropetool import convert as verb

    sink = Sink(json, quiet)
    check_together(ctx.params)
    if resume or undo:
        end(src, sink, undo=undo, break_links=break_links)
        return
    if in_place and not dry_run:
        alone(src, sink)
    of_base = local(base, Need.HEADERS, sink) if base else None
    planned = partial(
        verb.plan, destination=dst, to=Pairing(to), declared=from_, written_as=as_, base=of_base, engine=for_,
        trust_remote_code=trust_remote_code, weights_later=not dry_run,
    )  # fmt: skip
    source = local(src, Need.PLAN, sink)
    conversion = planned(source, heard=_heard(source, text, sink, trust_remote_code) if not src.hub else ())
    if dry_run:
        sink.result("converted", verb.preview(conversion), dry_run=True)
        return
    if src.hub:  # its weights are fetched when nothing is left to refuse
        source = local(src, Need.WEIGHTS, sink)
        conversion = planned(source, heard=_heard(source, text, sink, trust_remote_code))
    proof = _Proof(source, sink, trust_remote_code) if verify or conversion.reading.family.probed else None
    try:
        doing, total_bytes = ("moving", conversion.plan.size_bytes) if in_place else ("copying", conversion.total_bytes)
        with sink.bytes_progress(doing, total_bytes) as progress:
            result = verb.apply(conversion, progress, sync=sync, check=proof, break_links=break_links)
    except NotVerifiedError as error:
        raise (proof.show(error) if proof else error) from error
    if proof and not proof.ran:
        sink.talk(f"verified as files; to run it: ropetool verify {src} {dst} --base BASE --base CONVERTED_BASE")
    sink.result("converted", result, verified=bool(proof and proof.ran))


@dataclass
class _Proof:
    """The check of a result before it has its name: forward passes of both."""

    source: Path
    sink: Sink
    trust_remote_code: bool
    verdict: Verification | None = None

    def __call__(self, result: Path) -> bool:
        from ropetool.verify import verify

        with self.sink.others_output():
            self.verdict = verify(self.source, result, talk=self.sink.talk, trust_remote_code=self.trust_remote_code)
        return self.verdict.passed

    @property
    def ran(self) -> bool:
        """Whether the models were run: an adapter is held against its source as a file."""
        return self.verdict is not None and self.verdict.tokens > 0

    def show(self, error: NotVerifiedError) -> typer.Exit:
        """Show what failed."""
        self.sink.talk(error.message)
        self.sink.result("verification", self.verdict)
        return typer.Exit(1)


def _heard(source: Path, text: Path | None, sink: Sink, trust_remote_code: bool) -> tuple[Evidence, ...]:
    """What the source itself says of its layout when it reads a text; nothing without one."""
    if text is None:
        return ()
    from ropetool.models.witnesses import layout_by_text

    if is_adapter(source):
        raise UsageError(f"--text is for a whole checkpoint, and {source} is an adapter; leave it out")
    with sink.others_output():
        evidence = layout_by_text(source, read_text(text), trust_remote_code=trust_remote_code, talk=sink.talk)
    sink.talk(f"the text says {evidence.says}: {evidence.detail}")
    return (evidence,)
