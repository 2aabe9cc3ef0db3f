"""Give a loaded model the rotation of another config, without reading its weights again.

What a class keeps of its config beside the weights (rotary buffers, attention scalings, the names of rope types) is
found by building the class twice, on no device, from the config that it has and from the one that it is to have: what
differs between the two is laid into the live model, and nothing else is touched. No class is known by name. What is
live afterwards is held against the frequencies that the new config means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ropetool.errors import UnsupportedError
from ropetool.families.reading import Reading
from ropetool.models.load import Runner
from ropetool.models.loading import reason
from ropetool.models.tables import live_frequencies, live_of, stretch, table_modules
from ropetool.models.unguarded import config_object

# Frequencies are float32 in most classes, and computed there in an order of its own.
ROUNDED = 2e-5
OURS = ("_parameters", "_buffers", "_modules", "training")
_ABSENT = object()


@dataclass(frozen=True)
class Swap:
    """What differs: (module path, name, value) of buffers, and of attributes that are no part of ``nn.Module``.

    ``gone`` are the (module path, name) of buffers and attributes that the new one lacks.
    """

    buffers: tuple[tuple[str, str, Tensor], ...]
    attributes: tuple[tuple[str, str, Any], ...]
    gone: tuple[tuple[str, str], ...]


class Swappable:
    """A loaded model that takes the rotation of any config of the same model, one after another."""

    def __init__(self, runner: Runner, path: Path, config: Mapping[str, Any]) -> None:
        self.runner, self._path = runner, path
        self._now = _skeleton(runner.model, config, path)

    def to(self, config: Mapping[str, Any], reading: Reading, length: int) -> None:
        """Turn as ``config`` says, whose reading this is; held against that for ``length`` tokens in play.

        Raises `UnsupportedError` where the class cannot be built of it, has other weights then, or would turn by other
        frequencies.
        """
        new = _skeleton(self.runner.model, config, self._path)
        stretch(self.runner.model, 1)  # tables that a longer pass has left as no skeleton has them
        _forget_made(self.runner.model, self._now)
        _lay(self.runner.model, differences(self._now, new))
        self._now = new
        check_turns(self.runner.model, reading, length)


def _skeleton(model: Any, config: Mapping[str, Any], path: Path) -> nn.Module:
    """The class built of a config, its parameters on no device; its buffers are real."""
    from accelerate import init_empty_weights

    live = model.config
    made = config_object(config, path)
    attention = getattr(live, "_attn_implementation", None)
    try:
        with init_empty_weights(include_buffers=False), torch.random.fork_rng([]):
            made._attn_implementation = attention
            built: nn.Module = type(model)(made)
    except Exception as error:  # a class that cannot be built of a config raises what it likes
        raise UnsupportedError(
            f"{type(model).__name__} cannot be built of the new config: {reason(error)}", path=str(path)
        ) from error
    made.return_dict = True
    return built


def differences(old: nn.Module, new: nn.Module) -> Swap:
    """What the class keeps otherwise for another config; raises `UnsupportedError` for other weights."""
    before, after = dict(old.named_modules()), dict(new.named_modules())
    shapes = [{name: tuple(value.shape) for name, value in made.named_parameters()} for made in (old, new)]
    if before.keys() != after.keys() or shapes[0] != shapes[1]:
        raise UnsupportedError(
            f"{type(new).__name__} has other weights under the new config, so it cannot take it without loading again"
        )
    buffers: list[tuple[str, str, Tensor]] = []
    attributes: list[tuple[str, str, Any]] = []
    gone: list[tuple[str, str]] = []
    for path, module in after.items():
        was = before[path]
        gone += [
            (path, name) for held in (was._buffers, _attributes(was)) for name in held if not hasattr(module, name)
        ]
        buffers += [(path, name, value) for name, value in _differing_buffers(was, module)]
        attributes += [(path, name, value) for name, value in _differing_attributes(was, module)]
    return Swap(tuple(buffers), tuple(attributes), tuple(gone))


def _differing_buffers(was: nn.Module, now: nn.Module) -> Iterator[tuple[str, Tensor]]:
    old = dict(was.named_buffers(recurse=False))
    for name, value in now.named_buffers(recurse=False):
        before = old.get(name)
        if before is None or before.shape != value.shape or not torch.equal(before, value):
            yield name, value


def _differing_attributes(was: nn.Module, now: nn.Module) -> Iterator[tuple[str, Any]]:
    old = _attributes(was)
    for name, value in _attributes(now).items():
        if not _same(old.get(name, _ABSENT), value):
            yield name, value


def _attributes(module: nn.Module) -> dict[str, Any]:
    """Those that the class itself keeps."""
    return {name: value for name, value in vars(module).items() if name not in OURS and "hooks" not in name}


def _same(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor) and isinstance(new, Tensor):
        return old.shape == new.shape and torch.equal(old, new)
    if isinstance(old, nn.Module) or isinstance(new, nn.Module):
        return True  # reached by its own path
    told = [value.to_dict() if hasattr(value, "to_dict") else value for value in (old, new)]
    if hasattr(new, "__func__"):  # a method, bound to each of the two
        return getattr(old, "__func__", None) is new.__func__
    try:
        return bool(told[0] == told[1])
    except (RuntimeError, ValueError):  # arrays in a container
        return False


def _forget_made(model: nn.Module, skeleton: nn.Module) -> None:
    """Tensors that tables have made while they ran and keep (LongRoPE's long frequencies), of the config of before."""
    for path, module in table_modules(model).items():
        built = skeleton.get_submodule(path)
        kept = [name for name, value in {**vars(module), **module._buffers}.items() if isinstance(value, Tensor)]
        for name in kept:
            if not hasattr(built, name):
                delattr(module, name)


def _lay(model: nn.Module, swap: Swap) -> None:
    for path, name in swap.gone:
        delattr(model.get_submodule(path), name)
    for path, name, value in swap.buffers:
        module = model.get_submodule(path)
        live = module._buffers.get(name)
        module._buffers[name] = value.clone() if live is None else value.to(live.device, live.dtype, copy=True)
    for path, name, value in swap.attributes:
        module = model.get_submodule(path)
        live = vars(module).get(name)
        if isinstance(value, Tensor):
            value = value.to(live.device, live.dtype, copy=True) if isinstance(live, Tensor) else value.clone()
        if hasattr(value, "__func__"):
            value = getattr(module, value.__func__.__name__)
        setattr(module, name, value)


def check_turns(model: nn.Module, reading: Reading, length: int) -> None:
    """Raises `UnsupportedError` where the live tables are not those that ``reading`` means for ``length`` tokens."""
    stretch(model, length)
    live = live_frequencies(model)
    for rotation in reading.rotations:
        meant = rotation.scaling.inv_freq(rotation.geometry.rotary_dim, length)
        found = live_of(live, rotation.layers)
        if found is None:
            continue  # kept as tables of cos and sin, which buffers were compared for
        there = found.numpy()
        if there.shape != meant.shape or not np.allclose(there, meant, rtol=ROUNDED, atol=0):
            raise UnsupportedError(
                f"{type(model).__name__} turns by other frequencies than its new config means ({rotation.layers} "
                f"layers): it cannot take it without loading again"
            )
    _check_sizes(model, reading, length)


def _check_sizes(model: nn.Module, reading: Reading, length: int) -> None:
    """The same for what cos and sin are multiplied by, where a class keeps one number for it."""
    meant = {round(rotation.scaling.attention_factor_at(length), 5) for rotation in reading.rotations}
    for name, module in table_modules(model).items():
        found = getattr(module, "attention_scaling", None)
        if isinstance(found, (int, float)) and round(float(found), 5) not in meant:
            raise UnsupportedError(
                f"{name} multiplies cos and sin by {found:.6g}, and the new config means "
                f"{', '.join(f'{value:g}' for value in sorted(meant))}"
            )
