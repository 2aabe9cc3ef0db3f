"""From a captured pass to reports: where each row lands, with which partner, at what angle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ropetool.models import capture as cap
from ropetool.models.report import AttentionReport, NormReport, Part, ProjectionReport, Role
from ropetool.models.rotations import (
    ANGLE_TOLERANCE_RAD,
    Rotation,
    Row,
    Unreadable,
    angle_error_rad,
    rotation_of,
    rotations_of,
    split_rows,
)
from ropetool.models.seams import INDEXER, is_linear, kind_of, layer_of

_CALLS = 4
_RELATIVE = 1e-9
_HIT, _NOISE = 1e-3, 1e-6


def read(model: Any, inputs: Callable[[int], Mapping[str, Any]] | None) -> tuple[list[AttentionReport], str | None]:
    """All attention modules of ``model``, each with its own ``unread``; or nothing, and the reason."""
    inputs = inputs or _token_inputs(model)
    training = model.training
    model.eval()
    try:
        found = cap.run(model, inputs, {}, 1.0)
        modules = dict(model.named_modules())
        roots = list(dict.fromkeys(c.module for c in found.calls if c.module in modules))
        if not roots:
            return [], "no module was seen doing attention"
        projections = _projections(modules, roots)
        again = partial(cap.run, model, inputs, projections, roots=roots)
        seen = again(1.0)
        double = seen if _all_unit(seen) else again(2.0)
        reports = _all_reports(model, modules, seen, double)
        return [_with_touching(r, modules, seen, again) for r in reports], None
    except Exception as error:  # noqa: BLE001 - any model code may raise anything; it is reported as unread
        return (
            [],
            f"the forward pass failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        )
    finally:
        model.train(training)


def _all_reports(
    model: Any, modules: Mapping[str, Any], seen: cap.Capture, double: cap.Capture
) -> list[AttentionReport]:
    calls: dict[str, list[tuple[cap.Seen, cap.Seen]]] = {}
    for pair in zip(seen.calls, double.calls, strict=True):
        calls.setdefault(pair[0].module, []).append(pair)
    reports = [r for pairs in calls.values() for r in _reports(model, modules, seen, pairs[:_CALLS])]
    read_scopes = {_scope(c.module) for c in seen.calls}
    unseen = [n for n in _indexers(modules) if n not in read_scopes]
    return reports + [_unseen(modules, n) for n in unseen]


def _with_touching(
    report: AttentionReport, modules: Mapping[str, Any], seen: cap.Capture, again: Callable[[float], cap.Capture]
) -> AttentionReport:
    """The report, with those other tensors that q or k changes with: each is changed in turn, and put back."""
    parameters = dict(modules[_scope(report.paths[0])].named_parameters())
    touching = []
    for name in report.other_tensors:
        if name not in parameters:
            continue
        parameter = parameters[name].data
        before = parameter.clone()
        try:
            parameter.add_(torch.rand_like(parameter) + 0.5)
            changed = again(1.0)
        finally:
            parameter.copy_(before)
        pairs = zip(seen.calls, changed.calls, strict=True)
        if any(_differ(a, b) for a, b in pairs if a.module == report.paths[0]):
            touching.append(name)
    return replace(report, touching=tuple(touching))


def _differ(a: cap.Seen, b: cap.Seen) -> bool:
    pairs = [(a.q, b.q), (a.k, b.k)]
    return any(x is not None and y is not None and bool(((x - y).abs() > _HIT).any()) for x, y in pairs)


def _indexers(modules: Mapping[str, nn.Module]) -> list[str]:
    """The indexers of sparse attention, which have q and k of their own, by their class's name."""
    named = {n: m for n, m in modules.items() if "indexer" in type(m).__name__.lower()}
    return [n for n, m in named.items() if _scope(n) == n and any(is_linear(x) for x in m.modules())]


def _unseen(modules: Mapping[str, nn.Module], name: str) -> AttentionReport:
    """An indexer that multiplied no q by a k where this probe looks; its rows may move all the same."""
    kind = type(modules[name]).__name__
    reason = "its product of q and k was not seen"
    return AttentionReport((name,), _layer(name, modules[name]), INDEXER, kind, False, unread=reason)


