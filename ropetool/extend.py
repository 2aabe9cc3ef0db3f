"""Extend a checkpoint's context: rewrite the rope block and every length that follows; the weights stay as they are."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import __version__
from ropetool.checkpoint.config import (
    ALL_LAYERS,
    BLOCKS,
    MARKER,
    SHARED_KEYS,
    Style,
    earlier_extension,
    with_marker,
    with_rope_block,
)
from ropetool.checkpoint.folder import (
    CONFIG,
    Checkpoint,
    check_output,
    check_space,
    copy_side_files,
    open_checkpoint,
    side_files,
    staged,
)
from ropetool.checkpoint.headers import hub_entry, origin
from ropetool.checkpoint.shards import Shard, copy_file, no_progress, write_tensor
from ropetool.engines.flags import EngineFlags, Served, engine_flags
from ropetool.errors import MethodError, ShapeError, UsageError
from ropetool.families.buffers import encode_floats, saved_frequencies
from ropetool.families.lengths import Change, LengthEdits, length_edits, other_length_keys, to_json
from ropetool.families.methods import Method, Weights
from ropetool.families.native import Native, native_of
from ropetool.families.protection import protected
from ropetool.families.reading import Reading, Rotation, Warn, read_model
from ropetool.rope.frequencies import Floats, ntk_theta, scaling_from_block

TUNING_FACTOR = 8.0
LONGEST_TOKENS = 1 << 36
# Keys of a yarn block that a person may have set, kept when only the factor changes.
YARN_SETTINGS = ("beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim")
# What belongs to a scaling method; every other key of a block (mRoPE sections, for one) survives an extension.
SCALING_KEYS = {
    *("rope_type", "rope_theta", "partial_rotary_factor", "factor", "original_max_position_embeddings"),
    *("attention_factor", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor"),
    *YARN_SETTINGS,
}


@dataclass(frozen=True)
class Extension:
    """A planned extension: the new config and side files, checked before anything is written."""

    checkpoint: Checkpoint
    destination: Path
    weights: Weights
    config: dict[str, Any]
    edits: LengthEdits
    inv_freq: Floats
    result: Extended


@dataclass(frozen=True)
class Extended:
    """What was (or, with a dry run, would be) done."""

    output: str
    method: str
    factor: float
    original_length: int
    length: int
    theta: float
    attention_factor: float
    changed: tuple[Change, ...]
    engines: tuple[EngineFlags, ...]
    warnings: tuple[Warn, ...]


@dataclass(frozen=True)
class _New:
    """The extension as it will be written: factor and length, the rope block, its base."""

    method: Method
    factor: float
    length: int
    block: Mapping[str, Any]
    theta: float


def plan(
    source: Path,
    destination: Path,
    method: Method,
    *,
    to: int | None = None,
    factor: float | None = None,
    original: int | None = None,
    style: Style = Style.DUAL,
    weights: Weights = Weights.LINK,
    replace_existing: bool = False,
) -> Extension:
    """Check everything and plan the extension of ``source`` to ``to`` tokens (or by ``factor``).

    ``original`` is the trained length in tokens, needed where the config does not tell it. Raises `MethodError`
    for what this model or checkpoint cannot take, `UsageError` for lengths that make no sense.
    """
    check_output(destination, source)
    checkpoint = open_checkpoint(source, with_weights=weights is not Weights.NONE)
    weights, weight_warnings = _links(weights, source)
    config = checkpoint.config
    reading = read_model(config)
    rotation = _only_rotation(reading, method)
    native = native_of(config, reading, rotation, original, method.value, replace_existing)
    scale, length = _target(reading, native, to, factor)
    block, theta, dropped = _block(method, rotation, native, scale, rotation.geometry.rotary_dim)
    new = _New(method, scale, length, block, theta)
    written = with_marker(_written(config, reading, native, new, style), **hub_entry(source))
    edits = length_edits(checkpoint.directory, reading, length)
    scaling = scaling_from_block(block, theta, length)
    result = Extended(
        output=str(destination),
        method=method.value,
        factor=scale,
        original_length=native.length,
        length=length,
        theta=theta,
        attention_factor=scaling.attention_factor,
        changed=(*_changes(config, written), *edits.changes),
        engines=engine_flags(Served(method.value, scale, native.length, length, theta, style)),
        warnings=(*native.warnings, *dropped, *_large(scale), *edits.warnings, *weight_warnings),
    )
    inv_freq = scaling.inv_freq(rotation.geometry.rotary_dim)
    return Extension(checkpoint, destination, weights, written, edits, inv_freq, result)


def _only_rotation(reading: Reading, method: Method) -> Rotation:
    family = reading.family
    if family.methods is not None and method.value not in family.methods:
        can = ", ".join(m.value for m in Method if m.value in family.methods) or "none"
        raise MethodError(
            f"{method.value} cannot be had for {reading.model_type} by its config: {family.methods_reason}. "
            f"Methods that it can take: {can}",
            model_type=reading.model_type,
            method=method.value,
        )
    if len(reading.rotations) > 1 or reading.rotations[0].layers != ALL_LAYERS:
        layers = ", ".join(rotation.layers for rotation in reading.rotations)
        raise MethodError(
            f"config.json has a rope block for each kind of layer ({layers}); extending those is not supported yet",
            layers=layers,
        )
    return reading.rotations[0]


def _target(reading: Reading, native: Native, to: int | None, factor: float | None) -> tuple[float, int]:
    """The exact factor, and the length in tokens that it gives."""
    if factor is not None and to is None:
        if not math.isfinite(factor) or factor < 1:
            raise UsageError(f"--factor {factor:g} would shrink the context; it must be at least 1", factor=factor)
        to = int(min(native.length * factor, 2 * LONGEST_TOKENS))
    elif to is not None and factor is None:
        factor = to / native.length
    else:
        raise UsageError("give the new length by --to, or the factor by --factor, one of them")
    if to > LONGEST_TOKENS:
        raise UsageError(f"a context of more than {LONGEST_TOKENS:,} tokens is not to be had; give a smaller length")
    current = reading.length or native.length
    at_least = current if native.method else native.length
    if to < at_least or to <= native.length:
        raise UsageError(
            f"the new length of {to} tokens must be above the trained {native.length}, and not below the current "
            f"{current}",
            to=to,
            original_length=native.length,
            length=current,
        )
    return factor, to


def _block(
    method: Method, rotation: Rotation, native: Native, factor: float, rotary_dim: int
) -> tuple[dict[str, Any], float, tuple[Warn, ...]]:
    """The new rope block, its base, and what had to be dropped from the old one."""
    old = rotation.block.values
    kept = {key: value for key, value in old.items() if key not in SCALING_KEYS}
    if method is Method.NTK:
        return {"rope_type": "default", **kept}, ntk_theta(native.theta, factor, rotary_dim), ()
    if method is Method.LINEAR:
        return {"rope_type": "linear", "factor": factor, **kept}, native.theta, ()
    block = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": native.length, **kept}
    warnings: tuple[Warn, ...] = ()
    if native.method == "yarn":
        block.update({key: old[key] for key in YARN_SETTINGS if key in old})
        if "attention_factor" in old and old.get("factor") == factor:
            block["attention_factor"] = old["attention_factor"]
        elif "attention_factor" in old:
            message = (
                f"attention_factor {old['attention_factor']:g} was set for factor {old.get('factor')}; it was "
                f"dropped, and is computed from the new factor"
            )
            warnings = (Warn("attention-factor-dropped", message),)
    return block, native.theta, warnings


def _written(config: Mapping[str, Any], reading: Reading, native: Native, new: _New, style: Style) -> dict[str, Any]:
    """The new config.json; the marker keeps what an undo needs."""
    composite = reading.decoder.composite
    if composite is not None and composite.path:
        raise MethodError(f"{reading.model_type} is multimodal; extending the text decoder of one is not supported yet")
    family = reading.family
    theta_key, share_key = family.theta_keys[0], family.keys.share or "partial_rotary_factor"
    # A share that the class ignores must go: the scaling functions of transformers would read it.
    share = reading.rotations[0].block.values.get("partial_rotary_factor") if family.keys.share else None
    config = {key: value for key, value in config.items() if family.keys.share or key != "partial_rotary_factor"}
    written = with_rope_block(config, new.block, new.theta, style, share, theta_key=theta_key, share_key=share_key)
    written[family.keys.length] = new.length
    if "original_max_position_embeddings" in config:
        written["original_max_position_embeddings"] = native.length
    others = other_length_keys(config, reading.length)
    written.update(dict.fromkeys(others, new.length))
    earlier = earlier_extension(config)
    keys = (*BLOCKS, *SHARED_KEYS, theta_key, share_key, family.keys.length, *others)
    undo = earlier.get("undo") or {key: config[key] for key in keys if key in config}
    extension = {
        "method": new.method.value, "factor": new.factor, "original_length": native.length,
        "original_theta": native.theta, "undo": undo,
    }  # fmt: skip
    return with_marker(written, version=__version__, extension=extension)


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Change, ...]:
    keys = [key for key in {**old, **new} if key != MARKER and old.get(key) != new.get(key)]
    return tuple(Change(CONFIG, key, old.get(key), new.get(key)) for key in keys)


def _large(factor: float) -> tuple[Warn, ...]:
    if factor <= TUNING_FACTOR:
        return ()
    message = (
        f"a factor of {factor:g} without tuning: pairs that never completed a turn in training are squeezed so far "
        f"that quality usually falls; measure it with `ropetool evaluate`, or tune the model at the new length"
    )
    return (Warn("large-factor", message),)


def _links(weights: Weights, source: Path) -> tuple[Weights, tuple[Warn, ...]]:
    """How the weights are brought, and what to know of it; the Hub's cache is never shared with a result."""
    if weights is not Weights.LINK:
        return weights, ()
    if origin(source):
        said = "the source lies in the Hub's cache, whose files must never change: the weights are copied, not linked"
        return Weights.COPY, (Warn("weights-copied", said),)
    said = "weights share their storage with the source (hard links); use --weights copy for a copy"
    return weights, (Warn("weights-linked", said),)


