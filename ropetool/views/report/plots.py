"""The main figures as PNG files, by matplotlib, which is imported where it draws; no display is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ropetool.errors import UsageError
from ropetool.views.report.elements import clean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

Json = Mapping[str, Any]
Draw = Callable[["Figure", Json], None]
DPI = 150
WIDTH_INCHES = 8.0
NAME_CHARACTERS = 60
# Colours that people with the common colour blindnesses tell apart (Okabe and Ito), by the way to turn.
COLOURS = {
    "own": "#0072b2", "none": "#7f7f7f", "linear": "#d55e00", "ntk": "#009e73", "dynamic": "#56b4e9", "yarn": "#cc79a7",
    "llama3": "#e69f00",
}  # fmt: skip
WINDOW_COLOUR = "#8c510a"
NAMES = {"own": "as it is", "none": "without scaling", "ntk": "NTK", "yarn": "YaRN"}
# Names in a report are strangers', and a dollar in one is no formula.
STYLE = {"text.parse_math": False, "font.size": 9, "axes.grid": True, "grid.alpha": 0.35, "axes.titlesize": 10}
ENCODED_POSITIONS = 256


def need_matplotlib() -> None:
    """Raises `UsageError` where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UsageError(
            "--png draws with matplotlib, which is not installed; `pip install matplotlib`, or ask for a page by --out"
        )


def draw(report: Json, directory: Path) -> list[Path]:
    """Write every figure that the report has something for into ``directory``; returns the files."""
    import warnings

    from matplotlib import rc_context
    from matplotlib.figure import Figure

    files = []
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a name in a script that the font lacks
        for name, height_inches, fill, part in _figures(report):
            figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
            fill(figure, part)
            files.append(directory / f"{name}.png")
            figure.savefig(files[-1], dpi=DPI)
    return files


def _figures(report: Json) -> Iterator[tuple[str, float, Draw, Json]]:
    """(file, height in inches, what draws it, what of); of several kinds of layers, each has a number."""
    kinds = report["rope"]["layers"] if report["rope"] else ()
    for at, layers in enumerate(kinds, 1):
        number = "" if len(kinds) == 1 else f"-{at}"
        part = {**layers, "title": _title(report["checkpoint"], layers["layers"])}
        yield f"bands{number}", 6.0, _bands, part
        yield f"pairing{number}", 2.8, _pairing, part
        yield f"encoding{number}", 4.0, _encoding, part
        yield f"decay{number}", 4.0, _decay, part
    if report["evaluate"]:
        yield "loss", 4.0, _loss, report["evaluate"]
        if report["evaluate"]["passkey"]:
            yield "passkeys", 3.5, _passkeys, report["evaluate"]
    if report["search"]:
        yield "search", 6.0, _search, report["search"]


def _title(checkpoint: str, layers: str) -> str:
    return _name(checkpoint) + ("" if layers == "all" else f", {_name(layers)} layers")


def _name(text: str) -> str:
    """The end of a name tells more than its beginning."""
    text = clean(text)
    return text if len(text) <= NAME_CHARACTERS else f"...{text[-NAME_CHARACTERS:]}"


def _shown(layers: Json) -> list[tuple[str, Json]]:
    """As it is, without scaling, and each method by the factor that is shown: (colour, way)."""
    ways = [
        way for way in layers["ways"] if way["method"] in ("own", "none") or way["factor"] == layers["shown_factor"]
    ]
    first = {way["method"]: way for way in reversed(ways)}
    return [(COLOURS[method], way) for method, way in reversed(first.items())]


def _label(way: Json) -> str:
    method = str(way["method"])
    return NAMES.get(method, method) + ("" if method in ("own", "none") else f" x{way['factor']:g}")