def _all_unit(seen: cap.Capture) -> bool:
    """Whether every row that arrives has length 1 at position 0, so that nothing can have normalised it."""
    for call in seen.calls:
        for x in (call.q, call.k, call.v):
            if x is not None:
                length = (x - x[-1:])[:, :, 0].abs().amax(dim=(1, 2))
                if bool(((length > 0) & ((length - 1.0).abs() > 1e-4)).any()):
                    return False
    return True


def _reports(model: Any, modules: Mapping[str, Any], seen: cap.Capture, pairs: Any) -> list[AttentionReport]:
    """One report for a module that is called several times, unless it is read differently then."""
    found = list(dict.fromkeys(_report(model, modules, seen, call, twice) for call, twice in pairs))
    alike: dict[Any, AttentionReport] = {}
    for report in found:
        key = replace(report, projections=(), value_rotated=False)
        alike[key] = _with_values(alike[key], report) if key in alike else report
    return list(alike.values())


def _with_values(a: AttentionReport, b: AttentionReport) -> AttentionReport:
    """``a``, with the rows of v that only ``b`` saw (DiffLlama attends twice, each time with half of v)."""
    projections = tuple(
        replace(p, parts=tuple(y if y.role is Role.V else x for x, y in zip(p.parts, q.parts, strict=True)))
        if [x.rows for x in p.parts] == [y.rows for y in q.parts]
        else p
        for p, q in zip(a.projections, b.projections, strict=True)
    )
    return replace(a, projections=projections)


def _token_inputs(model: Any) -> Callable[[int], Mapping[str, Any]]:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, vocabulary, (1, cap.TOKENS), generator=generator)
    return lambda batch: {"input_ids": ids.expand(batch, -1).contiguous().to(model.device), "use_cache": False}


def _projections(modules: Mapping[str, nn.Module], roots: Sequence[str]) -> dict[str, nn.Module]:
    """The projections in or around the modules that do attention: the module's own, else its parent's."""
    found: dict[str, nn.Module] = {}
    for root in roots:
        scope = root
        while scope and not any(is_linear(m) for n, m in modules.items() if n.startswith(scope + ".")):
            scope = scope.rpartition(".")[0]
        for name, module in modules.items():
            if is_linear(module) and name.startswith(scope + "."):
                found[name] = module
    return found


def _report(model: Any, modules: Mapping[str, Any], seen: cap.Capture, call: cap.Seen, twice: cap.Seen) -> Any:
    module = modules[call.module]
    root = _scope(call.module)
    others = {_scope(c.module) for c in seen.calls} | set(_indexers(modules))
    nested = tuple(sorted(o + "." for o in others if o.startswith(root + ".")))
    own = [n for n in _own_projections(seen, root) if not n.startswith(nested)]
    base: dict[str, Any] = {
        "paths": (call.module,),
        "layers": _layer(call.module, module),
        "kind": kind_of(model, call.module, module),
        "class_name": type(module).__name__,
        "interface": call.interface,
    }
    try:
        if call.reason is not None or call.q is None or call.k is None:
            raise Unreadable(call.reason or "q or k was not seen")
        rows = {n: _rows(seen, n, call, twice) for n in seen.order}
        claimed = [n for n in seen.order if n in own]
        foreign = [n for n in seen.order if n not in own and any(r.role is not Role.NONE for r in rows[n])]
        key_from = next((n for n in foreign if any(r.role is Role.K for r in rows[n])), None)
        if not any(r.role is Role.Q for n in claimed for r in rows[n]):
            notes = "; ".join(f"{n}: {seen.notes[n]}" for n in claimed if n in seen.notes)
            mixed = any(r.role is Role.LATENT for n in claimed for r in rows[n])
            why = "each row that reaches q reaches several of its slots: q is mixed after the projection"
            raise Unreadable((why if mixed else "no row of its projections reaches q") + (notes and f" ({notes})"))
        if key_from is None and not any(r.role is Role.K for n in claimed for r in rows[n]):
            raise Unreadable("no row of its projections reaches k in one slot")
        projections = tuple(_projection(modules[n], _local(n, root), rows[n]) for n in claimed)
        rotations = [r for n in claimed for r in rotations_of(rows[n])]
        norms = _norms(seen, root, {n: rows[n] for n in claimed})
        return AttentionReport(
            **base,
            projections=projections,
            norms=norms,
            other_tensors=_others(modules[root], root, claimed, [n.name for n in norms], nested),
            key_from=key_from,
            **_common(rotations, rows, claimed + ([key_from] if key_from else [])),
        )
    except Unreadable as reason:
        return AttentionReport(**base, unread=str(reason))


