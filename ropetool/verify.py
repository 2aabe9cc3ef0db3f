"""Verify: prove by files and by forward passes that two checkpoints are the same model, or say where they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint.adapter import is_adapter
from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.errors import CheckpointError, UnsupportedError, UsageError
from ropetool.families.adapter_checks import adapter_checks, read_pair
from ropetool.families.file_checks import Side, file_checks, form_fault
from ropetool.families.lineage import extension_fault
from ropetool.families.reading import Reading, Rotation
from ropetool.families.verdict import Check, Verification, check_of
from ropetool.models.options import Device, DType
from ropetool.models.understand import understand
from ropetool.rope.pairing import Pairing

if TYPE_CHECKING:
    from torch import Tensor

    from ropetool.models.logits import Difference
    from ropetool.models.rotary import Rotary
    from ropetool.models.run import Runner
    from ropetool.rope.frequencies import Scaling

DEFAULT_TOKENS = 512
# How far the negative control must miss, as a multiple of the tolerance, for the comparison to prove anything.
CONTROL_MARGIN = 100.0
BFLOAT16_CONTROL_MARGIN = 10.0
# Some classes round more (DBRX: 1e-4 of its logits in float32), but never by this multiple of the tolerance.
ROUNDING_MARGIN = 100.0
SEED = 20260101
# Float32 keeps a frequency to 1e-7, bfloat16 to 4e-3; classes compute theirs in float32, in a few steps.
LIVE_TOLERANCE = 1e-5


Talk = Callable[[str], None]


def verify(
    a: Path,
    b: Path,
    *,
    tokens: int | None = None,
    text: str | None = None,
    device: Device = Device.AUTO,
    dtype: DType = DType.FLOAT32,
    tolerance: float | None = None,
    bases: tuple[Path, Path] | None = None,
    talk: Talk = lambda message: None,
    trust_remote_code: bool = False,
) -> Verification:
    """Compare two checkpoints: every tensor as bytes, then the logits at every position of one sequence.

    Two adapters are compared as bytes, and run only merged into ``bases``, the first's and the second's.

    ``tokens`` is the length of the sequence (by default 512, or the trained length if that is shorter); ``text``
    replaces the seeded random token ids; with ``trust_remote_code`` code in the checkpoints is run. Raises
    `RopetoolError` for a checkpoint that cannot be read or loaded.
    """
    from ropetool.models.merged import merged
    from ropetool.models.pickles import as_safetensors
    from ropetool.models.run import pick_device

    where = pick_device(device)
    run = partial(_verify, tokens=tokens, text=text, where=where, dtype=dtype, tolerance=tolerance, talk=talk)
    with as_safetensors(a) as first, as_safetensors(b) as second:
        if not (is_adapter(first) or is_adapter(second) or bases):
            return run(*(_side(path, trust_remote_code) for path in (first, second)))
        adapters = read_pair((first, second), bases)
        checks = tuple(adapter_checks(*adapters))
        if bases is None:
            relation = "same" if adapters[0].pairing is adapters[1].pairing else "converted"
            return _without_forward_pass(adapters[1].pairing, relation, where, dtype, checks)
        talk("merging each adapter into its base")
        with merged(first, bases[0]) as one, merged(second, bases[1]) as other:
            return run(*(_side(path, trust_remote_code) for path in (one, other)), files=checks)


def _verify(
    side_a: Side, side_b: Side, *, tokens: int | None, text: str | None, where: Any, dtype: DType,
    tolerance: float | None, talk: Talk, files: tuple[Check, ...] = (),
) -> Verification:  # fmt: skip
    """``files`` are the checks of the files where these are not those of the two sides: the adapters'."""
    from ropetool.models.logits import compare_logits, derived_tolerance

    relation = _relation(side_a, side_b)
    talk("comparing tensors and configs")
    fault = form_fault(side_a, side_b)
    checks = [*(files or file_checks(side_a, side_b, fault)), *_config_checks(side_a, side_b, relation)]
    if fault:
        return _without_forward_pass(side_b.reading.pairing, relation, where, dtype, checks)
    ids = _token_ids(side_a, tokens, text)
    first, second, control, stock, frequency_checks = _forward_passes(side_a, side_b, relation, ids, where, dtype, talk)
    checks += frequency_checks
    apart, control_apart = compare_logits(first, second), compare_logits(first, control)
    allowed = tolerance if tolerance is not None else derived_tolerance(first, dtype, side_a.reading)
    margin = BFLOAT16_CONTROL_MARGIN if dtype is DType.BFLOAT16 else CONTROL_MARGIN
    control_fails = not control_apart.max_abs_diff <= margin * allowed
    proven = relation == "same" and all(check.passed for check in checks)
    rounding = dtype is not DType.FLOAT64 and control_fails and all(check.passed for check in checks)
    checks += _logit_checks(apart, allowed, len(ids), perhaps_rounding=rounding)
    checks += _stock_checks(side_a, side_b, first, stock, allowed)
    checks.append(_control_check(control_apart, side_b.reading.pairing, control_fails, proven))
    return Verification(
        passed=all(check.passed for check in checks),
        relation=relation,
        device=str(where),
        dtype=dtype.value,
        tokens=len(ids),
        max_abs_diff=apart.max_abs_diff,
        relative_diff=apart.relative_diff,
        mean_kl=apart.mean_kl,
        top1_agreement=apart.top1_agreement,
        tolerance=allowed,
        by_position=apart.by_position,
        control={
            "layout": side_b.reading.pairing.other.value,
            "max_abs_diff": control_apart.max_abs_diff,
            "failed_as_it_must": control_fails,
        },
        checks=tuple(checks),
    )