def apply(extension: Extension, progress: Callable[[int], None] = no_progress) -> Extended:
    """Carry out a planned extension. The output appears under its name only when it is whole."""
    checkpoint = extension.checkpoint
    if extension.weights is Weights.COPY:
        needed = sum(shard.size_bytes for shard in checkpoint.shards)
        check_space(extension.destination.resolve().parent, needed)
    with staged(extension.destination) as stage:
        _bring_weights(extension, stage, progress)
        copy_side_files(checkpoint, stage, side_files(checkpoint))
        for name, content in {**extension.edits.files, CONFIG: protected(extension.config)}.items():
            (stage / name).write_text(to_json(content), encoding="utf-8")
    return extension.result


def _bring_weights(extension: Extension, stage: Path, progress: Callable[[int], None]) -> None:
    """Link or copy every shard; one that holds saved frequencies is copied, and gets the new ones."""
    stale = list(saved_frequencies(extension.checkpoint))
    for shard in extension.checkpoint.shards:
        target = stage / shard.path.name
        buffers = [tensor for holder, tensor in stale if holder is shard]
        if buffers or extension.weights is Weights.COPY or not _link(shard, target):
            copy_file(shard.data, target, progress)
        for tensor in buffers:
            data = encode_floats(extension.inv_freq, tensor.dtype)
            if data is None or len(data) != tensor.size_bytes:
                raise ShapeError(
                    f"{tensor.name} holds {tensor.dtype}{list(tensor.shape)}, not the frequencies of this model"
                )
            write_tensor(target, tensor, data)


def _link(shard: Shard, target: Path) -> bool:
    """Hard-link; False where the file system cannot (another device, for one)."""
    try:
        os.link(shard.data.resolve(), target)
    except OSError:
        return False
    return True
