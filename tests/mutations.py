"""Faults that verify must see, one row each: where it is planted, and the check and culprit that must be named.

Adding a fault is adding a row. ``where`` is a regular expression for the whole of `Check.where`; the sentence of the
check must have it too, and ``says`` if given. A row whose fault makes a checkpoint unusable has ``refused``, a pattern
of the message, instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import safetensors.torch
import torch

from ropetool.rope.layout import Pairing
from tests.planting import (
    SINGLE,
    Pair,
    Plant,
    adapter_config,
    beside,
    block,
    both,
    config,
    copied_to_another_shard,
    exchanged,
    folder_of_the_source,
    last_byte_flipped,
    left,
    mapped,
    mapped_to,
    marked_adapter,
    one_ulp,
    part,
    remade,
    rolled,
    shard_of,
    swapped,
    tensors_of,
    turned,
    weights,
)
from tests.starts import CONVERTED, SAME

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED
KEPT, MOVED, SAVED, GEOMETRY, CONFIGS, EXTENSION = (
    "tensors-kept", "tensors-moved", "saved-frequencies", "geometry", "configs", "extension",
)  # fmt: skip
STALE, OTHERS, GUARD = "stale-copies", "other-weights", "guard"


@dataclass(frozen=True)
class Mutation:
    """One fault, planted in B of each of ``starts``; ``quick``: no class loads such a checkpoint here."""

    name: str
    starts: tuple[str, ...]
    relation: str
    plant: Plant
    check: str = ""
    where: str = ""
    says: str = ""
    refused: str = ""
    quick: bool = False


def attn(rest: str, layer: int = 0) -> str:
    return f"model.layers.{layer}.self_attn.{rest}"


def exactly(name: str) -> str:
    return name.replace(".", r"\.")


def moved(name: str, start: str | tuple[str, ...], tensor: str, plant: Plant, says: str = "") -> Mutation:
    """A fault in one tensor whose rows move, in a conversion."""
    starts = (start,) if isinstance(start, str) else start
    return Mutation(name, starts, CONVERTED, plant, MOVED, exactly(tensor), says)


def kept(
    name: str, start: str | tuple[str, ...], tensor: str, plant: Plant, says: str = "", relation: str = CONVERTED
) -> Mutation:
    """A fault in one tensor that must stay."""
    starts = (start,) if isinstance(start, str) else start
    return Mutation(name, starts, relation, plant, KEPT, exactly(tensor), says)


def other_layout(*names: str) -> Plant:
    """Tensors as the other of the two maps would have made them of the source."""
    return weights(lambda new, old: new.update({n: turned(16, HALF)(old[n]) for n in names}))


def negated(*names: str) -> Plant:
    return weights(lambda new, old: new.update({name: -new[name] for name in names}))


Q, K, V, OUT = (f"{name}_proj.weight" for name in "qkvo")
SEPARATE = ("llama", "mistral", "qwen3", "olmo2", "gemma2", "cohere", "glm4", "helium", "ernie4_5", "mixtral")
FUSED = "gpt_neox.layers.0.attention.query_key_value"
QKV = attn("qkv_proj.weight")


def first_heads_exchanged(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat((tensor[16:32], tensor[:16], tensor[32:]))


def taken_as_blocks(tensor: torch.Tensor) -> torch.Tensor:
    """Rows of q, k and v one after the other, where they lie head by head."""
    return torch.cat((turned(16, INTERLEAVED, 0, 8)(tensor[:256]), tensor[256:]))


ROWS = (
    moved("q-of-one-layer-left", SEPARATE, attn(Q, 1), left(attn(Q, 1)), "layer 1"),
    moved("k-of-one-layer-left", SEPARATE, attn(K), left(attn(K)), "layer 0"),
    moved("one-head-left", ("llama", "mistral", "qwen2"), attn(Q),
          weights(lambda new, old: new[attn(Q)][48:64].copy_(old[attn(Q)][48:64])), "head 3 of q"),
    moved("one-kv-head-left", ("llama", "olmo2"), attn(K, 1),
          weights(lambda new, old: new[attn(K, 1)][16:].copy_(old[attn(K, 1)][16:])), "head 1 of k"),
    moved("two-rows-exchanged", ("llama", "qwen3", "cohere"), attn(Q), mapped(attn(Q), exchanged(37, 38)),
          "row 37 .*head 2 of q"),
    moved("other-direction", ("llama", "gemma2"), attn(K, 1), other_layout(attn(K, 1))),
    moved("permuted-twice", ("llama", "qwen2"), attn(Q, 1), mapped(attn(Q, 1), turned(16))),
    moved("heads-half-as-wide", "llama", attn(Q), remade(attn(Q), turned(8))),
    moved("heads-twice-as-wide", "mistral", attn(Q), remade(attn(Q), turned(32))),
    moved("k-with-the-heads-of-q", ("llama", "qwen3", "mixtral"), attn(K), remade(attn(K), turned(4))),
    moved("kv-heads-in-another-order", ("llama", "gemma2"), attn(K, 1),
          mapped(attn(K, 1), lambda t: t.roll(16, 0)), "row 0 .*head 0 of k"),
    kept("heads-of-a-group-exchanged-in-q-and-o", "mistral", attn(OUT),
         both(mapped(attn(Q), first_heads_exchanged), mapped(attn(OUT), lambda t: first_heads_exchanged(t.T).T))),
    moved("q-and-k-negated", ("llama", "cohere"), attn(K), negated(attn(Q), attn(K))),
    moved("q-of-two-layers-exchanged", "llama", attn(Q), swapped(attn(Q), attn(Q, 1))),
    kept("v-moved-too", ("llama", "qwen2", "cohere", "mixtral"), attn(V), mapped(attn(V), turned(16))),
    kept("o-columns-moved", ("llama", "olmo2"), attn(OUT, 1), mapped(attn(OUT, 1), lambda t: turned(16)(t.T).T)),
    kept("o-rows-moved", "qwen3", attn(OUT, 1), mapped(attn(OUT, 1), rolled)),
    kept("v-bias-moved-too", ("qwen2", "llama"), attn("v_proj.bias"), mapped(attn("v_proj.bias"), turned(16))),
    moved("bias-of-q-left", ("llama", "qwen2", "olmo2", "glm4"), attn("q_proj.bias"), left(attn("q_proj.bias"))),
    moved("bias-of-k-left", ("qwen2", "qwen3"), attn("k_proj.bias", 1), left(attn("k_proj.bias", 1)), "layer 1"),
    moved("fused-bias-left", "gpt_neox", f"{FUSED}.bias", left(f"{FUSED}.bias")),
    moved("bias-of-the-latent-left", "deepseek_v3", attn("kv_a_proj_with_mqa.bias"),
          left(attn("kv_a_proj_with_mqa.bias"))),
    moved("q-norm-left", ("qwen3", "olmo2", "cohere-qk-norm", "gemma3_text"), attn("q_norm.weight"),
          left(attn("q_norm.weight"))),
    moved("k-norm-left", ("qwen3", "olmo2"), attn("k_norm.weight", 1), left(attn("k_norm.weight", 1))),
    moved("wide-norm-as-one-head", "olmo2", attn("q_norm.weight"), remade(attn("q_norm.weight"), turned(128))),
    moved("whole-head-where-a-part-turns", "gpt_neox", f"{FUSED}.weight",
          remade(f"{FUSED}.weight", part(0, 16, turned(16)))),
    moved("whole-head-where-a-part-turns", "phi3", QKV, remade(QKV, part(0, 160, turned(16)))),
    moved("whole-head-where-a-part-turns", "gptj", "transformer.h.0.attn.q_proj.weight",
          remade("transformer.h.0.attn.q_proj.weight", turned(16, HALF))),
    moved("whole-head-where-a-part-turns", "glm4", attn(Q, 1), remade(attn(Q, 1), turned(16, HALF))),
    moved("rows-that-pass-moved", "gpt_neox", f"{FUSED}.weight", mapped(f"{FUSED}.weight", part(8, 16, rolled)),
          "row 8 .*head 0 of q"),
    moved("rows-that-pass-moved", "gptj", "transformer.h.1.attn.k_proj.weight",
          mapped("transformer.h.1.attn.k_proj.weight", part(24, 32, rolled)), "row 24 .*head 1 of k"),
    moved("rows-that-pass-moved", "glm4", attn(Q), mapped(attn(Q), part(9, 16, rolled))),
    moved("fused-v-moved-too", "gpt_neox", f"{FUSED}.weight", mapped(f"{FUSED}.weight", part(32, 48, turned(16))),
          "row 33 .*v"),
    moved("fused-v-moved-too", "phi3", QKV, mapped(QKV, part(160, 192, turned(16))), "row 161 .*v"),
    moved("fused-taken-as-blocks", "gpt_neox", f"{FUSED}.weight", remade(f"{FUSED}.weight", taken_as_blocks)),
    moved("fused-k-left", "phi3", QKV,
          weights(lambda new, old: new[QKV][128:160].copy_(old[QKV][128:160])), "head 0 of k"),
    moved("fused-last-head-left", "falcon", "transformer.h.1.self_attention.query_key_value.weight",
          left("transformer.h.1.self_attention.query_key_value.weight")),
    moved("nope-part-moved", "deepseek_v3", attn("q_b_proj.weight"),
          mapped(attn("q_b_proj.weight"), part(12, 16, rolled)), "row 12 .*head 1 of q"),
    moved("rope-part-as-if-it-came-first", "deepseek_v3-no-q-lora", attn(Q),
          remade(attn(Q), turned(12, HALF, 0, 8))),
    moved("latent-moved-too", "deepseek_v3", attn("kv_a_proj_with_mqa.weight"),
          mapped(attn("kv_a_proj_with_mqa.weight"), part(0, 24, rolled)), "row 0 "),
    moved("rope-part-of-k-left", "deepseek_v3", attn("kv_a_proj_with_mqa.weight", 1),
          left(attn("kv_a_proj_with_mqa.weight", 1))),
    kept("decompression-moved-too", "deepseek_v3", attn("kv_b_proj.weight"),
         mapped(attn("kv_b_proj.weight"), turned(10, HALF, 0, 4))),
    moved("layers-without-rotation-left", "smollm3", attn(K, 3), left(attn(Q, 3), attn(K, 3))),
)  # fmt: skip

SCALES = tuple(
    replace(moved(f"{tensor.rpartition('.')[2]}-left", start, tensor, left(tensor)), quick=True)
    for start, tensor in (
        ("llama-int8", attn("q_proj.weight_scale")), ("llama-int8", attn("k_proj.weight_zero_point")),
        ("llama-undeclared", attn("k_proj.weight_scale")), ("qwen3-gptq", attn("q_proj.scales")),
        ("qwen3-gptq", attn("k_proj.qzeros")), ("gpt_neox-fp8", f"{FUSED}.weight_scale"),
    )
)  # fmt: skip

HEAD, EMBED, UP, NORM = (
    "lm_head.weight", "model.embed_tokens.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight",
)  # fmt: skip
PLAIN = ("llama", "qwen3", "gemma2")
BFLOAT16 = torch.bfloat16
VALUES = (
    *(kept(f"{name}-one-ulp-off", starts, tensor, mapped(tensor, one_ulp), relation=relation)
      for relation in (SAME, CONVERTED, "yarn")
      for name, starts, tensor in (
          ("embedding", "llama", EMBED), ("head", "mistral", HEAD), ("mlp", PLAIN, UP), ("norm", PLAIN, NORM),
      )),
    kept("router-one-ulp-off", "mixtral", "model.layers.0.block_sparse_moe.gate.weight",
         mapped("model.layers.0.block_sparse_moe.gate.weight", one_ulp)),
    kept("sinks-one-ulp-off", "gpt_oss", attn("sinks"), mapped(attn("sinks"), one_ulp), relation=SAME),
    kept("mlp-of-two-layers-exchanged", PLAIN, "model.layers.0.mlp.down_proj.weight",
         swapped("model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight")),
    kept("sign-of-zero", "llama", NORM, mapped(NORM, lambda t: t.clone().index_fill_(0, torch.tensor([0]), -0.0))),
    Mutation("last-bit-of-the-file", ("llama", "gpt_neox", "mixtral"), SAME, last_byte_flipped, KEPT, r"[\w.]+"),
    kept("another-dtype", ("llama", "olmo2"), HEAD, mapped(HEAD, lambda t: t.to(BFLOAT16)), "F32.*BF16"),
    kept("another-shape", "llama", "model.layers.0.mlp.down_proj.weight",
         mapped("model.layers.0.mlp.down_proj.weight", lambda t: t.T)),
    kept("tensor-missing", ("llama", "gemma2"), UP, weights(lambda new, old: new.pop(UP)), "first"),
    kept("tensor-too-many", "llama", "model.layers.2.mlp.up_proj.weight",
         weights(lambda new, old: new.update({"model.layers.2.mlp.up_proj.weight": old[UP].clone()})), "second"),
    kept("k-left-though-both-are-the-same", "llama", attn(K), mapped(attn(K), turned(16)), relation=SAME),
)  # fmt: skip

LAYOUTS = (
    Mutation("marker-lost", ("llama", "qwen3"), CONVERTED, config("ropetool", model_type="llama", hidden_size=96,
             architectures=["LlamaForCausalLM"], problem_type=None, tie_word_embeddings=False),
             KEPT, attn(r"k_(proj|norm)\.\w+"), "interleaved"),
    Mutation("marker-claims-the-other-layout", ("llama", "qwen2"), SAME,
             config(ropetool={"pairing": "interleaved"}), MOVED, exactly(attn("k_proj.bias")), "not permuted|left"),
    Mutation("guard-lost", ("llama",), CONVERTED, config(ropetool={"pairing": "interleaved"}, model_type="llama",
             hidden_size=96, architectures=["LlamaForCausalLM"], problem_type=None, tie_word_embeddings=False),
             GUARD, "model_type"),
    Mutation("key-of-the-layout-flipped", ("deepseek_v3",), CONVERTED, config(rope_interleave=True),
             GUARD, "rope_interleave"),
)  # fmt: skip


def rope(**changes: object) -> Plant:
    return config(rope_parameters={"rope_type": "default", "rope_theta": 10000.0, **changes})


def same(name: str, start: str | tuple[str, ...], check: str, key: str, plant: Plant, **more: str) -> Mutation:
    """A fault in the config alone."""
    starts = (start,) if isinstance(start, str) else start
    return Mutation(name, starts, SAME, plant, check, exactly(key), **more)


ORIGINAL, LENGTH = "original_max_position_embeddings", "max_position_embeddings"
THETA = "rope_parameters.rope_theta"
KINDS = ["full_attention", "full_attention"]
KEYS = (
    same("base-lost", "llama-5e5", EXTENSION, THETA, config("rope_parameters")),
    same("base-null", "llama-5e5", EXTENSION, THETA, rope(rope_theta=None)),
    same("base-other", ("llama", "qwen3", "gpt_neox"), EXTENSION, THETA, block(rope_theta=500000.0)),
    same("base-a-little-other", ("llama",), EXTENSION, THETA, block(rope_theta=10001.0)),
    Mutation("base-a-string", ("llama",), SAME, rope(rope_theta="10000"), refused="rope_theta.*'10000'"),
    Mutation("base-negative", ("llama",), SAME, rope(rope_theta=-1.0), refused=r"rope_theta"),
    Mutation("type-twice", ("llama",), SAME, rope(type="linear", factor=2.0), refused="rope_type.*type"),
    Mutation("styles-disagree", ("llama",), SAME, config(rope_scaling={"rope_type": "linear", "factor": 2.0}),
             refused="rope_scaling.*rope_parameters|rope_parameters.*rope_scaling"),
    Mutation("bases-disagree", ("llama",), SAME, config(rope_theta=500000.0), refused=r"rope_theta is 10000"),
    same("local-base-other", "gemma3_text", EXTENSION, "rope_parameters.sliding_attention.rope_theta",
         block(layers="sliding_attention", rope_theta=20000.0)),
    same("global-base-other", "gemma3_text", EXTENSION, "rope_parameters.full_attention.rope_theta",
         block(layers="full_attention", rope_theta=20000.0)),
    same("length-raised-alone", "llama", EXTENSION, "max_position_embeddings", config(max_position_embeddings=256)),
    same("scaled-and-not-raised", "llama", EXTENSION, LENGTH, rope(rope_type="linear", factor=2.0)),
    same("scaled-by-another-factor-than-raised", ("llama", "mistral"), EXTENSION, "rope_parameters.factor",
         both(rope(rope_type="linear", factor=3.0), config(max_position_embeddings=128))),
    same("scaled-from-another-original", "llama", EXTENSION, f"rope_parameters.{ORIGINAL}",
         both(rope(rope_type="yarn", factor=4.0, **{ORIGINAL: 32}), config(max_position_embeddings=128))),
    same("sections-other", "qwen2_5_vl_text", CONFIGS, "rope_parameters.mrope_section",
         block(mrope_section=[6, 6, 4])),
    same("growth-of-q-lost", "ministral3", CONFIGS, "rope_parameters.llama_4_scaling_beta",
         block("llama_4_scaling_beta")),
    same("rotary-share-lost", "phi3", GEOMETRY, "partial_rotary_factor",
         both(block("partial_rotary_factor"), config("partial_rotary_factor"))),
    same("rotary-share-other", "gpt_neox", GEOMETRY, "rope_parameters.partial_rotary_factor",
         block(partial_rotary_factor=1.0)),
    same("rotary-share-other", "glm4-share", GEOMETRY, "rope_parameters.partial_rotary_factor",
         block(partial_rotary_factor=0.25)),
    same("rotary-width-other", "gptj", GEOMETRY, "rotary_dim", config(rotary_dim=16)),
    same("nope-width-other", "deepseek_v3", GEOMETRY, "qk_rope_head_dim",
         config(qk_nope_head_dim=8, qk_rope_head_dim=4)),
    same("heads-other", "llama", GEOMETRY, "num_attention_heads",
         config(num_attention_heads=16, num_key_value_heads=4, head_dim=8)),
    same("kv-heads-other", "llama", GEOMETRY, "num_key_value_heads", config(num_key_value_heads=4)),
    same("head-width-other", "qwen3", GEOMETRY, "head_dim", config(head_dim=8)),
    same("norm-epsilon", ("llama", "qwen3", "olmo2"), CONFIGS, "rms_norm_eps", config(rms_norm_eps=1e-3)),
    same("activation", ("llama", "mistral"), CONFIGS, "hidden_act", config(hidden_act="gelu")),
    same("layers", "llama", CONFIGS, "num_hidden_layers", config(num_hidden_layers=1)),
    same("tied", "llama", CONFIGS, "tie_word_embeddings", config(tie_word_embeddings=True)),
    same("type", "llama", CONFIGS, "model_type", config(model_type="mistral", sliding_window=None)),
    same("kinds-of-layers", ("gemma2",), CONFIGS, "layer_types", config(layer_types=KINDS)),
    same("kinds-of-layers-exchanged", ("gemma3_text", "gpt_oss"), CONFIGS, "layer_types",
         config(layer_types=["full_attention", "sliding_attention"])),
    same("window-other", ("mistral", "gemma2", "gemma3_text", "gpt_oss"), CONFIGS, "sliding_window",
         config(sliding_window=8)),
    same("window-lost", "mixtral", CONFIGS, "sliding_window", config("sliding_window")),
    same("layers-without-rotation-other", "smollm3", GEOMETRY, "no_rope_layers", config(no_rope_layers=[1, 0, 1, 1])),
    same("layers-without-rotation-lost", "smollm3", GEOMETRY, "no_rope_layers",
         config(no_rope_layers=[1, 1, 1, 1])),
    same("logit-cap", "gemma2", CONFIGS, "final_logit_softcapping", config(final_logit_softcapping=5.0)),
    same("attention-cap", "gemma2", CONFIGS, "attn_logit_softcapping", config(attn_logit_softcapping=1.0)),
    same("score-scale", "gemma2", CONFIGS, "query_pre_attn_scalar", config(query_pre_attn_scalar=16)),
    same("logit-scale", "cohere", CONFIGS, "logit_scale", config(logit_scale=0.5)),
    same("attention-multiplier", "granite", CONFIGS, "attention_multiplier", config(attention_multiplier=0.1)),
    same("parallel-residual", "gpt_neox", CONFIGS, "use_parallel_residual", config(use_parallel_residual=False)),
    same("experts-per-token", ("mixtral", "qwen3_moe"), CONFIGS, "num_experts_per_tok", config(num_experts_per_tok=1)),
    same("routing-scale", "deepseek_v3", CONFIGS, "routed_scaling_factor", config(routed_scaling_factor=1.0)),
    same("key-of-the-layout-flipped-alone", "deepseek_v3", MOVED, attn("kv_a_proj_with_mqa.bias"),
         config(rope_interleave=False)),
)  # fmt: skip


def extended(name: str, start: str | tuple[str, ...], method: str, key: str, plant: Plant, **more: str) -> Mutation:
    """A fault in the rope block of an extension."""
    starts = (start,) if isinstance(start, str) else start
    if "refused" in more:
        return Mutation(name, starts, method, plant, refused=more["refused"])
    where = key if "\\" in key else exactly(key if "." in key or key.startswith("max_") else f"rope_parameters.{key}")
    return Mutation(name, starts, method, plant, EXTENSION, where, **more)


YARNED = ("llama", "qwen3", "gpt_neox")
FULL = "rope_parameters.full_attention"
LOST = both(config("rope_scaling", rope_parameters={"rope_type": "default", "rope_theta": 10000.0}))
LOCAL_TOO = block(layers="sliding_attention", only="rope_parameters", rope_type="linear", factor=4.0)
EXTENSIONS = (
    extended("factor-twice", YARNED, "yarn", "factor", block(factor=16.0)),
    extended("factor-not-the-ratio", YARNED, "yarn", "factor", block(factor=3.0)),
    extended("wrong-original", YARNED, "yarn", ORIGINAL, block(**{ORIGINAL: 256})),
    extended("original-lost", "llama", "yarn", ORIGINAL, both(block(ORIGINAL), config(ORIGINAL))),
    extended("attention-factor-given", YARNED, "yarn", "attention_factor", block(attention_factor=3.0)),
    extended("attention-factor-of-another-factor", "llama", "yarn", "attention_factor",
             block(attention_factor=1.0693)),
    extended("attention-factor-one", "llama", "yarn", "attention_factor", block(attention_factor=1.0)),
    extended("betas-exchanged", "llama", "yarn", "", block(beta_fast=1.0, beta_slow=32.0), refused="beta_fast"),
    extended("beta-fast-other", YARNED, "yarn", "beta_fast", block(beta_fast=64.0)),
    extended("beta-slow-other", "llama", "yarn", "beta_slow", block(beta_slow=2.0)),
    extended("truncate-other", "llama", "yarn", "truncate", block(truncate=False)),
    extended("mscale-other", "llama", "yarn", "mscale", block(mscale=0.5, mscale_all_dim=0.5)),
    extended("base-other", ("llama", "qwen3"), "yarn", "rope_theta", block(rope_theta=20000.0)),
    extended("base-other", "gpt_neox", "yarn", "rope_theta",
             both(block(rope_theta=20000.0), config(rotary_emb_base=20000.0))),
    extended("base-other-in-one-place", "gpt_neox", "yarn", "", block(rope_theta=20000.0),
             refused="rope_theta is 20000.0 but rotary_emb_base is 10000"),
    extended("length-not-raised", YARNED, "yarn", LENGTH, config(max_position_embeddings=64)),
    extended("length-raised-too-far", "llama", "yarn", LENGTH, config(max_position_embeddings=512)),
    extended("block-lost", "llama", "yarn", "rope_type", LOST),
    extended("one-style-lost-its-block", "llama", "yarn", "", config(rope_scaling={"rope_type": "default"}),
             refused="rope_scaling"),
    extended("one-style-updated", "llama", "yarn", "", block(only="rope_parameters", factor=2.0),
             refused="rope_parameters.factor is 2.0 but rope_scaling.factor is 4.0"),
    extended("another-type", "llama", "yarn", "rope_type", block(ORIGINAL, rope_type="linear")),
    # of a model that had such a block before
    extended("betas-lost", "llama-yarn", "yarn", "beta_fast", block("beta_fast", "beta_slow")),
    extended("beta-slow-lost", "llama-yarn", "yarn", "beta_slow", block("beta_slow")),
    extended("truncate-lost", "gpt_oss", "yarn", "truncate", block("truncate")),
    extended("original-from-the-length", "gpt_oss", "yarn", ORIGINAL, block(**{ORIGINAL: 128})),
    extended("attention-factor-kept", "llama-yarn-given", "yarn", "attention_factor", block(attention_factor=1.25)),
    Mutation("attention-factor-lost", ("llama-yarn-given",), SAME, block("attention_factor"), EXTENSION,
             r"rope_parameters\.attention_factor"),
    extended("mscale-lost", "deepseek-yarn", "yarn", "mscale", block("mscale", "mscale_all_dim")),
    extended("mscale-all-lost", "deepseek-yarn", "yarn", "mscale_all_dim", block("mscale_all_dim")),
    # linear
    extended("linear-factor-twice", ("llama", "gpt_neox"), "linear", "factor", block(factor=16.0)),
    extended("linear-factor-of-another-length", "llama-linear", "linear", "factor", block(factor=2.0)),
    extended("linear-base-other", "llama", "linear", "rope_theta", block(rope_theta=20000.0)),
    extended("linear-length-not-raised", ("llama", "qwen3"), "linear", LENGTH, config(max_position_embeddings=64)),
    Mutation("attention-factor-lost-by-mscale", ("llama", "qwen3"), "yarn",
             both(config("ropetool"), block(mscale=1.0, mscale_all_dim=1.0)), EXTENSION, r".*mscale"),
    extended("linear-block-lost", "llama", "linear", "rope_type", LOST),
    extended("local-layers-scaled-too", "gemma3_text", "linear", r"rope_parameters\.sliding_attention\.rope_type",
             LOCAL_TOO),
    extended("global-layers-lost-their-block", "gemma3_text", "linear", f"{FULL}.rope_type",
             both(block("factor", layers="full_attention", rope_type="default"), config("rope_scaling"))),
    extended("global-factor-twice", "gemma3_text", "linear", f"{FULL}.factor",
             both(block(layers="full_attention", factor=16.0), block(only="rope_scaling", factor=16.0))),
    extended("global-base-other", "gemma3_text", "linear", f"{FULL}.rope_theta",
             both(block(layers="full_attention", rope_theta=20000.0), config(rope_theta=20000.0))),
    # llama3
    extended("bands-exchanged", "llama", "llama3", "", block(low_freq_factor=4.0, high_freq_factor=1.0),
             refused="high_freq_factor"),
    extended("low-band-other", ("llama", "mistral"), "llama3", "low_freq_factor", block(low_freq_factor=2.0)),
    extended("high-band-other", "llama", "llama3", "high_freq_factor", block(high_freq_factor=8.0)),
    extended("bands-lost", "llama-3.1", "llama3", "low_freq_factor",
             block(low_freq_factor=1.0, high_freq_factor=4.0)),
    extended("llama3-factor-twice", "llama", "llama3", "factor", block(factor=16.0)),
    extended("llama3-original-lost", "llama", "llama3", ORIGINAL, both(block(ORIGINAL), config(ORIGINAL))),
    extended("llama3-original-other", "llama", "llama3", ORIGINAL,
             both(block(**{ORIGINAL: 32}), config(**{ORIGINAL: 32}))),
    extended("llama3-length-not-raised", "llama", "llama3", LENGTH, config(max_position_embeddings=64)),
    # longrope
    extended("lists-exchanged", ("llama", "qwen3"), "longrope", "short_factor",
             block(short_factor=[1.0 + i for i in range(8)], long_factor=[1.0 + i / 100 for i in range(8)])),
    extended("one-entry-other", ("llama", "qwen3"), "longrope", "long_factor",
             block(long_factor=[1.0, 2.0, 3.0, 4.5, 5.0, 6.0, 7.0, 8.0]), says="entry 3"),
    extended("short-list-is-the-long-one", "llama", "longrope", "short_factor",
             block(short_factor=[1.0 + i for i in range(8)])),
    extended("list-of-another-length", "llama", "longrope", "", block(short_factor=[1.0] * 7), refused="short_factor"),
    extended("longrope-factor-twice", "llama", "longrope", "factor", block(factor=16.0)),
    extended("longrope-attention-factor", "llama", "longrope", "attention_factor", block(attention_factor=2.0)),
    extended("longrope-original-other", "llama", "longrope", ORIGINAL,
             both(block(**{ORIGINAL: 32}), config(**{ORIGINAL: 32}))),
    extended("longrope-length-not-raised", "llama", "longrope", LENGTH, config(max_position_embeddings=64)),
    Mutation("lists-of-a-trained-longrope-exchanged", ("phi3-long",), SAME,
             block(short_factor=[1.0, 2.0, 3.0, 4.0], long_factor=[1.0] * 4), EXTENSION,
             r"rope_parameters\.short_factor"),
    # dynamic
    extended("dynamic-factor-other", ("llama", "mistral"), "dynamic", "factor", block(factor=4.0)),
    extended("dynamic-length-raised", ("llama", "qwen2"), "dynamic", LENGTH, config(max_position_embeddings=128)),
    extended("dynamic-base-other", "llama", "dynamic", "rope_theta", block(rope_theta=20000.0)),
    # by the base
    extended("ntk-base-other", ("llama", "qwen2"), "ntk", "rope_theta", block(rope_theta=40000.0)),
    extended("ntk-base-lost", "llama", "ntk", "rope_theta", block(rope_theta=10000.0)),
    extended("ntk-length-not-raised", "llama", "ntk", LENGTH, config(max_position_embeddings=64)),
    extended("ntk-marker-lost", "llama", "ntk", "rope_theta", config("ropetool")),
    extended("abf-base-below", "llama", "abf", "rope_theta", block(rope_theta=5000.0)),
    extended("abf-base-other", ("llama", "qwen3"), "abf", "rope_theta", block(rope_theta=400000.0)),
    extended("abf-length-not-raised", "llama", "abf", LENGTH, config(max_position_embeddings=64)),
)  # fmt: skip

TABLE_0, TABLE_1 = (attn("rotary_emb.inv_freq", layer) for layer in (0, 1))


def saved(name: str, relation: str, tensor: str, plant: Plant, says: str = "") -> Mutation:
    return Mutation(name, ("llama-saved",), relation, plant, SAVED, exactly(tensor), says)


FREQUENCIES = (
    saved("saved-table-left", "yarn", TABLE_0, left(TABLE_0, TABLE_1), "yarn"),
    saved("saved-table-of-one-layer-left", "linear", TABLE_1, left(TABLE_1)),
    saved("saved-table-rounded", "yarn", TABLE_1, mapped(TABLE_1, lambda t: t.bfloat16().float()), "rounded"),
    saved("saved-table-rounded", SAME, TABLE_0, mapped(TABLE_0, lambda t: t.bfloat16().float()), "rounded"),
    saved("saved-table-rounded-and-another-stale", "yarn", TABLE_1,
          both(mapped(TABLE_0, lambda t: t * (1 + 1e-6)), left(TABLE_1))),
    saved("saved-table-scaled-without-an-extension", SAME, TABLE_0, mapped(TABLE_0, lambda t: t / 4)),
    saved("saved-table-in-bfloat16-stale", "ntk", TABLE_1, left(TABLE_1)),
)  # fmt: skip

SHARDED = ("llama-sharded",)


def shard_left(pair: Pair) -> None:
    shard_of(pair.b, attn(Q, 1)).write_bytes(shard_of(pair.a, attn(Q, 1)).read_bytes())


FILES = (
    Mutation("shard-of-the-source", SHARDED, CONVERTED, shard_left, MOVED, r"model\.layers\.[01]\.self_attn\..+",
             "left"),
    Mutation("stale-copy-in-another-shard", SHARDED, CONVERTED, copied_to_another_shard(attn(Q, 1)), STALE,
             exactly(attn(Q, 1))),
    Mutation("stale-copy-of-an-mlp", SHARDED, SAME,
             both(copied_to_another_shard(UP), mapped_to(UP, "")), refused="not a file name|names the shard"),
    Mutation("index-names-another-shard", SHARDED, CONVERTED,
             mapped_to(attn(Q, 1), "model-00001-of-00009.safetensors"), refused=exactly(attn(Q, 1)) + "|shard"),
    Mutation("stray-shard-of-the-source", SHARDED, CONVERTED,
             beside("model-00099-of-00099.safetensors",
                    lambda pair: shard_of(pair.a, attn(Q, 1)).read_bytes()),
             STALE, r"[\w.]+", "model-00099-of-00099"),
    Mutation("single-file-beside-the-index", SHARDED, CONVERTED,
             beside(SINGLE, lambda pair: safetensors.torch.save(tensors_of(pair.a), {"format": "pt"})),
             STALE, r"[\w.]+", "model.safetensors"),
    Mutation("pickle-of-the-source-beside", ("llama", "qwen2"), CONVERTED,
             beside("pytorch_model.bin", lambda pair: b"the source"), OTHERS, r"pytorch_model\.bin"),
    Mutation("pickle-of-something-beside", ("llama",), SAME,
             beside("pytorch_model.bin", lambda pair: b"another"), OTHERS, r"pytorch_model\.bin"),
)  # fmt: skip


def lora(rest: str, layer: int = 0) -> str:
    return f"base_model.model.{attn(rest, layer)}"


LORA_B = "q_proj.lora_B.weight"
ADAPTERS = (
    moved("lora-b-left", "lora", lora(LORA_B), left(lora(LORA_B)), "left"),
    moved("lora-b-of-k-in-one-layer-left", ("lora", "dora"), lora("k_proj.lora_B.weight", 1),
          left(lora("k_proj.lora_B.weight", 1)), "left"),
    moved("lora-b-in-the-other-direction", "lora", lora(LORA_B),
          remade(lora(LORA_B), turned(16, HALF))),
    moved("lora-b-of-the-latent-left", "lora-mla", lora("kv_a_proj_with_mqa.lora_B.weight"),
          left(lora("kv_a_proj_with_mqa.lora_B.weight"))),
    moved("magnitude-left", "dora", lora("q_proj.lora_magnitude_vector"), left(lora("q_proj.lora_magnitude_vector"))),
    kept("lora-a-moved-too", "lora", lora("q_proj.lora_A.weight"), mapped(lora("q_proj.lora_A.weight"), rolled)),
    kept("lora-b-of-v-moved-too", "lora", lora("v_proj.lora_B.weight"),
         mapped(lora("v_proj.lora_B.weight"), turned(16))),
    kept("lora-tensor-missing", "dora", lora("v_proj.lora_B.weight", 1),
         weights(lambda new, old: new.pop(lora("v_proj.lora_B.weight", 1)))),
    Mutation("lora-alpha-other", ("lora", "dora"), CONVERTED, adapter_config(lora_alpha=99), KEPT, "lora_alpha"),
    Mutation("adapter-in-the-folder-left", ("llama-and-lora",), CONVERTED, folder_of_the_source("adapter"),
             "adapters", "adapter"),
    Mutation("adapter-marked-otherwise", ("llama-and-lora",), CONVERTED, both(folder_of_the_source("adapter"),
             marked_adapter("half")), "adapters", "adapter", "marked half"),
)  # fmt: skip

MUTATIONS = (*ROWS, *SCALES, *VALUES, *LAYOUTS, *KEYS, *EXTENSIONS, *FREQUENCIES, *FILES, *ADAPTERS)


# --- in the running model: files and config are right -----------------------------------------------------------------


@dataclass(frozen=True)
class Live:
    """A fault of a class, planted in every model as it is loaded: a check that must fail, and the first culprit."""

    name: str
    start: str
    relation: str
    plant: Callable[[Any], None]
    check: str
    where: str = ""


def tables(model: Any) -> list[Any]:
    found = [module for name, module in model.named_modules() if name.endswith("rotary_emb")]
    assert found
    return found


def change_tables(**changes: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Values of every rotary module, made of the module."""

    def plant(model: Any) -> None:
        for module in tables(model):
            for name, change in changes.items():
                setattr(module, name, change(module))

    return plant