def _bands(figure: Figure, layers: Json) -> None:
    """Wavelengths on a logarithmic axis, and below how many times slower each way turns the pairs."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for colour, way in _shown(layers):
        own = way["method"] == "own"
        above.plot(
            _floats(way["wavelength"]), "x" if own else ".", color=colour, label=_label(way), zorder=3 if own else 2
        )
        below.plot(_floats(way["slower"]), ":" if own else "-", color=colour, zorder=3 if own else 2)
    above.set(yscale="log", ylabel="tokens for one turn", title=f"Frequency bands of {layers['title']}")
    for name, key, colour in (("trained", "trained", "#1b7837"), ("made to serve", "reach", "#762a83")):
        if layers[key] and (key == "trained" or layers[key] != layers["trained"]):
            above.axhline(layers[key], color=colour, linestyle="--", label=f"{name}: {layers[key]:,}")
    if layers["window"]:
        above.axhline(layers["window"], color=WINDOW_COLOUR, linestyle=":", label=f"looks back: {layers['window']:,}")
    above.yaxis.set_major_formatter(_whole())
    above.legend(ncols=2, fontsize=8)
    below.set(xlabel="pair, fast to slow", ylabel="times slower")


def _whole() -> FuncFormatter:
    """Ticks of a logarithmic axis as whole numbers: without formulas, powers of ten would be written as such."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}")


def _floats(values: list[float | None]) -> list[float]:
    return [np.nan if value is None else value for value in values]


def _pairing(figure: Figure, layers: Json) -> None:
    """Both layouts of one head; lines lead from each row to its place in the other one."""
    axes, head = figure.subplots(), layers["head"]
    count = head["rotary_dim"] // 2
    for y, layout in ((1.0, "half"), (0.0, "interleaved")):
        rows = np.full(head["head_dim"], np.nan)
        for pair, both in enumerate(head["pairs"][layout]):
            rows[list(both)] = pair
        axes.imshow(rows[None], extent=(0, head["head_dim"], y, y + 0.2), cmap="turbo", vmin=0, vmax=max(count - 1, 1),
                    aspect="auto", interpolation="nearest")  # fmt: skip
    for row, old in enumerate(head["moves"]["interleaved"]):
        if row != old:
            axes.plot([old + 0.5, row + 0.5], [1.0, 0.2], color="#888888", linewidth=0.5)
    axes.set(xlim=(0, head["head_dim"]), ylim=(-0.02, 1.22), yticks=(0.1, 1.1), xlabel="row of the head")
    axes.set_yticklabels(("interleaved", "half"))
    axes.set_title(f"The two layouts of one head of {layers['title']}, which is {head['pairing']}")
    axes.grid(visible=False)


def _encoding(figure: Figure, layers: Json) -> None:
    """cos of every pair at every position, and below sin."""
    frequencies = np.asarray(layers["ways"][0]["inv_freq"])
    angles = np.outer(frequencies, np.arange(ENCODED_POSITIONS))
    for axes, values, name in zip(
        figure.subplots(2, 1, sharex=True), (np.cos(angles), np.sin(angles)), ("cos", "sin"), strict=True
    ):
        image = axes.imshow(values, cmap="RdBu", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
        axes.set(ylabel=f"{name}, by pair")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes)
    axes.set_xlabel("position")
    figure.suptitle(f"The encoding of {layers['title']}", fontsize=10)


def _decay(figure: Figure, layers: Json) -> None:
    """The score of alike q and k by distance."""
    axes, apart = figure.subplots(), np.asarray(layers["distances"])
    longest = max((way["length"] or 0 for _, way in _shown(layers)), default=0) or apart[-1]
    seen = (apart >= 1) & (apart <= longest)
    for colour, way in _shown(layers):
        own = way["method"] == "own"
        line = {"linewidth": 2, "linestyle": ":", "zorder": 3} if own else {"linewidth": 1}
        axes.plot(apart[seen], np.asarray(way["score"])[seen], color=colour, label=_label(way), **line)
    if layers["trained"]:
        axes.axvline(layers["trained"], color="#1b7837", linestyle="--", label=f"trained: {layers['trained']:,}")
    if layers["window"]:
        axes.axvline(layers["window"], color=WINDOW_COLOUR, linestyle=":", label=f"looks back: {layers['window']:,}")
    axes.set(xscale="log", xlabel="distance in tokens", ylabel="score of alike q and k")
    axes.xaxis.set_major_formatter(_whole())
    axes.set_title(f"Score by distance of {layers['title']}")
    axes.legend(ncols=2, fontsize=8)


