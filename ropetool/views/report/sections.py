"""The parts of the page that need no picture: verdict, facts, witnesses, warnings, engines, checks, losses, passkeys.

Each is made of a report in its JSON form, `views.jsons.report`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ropetool.views.parts import size
from ropetool.views.report.elements import Node, table, tag

Json = Mapping[str, Any]
SHADES = 10
VERDICTS = {"right": "good", "wrong": "bad", "loads-not": "bad", "unknown": "plain"}


def verdict(report: Json) -> list[Node]:
    """Who says what of each checkpoint, what it is, and what a person should know."""
    found = [report, *([report["against"]] if report["against"] else [])]
    nodes = [node for subject in found for node in _headline(subject, several=len(found) > 1)]
    nodes.append(_facts(found))
    nodes += [_witnesses(subject) for subject in found]
    warnings = [*report["warnings"], *(said for subject in found for said in _warnings(subject))]
    return [*nodes, *_warned(warnings)]


def _headline(subject: Json, *, several: bool) -> list[Node]:
    said = subject["inspect"]["verdict"]
    name: list[Node | str] = [tag("b", subject["checkpoint"]), ": "] if several else []
    if said is None:
        return [tag("p", *name, f"no rotation: positions come from {subject['inspect']['scheme']}", class_="verdict")]
    amiss = any(warning["message"] == said["headline"] for warning in subject["inspect"]["warnings"])
    look = "verdict bad" if amiss else "verdict good"
    return [tag("p", *name, said["headline"], class_=look), tag("p", said["strength"], class_="note")]


def _facts(found: Sequence[Json]) -> Node:
    each = [dict(_facts_of(subject)) for subject in found]
    names = dict.fromkeys(name for facts in each for name in facts)
    columns = ["fact", *(subject["checkpoint"] for subject in found)] if len(found) > 1 else ["fact", ""]
    rows = [[name, *(facts.get(name, "–") for facts in each)] for name in names]
    return tag("div", table("What they are" if len(found) > 1 else "What it is", columns, rows), class_="scroll")


def _facts_of(subject: Json) -> Iterable[tuple[str, str]]:
    seen = subject["inspect"]
    yield "model type", seen["model_type"]
    yield "positions", seen["scheme"]
    for place in seen["scheme_detail"]:
        yield place["where"] or "what that means", place["sentence"]
    if seen["pairing"]:
        yield "layout", seen["pairing"]
    for fact in seen["rope"]:
        yield ("rotation" if fact["layers"] == "all" else f"rotation, {fact['layers']}"), _rotation(fact)
    lengths = seen["trained_length"] or {}
    for name, key in (("trained length", "trained"), ("made to serve", "reach")):
        if lengths.get(key):
            yield name, f"{lengths[key]:,} tokens"
    if seen["heads"]:
        yield "heads", f"{seen['heads']['query']} query, {seen['heads']['key_value']} key-value"
    if seen["nope_layers"]:
        yield "layers without rotation", ", ".join(map(str, seen["nope_layers"]))
    if seen["moves"]:
        moves = seen["moves"]
        yield "a conversion moves", f"{moves['tensors']} tensors, {size(moves['bytes'])}, {moves['share']:.1%}"


def _rotation(fact: Json) -> str:
    parts = [fact["type"], f"base {fact['theta']:,.10g}", f"{fact['rotary_dim']} of {fact['head_dim']} rows turn"]
    parts += [f"factor {fact['factor']:g}"] if fact["factor"] else []
    parts += [f"attention factor {fact['attention_factor']:.6g}"] if fact["attention_factor"] != 1 else []
    return ", ".join(parts)


def _witnesses(subject: Json) -> Node:
    rows = [
        [e["source"], e["says"], f"{e['confidence']:.1%}" if e.get("confidence") is not None else "–", e["detail"]]
        for e in subject["inspect"]["evidence"]
    ]
    caption = f"Witnesses of the layout of {subject['checkpoint']}"
    return tag("div", table(caption, ["witness", "says", "how sure", "why"], rows), class_="scroll")


def _warnings(subject: Json) -> list[Json]:
    seen, rope = subject["inspect"], subject["rope"] or {"warnings": []}
    headline = seen["verdict"]["headline"] if seen["verdict"] else None
    left = [w for layers in rope.get("layers", ()) for w in _left(layers)]
    return [*(w for w in seen["warnings"] if w["message"] != headline), *rope["warnings"], *left]


def _left(layers: Json) -> list[Json]:
    """Each method that cannot be had, once: its reason differs with the factor."""
    first = {entry["method"]: entry for entry in reversed(layers["left"])}
    return [
        {"code": "no-method", "message": f"{e['method']} by {e['factor']:g} is not shown: {e['why']}"}
        for e in first.values()
    ]


def _warned(warnings: Iterable[Json]) -> list[Node]:
    lines = [tag("li", tag("code", w["code"]), f" {w['message']}") for w in warnings]
    return [tag("h3", "Warnings"), tag("ul", *lines, class_="warnings")] if lines else []


def engines(report: Json) -> list[Node]:
    """What each engine makes of each checkpoint."""
    found = [report, *([report["against"]] if report["against"] else [])]
    return [tag("div", _engines(subject), class_="scroll") for subject in found]


def _engines(subject: Json) -> Node:
    if not subject["doctor"]:
        return tag("p", f"{subject['checkpoint']}: {subject['no_doctor']}", class_="note")
    rows = [
        [
            " ".join(filter(None, (e["engine"], e["part"], e["version"]))),
            e["origin"],
            tag("span", e["verdict"], class_=f"chip {VERDICTS[e['verdict']]}"),
            e["why"] or ("what is meant" if e["verdict"] == "right" else "–"),
            e["fix"] or "–",
        ]
        for e in subject["doctor"]["engines"]
    ]
    columns = ["engine", "known", "verdict", "what it hears", "what to do"]
    return table(f"What each engine makes of {subject['checkpoint']}", columns, rows)


def verification(found: Json) -> list[Node]:
    """The verdict of verify, and its checks."""
    passed = "passed" if found["passed"] else "FAILED"
    ran = f"{found['tokens']:,} tokens, {found['dtype']} on {found['device']}" if found["tokens"] else "by files alone"
    rows = [
        [c["name"], tag("span", "pass" if c["passed"] else "FAIL", class_=f"chip {'good' if c['passed'] else 'bad'}"),
         _with_culprit(c)]
        for c in found["checks"]
    ]  # fmt: skip
    return [
        tag("p", f"{passed}: {found['relation']}, {ran}", class_=f"verdict {'good' if found['passed'] else 'bad'}"),
        tag(
            "p",
            f"{' and '.join(found['checkpoints'])}{', ' * bool(found['checkpoints'])}as kept in {found['file']}",
            class_="note",
        ),
        tag("div", table("Checks", ["check", "result", "what was found"], rows), class_="scroll"),
    ]


def _with_culprit(check: Json) -> Node:
    where = [tag("code", check["where"])] if check["where"] else []
    return tag("span", check["detail"], " ", *where)


def stretches(found: Json) -> list[Node]:
    """The differences of verify by position."""
    rows = [[f"{s['start']:,}–{s['stop']:,}", _number(s["difference"], ".3g")] for s in found["by_position"]]
    return [table("Largest difference by position", ["positions", "difference"], rows, narrow=False)]


def names(found: Json) -> list[Node]:
    """Whose losses are shown."""
    beside = f" (before, or beside it: {found['against']})" if found["against"] else ""
    said = f"{found['checkpoint']}{beside}; {found['dtype']} on {found['device']}, as kept in {found['file']}"
    return [tag("p", said, class_="note")]


def losses(found: Json) -> list[Node]:
    """Loss by position, in nats a token."""
    columns = ["positions", "loss", *(["of the other", "gain"] if found["against"] else []), "tokens"]
    return [
        table("Next-token loss by position", columns, [_loss_row(b, found) for b in found["lengths"]], narrow=False)
    ]


def _loss_row(b: Json, found: Json) -> list[Node | str]:
    own, other = b["loss"], b["against_loss"]
    gain = None if own is None or other is None else other - own
    beside = [_number(other, ".3f"), _number(gain, "+.3f")] if found["against"] else []
    return [f"{b['start']:,}–{b['stop']:,}", _number(own, ".3f"), *beside, f"{b['tokens']:,}"]


def passkeys(found: Json) -> list[Node]:
    """A grid for each checkpoint: lengths down, depths across."""
    grids = [(found["checkpoint"], "correct"), *([(found["against"], "against_correct")] if found["against"] else [])]
    return [tag("div", _grid(found, name or "", key), class_="scroll grid") for name, key in grids]


def _grid(found: Json, name: str, key: str) -> Node:
    cells = {(cell["length"], cell["depth"]): cell for cell in found["passkey"]}
    lengths, depths = (list(dict.fromkeys(cell[part] for cell in found["passkey"])) for part in ("length", "depth"))
    rows = [[f"{n:,}", *(_cell(cells.get((n, depth)), key) for depth in depths)] for n in lengths]
    columns = ["tokens", *(f"at {depth:.0%}" for depth in depths)]
    return table(f"Passkeys found by {name}", columns, rows, narrow=False)


def _cell(cell: Json | None, key: str) -> Node | str:
    if cell is None or cell[key] is None:
        return "–"
    shade = round(SHADES * cell[key] / cell["trials"])
    return tag("span", f"{cell[key]}/{cell['trials']}", class_=f"share s{shade}")


def searched(found: Json) -> list[Node]:
    """What a search chose and why."""
    gain = f"{_number(found['gain'], '+.4f')} nats a token, 95 % between {_number(found['low'], '+.4f')} and "
    gain += f"{_number(found['high'], '+.4f')}"
    facts = [
        ["written", found["chosen"]],
        ["best of the first part", found["best"]],
        ["default", found["default"]],
        ["gain on text held out", gain],
        *(
            [f"passkeys at {k['length']:,}, held out", f"{k['best']} of {k['trials']}, the default {k['default']}"]
            for k in found["passkey"]
        ),
        ["from and to", f"{found['original_length']:,} trained tokens to {found['length']:,}"],
        ["measured on", found["text"]],
        ["objective", found["objective"]],
    ]
    return [
        tag("p", found["why"], class_=f"verdict {'plain' if found['is_default'] else 'good'}"),
        tag("p", f"{found['output']}, made of {found['checkpoint']}, as kept in {found['file']}", class_="note"),
        tag("div", table("The search", ["fact", ""], facts), class_="scroll"),
        *_deaf(found["deaf"]),
        *(tag("p", note, class_="note") for note in found["notes"]),
    ]


def _deaf(engines: Sequence[Json]) -> list[Node]:
    """The engines that do not turn as was chosen, where there are any."""
    rows = [[e["name"], ", ".join(e["ignores"]) or "–", e["said"] or "turns as meant"] for e in engines]
    columns = ["engine", "does not read", "so"]
    return [tag("div", table("Engines that read it otherwise", columns, rows), class_="scroll")] if rows else []


def search_bins(found: Json) -> list[Node]:
    """Loss by position of the best, the default and no extension, in nats a token."""
    rows = [
        [f"{b['start']:,}–{b['stop']:,}", *(_number(b[key], ".4f") for key in ("best", "default", "none"))]
        for b in found["bins"]
    ]
    return [table("Loss by position", ["positions", "best", "default", "no extension"], rows, narrow=False)]


def search_pairs(found: Json) -> list[Node]:
    """How many times slower each pair turns."""
    rows = [
        [str(p["index"]), _number(p["wavelength"], ",.4g"), _number(p["best"], ".3f"), _number(p["default"], ".3f")]
        for p in found["pairs"]
    ]
    return [table("Factor of each pair", ["pair", "tokens a turn", "best", "default"], rows, narrow=False)]


def search_trials(found: Json) -> list[Node]:
    """Every setting that was measured on the choosing part."""
    rows = [
        [str(t["number"]), t["stage"], f"{t['length']:,}", t["setting"],
         *(_number(t[key], ".4f") for key in ("loss", "penalty", "objective"))]
        for t in found["trials"]
    ]  # fmt: skip
    return [table("All trials", ["trial", "stage", "tokens", "setting", "loss", "penalty", "objective"], rows)]


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)
