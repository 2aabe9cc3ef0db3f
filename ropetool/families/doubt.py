"""Whether to believe the config about the layout: the weights are asked before anything is made of them."""

from __future__ import annotations

from collections.abc import Sequence

from ropetool.checkpoint.folder import Checkpoint
from ropetool.errors import LayoutContradictedError, NotFetchedError
from ropetool.families.attention_rows import Reader
from ropetool.families.joined import CONTRADICTED, MIXED, UNKNOWN, Verdict, is_sure, join, sentence
from ropetool.families.reading import Evidence, Reading, Warn
from ropetool.families.weights import weights_evidence
from ropetool.rope.layout import Pairing


def ask_weights(checkpoint: Checkpoint | None, reading: Reading, read: Reader | None = None) -> tuple[Evidence, ...]:
    """What the weights say; nothing where there are none, and unknown where only their headers were fetched.

    ``read`` gives the values of a tensor that lies in no file yet.
    """
    if checkpoint is None or not checkpoint.shards:
        return ()
    try:
        return (weights_evidence(checkpoint, reading, read),)
    except NotFetchedError as error:
        return (Evidence("weights", UNKNOWN, error.message),)


def doubts(checkpoint: Checkpoint | None, reading: Reading) -> tuple[Warn, ...]:
    """The headline, where the weights surely are not what the config says."""
    verdict = join((*reading.evidence, *ask_weights(checkpoint, reading)))
    return verdict.warnings if verdict.stops else ()


def check_layout(
    checkpoint: Checkpoint,
    reading: Reading,
    given: Pairing | None,
    heard: Sequence[Evidence] = (),
    read: Reader | None = None,
) -> tuple[Warn, ...]:
    """Hold the config against the weights, and against whoever else was ``heard``, before a conversion.

    Raises `LayoutContradictedError` where they contradict it; a key that does is a warning. Where a person has
    ``given`` the layout, that is what counts, and any contradiction is a warning.
    """
    asked = (*ask_weights(checkpoint, reading, read), *heard)
    if given is None:
        verdict = join((*reading.evidence, *asked))
        if verdict.stops:
            raise _stopped(reading.evidence, asked, verdict)
        return verdict.warnings
    against = [witness for witness in asked if is_sure(witness) and witness.says != given.value]
    if not against:
        return ()
    said = f"{sentence(against)}, and --from {given.value}: it is converted as --from says"
    if any(witness.says == MIXED for witness in against):
        said += ", and no layout of the result is right for all of its rows"
    return (Warn(CONTRADICTED, said),)


def _stopped(declared: Sequence[Evidence], asked: Sequence[Evidence], verdict: Verdict) -> LayoutContradictedError:
    said = declared[0]
    if verdict.warning != CONTRADICTED:
        remedy = "Where you know which it is, give --from half or --from interleaved"
    elif said.source == "marker":
        remedy = f"To go by the marker all the same, give --from {said.says}"
    else:
        remedy = f"Give --from {said.says} to go by the config, or --from {verdict.pairing} to go by what was measured"
    return LayoutContradictedError(
        f"{verdict.headline}. {remedy}; nothing was written",
        warning=verdict.warning,
        declared=said.says,
        measured=verdict.pairing,
        witnesses=[{"source": e.source, "says": e.says, "confidence": e.confidence} for e in (*declared, *asked)],
    )
