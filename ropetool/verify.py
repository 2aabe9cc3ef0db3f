"""Verify: prove by files and by forward passes that two checkpoints are the same model, or say where they differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropetool.checkpoint.compare import first_wrong_row, same_bytes, same_form
from ropetool.checkpoint.folder import Checkpoint, open_checkpoint
from ropetool.errors import CheckpointError, UsageError
from ropetool.families.plan import plan_conversion
from ropetool.families.reading import Reading, read_model, rotary_dim_of
from ropetool.models.options import Device, DType
from ropetool.rope.pairing import Pairing

if TYPE_CHECKING:
    from torch import Tensor

    from ropetool.models.rotary import Rotary
    from ropetool.models.run import Runner
    from ropetool.rope.frequencies import Scaling

DEFAULT_TOKENS = 512
# How far the negative control must miss, as a multiple of the tolerance, for the comparison to prove anything.
CONTROL_MARGIN = 100.0
SEED = 20260101
# Float32 keeps a frequency to 1e-7, bfloat16 to 4e-3; classes compute theirs in float32, in a few steps.
LIVE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Check:
    """One named line of the result."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Difference:
    """How far two logit tables are apart, over all positions and by position."""

    max_abs_diff: float
    relative_diff: float
    mean_kl: float
    top1_agreement: float
    by_position: tuple[Mapping[str, float], ...]
    finite: bool


@dataclass(frozen=True)
class Verification:
    """The verdict, and everything that it rests on."""

    passed: bool
    relation: str
    device: str
    dtype: str
    tokens: int
    max_abs_diff: float
    relative_diff: float
    mean_kl: float
    top1_agreement: float
    tolerance: float
    by_position: tuple[Mapping[str, float], ...]
    control: Mapping[str, Any]
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Side:
    """One of the two checkpoints."""

    path: Path
    checkpoint: Checkpoint
    reading: Reading

    @property
    def stock_is_right(self) -> bool:
        """Whether the stock class rotates the layout that the weights have."""
        return self.reading.pairing is self.reading.class_pairing


Talk = Callable[[str], None]


def _silent(message: str) -> None:
    """Say nothing."""


def verify(
    a: Path,
    b: Path,
    *,
    tokens: int | None = None,
    text: str | None = None,
    device: Device = Device.AUTO,
    dtype: DType = DType.FLOAT32,
    tolerance: float | None = None,
    talk: Talk = _silent,
) -> Verification:
    """Compare two checkpoints: every tensor as bytes, then the logits at every position of one sequence.

    ``tokens`` is the length of the sequence (by default 512, or the trained length if that is shorter); ``text``
    replaces the seeded random token ids. Raises `RopetoolError` for a checkpoint that cannot be read or loaded.
    """
    from ropetool.models.run import pick_device

    side_a, side_b = _side(a), _side(b)
    relation = _relation(side_a, side_b)
    talk("comparing tensors")
    checks = [*_file_checks(side_a, side_b)]
    where = pick_device(device)
    ids = _token_ids(side_a, tokens, text)
    first, second, control, frequency_checks = _forward_passes(side_a, side_b, relation, ids, where, dtype, talk)
    checks += frequency_checks
    apart, control_apart = compare_logits(first, second), compare_logits(first, control)
    allowed = tolerance if tolerance is not None else derived_tolerance(first, dtype, side_a.reading)
    control_fails = not control_apart.max_abs_diff <= CONTROL_MARGIN * allowed
    checks += _logit_checks(apart, control_apart, allowed, side_b.reading.pairing, control_fails, len(ids))
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


def _side(path: Path) -> Side:
    checkpoint = open_checkpoint(path)
    return Side(path, checkpoint, read_model(checkpoint.config))


def _relation(a: Side, b: Side) -> str:
    if _scalings(a) != _scalings(b):
        return "extended"
    return "converted" if a.reading.pairing is not b.reading.pairing else "same"


def _scalings(side: Side) -> list[Scaling]:
    return [rotation.scaling for rotation in side.reading.rotations]


