"""Diff: what two checkpoints differ in that RoPE depends on, by their files alone; nothing is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ropetool.checkpoint.adapter import is_adapter
from ropetool.checkpoint.folder import Checkpoint, checkpoint_directory, has_guard, open_checkpoint
from ropetool.checkpoint.pickled import pickled_files
from ropetool.checkpoint.shards import no_progress
from ropetool.engines.writing import LAYOUT_KEYS
from ropetool.errors import MissingFileError, RopetoolError, UnsupportedError, UsageError
from ropetool.families.buffers import stale_frequency_warnings
from ropetool.families.config_difference import config_differences
from ropetool.families.difference import Difference, How, PartOf, What
from ropetool.families.family import Moved
from ropetool.families.length_difference import WINDOWS, length_differences
from ropetool.families.lineage import extension_fault
from ropetool.families.plan import claims, plan_conversion
from ropetool.families.reading import Reading, Warn
from ropetool.families.tensor_difference import WAYS, Tensors, Turning, tensor_differences
from ropetool.models.understand import understand
from ropetool.rope.pairing import rows_of


@dataclass(frozen=True)
class Side:
    """One of the two checkpoints; ``checkpoint`` has no shards where there are no weights."""

    path: Path
    checkpoint: Checkpoint
    reading: Reading

    @property
    def has_weights(self) -> bool:
        """Whether there are weights to compare."""
        return bool(self.checkpoint.shards)


@dataclass(frozen=True)
class Diff:
    """All differences, and a sentence on what they come to.

    ``tensors`` counts those that were compared, ``turning`` those of them whose rows depend on the layout; both are
    None where there were no weights to compare.
    """

    a: str
    b: str
    summary: str
    differences: tuple[Difference, ...]
    tensors: int | None
    turning: int | None
    notes: tuple[Warn, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differences


def diff(a: Path, b: Path, progress: Callable[[int], None] = no_progress, *, trust_remote_code: bool = False) -> Diff:
    """Compare two checkpoints: what their configs mean, every length, and every tensor as bytes.

    Directories without weights are compared by their configs alone. ``progress`` is called with the bytes that were
    just compared. Raises `RopetoolError` for a checkpoint that cannot be read.
    """
    for path in (a, b):
        if is_adapter(path):
            raise UsageError(f"{path} is an adapter, and diff compares whole checkpoints; verify compares two adapters")
    one, two = (_side(path, trust_remote_code) for path in (a, b))
    configs = (one.checkpoint.config, two.checkpoint.config)
    found, notes = config_differences(one.reading, two.reading, configs, (*LAYOUT_KEYS, *WINDOWS.values()))
    directories = (checkpoint_directory(a), checkpoint_directory(b))
    found += [*_engine_keys(one, two), *length_differences(one.reading, two.reading, directories)]
    tensors, more = _tensors(one, two, progress)
    found = [*_as_extension(found, one.reading, two.reading), *(tensors.differences if tensors else ())]
    return Diff(
        str(a), str(b), _summary(found, one, two, tensors, notes), tuple(found),
        tensors.compared if tensors else None, tensors.turning if tensors else None,
        (*notes, *more, *_of_one_side(one, two)),
    )  # fmt: skip


def total_bytes(path: Path) -> int:
    """The bytes of a checkpoint's .safetensors files, for progress."""
    return sum(file.stat().st_size for file in checkpoint_directory(path).glob("*.safetensors"))


def _side(path: Path, trust_remote_code: bool) -> Side:
    try:
        checkpoint = open_checkpoint(path)
    except MissingFileError as error:
        if pickled_files(path) or "found" not in error.fields or error.fields["found"]:
            raise
        checkpoint = open_checkpoint(path, with_weights=False)
    reading = understand(path, checkpoint.config, trust_remote_code=trust_remote_code)
    if not reading.rotations:
        raise UnsupportedError(f"{path} cannot be compared: {reading.refusal}", path=str(path))
    return Side(path, checkpoint, reading)


def _engine_keys(one: Side, two: Side) -> list[Difference]:
    """Keys by which engines other than transformers read the layout."""
    found = []
    for key in LAYOUT_KEYS:
        a, b = one.reading.config.get(key), two.reading.config.get(key)
        if a != b:
            part = PartOf.LAYOUT if one.reading.pairing is not two.reading.pairing else None
            found.append(Difference(What.PAIRING, key, a, b, "some engines read the layout from it", part))
    return found


def _tensors(one: Side, two: Side, progress: Callable[[int], None]) -> tuple[Tensors | None, list[Warn]]:
    if not (one.has_weights and two.has_weights):
        without = " and ".join(str(side.path) for side in (one, two) if not side.has_weights)
        return None, [Warn("no-weights", f"only the configs were compared: there are no weights in {without}")]
    turning, notes = _turning(one)
    expected = (one.reading.pairing, two.reading.pairing)
    return tensor_differences(one.checkpoint, two.checkpoint, turning, expected, progress), notes


