"""The run-time checks of verify that a sound model of a class does not pass, each with the reason.

A check says "cannot" with it instead of failing. The files are of transformers 5.24.0, under ``models/``;
tests/models/test_properties.py holds every line against the class, and every class against these lines.
"""

from __future__ import annotations

from dataclasses import dataclass

RELATIVE, CACHED = "relative-position", "cached-decoding"
NORMS, DEFINITION, V = "rotation-keeps-norms", "rotation-by-definition", "v-untouched"
LIVE, NOT_ROUNDED = "frequencies-live", "frequencies-not-rounded"


@dataclass(frozen=True)
class Cannot:
    """Why models of some types do not pass some checks; ``major`` is the version of transformers, 0 for any."""

    checks: tuple[str, ...]
    types: str
    reason: str
    major: int = 0


# What a shift of all positions changes.
_RELATIVE = (
    Cannot(
        (RELATIVE,), "hunyuan_v1_dense hunyuan_v1_moe hunyuan_vl_text",
        "modeling_hunyuan_v1_dense.py: a norm with a weight for every slot comes after the rotation, so a score "
        "depends on both positions",
    ),
    Cannot(
        (RELATIVE,), "dory",
        "modeling_dory.py: sqk scales every slot of q by its own factor after the rotation, so a score depends on both "
        "positions",
    ),
    Cannot(
        (RELATIVE,), "beam",
        "modeling_beam.py, compute_attention_scaling: layers without rotation scale q by its position",
    ),
    Cannot(
        (RELATIVE,), "mistral_large4_text",
        "modeling_mistral_large4.py, MistralLarge4TextSoftmaxScaling: q is scaled by the logarithm of its position",
    ),
    Cannot(
        (RELATIVE,), "recurrent_gemma",
        "modeling_recurrent_gemma.py, RecurrentGemmaRglru: the recurrent state begins anew at position 0",
    ),
    Cannot(
        (RELATIVE,), "t5gemma2_decoder",
        "modeling_t5gemma2.py, T5Gemma2MergedAttention: a rotated q meets keys of the encoder, which are not rotated",
    ),
    Cannot(
        (RELATIVE,), "minimax_m3_vl_text",
        "modeling_minimax_m3_vl.py, MiniMaxM3VLIndexer: position_ids are the places of the tokens among the keys",
    ),
    Cannot(
        (RELATIVE,), "csm_depth_decoder_model",
        "modeling_csm.py, CsmDepthDecoderModel: the position is the codebook, and position_ids are ignored",
    ),
    Cannot((RELATIVE,), "dia_encoder", "modeling_dia.py: the forward of DiaEncoder takes no position_ids"),
    Cannot((RELATIVE,), "roformer", "modeling_roformer.py: its forward takes no position_ids"),
    Cannot(
        (RELATIVE,), "blt_local_decoder blt_local_encoder",
        "modeling_blt.py: a part of BLT that takes its mask ready made",
    ),
)  # fmt: skip

# What decoding with a cache changes.
_CACHED = (
    Cannot(
        (CACHED,),
        "dia_encoder embedding_gemma2_text esm esmc eurobert gte jina_embeddings_v3 modernbert neomme nomic_bert "
        "openai_privacy_filter roformer t5gemma2_text ultrabert",
        "an encoder: every token sees those after it, and there is no cache",
    ),
    Cannot(
        (CACHED,), "blt_local_decoder blt_local_encoder blt_patcher", "modeling_blt.py: a part of BLT without a cache",
    ),
    Cannot(
        (CACHED,), "blt",
        "modeling_blt.py, BltModel: it makes its cache by num_hidden_layers, which BltConfig has not, and fails",
    ),
    Cannot(
        (CACHED,), "recurrent_gemma",
        "modeling_recurrent_gemma.py: the state of its layers stays in the model, and no cache is returned",
    ),
    Cannot(
        (CACHED,), "csm_depth_decoder_model",
        "modeling_csm.py, CsmCodebooksHead: the first position has no logits, so pieces have not those of one pass",
    ),
    Cannot((CACHED,), "dia_decoder", "modeling_dia.py: DiaDecoder makes no cache; the whole model does"),
    Cannot(
        (CACHED,), "granite4_vision_text",
        "modeling_granite4_vision.py: Granite4VisionTextModel makes no cache; generate does",
    ),
)  # fmt: skip

# What does not rotate as a rotation of q and k by cos and sin does.
_ROTATION = (
    Cannot(
        (RELATIVE, CACHED, NORMS, DEFINITION, V, LIVE, NOT_ROUNDED), "clvp_encoder",
        "modeling_clvp.py: an encoder with learned positions too, whose attention makes cos and sin of angles itself "
        "and rotates v as well",
    ),
    Cannot(
        (RELATIVE, NORMS, DEFINITION, V), "deepseek_v4",
        "modeling_deepseek_v4.py: one latent is both k and v and is rotated back after the attention, and compressed "
        "keys have positions of their own",
    ),
    Cannot(
        (LIVE,), "mistral_large4_text",
        "modeling_mistral_large4.py: the weights hold a learned factor for every frequency, and config.json does not",
    ),
    Cannot(
        (LIVE, NOT_ROUNDED), "roformer",
        "modeling_roformer.py: one table of sin and cos is a weight of an embedding, and no inv_freq is kept; the "
        "rotation itself is compared",
    ),
)  # fmt: skip

# What classes of transformers 4.57.6 do otherwise than those of 5.24.0.
_VERSION_4 = (
    Cannot(
        (NORMS, DEFINITION, V, LIVE, NOT_ROUNDED), "codegen gptj esm idefics",
        "its class makes its rotary tables in no module of its own, where they could be seen", 4,
    ),
    Cannot((RELATIVE,), "esm", "modeling_esm.py: its rotary tables are by place, and position_ids are not asked", 4),
    Cannot(
        (RELATIVE,), "idefics phimoe",
        "its rotary tables have a row for each token, and position_ids must be one of those", 4,
    ),
    Cannot(
        (DEFINITION, LIVE), "modernbert",
        "configuration_modernbert.py: its layers are told apart by global_attn_every_n_layers, not by layer_types", 4,
    ),
    Cannot((CACHED,), "bamba falcon_h1", "its class makes no cache, but wants one of its own kind from generate", 4),
    Cannot(
        (CACHED,), "gemma3n_text",
        "modeling_gemma3n.py: the last layers share k and v of earlier ones through the cache alone", 4,
    ),
    Cannot(
        (CACHED,), "qwen3_next",
        "modeling_qwen3_next.py: a piece of several tokens after the first begins its linear attention anew", 4,
    ),
)  # fmt: skip

ALL: tuple[Cannot, ...] = (*_RELATIVE, *_CACHED, *_ROTATION, *_VERSION_4)


def cannot_of(model_type: str) -> tuple[Cannot, ...]:
    """The lines that a type is in."""
    return tuple(row for row in ALL if model_type in row.types.split())
