"""The weights as a witness of their layout: what the q and k rows of a sample of layers show, without running them.

Every sign (`rope.signs`) of every layer is a vote, in standard deviations of rows that know no frequency. One layer, or
q alone, that votes firmly for the other layout than the rest was permuted by itself: that is "mixed".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp

from ropetool.checkpoint.folder import Checkpoint
from ropetool.errors import RopetoolError
from ropetool.families.attention_rows import LayerRows, Reader, sampled_rows
from ropetool.families.reading import Evidence, Reading
from ropetool.rope.pairing import Pairing
from ropetool.rope.signs import Angles, Seen, Sign, TwinAngles, joined, seen_in_layer, signs_of

SOURCE = "weights"
MIXED, UNKNOWN = "mixed", "unknown"
# Untrained rows pass 5 once in two million times; heads as far out as that were right 993 times of 1000 or more.
LEAST_SIGMAS = 5.0
LEAST_EFFECT = 0.05
# Which share of a head turns, where it is not all of it. Of 18 trained models stored as interleaved, the first rows of
# none say half by 1.7 or more.
SHARES = (0.25, 0.4, 0.5, 0.75)
NARROWER_SIGMAS = 2.5
# A layer that is out by so much the other way is one too many.
CONTRARY_SIGMAS = 3.0
# Where some layers say one layout and some the other, each side has to be out by so much.
LAYER_SIGMAS = 4.0
# By how much the angles must speak for a layout against its twin. A trend over a head, whatever it is from, looks
# interleaved, so that has to show its pairs; a saw's teeth do not come by chance.
LEAST_SUPPORT = {Pairing.INTERLEAVED: 2.5, Pairing.HALF: -2.0}


@dataclass(frozen=True)
class LayerVote:
    """What one layer says, and each of its signs by name.

    ``narrower`` is what its first rows say by themselves, by their number; ``angles`` are those of `Seen`.
    """

    layer: str
    vote: Sign
    signs: Mapping[str, Sign]
    narrower: Mapping[int, Sign]
    angles: Mapping[Pairing, Mapping[str, TwinAngles]]


def weights_evidence(checkpoint: Checkpoint, reading: Reading, read: Reader | None = None) -> Evidence:
    """What the q and k rows of a checkpoint say of their layout; about a hundred megabytes are read at most.

    ``read`` gives the values of a tensor that lies in no file. "unknown" where they show nothing: untrained, too small,
    or in a form that is not read as numbers.
    """
    try:
        sample = sampled_rows(checkpoint, reading, read)
        votes, spoiled = _votes(sample.layers)
    except RopetoolError as error:
        return Evidence(SOURCE, UNKNOWN, f"the q and k rows were not read: {error.message}")
    if spoiled:
        said = f"rows that are no numbers, or all zero: {', '.join(spoiled[:4])}{', ...' if spoiled[4:] else ''}"
        return Evidence(SOURCE, UNKNOWN, said)
    return verdict_of(votes, sample.rotating)


def _votes(layers: Iterable[LayerRows]) -> tuple[list[LayerVote], list[str]]:
    """The vote of every layer that has any, and which of q and k have nothing to say; one layer in memory at a time."""
    votes, spoiled = [], []
    for rows in layers:
        seen = seen_in_layer(rows.q, rows.k)
        spoiled += [f"{name} of {rows.layer}" for name in seen.spoiled]
        vote = _vote(rows, seen)
        votes += [vote] if vote else []
    return votes, spoiled


def _vote(rows: LayerRows, seen: Seen) -> LayerVote | None:
    measures = seen.measures | rows.others
    signs = signs_of(measures)
    vote = joined(signs.values())
    if vote is None:
        return None
    rope_dim = max(values.shape[1] for values in measures.values())
    widths = {int(rope_dim * share / 2) * 2 for share in SHARES}
    narrower = {width: joined(signs_of(measures, width).values()) for width in sorted(widths)}
    return LayerVote(rows.layer, vote, signs, {width: sign for width, sign in narrower.items() if sign}, seen.angles)


def verdict_of(votes: Sequence[LayerVote], rotating: int) -> Evidence:
    """All layers' votes as one: the mean of all signs, if it is firm, and no layer or projection firmly differs."""
    whole = joined(sign for vote in votes for sign in vote.signs.values())
    if whole is None:
        detail = f"of {rotating} layers with q and k rows that are read as numbers, none has heads of 8 rotated rows"
        return Evidence(SOURCE, UNKNOWN, f"{detail} or more that are not all alike")
    named: dict[str, list[Sign]] = {}
    for vote in votes:
        for name, sign in vote.signs.items():
            named.setdefault(name, []).append(sign)
    by_name = {name: total for name, signs in named.items() if (total := joined(signs))}
    figures = {
        **_rounded(whole),
        "layers": [
            {
                "layer": v.layer,
                "says": _says(v.vote),
                "sigmas": round(v.vote.sigmas, 2),
                "effect": round(v.vote.effect, 4),
            }
            for v in votes
        ],
        "signs": {name: round(sign.sigmas, 2) for name, sign in by_name.items()},
    }
    apart = _apart(votes, by_name)
    if apart:
        return Evidence(SOURCE, MIXED, *apart, figures)
    said = _says(whole)
    of = f"{len(votes)} of {rotating}" if len(votes) < rotating else str(rotating)
    seen = f"of {of} layers, {_counted(votes)}; together {abs(whole.sigmas):.1f} standard deviations"
    if said == UNKNOWN:
        detail = f"the q and k rows show no layout: {seen} of untrained rows (at least {LEAST_SIGMAS:g} are needed)"
        return Evidence(SOURCE, UNKNOWN, detail, figures=figures)
    objection = _objection(votes, Pairing(said))
    if objection:
        return Evidence(
            SOURCE, UNKNOWN, f"the curves of q and k rows would say {said}, but {objection}", figures=figures
        )
    detail = f"norms and directions of q and k rows follow the frequency as {said}: {seen} from untrained rows"
    return Evidence(SOURCE, said, detail, confidence(whole), figures)