def _scope(name: str) -> str:
    """The module whose tensors belong to the module that attends: an indexer's scorer is a part of the indexer."""
    parts = name.split(".")
    return ".".join(parts[: parts.index("indexer") + 1]) if "indexer" in parts else name


def _own_projections(seen: cap.Capture, root: str) -> list[str]:
    scope = root
    while scope:
        own = [n for n in seen.order if n.startswith(scope + ".")]
        if own:
            return own
        scope = scope.rpartition(".")[0]
    return []


def _local(name: str, root: str) -> str:
    """The projection's name in the attention module, or in the nearest parent that holds both."""
    scope = root
    while scope and not name.startswith(scope + "."):
        scope = scope.rpartition(".")[0]
    return name[len(scope) + 1 :] if scope else name


def _layer(name: str, module: Any) -> tuple[int, ...]:
    layer = layer_of(name, module)
    return () if layer is None else (layer,)


def _rows(seen: cap.Capture, name: str, call: cap.Seen, twice: cap.Seen) -> list[Row]:
    start, count = seen.starts[name], seen.rows[name]
    targets = {Role.Q: (call.q, twice.q), Role.K: (call.k, twice.k), Role.V: (call.v, twice.v)}
    found: list[list[Row]] = [[] for _ in range(count)]
    for role, (once, double) in targets.items():
        if once is None or double is None:
            continue
        response = once[start : start + count] - once[-1:]
        louder = double[start : start + count] - double[-1:] if double is not once else 2.0 * response
        hit = response.abs().amax(dim=(1, 2, 3)) > _NOISE
        for r in torch.nonzero(hit).flatten().tolist():
            found[r].append(_row(role, response[r].double(), louder[r].double()))
    behind = set[int]()
    if call.behind is not None:
        tail = (call.behind[start : start + count] - call.behind[-1:]).flatten(1).abs().amax(1)
        behind = set(torch.nonzero(tail > _NOISE).flatten().tolist())
    return [
        Row(Role.UNREAD) if r in behind and not rows else _one(rows, f"row {r} of {name}")
        for r, rows in enumerate(found)
    ]


def _one(rows: list[Row], where: str) -> Row:
    if not rows:
        return Row(Role.NONE)
    if len(rows) == 1:
        return rows[0]
    if all(r.role is Role.LATENT for r in rows):
        return Row(Role.LATENT)
    single = [r for r in rows if r.role is not Role.LATENT]
    if {r.role for r in single} == {Role.K, Role.V}:
        return replace(single[0], turned_as_v=single[1].partner is not None)
    raise Unreadable(f"{where} reaches {' and '.join(r.role.value for r in rows)}")


def _row(role: Role, response: torch.Tensor, louder: torch.Tensor) -> Row:
    """Read one row from what it does to [heads, T, D]."""
    floor = response.abs().max() * _RELATIVE
    if not torch.isfinite(response).all():
        raise Unreadable("a one-hot row gives values that are not finite")
    live = response.abs() > floor
    heads = torch.nonzero(live.any(-1).any(-1)).flatten().tolist()
    first = response[heads[0]]
    home = torch.nonzero(live[heads[0], 0]).flatten().tolist()
    everywhere = torch.nonzero(live[heads[0]].any(0)).flatten().tolist()
    if len(everywhere) > 2 or len(home) > 2:
        return Row(Role.LATENT)
    if len(home) != 1:
        what = f"slots {home}" if home else "no slot (it is made from several positions)"
        raise Unreadable(f"at position 0 a row of {role.value} is in {what}: no identity there")
    slot = home[0]
    linear = abs(float(louder[heads[0], 0, slot] / first[0, slot]) - 2.0) < 1e-3
    length = float(first[0, slot].abs()) if linear else math.nan
    if len(everywhere) == 1:
        return Row(role, tuple(heads), slot, length=length)
    partner = next(s for s in everywhere if s != slot)
    sign = float(first[0, slot].sign())
    angles = torch.atan2(sign * first[:, partner], sign * first[:, slot])
    for p in range(2, first.shape[0]):
        if angle_error_rad(float(angles[p]), p * float(angles[1])) > ANGLE_TOLERANCE_RAD:
            raise Unreadable(
                f"the angle of a row of {role.value} is {float(angles[1]):.6f} at position 1 and"
                f" {float(angles[p]):.6f} at position {p}: not in proportion"
            )
    return Row(role, tuple(heads), slot, partner, float(angles[1]), length)


