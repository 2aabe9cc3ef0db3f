"""A report as tables with small bars, for those who stay in the shell; its other parts are other commands' views."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ropetool.views.parts import grid

Json = Mapping[str, Any]
BAR_CELLS = 16
# Enough pairs to see the bands.
MOST_PAIRS = 16
FULL, HALF, MARK = "\u2588", "\u258c", "\u2502"


def bands(layers: Json) -> RenderableType:
    """The wavelength of some pairs as bars on a logarithmic axis, and how many times slower each method turns them."""
    own, plain = layers["ways"][0], next(way for way in layers["ways"] if way["method"] == "none")
    shown = [way for way in layers["ways"] if way["factor"] == layers["shown_factor"] and way["method"] != "own"]
    longest = max([w for w in (*own["wavelength"], *plain["wavelength"]) if w] + [layers["trained"] or 1])
    axis = math.log(max(longest, 10.0))
    rows = [_pair_row(pair, own, plain, shown, layers["trained"], axis) for pair in _spread(len(own["inv_freq"]))]
    which = "" if layers["layers"] == "all" else f", {layers['layers']} layers"
    which += f" (they look back {layers['window']:,} tokens)" if layers["window"] else ""
    trained = f"{MARK} {layers['trained']:,} trained tokens" if layers["trained"] else "trained length unknown"
    columns = ["pair", "tokens a turn", "on a log axis", "turns in training", "as it is"]
    columns += [f"{way['method']} x{way['factor']:g}" for way in shown]
    title = (
        f"frequency bands{which}, {trained}; turns in training are without scaling; then how many times slower each "
        "method turns a pair"
    )
    table = grid(title, columns, rows, numbers=True)
    bars = table.columns[columns.index("on a log axis")]
    bars.no_wrap, bars.justify = True, "left"
    return Group(table, Text(_never(plain), style="dim"))


def _never(plain: Json) -> str:
    if plain["turns"] is None:
        return ""
    never = sum(turns < 1 for turns in plain["turns"])
    return f"{never} of {len(plain['turns'])} pairs completed no turn in training, without scaling"


def _pair_row(
    pair: int, own: Json, plain: Json, shown: Sequence[Json], trained: int | None, axis: float
) -> list[RenderableType]:
    length = own["wavelength"][pair]
    turns = plain["turns"][pair] if plain["turns"] else None
    slower = [_times(way["slower"][pair]) for way in (own, *shown)]
    return [
        str(pair),
        f"{length:,.4g}" if length and length < 1000 else f"{length:,.0f}" if length else "never",
        _bar(length, trained, axis),
        "–" if turns is None else f"{turns:,.3g}",
        *slower,
    ]


def _times(slower: float | None) -> str:
    return "–" if slower is None else f"{slower:.3g}"


def _bar(length: float | None, trained: int | None, axis: float) -> Text:
    """A bar of the logarithm of ``length``, yellow beyond the trained length, which is marked."""
    cells = [" "] * (BAR_CELLS + 1)
    size = math.log(max(length, 1.0)) / axis * BAR_CELLS if length else 0.0
    for at in range(int(size)):
        cells[at] = FULL
    if size % 1 >= 0.5:
        cells[int(size)] = HALF
    if trained:
        at = min(int(math.log(max(trained, 1)) / axis * BAR_CELLS), BAR_CELLS)
        cells[at] = MARK
    style = "yellow" if length and trained and length > trained else "cyan"
    return Text("".join(cells), style=style)


def _spread(count: int) -> list[int]:
    taken = min(count, MOST_PAIRS)
    return [round(at * (count - 1) / max(taken - 1, 1)) for at in range(taken)]


def losses(found: Json) -> RenderableType:
    """Loss by position as bars, of both where there are two."""
    values = [b[key] for b in found["lengths"] for key in ("loss", "against_loss") if b[key] is not None]
    most = max(values, default=1.0) or 1.0
    beside = found["against"]
    rows: list[list[RenderableType]] = []
    for b in found["lengths"]:
        bars = [_loss(b["loss"], most, "cyan"), *([_loss(b["against_loss"], most, "yellow")] if beside else [])]
        rows.append([f"{b['start']:,}-{b['stop']:,}", Text("\n").join(bars)])
    title = f"next-token loss of {found['checkpoint']}" + (f"; below it: {beside}" if beside else "")
    return grid(title, ["positions", "nats a token"], rows)


def _loss(loss: float | None, most: float, style: str) -> Text:
    if loss is None:
        return Text("–")
    return Text.assemble((FULL * round(loss / most * BAR_CELLS), style), f" {loss:.3f}")


def passkeys(found: Json) -> RenderableType:
    """How many passkeys were found, lengths down and depths across."""
    cells = {(cell["length"], cell["depth"]): cell for cell in found["passkey"]}
    lengths, depths = (list(dict.fromkeys(cell[part] for cell in found["passkey"])) for part in ("length", "depth"))
    rows = [[f"{n:,}", *(_found(cells.get((n, depth))) for depth in depths)] for n in lengths]
    beside = f"; in brackets: {found['against']}" if found["against"] else ""
    return grid(f"passkeys found by {found['checkpoint']}{beside}", ["tokens", *(f"{d:.0%}" for d in depths)], rows)


def _found(cell: Json | None) -> str:
    if cell is None:
        return "–"
    beside = "" if cell["against_correct"] is None else f" ({cell['against_correct']}/{cell['trials']})"
    return f"{cell['correct']}/{cell['trials']}{beside}"


def figures(told: Json) -> Iterator[RenderableType]:
    """The parts that no other command shows; ``told`` is the report in its JSON form."""
    for subject in (told, *([told["against"]] if told["against"] else [])):
        if subject["rope"]:
            yield Text(subject["checkpoint"], style="bold")
            yield from (bands(layers) for layers in subject["rope"]["layers"])
        else:
            yield Text(f"{subject['checkpoint']}: {subject['no_rope']}")
    if told["evaluate"]:
        yield losses(told["evaluate"])
        if told["evaluate"]["passkey"]:
            yield passkeys(told["evaluate"])
    if told["search"]:
        yield searched(told["search"])


def searched(found: Json) -> RenderableType:
    """What a search chose and why, its losses by position, its passkeys, who reads it otherwise, and what was cut."""
    rows = [
        [
            f"{b['start']:,}-{b['stop']:,}",
            *("–" if b[key] is None else f"{b[key]:.4f}" for key in ("best", "default", "none")),
        ]
        for b in found["bins"]
    ]
    title = f"search on {found['text']}: loss by position, on text held out"
    keys = [
        f"passkeys at {k['length']:,} tokens, held out: {k['best']} of {k['trials']}, the default {k['default']}"
        for k in found["passkey"]
    ]
    deaf = [
        f"{e['name']} does not read {', '.join(e['ignores']) or 'it so'}: {e['said'] or 'turns as meant'}"
        for e in found["deaf"]
    ]
    return Group(
        Text(found["why"]),
        grid(title, ["positions", "best", "default", "no extension"], rows, numbers=True),
        *map(Text, (*keys, *deaf, *found["notes"])),
    )
