"""From the rows of a projection to the rotation of its heads: pure logic, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropetool.models.report import Role
from ropetool.rope.pairing import Pairing

ANGLE_TOLERANCE_RAD = 2e-3


class Unreadable(Exception):
    """What a module did does not fit the picture of a rotation by pairs; the message says what."""


@dataclass(frozen=True)
class Row:
    """One row of a projection: its role, the heads it reaches, and its slot there."""

    role: Role
    heads: tuple[int, ...] = ()
    slot: int = -1
    partner: int | None = None
    angle_rad: float = 0.0
    length: float = 1.0
    turned_as_v: bool = False


@dataclass(frozen=True)
class Rotation:
    """What the heads of one module have in common."""

    pairing: Pairing
    rope_dim: int
    rope_start: int
    inv_freq: tuple[float, ...]
    backwards: bool
    role: Role


def angle_error_rad(a: float, b: float) -> float:
    """The distance of two angles, modulo a full turn."""
    return abs((a - b + math.pi) % (2 * math.pi) - math.pi)


def split_rows(rows: Sequence[Row]) -> list[tuple[int, int]]:
    """Split rows into parts, as (start, stop): same role and heads, and no slot twice."""
    runs: list[tuple[int, int]] = []
    start, slots = 0, set[int]()
    for i, row in enumerate(rows):
        head = rows[start]
        if i > start and ((row.role, row.heads) != (head.role, head.heads) or (row.slot in slots and row.slot >= 0)):
            runs.append((start, i))
            start, slots = i, set()
        slots.add(row.slot)
    runs.append((start, len(rows)))
    return runs


def rotations_of(rows: Sequence[Row]) -> list[Rotation]:
    """The rotations of all heads among ``rows``."""
    found = (rotation_of(rows[start:stop]) for start, stop in split_rows(rows))
    return [r for r in found if r is not None]


def rotation_of(rows: Sequence[Row]) -> Rotation | None:
    """The rotation of one head's rows, or None if none of them turns (or they are v).

    Raises `Unreadable` if they turn in another way than in pairs of one layout.
    """
    at = {row.slot: i for i, row in enumerate(rows)}
    if rows[0].role not in (Role.Q, Role.K):
        return None
    turned: dict[int, tuple[int, float]] = {}
    for i, row in enumerate(rows):
        if row.partner is None:
            continue
        if row.partner not in at or rows[at[row.partner]].partner != row.slot:
            raise Unreadable(f"row {i} of a head turns with a slot whose row is not in that head, or not with it")
        j = at[row.partner]
        if angle_error_rad(row.angle_rad, -rows[j].angle_rad) > ANGLE_TOLERANCE_RAD:
            raise Unreadable(f"rows {i} and {j} of a head do not turn by opposite angles")
        if i < j:
            turned[i] = (j, row.angle_rad)
    if not turned:
        return None
    signs = {angle > 0 for _, angle in turned.values()}
    if len(signs) != 1:
        raise Unreadable("some pairs of a head turn forwards and some backwards")
    return _paired(rows, {i: (j, abs(angle)) for i, (j, angle) in turned.items()}, backwards=signs == {False})


def _paired(rows: Sequence[Row], turned: Mapping[int, tuple[int, float]], backwards: bool) -> Rotation:
    distances = {j - i for i, (j, _) in turned.items()}
    start = min(turned)
    if len(distances) != 1:
        raise Unreadable(f"rows of a head are paired at different distances: {sorted(distances)}")
    distance = distances.pop()
    if distance == 1 and len(turned) == 1:
        raise Unreadable("only one pair turns, which is the same in both layouts")
    if distance == 1:
        firsts = range(start, max(turned) + 1, 2)
        pairing, rope_dim = Pairing.INTERLEAVED, 2 * len(firsts)
    else:
        firsts = range(start, start + distance)
        pairing, rope_dim = Pairing.HALF, 2 * distance
    if not set(turned) <= set(firsts) or start + rope_dim > len(rows):
        raise Unreadable(f"the rotated rows {sorted(turned)} (distance {distance}) do not form one span")
    frequencies = tuple(turned[i][1] if i in turned else 0.0 for i in firsts)
    return Rotation(pairing, rope_dim, start, frequencies, backwards, rows[0].role)
