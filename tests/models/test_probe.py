"""The probe against classes whose layout is known, and against models broken on purpose."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from ropetool.models import tiny
from ropetool.models.probe import (
    AttentionReport,
    ProbeReport,
    Role,
    merged,
    probe_like,
    probe_model,
    probe_model_type,
)
from ropetool.rope.pairing import Head, Keep, Pairing

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def only(report: ProbeReport) -> AttentionReport:
    assert report.unread is None, report.unread
    assert len(report.attentions) == 1, report.attentions
    (attention,) = report.attentions
    assert attention.unread is None, attention.unread
    return attention


def projection(attention: AttentionReport, name: str):
    (found,) = [p for p in attention.projections if p.name == name]
    return found


def plain(base: float, rotary_dim: int) -> list[float]:
    """RoFormer, arXiv:2104.09864, section 3.2.2."""
    return [base ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)]


def test_llama_is_half():
    attention = only(probe_model_type("llama"))
    assert attention.pairing is Pairing.HALF
    assert attention.inv_freq == pytest.approx(plain(1e4, 16), rel=1e-4)
    assert (attention.attention_scaling, attention.query_scale, attention.backwards) == (1.0, 1.0, False)
    assert projection(attention, "q_proj").spans == (Head(16, 0, 16),) * 8
    assert projection(attention, "k_proj").spans == (Head(16, 0, 16),) * 2
    assert projection(attention, "v_proj").spans == (Keep(16),) * 2
    assert projection(attention, "v_proj").roles == {Role.V}
    assert projection(attention, "o_proj").spans == (Keep(96),)


def test_gptj_is_interleaved_and_partial():
    attention = only(probe_model_type("gptj"))
    assert attention.pairing is Pairing.INTERLEAVED
    assert projection(attention, "q_proj").spans == (Head(32, 0, 16),) * 8
    assert attention.inv_freq == pytest.approx(plain(1e4, 16), rel=1e-4)


def test_gpt_neox_is_fused_by_head_and_a_quarter_rotary():
    attention = only(probe_model_type("gpt_neox"))
    fused = projection(attention, "query_key_value")
    assert fused.spans == (Head(32, 0, 8), Head(32, 0, 8), Keep(32)) * 8
    assert [p.role for p in fused.parts[:3]] == [Role.Q, Role.K, Role.V]
    assert fused.bias


def test_phi3_is_q_then_k_then_v():
    attention = only(probe_model_type("phi3"))
    fused = projection(attention, "qkv_proj")
    assert [p.role for p in fused.parts] == [Role.Q] * 8 + [Role.K] * 2 + [Role.V] * 2


def test_codegen_has_v_in_the_middle_of_four_blocks():
    fused = projection(only(probe_model_type("codegen")), "qkv_proj")
    assert [p.role for p in fused.parts] == ([Role.Q] * 2 + [Role.V] * 2 + [Role.K] * 2) * 4


@pytest.mark.parametrize(
    ("overrides", "roles"),
    [
        ({}, [Role.Q] * 8 + [Role.K, Role.V]),
        ({"multi_query": False}, [Role.Q, Role.K, Role.V] * 8),
        ({"new_decoder_architecture": True}, ([Role.Q] * 4 + [Role.K, Role.V]) * 2),
    ],
)
def test_falcon_which_does_not_use_the_interface(overrides, roles):
    attention = only(probe_model_type("falcon", **overrides))
    assert not attention.interface
    assert [p.role for p in projection(attention, "query_key_value").parts] == roles


@pytest.mark.parametrize(("interleave", "pairing"), [(True, Pairing.INTERLEAVED), (False, Pairing.HALF)])
def test_mla_of_deepseek_v3(interleave, pairing):
    """The class hands on de-interleaved slots: it is the rows that count."""
    attention = only(probe_model_type("deepseek_v3", rope_interleave=interleave))
    assert attention.pairing is pairing
    assert projection(attention, "q_b_proj").spans == (Head(20, 12, 8),) * 8
    assert projection(attention, "kv_a_proj_with_mqa").spans == (Keep(20), Head(8, 0, 8))
    assert not any(part.rope_dim for part in projection(attention, "kv_b_proj").parts)


def test_an_indexer_can_differ_from_the_attention_it_serves():
    report = probe_model_type("deepseek_v32")
    assert {a.kind: a.pairing for a in report.attentions} == {
        "indexer": Pairing.HALF,
        "indexed_attention": Pairing.INTERLEAVED,
    }


def test_cohere2_has_no_rope_in_full_attention():
    report = probe_model_type("cohere2")
    found = {a.kind: (a.pairing, a.unread) for a in report.attentions}
    assert found == {"sliding_attention": (Pairing.INTERLEAVED, None), "full_attention": (None, None)}


def test_smollm3_lists_its_layers_without_rope():
    report = probe_model_type("smollm3")
    assert {a.layers: a.pairing for a in report.attentions} == {(0, 1, 2): Pairing.HALF, (3,): None}


def test_gemma3_reads_each_kind_with_its_own_frequencies():
    slow = {a.kind: a.inv_freq for a in probe_model_type("gemma3_text").attentions}
    assert slow["sliding_attention"] == pytest.approx(plain(1e4, 16), rel=1e-4)
    assert slow["full_attention"] == pytest.approx(plain(1e6, 16), rel=1e-4)


def test_gemma4_full_attention_pairs_over_the_whole_head_with_frequencies_of_zero():
    (full,) = [a for a in probe_model_type("gemma4_text").attentions if a.kind == "full_attention"]
    assert (full.rotary_dim, len(full.inv_freq)) == (32, 16)
    assert full.inv_freq[:4] == pytest.approx(plain(1e6, 32)[:4], rel=1e-4)
    assert full.inv_freq[4:] == (0.0,) * 12


def test_norms_are_reported_with_what_their_weight_covers():
    per_head = only(probe_model_type("qwen3"))
    assert {(n.name, n.role, n.weight_shape, n.after_rotation) for n in per_head.norms} == {
        ("q_norm", Role.Q, (16,), False),
        ("k_norm", Role.K, (16,), False),
    }
    full_width = only(probe_model_type("olmo2"))
    assert {n.name: n.weight_shape for n in full_width.norms} == {"q_norm": (96,), "k_norm": (24,)}
    after = only(probe_model_type("hunyuan_v1_dense"))
    assert {n.after_rotation for n in after.norms} == {True}


def test_a_norm_over_flattened_tokens_is_seen():
    norms = only(probe_model_type("chameleon")).norms
    assert {(n.name, n.weight_shape) for n in norms} == {("q_norm", (8, 12)), ("k_norm", (2, 12))}


def test_a_learned_scale_that_q_depends_on_is_named_and_a_sink_is_not():
    for attention in probe_model_type("dory").attentions:
        assert (attention.other_tensors, attention.touching) == (("sqk", "s_gate"), ("sqk",))
    assert {a.touching for a in probe_model_type("gpt_oss").attentions} == {()}


def test_yarn_scaling_is_read_from_the_length_of_k():
    block = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    attention = only(probe_model_type("llama", rope_parameters=block, max_position_embeddings=64))
    assert attention.attention_scaling == pytest.approx(0.1 * math.log(4) + 1, rel=1e-5)


def test_nanochat_turns_backwards():
    assert only(probe_model_type("nanochat")).backwards


def test_the_model_is_left_as_it_was():
    built = tiny.build("llama")
    before = built.config._attn_implementation
    ids = built.inputs(1)["input_ids"]
    with torch.no_grad():
        logits = built.model(input_ids=ids).logits
    probe_model(built.model)
    assert built.config._attn_implementation == before
    with torch.no_grad():
        assert torch.equal(built.model(input_ids=ids).logits, logits)


def test_tiny_models_are_the_same_for_the_same_seed_and_avoid_coincidences():
    first, second = tiny.build("qwen2"), tiny.build("qwen2")
    states = first.model.state_dict(), second.model.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert first.model.model.layers[0].self_attn.q_proj.bias.abs().min() > 0
    norm = first.model.model.norm.weight
    assert len(norm.unique()) == len(norm)
    assert first.config.num_attention_heads // first.config.num_key_value_heads != first.config.num_key_value_heads


def broken_llama(rotate):
    """A tiny Llama whose attention turns q and k by ``rotate(x, cos, sin)`` instead."""
    from transformers.models.llama import modeling_llama as llama

    def apply(q, k, cos, sin, *_):
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        return rotate(q, cos, sin), rotate(k, cos, sin)

    return llama, apply


def mixed(x, cos, sin):
    """Half the heads rotate-half, half of them adjacent pairs."""
    half = torch.cat((-x[..., 8:], x[..., :8]), -1)
    adjacent = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    every_two = [c[..., :8].repeat_interleave(2, -1) for c in (cos, sin)]
    first = x * cos + half * sin
    second = x * every_two[0] + adjacent * every_two[1]
    even = (torch.arange(x.shape[1]) % 2 == 0)[None, :, None, None]
    return torch.where(even, first, second)


def interleaved(x, cos, sin):
    cos, sin = (c[..., :8].repeat_interleave(2, -1) for c in (cos, sin))
    return x * cos + torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * sin


def accelerating(x, cos, sin):
    """An angle that grows with the square of the position."""
    position = torch.arange(x.shape[2], dtype=x.dtype)[:, None]
    angle = position**2 * (10000.0 ** (-torch.arange(8) / 8)).repeat(2)
    return x * angle.cos() + torch.cat((-x[..., 8:], x[..., :8]), -1) * angle.sin()


def smeared(x, cos, sin):
    """Every row reaches every slot."""
    return x @ torch.linspace(0.1, 1.0, 256).view(16, 16)


@pytest.mark.parametrize(
    ("rotate", "words"),
    [(mixed, "do not turn alike"), (accelerating, "not in proportion"), (smeared, "several of its slots")],
)
def test_a_broken_rotation_is_unread_with_the_reason(monkeypatch, rotate, words):
    llama, apply = broken_llama(rotate)
    built = tiny.build("llama")
    monkeypatch.setattr(llama, "apply_rotary_pos_emb", apply)
    report = probe_model(built.model)
    assert {words in str(a.unread) for a in report.attentions} == {True}, report
    assert report.pairings == frozenset()


def test_the_probe_reads_the_code_and_not_the_name(monkeypatch):
    llama, apply = broken_llama(interleaved)
    built = tiny.build("llama")
    monkeypatch.setattr(llama, "apply_rotary_pos_emb", apply)
    assert only(probe_model(built.model)).pairing is Pairing.INTERLEAVED


def test_a_type_that_mixes_q_after_the_projection_says_so():
    report = probe_model_type("zaya")
    assert all("several of its slots" in str(a.unread) for a in report.attentions)


def test_rows_that_reach_only_compressed_keys_are_not_called_unmoved():
    report = probe_model_type("deepseek_v4")
    (sparse,) = [a for a in report.attentions if a.kind == "compressed_sparse_attention"]
    assert projection(sparse, "compressor.kv_proj").roles == {Role.UNREAD}
    assert sparse.value_rotated
    (indexer,) = [a for a in report.attentions if a.kind == "indexer"]
    assert "no identity there" in str(indexer.unread)
    assert not any(p.name.startswith("compressor.indexer") for p in sparse.projections)


def test_an_indexer_whose_product_is_not_seen_is_unread():
    kinds = {a.kind: a for a in probe_model_type("qwen4_exp_text").attentions}
    assert kinds["indexer"].unread == "its product of q and k was not seen"
    assert not any(p.name.startswith("indexer.") for p in kinds["indexed_attention"].projections)


def test_the_committed_sweep_lists_what_is_unread_with_reasons():
    types = json.loads((ROOT / "tools" / "probe_all.json").read_text("utf-8"))["types"]
    assert len(types) > 150
    unread = {t for t, e in types.items() if "unread" in e or any(a.get("unread") for a in e["attentions"])}
    assert len(unread) <= 15, sorted(unread)


def test_a_type_that_cannot_be_built_says_why():
    report = probe_model_type("llama", num_attention_heads=7, hidden_size=96)
    assert report.unread is not None
    assert "7" in report.unread


def test_a_checkpoints_own_config_is_shrunk_with_its_switches_kept():
    from transformers import PhiConfig

    config = PhiConfig(qk_layernorm=True, partial_rotary_factor=0.25, hidden_size=2560, num_hidden_layers=32)
    attention = only(probe_like(config))
    assert {n.name for n in attention.norms} == {"q_layernorm", "k_layernorm"}
    assert attention.rotary_dim * 4 == projection(attention, "q_proj").parts[0].rows


def test_merging_keeps_apart_what_differs():
    one = AttentionReport(("a.0",), (0,), "full_attention", "A", True, pairing=Pairing.HALF, inv_freq=(1.0,))
    same = AttentionReport(("a.1",), (1,), "full_attention", "A", True, pairing=Pairing.HALF, inv_freq=(1.0,))
    other = AttentionReport(("a.2",), (2,), "full_attention", "A", True, pairing=Pairing.HALF, inv_freq=(0.5,))
    assert [r.layers for r in merged([one, same, other])] == [(0, 1), (2,)]


def test_a_type_that_transformers_does_not_know_is_unread() -> None:
    report = probe_model_type("nosuchtype")
    assert "has no model type nosuchtype" in report.unread
    assert not report.attentions
