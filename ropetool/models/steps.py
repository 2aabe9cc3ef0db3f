"""Progress of forward passes: the layers that a model has been through, of all that it will go through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

Progress = Callable[[str, int, int], None]
STAGE = "forward passes"


def layers_of(model: nn.Module) -> Sequence[nn.Module]:
    """The longest list of modules that is in no other list: experts are within a layer."""
    lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outer = [m for name, m in lists.items() if not any(name.startswith(f"{other}.") for other in lists)]
    return list(max(outer, key=len, default=[model]))


class Steps:
    """Counts layers over the passes of several models, ``passes`` in all, and says what each is."""

    def __init__(self, progress: Progress, talk: Callable[[str], None], passes: int) -> None:
        self.talk = talk
        self._progress, self._passes, self._done = progress, passes, 0.0

    @contextmanager
    def of(self, model: Any) -> Iterator[None]:
        """Within, every layer that ``model`` goes through is counted."""
        layers = layers_of(model)

        def step(*_: Any) -> None:
            self._done += 1 / len(layers)
            self._progress(STAGE, round(self._done * 1000), self._passes * 1000)

        with ExitStack() as undo:
            for layer in layers:
                undo.callback(layer.register_forward_hook(step).remove)
            yield
