"""What a probe's report and the model's tensors say of the one place in a layer where q and k are rotated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ropetool.models.report import AttentionReport, NormReport, ProbeReport, ProjectionReport, Role
from ropetool.models.rotations import Unreadable
from ropetool.rope.pairing import Pairing, Span, rows_of


@dataclass(frozen=True)
class SeenSite:
    """The attention that rotates, as one tiny model has it.

    ``name`` is its place in a layer (``self_attn``). ``projections`` are those of which rows turn, ``feeds`` says what
    they and the norms (with the ``norm_sizes`` of their weights) become. ``still`` are the layers where the same
    attention does not rotate, ``may_lack`` what a layer's attention of that name does without.
    """

    name: str
    pairing: Pairing
    rotated: tuple[AttentionReport, ...]
    projections: Mapping[str, tuple[Span, ...]]
    feeds: Mapping[str, str]
    norm_sizes: Mapping[str, int]
    norm_feeds: Mapping[str, str]
    stays: tuple[str, ...]
    still: frozenset[int]
    may_lack: str


def site_of(report: ProbeReport, model: Any) -> SeenSite | None:
    """The site of a model, None if nothing is rotated. Raises `Unreadable` for what one row cannot say."""
    _check_read(report)
    rotated = tuple(a for a in report.attentions if a.pairing is not None)
    if not rotated:
        return None
    if len({(a.pairing, a.backwards) for a in rotated}) > 1:
        raise Unreadable("its layers do not turn alike: some other rows together, or by the negative angle")
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    names = {_place(attention, path, tensors) for attention in rotated for path in attention.paths}
    if len(names) > 1:
        raise Unreadable(f"it rotates in {len(names)} places of a layer ({', '.join(sorted(names))})")
    name = names.pop()
    same = [a for a in report.attentions if all(name.split(".")[0] in path.split(".") for path in a.paths)]
    projections = _projections(rotated)
    _check_alike(same, projections)
    _check_weights(rotated, projections, name, model)
    norms = _norms(same)
    feeds = {p: _feeds(rotated, p) for p in projections}
    stays, may_lack = _others(tensors, name, feeds, norms)
    return SeenSite(
        name, rotated[0].pairing or Pairing.HALF, rotated, projections, feeds,
        {n: size for n, (_, size) in norms.items()}, {n: fed for n, (fed, _) in norms.items()}, stays,
        frozenset(layer for a in same if a.pairing is None for layer in a.layers), may_lack,
    )  # fmt: skip


def _check_read(report: ProbeReport) -> None:
    if report.unread:
        raise Unreadable(report.unread)
    for attention in report.attentions:
        if attention.unread:
            raise Unreadable(f"{attention.class_name} at {attention.paths[0]}: {attention.unread}")
        if attention.touching:
            raise Unreadable(
                f"in {attention.class_name}, q or k depends on {', '.join(attention.touching)}, which is neither a "
                f"projection nor a norm: whether it must move with the rows is not known"
            )


def _place(attention: AttentionReport, path: str, tensors: Mapping[str, Any]) -> str:
    """The name, within its layer, of the module that holds the projections of an attention."""
    turning = [p.name for p in attention.projections if _turns(p)]
    scope = path
    while scope and not all(f"{scope}.{name}.weight" in tensors for name in turning):
        scope = scope.rpartition(".")[0]
    parts = scope.split(".")
    layer = next((i for i in reversed(range(len(parts))) if parts[i].isdigit()), None)
    if layer is None or layer == len(parts) - 1:
        raise Unreadable(f"the projections of {path} are not in a module of their own in a numbered layer")
    return ".".join(parts[layer + 1 :])


def _turns(projection: ProjectionReport) -> bool:
    return any(part.rope_dim for part in projection.parts)


def _projections(rotated: Sequence[AttentionReport]) -> dict[str, tuple[Span, ...]]:
    """The rows of every projection that turns in some layer, which must be the same in all of them."""
    turning = {p.name for a in rotated for p in a.projections if _turns(p)}
    found: dict[str, tuple[Span, ...]] = {}
    for attention in rotated:
        for projection in attention.projections:
            name = projection.name
            if name in turning and found.setdefault(name, projection.spans) != projection.spans:
                raise Unreadable(f"{name} has other heads in layers of the kind {attention.kind} than in the rest")
            if name in turning and Role.UNREAD in projection.roles:
                raise Unreadable(f"rows of {name} reach k only behind the tokens, where the probe does not look")
    return found


def _check_alike(same: Iterable[AttentionReport], projections: Mapping[str, tuple[Span, ...]]) -> None:
    """Where the same attention does not rotate, its rows are moved too; so they must be as many."""
    for attention in same:
        for projection in attention.projections:
            rows = rows_of(projection.spans)
            if rows != rows_of(projections.get(projection.name, projection.spans)):
                raise Unreadable(
                    f"{projection.name} has {rows} rows in layers that do not rotate, and others elsewhere"
                )
        if attention.value_rotated:
            raise Unreadable("v is rotated too")


def _check_weights(
    rotated: Iterable[AttentionReport], projections: Mapping[str, tuple[Span, ...]], place: str, model: Any
) -> None:
    """A row of a projection is a row of its weight: not so in a Conv1D, or where one weight holds several experts."""
    modules = dict(model.named_modules())
    for attention in rotated:
        for path in attention.paths:
            for name in {p.name for p in attention.projections} & projections.keys():
                named = [n for n in modules if n.endswith(f".{place}.{name}") and _near(n, path)]
                module = modules[named[0]] if named else None
                weight = getattr(module, "weight", None)
                if weight is None or hasattr(module, "nf") or tuple(weight.shape[:-1]) != (rows_of(projections[name]),):
                    shape = None if weight is None else tuple(weight.shape)
                    raise Unreadable(f"the weight of {name} is {shape}, not one row for each of its outputs")


def _near(module: str, path: str) -> bool:
    """Whether both lie in the same layer."""
    a, b = ([part for part in name.split(".") if part.isdigit()] for name in (module, path))
    return a == b


def _feeds(rotated: Iterable[AttentionReport], name: str) -> str:
    """``q``, ``k`` or ``qk``: what the turning rows of a projection become."""
    parts = [part for a in rotated for p in a.projections if p.name == name for part in p.parts if part.rope_dim]
    return "".join(role.value for role in (Role.Q, Role.K) if any(part.role is role for part in parts))


def _norms(same: Iterable[AttentionReport]) -> dict[str, tuple[str, int]]:
    """Every norm with a weight that q or k passes: which of them, and the size of the weight."""
    found: dict[str, tuple[str, int]] = {}
    for attention in same:
        for norm in attention.norms:
            if norm.role in (Role.Q, Role.K) and norm.weight_shape:
                size = _size(norm)
                if found.setdefault(norm.name, (norm.role.value, size))[1] != size:
                    raise Unreadable(f"{norm.name} has {size} weights in some layers and others elsewhere")
    return found


def _size(norm: NormReport) -> int:
    size = 1
    for extent in norm.weight_shape or ():
        size *= extent
    return size


def _others(
    tensors: Iterable[str], name: str, feeds: Mapping[str, str], norms: Mapping[str, Any]
) -> tuple[tuple[str, ...], str]:
    """What else the attention holds, in any layer, and what of q and k the attention of some layer lacks."""
    stays: dict[str, None] = {}
    fed: dict[str, set[str]] = defaultdict(set)
    for tensor in tensors:
        layer, found, rest = f".{tensor}".rpartition(f".{name}.")
        if not found:
            continue
        module = rest.rpartition(".")[0] or rest
        fed[layer].update(feeds.get(module, ""))
        if module not in feeds and module not in norms:
            stays[module] = None
    may_lack = "".join(what for what in "qk" if not all(what in layer for layer in fed.values()))
    return tuple(stays), may_lack
