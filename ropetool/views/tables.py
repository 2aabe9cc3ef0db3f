"""Results as tables for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from ropetool.families.decoder import no_conversion
from ropetool.families.joined import STOPPING
from ropetool.views import jsons, search
from ropetool.views.evaluation import evaluation as evaluation
from ropetool.views.evaluation import recall as recall
from ropetool.views.parts import facts as _facts
from ropetool.views.parts import grid as _grid
from ropetool.views.parts import size, warnings
from ropetool.views.report.terminal import figures

if TYPE_CHECKING:
    from ropetool.checkpoint.hub_id import Found
    from ropetool.checkpoint.results import KeptVerification
    from ropetool.convert import Converted
    from ropetool.detect import Inspection, RopeFact
    from ropetool.diff import Diff
    from ropetool.doctor import Diagnosis, Finding
    from ropetool.engines.flags import EngineFlags
    from ropetool.engines.heard import Turn
    from ropetool.engines.writing import WrittenFor
    from ropetool.extend import Extended
    from ropetool.families.decoder import Composite
    from ropetool.families.difference import Difference
    from ropetool.families.family import Family
    from ropetool.families.kv_cache import KvCache
    from ropetool.families.reading import Evidence
    from ropetool.families.verdict import Verification
    from ropetool.models.searched import Searched
    from ropetool.served import Served
    from ropetool.views.report.model import Report


# No confidence is shown as 100 %.
MOST_SAID = 0.999


def _rotation(fact: RopeFact) -> str:
    parts = [f"theta {fact.theta:g} ({fact.theta_source})", f"{fact.rotary_dim} of {fact.head_dim} rows turn"]
    if fact.type != "default":
        parts.insert(0, fact.type)
        parts += [f"factor {fact.factor:g}"] if fact.factor else []
        parts += [f"over {fact.original_length} trained tokens"] if fact.original_length else []
        parts += [f"attention factor {fact.attention_factor:.6g}"]
    return ", ".join(parts)


def inspection(result: Inspection, *, found: Found | None = None) -> RenderableType:
    """What ``inspect`` shows; ``found`` is the repository at the Hub that was read, if it was one."""
    rows: list[tuple[str, RenderableType]] = [("model type", result.model_type), ("scheme", result.scheme)]
    if found:
        rows.insert(0, ("read at", f"{found.revision}, commit {found.commit}"))
    amiss = bool(result.verdict and result.verdict.warning)
    if result.pairing:
        rows.append(("pairing", Text(result.pairing, style="bold red" if amiss else "bold green")))
    if result.verdict:
        rows.append(("  strength", result.verdict.strength))
    rows += [(f"  by {evidence.source}", _testimony(evidence)) for evidence in result.evidence]
    rows += [("rope" if fact.layers == "all" else f"rope, {fact.layers}", _rotation(fact)) for fact in result.rope]
    if result.rope and result.rope[0].length:
        rows.append(("length", f"{result.rope[0].length} tokens"))
    if result.text:
        rows += [("base" if c.layers == "all" else f"base, {c.layers}", c.detail) for c in result.text.bases]
    if result.text and result.trained_length:
        rows.append(("trained length", result.trained_length.detail))
    if result.heads:
        rows.append(("heads", f"{result.heads['query']} query, {result.heads['key_value']} key-value"))
    if result.towers:
        held = ", ".join(f"{name} ({count} tensors)" for name, count in result.towers.items())
        rows.append(("left alone", held))
    if result.moves:
        share = f"{result.moves.share:.1%} of the weights"
        moved = f"{result.moves.tensors} tensors, {size(result.moves.bytes)}, {share}"
        rows.append(("a conversion moves", moved))
    headline = [Text(result.verdict.headline, style="bold red")] if result.verdict and amiss else []
    rest = result.warnings[1:] if headline else result.warnings  # the headline is the first of them
    return Group(*headline, _facts(result.checkpoint, rows), warnings(rest))


def _testimony(evidence: Evidence) -> str:
    """What one witness says, how sure it is of that, and why."""
    chance = evidence.confidence
    sure = "" if chance is None else " (over 99.9% sure)" if chance > MOST_SAID else f" ({chance:.1%} sure)"
    return f"{evidence.says}{sure}: {evidence.detail}"


def converted(
    result: Converted, *, dry_run: bool = False, verified: bool = False, undone: bool = False
) -> RenderableType:
    """What ``convert`` shows."""
    if undone:
        rows = [("layout", f"{result.target}, as before"), ("time", f"{result.seconds:.2f} s")]
        return Group(_facts(f"took the conversion of {result.output} back", rows))
    rows = [
        ("layout", f"{result.source} -> {result.target}"),
        ("moves" if dry_run else "moved", f"{result.tensors} tensors, {size(result.bytes)}"),
    ]
    if result.written_as:
        rows.append(("written as", f"{result.written_as}, whose stock class rotates {result.target}"))
    if not dry_run:
        rows.append(("time", f"{result.seconds:.2f} s"))
    if verified:
        rows.append(("verified", "the logits of both agree, and the wrong layout's do not"))
    if result.engine:
        rows.append(("for", _engine(result.engine)))
    rows.append(("loads in", ", ".join(result.loads_in) or "nothing that is known; see the warnings"))
    title = f"would write {result.output}" if dry_run else f"wrote {result.output}"
    return Group(_facts(title, rows), warnings(result.warnings))


def _engine(engine: WrittenFor) -> str:
    keys = " and ".join(f"{key} {str(value).lower()}" for key, value in engine.keys.items())
    return f"{engine.source} ({engine.origin}): {f'{keys}; ' if keys else ''}{engine.load}"


def extended(result: Extended, *, dry_run: bool = False, searched: Searched | None = None) -> RenderableType:
    """What ``extend`` shows; ``searched`` is the search that the method and its settings are of, if there was one."""
    facts = _facts(
        f"would write {result.output}" if dry_run else f"wrote {result.output}",
        [
            ("method", f"{result.method}, factor {result.factor:g} over {result.original_length} trained tokens"),
            ("length", f"{result.length} tokens"),
            ("theta", f"{result.theta:.10g}"),
            ("attention factor", f"{result.attention_factor:.6g}"),
            ("KV cache", _kv_cache(result.kv_cache)),
        ],
    )
    changes = _grid(
        "changed", ["key", "from", "to"],
        [(f"{c.file}: {c.key}", _short(c.old), _short(c.new)) for c in result.changed],
    )  # fmt: skip
    flags = _grid(
        "to serve it", ["engine", "known", "flags", "note"],
        [(f"{e.engine} {e.part}".strip() + f" {e.version}", e.origin, e.flags or "-", e.note) for e in result.engines],
    )  # fmt: skip
    overrides = Group(*(_without_rewriting(e) for e in result.engines if e.without_rewriting))
    nothing = Text("nothing to change: the source has this extension already")
    found = [search.searched(searched)] if searched else []
    return Group(*found, facts, changes if result.changed else nothing, flags, overrides, warnings(result.warnings))


def _without_rewriting(engine: EngineFlags) -> Text:
    """Flags that serve the original so, on a line of their own, to be copied."""
    return Text.assemble((f"or {engine.engine} on the original: ", "cyan"), engine.without_rewriting)


def _kv_cache(cache: KvCache) -> str:
    """The memory of one sequence, by the dtype of the cache."""
    if not cache.bytes:
        return f"no figure: {cache.note}"
    sizes = " or ".join(f"{size(number)} in {dtype}" for dtype, number in cache.bytes.items())
    grows = f"{size(cache.bytes_per_token['bf16'])} per further token in bf16"
    expanded = (
        f"; {size(cache.expanded_bytes['bf16'])} in bf16 with k and v of every head" if cache.expanded_bytes else ""
    )
    return f"{sizes} for {cache.length} tokens, {grows}{expanded}" + (f"; {cache.note}" if cache.note else "")


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key} {entry}" for key, entry in value.items())
    return "-" if value is None else str(value)


def _mark(passed: bool) -> Text:
    return Text("pass", style="green") if passed else Text("FAIL", style="bold red")


def verification(result: Verification) -> RenderableType:
    """What ``verify`` shows."""
    ran = f"{result.tokens} tokens, {result.dtype} on {result.device}" if result.tokens else "by the files alone"
    head = Text.assemble(
        ("passed" if result.passed else "FAILED", "bold green" if result.passed else "bold red"),
        f": {result.relation}, {ran}",
    )
    checks = _grid("checks", ["check", "", "detail"], [(c.name, _mark(c.passed), c.detail) for c in result.checks])
    if not result.tokens:
        return Group(head, checks, Text(result.tolerance_reason))
    positions = _grid(
        "largest |logit difference| by position", ["positions", "difference"],
        [(f"{b['from']:.0f}-{b['to']:.0f}", f"{b['max_abs_diff']:.2e}") for b in result.by_position],
        numbers=True,
    )  # fmt: skip
    more = Text(
        f"mean KL {result.mean_kl:.2e} nats, same first choice at {result.top1_agreement:.2%} of positions, "
        f"relative difference {result.relative_diff:.2e}"
    )
    return Group(head, checks, positions, more)


ASKED = {"prompt": "the log-probabilities of {} of them", "next": "what follows after {} lengths"}


def served(result: Served) -> RenderableType:
    """What ``verify --served`` shows."""
    found = result.found
    verdict = ("passed: ", "bold green") if found.passed else ("FAILED: ", "bold red")
    facts = _facts(
        result.checkpoint,
        [
            ("server", result.server),
            ("model", result.model),
            ("asked", f"{result.tokens} tokens, {ASKED[result.form].format(result.positions)}"),
            ("here", f"{result.dtype} on {result.device}"),
        ],
    )
    checks = _grid("checks", ["check", "", "detail"], [(c.name, _mark(c.passed), c.detail) for c in found.checks])
    positions = _grid(
        "mean |difference| by position, in nats", ["positions", "difference"],
        [(f"{b['from']:.0f}-{b['to']:.0f}", f"{b['apart']:.2e}") for b in found.by_position],
        numbers=True,
    )  # fmt: skip
    notes = [Text.assemble(("note ", "cyan"), f"so few tokens do not show this: {said}") for said in found.unseen]
    return Group(Text.assemble(verdict, found.headline), facts, checks, positions, *notes)


def difference(result: Diff) -> RenderableType:
    """What ``diff`` shows: tensors that differ alike in one line."""
    head = Text(result.summary, style="bold green" if result.same else "bold")
    compared = f"{result.tensors} tensors compared, {result.turning} of them of q and k" if result.tensors else ""
    alike: dict[tuple[object, ...], list[Difference]] = {}
    for found in result.differences:
        place = re.sub(r"\.\d+\.", ".*.", found.where)
        alike.setdefault((found.what, found.how, found.part_of, str(found.a), str(found.b), place), []).append(found)
    rows = [_alike(lines, str(key[-1])) for key, lines in alike.items()]
    table = _grid(f"{result.a} and {result.b}", ["what", "where", "first", "second", "detail"], rows)
    notes = Group(*(Text.assemble(("note ", "cyan"), (f"[{n.code}] ", "dim"), n.message) for n in result.notes))
    return Group(head, *([Text(compared)] if compared else []), *([table] if rows else []), notes)


def _alike(lines: Sequence[Difference], place: str) -> tuple[str, ...]:
    """One row for differences of one kind; where they say different things, the one with the largest number does."""
    most = max(lines, key=lambda line: line.facts.get("max_abs_diff") or line.facts.get("rows_differing") or 0)
    several = len(lines) > 1
    at_most = "at most: " if len({line.detail for line in lines}) > 1 else ""
    where = f"{place} ({len(lines)})" if several else most.where
    return most.what.value, where, _value(most.a), _value(most.b), f"{at_most}{most.detail}"


def _value(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else _short(value)


def report(result: Report) -> RenderableType:
    """What ``report`` shows: where it wrote something, what; else its parts as tables."""
    if result.written:
        return Group(*(Text(f"wrote {path}") for path in result.written), warnings(result.warnings))
    told = jsons.report(result)
    subjects = [result.subject, *([result.against] if result.against else [])]
    parts: list[RenderableType] = [inspection(subject.inspection) for subject in subjects]
    parts += [*figures(told)]
    if result.verification:
        parts.append(_kept(result.verification))
    parts += [diagnosis(subject.diagnosis) for subject in subjects if subject.diagnosis]
    of_spectrum = [warning for subject in subjects if subject.spectrum for warning in subject.spectrum.warnings]
    return Group(*parts, warnings((*result.warnings, *of_spectrum)))


def _kept(found: KeptVerification) -> RenderableType:
    head = Text.assemble("verify: ", _mark(found.passed), f" {found.relation}, as kept in {found.file}")
    return Group(
        head, _grid("checks", ["check", "", "detail"], [(c.name, _mark(c.passed), c.detail) for c in found.checks])
    )


VERDICT_STYLES = {"right": "green", "wrong": "bold red", "loads-not": "bold red", "unknown": "yellow"}


def diagnosis(result: Diagnosis) -> RenderableType:
    """What ``doctor`` shows: what the checkpoint means, then each engine with what it hears otherwise."""
    means = [("rope" if turn.layers == "all" else f"rope, {turn.layers}", _turn(turn)) for turn in result.truth]
    means = means or [("rope", "its keys contradict each other; see the warning")]
    facts = [*means, ("weights", result.pairing), *([("length", f"{result.length} tokens")] if result.length else [])]
    rows = [_finding_row(finding, clear=bool(result.truth)) for finding in result.findings]
    table = _grid("what each engine makes of it", ["engine", "known", "verdict", "what it hears", "what to do"], rows)
    doubts = [Text(warning.message, style="bold red") for warning in result.warnings if warning.code in STOPPING]
    rest = [warning for warning in result.warnings if warning.code not in STOPPING]
    return Group(*doubts, _facts(f"{result.checkpoint} ({result.model_type})", facts), table, warnings(rest))


def _finding_row(found: Finding, *, clear: bool) -> list[RenderableType]:
    row, heard = found.listener, found.heard
    hears = [found.why] if found.why and clear else []
    hears += ["what is meant"] if found.verdict == "right" else []
    hears += [] if hears or not heard.turns else [_turn(heard.turns[0])]
    hears += [] if clear or not heard.refusal else [heard.refusal]
    hears += [f"passes over {', '.join(heard.ignores)}"] if heard.ignores and found.verdict != "right" else []
    name = f"{row.engine.value} {row.part}".strip()
    verdict = Text(found.verdict.value, style=VERDICT_STYLES[found.verdict.value])
    return [f"{name} {row.version}", row.origin.value, verdict, "\n".join(hears) or "-", found.fix or "-"]


def _turn(turn: Turn) -> str:
    scaling = turn.scaling
    parts = [] if scaling.name == "default" else [scaling.name]
    parts += [f"theta {scaling.theta:.8g}"]
    factor, original = getattr(scaling, "factor", None), getattr(scaling, "original_length", None)
    parts += [f"factor {factor:.8g}"] if factor else []
    parts += [f"over {original} tokens"] if original else []
    parts += [f"attention factor {scaling.attention_factor:.6g}"] if scaling.attention_factor != 1 else []
    return ", ".join(parts)


def families(rows: Sequence[Family], composites: Sequence[Composite] = ()) -> RenderableType:
    """What ``families`` shows."""
    types = _grid(
        f"{len(rows)} model types", ["model type", "pairing", "moves", "twins", "source", "checked"],
        [(r.model_type, r.pairing.value, _moves(r), ", ".join(r.twins), r.source, r.checked) for r in rows],
    )  # fmt: skip
    return Group(types, _composites(composites)) if composites else types


def _composites(composites: Sequence[Composite]) -> RenderableType:
    """The multimodal types, which are read by the row of their text decoder."""
    return _grid(
        f"{len(composites)} multimodal model types",
        ["model type", "text decoder", "its config", "left alone", "converts"],
        [
            (c.model_type, c.text_type, ".".join(c.path) or "-", ", ".join(c.towers) or "-",
             f"no: {reason}" if (reason := no_conversion(c)) else "yes")
            for c in composites
        ],
    )  # fmt: skip


def _moves(row: Family) -> str:
    elsewhere = (f"{site}.{moved.module}" for site, moved in row.elsewhere)
    moves = ", ".join((*row.projections, *row.companions, *elsewhere))
    return "nothing: it is refused" if row.refusal else moves
