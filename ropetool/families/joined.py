"""The verdict: what all witnesses say together of the layout that the weights are in, and what to do about it.

A declared witness (the marker, the class, a key, the names of the tensors) tells what somebody meant. A measured one
(the weights, the text) tells what is there, and goes before it where it is sure. One that cannot see says "unknown",
and does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ropetool.families.reading import Evidence, Warn
from ropetool.rope.layout import Pairing

UNKNOWN, MIXED = "unknown", "mixed"
MEASURED = ("weights", "text")
# How sure a measured witness must be to count: the chance that it puts on what it says.
CONFIDENT = 0.95
# Keys of an evidence's figures: which config key it is, whether the class obeys it, whose format the names are, and the
# projections whose rows the class turns otherwise than the family table says.
KEY, OBEYED, FORMAT, DIFFERS = "key", "class_reads", "format", "differs"
# Codes of the warnings. Of these, all but the last two are about the weights, and stop a conversion.
CONTRADICTED, UNCLEAR, LAYERS_DIFFER = "layout-contradicted", "layout-unclear", "layout-mixed"
KEY_CONTRADICTS, CLASS_DIFFERS = "key-contradicts", "class-contradicts-row"
STOPPING = (CONTRADICTED, UNCLEAR, LAYERS_DIFFER)
_VOICES = {"marker": "the marker", "code": "the class's own code", "weights": "the weights", "text": "the text"}
_THE_CLASS, _THE_NAMES = "the class", "the names of the tensors"


@dataclass(frozen=True)
class Verdict:
    """The layout (half, interleaved, mixed or unknown), how strong that is in words, and the sentence to read.

    ``warning`` is the code of the warning that the headline is, empty where nothing is amiss.
    """

    pairing: str
    strength: str
    headline: str
    warning: str = ""

    @property
    def warnings(self) -> tuple[Warn, ...]:
        """The headline, where a person must read it."""
        return (Warn(self.warning, self.headline),) if self.warning else ()

    @property
    def stops(self) -> bool:
        """Whether what was measured is not what was declared, or is no one layout: nothing to convert blindly."""
        return self.warning in STOPPING


@dataclass(frozen=True)
class _Court:
    """The witnesses who say something, by what they are; ``declared`` is the strongest who measured nothing."""

    declared: Evidence | None
    classes: tuple[Evidence, ...]
    keys: tuple[Evidence, ...]
    sure: tuple[Evidence, ...]
    silent: tuple[Evidence, ...]

    @property
    def others(self) -> tuple[Evidence, ...]:
        """Everyone beside the declared one who speaks of these weights, as the class does not."""
        return (*(key for key in self.keys if key is not self.declared), *self.sure)


def join(witnesses: Sequence[Evidence]) -> Verdict:
    """The verdict on ``witnesses``, of whom the declared ones come in order, the strongest first."""
    court = _court(witnesses)
    return next(verdict for rule in _RULES if (verdict := rule(court)) is not None)


def is_sure(witness: Evidence) -> bool:
    """Whether a measured witness says something, and surely enough to count; one that gives no chance is believed."""
    return witness.says != UNKNOWN and (witness.confidence is None or witness.confidence >= CONFIDENT)


def voice(witness: Evidence) -> str:
    """Who speaks, for a sentence; the row, the class's default and the key that it obeys are one voice."""
    if witness.figures.get(FORMAT):
        return _THE_NAMES
    if witness.figures.get(OBEYED) is False:
        return f"the key {witness.figures[KEY]}"
    return _VOICES.get(witness.source, _THE_CLASS)


def _court(witnesses: Sequence[Evidence]) -> _Court:
    measured = [e for e in witnesses if e.source in MEASURED]
    declaring = [e for e in witnesses if e.source not in MEASURED and e.says != UNKNOWN]
    keys = tuple(e for e in declaring if e.figures.get(OBEYED) is False)
    return _Court(
        declared=declaring[0] if declaring else None,
        classes=tuple(e for e in declaring if e.source in ("family", "code", "config") and _of_class(e)),
        keys=keys,
        sure=tuple(e for e in measured if is_sure(e)),
        silent=tuple(e for e in measured if not is_sure(e)),
    )


def _of_class(witness: Evidence) -> bool:
    return not witness.figures.get(FORMAT) and witness.figures.get(OBEYED) is not False


def _disputed(court: _Court) -> Verdict | None:
    """The measured witnesses are sure, and do not agree."""
    if len({e.says for e in court.sure}) < 2:
        return None
    headline = (
        f"{sentence(court.sure)}: both are sure, and one is wrong, so the layout is not known; hold it against a "
        f"checkpoint that is known to be right: `ropetool verify`"
    )
    return Verdict(UNKNOWN, "the measured witnesses contradict each other", headline, UNCLEAR)


def _mixed(court: _Court) -> Verdict | None:
    """The layers, or q and k, differ: a text can only tell what most of them are."""
    saw = tuple(e for e in court.sure if e.says == MIXED)
    if not saw:
        return None
    headline = (
        f"not all rows are in one layout ({saw[0].detail}): no class runs that right, and a conversion turns all of "
        f"them alike; start again from its source"
    )
    return Verdict(MIXED, f"measured by {_names(saw)}", headline, LAYERS_DIFFER)


