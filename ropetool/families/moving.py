"""Carrying out the moves of a plan: between two open files, within one, or cut into pieces for a journal."""

from __future__ import annotations

from collections.abc import Iterable

from ropetool.checkpoint.fields import ROWS, move_values
from ropetool.checkpoint.pieces import Piece, Step, cut
from ropetool.checkpoint.shards import Progress, Range, move_rows, moved_ranges, no_progress
from ropetool.families.plan import Move


def parts(moves: Iterable[Move]) -> list[Range]:
    """The parts of a shard's file that these moves write: all other bytes stay what they are."""
    return [part for move in moves for part in _parts(move)]


def _parts(move: Move) -> list[Range]:
    if move.lay == ROWS:
        return moved_ranges(move.tensor, len(move.permutation.index), move.permutation.blocks)
    return [(move.tensor.start, move.tensor.stop)]


def carry_out(moves: Iterable[Move], reader: int, writer: int, progress: Progress = no_progress) -> None:
    """Read what moves from one open file, and write it, permuted, into the other, or the same."""
    for move in moves:
        index = move.permutation.index
        if move.lay == ROWS:
            move_rows(reader, writer, move.tensor, index, move.permutation.blocks, progress)
        else:
            move_values(reader, writer, move.tensor, index, move.lay, progress)


def pieces_of(moves: Iterable[Move]) -> tuple[Piece, ...]:
    """The moves as pieces, each of which can be done and undone apart from all others."""
    return tuple(
        piece
        for move in moves
        for piece in cut(
            Step(move.shard.data.name, move.tensor, move.permutation.index, move.lay), move.permutation.blocks
        )
    )
