"""Verify: prove by files and by forward passes that two checkpoints are the same model, or say where they differ."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint.adapter import is_adapter
from ropetool.checkpoint.folder import CONFIG, open_checkpoint
from ropetool.checkpoint.pickled import pickled_files
from ropetool.engines.writing import LAYOUT_KEYS
from ropetool.errors import CheckpointError, RopetoolError, UnsupportedError, UsageError
from ropetool.families.adapter_checks import adapter_checks, read_pair
from ropetool.families.cannot import CACHED, RELATIVE
from ropetool.families.config_difference import block_fault, config_differences
from ropetool.families.file_checks import Side, file_checks, form_fault
from ropetool.families.form_checks import loading_fault
from ropetool.families.lengths import OTHER_LENGTH_KEYS
from ropetool.families.lineage import extension_fault
from ropetool.families.verdict import Check, Fault, Verification, check_of, without_forward_pass
from ropetool.models.options import Device, DType
from ropetool.models.understand import understand

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ropetool.models.passes import Pass, Ran, Role
    from ropetool.models.run import Runner

DEFAULT_TOKENS = 512
# A class may round more than most (DBRX: 1e-4 of its logits in float32), but never by this multiple of the tolerance.
ROUNDING_MARGIN = 100.0
ADAPTERS = "adapters are run only merged into bases, given by --base"

Talk = Callable[[str], None]
Progress = Callable[[str, int, int], None]


def no_progress(stage: str, done: int, total: int) -> None:
    """Swallow progress."""


@dataclass(frozen=True)
class Ways:
    """How the forward passes are made; ``dtype`` None is float32, and float64 where that leaves a doubt."""

    tokens: int | None
    text: str | None
    device: torch.device
    dtype: DType | None
    tolerance: float | None
    max_memory: Mapping[int | str, int] | None
    talk: Talk
    progress: Progress


def verify(
    a: Path,
    b: Path,
    *,
    tokens: int | None = None,
    text: str | None = None,
    device: Device = Device.AUTO,
    dtype: DType | None = None,
    tolerance: float | None = None,
    quick: bool = False,
    max_memory: Mapping[int | str, int] | None = None,
    bases: tuple[Path, Path] | None = None,
    talk: Talk = lambda message: None,
    progress: Progress = no_progress,
    trust_remote_code: bool = False,
) -> Verification:
    """Compare two checkpoints: every tensor as bytes, then the logits at every position of one sequence.

    Two adapters are compared as bytes, and run only merged into ``bases``, the first's and the second's.

    ``tokens`` is the length of the sequence (by default 512, or the trained length if that is shorter); ``text``
    replaces the seeded random token ids. It computes in ``dtype``, by default in float32, and again in float64 where
    only rounding is in doubt. ``tolerance`` is the largest |logit difference| that passes; by default it is derived.
    With ``quick`` nothing is run (`verify_files`). ``max_memory`` is what each device may hold, in bytes; the rest of a
    model stays on the disk. ``progress`` is called with a stage, what is done of it, and what there is to do. With
    ``trust_remote_code`` code in the checkpoints is run. Raises `RopetoolError` for a checkpoint that cannot be read or
    loaded.
    """
    if quick:
        return verify_files(a, b, talk=talk, progress=progress)
    from ropetool.models.run import pick_device

    ways = Ways(tokens, text, pick_device(device), dtype, tolerance, max_memory, talk, progress)
    return replace(_of_any_form(a, b, ways, bases, trust_remote_code), a=str(a), b=str(b))


def _of_any_form(
    a: Path, b: Path, ways: Ways, bases: tuple[Path, Path] | None, trust_remote_code: bool
) -> Verification:
    """`verify` of whole checkpoints, pickles among them, or of adapters."""
    from ropetool.models.merged import merged
    from ropetool.models.pickles import as_safetensors

    with as_safetensors(a) as first, as_safetensors(b) as second:
        if not (is_adapter(first) or is_adapter(second) or bases):
            return _verify(_side(first, trust_remote_code), _side(second, trust_remote_code), ways)
        adapters = read_pair((first, second), bases)
        checks = tuple(adapter_checks(*adapters))
        if bases is None:
            return without_forward_pass(adapters[1].pairing, _relation_of(*adapters), checks, ADAPTERS)
        ways.talk("merging each adapter into its base")
        try:
            with merged(first, bases[0]) as one, merged(second, bases[1]) as other:
                return _verify(_side(one, trust_remote_code), _side(other, trust_remote_code), ways, files=checks)
        except CheckpointError as error:
            if all(check.passed for check in checks):
                raise
            return without_forward_pass(adapters[1].pairing, _relation_of(*adapters), checks, error.message)


def verify_files(
    a: Path, b: Path, *, talk: Talk = lambda message: None, progress: Progress = no_progress
) -> Verification:
    """`verify` by the files alone: every tensor as bytes, and what the configs mean by the table; torch is not needed.

    Raises as `verify` does.
    """
    pickled = next((path for path in (a, b) if pickled_files(path)), None)
    if pickled is not None:
        raise UnsupportedError(f"{pickled} is pickled, and --quick reads safetensors alone; leave out --quick")
    return replace(_by_files(a, b, talk, progress), a=str(a), b=str(b))


def _by_files(a: Path, b: Path, talk: Talk, progress: Progress) -> Verification:
    if is_adapter(a) or is_adapter(b):
        adapters = read_pair((a, b), None)
        checks = [*adapter_checks(*adapters)]
        return without_forward_pass(adapters[1].pairing, _relation_of(*adapters), tuple(checks), ADAPTERS)
    one, two = _side(a), _side(b)
    talk("comparing tensors and configs")
    files = _file_checks(one, two, form_fault(one, two), progress)
    checks = [*files, *_config_checks(one, two, _written_fault(one, two))]
    return without_forward_pass(two.reading.pairing, _relation(one, two), tuple(checks), "only files were asked for")


def _verify(a: Side, b: Side, ways: Ways, *, files: tuple[Check, ...] = ()) -> Verification:
    """``files`` are the checks of the files where these are not those of the two sides: the adapters'."""
    ways.talk("comparing tensors and configs")
    fault = form_fault(a, b)
    checks = (*(files or _file_checks(a, b, fault, ways.progress)), *_config_checks(a, b, _live_fault(a, b)))
    if fault:
        return without_forward_pass(b.reading.pairing, _relation(a, b), checks, "the two differ in form")
    try:
        return _settled(a, b, ways, checks)
    except UsageError:
        raise
    except RopetoolError as error:
        cannot = error
    except Exception as error:  # noqa: BLE001 - a class that runs on a stranger's config can raise anything
        cannot = CheckpointError(f"{b.path} cannot be run beside {a.path}: {type(error).__name__}: {error}")
        cannot.__cause__ = error
    if all(check.passed for check in checks):
        raise cannot
    checks = (*checks, Check("forward-pass", False, cannot.message))
    return without_forward_pass(b.reading.pairing, _relation(a, b), checks, "it failed")


