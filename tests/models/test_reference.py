"""Every class run by the reference rotation, in its own layout, gives what its own code gives; the other does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.errors import UnsupportedError
from ropetool.models import probe, tiny
from ropetool.models.load import Runner
from ropetool.models.reference import reference_rotation
from ropetool.models.rotary import Rotary
from ropetool.models.run import logits
from ropetool.models.seams import implementation
from ropetool.models.tables import table_modules
from ropetool.rope.frequencies import Default, Yarn

# As in test_table: at the builder's size attention is nearly uniform, and no position matters.
LOUDER = 5.0
TOKENS = 24
MARGIN, CONTROL_MARGIN = 1e-5, 100.0
REFUSED = {
    "clvp_encoder": "rotates v",
    "deepseek_v4": "rotates v",
}


@dataclass
class Subject:
    """A tiny model with loud q and k, what the probe reads from it, and what its own code gives."""

    runner: Runner
    report: probe.ProbeReport
    ids: torch.Tensor
    stock: torch.Tensor

    def rotaries(self) -> dict[str, Rotary]:
        """The rotations that the probe read, by kind of layer, or by part of the model where kinds do not tell."""
        factor = attention_factor(self.runner.model)
        found: dict[str, Rotary] = {}
        for attention in self.report.attentions:
            if attention.pairing is None:
                continue
            rotary = Rotary(
                attention.pairing, factor, attention.rope_start, attention.rotary_dim,
                torch.tensor(attention.inv_freq, dtype=torch.float64), attention.backwards,
            )  # fmt: skip
            for key in keys_of(attention, self.report):
                found[key] = rotary
        return found

    def nope_layers(self) -> frozenset[int]:
        turning = {n for a in self.report.attentions if a.pairing is not None for n in a.layers}
        still = {n for a in self.report.attentions if a.pairing is None and a.kind not in OUTSIDE for n in a.layers}
        return frozenset(still - turning)

    def by_reference(self, rotaries) -> torch.Tensor:
        with reference_rotation(self.runner, rotaries, self.nope_layers()):
            return logits(self.runner, self.ids)


OUTSIDE = ("cross_attention", "linear_attention", "indexer")


def keys_of(attention, report):
    kinds = [a.inv_freq for a in report.attentions if a.kind == attention.kind and a.pairing is not None]
    if len({len(k) for k in kinds}) == 1 and torch.tensor(kinds).std(0, correction=0).max() < 1e-4:
        return [attention.kind]
    return [path.partition(".layers.")[0] for path in attention.paths]


def attention_factor(model):
    """The factor of the model's tables, as a scaling that has it."""
    factors = {
        float(value)
        for module in table_modules(model).values()
        for name, value in vars(module).items()
        if name.endswith("attention_scaling")
    } or {1.0}
    assert len(factors) == 1
    factor = factors.pop()
    return Default(1e4) if factor == 1.0 else Yarn(1e4, 1.0, 64, explicit_attention_factor=factor)


@pytest.fixture(scope="module", params=tiny.rope_model_types())
def subject(request):
    report = probe.probe_model_type(request.param)
    assert report.unread is None, report.unread
    model = tiny.build(request.param).model
    modules = dict(model.named_modules())
    loud = {
        modules[f"{path}.{p.name}"]
        for a in report.attentions
        for path in a.paths
        for p in a.projections
        if p.roles & {probe.Role.Q, probe.Role.K} and f"{path}.{p.name}" in modules
    }
    with torch.no_grad():
        for module in loud:
            module.weight.mul_(LOUDER)
    runner = Runner(model, torch.device("cpu"))
    ids = torch.randint(2, 60, (TOKENS,), generator=torch.Generator().manual_seed(5))
    with implementation(model, "eager"):
        yield Subject(runner, report, ids, logits(runner, ids))


def distance(a, b):
    return float((a - b).abs().max() / a.std())


def test_the_own_layout_agrees_and_the_other_does_not(subject):
    refused = REFUSED.get(subject.report.model_type)
    rotaries = subject.rotaries()
    if refused:
        with pytest.raises(UnsupportedError, match=refused):
            subject.by_reference(rotaries)
        return
    assert rotaries
    assert distance(subject.stock, subject.by_reference(rotaries)) <= MARGIN
    other = {kind: replace(r, pairing=r.pairing.other) for kind, r in rotaries.items()}
    assert distance(subject.stock, subject.by_reference(other)) > CONTROL_MARGIN * MARGIN
    assert torch.equal(subject.stock, logits(subject.runner, subject.ids))
