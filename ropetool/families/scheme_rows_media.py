"""Rows of speech and vision models without RoPE, and of models of several parts; read as `scheme_rows`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ropetool.families.scheme_rows import ABSOLUTE, BY_DISTANCE, MOST, OFF, ON, growing, learned, rows, sinusoids
from ropetool.families.schemes import (
    BUCKETED,
    BUCKETS,
    CLIPPED,
    COMPUTED_BIAS,
    CONVOLVED,
    KERNEL,
    LEARNED,
    LEARNED_GRID,
    PROJECTED,
    ROWS,
    SINUSOIDAL,
    UNPLACED,
    VECTORS,
    WINDOWED,
    Grid,
    OtherScheme,
    Part,
    Place,
    Sum,
    When,
    Window,
)

TEXT_TABLE = r"(^|\.)embeddings\.position_embeddings?(\.weight)?$"
PATCHES = r"(^|\.)embeddings\.position_embeddings?(\.weight)?$"
_CONVOLUTION = Place(
    CONVOLVED, numbers={KERNEL: (Sum(("num_conv_pos_embeddings",)),)},
    tensor=r"pos_conv_embed\.conv\.(weight_v|parametrizations\.weight\.original1)$",
)  # fmt: skip
_OMNI = replace(_CONVOLUTION, tensor=r"encode_positions\.conv\.weight$")
_ALSO_CONVOLVED = replace(_CONVOLUTION, where="input")
_CONFORMER = "position_embeddings_type"


def patches(plus: int, *, where: str = "", when: tuple[When, ...] = ()) -> Place:
    """A learned row per patch, and ``plus`` more."""
    return Place(LEARNED_GRID, where, {ROWS: (Grid(plus),)}, PATCHES, when=when)


def _window(tensor: str, *ways: Window, when: tuple[When, ...] = ()) -> Place:
    return Place(WINDOWED, numbers={ROWS: ways} if ways else {}, tensor=tensor, when=when)


_BIAS_TABLE = r"relative_position_bias_table$"
_NO_TABLE = tuple(
    When(f"use_{kind}", OFF, False)
    for kind in ("absolute_position_embeddings", "relative_position_bias", "shared_relative_position_bias")
)
_ABS_ON, _REL_ON, _SHARED_ON = (When(when.key, ON, False) for when in _NO_TABLE)
_BEIT = (
    patches(1, when=(_ABS_ON,)), _window(_BIAS_TABLE, when=(_REL_ON,)),
    _window(_BIAS_TABLE, when=(_SHARED_ON, When(_REL_ON.key, OFF, False))), Place(UNPLACED, when=_NO_TABLE),
)  # fmt: skip

SPEECH: tuple[OtherScheme, ...] = (
    *rows("whisper",
          sinusoids("max_source_positions", tensor=r"(^|\.)encoder\.embed_positions\.weight$", where="encoder"),
          learned("max_target_positions", r"(^|\.)decoder\.embed_positions\.weight$", where="decoder")),
    *rows("speech_to_text", growing("max_source_positions", where="encoder"),
          growing("max_target_positions", where="decoder")),
    *rows("qwen2_audio_encoder voxtral_encoder audioflamingo3_encoder",
          learned("max_source_positions", r"(^|\.)embed_positions\.weight$")),
    *rows("wav2vec2 hubert unispeech unispeech-sat sew", _CONVOLUTION),
    *rows("data2vec-audio",
          Place(CONVOLVED, numbers={KERNEL: (Sum(("conv_pos_kernel_size",)),)},
                tensor=r"pos_conv_embed\.layers\.0\.conv\.weight$")),
    *rows("omniasr_audio", _OMNI),
    *rows("wavlm",
          Place(BUCKETED, "attention",
                {BUCKETS: (Sum(("num_buckets",)),), "max_distance": (Sum(("max_bucket_distance",)),)},
                r"rel_attn_embed\.weight$"), _ALSO_CONVOLVED),
    *rows("sew-d",
          Place(CLIPPED, "attention",
                {VECTORS: (Sum(("position_buckets",), 2), Sum((MOST,), 2)),
                 "clip": (Sum(("max_relative_positions",)), Sum((MOST,)))},
                r"(^|\.)encoder\.rel_embeddings\.weight$", when=(When("relative_attention", ON, True),)),
          _ALSO_CONVOLVED),
    *rows("wav2vec2-conformer",
          Place(PROJECTED, "attention", tensor=r"\.linear_pos\.weight$",
                when=(When(_CONFORMER, ("relative",), "relative"),)),
          replace(_ALSO_CONVOLVED, when=(When(_CONFORMER, ("relative", None), "relative"),))),
    *rows("wav2vec2-bert",
          Place(CLIPPED,
                numbers={VECTORS: (Sum(("left_max_position_embeddings", "right_max_position_embeddings"), 1, 1),),
                         "clip": (Sum(("left_max_position_embeddings",)),)},
                tensor=r"\.distance_embedding\.weight$", when=(When(_CONFORMER, ("relative_key",), "relative_key"),)),
          Place(PROJECTED, tensor=r"\.linear_pos\.weight$", when=(When(_CONFORMER, ("relative",), "relative_key"),)),
          Place(UNPLACED, when=(When(_CONFORMER, (None,), "relative_key"),))),
    *rows("parakeet_ctc parakeet_encoder parakeet_rnnt parakeet_tdt nemotron_asr_streaming_encoder",
          Place(PROJECTED, tensor=r"\.relative_k_proj\.weight$")),
    *rows("granite_speech5_ctc granite_speech5_encoder",
          Place(CLIPPED, numbers={}, tensor=r"\.rel_pos_emb\.weight$")),
    *rows("speecht5",
          Place(CLIPPED, "encoder",
                {VECTORS: (Sum(("encoder_max_relative_position",), 2),),
                 "clip": (Sum(("encoder_max_relative_position",)),)}, r"\.pe_k\.weight$")),
    *rows("fastspeech2_conformer", Place(PROJECTED, tensor=r"\.linear_pos\.weight$")),
    *rows("vits",
          Place(CLIPPED, "text encoder", {VECTORS: (Sum(("window_size",), 2, 1),), "clip": (Sum(("window_size",)),)},
                r"\.emb_rel_k$")),
    *rows("audio-spectrogram-transformer", Place(LEARNED_GRID, tensor=PATCHES)),
)  # fmt: skip

VISION: tuple[OtherScheme, ...] = (
    *rows("vit vit_msn dinov2 dinov2_with_registers clip_vision_model clipseg_vision_model metaclip_2_vision_model "
          "chinese_clip_vision_model altclip_vision_model blip_vision_model blip_2_vision_model git_vision_model "
          "instructblip_vision_model instructblipvideo_vision_model owlvit_vision_model owlv2_vision_model dpt "
          "xclip_vision_model timesformer flava_image_model kosmos_2_vision_model", patches(1)),
    *rows("vitdet", Place(LEARNED_GRID, numbers={ROWS: (Grid(1, ("pretrain_image_size", "patch_size")),)},
                          tensor=PATCHES)),
    *rows("deit", patches(2)),
    *rows("ijepa siglip_vision_model groupvit_vision_model idefics2_vision idefics3_vision smolvlm_vision",
          patches(0)),
    *rows("siglip2_vision_model", Place(LEARNED_GRID, numbers={ROWS: (Sum(("num_patches",)),)}, tensor=PATCHES)),
    *rows("aimv2_vision_model", patches(0, when=(When("is_native", OFF, False),)),
          Place(SINUSOIDAL, when=(When("is_native", ON, False),))),
    *rows("vit_mae", Place(SINUSOIDAL, "encoder", {ROWS: (Grid(1),)}, PATCHES),
          Place(SINUSOIDAL, "decoder", {ROWS: (Grid(1),)}, r"(^|\.)decoder_pos_embed$")),
    *rows("videomae", Place(SINUSOIDAL)),
    *rows("vivit yolos hiera", Place(LEARNED_GRID, tensor=PATCHES)),
    *rows("beit data2vec-vision", *_BEIT),
    *rows("swin donut-swin maskformer-swin", _window(_BIAS_TABLE, Window())),
    *rows("swinv2 swin2sr", Place(COMPUTED_BIAS, tensor=r"continuous_position_bias_mlp\.0\.weight$")),
    *rows("segformer", Place(CONVOLVED)),
)  # fmt: skip

_PLAIN_TEXT = (
    "clip_text_model clipseg_text_model metaclip_2_text_model chinese_clip_text_model siglip_text_model "
    "siglip2_text_model owlvit_text_model owlv2_text_model groupvit_text_model xclip_text_model aimv2_text_model "
    "flava_text_model"
)  # fmt: skip
_PARTS_OF_TEXT: tuple[OtherScheme, ...] = (
    *rows(_PLAIN_TEXT, learned(tensor=TEXT_TABLE)),
    *rows("align_text_model", learned()),
    *rows("altclip_text_model clap_text_model bridgetower_text_model", learned(past_pad=1, when=(ABSOLUTE,)),
          BY_DISTANCE),
    *rows("instructblip_qformer instructblipvideo_qformer", learned(when=(ABSOLUTE,)), BY_DISTANCE),
    *rows("pix2struct_vision_model",
          Place(LEARNED_GRID, "row and column", {ROWS: (Sum(("seq_len",)),)},
                r"(row|column)_embedder\.weight$")),
    *rows("clap_audio_model", _window(_BIAS_TABLE, Window())),
    *rows("align_vision_model", Place(CONVOLVED)),
    *rows("bridgetower_vision_model", patches(1)),
)  # fmt: skip


def _composite(types: str, *parts: Part) -> Iterator[OtherScheme]:
    for row in rows(types):
        yield replace(row, parts=tuple(replace(p, model_type=p.model_type.format(row.model_type)) for p in parts))


def _two(types: str, text: str = "{}_text_model", second: str = "{}_vision_model", kind: str = "vision") -> \
        Iterator[OtherScheme]:  # fmt: skip
    return _composite(types, Part("text_config", text, "text_model"), Part(f"{kind}_config", second, f"{kind}_model"))


COMPOSITE: tuple[OtherScheme, ...] = (
    *_two("clip clipseg metaclip_2 chinese_clip siglip siglip2 altclip align blip owlvit owlv2 groupvit xclip aimv2 "
          "bridgetower"),
    *_two("clap", second="{}_audio_model", kind="audio"),
    *_two("flava", second="{}_image_model", kind="image"),
    *_two("kosmos-2", text="kosmos_2_text_model", second="kosmos_2_vision_model"),
    *_composite("pix2struct", Part("text_config", "{}_text_model", "decoder"),
                Part("vision_config", "{}_vision_model", "encoder")),
    *_composite("blip-2", Part("text_config", "opt", "language_model"),
                Part("vision_config", "blip_2_vision_model", "vision_model")),
    *_composite("instructblip instructblipvideo", Part("text_config", "opt", "language_model"),
                Part("qformer_config", "{}_qformer", "qformer"),
                Part("vision_config", "{}_vision_model", "vision_model")),
    *_composite("musicgen", Part("text_encoder", "t5", "text_encoder"),
                Part("decoder", "musicgen_decoder", "decoder")),
    *_composite("musicgen_melody", Part("text_encoder", "t5", "text_encoder"),
                Part("decoder", "musicgen_melody_decoder", "decoder")),
    *_composite("encoder-decoder vision-encoder-decoder speech-encoder-decoder", Part("encoder", "", "encoder"),
                Part("decoder", "", "decoder")),
    *_composite("vision-text-dual-encoder", Part("text_config", "", "text_model"),
                Part("vision_config", "", "vision_model")),
    *_composite("omniasr_ctc", Part("audio_config", "omniasr_audio", "audio_tower")),
    *_composite("rag", Part("question_encoder", "", "question_encoder"), Part("generator", "", "generator")),
)  # fmt: skip

GIT: tuple[OtherScheme, ...] = (
    *rows("git", learned(when=(ABSOLUTE,), where="text"), BY_DISTANCE,
          Place(LEARNED, "vision", {}, r"vision_model\.embeddings\.position_embedding\.weight$")),
)  # fmt: skip

MEDIA: tuple[OtherScheme, ...] = (*SPEECH, *VISION, *_PARTS_OF_TEXT, *COMPOSITE, *GIT)
