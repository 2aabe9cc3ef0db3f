"""An evaluation as tables for a terminal: what it gives and costs at a glance, by position, and passkeys as a grid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ropetool.views.parts import grid, warnings

if TYPE_CHECKING:
    from ropetool.evaluate import Bin, Cell, Evaluation, Recall

# Nats per token from which a difference is more than a shade.
NOTABLE_NATS = 0.05
BAR_CELLS = 5
GOOD, FAIR = 0.8, 0.4


def evaluation(result: Evaluation) -> RenderableType:
    """What ``evaluate`` shows."""
    against = result.against is not None
    columns = ["loss", "perplexity", "tokens", *(["against", "gain"] if against else [])]
    parts = [
        (f"short context, {_span(result.summary.short)}", result.summary.short),
        (f"inside the trained length, {_span(result.summary.inside)}", result.summary.inside),
        *([(f"beyond it, {_span(result.summary.beyond)}", result.summary.beyond)] if result.summary.beyond else []),
    ]
    glance = grid(
        f"next-token loss of {result.checkpoint}, {result.dtype} on {result.device}", ["", *columns],
        [[name, *_bin_row(part)] for name, part in parts], numbers=True,
    )  # fmt: skip
    positions = grid(
        "by position", ["positions", *columns], [[_span(b), *_bin_row(b)] for b in result.lengths], numbers=True
    )
    keys: list[RenderableType] = [_passkeys(result)] if result.passkey else []
    keys += [Text(f"below each bar: {result.against}", style="dim")] if result.passkey and against else []
    how = Text(f"read {result.passes.how.value}: {result.passes.why}", style="dim")
    return Group(glance, positions, *keys, how, warnings(result.warnings))


def _span(b: Bin) -> str:
    return f"{b.start}-{b.stop}"


def _bin_row(b: Bin) -> list[RenderableType]:
    row: list[RenderableType] = [f"{b.loss:.3f}", f"{b.perplexity:.1f}", str(b.tokens)]
    if b.against_loss is None:
        return row
    gain = b.against_loss - b.loss
    style = "green" if gain > NOTABLE_NATS else "red" if gain < -NOTABLE_NATS else ""
    return [*row, f"{b.against_loss:.3f}", Text(f"{gain:+.3f}", style=style)]


def _passkeys(result: Evaluation) -> Table:
    """Lengths down, depths across; below each bar that of the other checkpoint."""
    depths = list(dict.fromkeys(cell.depth for cell in result.passkey))
    lengths = list(dict.fromkeys(cell.length for cell in result.passkey))
    at = {(cell.length, cell.depth): cell for cell in result.passkey}
    trials = result.passkey[0].trials
    return grid(
        f"passkeys found of {trials} (seed {result.seed})",
        ["tokens", *(f"{depth:.0%}" for depth in depths)],
        [[str(length), *(_found(at[length, depth]) for depth in depths)] for length in lengths],
    )


def _found(cell: Cell) -> Text:
    counts = [cell.correct, *([] if cell.against_correct is None else [cell.against_correct])]
    return Text("\n").join(_bar(correct, cell.trials) for correct in counts)


def _bar(correct: int, trials: int) -> Text:
    share = correct / trials
    full = round(share * BAR_CELLS)
    style = "green" if share >= GOOD else "yellow" if share >= FAIR else "red"
    return Text.assemble(("\u2588" * full + "\u2591" * (BAR_CELLS - full), style), f" {correct}/{trials}")


def recall(rows: Sequence[tuple[str, Sequence[Recall]]]) -> RenderableType:
    """Recall by length, one row per checkpoint."""
    lengths = [f"{cell.length} tokens" for cell in rows[0][1]]
    return grid(
        "recall: values stated early and asked for late", ["", *lengths],
        [(name, *(f"{cell.share:.0%}  ({cell.correct}/{cell.trials})" for cell in cells)) for name, cells in rows],
        numbers=True,
    )  # fmt: skip
