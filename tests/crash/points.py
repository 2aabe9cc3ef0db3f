"""The points at which a run is killed: before a call, in the middle of a write, after the last call, after a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.crash.calls import Call, Kind
from tests.crash.ptrace import GO_ON, Act

HOWS = ("before a call", "within a write", "after a delay", "again and again", "a power cut")
SHARE_BY_TIME = 0.2


@dataclass(frozen=True)
class Point:
    """One point: the number of a call (``how`` says where in it), or seconds from the start."""

    how: str
    at: int = 0
    seconds: float = 0.0
    share: float = 0.5  # of the bytes that a write still writes

    def decide(self, call: Call) -> Act:
        """What happens at ``call``."""
        if call.at != self.at:
            return GO_ON
        if self.how == "within a write":
            return Act(size=max(1, min(call.size - 1, int(call.size * self.share))), kill_after=True)
        return Act(kill_before=True)

    def __str__(self) -> str:
        where = f"{self.seconds * 1000:.1f} ms" if self.how == "after a delay" else f"call {self.at}"
        return f"{self.how} ({where})"


def _spread(items: Sequence[Point], number: int, rng: random.Random) -> list[Point]:
    """``number`` of the items, one of each equal stretch of them."""
    if number >= len(items) or number <= 0:
        return list(items[: max(0, number)])
    edges = [round(step * len(items) / number) for step in range(number + 1)]
    return [items[rng.randrange(low, high)] for low, high in pairwise(edges)]


def choose(calls: Sequence[Call], whole_run: float, writing: float, number: int, seed: int) -> list[Point]:
    """``number`` points spread over the calls of one run, and over its seconds, the last ``writing`` of them twice.

    A kill before a call that only reads differs from the one before it by nothing on the disk. So what changes
    something has most of the points: the middle of writes a third, the call itself half.
    """
    rng = random.Random(seed)
    by_time = max(1, int(number * SHARE_BY_TIME))
    whole = number - by_time
    within = [
        Point("within a write", call.at, share=rng.random())
        for call in calls
        if call.row.kind is Kind.WRITE and call.size > 1
    ]
    changing = [Point("before a call", call.at) for call in calls if call.changes]
    reading = [Point("before a call", call.at) for call in calls if not call.changes]
    first = _spread(within, max(1, whole // 3), rng)
    first += _spread(changing, max(1, whole // 2), rng)
    points = first + _spread(reading, whole - len(first), rng)
    while len(points) < whole:  # a short run: torn writes at other places
        points.append(Point("within a write", rng.choice(within).at, share=rng.random()))
    delays = [
        Point("after a delay", seconds=begin + (whole_run - begin) * (step + rng.random()) / count)
        for begin, count in ((0.0, by_time - by_time // 2), (whole_run - writing, by_time // 2))
        for step in range(count)
    ]
    return [*sorted(points, key=lambda point: (point.at, point.how)), *delays]
