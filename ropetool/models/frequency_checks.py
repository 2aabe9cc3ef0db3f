"""Whether every attention turns by the frequencies that config.json means, and whether those were rounded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ropetool.families.cannot import LIVE, NOT_ROUNDED
from ropetool.families.verdict import Check
from ropetool.models.reference import rotary_at
from ropetool.models.rotary import Rotary
from ropetool.models.turnings import Turning, by_pair
from ropetool.rope.frequencies import Floats
from ropetool.rope.rounding import rounded_to

# A class makes a frequency in some steps (power, quotient, blend of two), and cos and sin of it: each rounds.
STEPS = 16.0


@dataclass(frozen=True)
class Measured:
    """One attention's turning beside what config.json means for it, with ``length`` tokens in play."""

    turning: Turning
    inv_freq: Floats
    rotary: Rotary
    meant: Floats
    factor: float
    length: int

    @property
    def tolerance(self) -> float:
        """How far rounding alone can put a frequency, relative to it."""
        return STEPS * self.turning.roundoff

    @property
    def off(self) -> Floats:
        """The relative difference of every pair's frequency; of one that never turns, the difference."""
        return np.abs(self.inv_freq - self.meant) / np.where(self.meant == 0, 1.0, np.abs(self.meant))

    @property
    def factor_off(self) -> float:
        """The relative difference of the length of cos and sin."""
        return abs(self.turning.factor / self.factor - 1)

    @property
    def right(self) -> bool:
        """Whether both are within the tolerance."""
        return bool(self.off.max() <= self.tolerance) and self.factor_off <= self.tolerance


def frequency_checks(
    turnings: Mapping[int, Sequence[Turning]], rotaries: Mapping[str, Rotary], without: Sequence[str]
) -> Iterator[Check]:
    """``turnings`` are those of every attention, by how many tokens are in play; ``rotaries`` what is meant by kind.

    Where the class names its blocks by something else than its kinds of layers, a table must be one of them.
    ``without`` are the modules where q and k were seen to turn, and that got no table.
    """
    if without or not any(turnings.values()):
        got_none = "got no cos and sin that a rotary module of the class made"
        said = f"{without[0]} rotates, and {got_none}" if without else f"every attention {got_none}"
        yield from (Check(name, False, said, where=next(iter(without), None)) for name in (LIVE, NOT_ROUNDED))
        return
    measured = [_nearest(turning, rotaries, length) for length, found in turnings.items() for turning in found]
    yield _live_check(measured)
    yield _rounding_check(measured)


def _nearest(turning: Turning, rotaries: Mapping[str, Rotary], length: int) -> Measured | Turning:
    """A turning beside what is meant for it; alone where it has another number of pairs than anything meant."""
    named = rotary_at(rotaries, turning.module, turning.kind)
    found = []
    for rotary in [named] if named else rotaries.values():
        meant = rotary.scaling.inv_freq(rotary.rotary_dim, length)
        inv_freq = by_pair(turning.inv_freq, len(meant))
        if inv_freq is not None:
            sign = -1.0 if rotary.backwards and turning.inv_freq[0] < 0 else 1.0
            factor = rotary.scaling.attention_factor_at(length)
            found.append(Measured(turning, sign * inv_freq, rotary, meant, factor, length))
    return min(found, key=lambda m: max(float(m.off.max()), m.factor_off), default=turning)


def _live_check(measured: Sequence[Measured | Turning]) -> Check:
    wrong = next((m for m in measured if not isinstance(m, Measured) or not m.right), None)
    if isinstance(wrong, Measured):
        return Check(LIVE, False, _difference(wrong), where=wrong.turning.module)
    if wrong is not None:
        said = f"{wrong.module} gets {len(wrong.inv_freq)} angles for each token, and config.json means no such number"
        return Check(LIVE, False, said, where=wrong.module)
    sound = [m for m in measured if isinstance(m, Measured)]
    apart = max(max(float(m.off.max()), m.factor_off) for m in sound)
    modules = len({m.turning.module for m in sound})
    said = f"what {modules} attention modules turn by is within {apart:.1e} of what config.json means"
    return Check(LIVE, True, said)


def _difference(wrong: Measured) -> str:
    turning, tokens = wrong.turning, f"with {wrong.length} tokens in play"
    said = f"{turning.module} ({turning.kind}), {tokens}, "
    if not wrong.off.max() <= wrong.tolerance:
        pair = int(wrong.off.argmax())
        said += f"turns pair {pair} by {wrong.inv_freq[pair]:.6g} radians per token, and config.json means "
        return said + f"{wrong.meant[pair]:.6g} ({wrong.rotary.scaling.name}, base {wrong.rotary.scaling.theta:g})"
    return said + f"gets cos and sin {turning.factor:.6g} long, and config.json means {wrong.factor:.6g}"


def _rounding_check(measured: Sequence[Measured | Turning]) -> Check:
    sound = [m for m in measured if isinstance(m, Measured)]
    coarse = next((m for m in sound if m.turning.roundoff > np.finfo(np.float32).eps), None)
    if coarse is not None:
        return Check(NOT_ROUNDED, True, "cannot, by the number type: cos and sin are rounded to 16 bits themselves")
    for m in sound:
        name = rounded_to(m.inv_freq, m.meant, m.tolerance)
        if name:
            off_rad = float(np.abs(m.inv_freq - m.meant).max()) * 4096
            said = f"the frequencies of {m.turning.module} are exactly those of config.json rounded to {name}: angles "
            said += f"at 4096 tokens are off by up to {off_rad:.2g} radians"
            return Check(NOT_ROUNDED, False, said, where=m.turning.module)
    return Check(NOT_ROUNDED, True, "the live frequencies are not those of config.json rounded to 16 bits")