def _objection(votes: Sequence[LayerVote], said: Pairing) -> str:
    """Why what the curves say is not believed, empty where nothing speaks against it."""
    contrary = [v for v in votes if v.vote.sigmas * (1 if said is Pairing.HALF else -1) < -CONTRARY_SIGMAS]
    if contrary:
        return f"{_some(contrary)} speaks against it"
    width = _narrower(votes) if said is Pairing.INTERLEAVED else None
    if width is not None:
        return (
            f"the first {width} of each head by themselves say half: as if fewer rows turned than config.json says, "
            f"and then neither can be trusted"
        )
    return _unsupported(votes, said)


def _unsupported(votes: Sequence[LayerVote], said: Pairing, parts: str = "qk") -> str:
    """Whether the angles leave it open that the layout's twin is there; empty where they do not."""
    known = [vote.angles[said][part] for vote in votes for part in parts if part in vote.angles.get(said, {})]
    own, twin = (sum((both[i] for both in known), Angles()).sigmas for i in (0, 1))
    if not known or twin - own >= LEAST_SUPPORT[said]:
        return ""
    other = "twice" if said is Pairing.INTERLEAVED else "half"
    return (
        f"the angles between rows do not show its pairs ({own:+.1f} standard deviations), nor rule out "
        f"{said.other.value} in heads of {other} the size ({twin:+.1f}): check head_dim and the head counts in "
        f"config.json"
    )


def confidence(sign: Sign) -> float:
    """The chance that a sign is right: the logistic function of its standard deviations.

    So it was measured on single heads, the weakest signs there are, of trained models in both layouts: the slope that
    fits them best is 1.07 (benchmarks/witnesses.py).
    """
    return round(1 / (1 + exp(-abs(sign.sigmas))), 4)


def _narrower(votes: Sequence[LayerVote]) -> int | None:
    """A number of first rows that say half by themselves; None where there is none.

    Where fewer rows turn than config.json says, those that do not stand apart from those that do, which a curve over
    all of them takes for the interleaved layout.
    """
    for width in sorted({width for vote in votes for width in vote.narrower}):
        sign = joined(vote.narrower[width] for vote in votes if width in vote.narrower)
        if sign is not None and sign.sigmas > NARROWER_SIGMAS:
            return width
    return None


def _rounded(sign: Sign) -> dict[str, float]:
    return {"sigmas": round(sign.sigmas, 2), "effect": round(sign.effect, 4)}


def _says(sign: Sign, least_sigmas: float = LEAST_SIGMAS) -> str:
    if abs(sign.sigmas) < least_sigmas or abs(sign.effect) < LEAST_EFFECT:
        return UNKNOWN
    return Pairing.HALF.value if sign.effect > 0 else Pairing.INTERLEAVED.value


def _apart(votes: Sequence[LayerVote], by_name: Mapping[str, Sign]) -> tuple[str, float] | None:
    """Which layers, or which of q and k, firmly say another layout than the rest, and how sure that is."""
    of_layers = {pairing: [v for v in votes if _says(v.vote, LAYER_SIGMAS) == pairing.value] for pairing in Pairing}
    if all(found and not _unsupported(found, pairing) for pairing, found in of_layers.items()):
        said = (
            f"{len(found)} {'layer says' if len(found) == 1 else 'layers say'} {pairing.value} ({_some(found)})"
            for pairing, found in of_layers.items()
        )
        return ", and ".join(said), min(max(confidence(v.vote) for v in found) for found in of_layers.values())
    q, k = (_says(by_name[name]) if name in by_name else UNKNOWN for name in ("q", "k"))
    if UNKNOWN in (q, k) or q == k or any(_unsupported(votes, Pairing(s), part) for s, part in ((q, "q"), (k, "k"))):
        return None
    said_apart = f"the q rows say {q}, and the k rows {k}: only one of them was permuted"
    return said_apart, min(confidence(by_name[name]) for name in ("q", "k"))


def _some(votes: Sequence[LayerVote]) -> str:
    return ", ".join(vote.layer for vote in votes[:4]) + (", ..." if len(votes) > 4 else "")


def _counted(votes: Sequence[LayerVote]) -> str:
    said = [_says(vote.vote) for vote in votes]
    return ", ".join(
        f"{said.count(s)} {'says' if said.count(s) == 1 else 'say'} {s}"
        for s in (*(p.value for p in Pairing), UNKNOWN)
        if s in said
    )
