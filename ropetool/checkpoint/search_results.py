"""What ``extend --method auto`` and ``--search`` kept in a file by ``--out``, read back and checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ropetool.checkpoint.results import Entry, opened, stretch_of
from ropetool.checkpoint.strangers import Limits

# The 1,000 trials that --trials allows, each with longrope's two lists of 128 factors (heads of 256), have 310,000
# values in 6 MB.
OF_SEARCH = Limits(16 << 20, 500_000)


@dataclass(frozen=True)
class KeptBin:
    """Mean loss over the positions [start, stop) of the held-out part; ``none``: of no extension, where read."""

    start: int
    stop: int
    best: float | None
    default: float | None
    none: float | None


@dataclass(frozen=True)
class KeptPair:
    """One rotary pair: tokens a turn without scaling, and how many times slower the best and the default turn it."""

    index: int
    wavelength: float | None
    best: float | None
    default: float | None


@dataclass(frozen=True)
class KeptKeys:
    """Passkeys at one length: how many of the ``trials`` each answered."""

    length: int
    trials: int
    best: int
    default: int


@dataclass(frozen=True)
class KeptEngine:
    """An engine that does not turn as was chosen, or not by every key: its name, the keys, and what follows."""

    name: str
    ignores: tuple[str, ...]
    said: str


@dataclass(frozen=True)
class KeptTrial:
    """One trial, in words and numbers."""

    number: int
    stage: str
    length: int
    setting: str
    loss: float | None
    penalty: float | None
    objective: float | None


@dataclass(frozen=True)
class KeptSearch:
    """A search, as far as it is shown; lengths in tokens. ``output`` is the checkpoint that was written.

    ``deaf`` are the engines that read it otherwise; ``notes`` tell what was not tried, cut short and warned of, in a
    sentence each.
    """

    file: str
    output: str
    checkpoint: str
    why: str
    is_default: bool
    objective: str
    original_length: int
    length: int
    text: str
    chosen: str
    best: str
    default: str
    gain: float | None
    low: float | None
    high: float | None
    bins: tuple[KeptBin, ...]
    pairs: tuple[KeptPair, ...]
    passkey: tuple[KeptKeys, ...]
    deaf: tuple[KeptEngine, ...]
    trials: tuple[KeptTrial, ...]
    notes: tuple[str, ...]


def read_search(path: Path) -> KeptSearch:
    """A result of a search; raises `ConfigError` naming the key at fault."""
    whole = opened(path, "search", "extend --method auto", OF_SEARCH)
    entry = whole.inner("search")
    gain = entry.inner("gain")
    return KeptSearch(
        file=path.name,
        output=whole.text("output"),
        checkpoint=entry.text("checkpoint"),
        why=entry.text("why"),
        is_default=entry.flag("is_default"),
        objective=entry.text("objective"),
        original_length=entry.count("original_length"),
        length=entry.count("length"),
        text=entry.text("text"),
        chosen=_setting(entry.inner("chosen")),
        best=_setting(entry.inner("best")),
        default=_setting(entry.inner("default")),
        gain=gain.number("mean"),
        low=gain.number("low"),
        high=gain.number("high"),
        bins=entry.each("bins", _bin),
        pairs=entry.each("pairs", _pair),
        passkey=entry.each("passkey", _keys),
        deaf=tuple(engine for engine in entry.each("engines", _engine) if engine),
        trials=entry.each("trials", _trial),
        notes=(
            *entry.each("left", lambda left: f"not tried: {left.text('method')}: {left.text('why')}"),
            *(f"cut short: {said}" for said in entry.texts("cut")),
            *entry.each("warnings", lambda warning: f"warning [{warning.text('code')}] {warning.text('message')}"),
        ),
    )


def _bin(entry: Entry) -> KeptBin:
    start, stop = stretch_of(entry)
    return KeptBin(start, stop, entry.number("best"), entry.number("default"), entry.number("none"))


def _pair(entry: Entry) -> KeptPair:
    wavelength, best, default = (entry.number(key) for key in ("wavelength", "best", "default"))
    return KeptPair(entry.count("index"), wavelength, best, default)


def _keys(entry: Entry) -> KeptKeys:
    return KeptKeys(*(entry.count(key) for key in ("length", "trials", "best", "default")))


def _engine(entry: Entry) -> KeptEngine | None:
    """None for one that turns as was chosen, by every key."""
    ignores, right = entry.texts("ignores"), entry.maybe("right", entry.flag)
    if not ignores and right is not False:
        return None
    name = " ".join(filter(None, (entry.text(key) for key in ("engine", "part", "version"))))
    return KeptEngine(name, ignores, entry.text("said"))


def _trial(entry: Entry) -> KeptTrial:
    loss, penalty, objective = (entry.number(key) for key in ("loss", "penalty", "objective"))
    setting = _setting(entry.inner("setting"))
    return KeptTrial(
        entry.count("number"), entry.text("stage"), entry.count("length"), setting, loss, penalty, objective
    )


def _setting(entry: Entry) -> str:
    """Method and settings in a line, lists by their ends."""
    settings = entry.inner("settings").values
    said = ", ".join(f"{key} {_value(value)}" for key, value in settings.items())
    return f"{entry.text('method')} {said}".strip()


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"{_value(value[0])} to {_value(value[-1])}" if value else "none"
    return f"{value:g}" if isinstance(value, (int, float)) and abs(value) < 1e300 else str(value)[:40]
