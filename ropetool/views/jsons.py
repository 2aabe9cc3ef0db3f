"""Results as JSON objects; the keys are those that scripts rely on."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint.hub import with_ids
from ropetool.families.decoder import no_conversion
from ropetool.families.reading import Evidence, Warn

if TYPE_CHECKING:
    from ropetool.checkpoint.hub_id import Found
    from ropetool.convert import Converted
    from ropetool.detect import Inspection
    from ropetool.diff import Diff
    from ropetool.doctor import Diagnosis, Finding
    from ropetool.engines.heard import Turn
    from ropetool.errors import RopetoolError
    from ropetool.evaluate import Bin, Evaluation, Recall
    from ropetool.extend import Extended
    from ropetool.families.decoder import Composite
    from ropetool.families.family import Family
    from ropetool.families.verdict import Verification
    from ropetool.models.searched import Searched
    from ropetool.served import Served
    from ropetool.views.report.model import Report, Subject


def dumps(value: Mapping[str, Any]) -> str:
    """One JSON object; a number that JSON cannot say (infinite, not a number) becomes null."""
    return json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Enum):
        return value.value
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def _warnings(warnings: Iterable[Warn]) -> list[dict[str, str]]:
    return [{"code": warning.code, "message": with_ids(warning.message)} for warning in warnings]


def inspection(result: Inspection, *, found: Found | None = None) -> dict[str, Any]:
    """``inspect --json``; ``found`` is the repository at the Hub that was read, if it was one."""
    read = {"id": found.repo, "revision": found.revision, "commit": found.commit} if found else None
    said = result.verdict
    verdict = {"pairing": said.pairing, "strength": said.strength, "headline": said.headline} if said else None
    return {
        **asdict(result),
        "evidence": [_evidence(witness) for witness in result.evidence],
        "verdict": verdict,
        "warnings": _warnings(result.warnings),
        **({"hub": read} if read else {}),
    }


def _evidence(witness: Evidence) -> dict[str, Any]:
    """One witness; how sure it is, and its figures, where it has any."""
    said = {"source": witness.source, "says": witness.says, "detail": with_ids(witness.detail)}
    measured = {"confidence": witness.confidence, "figures": witness.figures}
    return said | {key: value for key, value in measured.items() if value not in (None, {})}


def converted(
    result: Converted, *, dry_run: bool = False, verified: bool = False, undone: bool = False
) -> dict[str, Any]:
    """``convert --json``; ``undone`` tells that an interrupted conversion was taken back."""
    return {
        "output": result.output,
        "from": result.source,
        "to": result.target,
        "model_type": result.model_type,
        "written_as": result.written_as,
        "tensors": result.tensors,
        "bytes": result.bytes,
        "seconds": result.seconds,
        "verified": verified,
        "for": asdict(result.engine) if result.engine else None,
        "loads_in": list(result.loads_in),
        "warnings": _warnings(result.warnings),
        "dry_run": dry_run,
        **({"undone": True} if undone else {}),
    }


def extended(result: Extended, *, dry_run: bool = False, searched: Searched | None = None) -> dict[str, Any]:
    """``extend --json``; ``searched`` is the search that the method and its settings are of, if there was one."""
    changed = [{"file": c.file, "key": c.key, "from": c.old, "to": c.new} for c in result.changed]
    told = {**asdict(result), "changed": changed, "warnings": _warnings(result.warnings), "dry_run": dry_run}
    return told | ({"search": _searched(searched)} if searched else {})


def _searched(result: Searched) -> dict[str, Any]:
    bins = [
        {"from": b.start, "to": b.stop, "tokens": b.tokens, "best": b.best, "default": b.default, "none": b.none}
        for b in result.bins
    ]
    gain = {**asdict(result.gain), "beyond_noise": result.gain.beyond_noise}
    warned = _warnings(result.warnings)
    return {**asdict(result), "bins": bins, "gain": gain, "reused": result.reused, "warnings": warned}


def verification(result: Verification) -> dict[str, Any]:
    """``verify --json``."""
    return asdict(result)


def served(result: Served) -> dict[str, Any]:
    """``verify --served --json``."""
    found = result.found
    fits = [{**asdict(fit), "excluded": fit.excluded, "fits_better": fit.fits_better} for fit in found.fits]
    who = {key: value for key, value in asdict(result).items() if key != "found"}
    return {"passed": found.passed, "relation": "served", **who, **asdict(found), "fits": fits}


def difference(result: Diff) -> dict[str, Any]:
    """``diff --json``."""
    differences = [{**asdict(found), **found.facts} for found in result.differences]
    for entry in differences:
        del entry["facts"]
    return {**asdict(result), "same": result.same, "differences": differences, "notes": _warnings(result.notes)}


def evaluation(result: Evaluation) -> dict[str, Any]:
    """``evaluate --json``."""
    summary = {name: part and _bin(part, full=True) for name, part in vars(result.summary).items()}
    cells = [{k: v for k, v in asdict(cell).items() if v is not None} for cell in result.passkey]
    return {
        **asdict(result),
        "lengths": [_bin(b) for b in result.lengths],
        "summary": summary,
        "passkey": cells,
        "warnings": _warnings(result.warnings),
    }


def _bin(b: Bin, *, full: bool = False) -> dict[str, Any]:
    values = {"from": b.start, "to": b.stop, "loss": b.loss, "perplexity": b.perplexity, "tokens": b.tokens}
    against = {} if b.against_loss is None else {"against_loss": b.against_loss}
    return values | against | ({"difference": b.difference} if full and against else {})


def diagnosis(result: Diagnosis) -> dict[str, Any]:
    """``doctor --json``."""
    return {
        "checkpoint": result.checkpoint,
        "model_type": result.model_type,
        "passed": result.passed,
        "means": {"pairing": result.pairing, "length": result.length, "rope": [_turn(turn) for turn in result.truth]},
        "engines": [_finding(finding) for finding in result.findings],
        "warnings": _warnings(result.warnings),
    }


def _finding(found: Finding) -> dict[str, Any]:
    """One engine; the rotation's numbers are those of the first kind of layer, ``rope`` has all."""
    row, heard = found.listener, found.heard
    rope = [_turn(turn) for turn in heard.turns]
    first = rope[0] if rope else dict.fromkeys(("type", "theta", "factor", "attention_factor"))
    return {
        "engine": row.engine.value,
        "part": row.part or None,
        "version": row.version,
        "origin": row.origin.value,
        "source": row.source,
        "pairing": heard.pairing.value if heard.pairing else None,
        "right": None if found.verdict == "unknown" else found.verdict == "right",
        **{key: first[key] for key in ("theta", "type", "factor", "attention_factor")},
        "length": heard.length,
        "rope": rope,
        "ignores": list(heard.ignores),
        "verdict": found.verdict.value,
        "why": found.why,
        "fix": found.fix,
    }


