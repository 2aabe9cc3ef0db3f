"""Kill a command at many points, recover after each, and say what became of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from tests.crash.calls import Call
from tests.crash.points import Point, choose
from tests.crash.ptrace import GO_ON, Act
from tests.crash.running import Done, plain, traced
from tests.crash.scenes import Scene

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