def _loss(figure: Figure, found: Json) -> None:
    """Loss by position, of both where there are two."""
    axes = figure.subplots()
    for key, name, colour, line in _both(found, "loss", "against_loss"):
        _steps(axes, [(b["start"], b["stop"], b[key]) for b in found["lengths"]], line, color=colour, label=_name(name))
    _mark_trained(axes, found["trained_length"])
    axes.set(xlabel="position", ylabel="nats a token", title="Next-token loss by position")
    axes.legend(fontsize=8)


def _mark_trained(axes: Axes, trained: int | None) -> None:
    if trained:
        axes.axvline(trained, color="#1b7837", linestyle="--", label=f"trained: {trained:,}")


def _both(found: Json, own: str, other: str) -> Iterator[tuple[str, str, str, str]]:
    yield own, found["checkpoint"], COLOURS["own"], "-"
    if found["against"]:
        yield other, found["against"], COLOURS["linear"], "--"


def _passkeys(figure: Figure, found: Json) -> None:
    """The share of passkeys found: lengths down, depths across, a grid for each checkpoint."""
    lengths, depths = (list(dict.fromkeys(cell[part] for cell in found["passkey"])) for part in ("length", "depth"))
    both = list(_both(found, "correct", "against_correct"))
    for axes, (key, name, _, _) in zip(figure.subplots(1, len(both), squeeze=False)[0], both, strict=True):
        shares = np.full((len(lengths), len(depths)), np.nan)
        for cell in found["passkey"]:
            if cell[key] is not None:
                place = lengths.index(cell["length"]), depths.index(cell["depth"])
                shares[place] = cell[key] / cell["trials"]
                axes.text(place[1], place[0], f"{cell[key]}/{cell['trials']}", ha="center", va="center")
        axes.imshow(shares, cmap="Greens", vmin=0, vmax=1.6, aspect="auto")
        axes.set_xticks(range(len(depths)), [f"{depth:.0%}" for depth in depths])
        axes.set_yticks(range(len(lengths)), [f"{length:,}" for length in lengths])
        axes.set(xlabel="depth", title=_name(name))
        axes.grid(visible=False)
    figure.suptitle("Passkeys found", fontsize=10)


def _search(figure: Figure, found: Json) -> None:
    """Loss by position of the best, the default and no extension, and below how many times slower each turns a pair."""
    above, below = figure.subplots(2, 1, height_ratios=(3, 2))
    lines = (("best", COLOURS["own"], "-"), ("default", COLOURS["linear"], "--"), ("none", COLOURS["none"], ":"))
    for key, colour, line in lines:
        label = "no extension" if key == "none" else f"{key}: {_name(found[key])}"
        _steps(above, [(b["start"], b["stop"], b[key]) for b in found["bins"]], line, color=colour, label=label)
    _mark_trained(above, found["original_length"])
    bins = found["bins"]
    shown = [b[key] for b in bins for key in ("best", "default")]
    shown += [b["none"] for b in bins if b["stop"] <= found["original_length"]]  # beyond, it may be lost
    levels = [value for value in shown if value is not None]
    if levels:
        room = max((max(levels) - min(levels)) / 10, 0.01)
        above.set_ylim(min(levels) - room, max(levels) + room)
    title = f"A search on {_name(found['text'])}: loss on text held out"
    above.set(xlabel="position", ylabel="nats a token", title=title)
    above.legend(fontsize=8)
    for key, colour, line in lines[:2]:
        below.plot([p["index"] for p in found["pairs"]], _floats([p[key] for p in found["pairs"]]), line, color=colour)
    below.set(xlabel="pair, fast to slow", ylabel="times slower")


def _steps(axes: Axes, bins: Sequence[tuple[int, int, float | None]], line: str, **style: Any) -> None:
    """A level for each stretch of positions that has a value."""
    told = [(start, stop, value) for start, stop, value in bins if value is not None]
    places = [place for start, stop, _ in told for place in (start, stop)]
    axes.plot(places, [value for _, _, value in told for _ in (0, 1)], line, **style)