def _settled(a: Side, b: Side, ways: Ways, checks: Sequence[Check]) -> Verification:
    """The verdict by running both; where float32 leaves a doubt, and no type was asked for, in float64."""
    result = _by_running(a, b, ways, ways.dtype or DType.FLOAT32, checks)
    if ways.dtype is DType.FLOAT64 or not _only_rounding_is_in_doubt(result):
        return result
    if ways.dtype is None and ways.device.type != "mps":  # Metal has no float64
        ways.talk("the logits differ by little more than float32 rounds: once more in float64")
        try:
            return _by_running(a, b, ways, DType.FLOAT64, checks)
        except Exception as error:  # noqa: BLE001 - a class may compute in no float64 (grouped experts), and say so anyhow
            ways.talk(f"it does not run in float64 ({type(error).__name__}: {error}): float32 has the last word")
            return result
    advice = "run again with --dtype float64 to tell rounding from a fault"
    hinted = (c if c.passed else replace(c, detail=f"{c.detail}; {advice}") for c in result.checks)
    return replace(result, checks=tuple(hinted))


def _only_rounding_is_in_doubt(result: Verification) -> bool:
    """Whether no check failed but those that compare logits, which differ by what a class might itself round away."""
    wrong = [check.name for check in result.checks if not check.passed]
    within = result.max_abs_diff < ROUNDING_MARGIN * result.tolerance
    return bool(wrong) and within and set(wrong) <= {"logits", "stock-classes", RELATIVE, CACHED}


