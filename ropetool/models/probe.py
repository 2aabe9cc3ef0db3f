"""The probe: read from a model's own code which rows turn together, where, and how fast.

Nothing is taken from a name. Each row of each projection is followed into q and k (`capture`), at five positions.
At position 0 RoPE is the identity, so the row's own slot shows; at position p a rotated row also shows in its
partner's slot, and the two values are (cos, sin) of the angle. What does not fit that picture is reported as unread,
with the reason.
"""

# ruff: noqa: ANN401  (transformers is untyped: its models and configs are Any)
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from typing import Any

from ropetool.rope.pairing import Head, Keep, Pairing, Span


class Role(str, Enum):
    """What the rows of a part become."""

    Q = "q"
    K = "k"
    V = "v"
    LATENT = "latent"
    NONE = "none"


@dataclass(frozen=True)
class Part:
    """Consecutive rows of a projection with one role: one head of q, k or v, or a block that is none of them."""

    role: Role
    rows: int
    rope_start: int = 0
    rope_dim: int = 0

    @property
    def span(self) -> Span:
        """The part in the row grammar."""
        return Head(self.rows, self.rope_start, self.rope_dim) if self.rope_dim else Keep(self.rows)


@dataclass(frozen=True)
class NormReport:
    """A norm that q, k or a latent passes: its name in the attention module, and what one weight covers."""

    name: str
    role: Role
    weight_shape: tuple[int, ...] | None
    after_rotation: bool


@dataclass(frozen=True)
class ProjectionReport:
    """One projection: name in the attention module, whether it has a bias, and its rows from first to last."""

    name: str
    bias: bool
    parts: tuple[Part, ...]

    @property
    def spans(self) -> tuple[Span, ...]:
        """The rows in the row grammar."""
        return tuple(part.span for part in self.parts)

    @property
    def roles(self) -> frozenset[Role]:
        """Every role that some row of it has."""
        return frozenset(part.role for part in self.parts)


@dataclass(frozen=True)
class AttentionReport:
    """One attention module, or several that were read the same (``paths``).

    ``inv_freq`` is in radians per token, one for each pair, in pair order; ``attention_scaling`` is the length of a
    rotated k row, and ``query_scale`` how much longer a q row is. ``pairing`` is None where nothing is rotated
    (a NoPE layer), or where ``unread`` says why it could not be read. ``backwards``: the pairs turn by the negative
    angle (the first row of a pair gets +x2 sin, the second -x1 sin). ``key_from`` names the module
    whose projections made k, if it is another one.
    """

    paths: tuple[str, ...]
    layers: tuple[int, ...]
    kind: str
    class_name: str
    interface: bool
    projections: tuple[ProjectionReport, ...] = ()
    norms: tuple[NormReport, ...] = ()
    other_tensors: tuple[str, ...] = ()
    pairing: Pairing | None = None
    rotary_dim: int = 0
    rope_start: int = 0
    inv_freq: tuple[float, ...] = ()
    attention_scaling: float | None = None
    query_scale: float | None = None
    backwards: bool = False
    value_rotated: bool = False
    key_from: str | None = None
    unread: str | None = None


@dataclass(frozen=True)
class ProbeReport:
    """All attention modules of a model; ``unread`` is the reason if the model could not be run at all."""

    model_type: str
    class_name: str
    attentions: tuple[AttentionReport, ...] = ()
    unread: str | None = None

    @property
    def pairings(self) -> frozenset[Pairing]:
        """The pairings that were read, of all kinds of layers."""
        return frozenset(a.pairing for a in self.attentions if a.pairing is not None)


def probe_model(
    model: Any, inputs: Callable[[int], Mapping[str, Any]] | None = None, merge: bool = True
) -> ProbeReport:
    """Probe a built model. It should be tiny: the batch has one sample for each row of each attention projection.

    Args:
        model: a transformers model (or one with custom code), on any device; its weights do not matter, and it
            is left as it was.
        inputs: the forward's arguments for a batch size; token ids of a text model if it is None.
        merge: whether layers that were read the same share one report.

    Returns:
        the report; what could not be read carries the reason in ``unread``.
    """
    from ropetool.models import analysis

    attentions, unread = analysis.read(model, inputs)
    config = getattr(model, "config", None)
    return ProbeReport(
        model_type=str(getattr(config, "model_type", "")),
        class_name=type(model).__name__,
        attentions=merged(attentions) if merge else tuple(attentions),
        unread=unread,
    )


def probe_like(config: Any, model_class: Any = None) -> ProbeReport:
    """Probe a tiny random model of a checkpoint's own config: its switches are kept, its sizes are shrunk.

    ``model_class`` is the class of the checkpoint's custom code; loading that code, and the user's consent to it, is
    the caller's business.
    """
    from ropetool.models import tiny

    try:
        built = tiny.build_like(config, model_class)
    except tiny.CannotBuild as error:
        return ProbeReport(str(getattr(config, "model_type", "")), "", unread=str(error))
    return probe_model(built.model, built.inputs)


def probe_model_type(model_type: str, **overrides: Any) -> ProbeReport:
    """Probe a tiny random model of ``model_type``; ``overrides`` are config values. Cached.

    The cache holds for one installed transformers, whose version is part of the key.
    """
    import transformers

    return _probe_model_type(model_type, transformers.__version__, _frozen(overrides))


@cache
def _probe_model_type(model_type: str, _version: str, overrides: Any) -> ProbeReport:
    from ropetool.models import tiny

    try:
        built = tiny.build(model_type, **_thawed(overrides))
    except tiny.CannotBuild as error:
        return ProbeReport(model_type, "", unread=str(error))
    return replace(probe_model(built.model, built.inputs), model_type=model_type)


def merged(reports: Sequence[AttentionReport]) -> tuple[AttentionReport, ...]:
    """One report for all modules that differ in nothing but their place, in order of the first."""
    groups: dict[AttentionReport, list[AttentionReport]] = {}
    for report in reports:
        key = replace(
            report,
            paths=(),
            layers=(),
            query_scale=None,
            key_from=None if report.key_from is None else "another module",
            inv_freq=tuple(float(f"{f:.5g}") for f in report.inv_freq),
        )
        groups.setdefault(key, []).append(report)
    return tuple(
        replace(
            group[0],
            paths=tuple(p for r in group for p in r.paths),
            layers=tuple(sorted({i for r in group for i in r.layers})),
            query_scale=group[0].query_scale if len({r.query_scale for r in group}) == 1 else None,
        )
        for group in groups.values()
    )


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ("map", tuple((k, _frozen(v)) for k, v in sorted(value.items())))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(_frozen(v) for v in value))
    return value


def _thawed(value: Any) -> Any:
    if isinstance(value, tuple):
        kind, items = value
        return {k: _thawed(v) for k, v in items} if kind == "map" else [_thawed(v) for v in items]
    return value


def angle_error_rad(a: float, b: float) -> float:
    """The distance of two angles, modulo a full turn."""
    return abs((a - b + math.pi) % (2 * math.pi) - math.pi)
