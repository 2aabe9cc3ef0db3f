"""Doctor: what every engine will make of a checkpoint's rope keys, before it is served.

Reads config.json, and where there are weights some rows of q and k, which may contradict it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from ropetool.checkpoint.folder import has_guard, open_checkpoint, read_config
from ropetool.engines.compare import faults
from ropetool.engines.heard import Case, Heard, Listener, Turn
from ropetool.engines.listeners import LISTENERS
from ropetool.engines.names import EngineName
from ropetool.engines.opening import open_case
from ropetool.engines.repair import find_edit, sentence, takes_a_new_base
from ropetool.errors import RopetoolError
from ropetool.families.doubt import ask_weights
from ropetool.families.joined import LAYERS_DIFFER, STOPPING, UNCLEAR, join
from ropetool.families.reading import Warn
from ropetool.rope.frequencies import Default
from ropetool.rope.layout import Pairing


class Verdict(str, Enum):
    """What an engine will do with a checkpoint."""

    RIGHT = "right"
    WRONG = "wrong"
    LOADS_NOT = "loads-not"
    UNKNOWN = "unknown"


# Verdicts that make the check fail. Unknown alone is no finding.
FOUND = (Verdict.WRONG, Verdict.LOADS_NOT)


@dataclass(frozen=True)
class Finding:
    """One engine: what it hears, the verdict with its reason in a clause, and what to do about it in a sentence."""

    listener: Listener
    heard: Heard
    verdict: Verdict
    why: str
    fix: str


@dataclass(frozen=True)
class Diagnosis:
    """The findings on one checkpoint; ``truth`` is what it means, empty where its keys contradict each other."""

    checkpoint: str
    model_type: str
    truth: tuple[Turn, ...]
    pairing: str
    length: int | None
    findings: tuple[Finding, ...]
    warnings: tuple[Warn, ...]

    @property
    def passed(self) -> bool:
        """Whether config and weights agree and are clear, and no engine reads them wrongly or refuses them."""
        doubted = any(warning.code in STOPPING for warning in self.warnings)
        return bool(self.truth) and not doubted and not any(finding.verdict in FOUND for finding in self.findings)


def diagnose(path: Path, *, engine: EngineName | None = None, length: int | None = None) -> Diagnosis:
    """Ask every row (or those of ``engine``) what it hears in the config at ``path``, for serving ``length`` tokens.

    A config whose keys contradict each other is not refused: it is read differently by different engines, and that is
    told. Where the weights surely contradict the config, what an engine hears is held against the weights.

    Raises `NoRotaryError` where nothing rotates, `ConfigError` or `UnknownFamilyError` for what nothing can read.
    """
    case, doubts = _held_against_weights(path, open_case(read_config(path)))
    several = any(doubt.code in (LAYERS_DIFFER, UNCLEAR) for doubt in doubts)
    rows = [row for row in LISTENERS if engine in (None, row.engine)]
    guarded = has_guard(path)
    findings = tuple(_guarded(row, case) if guarded else _finding(row, case, length) for row in rows)
    findings = tuple(_unsettled(finding) if several else finding for finding in findings)
    reading = case.reading
    truth = () if case.conflict else tuple(
        Turn(rotation.layers, rotation.scaling, rotation.geometry.rotary_dim) for rotation in reading.rotations
    )  # fmt: skip
    return Diagnosis(
        str(path), reading.model_type, truth, reading.pairing.value, case.reading.reach, findings,
        (*doubts, *_warnings(case, length)),
    )  # fmt: skip


def _held_against_weights(path: Path, case: Case) -> tuple[Case, tuple[Warn, ...]]:
    """The case with the layout that the weights have, and a warning where that is not what the config says."""
    try:
        checkpoint = open_checkpoint(path)
    except RopetoolError:  # no weights, or none to be read: doctor is about the config
        return case, ()
    verdict = join((*case.reading.evidence, *ask_weights(checkpoint, case.reading)))
    if not verdict.stops:
        return case, ()
    if verdict.pairing in tuple(Pairing):
        case = replace(case, reading=replace(case.reading, pairing=Pairing(verdict.pairing)))
    return case, verdict.warnings


def _unsettled(finding: Finding) -> Finding:
    """No engine is right about rows that are in no one layout."""
    if finding.verdict is not Verdict.RIGHT:
        return finding
    why = "config.json is heard right, and the rows are not in one layout"
    return replace(finding, verdict=Verdict.UNKNOWN, why=why, fix="start again from the checkpoint's source")


def _guarded(listener: Listener, case: Case) -> Finding:
    """The guard stops every reader of config.json alike, and says why."""
    stock = case.reading.class_pairing.value
    heard = Heard(refusal="config.json is guarded: the weights are in a layout that the stock class does not rotate")
    fix = f"ropetool convert SRC DST --to {stock}, or in Python ropetool.load(path)"
    return Finding(listener, heard, Verdict.LOADS_NOT, heard.refusal, fix)


def _finding(listener: Listener, case: Case, length: int | None) -> Finding:
    heard = listener.hears(case)
    advice = heard.advice or listener.note
    if heard.refusal:
        return Finding(listener, heard, Verdict.LOADS_NOT, heard.refusal, _fix(listener, case, heard, length))
    if case.conflict:
        why = heard.unknown or "config.json contradicts itself"
        return Finding(listener, heard, Verdict.UNKNOWN, why, "make the keys agree")
    found = faults(case, heard, length) if heard.turns else ()
    if found:
        why = "; ".join(fault.said for fault in found)
        return Finding(listener, heard, Verdict.WRONG, why, _fix(listener, case, heard, length))
    if heard.unknown or heard.pairing is None:
        why = heard.unknown or f"no class for {case.reading.model_type} was read in its source"
        return Finding(listener, heard, Verdict.UNKNOWN, why, advice)
    return Finding(listener, heard, Verdict.RIGHT, "", advice)


def _fix(listener: Listener, case: Case, heard: Heard, length: int | None) -> str:
    """One sentence with something to copy: an edit that the row itself was tried with, a flag, or a command."""
    if case.conflict:
        return "make the keys agree"
    found = () if heard.refusal else faults(case, heard, length)
    about = {fault.about for fault in found}
    if about == {"length"}:
        return "; ".join(filter(None, (_length_fix(listener, case, heard, length), heard.advice)))
    edit = find_edit(case, listener, length)
    if edit is not None:
        return sentence(case, edit[0], listener.override)
    if not heard.refusal and listener.flags(case):
        return listener.flags(case)
    if about == {"pairing"} and heard.pairing is not None:
        stored = case.reading.pairing.value
        source = "" if stored == case.reading.evidence[0].says else f"--from {stored} "
        return f"ropetool convert SRC DST {source}--to {heard.pairing.value} --for {listener.engine.value}"
    right = [f"{row.engine.value} {row.version}" for row in LISTENERS if _is_right(row, case, length)]
    served = [f"serve it with {right[0]}"] if right else []
    return ", or ".join(served + _as_base_alone(listener, case)) or "no edit of config.json helps"


def _as_base_alone(listener: Listener, case: Case) -> list[str]:
    """NTK-aware scaling is a new base and no block: what an engine may read that does not know the scaling."""
    scaling, length = case.reading.rotations[0].scaling, case.reading.reach
    if isinstance(scaling, Default) or length is None or not takes_a_new_base(case, listener):
        return []
    return [f"give it a new base alone: ropetool extend SRC DST --method ntk --to {length} --replace"]


def _is_right(listener: Listener, case: Case, length: int | None) -> bool:
    heard = listener.hears(case)
    clear = heard.pairing is not None and not (heard.refusal or heard.unknown)
    return clear and not faults(case, heard, length)


def _length_fix(listener: Listener, case: Case, heard: Heard, length: int | None) -> str:
    wanted = length or case.reading.reach
    short = heard.length is not None and wanted is not None and heard.length < wanted
    if not listener.length_flag or (short and not listener.flag_lifts):
        return f'set "max_position_embeddings": {wanted} in config.json'
    return listener.length_flag.format(wanted)


def _warnings(case: Case, length: int | None) -> tuple[Warn, ...]:
    found = list(case.reading.warnings)
    if case.conflict:
        found = [Warn("config-conflict", f"engines read this config differently, without a word: {case.conflict}")]
    usable = case.reading.reach
    if length is not None and usable is not None and length > usable:
        said = f"it is made for {usable} tokens, not {length}: ropetool extend SRC DST --method yarn --to {length}"
        found.append(Warn("beyond-length", said))
    return tuple(found)
