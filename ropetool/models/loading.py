"""Load any checkpoint as a plain transformers model that runs right, whatever layout its weights are stored in.

Where the class rotates another layout than the weights have, the rows of q and k go back to the class's layout on their
way in, by the very plan that `convert` writes files with. What comes out is the model that the class was made for:
cached decoding, `generate`, training and saving need nothing further.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from ropetool.checkpoint.config import marker, with_marker
from ropetool.checkpoint.folder import (
    ADAPTER_CONFIG,
    Checkpoint,
    as_directory,
    checkpoint_directory,
    open_checkpoint,
    read_config,
)
from ropetool.engines.writing import without_engine
from ropetool.errors import CheckpointError, UnsupportedError, UsageError
from ropetool.families.plan import plan_conversion
from ropetool.families.protection import stock_is_right
from ropetool.families.reading import Reading
from ropetool.models.own_buffers import fill
from ropetool.models.own_code import has_model, own_class
from ropetool.models.understand import understand
from ropetool.models.unguarded import config_object
from ropetool.rope.pairing import IndexMap

GENERATION = "generation_config.json"
OURS = ("config", "state_dict", "output_loading_info", "local_files_only")


def load(path: str | Path, **options: Any) -> Any:
    """The model of a checkpoint directory, of its own class; ``options`` (dtype, device_map ...) go to from_pretrained.

    With ``trust_remote_code=True`` that is the class that lies in the checkpoint, where one does.

    Raises `CheckpointError` for what transformers cannot load, or would load with random weights; `UnsupportedError`
    where the rows cannot be put back (quantised weights); `UsageError` for an option that the checkpoint decides.
    """
    fixed = [name for name in OURS if name in options]
    if fixed:
        raise UsageError(f"{fixed[0]} comes from the checkpoint itself; leave it out", option=fixed[0])
    path, trusted = Path(path), bool(options.pop("trust_remote_code", False))
    own = own_class(path) if trusted else None
    model = load_as(own or model_kind(read_config(path)), path, trust_remote_code=trusted, **options)
    if own:
        fill(model)
    return model


def is_right(path: Path) -> bool:
    """Whether the weights are stored in the layout that their class rotates; only a marker says that they are not."""
    config = read_config(path)
    return not marker(config).get("pairing") or stock_is_right(understand(path, config))


def load_as(kind: Any, path: Path, *, trust_remote_code: bool = False, **options: Any) -> Any:
    """`load` with the class ``kind``, whatever config.json names."""
    config, directory = read_config(path), checkpoint_directory(path)
    options["trust_remote_code"] = trust_remote_code  # left out, transformers would ask on the terminal
    # Only a marker can say that the weights are not in the layout that their class rotates.
    marked = marker(config).get("pairing")
    reading = understand(path, config, trust_remote_code=trust_remote_code) if marked else None
    if reading is None or stock_is_right(reading):
        return load_checked(kind, path, **options)
    checkpoint = open_checkpoint(path)
    own = trust_remote_code and has_model(config.get("auto_map"))
    unread = own and all(witness.source != "code" for witness in reading.evidence)
    if reading.refusal or unread:
        raise _cannot(checkpoint, reading.refusal or "its own class could not be read; leave out trust_remote_code")
    _check_unquantised(checkpoint, options)
    after = with_marker(without_engine(config), pairing=reading.class_pairing.value)
    live = config_object(after, directory, trust_remote_code=trust_remote_code)
    model = load_checked(kind, directory, config=live, state_dict=_put_back(checkpoint, reading), **options)
    return _with_generation_config(model, directory)


def _with_generation_config(model: Any, directory: Path) -> Any:
    """What `from_pretrained` reads beside the weights, and does not where it is given those."""
    import transformers

    if (directory / GENERATION).is_file() and model.can_generate():
        model.generation_config = transformers.GenerationConfig.from_pretrained(directory, local_files_only=True)
    return model


def model_kind(config: Mapping[str, Any]) -> Any:
    """The class that config.json names, where transformers has it; else the automatic one for causal models."""
    import transformers

    names = config.get("architectures") or [""]
    return getattr(transformers, str(names[0]), None) or transformers.AutoModelForCausalLM


def load_checked(kind: Any, path: Path, **options: Any) -> Any:
    """``kind.from_pretrained``, with nothing made up; from a ``state_dict``, where one is given, instead of the files.

    Raises `CheckpointError` where it fails, or finds a weight missing or of another shape: it would be random.
    """
    if "state_dict" in options:
        return _checked(kind, None, path, **options)
    if (checkpoint_directory(path) / ADAPTER_CONFIG).is_file():
        raise CheckpointError(
            f"an adapter lies among the weights of {path} ({ADAPTER_CONFIG}), and transformers adds it to the model "
            f"where PEFT is installed; move it to a directory of its own, or merge it, to say which model is meant",
            path=str(path),
        )
    with as_directory(path) as directory:
        return _checked(kind, directory, path, **options)


def _checked(kind: Any, place: Path | None, path: Path, **options: Any) -> Any:
    try:
        model, info = kind.from_pretrained(place, local_files_only=True, output_loading_info=True, **options)
    except Exception as error:  # a stranger's config can make transformers raise anything
        raise CheckpointError(f"transformers cannot load {path}: {reason(error)}", path=str(path)) from error
    broken = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if broken:
        raise CheckpointError(
            f"{path} lacks {len(broken)} weights that its class needs, {broken[0]} among them; they would be random",
            path=str(path),
            tensor=broken[0],
        )
    return model


def reason(error: Exception) -> str:
    """The first line of what a library said; one that ends in a colon takes the next along."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if "ignore_mismatched_sizes" in lines[0]:
        return "a weight has another shape than the class makes of config.json; check its sizes (vocab_size, say)"
    return " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]


