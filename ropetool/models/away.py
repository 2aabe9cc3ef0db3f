"""Tensors whose values are not in memory: read from the shards when a function needs them, and let go after.

A model is loaded with such weights as with any others: transformers renames, stacks and casts them, and nothing is
read. A linear layer and an embedding read by rows and never hold a whole table; whatever else needs the values gets all
of them, for as long as the module that owns them runs. The files are read, not mapped, so that no page of them counts
as memory of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils import _pytree

# What a linear layer reads and computes with at once. Half of it, as bfloat16 is read, is the most that glibc's malloc
# can keep instead of giving it back (mallopt(3), M_MMAP_THRESHOLD: at most 32 MiB).
PIECE_BYTES = 64 << 20

Whole = Callable[[], Tensor]
Rows = Callable[[int, int], Tensor]

# What only asks about a tensor, or marks it, and needs no values.
_ASKING = frozenset(
    {getattr(Tensor, name) for name in (
        "size", "dim", "ndimension", "numel", "nelement", "element_size", "is_floating_point", "is_complex", "stride",
        "requires_grad_", "is_contiguous", "__len__", "__hash__",
    )}
    | {getattr(Tensor, name).__get__ for name in (
        "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "grad", "grad_fn", "is_meta",
        "is_cuda", "is_cpu", "is_mps", "is_sparse", "is_quantized", "itemsize", "nbytes",
    )}
    | {getattr(Tensor, name).__set__ for name in ("requires_grad", "grad")}
)  # fmt: skip
_SAME = (Tensor.detach, getattr(Tensor, "data").__get__, Tensor.contiguous)  # noqa: B009 - as types see it, data has no such method

_deferring = False


@contextmanager
def deferred() -> Iterator[None]:
    """Within, a function of tensors that are away gives another that is away: loading a model reads nothing."""
    global _deferring
    before, _deferring = _deferring, True
    try:
        yield
    finally:
        _deferring = before


class Away(Tensor):
    """A tensor by its shape, dtype and device (where it is computed with), and how to get its values.

    ``rows`` reads a range of its first axis; without it only all of it can be read.
    """

    whole: Whole
    rows: Rows | None
    kept: Tensor | None
    keeps: bool

    @staticmethod
    def __new__(  # noqa: D102 - the class says it
        cls: type[Away], shape: torch.Size | tuple[int, ...], dtype: torch.dtype, device: torch.device, whole: Whole,
        rows: Rows | None = None,
    ) -> Away:  # fmt: skip
        tensor: Away = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)
        tensor.whole, tensor.rows, tensor.kept, tensor.keeps = whole, rows, None, False
        return tensor

    def value(self) -> Tensor:
        """The values; read once while the module that owns them runs."""
        if self.kept is not None:
            return self.kept
        values = self.whole()
        if self.keeps:
            self.kept = values
        return values

    def cast(self, dtype: torch.dtype, device: torch.device) -> Away:
        """The same tensor in another dtype or on another device."""
        whole, rows = self.whole, self.rows
        if rows is None:
            return Away(self.shape, dtype, device, lambda: whole().to(device, dtype))
        return Away(
            self.shape, dtype, device, lambda: whole().to(device, dtype), lambda a, b: rows(a, b).to(device, dtype)
        )

    def pieces(self) -> list[tuple[int, int]]:
        """Ranges of rows, each of at most a piece, or of one row."""
        rows = max(1, PIECE_BYTES * len(self) // max(1, self.numel() * self.element_size()))
        return [(start, min(start + rows, len(self))) for start in range(0, len(self), rows)]

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer from what is known, read by rows where that is enough, else read all and call the function."""
        kwargs = dict(kwargs or {})
        if func in _ASKING:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and isinstance(args[0], Away):
            raise TypeError(f"{name} would change a weight that is not in memory")
        if func in _SAME or (func is Tensor.__getitem__ and args[1] is Ellipsis):
            return args[0].cast(args[0].dtype, args[0].device)
        if func is torch.equal:
            return _equal(*args)
        if _deferring:
            return _later(func, args, kwargs)
        by_rows = _BY_ROWS.get(func)
        done = by_rows(*args, **kwargs) if by_rows else NotImplemented
        return _now(func, args, kwargs) if done is NotImplemented else done

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares it as the function that disables it
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """For a call that reaches torch's core past `__torch_function__`."""
        return _now(func, args, dict(kwargs or {}))


