"""A search as tables for a terminal: what was chosen and why, all trials, loss by position, the factor of each pair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ropetool.checkpoint.hub import with_ids
from ropetool.views.parts import facts, grid, warnings

if TYPE_CHECKING:
    from ropetool.models.searched import Hearing, PositionBin, Searched, Setting, Trial

NOTABLE_NATS = 0.005
BAR_CELLS = 12
FULL = "\u2588"


def searched(result: Searched) -> RenderableType:
    """What ``extend --method auto`` and ``--search`` show before what they write."""
    parts: list[RenderableType] = [
        Text(with_ids(result.why), style="bold yellow" if result.is_default else "bold green"),
        facts(f"search on {result.text}", list(_facts(result))),
        _trials(result),
        _positions(result),
        _pairs(result),
    ]
    deaf = [hearing for hearing in result.engines if hearing.ignores or hearing.right is False]
    parts += [_engines(deaf)] if deaf else []
    parts += [Text(f"not tried: {left.method}: {left.why}", style="dim") for left in result.left]
    parts += [Text(f"cut short: {said}", style="yellow") for said in result.cut]
    return Group(*parts, warnings(result.warnings))


def _facts(result: Searched) -> Iterator[tuple[str, RenderableType]]:
    yield "chosen", described(result.chosen)
    if result.best != result.chosen:
        yield "best of the first part", described(result.best)
    if result.wanted_engine:
        yield "bound to what is honoured by", result.wanted_engine
    yield "default", described(result.default)
    gain = result.gain
    noise = "beyond noise" if gain.beyond_noise else "worse, beyond noise" if gain.high < 0 else "not beyond noise"
    yield (
        "gain, held out",
        (
            f"{gain.mean:+.4f} nats a token, 95 % between {gain.low:+.4f} and {gain.high:+.4f}: {noise} ({gain.units} "
            f"paired differences of {gain.unit_tokens} tokens)"
        ),
    )
    for keys in result.passkey:
        yield (
            "passkeys, held out",
            f"{keys.best} of {keys.trials} at {keys.length} tokens, the default {keys.default}",
        )
    yield "objective", result.objective
    choosing, held = result.text_tokens
    first, second = result.windows
    yield (
        "text",
        (
            f"{choosing} tokens to choose by, of which {first} x {result.decided} were read; {held} others to report "
            f"by, {second} x {result.length} read"
        ),
    )
    again = f", {result.reused} of them from the study" if result.reused else ""
    yield "trials", f"{len(result.trials)}{again}; decided at {result.decided} tokens"
    yield (
        "ran",
        (
            f"{result.minutes:.1f} of {result.budget_minutes:g} minutes, {result.dtype} on {result.device}, seed "
            f"{result.seed}"
        ),
    )


def described(setting: Setting) -> str:
    """A setting with all of its numbers, lists by their ends."""
    return f"{setting.method} {_numbers(setting.settings)}".strip() + (
        f" (factor {setting.factor:.6g}, attention factor {setting.attention_factor:.6g}, theta {setting.theta:.10g})"
    )


def _numbers(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_value(value)}" for key, value in settings.items())


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"{value[0]:g} to {value[-1]:g}" if value else "none"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _trials(result: Searched) -> Table:
    best = min((trial.objective for trial in result.trials if trial.length == result.decided), default=None)
    return grid(
        "all trials", ["", "stage", "tokens", "method", "settings", "loss", "penalty", "objective", "keys", "seconds"],
        [_trial(trial, best) for trial in result.trials],
    )  # fmt: skip


def _trial(trial: Trial, best: float | None) -> list[RenderableType]:
    setting, style = trial.setting, "green" if trial.objective == best else ""
    return [
        str(trial.number), trial.stage, str(trial.length), setting.method,
        _numbers(setting.settings), f"{trial.loss:.4f}", f"{trial.penalty:.4f}",
        Text(f"{trial.objective:.4f}", style=style), "" if trial.passkeys is None else str(trial.passkeys),
        "study" if trial.reused else f"{trial.seconds:.1f}",
    ]  # fmt: skip


def _positions(result: Searched) -> Table:
    return grid(
        "next-token loss by position, held-out part", ["positions", "best", "default", "gain", "no extension"],
        [_position(b) for b in result.bins], numbers=True,
    )  # fmt: skip


def _position(b: PositionBin) -> list[RenderableType]:
    gain = b.default - b.best
    style = "green" if gain > NOTABLE_NATS else "red" if gain < -NOTABLE_NATS else ""
    none = "-" if b.none is None else f"{b.none:.4f}"
    return [f"{b.start}-{b.stop}", f"{b.best:.4f}", f"{b.default:.4f}", Text(f"{gain:+.4f}", style=style), none]


def _pairs(result: Searched) -> Table:
    most = max([1.0, *(pair.best for pair in result.pairs)])
    return grid(
        "how many times slower each pair turns", ["pair", "tokens a turn", "default", "best", ""],
        [
            [str(p.index), f"{p.wavelength:.4g}", f"{p.default:.3f}", f"{p.best:.3f}",
             Text(FULL * round(p.best / most * BAR_CELLS), style="cyan")]
            for p in result.pairs
        ],
    )  # fmt: skip


def _engines(found: list[Hearing]) -> Table:
    return grid(
        "engines that read it otherwise", ["engine", "does not read", "so"],
        [[f"{h.engine} {h.part}".strip() + f" {h.version}", ", ".join(h.ignores) or "-", h.said or "turns as meant"]
         for h in found],
    )  # fmt: skip