def _turning(side: Side) -> tuple[Mapping[str, Turning], list[Warn]]:
    """The tensors whose rows depend on the layout; none, and a note, where the row cannot tell them."""
    try:
        if side.reading.refusal:
            raise UnsupportedError(side.reading.refusal)
        plans = {way: plan_conversion(side.checkpoint, side.reading, *way) for way in WAYS}
        claimed = {claim.tensor.name: claim for claim in claims(side.checkpoint, side.reading)}
    except RopetoolError as error:
        said = f"which tensors the layout reaches is not known, so all were compared as they are: {error.message}"
        return {}, [Warn("rows-unknown", said)]
    moves = {way: {move.tensor.name: move for move in plan.moves} for way, plan in plans.items()}
    turning = {}
    for name, move in moves[WAYS[0]].items():
        claim = claimed[name]
        index = {way: moves[way][name].permutation.index for way in WAYS}
        spans = claim.geometry.spans(claim.moved.rows) if claim.moved else ()
        heads = _heads(claim.moved, claim.geometry.heads, claim.geometry.kv_heads)
        turning[name] = Turning(index, move.lay, spans if len(index[WAYS[0]]) == rows_of(spans) else (), heads)
    return turning, []


def _heads(moved: Moved | None, heads: int, kv_heads: int) -> tuple[int, ...]:
    """Numbers of heads that a projection may be mistaken to have: those of the other, and their quotient."""
    return () if moved is None else tuple(dict.fromkeys((heads, kv_heads, heads // kv_heads)))


def _as_extension(found: list[Difference], a: Reading, b: Reading) -> list[Difference]:
    """Differences of rotation and length belong together where one side is the other, extended."""
    if _extended(a, b) is None:
        return found
    return [replace(d, part_of=PartOf.EXTENSION) if _is_of_rope(d) else d for d in found]


def _is_of_rope(difference: Difference) -> bool:
    in_length = difference.what is What.LENGTH and difference.where not in WINDOWS.values()
    return in_length or (difference.what is What.CONFIG and difference.where.startswith("rope"))


def _extended(a: Reading, b: Reading) -> str | None:
    """Which side is the other one, extended, in words; None where neither is."""
    if [rotation.layers for rotation in a.rotations] != [rotation.layers for rotation in b.rotations]:
        return None
    for one, two, words in ((a, b, "the second is the first, extended"), (b, a, "the first is the second, extended")):
        if extension_fault(one, two) is None:
            scaling = two.rotations[0].scaling.name
            by = two.extension.get("method") or scaling
            return f"{words} by {by} from {one.reach} to {two.reach} tokens"
    return None


WRONG_ROWS = (
    "the rows of q and k do not lie as the two configs say: at least one of the two checkpoints is silently wrong, or "
    "was changed after it was converted"
)


def _summary(found: list[Difference], one: Side, two: Side, tensors: Tensors | None, notes: Iterable[Warn]) -> str:
    but = "; keys of one side are in the notes" if any(note.code == "one-sided-keys" for note in notes) else ""
    if not found:
        return ("no difference" if tensors else "no difference in the configs; there were no weights to compare") + but
    if any(d.how in (How.NOT_PERMUTED, How.OTHER_ORDER) or (d.how is How.LAYOUT and not d.part_of) for d in found):
        return WRONG_ROWS
    parts = {difference.part_of for difference in found}
    if None in parts:
        counts = {what.value: sum(d.what is what for d in found) for what in What}
        return f"{len(found)} differences ({', '.join(f'{what} {count}' for what, count in counts.items() if count)})"
    said = []
    if PartOf.LAYOUT in parts:
        rows = "the rows of q and k differ by its permutation alone" if tensors else "there were no weights to compare"
        said.append(f"the same model in the other layout: {rows}")
    if PartOf.EXTENSION in parts:
        said.append(str(_extended(one.reading, two.reading)))
    return f"{'; '.join(said)}; nothing else differs{but}"


def _of_one_side(one: Side, two: Side) -> list[Warn]:
    """What a person should know of one checkpoint alone."""
    notes = []
    sides = (("first", one), ("second", two))
    known = [{warning.message for warning in side.reading.warnings} for _, side in sides]
    for (name, side), others in zip(sides, reversed(known), strict=True):
        found = [warning for warning in side.reading.warnings if warning.message not in others]
        if has_guard(side.path):
            found.append(Warn("guarded", "its config.json is guarded; it was read without the guard"))
        if side.has_weights:
            found += stale_frequency_warnings(side.checkpoint, side.reading)
        notes += [replace(warning, message=f"the {name}: {warning.message}") for warning in found]
    return notes