def _without_forward_pass(
    pairing: Pairing, relation: str, where: Any, dtype: DType, checks: Sequence[Check]
) -> Verification:
    """The verdict by files alone: on adapters, or where no forward pass can compare tensors of another form."""
    control = {"layout": pairing.other.value, "max_abs_diff": math.nan, "failed_as_it_must": False}
    passed, unknown = all(check.passed for check in checks), math.nan
    return Verification(
        passed, relation, str(where), dtype.value, 0, unknown, unknown, unknown, unknown, unknown, (), control,
        tuple(checks),
    )  # fmt: skip


def _side(path: Path, trust_remote_code: bool = False) -> Side:
    checkpoint = open_checkpoint(path)
    reading = understand(path, checkpoint.config, trust_remote_code=trust_remote_code)
    if not reading.rotations:
        raise UnsupportedError(f"{path} cannot be verified: {reading.refusal}", path=str(path))
    return Side(path, checkpoint, reading, trust_remote_code)


def _relation(a: Side, b: Side) -> str:
    if _scalings(a) != _scalings(b) or a.reading.reach != b.reading.reach:
        return "extended"
    return "converted" if a.reading.pairing is not b.reading.pairing else "same"


def _scalings(side: Side) -> list[Scaling]:
    return [rotation.scaling for rotation in side.reading.rotations]


def _config_checks(a: Side, b: Side, relation: str) -> Iterator[Check]:
    """Everything in the configs but what the relation is about is the same; an extension is one of the first."""
    from ropetool.models.meaning import config_fault

    ignored = [a.reading.family.pairing_key, a.reading.family.keys.length if relation == "extended" else None]
    configs = a.checkpoint.config, b.checkpoint.config
    fault = config_fault(
        (a.path, b.path), configs, a.reading, b.reading, *filter(None, ignored), trust_remote_code=a.trust_remote_code
    )
    yield check_of("configs", fault, "the configs mean the same but for what verify is about")
    if relation == "extended":
        detail = "the second config is an extension of the first: same base and trained length underneath"
        yield check_of("extension", extension_fault(a.reading, b.reading), detail)