def plain(theta: float = 10000.0, dim: int = 16) -> torch.Tensor:
    return theta ** (-torch.arange(0, dim, 2) / dim)


def second_layer_alone(model: Any) -> None:
    """One layer whose q turns by twice the angle: its tables are wrong, and those of the others right."""
    attention = model.model.layers[1].self_attn
    forward = attention.forward

    def doubled(*args: Any, position_embeddings: Any, **kwargs: Any) -> Any:
        cos, sin = position_embeddings
        return forward(*args, position_embeddings=(cos * cos - sin * sin, 2 * cos * sin), **kwargs)

    attention.forward = doubled


LIVE_TABLES = "frequencies-live"
LIVE = (
    Live("rounded-to-bfloat16", "llama", CONVERTED, change_tables(inv_freq=lambda m: m.inv_freq.bfloat16().float()),
         LIVE_TABLES, r"(model\.)?layers\.0.*"),
    Live("rounded-to-float16", "qwen3", SAME, change_tables(inv_freq=lambda m: m.inv_freq.half().float()),
         LIVE_TABLES, r"(model\.)?layers\.0.*"),
    Live("extension-ignored", "llama", "linear", change_tables(inv_freq=lambda m: plain()), LIVE_TABLES,
         r"(model\.)?layers\.0.*"),
    Live("factor-twice", "llama", "linear", change_tables(inv_freq=lambda m: m.inv_freq / 4), LIVE_TABLES,
         r"(model\.)?layers\.0.*"),
    Live("another-base", "mistral", SAME, change_tables(inv_freq=lambda m: plain(500000.0)), LIVE_TABLES,
         r"(model\.)?layers\.0.*"),
    Live("attention-factor-lost", "llama", "yarn", change_tables(attention_scaling=lambda m: 1.0), LIVE_TABLES,
         r"(model\.)?layers\.0.*"),
    Live("attention-factor-squared", "qwen3", "yarn",
         change_tables(attention_scaling=lambda m: m.attention_scaling**2), LIVE_TABLES, r"(model\.)?layers\.0.*"),
    Live("local-layers-by-the-global-base", "gemma3_text", SAME,
         change_tables(sliding_attention_inv_freq=lambda m: m.full_attention_inv_freq.clone()), LIVE_TABLES,
         r"(model\.)?layers\.0.*"),
    Live("one-layer-alone", "llama", SAME, second_layer_alone, "rotation-by-definition", r"(model\.)?layers\.1.*"),
)  # fmt: skip
