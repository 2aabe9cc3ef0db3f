"""Load a checkpoint with its own class and run it, in the class's layout or, through one seam, in either.

The seam: transformers lets anyone register an attention function, and it receives q and k after the class has
rotated them. Here the class's rotary tables are made the identity (cos 1, sin 0), and the registered function
rotates by `models.rotary`. So any class runs in any layout, independent of its own rotation.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.errors import CheckpointError, UnsupportedError, UsageError
from ropetool.models.options import Device, DType
from ropetool.models.own_buffers import fill
from ropetool.models.own_code import loader_of
from ropetool.models.rotary import Rotary

REFERENCE = "ropetool_reference"

Progress = Callable[[int, int], None]


def no_progress(done: int, total: int) -> None:
    """Swallow progress."""


def torch_dtype(dtype: DType) -> torch.dtype:
    """The torch dtype of a choice."""
    return {DType.FLOAT32: torch.float32, DType.FLOAT64: torch.float64, DType.BFLOAT16: torch.bfloat16}[dtype]


def pick_device(wanted: Device) -> torch.device:
    """The device to use; ``auto`` takes CUDA, then MPS, then the CPU. Raises `UsageError` for one that is absent."""
    available = {
        Device.CUDA: torch.cuda.is_available(),
        Device.MPS: torch.backends.mps.is_available(),
        Device.CPU: True,
    }
    if wanted is Device.AUTO:
        wanted = next(device for device, there in available.items() if there)
    if not available[wanted]:
        raise UsageError(f"--device {wanted.value} was asked for, but torch {torch.__version__} sees none here")
    return torch.device(wanted.value)


@dataclass(frozen=True)
class Runner:
    """A loaded model and where it is."""

    model: Any
    device: torch.device


def load(
    path: Path,
    device: torch.device,
    dtype: DType | None,
    attention: str | None = "eager",
    *,
    trust_remote_code: bool = False,
) -> Runner:
    """Load a causal-LM checkpoint with the class that transformers has for it; ``dtype`` None keeps the stored
    one, ``attention`` None takes the fastest that the class supports. With ``trust_remote_code`` the class is the
    checkpoint's own, where it brings one.

    Raises `CheckpointError` when the class finds a weight missing or of another shape: it would be random.
    """
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, info = loader_of(path, trust_remote_code=trust_remote_code).from_pretrained(
                path,
                dtype=torch_dtype(dtype) if dtype else "auto",
                attn_implementation=attention,
                device_map={"": device},
                local_files_only=True,
                output_loading_info=True,
                trust_remote_code=trust_remote_code,
            )
    except Exception as error:  # a stranger's config can make transformers raise anything
        raise CheckpointError(f"transformers cannot load {path}: {_reason(error)}", path=str(path)) from error
    broken = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if broken:
        raise CheckpointError(
            f"{path} lacks {len(broken)} weights that its class needs, {broken[0]} among them; they would be random",
            path=str(path),
            tensor=broken[0],
        )
    if not type(model).__module__.startswith("transformers."):
        fill(model)
    return Runner(model.eval(), device)


def _reason(error: Exception) -> str:
    """The first line of what a library said; one that ends in a colon takes the next along."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if "ignore_mismatched_sizes" in lines[0]:
        return "a weight has another shape than the class makes of config.json; check its sizes (vocab_size, say)"
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def live_config(path: Path, *, trust_remote_code: bool = False) -> dict[str, Any]:
    """The config as the class understands it, with its own values where config.json has none."""
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        config = transformers.AutoConfig.from_pretrained(
            path if path.is_dir() else path.parent, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # see load
        raise CheckpointError(f"transformers cannot read {path}: {_reason(error)}", path=str(path)) from error
    return dict(config.to_dict())


@torch.no_grad()
def logits(runner: Runner, ids_T: Tensor) -> Tensor:
    """The logits of one sequence at every position, [T, V], on the CPU."""
    output = runner.model(input_ids=ids_T[None].to(runner.device), use_cache=False)
    return torch.as_tensor(output.logits[0]).cpu()


@torch.no_grad()
def token_losses(runner: Runner, ids_T: Tensor, chunk_tokens: int, progress: Progress = no_progress) -> Tensor:
    """The loss in nats of every next token of one sequence, [T - 1] in float64 on the CPU.

    The body of the model runs once over the whole sequence, as every scaling method needs; its head, with whatever
    the class does after it (soft caps, scales), runs in chunks, so that logits never need more than a chunk.
    """
    ids = ids_T.to(runner.device)
    body = runner.model.base_model
    whole = body(input_ids=ids[None], use_cache=False)
    forward, losses = body.forward, []
    try:
        for start in range(0, len(ids), chunk_tokens):
            piece = slice(start, start + chunk_tokens)
            hidden = type(whole)(last_hidden_state=whole.last_hidden_state[:, piece])
            body.forward = lambda *args, hidden=hidden, **kwargs: hidden
            scores = runner.model(input_ids=ids[None, piece], use_cache=False).logits[0]
            targets = ids[start + 1 : start + chunk_tokens + 1]
            losses.append(nn.functional.cross_entropy(scores[: len(targets)].float(), targets, reduction="none"))
            progress(min(start + chunk_tokens, len(ids)), len(ids))
    finally:
        body.forward = forward
    return torch.cat(losses).double().cpu()


def rotary_modules(model: nn.Module) -> tuple[nn.Module, ...]:
    """The modules that make the cos and sin tables of a model."""
    return tuple(m for m in model.modules() if type(m).__name__.endswith("RotaryEmbedding"))


def live_frequencies(model: nn.Module) -> dict[str, Tensor]:
    """The inv_freq buffers in the model as loaded, float64 on the CPU, by kind of layer; ``all`` where they are one."""
    suffix = "inv_freq"
    found = {}
    for module in rotary_modules(model):
        for name, buffer in module.named_buffers(recurse=False):
            layers = name.removesuffix(suffix).strip("_")
            if name.endswith(suffix) and not layers.endswith(("original", "long")):
                found[layers or ALL_LAYERS] = buffer.detach().cpu().double()
    return found


def _identity_tables(module: nn.Module) -> Any:
    """A forward that gives the module's tables the values of no rotation, in their own shape and order.

    Which of the two is cos is not assumed (GPT-J returns sin first): at position 0 cos is not zero, and sin is.
    """
    original = module.forward

    def forward(x: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        tables = original(x, position_ids, *args, **kwargs)
        at_zero = original(x, torch.zeros_like(position_ids), *args, **kwargs)
        return tuple(
            torch.ones_like(t) if bool(zero.any()) else torch.zeros_like(t)
            for t, zero in zip(tables, at_zero, strict=True)
        )

    return forward


def _reference_attention(rotaries: Mapping[str, Rotary], nope_layers: frozenset[int]) -> Any:
    """An attention function that rotates q and k by definition, then calls the class's own eager attention."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        tokens, context = query.shape[-2], key.shape[-2]
        positions = torch.arange(context)
        if not nope_layers or module.layer_idx not in nope_layers:
            rotary = rotaries.get(ALL_LAYERS) or rotaries[module.config.layer_types[module.layer_idx]]
            query = rotary.rotate(query, positions[context - tokens :])
            key = rotary.rotate(key, positions)
        eager = sys.modules[type(module).__module__].eager_attention_forward
        result: tuple[Tensor, Tensor | None] = eager(module, query, key, value, attention_mask, **kwargs)
        return result

    return attention


@contextlib.contextmanager
def reference_rotation(
    runner: Runner,
    rotaries: Mapping[str, Rotary],
    nope_layers: frozenset[int] = frozenset(),
    in_order_key: str | None = None,
    *,
    live: bool = False,
) -> Iterator[None]:
    """Within the block the model rotates by ``rotaries`` instead of by its own code, and in ``nope_layers`` not at all.

    ``rotaries`` has one entry per kind of layer (a name of the config's ``layer_types``), or one for ``all``. With
    ``live`` they take the frequencies from the model's buffers.

    ``in_order_key`` is a config key by which the class reorders slots for the interleaved layout (DeepSeek); it is
    set false, so that q and k arrive in the order of the weights. Raises `UnsupportedError` for a class whose
    tables cannot be reached.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    model, config = runner.model, runner.model.config
    modules = rotary_modules(model)
    if not modules:
        raise UnsupportedError(
            f"{type(model).__name__} makes its rotary tables in no module of its own, so it cannot be run in another "
            f"layout; a newer transformers may do so"
        )
    if live:
        buffers = live_frequencies(model)
        rotaries = {kind: replace(rotary, live_inv_freq=buffers.get(kind)) for kind, rotary in rotaries.items()}
    AttentionInterface.register(REFERENCE, _reference_attention(rotaries, nope_layers))
    AttentionMaskInterface.register(REFERENCE, eager_mask)
    before = config._attn_implementation
    order = getattr(config, in_order_key) if in_order_key else None
    originals = [module.forward for module in modules]
    try:
        model.set_attn_implementation(REFERENCE)
        for module in modules:
            module.forward = _identity_tables(module)
        if in_order_key:
            setattr(config, in_order_key, False)
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            module.forward = original
        if in_order_key:
            setattr(config, in_order_key, order)
        model.set_attn_implementation(before)
