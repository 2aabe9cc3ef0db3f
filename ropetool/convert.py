"""Convert a checkpoint between the two layouts: copy every file, then rewrite only the rows that move."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool import __version__
from ropetool.checkpoint import in_place
from ropetool.checkpoint.adapter import BASE_KEY, adapter_side_files, is_adapter, open_adapter
from ropetool.checkpoint.config import with_marker
from ropetool.checkpoint.copying import copied, side_by_side
from ropetool.checkpoint.folder import (
    ADAPTER_CONFIG,
    CONFIG,
    Checkpoint,
    SideFiles,
    check_output,
    check_room,
    copy_side_files,
    open_checkpoint,
    side_files,
    staged,
)
from ropetool.checkpoint.headers import hub_entry
from ropetool.checkpoint.in_place import Change
from ropetool.checkpoint.lock import exclusive
from ropetool.checkpoint.pickled import pickled_files
from ropetool.checkpoint.pieces import move
from ropetool.checkpoint.shards import Progress, Shard, copy_without, no_progress, read_shard
from ropetool.engines.declared import declared_keys
from ropetool.engines.names import EngineName
from ropetool.engines.output import output_config
from ropetool.engines.writing import WrittenFor, loads_in
from ropetool.errors import AlreadyConvertedError, ConfigError, NotVerifiedError, UnsupportedError, UsageError
from ropetool.families.adapter import plan_adapter, read_adapter, written_config
from ropetool.families.beside import but_for, left_behind, not_in_place, source_warnings
from ropetool.families.doubt import check_layout
from ropetool.families.foreign import refuse_foreign
from ropetool.families.lengths import to_json
from ropetool.families.moving import pieces_of
from ropetool.families.plan import Plan, plan_conversion
from ropetool.families.reading import Evidence, Reading, Warn
from ropetool.families.twins import tokenizer_warnings
from ropetool.models.understand import understand
from ropetool.rope.pairing import Pairing

if TYPE_CHECKING:
    from ropetool.models.pickles import Pickled

# What `apply` may be given to look at the result before it gets its name: true if it may have it.
Check = Callable[[Path], bool]
_OF_THE_READING = ("read-by-probe", "custom-code", "buffers-unfilled", "null-share")


@dataclass(frozen=True)
class Conversion:
    """A planned conversion: everything that was checked before the first byte is written.

    ``config`` is what the file ``config_file`` of the result will say; ``twin`` is the type that it is written as,
    where that is another one. ``pickled`` is the source as it will be in safetensors, where it is not yet. ``in_place``
    tells that ``destination`` is the directory of the source. ``ask_weights``, if given, is still to be asked whether
    the weights contradict the config: it raises, or returns warnings.
    """

    checkpoint: Checkpoint
    reading: Reading
    plan: Plan
    files: SideFiles
    destination: Path
    config_file: str
    config: dict[str, Any]
    loads_in: tuple[str, ...] = ()
    twin: str | None = None
    engine: WrittenFor | None = None
    pickled: Pickled | None = None
    warnings: tuple[Warn, ...] = ()
    in_place: bool = False
    ask_weights: Callable[[], tuple[Warn, ...]] | None = None

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
    destination: Path | None,
    to: Pairing,
    declared: Pairing | None = None,
    written_as: str | None = None,
    *,
    engine: EngineName | None = None,
    base: Path | None = None,
    trust_remote_code: bool = False,
    heard: Sequence[Evidence] = (),
    weights_later: bool = False,
) -> Conversion:
    """Check everything and plan the conversion of ``source``, a checkpoint or an adapter, to layout ``to``.

    Without a ``destination`` it is converted in place: `apply` then writes only the rows that move, under a journal.
    ``declared`` overrides the layout that the config's witnesses give, except a marker that contradicts it. Without it,
    the weights are asked, and ``heard`` is what others said who were (the text): where one of them surely contradicts
    the config, nothing is planned; with it, that is a warning. With ``weights_later`` the weights of a copy are asked
    by `apply`, beside the copying, and where they contradict nothing is kept.
    ``written_as`` is the type to write the result for, a twin's or ``same``, and ``engine`` who shall read it: see
    `engines.output`. ``base`` is the model of an adapter that names none. With ``trust_remote_code``, code in it is run
    to read the checkpoint. Raises `RopetoolError` for anything that would make the result inexact, or read wrongly.
    """
    if destination:
        check_output(destination, source)
    pickled = _pickled(source)
    if is_adapter(source):
        if written_as or engine:
            raise UsageError(f"--as and --for are for a whole checkpoint, and {source} is an adapter; leave them out")
        return _placed(_plan_adapter(source, destination or source, to, declared, base, pickled), destination)
    if base is not None:
        raise UsageError(f"--base is for an adapter, and {source} is a whole checkpoint; leave it out")
    checkpoint = pickled.checkpoint if pickled else open_checkpoint(source)
    reading = _convertible(source, checkpoint, trust_remote_code)
    current = _current(reading, declared)
    read, others = pickled.floats if pickled else None, (*declared_keys(reading)[0], *heard)
    ask = partial(check_layout, checkpoint, reading, declared, others, read)
    later = weights_later and destination is not None and current is not to and not heard
    doubted = () if later else ask()
    if current is to:
        raise _already(source, to, "you say so" if declared else reading.evidence[0].detail)
    steps = plan_conversion(checkpoint, reading, current, to)
    output = output_config(checkpoint.config, reading, to, written_as, engine)
    files = but_for(side_files(checkpoint), pickled.files if pickled else ())
    planned = Conversion(
        checkpoint, reading, steps, files, destination or checkpoint.directory, CONFIG,
        with_marker(output.guarded, **hub_entry(source)), loads_in(output.config, output.reading), output.twin,
        output.engine, pickled,
        (
            *doubted,
            *(warning for warning in reading.warnings if warning.code in _OF_THE_READING),
            *(pickled.warnings if pickled else ()),
            *source_warnings(checkpoint, reading, files, read, stay=destination is None),
            *output.warnings(to),
            *(tokenizer_warnings(checkpoint.directory, reading.model_type, output.twin) if output.twin else ()),
        ),
        ask_weights=ask if later else None,
    )  # fmt: skip
    return _placed(planned, destination)


def _placed(conversion: Conversion, destination: Path | None) -> Conversion:
    """The conversion as it is, or in place; raises `UnsupportedError` for what cannot be done without a second copy."""
    if destination is not None:
        return conversion
    reason = not_in_place(conversion.checkpoint, conversion.files, conversion.config_file)
    if conversion.pickled:
        reason = "its weights are pickles, and the result is safetensors"
    elif conversion.reading.family.probed:
        reason = (
            f"{conversion.reading.family.source}; such a result must be verified before it takes the source's place"
        )
    if reason:
        where = conversion.checkpoint.directory
        raise UnsupportedError(
            f"{where} cannot be converted in place: {reason}; convert it to another directory", path=str(where)
        )
    return replace(conversion, in_place=True)


def _pickled(source: Path) -> Pickled | None:
    """The checkpoint as it will be in safetensors, where it is not yet; torch is needed to read it."""
    if not pickled_files(source):
        return None
    from ropetool.models.pickles import open_pickled

    return open_pickled(source)


def _convertible(source: Path, checkpoint: Checkpoint, trust_remote_code: bool) -> Reading:
    reading = understand(source, checkpoint.config, trust_remote_code=trust_remote_code)
    _check_convertible(reading)
    refuse_foreign(checkpoint, reading)
    return reading


def _check_convertible(reading: Reading) -> None:
    if reading.refusal:
        raise UnsupportedError(
            f"this {reading.model_type} cannot be converted: {reading.refusal}", reason=reading.refusal
        )


def _already(source: Path, to: Pairing, because: str) -> AlreadyConvertedError:
    return AlreadyConvertedError(
        f"{source} is {to.value} already ({because}); nothing to convert", pairing=to.value, evidence=because
    )


def _current(reading: Reading, declared: Pairing | None) -> Pairing:
    marked = reading.evidence[0]
    if declared and marked.source == "marker" and marked.says != declared.value:
        raise ConfigError(
            f"--from says {declared.value}, but config.json was marked {marked.says} when ropetool wrote it; "
            f"leave out --from, or remove the marker if the weights were changed since",
            key="ropetool.pairing",
        )
    return declared or reading.pairing


def _plan_adapter(
    source: Path, destination: Path, to: Pairing, declared: Pairing | None, base: Path | None, pickled: Pickled | None
) -> Conversion:
    adapter = read_adapter(pickled.checkpoint if pickled else open_adapter(source), base, declared)
    _check_convertible(adapter.reading)
    if adapter.uncertain:
        raise UsageError(
            f"{adapter.base} was converted to {adapter.pairing.value} by ropetool, and the adapter does not say if "
            f"it was trained before or after; give the layout of the adapter by --from",
            base=str(adapter.base),
            pairing=adapter.pairing.value,
        )
    if adapter.pairing is to:
        raise _already(source, to, adapter.evidence[0].detail)
    steps, files = plan_adapter(adapter, to), adapter_side_files(adapter.checkpoint)
    if not steps.moves:
        raise UnsupportedError(f"nothing in {source} depends on the layout: use it as it is with either base")
    if adapter.reading.pairing is to:
        said = f"use the result with {adapter.base_name}, its base in the {to.value} layout, and with no other"
    else:
        said = (
            f"use the result only with {adapter.base_name} converted to {to.value}: with the base as it is, it would "
            f"be silently wrong. So that nothing loads that by itself, {BASE_KEY} is empty in the result"
        )
    warnings = (Warn("adapter-base", said), *(pickled.warnings if pickled else ()), *left_behind(files))
    return Conversion(
        adapter.checkpoint, adapter.reading, steps, files, destination, ADAPTER_CONFIG,
        with_marker(written_config(adapter, to, __version__), **hub_entry(source)), pickled=pickled, warnings=warnings,
    )  # fmt: skip


def apply(
    conversion: Conversion,
    progress: Callable[[int], None] = no_progress,
    *,
    sync: bool | None = None,
    check: Check | None = None,
    break_links: bool = False,
) -> Converted:
    """Carry out a planned conversion. The output appears under its name only when it is whole.

    ``progress`` is called with bytes as they are copied; with ``sync`` the result survives a power cut. In place it is
    called with bytes as they are moved; ``sync`` is on unless it is turned off, and ``break_links`` puts copies in the
    place of shards that have other names. Interrupted there, `resume` or `undo` ends it from any point, and every other
    reader of ropetool refuses the directory. ``check`` is
    called with the whole result before it has its name; where it says no, nothing is kept. A model type that was read
    by the probe is not converted without one (`ropetool.verify.verify(source, result).passed` is what it should be).

    Raises `NotVerifiedError` where ``check`` says no.
    """
    if conversion.reading.family.probed and check is None:
        raise UsageError(
            f"{conversion.reading.family.source}; such a result must be verified before it gets its name: give apply a "
            f"check, as lambda result: verify(source, result).passed"
        )
    if conversion.in_place:
        return _apply_in_place(conversion, progress, sync is not False, check, break_links)
    began = time.perf_counter()
    checkpoint = conversion.checkpoint
    check_room(conversion.destination, checkpoint, conversion.files)
    with staged(conversion.destination, like=checkpoint.directory, sync=bool(sync)) as stage:
        conversion = _written(conversion, stage, progress)
        copy_side_files(checkpoint, stage, conversion.files)
        checkpoint.check_unchanged()
        if conversion.pickled:
            conversion.pickled.write_index(stage)
        (stage / conversion.config_file).write_text(to_json(conversion.config), encoding="utf-8")
        result = _result(conversion, time.perf_counter() - began)
        if check is not None and not check(stage):
            raise NotVerifiedError(
                f"{conversion.destination} did not pass its check and was not kept", path=str(conversion.destination)
            )
    return result


def _written(conversion: Conversion, stage: Path, progress: Progress) -> Conversion:
    """Write all shards, and ask the weights meanwhile where that is yet to be done; the conversion with the answer."""
    said: list[Warn] = []
    ask = conversion.ask_weights
    jobs: list[Callable[[Progress], None]] = [lambda progress: said.extend(ask())] if ask else []
    largest_first = sorted(conversion.checkpoint.shards, key=lambda shard: -shard.size_bytes)
    jobs += [partial(_write, conversion, stage, shard) for shard in largest_first]
    side_by_side(lambda job, progress: job(progress), jobs, progress)
    return replace(conversion, warnings=(*said, *conversion.warnings), ask_weights=None)


def _write(conversion: Conversion, stage: Path, shard: Shard, progress: Progress) -> None:
    """Write one shard of the result: the rows that move from the source to where they go, the rest as it is.

    Where it is no plain copy (a pickle, or a shard with tensors that the index looks for in another), it is written
    first, and the rows are moved within it.
    """
    target, steps = stage / shard.path.name, conversion.plan.of_shard(shard)
    stale = {name for where, name in conversion.checkpoint.stale_copies if where is shard}
    if not conversion.pickled and not stale:
        pieces = pieces_of(steps)
        with copied(shard.data, target, [piece.range for piece in pieces], progress) as (reader, writer):
            move(pieces, reader, writer, progress)
        return
    if conversion.pickled:
        conversion.pickled.write(shard, target, progress)
    else:
        copy_without(shard, target, stale, progress)
        tensors = read_shard(target).tensors
        steps = tuple(replace(step, tensor=tensors[step.tensor.name]) for step in steps)
    with target.open("r+b", buffering=0) as file:
        move(pieces_of(steps), file.fileno(), file.fileno())


def _apply_in_place(
    conversion: Conversion, progress: Progress, sync: bool, check: Check | None, break_links: bool
) -> Converted:
    if check is not None:
        raise UsageError("a conversion in place cannot be checked before it takes the source's place; verify a copy")
    began = time.perf_counter()
    checkpoint, pieces = conversion.checkpoint, pieces_of(conversion.plan.moves)
    summary = asdict(_result(conversion, 0.0))
    change = Change(checkpoint.directory, pieces, conversion.config_file, to_json(conversion.config), summary)
    with exclusive(checkpoint.directory):
        checkpoint.check_unchanged()
        in_place.carry_out(change, progress, sync=sync, break_links=break_links)
    return _result(conversion, time.perf_counter() - began)


def resume(path: Path, progress: Progress = no_progress, *, break_links: bool = False) -> Converted:
    """Finish a conversion in place that was interrupted, from any point; raises `JournalError` where there is none."""
    began = time.perf_counter()
    return _ended(path, in_place.resume(path, progress, break_links=break_links), began)


def undo(path: Path, progress: Progress = no_progress, *, break_links: bool = False) -> Converted:
    """Take an interrupted conversion in place back: every file has its old bytes. Raises as `resume` does."""
    began = time.perf_counter()
    ended = _ended(path, in_place.undo(path, progress, break_links=break_links), began)
    return replace(ended, source=ended.target, target=ended.source, written_as=None)


def _ended(path: Path, summary: Mapping[str, Any], began: float) -> Converted:
    said: list[Any] = [summary.get(key) for key in ("source", "target", "model_type", "written_as", "tensors", "bytes")]
    source, target, model_type, written_as, tensors, moved_bytes = said
    return Converted(
        str(path), source, target, model_type, written_as, tensors, moved_bytes, time.perf_counter() - began,
        tuple(summary.get("loads_in") or ()), None, (),
    )  # fmt: skip


def preview(conversion: Conversion) -> Converted:
    """What `apply` would do."""
    return _result(conversion, 0.0)


def _result(conversion: Conversion, seconds: float) -> Converted:
    steps = conversion.plan
    return Converted(
        output=str(conversion.destination),
        source=steps.source.value,
        target=steps.target.value,
        model_type=conversion.twin or conversion.reading.model_type,
        written_as=conversion.twin,
        tensors=len(steps.moves),
        bytes=steps.size_bytes,
        seconds=seconds,
        loads_in=conversion.loads_in,
        engine=conversion.engine,
        warnings=conversion.warnings,
    )
