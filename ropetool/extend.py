"""Extend a checkpoint's context: rewrite the rope block and every length that follows; the weights stay as they are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ropetool.checkpoint.config import Style, with_marker
from ropetool.checkpoint.copying import copy_file
from ropetool.checkpoint.folder import (
    CONFIG,
    Checkpoint,
    check_output,
    check_room,
    copy_side_files,
    open_checkpoint,
    side_files,
    staged,
)
from ropetool.checkpoint.headers import hub_entry, origin
from ropetool.checkpoint.shards import Shard, Tensor, no_progress, write_tensor
from ropetool.engines.flags import EngineFlags, engine_flags
from ropetool.engines.heard import Case
from ropetool.errors import ConfigError, MethodError, ShapeError, UsageError
from ropetool.families.buffers import ROUNDED, encode_floats, read_floats, saved_frequencies
from ropetool.families.decoder import text_part
from ropetool.families.doubt import doubts
from ropetool.families.kv_cache import KvCache, kv_cache
from ropetool.families.lengths import Change, LengthEdits, length_edits, restored_lengths, to_json
from ropetool.families.methods import Method, Weights
from ropetool.families.native import native_of
from ropetool.families.protection import protected
from ropetool.families.reading import Reading, Rotation, Warn, read_model
from ropetool.families.recipes import RECIPES, check_settings, new_length, planned_block, settings_of_class
from ropetool.families.rewriting import New, changes_of, marked, restored, rewritten_text
from ropetool.families.version4 import UNTAKEN
from ropetool.families.windows import local_layers
from ropetool.rope.frequencies import Floats, Scaling, scaling_from_block

TUNING_FACTOR = 8.0
LONGEST_TOKENS = 1 << 36


@dataclass(frozen=True)
class Extension:
    """A planned extension: the new config and side files, checked before anything is written.

    ``reading`` is of the new config; its first rotation is the one that was scaled.
    """

    checkpoint: Checkpoint
    destination: Path
    weights: Weights
    config: dict[str, Any]
    edits: LengthEdits
    reading: Reading
    result: Extended

    @property
    def inv_freq(self) -> Floats:
        """Angle per token of each pair of the scaled layers in radians, up to the trained length; shape [R/2]."""
        return _frequencies(self.reading.rotations[0])


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
    kv_cache: KvCache
    changed: tuple[Change, ...]
    engines: tuple[EngineFlags, ...]
    warnings: tuple[Warn, ...]


def plan(
    source: Path,
    destination: Path,
    method: Method,
    *,
    to: int | None = None,
    factor: float | None = None,
    original: int | None = None,
    settings: Mapping[str, Any] | None = None,
    style: Style = Style.DUAL,
    weights: Weights = Weights.LINK,
    replace_existing: bool = False,
) -> Extension:
    """Check everything and plan the extension of ``source`` to ``to`` tokens (or by ``factor``).

    ``original`` is the trained length in tokens, needed where the config does not tell it. ``settings`` are keys of the
    rope block that the method takes (``beta_fast``, ``factor`` beside ``to`` ...), ``base`` for abf. ``none`` takes an
    earlier extension back, and wants none of them. Raises `MethodError` for what this model or checkpoint cannot take,
    `UsageError` for lengths and settings that make no sense.
    """
    check_output(destination, source)
    weights = _shareable(weights, source)
    checkpoint = open_checkpoint(source, with_weights=weights is not Weights.NONE)
    config, settings = checkpoint.config, dict(settings or {})
    reading = read_model(config)
    if method not in RECIPES:
        _check_bare(method, to or factor or original or settings)
        return _undoing(checkpoint, reading, destination, weights)
    own = settings.pop("factor", None)
    check_settings(method, settings)
    rotation = _scaled_rotation(reading, method)
    native = native_of(reading, rotation, original, method.value, replace_existing)
    scale, length = new_length(native, to, factor, RECIPES[method], LONGEST_TOKENS, own)
    local = local_layers(reading, length)
    given = {**settings_of_class(reading, method), **settings}
    block = planned_block(method, rotation, native, scale, given)
    new = New(method, scale, length, block, style, given)
    text = text_part(config, reading.decoder.path)
    written, unsaid = rewritten_text(text, reading, native, new)
    edits = length_edits(checkpoint.directory, reading, length)
    whole = with_marker(marked(config, text, written, reading, native, new, edits.changes), **hub_entry(source))
    scaling = scaling_from_block(block.values, block.theta, new.configured_length or native.length)
    back = _read_back(whole, reading, scaling, style)
    result = Extended(
        output=str(destination),
        method=method.value,
        factor=scale,
        original_length=native.length,
        length=length,
        theta=block.theta, attention_factor=scaling.attention_factor,
        kv_cache=kv_cache(reading, length),
        changed=(*changes_of(text, written, CONFIG, reading.decoder.path), *edits.changes),
        engines=engine_flags(Case(whole, back), config, length),
        warnings=(
            *doubts(checkpoint, reading), *native.warnings, *block.warnings, *unsaid, *local, *_large(scale),
            *edits.warnings, *_version_4(reading, method, style), *_dynamic(method, native.length, length),
            *_links(weights, source),
        ),
    )  # fmt: skip
    return Extension(checkpoint, destination, weights, whole, edits, back, result)


def _check_bare(method: Method, given: object) -> None:
    """Raise `UsageError` for what writes no block of its own, and for none with anything else."""
    if method is Method.AUTO:
        raise UsageError("auto is a search, which settles on a method: see ropetool.search, or give a method")
    if given:
        raise UsageError("--method none gives the block back that was there; it takes no length and no setting")


def _undoing(checkpoint: Checkpoint, reading: Reading, destination: Path, weights: Weights) -> Extension:
    """The plan that gives back the block of before, and every length that followed it."""
    config = checkpoint.config
    whole = restored(config, reading)
    before = read_model(whole)
    rotation, path = before.rotations[0], reading.decoder.path
    edits = restored_lengths(checkpoint.directory, config)
    length = before.length or 0
    changes = changes_of(text_part(config, path), text_part(whole, path), CONFIG, path)
    result = Extended(
        output=str(destination),
        method=Method.NONE.value,
        factor=float(getattr(rotation.scaling, "factor", 1.0)),
        original_length=rotation.original_length or length,
        length=length,
        theta=rotation.scaling.theta,
        attention_factor=rotation.scaling.attention_factor,
        kv_cache=kv_cache(before, length),
        changed=(*changes, *edits.changes),
        engines=(),
        warnings=_links(weights, checkpoint.directory),
    )
    return Extension(checkpoint, destination, weights, whole, edits, before, result)


def _frequencies(rotation: Rotation) -> Floats:
    return rotation.scaling.inv_freq(rotation.geometry.rotary_dim)


def _scaled_rotation(reading: Reading, method: Method) -> Rotation:
    """The rotation that an extension scales; raises `MethodError` where the class takes no such method."""
    family, kinds = reading.family, reading.family.kinds
    reason = family.methods_reason if family.methods is not None and method.value not in family.methods else ""
    if not family.theta_keys and not kinds:
        reason = reason or "its class has the base fixed"
    if reason:
        can = ", ".join(m.value for m in RECIPES if family.methods is not None and m.value in family.methods) or "none"
        raise MethodError(
            f"{method.value} cannot be had for {reading.model_type} by its config: {reason}. Methods that it can take: "
            f"{can}",
            model_type=reading.model_type,
            method=method.value,
        )
    return reading.rotations[0]


def _read_back(whole: Mapping[str, Any], reading: Reading, planned: Scaling, style: Style) -> Reading:
    """Read the new config as its class will: what was planned must be there, and the other layers as they were."""
    try:
        back = read_model(whole)
        others = zip(back.rotations[1:], reading.rotations[1:], strict=True)
        same = back.rotations[0].scaling == planned and all(new.scaling == old.scaling for new, old in others)
        said = f"it would read {back.rotations[0].scaling}, not {planned}"
    except ConfigError as error:
        same, said = False, error.message
    if not same:
        raise MethodError(
            f"written in style {style.value}, the class of {reading.model_type} would not turn as planned: {said}; try "
            f"another --style",
            model_type=reading.model_type,
            style=style.value,
        )
    return back


def _version_4(reading: Reading, method: Method, style: Style) -> tuple[Warn, ...]:
    untaken = UNTAKEN.get(reading.family.model_type)
    if style is Style.V5 or untaken is None or method.value not in untaken.methods:
        return ()
    message = f"transformers 4.57 would not compute {method.value} for {reading.model_type}: {untaken.reason}"
    return (Warn("not-in-version-4", message),)


def _large(factor: float) -> tuple[Warn, ...]:
    if factor <= TUNING_FACTOR:
        return ()
    message = (
        f"a factor of {factor:g} without tuning: pairs that never completed a turn in training are squeezed so far "
        f"that quality usually falls; measure it with `ropetool evaluate`, or tune the model at the new length"
    )
    return (Warn("large-factor", message),)


def _dynamic(method: Method, original: int, length: int) -> tuple[Warn, ...]:
    if method is not Method.DYNAMIC:
        return ()
    message = (
        f"max_position_embeddings is {original}, the trained length, where dynamic takes it from: give the {length} "
        f"tokens to the engine that serves it. Keys that were cached before the base moves are not turned again"
    )
    return (Warn("length-not-in-config", message),)


def _shareable(weights: Weights, source: Path) -> Weights:
    """Copies instead of links where the source lies in the Hub's cache, which is not ropetool's to share."""
    return Weights.COPY if weights is Weights.LINK and origin(source) else weights


def _links(weights: Weights, source: Path) -> tuple[Warn, ...]:
    if weights is Weights.COPY and origin(source):
        said = "the source lies in the Hub's cache, whose files must never change: the weights are copied, not linked"
        return (Warn("weights-copied", said),)
    if weights is not Weights.LINK:
        return ()
    said = "weights share their storage with the source (hard links); use --weights copy for a copy"
    return (Warn("weights-linked", said),)


def apply(extension: Extension, progress: Callable[[int], None] = no_progress) -> Extended:
    """Carry out a planned extension. The output appears under its name only when it is whole."""
    checkpoint = extension.checkpoint
    files = side_files(checkpoint)
    if extension.weights is Weights.COPY:
        check_room(extension.destination, checkpoint, files)
    with staged(extension.destination, like=checkpoint.directory) as stage:
        _bring_weights(extension, stage, progress)
        copy_side_files(checkpoint, stage, files)
        checkpoint.check_unchanged()
        for name, content in {**extension.edits.files, CONFIG: protected(extension.config)}.items():
            (stage / name).write_text(to_json(content), encoding="utf-8")
    return extension.result


def _bring_weights(extension: Extension, stage: Path, progress: Callable[[int], None]) -> None:
    """Link or copy every shard; one that holds saved frequencies is copied, and gets the new ones."""
    stale = [
        (shard, tensor)
        for shard, tensor in saved_frequencies(extension.checkpoint)
        if _follows(extension, shard, tensor)
    ]
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


def _follows(extension: Extension, shard: Shard, tensor: Tensor) -> bool:
    """Whether a saved table is of the layers that were scaled: not a tower's, nor one of another kind of layer."""
    if extension.reading.decoder.tower_of(tensor.name):
        return False
    saved = read_floats(shard, tensor)
    others = [_frequencies(rotation) for rotation in extension.reading.rotations[1:]]
    return not any(
        saved is not None and saved.shape == other.shape and np.allclose(saved, other, rtol=ROUNDED) for other in others
    )


def _link(shard: Shard, target: Path) -> bool:
    """Hard-link; False where the file system cannot (another device, for one)."""
    try:
        os.link(shard.data.resolve(), target)
    except OSError:
        return False
    return True
