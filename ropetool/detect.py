"""Inspect: what a checkpoint's RoPE is, and which witness says so.

Reads config.json and shard headers only, and with ``weights`` some rows of q and k; with ``code`` alone torch is needed
for a type of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint.adapter import ADAPTER_PICKLE, ADAPTER_SINGLE, is_adapter, open_adapter
from ropetool.checkpoint.folder import (
    CONFIG,
    Checkpoint,
    checkpoint_directory,
    has_guard,
    open_checkpoint,
    read_config,
    side_files,
)
from ropetool.checkpoint.foreign import Format, format_without_config, params_of
from ropetool.checkpoint.pickled import pickled_files
from ropetool.engines.declared import declared_keys
from ropetool.errors import NoRotaryError, QuantisedError, RopetoolError, UnknownFamilyError, UsageError
from ropetool.families.buffers import stale_frequency_warnings
from ropetool.families.foreign import (
    foreign_format,
    format_warning,
    names_evidence,
    native_numbers,
)
from ropetool.families.joined import Verdict, join
from ropetool.families.plan import plan_conversion
from ropetool.families.positions import INSTEAD_OF_ROPE, Position, claims_of, said
from ropetool.families.positions_seen import Seen, seen_by_both, seen_by_tensors, speaks_of_rope
from ropetool.families.protection import stock_is_right, who_runs_it
from ropetool.families.reading import Evidence, Reading, Rotation, Warn
from ropetool.families.towers import tower_warnings, towers_of
from ropetool.families.trained_length import TrainedLength, declared_length, length_warnings
from ropetool.models.understand import understand
from ropetool.models.witnesses import Asked, Talk, by_code, by_text, by_weights, unheard
from ropetool.rope.frequencies import Scaling

if TYPE_CHECKING:
    from ropetool.models.text_findings import TextLosses


@dataclass(frozen=True)
class RopeFact:
    """The rotation of one kind of layer, as numbers. Lengths in tokens, dims in rows; None: not applicable."""

    layers: str
    type: str
    theta: float
    theta_source: str
    factor: float | None
    original_length: int | None
    length: int | None
    attention_factor: float
    head_dim: int
    rotary_dim: int


@dataclass(frozen=True)
class Moves:
    """What a conversion would rewrite."""

    tensors: int
    bytes: int
    share: float


@dataclass(frozen=True)
class Inspection:
    """The verdict on one checkpoint, with its evidence. ``pairing`` and ``verdict`` are None for a model without RoPE.

    ``towers`` are the parts beside the text decoder, each with the number of its tensors. ``text`` are the losses of a
    text, where one was read.
    """

    checkpoint: str
    model_type: str
    scheme: str
    pairing: str | None
    evidence: tuple[Evidence, ...]
    rope: tuple[RopeFact, ...]
    heads: Mapping[str, int]
    nope_layers: tuple[int, ...]
    moves: Moves | None
    towers: Mapping[str, int]
    warnings: tuple[Warn, ...]
    scheme_detail: tuple[Position, ...] = ()
    verdict: Verdict | None = None
    trained_length: TrainedLength | None = None
    text: TextLosses | None = None


def inspect(
    path: Path,
    *,
    base: Path | None = None,
    trust_remote_code: bool = False,
    code: bool = False,
    weights: bool = False,
    text: str | None = None,
    talk: Talk = lambda message: None,
) -> Inspection:
    """Inspect the checkpoint at ``path``; a directory with config.json alone is enough for all but ``moves``.

    An adapter is read through its base, ``base`` or the one that it names. With ``trust_remote_code``, code in the
    checkpoint is run to read it. Further witnesses, each where it is asked: ``code`` is the model's class, ``weights``
    are the rows of q and k, and with ``text`` the checkpoint reads it, which tells layout, base and trained length.
    Raises `RopetoolError` for a checkpoint that cannot be read. A model without RoPE is not an error here, nor are
    witnesses who contradict each other.
    """
    asked = Asked(code, weights, text, trust_remote_code, talk)
    if is_adapter(path):
        return _adapter(path, base, asked)
    if base is not None:
        raise UsageError(f"--base is for an adapter, and {path} is a whole checkpoint; leave it out")
    form = _format_alone(path)
    if form is not None:
        return _native(path, form, asked)
    config = read_config(path)
    claims = claims_of(config)
    if claims:
        return _without_rope(path, config, seen_by_both(claims, _opened(path)[0]), asked)
    try:
        reading = understand(path, config, trust_remote_code=trust_remote_code)
    except (NoRotaryError, UnknownFamilyError) as error:
        seen = _seen_instead(path, config, error)
        if seen is None:
            raise
        return _without_rope(path, config, seen, asked)
    return _rotary(path, config, reading, asked)


def _rotary(path: Path, config: Mapping[str, Any], reading: Reading, asked: Asked) -> Inspection:
    """The facts of a model that rotates, and the verdict on its layout."""
    checkpoint, absent = _opened(path)
    form = foreign_format(checkpoint, reading) if checkpoint else None
    moves, towers, weight_warnings = _held(checkpoint, reading, form) if checkpoint else (None, {}, absent)
    keys, key_warnings = declared_keys(reading)
    text = by_text(path, reading, asked)
    lengths = text.lengths if text else declared_length(path, reading)
    evidence = (
        *((names_evidence(form, reading.model_type),) if form else ()), *reading.evidence, *keys,
        *by_code(path, config, reading, asked), *by_weights(checkpoint, reading, form, asked),
        *((text.evidence,) if text else ()),
    )  # fmt: skip
    verdict = join(evidence)
    return Inspection(
        checkpoint=str(path),
        model_type=reading.model_type,
        scheme="rope",
        pairing=verdict.pairing,
        evidence=evidence,
        rope=tuple(_fact(reading, rotation) for rotation in reading.rotations),
        heads={"query": reading.geometry.heads, "key_value": reading.geometry.kv_heads},
        nope_layers=tuple(sorted(reading.nope_layers)),
        moves=moves,
        towers=towers,
        warnings=(
            *verdict.warnings, *reading.warnings, *key_warnings,
            *(() if form or verdict.stops else _mismatch(path, config, reading)), *weight_warnings,
            *(text.warnings if text else length_warnings(lengths)),
        ),
        verdict=verdict,
        trained_length=lengths,
        text=text.losses if text else None,
    )  # fmt: skip


def _format_alone(path: Path) -> Format | None:
    """The format of a checkpoint that has no config.json; None where it has one, or is of no format that is known."""
    directory = checkpoint_directory(path)
    return None if (directory / CONFIG).exists() else format_without_config(directory)


def _native(path: Path, form: Format, asked: Asked) -> Inspection:
    """What the names of tensors and files say, and params.json, of a checkpoint without config.json."""
    told = native_numbers(params_of(checkpoint_directory(path)))
    evidence = (names_evidence(form, None), *unheard(asked, f"there is no {CONFIG}, and the tensors have {form.title}"))
    verdict = join(evidence)
    facts = (
        RopeFact(
            "all", "default", told.theta, "params.json: rope_theta", None, None, told.length, 1.0, told.head_dim,
            told.head_dim,
        ),
    ) if told.theta and told.head_dim else ()  # fmt: skip
    return Inspection(
        str(path), "unknown", "rope", verdict.pairing, evidence, facts, told.heads, (), None, {},
        (format_warning(form), *told.warnings), verdict=verdict,
    )  # fmt: skip


def _adapter(path: Path, given_base: Path | None, asked: Asked) -> Inspection:
    """The adapter's own layout and moves; everything else is its base's."""
    from ropetool.families.adapter import plan_adapter, read_adapter

    pickled = bool(pickled_files(path))
    checkpoint = open_adapter(path, with_weights=not pickled)
    adapter = read_adapter(checkpoint, given_base)
    whole = inspect(adapter.base)
    moves, warnings = None, adapter.reading.warnings
    if pickled:
        said = f"the weights are {ADAPTER_PICKLE}, which is not read here; convert does, and writes {ADAPTER_SINGLE}"
        warnings = (Warn("no-weights", said), *warnings)
    else:
        plan = plan_adapter(adapter, adapter.pairing.other)
        moves = Moves(len(plan.moves), plan.size_bytes, plan.size_bytes / max(checkpoint.size_bytes, 1))
    if adapter.reading.pairing is not adapter.pairing:
        said = (
            f"the adapter is {adapter.pairing.value}, and its base {adapter.base} {adapter.reading.pairing.value}: "
            f"together they are silently wrong; use it with the base converted to {adapter.pairing.value}"
        )
        warnings = (Warn("base-of-other-layout", said), *warnings)
    apart = "an adapter shows and reads nothing by itself; inspect its base, or merge it and inspect that"
    evidence = (*adapter.evidence, *unheard(asked, apart))
    return replace(
        whole, checkpoint=str(path), pairing=adapter.pairing.value, evidence=evidence, moves=moves,
        warnings=warnings, verdict=join(evidence),
    )  # fmt: skip


def _without_rope(path: Path, config: Mapping[str, Any], seen: Seen, asked: Asked) -> Inspection:
    model_type = str(config.get("model_type"))
    warnings = [Warn("no-rope", f"{model_type} has no rotary position embedding: {said(seen.positions)}")]
    if asked.names:
        would = f"{' and '.join(asked.names)} would tell of a rotation; there is none, so nothing was asked"
        warnings.append(Warn("not-asked", would))
    return Inspection(
        str(path), model_type, seen.positions[0].scheme, None, seen.evidence, (), {}, (), None, {},
        (*warnings, *seen.warnings), seen.positions,
    )  # fmt: skip


def _seen_instead(path: Path, config: Mapping[str, Any], error: RopetoolError) -> Seen | None:
    """What there is where no RoPE was found: by the config of a type that has it in others, or by tensors alone."""
    checkpoint, _ = _opened(path)
    claims = claims_of(config, INSTEAD_OF_ROPE) if "scheme" in error.fields else ()
    if claims:
        return seen_by_both(claims, checkpoint)
    if checkpoint is None or "scheme" in error.fields or speaks_of_rope(config):
        return None
    seen = seen_by_tensors(checkpoint)
    if seen is None:
        return None
    so_far = Warn("scheme-by-tensors", f"named by its tensors alone, for {error.message}")
    return replace(seen, warnings=(so_far,))


def scaling_factor(scaling: Scaling) -> float | None:
    """The factor of a scaling method, None where it has none."""
    factor = getattr(scaling, "factor", None)
    return None if factor is None else float(factor)


def _fact(reading: Reading, rotation: Rotation) -> RopeFact:
    scaling = rotation.scaling
    return RopeFact(
        layers=rotation.layers,
        type=scaling.name,
        theta=scaling.theta,
        theta_source=rotation.theta_source,
        factor=scaling_factor(scaling),
        original_length=rotation.original_length,
        length=reading.length,
        attention_factor=scaling.attention_factor,
        head_dim=reading.geometry.head_dim,
        rotary_dim=rotation.geometry.rotary_dim,
    )


def _mismatch(path: Path, config: Mapping[str, Any], reading: Reading) -> tuple[Warn, ...]:
    if stock_is_right(reading):
        return ()
    loaded = (
        f"its config.json is guarded, so plain transformers refuses to load it; {who_runs_it(config, reading)}"
        if has_guard(path)
        else "loaded by stock code this checkpoint is silently wrong"
    )
    return (
        Warn(
            "class-rotates-other-layout",
            f"the weights are {reading.pairing.value}, but the stock class of {reading.model_type} rotates "
            f"{reading.class_pairing.value}: {loaded}",
        ),
    )


def _opened(path: Path) -> tuple[Checkpoint | None, tuple[Warn, ...]]:
    """The checkpoint with its weights' headers; where there are none, a warning that says so."""
    try:
        return open_checkpoint(path), ()
    except RopetoolError as error:
        if error.code != "missing-file":
            raise
        return None, (Warn("no-weights", error.message),)


