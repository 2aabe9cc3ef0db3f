"""Every class run by the reference rotation, in its own layout, gives what its own code gives; the other does not."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.errors import UnsupportedError
from ropetool.models import probe, tiny
from ropetool.models.inputs import default_inputs, encoder_inputs
from ropetool.models.load import Runner
from ropetool.models.reference import reference_rotation
from ropetool.models.rotary import Rotary
from ropetool.models.run import logits
from ropetool.models.seams import EAGER, INDEXER, implementation
from ropetool.models.survey import survey
from ropetool.models.tables import live_frequencies, table_modules
from ropetool.rope.frequencies import Default, Yarn
from ropetool.rope.pairing import Pairing

# As in test_table: at the builder's size attention is nearly uniform, and no position matters.
LOUDER = 5.0
TOKENS = 24
MARGIN, CONTROL_MARGIN = 1e-5, 100.0
# What no rotation of q and k where they meet can replace, each with what the error says.
REFUSED = {
    # Rotates v as well, by angles that the attention itself makes into cos and sin.
    "clvp_encoder": "by a table of its own",
    "deepseek_v4": "rotates v as well",
    # Its indexer multiplies one query at a time by blocks of pooled keys, at the position of each block's first token.
    "qwen4_exp_text": r"layers\.1\.self_attn\.indexer multiplies no q of all tokens",
}
# q is mixed after the projection, so that no row can be followed: modeling_zaya.py of transformers 5.24, rotate_half.
UNREAD = {"zaya": Pairing.HALF}
# Its q and k are normalised, and k is then scaled by this, which is zero in a new model.
UNREAD_SCALE = "qk_norm.temp"


@dataclass
class Subject:
    """A tiny model with loud q and k, what the probe reads from it, and what its own code gives."""

    runner: Runner
    report: probe.ProbeReport
    ids: torch.Tensor
    stock: torch.Tensor

    def rotaries(self) -> dict[str, Rotary]:
        """The rotations that the probe read, by kind of layer, or by part of the model where kinds do not tell."""
        factor, live = attention_factor(self.runner.model), live_frequencies(self.runner.model)
        found: dict[str, Rotary] = {}
        for attention in self.report.attentions:
            if attention.pairing is None:
                continue
            read = torch.tensor(attention.inv_freq, dtype=torch.float64)
            frequencies = next((table for table in live.values() if close(table, read)), read)
            rotary = Rotary(
                attention.pairing, factor, attention.rope_start, attention.rotary_dim, frequencies, attention.backwards
            )
            for key in keys_of(attention, self.report):
                found[key] = rotary
        return found or self.unread_rotaries(factor, live)

    def unread_rotaries(self, factor, live) -> dict[str, Rotary]:
        """Of a class whose rows the probe cannot follow: as `UNREAD` says."""
        pairing = UNREAD[self.report.model_type]
        return {kind: Rotary(pairing, factor, 0, 2 * len(table), table) for kind, table in live.items()}

    def nope_layers(self) -> frozenset[int]:
        turning = {n for a in self.report.attentions if a.pairing is not None for n in a.layers}
        still = {n for a in self.report.attentions if a.pairing is None and a.kind not in OUTSIDE for n in a.layers}
        return frozenset(still - turning) if turning else frozenset()

    def by_reference(self, rotaries) -> torch.Tensor:
        with implementation(self.runner.model, EAGER), reference_rotation(self.runner, rotaries, self.nope_layers()):
            return logits(self.runner, self.ids)


OUTSIDE = ("cross_attention", "linear_attention", "indexer")


def close(table, read):
    """Whether a table of the model is what the probe read, so that it can stand for it without the probe's rounding."""
    return table.shape == read.shape and torch.allclose(table, read, rtol=1e-4, atol=1e-6)


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


