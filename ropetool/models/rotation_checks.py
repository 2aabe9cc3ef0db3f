"""Whether every attention rotates q and k as config.json means, keeps the norm of every pair, and leaves v alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ropetool.errors import UnsupportedError
from ropetool.families.cannot import DEFINITION, NORMS, V
from ropetool.families.verdict import Check
from ropetool.models.reference import REORDERING, scale_after, turned_sites
from ropetool.models.rotary import Rotary
from ropetool.models.seams import has_function
from ropetool.models.survey import Look, Site
from ropetool.models.turnings import first_position
from ropetool.rope.pairing import Pairing

# Two products, a sum and the rounding of cos and sin, for a number and for its norm.
STEPS = 16.0


@dataclass(frozen=True)
class Turned:
    """q or k of one site before and after the class's rotation, [..., T, D]."""

    site: str
    what: str
    before: Tensor
    after: Tensor
    rotary: Rotary
    first: int

    def positions(self) -> Tensor:
        """The tokens are all that there are, one after the other from the first."""
        return torch.arange(self.before.shape[-2]) + self.first

    def tolerance(self) -> float:
        """How far rounding alone can put a number: angles round by a roundoff for each radian."""
        finfo = torch.finfo(self.before.dtype)
        roundoff = max(finfo.eps, torch.finfo(torch.float32).eps)
        return float((STEPS + self.before.shape[-2]) * roundoff * self.before.abs().max())

    def definition_off(self) -> float:
        """The largest difference from the rotation by definition."""
        return _largest(self.after - self.rotary.rotate(self.before, self.positions()))

    def norms_off(self) -> float:
        """The largest difference of a pair's norm from the attention factor times that before, and of what stays."""
        factor = self.rotary.scaling.attention_factor_at(self.before.shape[-2] + self.first)
        (before, kept), (after, stayed) = (_pair_norms(x, self.rotary) for x in (self.before, self.after))
        return max(_largest(after - factor * before), _largest(stayed - kept))


def rotation_checks(
    model: Any, look: Look, rotaries: Mapping[str, Rotary], nope_layers: frozenset[int]
) -> Iterator[Check]:
    """What both passes of the survey show of every site, in the order of the layers."""
    yield _v_check(look)
    try:
        turned = list(_turned(model, look, rotaries, nope_layers))
    except UnsupportedError as error:  # it rotates where config.json says that it does not, or the reverse
        yield from (Check(name, False, error.message, where=error.fields.get("module")) for name in (NORMS, DEFINITION))
        return
    said = f"at {len({t.site for t in turned})} places where q meets k"
    wrong = next((t for t in turned if not t.norms_off() <= t.tolerance()), None)
    yield Check(NORMS, wrong is None, f"every pair keeps its norm {said}") if wrong is None else Check(
        NORMS, False, f"{wrong.what} of {wrong.site} has pairs whose norm is {wrong.norms_off():.2e} off after the "
        f"rotation; {wrong.tolerance():.2e} is allowed", where=wrong.site
    )  # fmt: skip
    wrong = next((t for t in turned if not t.definition_off() <= t.tolerance()), None)
    yield Check(DEFINITION, True, f"q and k turn as config.json means {said}") if wrong is None else Check(
        DEFINITION, False, f"{wrong.what} of {wrong.site} is {wrong.definition_off():.2e} off the rotation that "
        f"config.json means; {wrong.tolerance():.2e} is allowed", where=wrong.site
    )  # fmt: skip


def _v_check(look: Look) -> Check:
    if not any(site.rotates for site in look.sites):
        return Check(V, False, "no place was seen to rotate q and k, so nothing shows that v does not turn")
    turning = next((site.name for site in look.sites if site.turns_v), None)
    said = f"{turning} rotates v" if turning else f"v is the same with and without rotation at {len(look.sites)} places"
    return Check(V, turning is None, said, where=turning)


def _turned(model: Any, look: Look, rotaries: Mapping[str, Rotary], nope_layers: frozenset[int]) -> Iterator[Turned]:
    modules, reorders = dict(model.named_modules()), has_function(model, REORDERING)
    for name, found in turned_sites(model, look.sites, rotaries, nope_layers).items():
        rotary = replace(found.rotary, pairing=Pairing.HALF) if reorders else found.rotary
        first = first_position(model, look.tables, name)
        for what, before, after in _operands(modules[name], found.site, look):
            yield Turned(name, what, before, after, rotary, first)


def _operands(module: Any, site: Site, look: Look) -> Iterator[tuple[str, Tensor, Tensor]]:
    """q and k of a site before and after, with tokens and features last; before its norms, where those come after."""
    if site.norms:
        for norm, axis in site.norms.items():
            for before, after in zip(look.still.normed[norm], look.turning.normed[norm], strict=True):
                yield norm, before.movedim(axis, -2), after.movedim(axis, -2)
        return
    (_, q, k, _, product), (_, q_after, k_after, *_) = look.still.met[site.name][0], look.turning.met[site.name][0]
    if product is None:
        scale, tokens = scale_after(module, q), q.shape[-2]
        yield "q", q / scale, q_after / scale
        yield "k", k[..., :tokens, :], k_after[..., :tokens, :]
        return
    for what, before, after, axes in (
        ("q", q, q_after, (site.q_axis, product.q_axis)), ("k", k, k_after, (site.k_axis, product.k_axis)),
    ):  # fmt: skip
        yield what, before.movedim(axes, (-2, -1)), after.movedim(axes, (-2, -1))


def _pair_norms(x: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
    """The norm of every pair of the rotary span, and the slots beside it."""
    start, stop = rotary.rope_start, rotary.rope_start + rotary.rotary_dim
    span, beside = x[..., start:stop], torch.cat((x[..., :start], x[..., stop:]), dim=-1)
    if rotary.pairing is Pairing.HALF:
        a, b = span.chunk(2, dim=-1)
    else:
        a, b = span[..., 0::2], span[..., 1::2]
    return torch.hypot(a, b), beside


def _largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0