def _token_ids(side: Side, tokens: int | None, text: str | None) -> Tensor:
    import torch

    length = side.reading.rotations[0].original_length or side.reading.length or DEFAULT_TOKENS
    wanted = tokens or min(DEFAULT_TOKENS, length)
    if text is not None:
        from ropetool.models.text import encode

        ids = encode(side.path, text)[:wanted]
        if len(ids) < 2:
            raise UsageError("the text gives fewer than two tokens; at position 0 every rotation is the identity")
        return ids
    vocabulary = side.reading.config.get("vocab_size")
    if not isinstance(vocabulary, int):
        raise CheckpointError(
            "config.json has no vocab_size, so no token ids can be drawn; give --text", key="vocab_size"
        )
    return torch.randint(vocabulary, (wanted,), generator=torch.Generator().manual_seed(SEED))


def _rotaries(reading: Reading, pairing: Pairing) -> dict[str, Rotary]:
    """The rotation of every kind of layer and every other site, with the weights in layout ``pairing``."""
    from ropetool.models.rotary import Rotary

    def rotary(rotation: Rotation, layout: Pairing) -> Rotary:
        geometry = rotation.geometry
        return Rotary(
            layout, rotation.scaling, geometry.rope_start, geometry.rotary_dim, backwards=reading.family.backwards
        )

    others = zip(reading.family.others, reading.others, strict=True)
    return {rotation.layers: rotary(rotation, site.pairing or pairing) for site, rotation in others} | {
        rotation.layers: rotary(rotation, pairing) for rotation in reading.rotations
    }


def _forward_passes(
    a: Side, b: Side, relation: str, ids: Tensor, where: Any, dtype: DType, talk: Talk
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, list[Check]]:
    """Logit tables: the yardstick, the checkpoint under test, the negative control, and B in its own class for a twin.

    The yardstick is A in its own class where that is right, and B runs by the reference rotation in B's layout. An
    extension changes logits by design, so there the yardstick is B in its own class, with its live frequencies; where
    the class cannot run B, B's weights are held against A under A's frequencies.
    """
    from ropetool.models.run import load, logits

    own_class = relation == "extended" and b.stock_is_right
    yardstick, rotation = (b, b) if own_class else (a, a)
    talk(f"forward pass of {yardstick.path}")
    runner = load(yardstick.path, where, dtype, trust_remote_code=yardstick.trust_remote_code)
    extended = relation == "extended"
    checks = list(_frequency_checks(runner, a, b, extended=extended)) if yardstick is b else []
    if yardstick.stock_is_right:
        first = logits(runner, ids)
    else:
        first = _by_reference(runner, yardstick, rotation, ids, yardstick.reading.pairing)
    if yardstick is not b:
        del runner
        runner = load(b.path, where, dtype, trust_remote_code=b.trust_remote_code)
        checks = list(_frequency_checks(runner, a, b, extended=extended))
    if not yardstick.stock_is_right and b.stock_is_right and not extended:
        talk(f"forward pass of {b.path}")
        second = logits(runner, ids)
    else:
        talk(f"forward pass of {b.path}, {b.reading.pairing.value} by the reference rotation")
        second = _by_reference(runner, b, rotation, ids, b.reading.pairing)
    twins = b.reading.model_type != a.reading.model_type and a.stock_is_right and b.stock_is_right and not extended
    stock = logits(runner, ids) if twins else None
    talk(f"negative control: {b.path} as {b.reading.pairing.other.value}")
    return first, second, _by_reference(runner, b, rotation, ids, b.reading.pairing.other), stock, checks


def _by_reference(runner: Runner, side: Side, rotation: Side, ids: Tensor, pairing: Pairing) -> Tensor:
    """The logits of ``side`` in layout ``pairing``, with the frequencies that the config of ``rotation`` means."""
    from ropetool.models.run import logits, reference_rotation

    rotaries = _rotaries(rotation.reading, pairing)
    live = _scalings(rotation) == _scalings(side)
    learned = side.reading.family.learned
    with reference_rotation(runner, rotaries, side.reading.nope_layers, live=live, learned=learned):
        return logits(runner, ids)


