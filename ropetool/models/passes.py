"""The forward passes of a verification: a plan as data, run with one model in memory at a time, logits on the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from torch import Tensor

from ropetool.families.file_checks import Side
from ropetool.families.reading import Reading
from ropetool.models.fallbacks import release
from ropetool.models.load import Runner
from ropetool.models.logits import on_disk
from ropetool.models.properties import rotaries_of
from ropetool.models.reference import reference_rotation
from ropetool.models.run import logits
from ropetool.models.sketches import Sketches, sketched
from ropetool.models.steps import Steps
from ropetool.rope.frequencies import Scaling
from ropetool.rope.pairing import Pairing


class Role(Enum):
    """What a table of logits is for."""

    YARDSTICK = "yardstick"
    TESTED = "tested"
    CONTROL = "negative control"
    STOCK = "stock class"


@dataclass(frozen=True)
class Pass:
    """Whose weights run, and how they are rotated.

    By the reference rotation in ``layout``, with the frequencies that the config of ``meaning`` means; or, where
    ``layout`` is None, by the class itself.
    """

    role: Role
    side: Side
    layout: Pairing | None
    meaning: Side

    def __str__(self) -> str:
        how = f"{self.layout.value} by the reference rotation" if self.layout else "by its own class"
        return f"{self.role.value}: {self.side.path}, {how}"


def plan_passes(a: Side, b: Side, *, extended: bool) -> tuple[Pass, ...]:
    """The passes that hold B against A, in order; never two by the same rotation.

    The yardstick is A in its own class where that is right, and B runs by the reference rotation in B's layout. An
    extension changes logits by design, so there the yardstick is B in its own class; where the class cannot run B, B's
    weights are held against A under A's frequencies. The control is B in the layout that it does not have. A twin of
    A's class must also do right by plain transformers.
    """
    yardstick = b if extended and b.stock_is_right else a
    first = None if yardstick.stock_is_right else yardstick.reading.pairing
    own = first is not None and b.stock_is_right and not extended
    passes = [
        Pass(Role.YARDSTICK, yardstick, first, yardstick),
        Pass(Role.TESTED, b, None if own else b.reading.pairing, b if own else yardstick),
        Pass(Role.CONTROL, b, b.reading.pairing.other, yardstick),
    ]
    twins = b.reading.model_type != a.reading.model_type and a.stock_is_right and b.stock_is_right
    if twins and not extended:
        passes.append(Pass(Role.STOCK, b, None, b))
    return tuple(passes)


@dataclass(frozen=True)
class Ran:
    """What a pass gave: its logits as a table [T, V], in a file, and a sketch of what every layer gave."""

    table: Tensor
    sketches: Sketches


def run_passes(
    passes: tuple[Pass, ...],
    ids_T: Tensor,
    load: Callable[[Side], Runner],
    directory: Path,
    look: Callable[[Side, Runner, Mapping[Role, Ran]], None],
    steps: Steps,
) -> dict[Role, Ran]:
    """What every pass gave, the logits in files of ``directory``; each checkpoint is loaded once, and let go.

    ``look`` sees each loaded model after its passes, with what there is so far.
    """
    ran: dict[Role, Ran] = {}
    for side in _in_order(passes):
        runner = load(side)
        with steps.of(runner.model):
            for step in passes:
                if step.side is side:
                    steps.talk(str(step))
                    with sketched(runner.model) as sketches:
                        table_TV = on_disk(_logits(runner, step, ids_T), directory / step.role.name)
                    ran[step.role] = Ran(table_TV, sketches)
            look(side, runner, ran)
        del runner
        release()
    return ran


def _in_order(passes: tuple[Pass, ...]) -> Iterator[Side]:
    """Each side once, in the order of the passes; two may be equal, and are loaded each."""
    seen: list[Side] = []
    for step in passes:
        if not any(step.side is side for side in seen):
            seen.append(step.side)
            yield step.side


def _logits(runner: Runner, step: Pass, ids_T: Tensor) -> Tensor:
    if step.layout is None:
        return logits(runner, ids_T)
    return by_reference(runner, step.side, step.meaning, ids_T, step.layout)


def by_reference(runner: Runner, side: Side, meaning: Side, ids_T: Tensor, layout: Pairing) -> Tensor:
    """The logits of ``side`` in ``layout``, with the frequencies that the config of ``meaning`` means."""
    rotaries = rotaries_of(meaning.reading, layout)
    live = scalings(meaning.reading) == scalings(side.reading)
    learned = side.reading.family.learned
    with reference_rotation(runner, rotaries, side.reading.nope_layers, live=live, learned=learned):
        return logits(runner, ids_T)


def scalings(reading: Reading) -> list[Scaling]:
    """The scaling of every kind of layer."""
    return [rotation.scaling for rotation in reading.rotations]