def _file_checks(a: Side, b: Side) -> Iterator[Check]:
    """Tensors that stay are byte-identical, tensors that move are exactly the permutation of their source."""
    moved = {}
    if a.reading.pairing is not b.reading.pairing:
        steps = plan_conversion(a.checkpoint, a.reading, a.reading.pairing, b.reading.pairing)
        moved = {move.tensor.name: move.permutation.index for move in steps.moves}
    kept_fault = _form_fault(a.checkpoint, b.checkpoint)
    moved_fault = None
    for name, tensor in a.checkpoint.tensors.items():
        if kept_fault or name.endswith("rotary_emb.inv_freq"):
            continue
        other, shards = b.checkpoint.tensors[name], (a.checkpoint.weight_map[name], b.checkpoint.weight_map[name])
        if name not in moved:
            if not same_bytes(shards[0], tensor, shards[1], other):
                kept_fault = f"{name} must not differ, and does"
        elif moved_fault is None:
            row = first_wrong_row(shards[0], tensor, shards[1], other, moved[name])
            if row is not None:
                moved_fault = f"{name}: row {row} should be row {moved[name][row]} of the source, and is not"
    kept = len(a.checkpoint.tensors) - len(moved)
    yield Check("tensors-kept", not kept_fault, kept_fault or f"{kept} tensors are byte-identical")
    if moved:
        detail = moved_fault or f"{len(moved)} tensors are exactly the permutation of their source"
        yield Check("tensors-moved", not moved_fault and not kept_fault, detail)


def _form_fault(a: Checkpoint, b: Checkpoint) -> str | None:
    names_a, names_b = set(a.tensors), set(b.tensors)
    for name in sorted(names_a ^ names_b):
        return f"{name} is in {'the first' if name in names_a else 'the second'} checkpoint only"
    for name in a.tensors:
        if not same_form(a.tensors[name], b.tensors[name]):
            left, right = a.tensors[name], b.tensors[name]
            return f"{name} is {left.dtype}{list(left.shape)} in one and {right.dtype}{list(right.shape)} in the other"
    return None


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
    from ropetool.models.rotary import Rotary

    return {
        rotation.layers: Rotary(
            pairing, rotation.scaling, reading.geometry.rope_start, rotary_dim_of(reading, rotation)
        )
        for rotation in reading.rotations
    }


def _forward_passes(
    a: Side, b: Side, relation: str, ids: Tensor, where: Any, dtype: DType, talk: Talk
) -> tuple[Tensor, Tensor, Tensor, list[Check]]:
    """Three logit tables: the yardstick, the checkpoint under test, and the negative control.

    The yardstick is A in its own class where that is right, and B runs by the reference rotation in B's layout. An
    extension changes logits by design, so there the yardstick is B in its own class, with its live frequencies; where
    the class cannot run B, B's weights are held against A under A's frequencies.
    """
    from ropetool.models.run import load, logits

    own_class = relation == "extended" and b.stock_is_right
    yardstick, rotation = (b, b) if own_class else (a, a)
    talk(f"forward pass of {yardstick.path}")
    runner = load(yardstick.path, where, dtype)
    if yardstick.stock_is_right:
        first = logits(runner, ids)
    else:
        first = _by_reference(runner, yardstick, rotation, ids, yardstick.reading.pairing)
    if yardstick is not b:
        del runner
        runner = load(b.path, where, dtype)
    checks = list(_frequency_checks(runner, a, b, extended=relation == "extended"))
    if not yardstick.stock_is_right and b.stock_is_right and relation != "extended":
        talk(f"forward pass of {b.path}")
        second = logits(runner, ids)
    else:
        talk(f"forward pass of {b.path}, {b.reading.pairing.value} by the reference rotation")
        second = _by_reference(runner, b, rotation, ids, b.reading.pairing)
    talk(f"negative control: {b.path} as {b.reading.pairing.other.value}")
    return first, second, _by_reference(runner, b, rotation, ids, b.reading.pairing.other), checks


def _by_reference(runner: Runner, side: Side, rotation: Side, ids: Tensor, pairing: Pairing) -> Tensor:
    """The logits of ``side`` in layout ``pairing``, with the frequencies that the config of ``rotation`` means."""
    from ropetool.models.run import logits, reference_rotation

    rotaries, family = _rotaries(rotation.reading, pairing), side.reading.family
    live = _scalings(rotation) == _scalings(side)
    with reference_rotation(runner, rotaries, side.reading.nope_layers, family.pairing_key, live=live):
        return logits(runner, ids)


