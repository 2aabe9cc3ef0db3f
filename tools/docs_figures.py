"""The figures of the site, as SVG inside the page: drawn from ropetool's own formulas and from docs/measured.

Lines have the colours of the page's theme (docs/assets/extra.css), so that they can be read in light and dark; each
figure says in words what is to be seen in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from ropetool.rope.frequencies import Default, Linear, Llama3, NtkAware, Scaling, Yarn
from ropetool.rope.layout import Pairing
from ropetool.rope.pairing import pairs

WIDTH, HEIGHT = 720, 330
LEFT, RIGHT, TOP, BOTTOM = 64, 130, 16, 44


@dataclass(frozen=True)
class Line:
    """A line of a chart: its name, and its points."""

    name: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """An axis: what it shows, its ends, where it is labelled, and whether it is logarithmic."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the ends, from 0 to 1."""
        scale = math.log if self.log else float
        return (scale(value) - scale(self.low)) / (scale(self.high) - scale(self.low))


def chart(said: str, x: Axis, y: Axis, lines: Sequence[Line], marks: Sequence[tuple[float, str]] = ()) -> str:
    """A chart of lines; ``marks`` are values of y with a dashed line and a name. ``said`` is the figure in words."""

    def at(point: tuple[float, float]) -> tuple[float, float]:
        across, up = x.share(point[0]), y.share(point[1])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}">']
    for tick in x.ticks:
        across, floor = at((tick, y.low))
        parts.append(f'<text x="{across:.1f}" y="{floor + 18:.1f}" text-anchor="middle">{_number(tick)}</text>')
    for tick in y.ticks:
        start, up = at((x.low, tick))
        parts.append(f'<path class="grid" d="M{start} {up:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{up + 4:.1f}" text-anchor="end">{_number(tick)}</text>')
    for value, name in marks:
        _, up = at((x.low, value))
        parts.append(f'<path class="mark" d="M{LEFT} {up:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT + 6}" y="{up - 5:.1f}">{escape(name)}</text>')
    labels = _apart([at(line.points[-1])[1] for line in lines])
    for index, (line, label) in enumerate(zip(lines, labels, strict=True)):
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in map(at, line.points))
        parts.append(f'<path class="line c{index}" d="M{path}"/>')
        parts.append(f'<text class="t{index}" x="{WIDTH - RIGHT + 8}" y="{label + 4:.1f}">{escape(line.name)}</text>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x.title)}</text>')
    parts.append(
        f'<text transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y.title)}</text></svg>'
    )
    return f'<figure class="chart">{"".join(parts)}<figcaption>{escape(said)}</figcaption></figure>'


def _apart(heights: Sequence[float], least: float = 15) -> list[float]:
    """Heights of labels, moved so that none lies on another."""
    placed = list(heights)
    order = sorted(range(len(placed)), key=lambda index: placed[index])
    for before, after in pairwise(order):
        placed[after] = max(placed[after], placed[before] + least)
    over = max(placed) - (HEIGHT - BOTTOM)
    return [height - over for height in placed] if over > 0 else placed


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:g}"


# SmolLM2-135M: the model of docs/measured.
THETA, ROTARY, TRAINED, FACTOR = 100000.0, 64, 8192, 4
METHODS: tuple[Scaling, ...] = (
    Default(THETA),
    Linear(THETA, FACTOR),
    NtkAware(THETA, FACTOR),
    Yarn(THETA, FACTOR, TRAINED),
    Llama3(THETA, FACTOR, 1.0, 4.0, TRAINED),
)


def bands() -> str:
    """The wavelength of every pair, by method."""
    lines = []
    for scaling in METHODS:
        name = "as trained" if scaling.name == "default" else scaling.name
        lines.append(Line(name, [(i, 2 * math.pi / turn) for i, turn in enumerate(scaling.inv_freq(ROTARY))]))
    said = (
        f"Tokens for a whole turn of each of the {ROTARY // 2} pairs of a head (base {THETA:g}, trained on {TRAINED}), "
        f"and stretched by {FACTOR}. linear slows every pair down; yarn and llama3 leave the fast ones alone; "
        f"ntk slows a pair down the more the slower it is."
    )
    y = Axis("tokens for one turn", 5, 2_000_000, (10, 100, 1000, 10_000, 100_000, 1_000_000), log=True)
    marks = ((TRAINED, f"trained: {TRAINED}"), (TRAINED * FACTOR, f"wanted: {TRAINED * FACTOR}"))
    return chart(said, Axis("pair", 0, ROTARY // 2 - 1, range(0, 32, 5)), y, lines, marks)


def layouts(rows: int = 8) -> str:
    """Which rows of a head turn together, in both layouts."""
    size, gap, label = 44, 8, 120
    width, parts = label + rows * (size + gap), []
    for line, pairing in enumerate(Pairing):
        top = 14 + line * (size + 34)
        parts.append(f'<text x="0" y="{top + size / 2 + 5}">{pairing.value}</text>')
        colour = {row: index for index, pair in enumerate(pairs(rows, pairing)) for row in pair}
        for row in range(rows):
            across = label + row * (size + gap)
            parts.append(f'<rect class="f{colour[row]}" x="{across}" y="{top}" width="{size}" height="{size}" rx="6"/>')
            parts.append(
                f'<text class="in" x="{across + size / 2}" y="{top + size / 2 + 5}" text-anchor="middle">{row}</text>'
            )
    said = (
        "The 8 rows of a head; those of one colour turn together: in half row j with j + 4, interleaved 2i with 2i + 1."
    )
    svg = f'<svg viewBox="0 0 {width} {2 * (size + 34)}" role="img" aria-label="{escape(said)}">{"".join(parts)}</svg>'
    return f'<figure class="chart">{svg}<figcaption>{escape(said)}</figcaption></figure>'


def parts() -> dict[str, Callable[[], str]]:
    """What pages can ask for."""
    return {"figure bands": bands, "figure layouts": layouts}