def _class_differs(court: _Court) -> Verdict | None:
    """The class itself does not do what the table, or its key, says."""
    rows = [name for witness in court.classes for name in witness.figures.get(DIFFERS, ())]
    if len({e.says for e in court.classes}) < 2 and not rows:
        return None
    known = next(iter(court.sure), court.declared)
    says = known.says if known is not None and known not in court.classes else UNKNOWN
    what = f"the class's own code turns other rows of {_and(rows)} than the family table says"
    headline = (
        f"{what if rows else sentence(court.classes)}: the installed transformers has another class than the one that "
        f"the table was read from, so a conversion or a check by it is not to be trusted; please report it"
    )
    return Verdict(says, "the class contradicts the family table", headline, CLASS_DIFFERS)


def _contradicted(court: _Court) -> Verdict | None:
    """What was measured is not what was declared."""
    declared = court.declared
    if not court.sure or declared is None or court.sure[0].says == declared.says:
        return None
    measured = court.sure[0].says
    against = tuple(e for e in court.others if e.says == measured)
    why = _tampered(court, measured) if declared.source == "marker" else _never_permuted(measured, declared.says)
    headline = f"{sentence((declared, *against))}: {why}"
    strength = f"{_names(against)} against {_names((declared,))}"
    return Verdict(measured, strength, headline, CONTRADICTED)


def _never_permuted(measured: str, declared: str) -> str:
    was = "never permuted" if measured == Pairing.INTERLEAVED.value else "permuted for a class of the other layout"
    mends = f"`ropetool convert SRC DST --from {measured} --to {declared}` mends it"
    return f"this checkpoint was probably {was}; {mends}"


def _tampered(court: _Court, measured: str) -> str:
    """What a marker that is wrong about its weights means, and what is left to do once it is gone."""
    rotated = court.classes[-1].says if court.classes else measured
    then = "the class runs it as it is"
    if rotated != measured:
        then = f"`ropetool convert SRC DST --from {measured} --to {rotated}` makes it what the class rotates"
    return (
        f"the weights were changed since ropetool wrote this checkpoint, or its config.json is another's; take the key "
        f"ropetool out of config.json, and {then}"
    )


def _agreed(court: _Court) -> Verdict | None:
    """What was measured is what was declared, or nobody declared anything."""
    if not court.sure:
        return None
    says = court.sure[0].says
    agreeing = tuple(e for e in (court.declared, *court.others) if e is not None and e.says == says)
    voices = _voices(agreeing)
    strength = f"agreement of {len(voices)} independent witnesses ({_and(voices)})"
    if len(voices) == 1:
        strength = f"measured by {voices[0]}, and declared by nobody"
    return _with_key(court, Verdict(says, strength, f"{says}, by {_and(voices)}"))


def _declared(court: _Court) -> Verdict | None:
    """Nobody measured, or saw anything."""
    if court.declared is None:
        return None
    says, by = court.declared.says, voice(court.declared)
    voices = _voices(e for e in (court.declared, *court.others) if e.says == says)
    agreeing = f", and {_and(voices[1:])}" if voices[1:] else ""
    seen = "nobody looked at the weights: --weights does"
    if court.silent:
        seen = f"{_names(court.silent)} {'do' if _is_plural(court.silent) else 'does'} not show it"
    alone = "not provable from the config" if by == _THE_CLASS else "not measured"
    strength = f"declared by {by}{agreeing}, {alone}"
    return _with_key(court, Verdict(says, strength, f"{says} by {by}{agreeing}; {seen}"))


def _with_key(court: _Court, verdict: Verdict) -> Verdict:
    """The verdict, with those keys of the config that say otherwise: an engine that obeys one is wrong."""
    wrong = tuple(e for e in court.keys if e.says != verdict.pairing)
    if not wrong:
        return verdict
    said = f"{verdict.headline}; but {sentence(wrong)}: {'; '.join(e.detail for e in wrong)}"
    strength = f"{verdict.strength}; contradicted by {_names(wrong)}"
    return Verdict(verdict.pairing, strength, said, verdict.warning or KEY_CONTRADICTS)


def _nobody(court: _Court) -> Verdict:
    return Verdict(UNKNOWN, "no witness", "no witness can tell the layout; `--weights` and `--text FILE` measure it")


# The first that has a verdict gives it.
_RULES = (_mixed, _disputed, _class_differs, _contradicted, _agreed, _declared, _nobody)


def sentence(witnesses: Iterable[Evidence]) -> str:
    """Who says what: "the class says half, the weights and the text say interleaved"."""
    groups: dict[str, list[Evidence]] = {}
    for witness in witnesses:
        groups.setdefault(witness.says, []).append(witness)
    return ", ".join(
        f"{_names(group)} {'say' if _is_plural(group) else 'says'} {says}" for says, group in groups.items()
    )


def _is_plural(group: Sequence[Evidence]) -> bool:
    voices = _voices(group)
    return len(voices) > 1 or voices[0] in (_VOICES["weights"], _THE_NAMES)


def _voices(witnesses: Iterable[Evidence]) -> list[str]:
    return list(dict.fromkeys(voice(witness) for witness in witnesses))


def _names(witnesses: Iterable[Evidence]) -> str:
    return _and(_voices(witnesses))


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else "nobody"
