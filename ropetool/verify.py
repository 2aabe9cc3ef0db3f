"""Verify: prove by files and by forward passes that two checkpoints are the same model, or say where they differ."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint.adapter import is_adapter
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.engines.writing import LAYOUT_KEYS
from ropetool.errors import CheckpointError, UnsupportedError, UsageError
from ropetool.families.adapter_checks import adapter_checks, read_pair
from ropetool.families.config_difference import config_differences
from ropetool.families.file_checks import Side, file_checks, form_fault
from ropetool.families.lengths import OTHER_LENGTH_KEYS
from ropetool.families.lineage import extension_fault
from ropetool.families.verdict import Check, Verification, without_forward_pass
from ropetool.models.options import Device, DType
from ropetool.models.understand import understand

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ropetool.models.logits import Difference, Tolerance
    from ropetool.models.passes import Pass, Role
    from ropetool.models.run import Runner

DEFAULT_TOKENS = 512
# A class may round more than most (DBRX: 1e-4 of its logits in float32), but never by this multiple of the tolerance.
ROUNDING_MARGIN = 100.0
SEED = 20260101
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
    ``max_memory`` is what each device may hold, in bytes; the rest of a model stays on the disk. ``progress`` is called
    with a stage, what is done of it, and what there is to do. With ``trust_remote_code`` code in the checkpoints is
    run. Raises `RopetoolError` for a checkpoint that cannot be read or loaded.
    """
    from ropetool.models.merged import merged
    from ropetool.models.pickles import as_safetensors
    from ropetool.models.run import pick_device

    ways = Ways(tokens, text, pick_device(device), dtype, tolerance, max_memory, talk, progress)
    with as_safetensors(a) as first, as_safetensors(b) as second:
        if not (is_adapter(first) or is_adapter(second) or bases):
            return _verify(_side(first, trust_remote_code), _side(second, trust_remote_code), ways)
        adapters = read_pair((first, second), bases)
        checks = tuple(adapter_checks(*adapters))
        if bases is None:
            return without_forward_pass(adapters[1].pairing, _relation_of(*adapters), checks, ADAPTERS)
        talk("merging each adapter into its base")
        with merged(first, bases[0]) as one, merged(second, bases[1]) as other:
            return _verify(_side(one, trust_remote_code), _side(other, trust_remote_code), ways, files=checks)


def verify_files(a: Path, b: Path, *, talk: Talk = lambda message: None) -> Verification:
    """`verify` by the files alone: every tensor as bytes, and what the configs mean by the table; torch is not needed.

    Raises as `verify` does.
    """
    if is_adapter(a) or is_adapter(b):
        adapters = read_pair((a, b), None)
        checks = [*adapter_checks(*adapters)]
        return without_forward_pass(adapters[1].pairing, _relation_of(*adapters), tuple(checks), ADAPTERS)
    one, two = _side(a), _side(b)
    talk("comparing tensors and configs")
    checks = [*file_checks(one, two, form_fault(one, two)), *_config_checks(one, two, _written_fault(one, two))]
    return without_forward_pass(two.reading.pairing, _relation(one, two), tuple(checks), "only files were asked for")


def _verify(a: Side, b: Side, ways: Ways, *, files: tuple[Check, ...] = ()) -> Verification:
    """``files`` are the checks of the files where these are not those of the two sides: the adapters'."""
    ways.talk("comparing tensors and configs")
    fault = form_fault(a, b)
    checks = (*(files or file_checks(a, b, fault)), *_config_checks(a, b, _live_fault(a, b)))
    if fault:
        return without_forward_pass(b.reading.pairing, _relation(a, b), checks, "the two differ in form")
    result = _by_running(a, b, ways, ways.dtype or DType.FLOAT32, checks)
    if ways.dtype is DType.FLOAT64 or not _only_rounding_is_in_doubt(result):
        return result
    if ways.dtype is None and ways.device.type != "mps":  # Metal has no float64
        ways.talk("the logits differ by little more than float32 rounds: once more in float64")
        return _by_running(a, b, ways, DType.FLOAT64, checks)
    advice = "run again with --dtype float64 to tell rounding from a fault"
    hinted = (c if c.passed else replace(c, detail=f"{c.detail}; {advice}") for c in result.checks)
    return replace(result, checks=tuple(hinted))


def _only_rounding_is_in_doubt(result: Verification) -> bool:
    """Whether no check failed but those of the logits, and they differ by what a class might itself round away."""
    wrong = [check.name for check in result.checks if not check.passed]
    within = result.max_abs_diff < ROUNDING_MARGIN * result.tolerance
    return bool(wrong) and within and set(wrong) <= {"logits", "stock-classes"}