def _by_running(a: Side, b: Side, ways: Ways, dtype: DType, checks: Sequence[Check]) -> Verification:
    from ropetool.models.logit_checks import control_check, finite_check, logit_checks, stock_checks
    from ropetool.models.logits import compare_logits, derived_tolerance, spread
    from ropetool.models.passes import Role
    from ropetool.models.sketches import first_apart
    from ropetool.models.text import token_ids

    rotation = a.reading.rotations[0]
    length = ways.tokens or min(DEFAULT_TOKENS, rotation.original_length or a.reading.length or DEFAULT_TOKENS)
    ids, relation = token_ids(a.path, a.reading, length, ways.text), _relation(a, b)
    with _passes(a, b, ids, ways, dtype) as (ran, looked):
        yardstick = ran[Role.YARDSTICK].table
        apart, control = (compare_logits(yardstick, ran[role].table) for role in (Role.TESTED, Role.CONTROL))
        allowed = derived_tolerance(yardstick, dtype, a.layer_count, control.max_abs_diff, ways.tolerance)
        stock = compare_logits(yardstick, ran[Role.STOCK].table) if Role.STOCK in ran else None
        relative = allowed.allowed / spread(yardstick)
    parting = first_apart(ran[Role.YARDSTICK].sketches, ran[Role.TESTED].sketches, relative)
    proven = relation == "same" and all(check.passed for check in (*checks, *looked))
    control_fails = not control.max_abs_diff <= allowed.control
    checks = (
        *checks,
        finite_check(apart, parting),
        *looked,
        *logit_checks(apart, allowed, len(ids), parting),
        *stock_checks(a, b, stock, allowed),
        control_check(control, allowed, b, dtype, fails=control_fails, proven=proven),
    )
    return Verification(
        passed=all(check.passed for check in checks),
        relation=relation,
        device=str(ways.device),
        dtype=dtype.value,
        tokens=len(ids),
        max_abs_diff=apart.max_abs_diff,
        relative_diff=apart.relative_diff,
        mean_kl=apart.mean_kl,
        top1_agreement=apart.top1_agreement,
        tolerance=allowed.allowed,
        tolerance_reason=allowed.reason,
        by_position=apart.by_position,
        control={
            "layout": b.reading.pairing.other.value,
            "max_abs_diff": control.max_abs_diff,
            "failed_as_it_must": control_fails,
        },
        checks=checks,
    )


def _side(path: Path, trust_remote_code: bool = False) -> Side:
    checkpoint = open_checkpoint(path)
    reading = understand(path, checkpoint.config, trust_remote_code=trust_remote_code)
    if not reading.rotations:
        raise UnsupportedError(f"{path} cannot be verified: {reading.refusal}", path=str(path))
    return Side(path, checkpoint, reading, trust_remote_code)


def _relation(a: Side, b: Side) -> str:
    ours, theirs = ([rotation.scaling for rotation in side.reading.rotations] for side in (a, b))
    if ours != theirs or a.reading.reach != b.reading.reach:
        return "extended"
    return _relation_of(a.reading, b.reading)


def _relation_of(a: Any, b: Any) -> str:
    return "converted" if a.pairing is not b.pairing else "same"


def _config_checks(a: Side, b: Side, fault: Fault | None) -> Iterator[Check]:
    """Everything in the configs but what the relation is about is the same; an extension is one of the first."""
    fault = fault or loading_fault(a.checkpoint.config, b.checkpoint.config)
    yield check_of("configs", fault, "the configs mean the same but for what verify is about")
    if _relation(a, b) == "extended":
        detail = "the second config is an extension of the first: same base and trained length underneath"
        yield check_of("extension", extension_fault(a.reading, b.reading), detail)


