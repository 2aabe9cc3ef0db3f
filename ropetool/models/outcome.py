"""What a search chose, held against the default on text that played no part in choosing."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ropetool.checkpoint.config import count
from ropetool.families.reading import Warn
from ropetool.models.objective import Blocks, by_bin, fewer, gain, mean_loss
from ropetool.models.searched import Gain, Keys, PositionBin
from ropetool.models.searching import Entry, Planned, Search, described

# A loss so near to that of a guess among all tokens, in nats: such a text, or model, says nothing.
ABOVE_CHANCE = 0.1


@dataclass(frozen=True)
class Outcome:
    """The held-out readings: bins, gain and passkeys of the best against the default, and what is to be written."""

    written: Planned
    is_default: bool
    why: str
    windows: int
    gain: Gain
    bins: tuple[PositionBin, ...]
    passkey: tuple[Keys, ...]
    warnings: tuple[Warn, ...]


def outcome(state: Search, best: Entry, default: Planned) -> Outcome:
    """Read both on the held-out part; the best is written where it is better beyond noise, and else the default."""
    bench, held, bins = state.bench, state.held, state.bins
    windows = _windows(state)
    same = best.planned.turned.config == default.turned.config
    of_default = bench.losses(default.turned, held, bins.length, windows)[0].blocks
    of_best = of_default if same else bench.losses(best.planned.turned, held, bins.length, windows)[0].blocks
    found = gain(of_best, of_default, bins)
    keys, lost = ((), False) if same else _keys(state, best.planned, default)
    plain = _unextended(state, windows)
    is_default, why = (True, _unbeaten(state, best, default)) if same else _why(best, found, keys if lost else ())
    why += "" if same else _passed_over(state, best)
    written = default if is_default else best.planned
    rows = _rows(state, of_best, of_default, plain)
    doubts = (*_doubts(state), *_short_prompts(state, written, windows))
    return Outcome(written, is_default, why, windows, found, rows, keys, doubts)


def _windows(state: Search) -> int:
    """As many as planned; fewer where readings have become slower than they were."""
    windows = state.stages.held_windows
    each = state.report_seconds() / windows
    if each <= 0:
        return windows
    fit = int((state.ends - time.monotonic()) / each)
    if fit >= windows:
        return windows
    fit = max(1, fit)
    if fit < windows:
        state.cut.append(f"{fit} of {windows} held-out windows were read: the budget had no time for more")
    return fit


def _keys(state: Search, best: Planned, default: Planned) -> tuple[tuple[Keys, ...], bool]:
    """The passkeys of both, and whether the best answers fewer."""
    asked = min(state.stages.documents, len(state.held.documents))
    cost = 2 * asked * state.bench.clock.seconds(state.bins.length)
    if not asked:
        return (), False
    if time.monotonic() + cost > state.ends:
        state.cut.append("no held-out passkeys were asked: the budget had no time left for them")
        return (), False
    own, other = (state.bench.answers(each.turned, state.held, asked).answers for each in (best, default))
    return (Keys(state.bins.length, asked, sum(own), sum(other)),), fewer(own, other)


def _unbeaten(state: Search, best: Entry, default: Planned) -> str:
    """Why the default is what the choosing part found, in a sentence."""
    taken = f"so the default, {described(best.trial.setting)}, is taken"
    if len(state.entries) == 1:
        why = next((left.why for left in state.left), "the budget, or the trials, allowed nothing else")
        return f"nothing but the default was measured ({why}), {taken}"
    better = state.better(default, best.trial.length)
    if not better:
        return f"nothing tried beat the default on the choosing part, {taken}"
    asked = [entry.trial.passkeys for entry in better if entry.trial.passkeys is not None]
    most = f", and the {len(asked)} that were asked answer {max(asked)} of its passkeys at most" if asked else ""
    of_default = f" where the default answers {best.trial.passkeys}" if asked else ", and none was asked for passkeys"
    return (
        f"{len(better)} settings lie below the default on the choosing part, {described(better[0].trial.setting)} the "
        f"lowest{most}{of_default}, {taken}"
    )


def _passed_over(state: Search, best: Entry) -> str:
    """That settings with a lower objective answered fewer passkeys than the default; empty where there are none."""
    lower = [entry for entry in state.at(best.trial.length) if entry.trial.objective < best.trial.objective]
    lost = [entry.trial.passkeys for entry in lower if entry.trial.passkeys is not None]
    if not lost:
        return ""
    return (
        f"; {len(lost)} with a lower objective answered fewer passkeys of the choosing part than the default "
        f"({max(lost)} at most)"
    )


def _why(best: Entry, found: Gain, fewer_keys: tuple[Keys, ...]) -> tuple[bool, str]:
    """Whether the default is to be written, and the reason in a sentence."""
    name = described(best.trial.setting)
    span = f"{found.mean:+.4f} nats per token, 95 % between {found.low:+.4f} and {found.high:+.4f}"
    if not found.beyond_noise:
        but = "is worse than the default" if found.high < 0 else "is not better than the default beyond noise"
        said = f"{name} was chosen by the first part, but on the held-out part it {but} ({span})"
        return True, f"{said}, so the default is taken"
    for lost in fewer_keys:
        return True, (
            f"{name} has the lower loss on the held-out part ({span}), but finds {lost.best} of {lost.trials} "
            f"passkeys where the default finds {lost.default}, so the default is taken"
        )
    return False, f"{name} beats the default on the held-out part by {span}"


def _unextended(state: Search, windows: int) -> list[float]:
    """The loss of no extension in every bin; in those inside the trained window where no time is left for more."""
    bins, whole = state.bins, windows * state.bench.clock.seconds(state.bins.length)
    if time.monotonic() + whole <= state.ends:
        read = state.bench.losses(state.unextended, state.held, bins.length, windows)[0].blocks
        return [loss for loss, _ in by_bin(read, bins, bins.length)]
    state.cut.append("the loss of no extension was read inside the trained window alone: no time was left for more")
    read = state.bench.losses(state.unextended, state.held, bins.trained + 1, windows)[0].blocks
    return [loss for (loss, _), _ in zip(by_bin(read, bins, bins.trained + 1), bins.inside, strict=False)]


def _rows(state: Search, best: Blocks, default: Blocks, none: Sequence[float]) -> tuple[PositionBin, ...]:
    bins = state.bins
    own, other = by_bin(best, bins, bins.length), by_bin(default, bins, bins.length)
    starts = (0, *bins.edges[:-1])
    return tuple(
        PositionBin(start, stop, tokens, loss, of_default, none[at] if at < len(none) else None)
        for at, (start, stop, (loss, tokens), (of_default, _)) in enumerate(
            zip(starts, bins.edges, own, other, strict=True)
        )
    )


def _doubts(state: Search) -> tuple[Warn, ...]:
    """A text on which the model does no better than guessing chooses nothing."""
    words = count(state.unextended.reading.config, "vocab_size")
    if words is None:
        return ()
    chance, plain = math.log(words), mean_loss(state.plain, state.bins, state.bins.trained + 1)
    if plain < chance - ABOVE_CHANCE:
        return ()
    said = (
        f"the model without extension has a loss of {plain:.2f} nats on this text, and guessing among its {words} "
        f"tokens gives {chance:.2f}: the text says nothing about it; give text of the kind that it was trained on"
    )
    return (Warn("loss-of-chance", said),)


def _short_prompts(state: Search, written: Planned, windows: int) -> tuple[Warn, ...]:
    """What prompts within the trained length lose, of a method that turns otherwise there (longrope, dynamic)."""
    rotation, trained = written.turned.reading.rotations[0], state.bins.trained
    width = rotation.geometry.rotary_dim
    short, long = (rotation.scaling.inv_freq(width, length) for length in (trained, state.bins.length))
    if bool((short == long).all()):
        return ()
    own, plain = (
        mean_loss(state.bench.losses(turned, state.held, trained, windows)[0].blocks, state.bins, trained)
        for turned in (written.turned, state.unextended)
    )
    said = (
        f"{written.setting.method} turns otherwise in a prompt of up to {trained} tokens than in a longer one, which "
        f"is what the losses by position are of: such a prompt has a loss of {own:.4f} nats, and without extension "
        f"{plain:.4f} ({own - plain:+.4f})"
    )
    return (Warn("short-prompts", said),)