def _held(
    checkpoint: Checkpoint, reading: Reading, form: Format | None
) -> tuple[Moves | None, Mapping[str, int], tuple[Warn, ...]]:
    """What a conversion would move, the other parts, and warnings from the headers."""
    if form is not None:
        return None, {}, (format_warning(form),)
    towers = towers_of(checkpoint, reading.decoder)
    moves, refused = (None, ()) if reading.refusal else _moves(checkpoint, reading)
    stale = tuple(
        Warn("stale-copy", f"{name} lies in {shard.path.name} too, where the index does not look for it")
        for shard, name in checkpoint.stale_copies
    )
    left = side_files(checkpoint).left
    other = (Warn("other-weights", f"{len(left)} files hold other weights: {_some(left)}"),) if left else ()
    warnings = (*refused, *tower_warnings(towers), *stale, *other, *stale_frequency_warnings(checkpoint, reading))
    return moves, towers, warnings


def _moves(checkpoint: Checkpoint, reading: Reading) -> tuple[Moves | None, tuple[Warn, ...]]:
    """What a conversion would rewrite, or why a quantised form forbids one."""
    try:
        plan = plan_conversion(checkpoint, reading, reading.pairing, reading.pairing.other)
    except QuantisedError as error:
        return None, (Warn("cannot-convert", error.message),)
    return Moves(len(plan.moves), plan.size_bytes, plan.size_bytes / max(checkpoint.size_bytes, 1)), ()


def _some(paths: tuple[Path, ...]) -> str:
    names = [str(path) for path in paths[:4]]
    return ", ".join(names) + (", ..." if len(paths) > 4 else "")