def _turn(turn: Turn) -> dict[str, Any]:
    scaling = turn.scaling
    return {
        "layers": turn.layers,
        "type": scaling.name,
        "theta": scaling.theta,
        "factor": getattr(scaling, "factor", None),
        "original_length": getattr(scaling, "original_length", None),
        "attention_factor": scaling.attention_factor,
        "rotary_dim": turn.rotary_dim,
    }


def report(result: Report) -> dict[str, Any]:
    """``report --json``, and all that its page and its figures show."""
    against = result.against
    return {
        **_subject(result.subject),
        "against": _subject(against) if against else None,
        "verify": asdict(result.verification) if result.verification else None,
        "evaluate": asdict(result.evaluation) if result.evaluation else None,
        "search": asdict(result.search) if result.search else None,
        "warnings": _warnings(result.warnings),
        "written": list(result.written),
    }


def _subject(subject: Subject) -> dict[str, Any]:
    spectrum = subject.spectrum
    rope = {**asdict(spectrum), "warnings": _warnings(spectrum.warnings)} if spectrum else None
    return {
        "checkpoint": subject.inspection.checkpoint,
        "inspect": inspection(subject.inspection),
        "doctor": diagnosis(subject.diagnosis) if subject.diagnosis else None,
        "no_doctor": with_ids(subject.no_diagnosis),
        "rope": rope,
        "no_rope": with_ids(subject.no_spectrum),
    }


def families(rows: Iterable[Family], composites: Iterable[Composite] = ()) -> dict[str, Any]:
    """``families --json``."""
    return {
        "families": [
            {
                "model_type": row.model_type,
                "pairing": row.pairing.value,
                "projections": [*row.projections, *(f"{site}.{m.module}" for site, m in row.elsewhere if m.feeds)],
                "companions": [*row.companions, *(f"{site}.{m.module}" for site, m in row.elsewhere if not m.feeds)],
                "twins": list(row.twins),
                "source": row.source,
                "checked": row.checked,
                "converts": not row.refusal,
                "reason": row.refusal or None,
            }
            for row in rows
        ],
        "composites": [
            {
                "model_type": composite.model_type,
                "text": composite.text_type,
                "path": ".".join(composite.path),
                "towers": list(composite.towers),
                "converts": no_conversion(composite) is None,
                "reason": no_conversion(composite),
            }
            for composite in composites
        ],
    }


def error(raised: RopetoolError) -> dict[str, Any]:
    """What ``--json`` prints for an error."""
    return {"error": {"code": raised.code, "message": with_ids(raised.message), **raised.fields}}


def recall(rows: Iterable[tuple[str, Iterable[Recall]]]) -> dict[str, Any]:
    """Recall by length, one entry per checkpoint."""
    return {name: [asdict(cell) for cell in cells] for name, cells in rows}


def plain(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """A result that is in its JSON form already."""
    return result
