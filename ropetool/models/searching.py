"""The stages of a search, one after another, each within what the budget has left: screen, tune, decide.

Every setting is measured on the choosing part of the text. What is chosen is told apart from the default on the other
part, by the verb; the time for that is kept back here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ropetool.errors import CheckpointError, ConfigError, MethodError, UnsupportedError
from ropetool.families.candidates import Candidate
from ropetool.models.bench import Bench, Part, Turned
from ropetool.models.objective import PENALTY, Bins, Blocks, by_bin, mean_loss, penalty
from ropetool.models.searched import Left, Setting, Trial
from ropetool.models.stages import Stages
from ropetool.rope.frequencies import Floats
from ropetool.rope.optimiser import Optimiser
from ropetool.rope.spaces import Space

# A second tuning, of finer numbers around the best of the first, starts with steps so small.
FINE_SPREAD = 0.06
# How many settings are asked for passkeys, until one answers as many as the default.
MOST_ASKED = 12
Talk = Callable[[str], None]


@dataclass(frozen=True)
class Planned:
    """A candidate that the checkpoint can take: the config that would be written, its reading, and the setting.

    ``trained`` is the length that it extends, in tokens.
    """

    candidate: Candidate
    turned: Turned
    setting: Setting
    trained: int


# Raises `MethodError` or `ConfigError` for what a checkpoint, or the wanted engine, cannot take.
Configure = Callable[[Candidate], Planned]


@dataclass(eq=False)
class Entry:
    """A measured candidate; what is measured of it later, its trial gets."""

    planned: Planned
    trial: Trial


@dataclass
class Search:
    """The state of one search. ``ends`` is when the budget does, by `time.monotonic`."""

    bench: Bench
    part: Part
    held: Part
    bins: Bins
    stages: Stages
    unextended: Turned
    configure: Configure
    ends: float
    talk: Talk
    entries: list[Entry] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    plain: Blocks = ()
    whole: bool = True

    def read_unextended(self) -> None:
        """The model as it is inside its trained window, which the penalty is measured from."""
        windows = max(self.stages.windows, self.stages.decide_windows)
        measured, _ = self.bench.losses(self.unextended, self.part, self.bins.trained + 1, windows)
        self.plain = measured.blocks

    def plan(self, candidate: Candidate) -> Planned | None:
        """A candidate as it would be written; None, and a line in `left`, for one that cannot be."""
        try:
            return self.configure(candidate)
        except (MethodError, ConfigError) as error:
            self.left.append(Left(_named(candidate), error.message))
            return None

    def measure(self, planned: Planned, stage: str) -> Entry | None:
        """Read a setting at the length of its stage, and say how good it is; None where no time is left for it.

        One that the model cannot take, or that gives no numbers, is infinitely bad. Raises `UnsupportedError` or
        `CheckpointError` for the default, the first at every length: nothing can be held against it.
        """
        length = self.stages.decide if stage == "decide" else self.stages.screen
        windows = self.windows_at(length)
        before = self._before(planned, length)
        if before is not None:
            return before
        if not self._has_room(windows * self.bench.clock.seconds(length), stage):
            return None
        started = time.monotonic()
        loss, lost, reused = math.inf, math.inf, False
        of_bins: tuple[float, ...] = ()
        try:
            measured, reused = self.bench.losses(planned.turned, self.part, length, windows)
        except (CheckpointError, UnsupportedError) as error:
            if not self.at(length):
                raise
            self.left.append(Left(_named(planned.candidate), error.message))
        else:
            read = measured.blocks
            loss, lost = mean_loss(read, self.bins, length), penalty(read, self.plain[:windows], self.bins, length)
            of_bins = tuple(value for value, _ in by_bin(read, self.bins, length))
        seconds = measured.seconds if reused else time.monotonic() - started
        objective = loss + PENALTY * lost
        number = len(self.entries) + 1
        trial = Trial(number, stage, planned.setting, length, loss, lost, objective, of_bins, seconds, reused)
        self.entries.append(Entry(planned, trial))
        self._tell(trial)
        return self.entries[-1]

    def windows_at(self, length: int) -> int:
        """How many windows of the choosing part are read at a length."""
        return self.stages.windows if length == self.stages.screen else self.stages.decide_windows

    def _before(self, planned: Planned, length: int) -> Entry | None:
        same = (
            e for e in self.entries if e.trial.length == length and e.planned.turned.config == planned.turned.config
        )
        return next(same, None)

    def _has_room(self, seconds: float, stage: str) -> bool:
        """Whether so much is left besides what the report will take, by what readings have cost so far.

        The first reading, of the default, is always made: nothing can be told without it.
        """
        if not self.entries or time.monotonic() + seconds + self.report_seconds() <= self.ends:
            return True
        self.whole = False
        said = f"the budget ended in the stage {stage}, after {len(self.entries)} trials"
        if said not in self.cut:
            self.cut.append(said)
        return False

    def report_seconds(self) -> float:
        """What the held-out readings will take: the best and the default at the new length, and the passkeys."""
        whole, inside = self.bench.clock.seconds(self.bins.length), self.bench.clock.seconds(self.bins.trained)
        return self.stages.held_windows * (2 * whole + inside) + 2 * self.stages.documents * whole

    def _tell(self, trial: Trial) -> None:
        best = self.best(trial.length)
        minutes = (self.ends - time.monotonic()) / 60
        again = ", from the study" if trial.reused else ""
        self.talk(
            f"{len(self.entries)}: {trial.stage} at {trial.length}: {described(trial.setting)}: {trial.objective:.4f}"
            f"{again}; best {best.trial.objective:.4f} by {described(best.trial.setting)}; {minutes:.0f} minutes left"
        )

    def at(self, length: int) -> list[Entry]:
        """What was read at one length, best first; of equals the first."""
        return sorted((e for e in self.entries if e.trial.length == length), key=lambda entry: entry.trial.objective)

    def best(self, length: int) -> Entry:
        """The best at one length."""
        return self.at(length)[0]

    @property
    def screened(self) -> int:
        """How many settings were read at the screening length."""
        return sum(entry.trial.length == self.stages.screen for entry in self.entries)

    def screen(self, candidates: Sequence[Candidate]) -> None:
        """Read the fixed candidates, in order, as far as trials and time go."""
        for candidate in candidates:
            if self.screened >= self.stages.trials:
                self.cut.append(f"{_named(candidate)} was not tried: all {self.stages.trials} trials were spent")
                continue
            planned = self.plan(candidate)
            if planned is None or self._follows(planned):
                continue
            if self.measure(planned, "screen") is None:
                break

    def _follows(self, planned: Planned) -> bool:
        """Whether a method turns otherwise at the screening length than at the new one (dynamic)."""
        rotation = planned.turned.reading.rotations[0]
        width, lengths = rotation.geometry.rotary_dim, (self.stages.screen, self.bins.length)
        read, served = (rotation.scaling.inv_freq(width, length) for length in lengths)
        if bool((read == served).all()):
            return False
        said = f"it turns otherwise at {lengths[0]} tokens, which settings are compared at, than at {lengths[1]}"
        self.left.append(Left(_named(planned.candidate), said))
        return True

    def tune(self, space: Space, start: Floats, seed: int, until: int, spread: float | None = None) -> None:
        """Let the optimiser move in ``space`` from ``start``, until so many settings were screened in all.

        It moves in whole generations, the first of which may take all that is left of the trials.
        """
        steps = Optimiser(start, seed) if spread is None else Optimiser(start, seed, spread)
        needed = self.screened + steps.population
        if needed > self.stages.trials:
            said = f"{space.method} was not tuned: {steps.population} settings make a generation, so that it takes"
            self.cut.append(f"{said} {needed} trials, and there were {self.stages.trials}")
            return
        until = max(until, needed)
        while self.screened + steps.population <= until and (points := steps.ask()):
            values = []
            for point in points:
                value = self._value(space, point)
                if value is None:
                    return
                values.append(value)
            steps.tell(values)

    def _value(self, space: Space, point: Floats) -> float | None:
        """How good a point is: infinite where the checkpoint cannot take it, None where no time is left."""
        from ropetool.families.methods import Method

        planned = self.plan(Candidate(Method(space.method), space.settings(point)))
        if planned is None:
            return math.inf
        entry = self.measure(planned, "tune")
        return None if entry is None else entry.trial.objective

    def decide(self, default: Planned) -> list[Entry]:
        """Read the best few and the default at the longer length; returns the finalists there, best first."""
        finalists = self._finalists(self.stages.screen)
        if self.stages.decide > self.stages.screen and self.whole:
            read = [self.measure(planned, "decide") for planned in (default, *(entry.planned for entry in finalists))]
            if all(entry is not None for entry in read):
                return self.at(self.stages.decide)
        return finalists

    def _finalists(self, length: int) -> list[Entry]:
        """The best of each method and stage, best first: near points of one tuning are as good or bad as each other."""
        found: dict[tuple[str, str], Entry] = {}
        for entry in self.at(length):
            if math.isfinite(entry.trial.objective):
                found.setdefault((entry.trial.setting.method, entry.trial.stage), entry)
        return list(found.values())[: self.stages.finalists]

    def choose(self, finalists: Sequence[Entry], default: Planned) -> Entry:
        """The best of the finalists that answers no fewer passkeys of the choosing part than the default."""
        count = len(self.part.documents[: self.stages.documents])
        best = finalists[0]
        if not count or _same(best.planned, default):
            return best
        needed = 2 * count * self.bench.clock.seconds(self.bins.length)
        if not self._has_room(needed, "passkeys"):
            self.stages = replace(self.stages, documents=0)
            self.cut.append("no passkeys were asked: the budget had no time for them")
            return best
        own = next(entry for entry in self.at(best.trial.length) if _same(entry.planned, default))
        of_default = self._asked(own, count)
        for entry in self._in_turn(finalists, default):
            if not self._has_room(needed / 2, "passkeys"):
                break
            answered = self._asked(entry, count)
            self.talk(f"passkeys: {described(entry.trial.setting)} {answered}, default {of_default} of {count}")
            if answered >= of_default:
                return entry
        return own

    def _asked(self, entry: Entry, count: int) -> int:
        """How many passkeys a setting answers, which its trial tells from now on."""
        answered = sum(self.bench.answers(entry.planned.turned, self.part, count).answers)
        entry.trial = replace(entry.trial, passkeys=answered)
        return answered

    def better(self, default: Planned, length: int) -> list[Entry]:
        """What lies below the default at one length, best first."""
        of_length = self.at(length)
        return of_length[: next(at for at, entry in enumerate(of_length) if _same(entry.planned, default))]

    def _in_turn(self, finalists: Sequence[Entry], default: Planned) -> list[Entry]:
        """Whom to ask, `MOST_ASKED` at most: the finalists, then all else that is better than the default."""
        better = self.better(default, finalists[0].trial.length)
        others = [entry for entry in better if entry not in finalists]
        return [*(entry for entry in finalists if entry in better), *others][:MOST_ASKED]


def _same(one: Planned, other: Planned) -> bool:
    return bool(one.turned.config == other.turned.config)


def _named(candidate: Candidate) -> str:
    return described_settings(candidate.method.value, candidate.settings)


def described(setting: Setting) -> str:
    """A setting in few words."""
    return described_settings(setting.method, setting.settings)


def described_settings(method: str, settings: Any) -> str:
    """Method and settings, lists by their ends."""
    shown = []
    for key, value in settings.items():
        if isinstance(value, (list, tuple)):
            shown.append(f"{key} {value[0]:g} to {value[-1]:g}")
        else:
            shown.append(f"{key} {value:g}" if isinstance(value, (int, float)) else f"{key} {value}")
    return " ".join([method, ", ".join(shown)]).strip()