def _now(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = _pytree.tree_map_only(Away, Away.value, (args, kwargs))
    return func(*args, **kwargs)


def _later(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function will give: its shape from a run without values, its values when they are asked for."""
    away = next(x for x in _pytree.tree_leaves((args, kwargs)) if isinstance(x, Away))
    if func is Tensor.to:
        given = [*args[1:], *kwargs.values()]
        dtype = next((x for x in given if isinstance(x, torch.dtype)), away.dtype)
        device = next((x for x in given if isinstance(x, (str, int, torch.device))), away.device)
        return away.cast(dtype, torch.device(device))
    without = _pytree.tree_map_only(Away, _without_values, (args, kwargs))
    shown = func(*without[0], **without[1])
    if isinstance(shown, Tensor):
        return Away(shown.shape, shown.dtype, away.device, lambda: _now(func, args, kwargs))
    return type(shown)(
        Away(one.shape, one.dtype, away.device, partial(_part, func, args, kwargs, i)) for i, one in enumerate(shown)
    )


def _part(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], number: int) -> Tensor:
    """One of several tensors that a function gives, without the others."""
    part: Tensor = _now(func, args, kwargs)[number]
    return part.clone()


def _without_values(away: Away) -> Tensor:
    return torch.empty(away.shape, dtype=away.dtype, device="meta")


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    ranges = next(x for x in (a, b) if isinstance(x, Away)).pieces()
    return all(torch.equal(_rows(a, *piece), _rows(b, *piece)) for piece in ranges)


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    if not isinstance(tensor, Away):
        return tensor[start:stop]
    return tensor.value()[start:stop] if tensor.rows is None else tensor.rows(start, stop)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not isinstance(weight, Away) or isinstance(x, Away) or isinstance(bias, Away) or weight.rows is None:
        return NotImplemented
    pieces = weight.pieces()
    if len(pieces) == 1:
        return NotImplemented
    out = x.new_empty(*x.shape[:-1], len(weight))
    for start, stop in pieces:
        part = None if bias is None else bias[start:stop]
        out[..., start:stop] = functional.linear(x, weight.rows(start, stop), part)
    return out


def _embedding(
    ids: Tensor, weight: Tensor, padding_idx: int | None = None, max_norm: float | None = None, *_: Any, **__: Any
) -> Any:
    """The rows of a table; ``padding_idx`` is for training alone, and ``max_norm`` changes the table."""
    if not isinstance(weight, Away) or weight.rows is None or max_norm is not None:
        return NotImplemented
    used, where = torch.unique(ids, return_inverse=True)
    if len(used) and not 0 <= int(used[0]) <= int(used[-1]) < len(weight):
        raise IndexError(f"ids {int(used[0])} to {int(used[-1])} of a table of {len(weight)} rows")
    table = torch.cat([weight.rows(row, row + 1) for row in used.tolist()])
    return table[where]


_BY_ROWS: Mapping[Any, Callable[..., Any]] = {functional.linear: _linear, functional.embedding: _embedding}


def keep_while_running(module: nn.Module) -> None:
    """Let the weights that ``module`` owns be read once for each of its passes, and be let go after it."""

    def owned() -> Iterator[Away]:
        return (p for p in module.parameters(recurse=False) if isinstance(p, Away))

    def enter(_module: nn.Module, _args: Any) -> None:
        for parameter in owned():
            parameter.keeps = True

    def leave(_module: nn.Module, _args: Any, _out: Any) -> None:
        for parameter in owned():
            parameter.keeps, parameter.kept = False, None

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)