def made(model_type):
    """The subject of a model type."""
    report = probe.probe_model_type(model_type)
    assert report.unread is None, report.unread
    model = tiny.build(model_type).model
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
        for name, parameter in model.named_parameters():
            if name.endswith(UNREAD_SCALE):
                parameter.fill_(LOUDER)
    runner = Runner(model, torch.device("cpu"))
    ids = torch.randint(2, 60, (TOKENS,), generator=torch.Generator().manual_seed(5))
    with implementation(model, EAGER):
        return Subject(runner, report, ids, logits(runner, ids))


@pytest.fixture(scope="module", params=tiny.rope_model_types())
def subject(request):
    return made(request.param)


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
    with implementation(subject.runner.model, EAGER):
        assert torch.equal(subject.stock, logits(subject.runner, subject.ids))


@pytest.mark.parametrize("model_type", ["deepseek_v32", "minimax_m3_vl_text", "nanochat", "hunyuan_v1_dense", "falcon"])
def test_a_rotation_the_wrong_way_misses(model_type):
    """Backwards where the class turns forwards, and the reverse; of the indexer alone, where there is one."""
    subject = made(model_type)
    rotaries = subject.rotaries()
    kinds = [INDEXER] if INDEXER in rotaries else rotaries
    wrong = rotaries | {kind: replace(rotaries[kind], backwards=not rotaries[kind].backwards) for kind in kinds}
    stretched = rotaries | {
        kind: replace(rotaries[kind], live_inv_freq=rotaries[kind].live_inv_freq * 3) for kind in kinds
    }
    assert distance(subject.stock, subject.by_reference(rotaries)) <= MARGIN
    assert distance(subject.stock, subject.by_reference(stretched)) > CONTROL_MARGIN * MARGIN
    assert distance(subject.stock, subject.by_reference(wrong)) > CONTROL_MARGIN * MARGIN


def test_a_norm_after_the_rotation_is_rotated_before():
    """Hunyuan's norms have weights that are not alike, so that rotating behind them would be another thing."""
    model = made("hunyuan_v1_dense").runner.model
    sites = survey(model, default_inputs, 60)
    assert all(len(site.norms) == 2 for site in sites)


def test_keys_of_another_sequence_stay():
    """T5Gemma 2's decoder attends to its own tokens and to the encoder's in one call."""
    subject = made("t5gemma2_decoder")
    sites = survey(subject.runner.model, encoder_inputs, 60)
    assert all(site.longer for site in sites)


@pytest.mark.parametrize(
    ("model_type", "change", "said"),
    [
        ("llama", {"nope_layers": frozenset({1})}, r"layers\.1\.self_attn rotates q and k"),
        ("cohere2", {"nope_layers": frozenset()}, r"layers\.1\.self_attn does not rotate q and k"),
        ("gemma2", {"only": "sliding_attention"}, r"layers\.1\.self_attn rotates q and k"),
        ("deepseek_v32", {"without": INDEXER}, r"indexer rotates q and k"),
    ],
)
def test_a_config_that_says_otherwise_than_the_class_is_refused(model_type, change, said):
    subject = made(model_type)
    rotaries = subject.rotaries()
    every = {ALL_LAYERS: next(iter(rotaries.values()))}
    if "only" in change:
        rotaries = {change["only"]: rotaries[change["only"]]}
    elif "without" in change:
        rotaries = {kind: r for kind, r in rotaries.items() if kind != change["without"]}
    else:
        rotaries = every
    nope = change.get("nope_layers", subject.nope_layers())
    with pytest.raises(UnsupportedError, match=said), reference_rotation(subject.runner, rotaries, nope):
        pass


@pytest.mark.parametrize(("where", "advised"), [("transformers.models.bare", True), ("transformers_modules.x", False)])
def test_only_transformers_own_class_may_be_mended_by_a_newer_one(where, advised):
    model = type("Bare", (torch.nn.Module,), {"__module__": where})()
    runner = Runner(model, torch.device("cpu"))
    with pytest.raises(UnsupportedError, match="in no module of its own") as refused, reference_rotation(runner, {}):
        pass
    assert ("a newer transformers may do so" in str(refused.value)) is advised
