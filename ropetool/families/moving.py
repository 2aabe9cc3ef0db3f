"""The moves of a plan, cut into pieces: for a copy, and for a journal."""

from __future__ import annotations

from collections.abc import Iterable

from ropetool.checkpoint.pieces import Piece, Step, cut
from ropetool.families.plan import Move


def pieces_of(moves: Iterable[Move]) -> tuple[Piece, ...]:
    """The moves as pieces, each of which can be done and undone apart from all others."""
    return tuple(
        piece
        for move in moves
        for piece in cut(
            Step(move.shard.data.name, move.tensor, move.permutation.index, move.lay), move.permutation.blocks
        )
    )
