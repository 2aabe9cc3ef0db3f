"""Every rule by which the witnesses are joined, as a row of a table, and the sentences that people copy from."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from ropetool.families import joined
from ropetool.families.joined import CONFIDENT, join
from ropetool.families.reading import Evidence

HALF, INTERLEAVED, MIXED, UNKNOWN = "half", "interleaved", "mixed", "unknown"


def marker(says: str) -> Evidence:
    return Evidence("marker", says, "marked")


def family(says: str) -> Evidence:
    return Evidence("family", says, f"{says} by the class of llama, not provable from the config")


def obeyed(says: str) -> Evidence:
    return Evidence("config", says, "rope_interleave is so")


def key(says: str, name: str = "rope_traditional") -> Evidence:
    return Evidence("config", says, f"{name} is so", figures={"key": name, "class_reads": False})


def names(says: str) -> Evidence:
    return Evidence("config", says, "the tensors have Meta's native names", figures={"format": "meta"})


def code(says: str, *differs: str) -> Evidence:
    return Evidence("code", says, "a tiny model", figures={"differs": list(differs)})


def weights(says: str, confidence: float | None = 0.999) -> Evidence:
    return Evidence(
        "weights", says, "layers 0 and 3 half, 1 and 2 interleaved", None if says == UNKNOWN else confidence
    )


def text(says: str, confidence: float | None = 0.999) -> Evidence:
    return Evidence("text", says, "a gap of 2.1 nats", None if says == UNKNOWN else confidence)


CONTRADICTED, UNCLEAR, LAYERS, KEY, CLASS = (
    "layout-contradicted", "layout-unclear", "layout-mixed", "key-contradicts", "class-contradicts-row",
)  # fmt: skip
# Witnesses, the pairing, the code of the warning, and words that the strength and the headline must have.
RULES = {
    "nobody": ([], UNKNOWN, "", "no witness", "no witness"),
    "class alone": ([family(HALF)], HALF, "", "not provable", "nobody looked at the weights"),
    "marker alone": ([marker(INTERLEAVED), family(HALF)], INTERLEAVED, "", "declared by the marker, not", "--weights"),
    "unknown does not count": (
        [family(HALF), weights(UNKNOWN), text(UNKNOWN)], HALF, "", "declared by the class",
        "the weights and the text do not show it",
    ),
    "unsure does not count": ([family(HALF), weights(INTERLEAVED, 0.94)], HALF, "", "declared", "do not show it"),
    "one that gives no chance is believed": (
        [family(HALF), text(INTERLEAVED, None)], INTERLEAVED, CONTRADICTED, "the text against the class", "the text",
    ),
    "code is the class's own word, and no second witness": (
        [family(HALF), code(HALF)], HALF, "", "declared by the class", "half by the class;",
    ),
    "two agree": (
        [family(HALF), weights(HALF)], HALF, "", "agreement of 2 independent witnesses (the class and the weights)",
        "half, by the class and the weights",
    ),
    "three agree, and code adds none": (
        [family(HALF), code(HALF), weights(HALF), text(HALF)], HALF, "",
        "agreement of 3 independent witnesses (the class, the weights and the text)", "half",
    ),
    "a key agrees": (
        [family(HALF), key(HALF), weights(HALF)], HALF, "",
        "agreement of 3 independent witnesses (the class, the key rope_traditional and the weights)", "half",
    ),
    "converted": (
        [marker(INTERLEAVED), family(HALF), key(INTERLEAVED), weights(INTERLEAVED)], INTERLEAVED, "",
        "agreement of 3 independent witnesses (the marker, the key rope_traditional and the weights)", "interleaved",
    ),
    "one silent, one agrees": (
        [family(HALF), weights(UNKNOWN), text(HALF)], HALF, "", "(the class and the text)", "by the class and the text",
    ),
    "measured, and nobody declared": ([weights(HALF)], HALF, "", "measured by the weights", "half"),
    "never permuted": (
        [family(HALF), weights(INTERLEAVED), text(INTERLEAVED)], INTERLEAVED, CONTRADICTED,
        "the weights and the text against the class",
        "the class says half, the weights and the text say interleaved: this checkpoint was probably never permuted; "
        "`ropetool convert SRC DST --from interleaved --to half` mends it",
    ),
    "never permuted, by the text alone": (
        [family(HALF), weights(UNKNOWN), text(INTERLEAVED)], INTERLEAVED, CONTRADICTED, "the text against the class",
        "the class says half, the text says interleaved: this checkpoint was probably never permuted",
    ),
    "permuted once too often": (
        [obeyed(INTERLEAVED), weights(HALF)], HALF, CONTRADICTED, "the weights against the class",
        "probably permuted for a class of the other layout; `ropetool convert SRC DST --from half --to interleaved`",
    ),
    "a key was right": (
        [family(HALF), key(INTERLEAVED), weights(INTERLEAVED)], INTERLEAVED, CONTRADICTED,
        "the key rope_traditional and the weights against the class",
        "the class says half, the key rope_traditional and the weights say interleaved",
    ),
    "the marker is wrong, the class right": (
        [marker(INTERLEAVED), family(HALF), weights(HALF)], HALF, CONTRADICTED, "the weights against the marker",
        "the marker says interleaved, the weights say half: the weights were changed since ropetool wrote this "
        "checkpoint, or its config.json is another's; take the key ropetool out of config.json, and the class runs it",
    ),
    "the marker and the class are wrong": (
        [marker(HALF), family(HALF), weights(INTERLEAVED)], INTERLEAVED, CONTRADICTED, "against the marker",
        "out of config.json, and `ropetool convert SRC DST --from interleaved --to half` makes it",
    ),
    "the measured ones disagree": (
        [family(HALF), weights(HALF), text(INTERLEAVED)], UNKNOWN, UNCLEAR, "contradict each other",
        "the weights say half, the text says interleaved: both are sure, and one is wrong",
    ),
    "the layers differ": (
        [family(HALF), weights(MIXED)], MIXED, LAYERS, "measured by the weights",
        "layers 0 and 3 half, 1 and 2 interleaved",
    ),
    "the layers differ, and the text says one": (
        [family(HALF), weights(MIXED), text(HALF)], MIXED, LAYERS, "measured by the weights", "not all rows",
    ),
    "a key contradicts": (
        [family(HALF), key(INTERLEAVED)], HALF, KEY, "contradicted by the key rope_traditional",
        "but the key rope_traditional says interleaved",
    ),
    "a key contradicts all": (
        [family(HALF), key(INTERLEAVED), weights(HALF)], HALF, KEY, "agreement of 2", "but the key rope_tradi",
    ),
    "two keys contradict each other": (
        [family(HALF), key(HALF, "rope_interleaved"), key(INTERLEAVED)], HALF, KEY, "and the key rope_interleaved",
        "but the key rope_traditional says interleaved",
    ),
    "native names": (
        [names(INTERLEAVED), family(HALF)], INTERLEAVED, "", "declared by the names of the tensors, not measured",
        "interleaved by the names",
    ),
    "native names that say nothing": ([names(UNKNOWN), family(HALF)], HALF, "", "declared by the class", "half"),
    "the class contradicts its row": (
        [family(HALF), code(INTERLEAVED)], UNKNOWN, CLASS, "the class contradicts",
        "the class says half, the class's own code says interleaved",
    ),
    "the class turns other rows": (
        [family(HALF), code(HALF, "k_proj")], UNKNOWN, CLASS, "", "turns other rows of k_proj than the family table",
    ),
    "the class contradicts its row, the marker holds": (
        [marker(HALF), family(HALF), code(INTERLEAVED)], HALF, CLASS, "", "the class's own code says interleaved",
    ),
    "the class contradicts its row, the weights know": (
        [family(HALF), code(INTERLEAVED), weights(INTERLEAVED)], INTERLEAVED, CLASS, "", "please report it",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("witnesses", "pairing", "warning", "strength", "headline"), RULES.values(), ids=RULES)
def test_every_rule(witnesses: list[Evidence], pairing: str, warning: str, strength: str, headline: str) -> None:
    verdict = join(witnesses)
    assert (verdict.pairing, verdict.warning) == (pairing, warning)
    assert strength in verdict.strength
    assert headline in verdict.headline
    assert [(w.code, w.message) for w in verdict.warnings] == ([(warning, verdict.headline)] if warning else [])
    assert verdict.stops is (warning in (CONTRADICTED, UNCLEAR, LAYERS))


def test_every_rule_has_a_row() -> None:
    """The table would not be whole if a rule gave none of its verdicts."""
    used = {
        next(rule.__name__ for rule in joined._RULES if rule(joined._court(row[0])) is not None)
        for row in RULES.values()
    }
    assert used == {rule.__name__ for rule in joined._RULES}


DECLARED = (
    [],
    [family(HALF)],
    [family(INTERLEAVED)],
    [marker(HALF), family(INTERLEAVED)],
    [names(INTERLEAVED), family(HALF)],
)
SAYS = (HALF, INTERLEAVED, MIXED, UNKNOWN)


@pytest.mark.parametrize("declared", DECLARED, ids=lambda d: "-".join(e.source for e in d) or "nobody")
def test_whatever_is_measured_the_verdict_is_what_the_sure_ones_agree_on(declared: list[Evidence]) -> None:
    """All combinations of two measured witnesses, sure, unsure and silent: none is outvoted by a declaration."""
    kinds = [weights(says, sure) for says, sure in itertools.product(SAYS, (CONFIDENT, CONFIDENT - 0.01))]
    for one, other in itertools.product(kinds, kinds):
        both = [one, replace(other, source="text")]
        sure = {e.says for e in both if e.says != UNKNOWN and (e.confidence or 0) >= CONFIDENT}
        verdict = join([*declared, *both])
        if MIXED in sure:
            assert verdict.pairing == MIXED
        elif len(sure) == 1:
            assert verdict.pairing == sure.copy().pop()
        elif sure:
            assert verdict.pairing == UNKNOWN
        else:
            assert verdict.pairing == join(declared).pairing
        said = declared[0].says if declared else None
        assert verdict.stops is bool(sure and (len(sure) > 1 or MIXED in sure or (said and sure != {said})))


def test_a_witness_that_says_nothing_changes_nothing_but_the_sentence() -> None:
    for witnesses, *_ in RULES.values():
        if any(e.source == "text" for e in witnesses):
            continue
        before, after = join(witnesses), join([*witnesses, text(UNKNOWN)])
        assert (before.pairing, before.warning, before.strength) == (after.pairing, after.warning, after.strength)
