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
from ropetool.families.attention_rows import LayerRows, sampled_rows
from ropetool.families.reading import Evidence, Reading
from ropetool.rope.pairing import Pairing
from ropetool.rope.signs import Sign, joined, measures_of_layer, signs_of

SOURCE = "weights"
MIXED, UNKNOWN = "mixed", "unknown"
# Untrained rows pass 5 once in two million times; heads as far out as that were right 993 times of 1000 or more.
LEAST_SIGMAS = 5.0
LEAST_EFFECT = 0.05
# Which share of a head turns, where it is not all of it. Of 18 trained models stored as interleaved, the first rows of
# none say half by 1.7 or more.
SHARES = (0.25, 0.4, 0.5, 0.75)
NARROWER_SIGMAS = 2.5


@dataclass(frozen=True)
class LayerVote:
    """What one layer says, each of its signs by name, and what its first rows say by themselves, by their number."""

    layer: str
    vote: Sign
    signs: Mapping[str, Sign]
    narrower: Mapping[int, Sign]


def weights_evidence(checkpoint: Checkpoint, reading: Reading) -> Evidence:
    """What the q and k rows of a checkpoint say of their layout; a few hundred megabytes at most are read.

    "unknown" where they show nothing: untrained, too small, or in a form that is not read as numbers.
    """
    try:
        votes = votes_of(sampled_rows(checkpoint, reading))
    except RopetoolError as error:
        return Evidence(SOURCE, UNKNOWN, f"the q and k rows were not read: {error.message}")
    return verdict_of(votes)


def votes_of(layers: Iterable[LayerRows]) -> list[LayerVote]:
    """The vote of every layer that has any."""
    return [vote for rows in layers if (vote := _vote(rows))]


def _vote(rows: LayerRows) -> LayerVote | None:
    measures = measures_of_layer(rows.q, rows.k) | rows.others
    signs = signs_of(measures)
    vote = joined(signs.values())
    if vote is None:
        return None
    rope_dim = max(values.shape[1] for values in measures.values())
    widths = {int(rope_dim * share / 2) * 2 for share in SHARES}
    narrower = {width: joined(signs_of(measures, width).values()) for width in sorted(widths)}
    return LayerVote(rows.layer, vote, signs, {width: sign for width, sign in narrower.items() if sign})


def verdict_of(votes: Sequence[LayerVote]) -> Evidence:
    """All layers' votes as one: the mean of all signs, if it is firm, and no layer or projection firmly differs."""
    whole = joined(sign for vote in votes for sign in vote.signs.values())
    if whole is None:
        return Evidence(SOURCE, UNKNOWN, "no q or k rows that can be read as numbers, and that rotate, were found")
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
    width = _narrower(votes) if said == Pairing.INTERLEAVED.value else None
    if width is not None:
        detail = (
            f"over all rotated rows they would say interleaved, but the first {width} of each head by themselves say "
        )
        detail += "half: as if fewer rows turned than config.json says, and then neither can be trusted"
        return Evidence(SOURCE, UNKNOWN, detail, figures=figures)
    seen = f"of {len(votes)} layers read, {_counted(votes)}; together {abs(whole.sigmas):.1f} standard deviations"
    if said == UNKNOWN:
        detail = f"the q and k rows show no layout: {seen} of untrained rows (at least {LEAST_SIGMAS:g} are needed)"
        return Evidence(SOURCE, UNKNOWN, detail, figures=figures)
    detail = f"norms and directions of q and k rows follow the frequency as {said}: {seen} from untrained rows"
    return Evidence(SOURCE, said, detail, confidence(whole), figures)


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


def _says(sign: Sign) -> str:
    if abs(sign.sigmas) < LEAST_SIGMAS or abs(sign.effect) < LEAST_EFFECT:
        return UNKNOWN
    return Pairing.HALF.value if sign.effect > 0 else Pairing.INTERLEAVED.value


def _apart(votes: Sequence[LayerVote], by_name: Mapping[str, Sign]) -> tuple[str, float] | None:
    """Which layers, or which of q and k, firmly say another layout than the rest, and how sure that is."""
    of_layers = {says: [v for v in votes if _says(v.vote) == says] for says in (p.value for p in Pairing)}
    if all(of_layers.values()):
        said = (
            f"{len(found)} {'layer says' if len(found) == 1 else 'layers say'} {says} ({_some(found)})"
            for says, found in of_layers.items()
        )
        return ", and ".join(said), min(max(confidence(v.vote) for v in found) for found in of_layers.values())
    q, k = (_says(by_name[name]) if name in by_name else UNKNOWN for name in ("q", "k"))
    if UNKNOWN not in (q, k) and q != k:
        said_apart = f"the q rows say {q}, and the k rows {k}: only one of them was permuted"
        return said_apart, min(confidence(by_name[name]) for name in ("q", "k"))
    return None


def _some(votes: Sequence[LayerVote]) -> str:
    return ", ".join(vote.layer for vote in votes[:4]) + (", ..." if len(votes) > 4 else "")


def _counted(votes: Sequence[LayerVote]) -> str:
    said = [_says(vote.vote) for vote in votes]
    return ", ".join(f"{said.count(s)} say {s}" for s in (*(p.value for p in Pairing), UNKNOWN) if s in said)