def _frequency_checks(runner: Runner, a: Side, b: Side, *, extended: bool) -> Iterator[Check]:
    """The live inv_freq of B is what its config means (and was not rounded), and an extension changed it."""
    import torch

    from ropetool.models.run import live_frequencies

    live = live_frequencies(runner.model)
    planned, old = (
        {r.layers: torch.from_numpy(r.scaling.inv_freq(rotary_dim_of(s.reading, r))) for r in s.reading.rotations}
        for s in (b, a)
    )
    if not live and not extended:
        detail = "the class keeps no frequencies in a buffer; its table shows in the logits alone"
        yield Check("frequencies-live", True, detail)
        return
    apart = max(_relative_distance(live.get(kind), frequencies) for kind, frequencies in planned.items())
    yield Check(
        "frequencies-live",
        apart < LIVE_TOLERANCE,
        f"the model's live frequencies are within {apart:.1e} of those that config.json means",
    )
    if extended:
        changed = any(_relative_distance(live.get(kind), old[kind]) > LIVE_TOLERANCE for kind in old)
        detail = "the extension changed the live frequencies" if changed else "the extension changed no live frequency"
        yield Check("frequencies-changed", changed, detail)


def _relative_distance(live: Tensor | None, planned: Tensor) -> float:
    """The largest relative difference over the pairs; pairs that never turn must do so in both."""
    if live is None or live.shape != planned.shape:
        return math.inf
    still = planned == 0
    if bool((live[still] != 0).any()):
        return math.inf
    return float(((live - planned)[~still] / planned[~still]).abs().max())


def compare_logits(a_TV: Tensor, b_TV: Tensor) -> Difference:
    """The distance of two logit tables [T, V]; KL in nats from ``a`` to ``b``, buckets of doubling width."""
    import torch

    a, b = a_TV.double(), b_TV.double()
    by_token = (a - b).abs().amax(dim=-1)
    log_a, log_b = a.log_softmax(-1), b.log_softmax(-1)
    kl = (log_a.exp() * (log_a - log_b)).sum(-1).mean()
    edges = [0, 16]
    while edges[-1] < len(a):
        edges.append(edges[-1] * 2)
    buckets = tuple(
        {"from": start, "to": min(stop, len(a)), "max_abs_diff": float(by_token[start:stop].max())}
        for start, stop in pairwise(edges)
        if start < len(a)
    )
    finite = bool(torch.isfinite(a).all() and torch.isfinite(b).all())
    return Difference(
        max_abs_diff=float(by_token.max()),
        relative_diff=float(by_token.max() / a.std()),
        mean_kl=float(kl),
        top1_agreement=float((a.argmax(-1) == b.argmax(-1)).double().mean()),
        by_position=buckets,
        finite=finite,
    )


def derived_tolerance(logits_TV: Tensor, dtype: DType, reading: Reading) -> float:
    """What rounding alone can do: spread of the logits x unit roundoff x sqrt(depth) x a factor for the angles.

    An angle of t radians is off by t roundoffs, so the factor grows with the tokens (1,024 up to 512 of them). In
    bfloat16 the angles are made in float32, and only the activations round.
    """
    import torch

    from ropetool.models.run import torch_dtype

    layers = reading.config.get("num_hidden_layers") or reading.config.get("n_layer") or 1
    roundoff = torch.finfo(torch_dtype(dtype)).eps
    factor = 4.0 if dtype is DType.BFLOAT16 else 2.0 * max(len(logits_TV), DEFAULT_TOKENS)
    return float(logits_TV.double().std()) * roundoff * math.sqrt(layers) * factor


def _logit_checks(
    apart: Difference, control: Difference, allowed: float, pairing: Pairing, control_fails: bool, tokens: int
) -> Iterator[Check]:
    yield Check("logits-finite", apart.finite, "all logits are finite" if apart.finite else "a logit is not finite")
    passed = apart.max_abs_diff <= allowed
    yield Check(
        "logits",
        passed,
        f"over {tokens} positions the largest difference is {apart.max_abs_diff:.2e}; {allowed:.2e} is allowed",
    )
    yield Check(
        "control",
        control_fails,
        f"the same weights as {pairing.other.value} are {control.max_abs_diff:.2e} apart"
        + ("" if control_fails else ": too little, so this comparison proves nothing; use more tokens"),
    )
