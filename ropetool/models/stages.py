"""How a search spends its budget: what a reading costs, and how many of them of which length each stage gets.

Cheap stages first. *Screen*: every setting is read at a length beyond the trained one, but short of the new one where
that is dear. *Decide*: the best few are read at a longer length. *Report*: the best and the default are read at the new
length, on text that played no part so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ropetool.errors import UsageError

Seconds = Callable[[int], float]

FINALISTS = 3
MOST_TRIALS = 96
MOST_HELD, MOST_CHOOSING = 16, 8
# Shares of what time is left, and how many readings make a screening of use, the more the better.
HELD_SHARE, KEYS_SHARE, LEAST_KEYS_SHARE, DECIDE_SHARE = 0.3, 0.2, 0.35, 0.4
WORTHWHILE = (40, 16, 8)
LEAST_TRIALS = 4
DOCUMENTS = (60, 40, 20, 10, 5, 2)
ASKED_OF = 3
# Where the number of trials is given, and not what time allows: these, so that two runs do the same.
SHORT_TOKENS = 8192
GIVEN_CHOOSING, GIVEN_HELD, GIVEN_DOCUMENTS = 4, 8, 60


class Clock:
    """What a reading costs, from those that were made: a share by the token (layers), one by its square (attention)."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}

    def saw(self, length: int, seconds: float) -> None:
        """One window of so many tokens took so long."""
        self._seen[length] = max(seconds, 1e-6)

    def seconds(self, length: int) -> float:
        """What a window of so many tokens will take."""
        if length in self._seen:
            return self._seen[length]
        if not self._seen:
            return 0.0
        nearest = min(self._seen, key=lambda seen: abs(math.log(seen / length)))
        return self._seen[nearest] * self._shape(length) / self._shape(nearest)

    def _shape(self, length: int) -> float:
        """a L + b L^2 through the shortest and the longest that were seen; L^2 where they are one."""
        short, long = min(self._seen), max(self._seen)
        if short == long:
            return float(length) ** 2
        square = (self._seen[long] / long - self._seen[short] / short) / (long - short)
        linear = max(self._seen[long] / long - square * long, 0.0)
        shape = linear * length + max(square, 0.0) * length**2
        return shape if shape > 0 else float(length)


@dataclass(frozen=True)
class Stages:
    """How much each stage reads: lengths in tokens, windows of text, trials, finalists, passkey documents."""

    screen: int
    windows: int
    trials: int
    decide: int
    decide_windows: int
    finalists: int
    held_windows: int
    documents: int


def ladder(trained: int, length: int) -> tuple[int, ...]:
    """The lengths that settings are compared at, longest first: the new one, its halves, two beyond the trained."""
    halves = [length >> by for by in range(1, 12) if length >> by >= 2 * trained]
    short = [trained * share // 4 for share in (6, 5) if trained * share // 4 < length]
    return tuple(sorted({length, *halves, *short}, reverse=True))


def planned(
    seconds: Seconds, left: float, trained: int, length: int, windows: tuple[int, int], trials: int | None, keys: bool
) -> Stages:
    """The stages for ``left`` seconds; ``windows`` are those that the choosing and the held-out part have.

    With ``trials``, the same whatever the time. Raises `UsageError` where even the least does not fit.
    """
    rungs = ladder(trained, length)
    if trials is not None:
        cheap = length if length <= SHORT_TOKENS else min(2 * trained, length)
        screen = min((rung for rung in rungs if rung >= cheap), default=length)
        few, held = min(windows[0], GIVEN_CHOOSING), min(windows[1], GIVEN_HELD)
        return Stages(screen, few, trials, length, few, FINALISTS, held, GIVEN_DOCUMENTS if keys else 0)
    whole, inside, dear = seconds(length), seconds(trained), rungs[-1]
    of_held = 2 * whole + inside
    least = inside + LEAST_TRIALS * seconds(dear) + of_held
    if left < least:
        raise UsageError(
            f"the budget leaves {max(left, 0.0) / 60:.1f} minutes, and the least that a search needs here is "
            f"{least / 60:.1f}: {LEAST_TRIALS} settings read at {dear} tokens, the best and the default at {length}. "
            f"Give {math.ceil(least * 1.1 / 60)} minutes more than loading takes by --budget, a shorter --to, or a GPU",
            minutes=left / 60,
            least_minutes=least / 60,
        )
    held = max(1, _most(range(1, min(windows[1], MOST_HELD) + 1), of_held, HELD_SHARE * left))
    rest = left - held * of_held - inside
    documents = _documents(whole, rest) if keys else 0
    rest -= ASKED_OF * documents * whole
    decide = next((rung for rung in rungs if (FINALISTS + 1) * seconds(rung) <= DECIDE_SHARE * rest), dear)
    screen = next((rung for many in WORTHWHILE for rung in rungs if _fits(many, rung, decide, seconds, rest)), dear)
    decide = max(decide, screen)
    of_decision = 0.0 if decide == screen else (FINALISTS + 1) * seconds(decide)
    decide_windows = max(1, _most(range(1, min(windows[0], MOST_CHOOSING) + 1), of_decision, DECIDE_SHARE * rest))
    rest = max(rest - decide_windows * of_decision, 0.0)
    few = max(1, _most(range(1, min(windows[0], MOST_CHOOSING) + 1), WORTHWHILE[0] * seconds(screen), rest))
    count = min(MOST_TRIALS, int(rest / (few * seconds(screen)))) if seconds(screen) > 0 else MOST_TRIALS
    decide_windows = few if decide == screen else decide_windows
    return Stages(screen, few, max(LEAST_TRIALS, count), decide, decide_windows, FINALISTS, held, documents)


def _fits(many: int, rung: int, decide: int, seconds: Seconds, rest: float) -> bool:
    of_decision = 0.0 if rung == decide else (FINALISTS + 1) * seconds(decide)
    return rung <= decide and many * seconds(rung) <= rest - of_decision


def _most(counts: Sequence[int], of_each: float, within: float) -> int:
    return max((count for count in counts if count * of_each <= within), default=0)


def _documents(whole: float, rest: float) -> int:
    found = _most(DOCUMENTS, ASKED_OF * whole, KEYS_SHARE * rest)
    return found or _most(DOCUMENTS[-1:], ASKED_OF * whole, LEAST_KEYS_SHARE * rest)