def _check_unquantised(checkpoint: Checkpoint, options: dict[str, Any]) -> None:
    asked = next((name for name in ("quantization_config", "load_in_8bit", "load_in_4bit") if options.get(name)), None)
    stored = "quantization_config" if checkpoint.config.get("quantization_config") else None
    if asked or stored:
        raise _cannot(checkpoint, f"{asked or stored} makes the model hold quantised rows, which do not move in memory")


def _cannot(checkpoint: Checkpoint, why: str, **fields: Any) -> UnsupportedError:
    told = marker(checkpoint.config).get("pairing")
    return UnsupportedError(
        f"the weights in {checkpoint.directory} are stored as {told} and must be put back for their class, but {why}; "
        f"convert the checkpoint back with `ropetool convert`, and load that",
        path=str(checkpoint.directory),
        **fields,
    )


def _put_back(checkpoint: Checkpoint, reading: Reading) -> dict[str, Tensor]:
    """The tensors of the checkpoint by their names on disk, with every row that a conversion would move put back.

    They are read as the files are mapped, and only what moves is copied. transformers renames, splits and joins them on
    loading as it would those of the files.
    """
    steps = plan_conversion(checkpoint, reading, reading.pairing, reading.class_pairing)
    state: dict[str, Tensor] = {}
    for shard in checkpoint.shards:
        with safe_open(shard.data, framework="pt") as file:
            state |= {name: file.get_tensor(name) for name in shard.tensors if checkpoint.weight_map[name] is shard}
    for move in steps.moves:
        if checkpoint.weight_map[move.tensor.name] is move.shard:
            state[move.tensor.name] = permuted(state[move.tensor.name], move.permutation.index)
    return state


def permuted(tensor: Tensor, index: IndexMap) -> Tensor:
    """``new[r] = old[index[r]]`` over the ``len(index)`` rows of ``tensor``, as bytes, so that any dtype will do."""
    rows = tensor.detach().contiguous().reshape(len(index), -1).view(torch.uint8)
    moved = rows[torch.from_numpy(index).to(tensor.device)]
    return moved.view(tensor.dtype).reshape(tensor.shape)
