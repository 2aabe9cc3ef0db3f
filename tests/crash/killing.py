"""Kill a command at many points, recover after each, and say what became of it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.crash.calls import Call, Kind
from tests.crash.points import Point, choose
from tests.crash.ptrace import GO_ON, Act
from tests.crash.running import Done, plain, traced
from tests.crash.scenes import InPlace, Scene

FAILED = "FAILED"


@dataclass(frozen=True)
class Outcome:
    """What one point came to; ``said`` is what was wrong, empty unless it failed."""

    command: str
    how: str
    where: str
    outcome: str
    said: str = ""


@dataclass(frozen=True)
class Run:
    """An unharmed run: its calls on files below the root, its seconds untraced, and those from its first change on."""

    calls: list[Call]
    seconds: float
    writing: float


def unharmed(scene: Scene) -> Run:
    """Run the command twice, traced and untraced."""
    calls: list[Call] = []
    times: list[float] = []

    def note(call: Call) -> Act:
        calls.append(call)
        times.append(time.perf_counter())
        return GO_ON

    began = time.perf_counter()
    done = traced(scene.arguments, scene.root, note, run=scene.run)
    assert done.code == 0, done.err
    scene.clear()
    again = plain(scene.arguments, run=scene.run)
    assert again.code == 0, again.err
    scene.clear()
    first = next(at for call, at in zip(calls, times, strict=True) if call.changes)
    share = (times[-1] - first) / (times[-1] - began)
    return Run(calls, again.seconds, again.seconds * share)


def kill_at(scene: Scene, point: Point) -> tuple[Done, str]:
    """Run the command and kill it at a point; returns the call at which it died, too."""
    if point.how == "after a delay":
        return plain(scene.arguments, point.seconds, run=scene.run), ""
    met: list[Call] = []

    def decide(call: Call) -> Act:
        act = point.decide(call)
        if act is not GO_ON:
            met.append(call)
        return act

    done = traced(scene.arguments, scene.root, decide, run=scene.run)
    return done, str(met[0]) if met else ""


def kill_everywhere(scene: Scene, number: int, seed: int) -> Iterator[Outcome]:
    """Kill at ``number`` points spread over the run."""
    run = unharmed(scene)
    for point in choose(run.calls, run.seconds, run.writing, number, seed):
        done, where = kill_at(scene, point)
        how, faults = scene.after_kill()
        if not done.killed and done.code != 0:
            faults.append(f"not killed, but ended with {done.code}: {done.err.strip()[:200]}")
        scene.clear()
        told = f"{point} {where}".strip()
        yield Outcome(scene.command.name, point.how, told, FAILED if faults else how, "; ".join(faults))


@dataclass
class _Nth:
    """Kills at the how-many-th call that changes something: before it, or in the middle of it where it writes."""

    countdown: int
    within: bool
    share: float
    where: str = ""

    def decide(self, call: Call) -> Act:
        if not call.changes or self.where:
            return GO_ON
        self.countdown -= 1
        if self.countdown >= 0:
            return GO_ON
        self.where = str(call)
        if self.within and call.row.kind is Kind.WRITE and call.size > 1:
            return Act(size=max(1, min(call.size - 1, int(call.size * self.share))), kill_after=True)
        return Act(kill_before=True)


def kill_again(scene: InPlace, number: int, seed: int) -> Iterator[Outcome]:
    """Kill a conversion in place, then what ends it, up to four times; from wherever that leads both ends remain."""
    rng = random.Random(seed)
    changes = sum(call.changes for call in unharmed(scene).calls)
    for step in range(number):
        met, faults, word = [], [], "the conversion"
        arguments: Sequence[str] = scene.arguments
        first = changes * step // number  # the first kills are spread, those after them are anywhere
        for round_ in range(1 + rng.randint(1, 4)):
            nth = _Nth(rng.randrange(changes) if round_ else first, rng.random() < 0.5, rng.random())
            done = traced(arguments, scene.root, nth.decide, run=scene.run)
            met.append(f"{word} at {nth.where or 'its end'}")
            if not done.killed and done.code != 0:
                faults.append(f"{word} ended with {done.code}: {done.err.strip()[:200]}")
            if not scene.is_half:
                break
            word = rng.choice(("--resume", "--undo"))
            arguments = scene.ending(word)
        faults += scene.after_ends(word)
        scene.clear()
        yield Outcome(
            scene.command.name, "again and again", "; ".join(met), FAILED if faults else "resumed and undone",
            "; ".join(faults),
        )  # fmt: skip
