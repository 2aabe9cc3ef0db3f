"""Where a model's own attention can be watched or changed from outside: its attention function and its products.

transformers lets anyone register an attention function, and a class that goes through it hands over q and k after
they were rotated. Classes that do not (Falcon, RoFormer, the indexers of sparse attention) are reached at the first
product of two activations in the module: that is where q meets k.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_MATMULS = (torch.matmul, torch.bmm, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.bmm)
INDEXER, CROSS = "indexer", "cross_attention"
EAGER, EAGER_FUNCTION = "eager", "eager_attention_forward"


@dataclass(frozen=True)
class Product:
    """A product of two activations: where its two operands are among the arguments, and in which order their axes are.

    ``q_axis`` and ``k_axis`` are the axes that the product sums over; ``value`` is set where the same call takes v.
    """

    first: int
    q_axis: int
    k_axis: int
    q: Tensor
    k: Tensor
    value: Tensor | None = None

    @property
    def transposed(self) -> bool:
        """Whether k comes as [..., D, T]."""
        return self.k_axis == -2

    def arguments(self, args: tuple[Any, ...], q: Tensor, k: Tensor) -> tuple[Any, ...]:
        """The arguments with other operands."""
        return (*args[: self.first], q, k, *args[self.first + 2 :])


def product_of(func: Any, args: tuple[Any, ...]) -> Product | None:
    """The product of two activations that a call makes, or None: a weight is not an activation."""
    if func is nn.functional.scaled_dot_product_attention and len(args) >= 3:
        first, q_axis, k_axis, value = 0, -1, -1, args[2]
    elif func in _MATMULS and len(args) >= 2:
        first, q_axis, k_axis, value = 0, -1, -2, None
    elif func is torch.baddbmm and len(args) == 3:
        first, q_axis, k_axis, value = 1, -1, -2, None
    elif func is torch.einsum and len(args) == 3 and isinstance(args[0], str):
        (q_axis, k_axis), first, value = _summed_axes(args[0]), 1, None
    else:
        return None
    q, k = args[first : first + 2]
    if all(isinstance(t, Tensor) and not isinstance(t, nn.Parameter) and t.dim() >= 3 for t in (q, k)):
        return Product(first, q_axis, k_axis, q, k, value)
    return None


def _summed_axes(equation: str) -> tuple[int, int]:
    """The axes, counted from the end, that an einsum of two operands sums over; the last ones if it sums several."""
    inputs, _, output = equation.replace(" ", "").partition("->")
    q, _, k = inputs.partition(",")
    summed = [letter for letter in q if letter in k and letter not in output and letter.isalpha()]
    return (q.index(summed[0]) - len(q), k.index(summed[0]) - len(k)) if len(summed) == 1 else (-1, -1)


class Products(TorchFunctionMode):
    """Hands every product of two activations in a watched module to a function, which makes it (or something else).

    ``at`` gets the module's name, the product, how many came before it in this call of the module, and a function that
    makes the product of given operands.
    """

    def __init__(self, stack: Stack, watched: Callable[[str], bool], at: Callable[..., Any]) -> None:
        super().__init__()
        self.stack, self.watched, self.at = stack, watched, at

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = self.stack.names[-1] if self.stack.names else ""
        product = product_of(func, args) if self.watched(name) else None
        if product is None:
            return func(*args, **kwargs)

        def make(q: Tensor, k: Tensor) -> Any:
            return func(*product.arguments(args, q, k), **kwargs)

        return self.at(name, product, self.stack.next_product(), make)


class Stack:
    """The modules whose forward is under way, the innermost last, each with the products that it has made."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._products: list[int] = []

    def push(self, name: str) -> None:
        """Enter a module."""
        self.names.append(name)
        self._products.append(0)

    def pop(self, name: str) -> None:
        """Leave it."""
        if self.names and self.names[-1] == name:
            self.names.pop()
            self._products.pop()

    def next_product(self) -> int:
        """Count a product of the innermost module; the first is 0."""
        self._products[-1] += 1
        return self._products[-1] - 1


