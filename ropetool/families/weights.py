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
from ropetool.rope.signs import Sign, joined, signs_of_layer

SOURCE = "weights"
MIXED, UNKNOWN = "mixed", "unknown"
# Random weights pass 6 once in 500 million; what a model shows is told apart from chance by far more (see the README).
LEAST_SIGMAS = 6.0
LEAST_EFFECT = 0.08


@dataclass(frozen=True)
class LayerVote:
    """What one layer says, and each of its signs by name."""

    layer: str
    vote: Sign
    signs: Mapping[str, Sign]


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
    found = ((rows.layer, signs_of_layer(rows.q, rows.k, rows.others)) for rows in layers)
    return [LayerVote(layer, vote, signs) for layer, signs in found if (vote := joined(signs.values()))]


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
        return Evidence(SOURCE, MIXED, apart, figures=figures)
    said = _says(whole)
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


def _rounded(sign: Sign) -> dict[str, float]:
    return {"sigmas": round(sign.sigmas, 2), "effect": round(sign.effect, 4)}


def _says(sign: Sign) -> str:
    if abs(sign.sigmas) < LEAST_SIGMAS or abs(sign.effect) < LEAST_EFFECT:
        return UNKNOWN
    return Pairing.HALF.value if sign.effect > 0 else Pairing.INTERLEAVED.value


def _apart(votes: Sequence[LayerVote], by_name: Mapping[str, Sign]) -> str:
    """Which layers, or which of q and k, firmly say another layout than the rest; empty where none does."""
    of_layers = {says: [v.layer for v in votes if _says(v.vote) == says] for says in (p.value for p in Pairing)}
    if all(of_layers.values()):
        fewer = min(of_layers, key=lambda says: len(of_layers[says]))
        other = Pairing(fewer).other.value
        named = ", ".join(of_layers[fewer][:4]) + (", ..." if len(of_layers[fewer]) > 4 else "")
        return f"{len(of_layers[fewer])} layers say {fewer} ({named}), and {len(of_layers[other])} say {other}"
    q, k = (_says(by_name[name]) if name in by_name else UNKNOWN for name in ("q", "k"))
    if UNKNOWN not in (q, k) and q != k:
        return f"the q rows say {q}, and the k rows {k}: only one of them was permuted"
    return ""


def _counted(votes: Sequence[LayerVote]) -> str:
    said = [_says(vote.vote) for vote in votes]
    return ", ".join(f"{said.count(s)} say {s}" for s in (*(p.value for p in Pairing), UNKNOWN) if s in said)