def _live_fault(a: Side, b: Side) -> Fault | None:
    """Where the two configs mean another model to the classes that read them."""
    from ropetool.models.meaning import config_fault

    ignored = [
        a.reading.family.pairing_key,
        a.reading.family.keys.length if _relation(a, b) == "extended" else None,
    ]
    configs = a.checkpoint.config, b.checkpoint.config
    return config_fault(
        (a.path, b.path), configs, a.reading, b.reading, *filter(None, ignored), trust_remote_code=a.trust_remote_code
    )


def _written_fault(a: Side, b: Side) -> Fault | None:
    """Where the two configs differ as written; what a class makes of a key that is in one alone is not known here."""
    configs = a.checkpoint.config, b.checkpoint.config
    found, notes = config_differences(a.reading, b.reading, configs, LAYOUT_KEYS)
    extended = _relation(a, b) == "extended"
    lengths = {a.reading.family.keys.length, *OTHER_LENGTH_KEYS} if extended else set()
    others = [
        d for d in found if d.part_of is None and not (extended and (d.where.startswith("rope") or d.where in lengths))
    ]
    if others:
        said = (f"{d.where} is {d.a!r} in one and {d.b!r} in the other" for d in others[:3])
        return Fault("; ".join(said), others[0].where)
    lone = next((note.message for note in notes if note.code == "one-sided-keys"), None)
    return Fault(f"{lone}: leave out --quick to ask the class", CONFIG) if lone else block_fault(a.reading, b.reading)


def _file_checks(a: Side, b: Side, fault: Check | None, progress: Progress) -> Iterator[Check]:
    total, done = sum(tensor.size_bytes for tensor in a.checkpoint.tensors.values()), 0

    def step(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        progress("comparing tensors", done, total)

    yield from file_checks(a, b, fault, step)


@contextmanager
def _passes(
    a: Side, b: Side, ids: Tensor, ways: Ways, dtype: DType
) -> Iterator[tuple[Mapping[Role, Ran], list[Check]]]:
    """What every pass gave, on the disk for the length of the block, and what was seen in the loaded models."""
    from ropetool.models.passes import Role, plan_passes, run_passes
    from ropetool.models.property_checks import property_checks
    from ropetool.models.run import load
    from ropetool.models.steps import Steps

    extended = _relation(a, b) == "extended"
    checks: list[Check] = list(_changed_check(a, b)) if extended else []

    def runner_of(side: Side) -> Runner:
        ways.talk(f"loading {side.path}")
        return load(
            side.path, ways.device, dtype, trust_remote_code=side.trust_remote_code, max_memory=ways.max_memory,
            tokens=len(ids), talk=ways.talk,
        )  # fmt: skip

    def look(side: Side, runner: Runner, ran: Mapping[Role, Ran]) -> None:
        if side is b:
            tables = (ran[role].table for role in (Role.YARDSTICK, Role.CONTROL))
            ways.talk(f"what holds of any rotation, in {b.path} by its own class")
            checks.extend(property_checks(runner, b.reading, ids, dtype, *tables))

    with tempfile.TemporaryDirectory(prefix="ropetool-logits-") as directory:
        passes = plan_passes(a, b, extended=extended)
        steps = Steps(ways.progress, ways.talk, _count(passes))
        yield run_passes(passes, ids, runner_of, Path(directory), look, steps), checks


def _changed_check(a: Side, b: Side) -> Iterator[Check]:
    """An extension turns q and k by other frequencies, or scales them; that the model follows is seen in the model."""
    reach = b.reading.reach
    ours, theirs = (
        [(r.scaling.inv_freq(r.geometry.rotary_dim, reach).tolist(), r.scaling.attention_factor) for r in s.rotations]
        for s in (a.reading, b.reading)
    )
    changed = ours != theirs
    detail = "the extension changed the frequencies" if changed else "the extension changed no frequency"
    yield Check("frequencies-changed", changed, detail, None if changed else "rope_parameters")


def _count(passes: Sequence[Pass]) -> int:
    """How many times a model is run: each pass, and two short ones before the first by reference of a checkpoint."""
    from ropetool.models.property_checks import PROPERTY_PASSES

    return len(passes) + 2 * len({id(step.side) for step in passes if step.layout}) + PROPERTY_PASSES