@contextmanager
def module_stack(model: nn.Module) -> Iterator[Stack]:
    """Within, the stack follows the forward pass of ``model``."""
    stack = Stack()

    def enter(name: str) -> Callable[..., None]:
        return lambda _module, _args: stack.push(name)

    def leave(name: str) -> Callable[..., None]:
        return lambda _module, _args, _out: stack.pop(name)

    with ExitStack() as undo:
        for name, module in model.named_modules():
            undo.callback(module.register_forward_pre_hook(enter(name)).remove)
            undo.callback(module.register_forward_hook(leave(name), always_call=True).remove)
        yield stack


@contextmanager
def implementation(model: nn.Module, name: str) -> Iterator[None]:
    """Within, every config in ``model`` (a transformers model) names this attention implementation."""
    found: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    configs = {id(c): c for c in found if hasattr(c, "to_dict")}
    before = {key: getattr(c, "_attn_implementation_internal", None) for key, c in configs.items()}
    for c in configs.values():
        c._attn_implementation_internal = name
    try:
        yield
    finally:
        for key, c in configs.items():
            c._attn_implementation_internal = before[key]


def _functions(model: nn.Module, suffix: str) -> list[tuple[Any, str, Callable[..., Any]]]:
    files = {sys.modules[kind.__module__] for module in model.modules() for kind in type(module).__mro__}
    return [(f, n, x) for f in files for n, x in vars(f).items() if n.endswith(suffix) and inspect.isfunction(x)]


def has_function(model: nn.Module, suffix: str) -> bool:
    """Whether the files that define ``model``'s classes have a function whose name ends so."""
    return bool(_functions(model, suffix))


@contextmanager
def replaced_functions(
    model: nn.Module, suffix: str, replacement: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Within, each function whose name ends so, in the files that define ``model``'s classes, is another."""
    found = _functions(model, suffix)
    for file, name, function in found:
        setattr(file, name, replacement(function))
    try:
        yield
    finally:
        for file, name, function in found:
            setattr(file, name, function)


@contextmanager
def around_eager_attention(
    model: nn.Module, replacement: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """Within, ``model`` runs its classes' own eager attention, each function of it in a wrapper.

    Its name stays ``eager``: some classes ask for the name before they use their mask.
    """
    with implementation(model, EAGER), replaced_functions(model, EAGER_FUNCTION, replacement):
        yield


@contextmanager
def attention_function(model: nn.Module, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Within, a transformers model calls ``function``, registered as ``name``, where it uses the interface."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, eager_mask)
    with implementation(model, name):
        yield


def is_linear(module: nn.Module) -> bool:
    """A projection: a leaf with a weight [rows, columns], or [experts, rows, columns], that is no table and no norm."""
    weight = getattr(module, "weight", None)
    experts = "experts" in type(module).__name__.lower()
    return (
        isinstance(weight, Tensor)
        and (weight.dim() == 2 or (weight.dim() == 3 and experts))
        and not isinstance(module, nn.Embedding)
        and not is_norm(module)
        and not list(module.children())
    )


def is_norm(module: nn.Module) -> bool:
    """A normalisation, by its class's name."""
    return "norm" in type(module).__name__.lower()


def looks_like_attention(module: nn.Module) -> bool:
    """Whether a module's name promises a product of q and k."""
    kind = type(module).__name__.lower()
    if "linear" in kind or "delta" in kind:  # a running state instead of q times k, and no rotation
        return False
    return ("attention" in kind or "attn" in kind or "indexer" in kind) and any(is_linear(m) for m in module.modules())


def layer_of(name: str, module: nn.Module) -> int | None:
    """The layer that an attention module belongs to, by its own word or its path."""
    index = getattr(module, "layer_idx", None)
    if isinstance(index, int):
        return index
    numbers = re.findall(r"\.(\d+)\.", f".{name}.")
    return int(numbers[0]) if numbers else None


def kind_of(model: nn.Module, name: str, module: nn.Module) -> str:
    """The kind of layer: indexer, cross attention, or what the config's ``layer_types`` says."""
    config = getattr(module, "config", None) or getattr(model, "config", None)
    kind = type(module).__name__.lower()
    if "indexer" in kind:
        return INDEXER
    if "cross" in name.lower() or "cross" in kind or "encoder_attn" in name:
        return CROSS
    kinds = getattr(config, "layer_types", None)
    layer = layer_of(name, module)
    if isinstance(kinds, (list, tuple)) and layer is not None and layer < len(kinds):
        return str(kinds[layer])
    return "full_attention"