def _frequency_checks(runner: Runner, a: Side, b: Side, *, extended: bool) -> Iterator[Check]:
    """The live inv_freq of B is what its config means (and was not rounded), and an extension changed it."""
    import torch

    from ropetool.models.tables import live_frequencies, live_of, stretch

    reach = b.reading.reach or 1
    stretch(runner.model, reach)
    live = live_frequencies(runner.model)
    stretch(runner.model, 1)
    planned, old = (
        {r.layers: torch.from_numpy(r.scaling.inv_freq(r.geometry.rotary_dim, reach)) for r in s.reading.rotations}
        for s in (b, a)
    )
    kinds = getattr(runner.model.config, "layer_types", None)
    planned = {kind: f for kind, f in planned.items() if kind == ALL_LAYERS or not kinds or kind in kinds}
    if not live and not extended:
        detail = "the class keeps no frequencies in a buffer; its table shows in the logits alone"
        yield Check("frequencies-live", True, detail)
        return
    if b.reading.family.learned:
        yield Check(
            "frequencies-live", True, "the weights hold a learned factor for every frequency; the config does not"
        )
        return
    apart = max(_relative_distance(live_of(live, kind), frequencies) for kind, frequencies in planned.items())
    yield Check(
        "frequencies-live",
        apart < LIVE_TOLERANCE,
        f"the model's live frequencies are within {apart:.1e} of those that config.json means",
    )
    if extended:
        changed = any(
            _relative_distance(live_of(live, kind), old[kind]) > LIVE_TOLERANCE for kind in old if kind in planned
        )
        detail = "the extension changed the live frequencies" if changed else "the extension changed no live frequency"
        yield Check("frequencies-changed", changed, detail)


def _relative_distance(live: Tensor | None, planned: Tensor) -> float:
    """The largest relative difference over the pairs; pairs that never turn must do so in both.

    In order of size: where a class keeps them in another order, only the logits can tell whether it is the right one.
    """
    if live is None or live.shape != planned.shape:
        return math.inf
    live, planned = live.sort().values, planned.sort().values
    still = planned == 0
    if bool((live[still] != 0).any()):
        return math.inf
    return float(((live - planned)[~still] / planned[~still]).abs().max())


def _logit_checks(apart: Difference, allowed: float, tokens: int, *, perhaps_rounding: bool) -> Iterator[Check]:
    """``perhaps_rounding``: nothing else failed, so a small excess may be what the class itself rounds away."""
    yield Check("logits-finite", apart.finite, "all logits are finite" if apart.finite else "a logit is not finite")
    detail = f"over {tokens} positions the largest difference is {apart.max_abs_diff:.2e}; {allowed:.2e} is allowed"
    if perhaps_rounding and allowed < apart.max_abs_diff < ROUNDING_MARGIN * allowed:
        detail += ": run again with --dtype float64 to tell rounding from a fault"
    yield Check("logits", apart.max_abs_diff <= allowed, detail)


def _stock_checks(a: Side, b: Side, first: Tensor, stock: Tensor | None, allowed: float) -> Iterator[Check]:
    """The second as plain transformers runs it: for a checkpoint that was written for a twin of the first's class."""
    from ropetool.models.logits import compare_logits

    if stock is None:
        return
    apart = compare_logits(first, stock).max_abs_diff
    detail = f"the stock class of {a.reading.model_type} and that of {b.reading.model_type} are {apart:.2e} apart"
    yield Check("stock-classes", apart <= allowed, detail)


def _control_check(control: Difference, pairing: Pairing, fails: bool, proven: bool) -> Check:
    """The layout that the weights do not have must miss by a wide margin, or equal logits prove nothing.

    Two checkpoints that are the same file for file and key for key need no such proof.
    """
    detail = f"the same weights as {pairing.other.value} are {control.max_abs_diff:.2e} apart"
    if not fails and proven:
        return Check("control", True, f"{detail}: too little to prove anything, but every byte is the same")
    advice = ": too little, so equal logits prove nothing here; use more tokens, or a model whose positions matter"
    return Check("control", fails, detail + ("" if fails else advice))
