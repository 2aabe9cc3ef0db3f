"""What a search for an extension found: every trial, and what was chosen held against the default on text kept apart.

Loss is next-token loss in nats per token throughout; lengths and positions are in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.families.reading import Warn


@dataclass(frozen=True)
class Setting:
    """One way to extend, as ``extend --method`` takes it: a method, and keys of its rope block.

    ``base`` of abf among them, and the lists of longrope. ``factor`` is that of the block, which for some methods need
    not be the ratio of the lengths; ``theta`` the base that is written, ``attention_factor`` what cos and sin are
    multiplied by at the new length.
    """

    method: str
    settings: Mapping[str, Any]
    factor: float
    theta: float
    attention_factor: float


@dataclass(frozen=True)
class Trial:
    """One setting as it was measured on the choosing part, read ``length`` tokens at once.

    ``objective`` is ``loss`` (its mean over all positions) plus ``penalty``; ``bins`` are the mean losses between the
    edges of the search that lie below ``length``. ``reused``: measured by an earlier run, whose study was kept.
    ``passkeys`` is how many of the choosing part it answered, None where it was not asked.
    """

    number: int
    stage: str
    setting: Setting
    length: int
    loss: float
    penalty: float
    objective: float
    bins: tuple[float, ...]
    seconds: float
    reused: bool
    passkeys: int | None = None


@dataclass(frozen=True)
class Left:
    """A method, or a setting, that was not tried, and why."""

    method: str
    why: str


@dataclass(frozen=True)
class PositionBin:
    """Mean loss over the positions [start, stop) of the held-out part: the best, the default, and no extension.

    ``none`` is None where the budget had no time to read it beyond the trained length.
    """

    start: int
    stop: int
    tokens: int
    best: float
    default: float
    none: float | None


@dataclass(frozen=True)
class Gain:
    """How much lower the loss of the best is than the default's on the held-out part, in nats per token.

    ``low`` and ``high`` bound it with 95 % confidence, by Student's t over ``units`` paired differences, each the mean
    of ``unit_tokens`` successive tokens. ``beyond_noise``: all of the interval is above 0.
    """

    mean: float
    low: float
    high: float
    units: int
    unit_tokens: int

    @property
    def beyond_noise(self) -> bool:
        """Whether the best is better, and not by chance."""
        return self.low > 0


@dataclass(frozen=True)
class Keys:
    """Passkeys (see `models.passkey`) at one length: how many of the ``trials`` each answered."""

    length: int
    trials: int
    best: int
    default: int


@dataclass(frozen=True)
class Pair:
    """One rotary pair: its wavelength without scaling in tokens, and how many times slower each of the two turns it."""

    index: int
    wavelength: float
    best: float
    default: float


@dataclass(frozen=True)
class Hearing:
    """What one engine makes of the chosen config: whether it turns so, and which of its keys it does not read."""

    engine: str
    part: str
    version: str
    right: bool | None
    ignores: tuple[str, ...]
    said: str


@dataclass(frozen=True)
class Searched:
    """The outcome of a search.

    ``text_tokens`` are those of the (choosing, held-out) part; ``edges`` the ends of the position bins, the last of
    which is the new length. ``decided`` is the length at which the best was chosen among the last candidates.
    ``windows`` is how many stretches were read, of ``decided`` tokens of the first part and of the new length of the
    other. ``is_default``: nothing beat the default beyond noise, so the default is taken; ``why`` tells why what is
    written was chosen, in a sentence. ``best`` is what the choosing part found, also where it is not written: the
    lowest objective, or the first that was asked of those that answer no fewer passkeys than the default. ``gain``,
    ``bins``, ``passkey`` and ``pairs`` hold it against the default. ``cut`` tells what was left undone for the budget
    or the trials, a sentence each. ``wanted_engine`` is the one that it is for.
    """

    checkpoint: str
    objective: str
    original_length: int
    length: int
    text: str
    text_tokens: tuple[int, int]
    edges: tuple[int, ...]
    decided: int
    windows: tuple[int, int]
    device: str
    dtype: str
    seed: int
    budget_minutes: float
    minutes: float
    wanted_engine: str | None
    chosen: Setting
    best: Setting
    default: Setting
    is_default: bool
    why: str
    gain: Gain
    bins: tuple[PositionBin, ...]
    passkey: tuple[Keys, ...]
    pairs: tuple[Pair, ...]
    engines: tuple[Hearing, ...]
    trials: tuple[Trial, ...]
    left: tuple[Left, ...]
    cut: tuple[str, ...]
    warnings: tuple[Warn, ...]

    @property
    def reused(self) -> int:
        """How many trials an earlier run had measured."""
        return sum(trial.reused for trial in self.trials)
