"""Rows of text models without RoPE: what each class has instead, where, and which keys give its numbers.

Read from transformers 5.24.0, models/<type>/modeling_<type>.py, unless the source says otherwise; the tests build the
class of each row that they can, and hold the row against its parameters and its behaviour.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ropetool.families.schemes import (
    ALIBI,
    ALIBI_BUILT,
    BOUNDED,
    BUCKETED,
    BUCKETS,
    CLAMPED,
    CLIPPED,
    GROWING,
    LEARNED,
    POSITIONS,
    PROJECTED,
    RECURRENT,
    ROWS,
    SINUSOIDAL,
    UNPLACED,
    VECTORS,
    OtherScheme,
    Place,
    Product,
    Sum,
    When,
)

V5 = "transformers 5.24.0"
MOST, N = "max_position_embeddings", "n_positions"
EMBEDDING = r"(^|\.)embeddings\.position_embeddings\.weight$"
TABLES = r"(^|\.)(encoder|decoder)\.embed_positions\.weight$"
KEY_TYPE = "position_embedding_type"
RELATIVE_TYPES = ("relative_key", "relative_key_query")
# BERT-like classes of transformers 4 have vectors per distance on demand; those of 5 do not read the key.
ABSOLUTE = When(KEY_TYPE, ("absolute", None), "absolute")
BY_DISTANCE = Place(
    BOUNDED, numbers={VECTORS: (Sum((MOST,), 2, -1),), POSITIONS: (Sum((MOST,)),)},
    tensor=r"\.distance_embedding\.weight$", when=(When(KEY_TYPE, RELATIVE_TYPES, "absolute"),), forgotten=KEY_TYPE,
    idle=EMBEDDING,
)  # fmt: skip


def rows(types: str, *places: Place, source: str = "") -> Iterator[OtherScheme]:
    """A row for each of ``types``, by names with spaces between."""
    for model_type in types.split():
        module = MODULES.get(model_type, model_type.replace("-", "_"))
        file = FILES.get(model_type, module)
        yield OtherScheme(model_type, source or f"{V5}, models/{module}/modeling_{file}.py", places)


# Files that are not named as their module, and modules that are not named as their type.
FILES = {"blip_text_model": "blip_text", "data2vec-audio": "data2vec_audio", "data2vec-vision": "data2vec_vision",
         "data2vec-text": "data2vec_text", "donut-swin": "donut_swin",
         "maskformer-swin": "maskformer_swin"}  # fmt: skip
MODULES = {
    "openai-gpt": "openai", "gpt-sw3": "gpt2", "bert-generation": "bert_generation", "donut-swin": "donut",
    "maskformer-swin": "maskformer", "xclip": "x_clip", "xclip_text_model": "x_clip", "xclip_vision_model": "x_clip",
    "kosmos-2": "kosmos2", "kosmos_2_vision_model": "kosmos2", "kosmos_2_text_model": "kosmos2",
    "kosmos_2_5_text_model": "kosmos2_5", "kosmos-2.5": "kosmos2_5", "blip_2_vision_model": "blip_2",
    "instructblip_qformer": "instructblip", "instructblip_vision_model": "instructblip",
    "instructblipvideo_qformer": "instructblipvideo", "instructblipvideo_vision_model": "instructblipvideo",
    "data2vec-audio": "data2vec", "data2vec-vision": "data2vec", "data2vec-text": "data2vec",
    "musicgen_decoder": "musicgen", "musicgen_melody_decoder": "musicgen_melody",
    **{f"{name}_{part}_model": name
       for name in ("clip", "clipseg", "metaclip_2", "siglip", "siglip2", "chinese_clip", "altclip", "align", "aimv2",
                    "blip", "owlvit", "owlv2", "groupvit", "pix2struct", "bridgetower", "clap", "flava", "git")
       for part in ("text", "vision", "audio", "image", "multimodal")},
    **{f"{name}_vision": name for name in ("idefics2", "idefics3", "smolvlm")},
    **{f"{name}_{part}": name
       for name in ("parakeet", "granite_speech5", "omniasr", "nemotron_asr_streaming")
       for part in ("ctc", "encoder", "rnnt", "tdt", "audio")},
    **{f"{name}_encoder": name for name in ("qwen2_audio", "voxtral", "audioflamingo3", "granite_speech")},
}  # fmt: skip


def learned(key: str = MOST, tensor: str = EMBEDDING, *, plus: int = 0, unused: int = 0, past_pad: int | None = None,
            where: str = "", when: tuple[When, ...] = ()) -> Place:  # fmt: skip
    """A learned table with the rows that ``key`` says, and ``plus`` more."""
    return Place(LEARNED, where, {ROWS: (Sum((key,), 1, plus),)}, tensor, unused, past_pad, when)


def sinusoids(key: str = MOST, *, tensor: str = "", where: str = "", when: tuple[When, ...] = (), plus: int = 0,
              unused: int = 0) -> Place:  # fmt: skip
    """A fixed table of sinusoids with the rows that ``key`` says, and ``plus`` more."""
    return Place(SINUSOIDAL, where, {ROWS: (Sum((key,), 1, plus),)}, tensor, unused, None, when)


def growing(key: str = MOST, *, tensor: str = "", where: str = "", when: tuple[When, ...] = ()) -> Place:
    """Sinusoids that the class computes for any length; some classes save what they had computed."""
    return Place(GROWING, where, {POSITIONS: (Sum((key,)),)}, tensor, when=when)


def buckets(tensor: str, number: str = "relative_attention_num_buckets",
            distance: str = "relative_attention_max_distance", *, where: str = "") -> Place:  # fmt: skip
    """A learned bias per bucket of distance."""
    return Place(BUCKETED, where, {BUCKETS: (Sum((number,)),), "max_distance": (Sum((distance,)),)}, tensor)


def alibi(key: str, *, where: str = "") -> Place:
    """ALiBi, in a class whose config names the length it was trained on."""
    return Place(ALIBI, where, {"trained": (Sum((key,)),)})


T5_TABLE = r"SelfAttention\.relative_attention_bias\.weight$"
RELATIVE_SPAN = (Sum(("max_relative_positions",)), Sum((MOST,)))
ON, OFF = (True,), (False,)
_BIASED = learned(where="input", when=(When("position_biased_input", ON, True),))
_DEBERTA_TABLE = r"(^|\.)encoder\.rel_embeddings\.weight$"
_DEBERTA_WHEN = (When("relative_attention", ON, False),)
_BERT_LIKE = "bert bert-generation electra megatron-bert ernie roc_bert albert bros blip_text_model"
_ROBERTA_LIKE = "roberta xlm-roberta xlm-roberta-xl xmod roberta-prelayernorm data2vec-text camembert"

TEXT: tuple[OtherScheme, ...] = (
    *rows("gpt2 gpt-sw3 gpt_bigcode imagegpt", learned(N, r"(^|\.)wpe\.weight$")),
    *rows("gpt_neo", learned(MOST, r"(^|\.)wpe\.weight$")),
    *rows("openai-gpt", learned(N, r"(^|\.)positions_embed\.weight$")),
    *rows(_BERT_LIKE, learned(when=(ABSOLUTE,)), BY_DISTANCE),
    *rows(_ROBERTA_LIKE, learned(past_pad=1, when=(ABSOLUTE,)), BY_DISTANCE),
    *rows("lilt", learned(past_pad=1, where="text", when=(ABSOLUTE,)), BY_DISTANCE,
          learned(tensor=r"(^|\.)box_position_embeddings\.weight$", past_pad=1, where="layout")),
    *rows("ibert markuplm longformer luke", learned(past_pad=1, tensor=r"embeddings\.position_embeddings\.weight$")),
    *rows("big_bird convbert fnet layoutlm lxmert mobilebert rembert splinter squeezebert tapas visual_bert dpr",
          learned()),
    *rows("nystromformer mra yoso", learned(plus=2, unused=2)),
    *rows("canine", learned("num_hash_buckets", tensor=r"(^|\.)char_position_embeddings\.weight$")),
    *rows("distilbert", learned(when=(When("sinusoidal_pos_embds", OFF, False),)),
          sinusoids(tensor=EMBEDDING, when=(When("sinusoidal_pos_embds", ON, False),))),
    *rows("xlm flaubert",
          learned(tensor=r"(^|\.)position_embeddings\.weight$", when=(When("sinusoidal_embeddings", OFF, False),)),
          sinusoids(tensor=r"(^|\.)position_embeddings\.weight$", when=(When("sinusoidal_embeddings", ON, False),))),
    *rows("opt biogpt", learned(tensor=r"(^|\.)embed_positions\.weight$", plus=2, unused=2)),
    *rows("bart mbart plbart mvp", learned(tensor=TABLES, plus=2, unused=2)),
    *rows("blenderbot blenderbot-small bigbird_pegasus", learned(tensor=TABLES)),
    *rows("led",
          learned("max_encoder_position_embeddings", r"(^|\.)encoder\.embed_positions\.weight$", where="encoder"),
          learned("max_decoder_position_embeddings", r"(^|\.)decoder\.embed_positions\.weight$", where="decoder")),
    *rows("trocr",
          learned(tensor=r"(^|\.)embed_positions\.weight$", plus=2, unused=2,
                  when=(When("use_learned_position_embeddings", ON, True),)),
          growing(when=(When("use_learned_position_embeddings", OFF, True),))),
    *rows("prophetnet",
          Place(CLAMPED, "encoder", {ROWS: (Sum((MOST,)),)}, r"(^|\.)encoder\.position_embeddings\.weight$",
                past_pad=0),
          learned(tensor=r"(^|\.)decoder\.position_embeddings\.weight$", past_pad=0, unused=1, where="decoder"),
          Place(replace(BUCKETED, number=""), "decoder attention",
                {BUCKETS: (Sum(("num_buckets",)),), "max_distance": (Sum(("relative_max_distance",)),)},
                r"\.relative_pos_embeddings\.weight$")),
    *rows("reformer",
          Place(LEARNED, numbers={ROWS: (Product("axial_pos_shape"),)}, when=(When("axial_pos_embds", ON, True),)),
          learned(tensor=r"(^|\.)position_embeddings\.embedding\.weight$", when=(When("axial_pos_embds", OFF, True),))),
    *rows("mpnet", learned(unused=2, where="input"),
          Place(BUCKETED, "attention", {BUCKETS: (Sum(("relative_attention_num_buckets",)),)},
                r"(^|\.)encoder\.relative_attention_bias\.weight$")),
    *rows("layoutlmv3", learned(past_pad=1, where="text"),
          Place(replace(BUCKETED, axis=-1), "attention",
                {BUCKETS: (Sum(("rel_pos_bins",)),), "max_distance": (Sum(("max_rel_pos",)),)},
                r"(^|\.)encoder\.rel_pos_bias\.weight$", when=(When("has_relative_attention_bias", ON, True),)),
          Place(LEARNED, "image", {}, r"(^|\.)layoutlmv3\.pos_embed$|^pos_embed$",
                when=(When("visual_embed", ON, True),))),
    *rows("marian", sinusoids(tensor=TABLES)),
    *rows("pegasus", sinusoids(tensor=TABLES)),
    *rows("pegasus_x m2m_100 nllb-moe xglm kosmos_2_text_model kosmos_2_5_text_model musicgen_decoder "
          "musicgen_melody_decoder", growing()),
    *rows("fsmt", growing(tensor=TABLES)),
    *rows("ctrl", sinusoids(N)),
    *rows("bloom", alibi("seq_length")),
    *rows("mpt", Place(ALIBI_BUILT, numbers={POSITIONS: (Sum(("max_seq_len",)),)},
                       denied=When("attn_config.alibi", OFF, True))),
    *rows("t5 mt5 umt5 switch_transformers pop2piano udop", buckets(T5_TABLE)),
    *rows("longt5", buckets(r"(Local|TransientGlobal|)SelfAttention\.relative_attention_bias\.weight$")),
    *rows("pix2struct_text_model", buckets(r"self_attention\.attention\.relative_attention_bias\.weight$")),
    *rows("cpmant",
          Place(replace(BUCKETED, number=""), "",
                {BUCKETS: (Sum(("position_bias_num_buckets",)),),
                 "max_distance": (Sum(("position_bias_max_distance",)),)},
                r"(^|\.)position_bias\.relative_attention_bias$")),
    *rows("deberta",
          Place(CLIPPED, "attention",
                {VECTORS: (Sum(("max_relative_positions",), 2), Sum((MOST,), 2)), "clip": RELATIVE_SPAN},
                _DEBERTA_TABLE, when=_DEBERTA_WHEN), _BIASED),
    *rows("deberta-v2",
          Place(CLIPPED, "attention",
                {VECTORS: (Sum(("position_buckets",), 2), Sum(("max_relative_positions",), 2), Sum((MOST,), 2)),
                 "clip": RELATIVE_SPAN}, _DEBERTA_TABLE, when=_DEBERTA_WHEN), _BIASED),
    *rows("xlnet", Place(PROJECTED, tensor=r"\.rel_attn\.r$")),
    *rows("funnel", Place(PROJECTED, tensor=r"\.r_kernel$")),
    *rows("transfo-xl", Place(PROJECTED, tensor=r"\.r_net\.weight$"),
          source="transformers 4.35, models/transfo_xl/modeling_transfo_xl.py; later versions lack the type"),
    *rows("mamba mamba2 falcon_mamba rwkv xlstm", Place(RECURRENT)),
    *rows("jamba zamba nemotron_h kimi_linear", Place(UNPLACED)),
)  # fmt: skip

# What a class of the family table has where its config asks for no RoPE (`Family.needs`).
INSTEAD: tuple[OtherScheme, ...] = (
    *rows("esm", learned(past_pad=1, when=(When(KEY_TYPE, ("absolute",), "absolute"),)),
          BY_DISTANCE, Place(UNPLACED, when=(When(KEY_TYPE, (None,), "absolute"),))),
    *rows("falcon", alibi(MOST)),
    *rows("zamba2 granitemoehybrid", Place(UNPLACED)),
)  # fmt: skip