def _by_running(a: Side, b: Side, ways: Ways, dtype: DType, checks: Sequence[Check]) -> Verification:
    from ropetool.models.logits import compare_logits, derived_tolerance
    from ropetool.models.passes import Role

    ids, relation = _token_ids(a, ways), _relation(a, b)
    with _tables(a, b, ids, ways, dtype) as (tables, looked):
        yardstick = tables[Role.YARDSTICK]
        apart, control = (compare_logits(yardstick, tables[role]) for role in (Role.TESTED, Role.CONTROL))
        allowed = derived_tolerance(yardstick, dtype, a.layer_count, control.max_abs_diff, ways.tolerance)
        stock = compare_logits(yardstick, tables[Role.STOCK]) if Role.STOCK in tables else None
    proven = relation == "same" and all(check.passed for check in (*checks, *looked))
    control_fails = not control.max_abs_diff <= allowed.control
    checks = (
        *checks,
        *looked,
        *_logit_checks(apart, allowed, len(ids)),
        *_stock_checks(a, b, stock, allowed),
        _control_check(control, allowed, b, control_fails, proven),
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


def _config_checks(a: Side, b: Side, fault: str | None) -> Iterator[Check]:
    """Everything in the configs but what the relation is about is the same; an extension is one of the first."""
    yield Check("configs", fault is None, fault or "the configs mean the same but for what verify is about")
    if _relation(a, b) == "extended":
        fault = extension_fault(a.reading, b.reading)
        detail = fault or "the second config is an extension of the first: same base and trained length underneath"
        yield Check("extension", fault is None, detail)


def _live_fault(a: Side, b: Side) -> str | None:
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


def _written_fault(a: Side, b: Side) -> str | None:
    """Where the two configs differ as written; what a class makes of a key that is in one alone is not known here."""
    configs = a.checkpoint.config, b.checkpoint.config
    found, notes = config_differences(a.reading, b.reading, configs, LAYOUT_KEYS)
    extended = _relation(a, b) == "extended"
    lengths = {a.reading.family.keys.length, *OTHER_LENGTH_KEYS} if extended else set()
    others = [
        d for d in found if d.part_of is None and not (extended and (d.where.startswith("rope") or d.where in lengths))
    ]
    said = [f"{d.where} is {d.a!r} in one and {d.b!r} in the other" for d in others[:3]]
    said += [f"{n.message}: leave out --quick to ask the class" for n in notes if n.code == "one-sided-keys"]
    return "; ".join(said) or None


def _token_ids(side: Side, ways: Ways) -> Tensor:
    import torch

    length = side.reading.rotations[0].original_length or side.reading.length or DEFAULT_TOKENS
    wanted = ways.tokens or min(DEFAULT_TOKENS, length)
    if ways.text is not None:
        from ropetool.models.text import encode

        ids = encode(side.path, ways.text)[:wanted]
        if len(ids) < 2:
            raise UsageError("the text gives fewer than two tokens; at position 0 every rotation is the identity")
        return ids
    vocabulary = side.reading.config.get("vocab_size")
    if not isinstance(vocabulary, int):
        raise CheckpointError(
            "config.json has no vocab_size, so no token ids can be drawn; give --text", key="vocab_size"
        )
    return torch.randint(vocabulary, (wanted,), generator=torch.Generator().manual_seed(SEED))


@contextmanager
def _tables(
    a: Side, b: Side, ids: Tensor, ways: Ways, dtype: DType
) -> Iterator[tuple[Mapping[Role, Tensor], list[Check]]]:
    """The logits of every pass, on the disk for the length of the block, and what was seen in the loaded models."""
    from ropetool.models.frequency_checks import frequency_checks
    from ropetool.models.passes import plan_passes, run_passes
    from ropetool.models.run import load
    from ropetool.models.steps import Steps

    extended = _relation(a, b) == "extended"
    checks: list[Check] = []

    def runner_of(side: Side) -> Runner:
        ways.talk(f"loading {side.path}")
        return load(side.path, ways.device, dtype, trust_remote_code=side.trust_remote_code)

    def look(side: Side, runner: Runner, tables: Mapping[Role, Tensor]) -> None:
        if side is b:
            checks.extend(frequency_checks(runner, a, b, extended=extended))

    with tempfile.TemporaryDirectory(prefix="ropetool-logits-") as directory:
        passes = plan_passes(a, b, extended=extended)
        steps = Steps(ways.progress, ways.talk, _count(passes))
        yield run_passes(passes, ids, runner_of, Path(directory), look, steps), checks


def _count(passes: Sequence[Pass]) -> int:
    """How many times a model is run: each pass, and two short ones before the first by reference of a checkpoint."""
    return len(passes) + 2 * len({id(step.side) for step in passes if step.layout})


def _logit_checks(apart: Difference, allowed: Tolerance, tokens: int) -> Iterator[Check]:
    yield Check("logits-finite", apart.finite, "all logits are finite" if apart.finite else "a logit is not finite")
    detail = f"over {tokens} positions the largest difference is {apart.max_abs_diff:.2e}"
    detail = f"{detail}; {allowed.allowed:.2e} is allowed: {allowed.reason}"
    yield Check("logits", apart.max_abs_diff <= allowed.allowed, detail)


def _stock_checks(a: Side, b: Side, apart: Difference | None, allowed: Tolerance) -> Iterator[Check]:
    """The second as plain transformers runs it: for a checkpoint that was written for a twin of the first's class."""
    if apart is not None:
        types = f"the stock class of {a.reading.model_type} and that of {b.reading.model_type}"
        detail = f"{types} are {apart.max_abs_diff:.2e} apart"
        yield Check("stock-classes", apart.max_abs_diff <= allowed.allowed, detail)


def _control_check(control: Difference, allowed: Tolerance, b: Side, fails: bool, proven: bool) -> Check:
    """The layout that the weights do not have must miss by a wide margin, or equal logits prove nothing.

    Two checkpoints that are the same file for file and key for key need no such proof.
    """
    detail = f"the same weights as {b.reading.pairing.other.value} are {control.max_abs_diff:.2e} apart"
    if fails:
        return Check("control", True, f"{detail}; more than {allowed.control:.1e} is needed")
    if proven:
        return Check("control", True, f"{detail}: too little to prove anything, but every byte is the same")
    advice = "so equal logits prove nothing here; use more tokens, or a model whose positions matter"
    return Check("control", False, f"{detail}, where more than {allowed.control:.1e} is needed, {advice}")
