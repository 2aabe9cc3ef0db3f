"""What a probe says: frozen records of a model's attention modules, and how like ones are merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from ropetool.rope.pairing import Head, Keep, Pairing, Span


class Role(str, Enum):
    """What the rows of a part become.

    ``latent`` reaches q or k in many slots (through another projection), ``unread`` reaches k only in blocks behind
    the tokens (compressed keys), where this probe does not look: nothing may be concluded about such rows.
    """

    Q = "q"
    K = "k"
    V = "v"
    LATENT = "latent"
    NONE = "none"
    UNREAD = "unread"


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
    angle (the first row of a pair gets +x2 sin, the second -x1 sin). ``touching`` names those of the
    ``other_tensors`` that q or k depends on (a learned scale, a bias of its own): whether they must move with the rows
    is for a person to say. ``key_from`` names the module
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
    touching: tuple[str, ...] = ()
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
