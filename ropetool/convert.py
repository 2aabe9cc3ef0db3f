"""Convert a checkpoint between the two layouts: copy every file, then rewrite only the rows that move."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool import __version__
from ropetool.checkpoint.config import text_config, with_marker
from ropetool.checkpoint.folder import (
    CONFIG,
    Checkpoint,
    SideFiles,
    check_output,
    check_space,
    copy_side_files,
    open_checkpoint,
    side_files,
    staged,
)
from ropetool.checkpoint.shards import copy_file, no_progress, patch_rows
from ropetool.engines.names import EngineName
from ropetool.engines.writing import WrittenFor, disagreeing_keys, loads_in, without_engine, written_for
from ropetool.errors import AlreadyConvertedError, ConfigError, UnsupportedError
from ropetool.families.lengths import to_json
from ropetool.families.plan import Plan, plan_conversion
from ropetool.families.protection import protected, stock_is_right
from ropetool.families.reading import Reading, Warn, read_model
from ropetool.families.twins import SAME, Choice, choose_twin, tokenizer_warnings
from ropetool.rope.pairing import Pairing


@dataclass(frozen=True)
class Conversion:
    """A planned conversion: everything that was checked before the first byte is written."""

    checkpoint: Checkpoint
    reading: Reading
    plan: Plan
    files: SideFiles
    destination: Path
    config: dict[str, Any]
    engine: WrittenFor | None
    written_as: Choice
    warnings: tuple[Warn, ...]

    @property
    def total_bytes(self) -> int:
        """Bytes of all shards, for progress."""
        return sum(shard.size_bytes for shard in self.checkpoint.shards)


@dataclass(frozen=True)
class Converted:
    """What was (or, with a dry run, would be) done. ``written_as`` is the twin's type, where the result is one's."""

    output: str
    source: str
    target: str
    model_type: str
    written_as: str | None
    tensors: int
    bytes: int
    seconds: float
    loads_in: tuple[str, ...]
    engine: WrittenFor | None
    warnings: tuple[Warn, ...]


def plan(
    source: Path,
    destination: Path,
    to: Pairing,
    declared: Pairing | None = None,
    written_as: str | None = None,
    *,
    engine: EngineName | None = None,
) -> Conversion:
    """Check everything and plan the conversion of ``source`` to layout ``to``.

    ``declared`` overrides the layout that the config's witnesses give, except a marker that contradicts it.
    ``written_as`` is the type to write the result for: a twin's, or ``same``; None takes a twin where one can express
    the model (with ``engine`` only where that engine would not read the same type). With ``engine`` the config says
    what that engine reads. Raises `RopetoolError` for anything that would make the result inexact, `UnsupportedError`
    for an engine that would read it wrongly.
    """
    check_output(destination, source)
    checkpoint = open_checkpoint(source)
    reading = read_model(checkpoint.config)
    current = _current(reading, declared)
    if current is to:
        because = "you say so" if declared else reading.evidence[0].detail
        raise AlreadyConvertedError(
            f"{source} is {to.value} already ({because}); nothing to convert", pairing=to.value, evidence=because
        )
    steps = plan_conversion(checkpoint, reading, current, to)
    files = side_files(checkpoint)
    choice, config, told = _written(checkpoint, reading, to, written_as, engine)
    warnings = (
        *_warnings(checkpoint, files),
        *_twin_warnings(checkpoint, reading, choice),
        *_loading_warnings(config, told),
        *disagreeing_keys(config, to),
    )
    return Conversion(checkpoint, reading, steps, files, destination, config, told, choice, warnings)


def _written(
    checkpoint: Checkpoint, reading: Reading, to: Pairing, written_as: str | None, engine: EngineName | None
) -> tuple[Choice, dict[str, Any], WrittenFor | None]:
    """The config to write: of which type, and for which engine.

    An engine gets the type that the model has, if it reads that; else a twin's.
    """
    source = without_engine(checkpoint.config)
    if engine is None:
        choice = choose_twin(source, reading, to, written_as)
        return choice, _config_after(choice.config or source, reading, to), None
    choice = choose_twin(source, reading, to, written_as or SAME)
    try:
        return choice, *written_for(_config_after(choice.config or source, reading, to), engine)
    except UnsupportedError as refusal:
        twin = choice if written_as is not None else choose_twin(source, reading, to, None)
        if twin.config is None or twin is choice:
            raise
        with suppress(UnsupportedError):
            return twin, *written_for(_config_after(twin.config, reading, to), engine)
        raise refusal


def _current(reading: Reading, declared: Pairing | None) -> Pairing:
    marked = reading.evidence[0]
    if declared and marked.source == "marker" and marked.says != declared.value:
        raise ConfigError(
            f"--from says {declared.value}, but config.json was marked {marked.says} when ropetool wrote it; "
            f"leave out --from, or remove the marker if the weights were changed since",
            key="ropetool.pairing",
        )
    return declared or reading.pairing


def _warnings(checkpoint: Checkpoint, files: SideFiles) -> Iterator[Warn]:
    for path in files.left:
        yield Warn("left-behind", f"{path} was not copied: other weights, or a large file of unknown kind")
    for shard, name in checkpoint.stale_copies:
        yield Warn("stale-copy", f"{name} also lies in {shard.path.name}, unmapped; that copy is permuted alike")


def _twin_warnings(checkpoint: Checkpoint, reading: Reading, choice: Choice) -> Iterator[Warn]:
    yield from choice.warnings
    if choice.config is not None:
        yield from tokenizer_warnings(checkpoint.directory, reading.model_type, choice.model_type)


def _loading_warnings(config: Mapping[str, Any], engine: WrittenFor | None) -> Iterator[Warn]:
    """What a person must know who loads the result by plain transformers."""
    after = read_model(config)
    if stock_is_right(after):
        return
    loaded = (
        "the config.json of the result is guarded: plain transformers refuses to load it, and ropetool.load(path) runs "
        "it right"
        if engine is None
        else f"the result is for {engine.engine}, and loaded by plain transformers it is silently wrong"
    )
    said = f"the stock class of {after.model_type} rotates {after.class_pairing.value}; {loaded}"
    yield Warn("class-rotates-other-layout", said)


def apply(conversion: Conversion, progress: Callable[[int], None] = no_progress, *, sync: bool = False) -> Converted:
    """Carry out a planned conversion. The output appears under its name only when it is whole.

    ``progress`` is called with bytes as they are copied; with ``sync`` the result survives a power cut.
    """
    began = time.perf_counter()
    checkpoint, steps = conversion.checkpoint, conversion.plan
    check_space(conversion.destination.resolve().parent, conversion.total_bytes)
    with staged(conversion.destination, sync=sync) as stage:
        for shard in checkpoint.shards:
            target = stage / shard.path.name
            copy_file(shard.path, target, progress)
            for move in steps.of_shard(shard):
                patch_rows(target, move.tensor, move.permutation.index, move.permutation.blocks)
        copy_side_files(checkpoint, stage, conversion.files)
        (stage / CONFIG).write_text(to_json(protected(conversion.config)), encoding="utf-8")
    return _result(conversion, time.perf_counter() - began)


def preview(conversion: Conversion) -> Converted:
    """What `apply` would do."""
    return _result(conversion, 0.0)


def _result(conversion: Conversion, seconds: float) -> Converted:
    steps = conversion.plan
    return Converted(
        output=str(conversion.destination),
        source=steps.source.value,
        target=steps.target.value,
        model_type=conversion.written_as.model_type,
        written_as=conversion.written_as.model_type if conversion.written_as.config else None,
        tensors=len(steps.moves),
        bytes=steps.size_bytes,
        seconds=seconds,
        loads_in=loads_in(conversion.config),
        engine=conversion.engine,
        warnings=conversion.warnings,
    )


def _config_after(config: Mapping[str, Any], reading: Reading, target: Pairing) -> dict[str, Any]:
    """The config with the marker, and with the key that the class obeys where it has one."""
    config = with_marker(config, version=__version__, pairing=target.value)
    key = reading.family.pairing_key
    if key is not None:
        value = target is Pairing.INTERLEAVED
        if text_config(config) is config:
            config[key] = value
        else:
            config["text_config"] = {**config["text_config"], key: value}
    return config