def _projection(module: Any, name: str, rows: Sequence[Row]) -> ProjectionReport:
    parts = []
    for start, stop in split_rows(rows):
        rotation = rotation_of(rows[start:stop])
        rope = (0, 0) if rotation is None else (rotation.rope_start, rotation.rope_dim)
        parts.append(Part(rows[start].role, stop - start, *rope))
    return ProjectionReport(name, getattr(module, "bias", None) is not None, tuple(parts))


def _common(rotations: Sequence[Rotation], rows: Mapping[str, Sequence[Row]], names: Sequence[str]) -> dict[str, Any]:
    """What the module's heads have in common; they must agree, or nothing is claimed."""
    value_rotated = any(r.turned_as_v or (r.role is Role.V and r.partner is not None) for n in names for r in rows[n])
    lengths = {
        role: next((r.length for n in names for r in rows[n] if r.role is role and r.partner is not None), None)
        for role in (Role.Q, Role.K)
    }
    if not rotations:
        return {"value_rotated": value_rotated}
    first = next((r for r in rotations if r.role is Role.Q), rotations[0])
    for other in rotations:
        same = (other.pairing, other.rope_dim, other.backwards) == (first.pairing, first.rope_dim, first.backwards)
        frequencies = zip(other.inv_freq, first.inv_freq, strict=True) if same else ()
        close = same and all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-7) for a, b in frequencies)
        if not close:
            raise Unreadable("the heads of the module do not turn alike")
    k = lengths[Role.K]
    q = lengths[Role.Q]
    return {
        "pairing": first.pairing,
        "rotary_dim": first.rope_dim,
        "rope_start": first.rope_start,
        "inv_freq": first.inv_freq,
        "attention_scaling": None if k is None or math.isnan(k) else round(k, 6),
        "query_scale": None if None in (q, k) or math.isnan(q * k) else round(q / k, 6),  # type: ignore[operator]  # not None
        "backwards": first.backwards,
        "value_rotated": value_rotated,
    }


def _norms(seen: cap.Capture, root: str, rows: Mapping[str, Sequence[Row]]) -> tuple[NormReport, ...]:
    """The norms in the module, by whose rows pass through them."""
    found: dict[str, NormReport] = {}
    for norm in seen.norms:
        if not norm.module.startswith(root + ".") or norm.x.shape[0] != sum(seen.rows.values()) + 1:
            continue
        x = (norm.x - norm.x[-1:]).flatten(1)
        for name, row_list in rows.items():
            block = x[seen.starts[name] : seen.starts[name] + len(row_list)]
            hits = [r for r, hit in zip(row_list, (block.abs() > _HIT).any(1).tolist(), strict=True) if hit]
            if not hits:
                continue
            after = _after_rotation(norm, seen.starts[name], row_list)
            role = next((r.role for r in hits if r.role in (Role.Q, Role.K)), hits[0].role)
            local = norm.module[len(root) + 1 :]
            found.setdefault(local + role.value, NormReport(local, role, norm.weight_shape, after))
    return tuple(found.values())


def _after_rotation(norm: cap.NormSeen, start: int, rows: Sequence[Row]) -> bool:
    """Whether a rotated row is already in two slots when it reaches the norm, at position 1."""
    turned = next((i for i, r in enumerate(rows) if r.partner is not None), None)
    dims = [d for d in range(1, norm.x.dim()) if norm.x.shape[d] == cap.TOKENS]
    if turned is None or not dims:
        return False
    change = (norm.x[start + turned] - norm.x[-1]).select(dims[0] - 1, 1)
    per_vector = (change.reshape(-1, change.shape[-1]).abs() > _HIT).sum(-1)
    return int(per_vector.max()) > 1


def _others(
    module: Any, root: str, claimed: Sequence[str], norms: list[str], nested: tuple[str, ...]
) -> tuple[str, ...]:
    """Tensors of the module that belong to none of its projections and norms."""
    names = [n for n, _ in module.named_parameters()] + [n for n, _ in module.named_buffers()]
    mine = [_local(n, root) for n in claimed] + norms + [n[len(root) + 1 : -1] for n in nested]
    return tuple(n for n in names if not any(n.startswith(m + ".") for m in mine))
