"""What a checkpoint without RoPE has instead, by name, held against what the class itself does and holds.

The truth is the class's own behaviour: at which length it fails, how many rows its parameters have, and that the order
of the tokens stops mattering once exactly those tensors are zero that the result names.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ropetool.detect import Inspection, inspect
from ropetool.errors import UnknownFamilyError
from tests.tiny import edit_json
from tests.unrotated import DROP, TOKENS, Unrotated, random_model

LEARNED, SINES, ALIBI, BIAS = "learned", "sinusoidal", "alibi", "relative-bias"
VECTORS, NONE = "relative-vectors", "none"
FAR = 75  # tokens, farther than any number of the tiny configs
_DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
_SWIN = {"num_heads": [2, 2], "depths": [1, 1], "embed_dim": 16, "window_size": 3}

# Types whose class fails beyond a length: what it has, and which number the sentence must have.
CEILING: dict[str, tuple[str, Unrotated]] = {
    **{name: (LEARNED, Unrotated(name)) for name in (
        "gpt2", "gpt_bigcode", "imagegpt", "openai-gpt", "bert", "bert-generation", "electra",
        "megatron-bert", "ernie", "albert", "roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm",
        "camembert", "data2vec-text", "ibert", "big_bird", "convbert", "fnet", "layoutlm", "rembert",
        "splinter", "squeezebert", "visual_bert", "dpr", "nystromformer", "distilbert", "xlm", "flaubert",
        "opt", "biogpt", "bart",
        "mbart", "plbart", "mvp", "blenderbot", "blenderbot-small", "deberta", "deberta-v2",
        "clip_text_model",
    )},
    "gpt_neo": (LEARNED, Unrotated("gpt_neo", {"attention_types": [[["global"], 1]]})),
    "lilt": (LEARNED, Unrotated("lilt", {"hidden_size": 48})),
    "mobilebert": (LEARNED, Unrotated("mobilebert", {"intra_bottleneck_size": 32})),
    # compute_position_bias of its class has 32 buckets, whatever the config says.
    "mpnet": (LEARNED, Unrotated("mpnet", {"relative_attention_num_buckets": 32})),
    "prophetnet": (LEARNED, Unrotated("prophetnet", {"num_buckets": 12, "relative_max_distance": 21})),
    "trocr": (LEARNED, Unrotated("trocr", kind="TrOCRForCausalLM")),
    "roc_bert": (LEARNED, Unrotated("roc_bert", {"enable_pronunciation": False, "enable_shape": False})),
    "distilbert-sines": (SINES, Unrotated("distilbert", {"sinusoidal_pos_embds": True})),
    "marian": (SINES, Unrotated("marian")),
    "pegasus": (SINES, Unrotated("pegasus")),
    "ctrl": (SINES, Unrotated("ctrl")),
    "mpt": (ALIBI, Unrotated("mpt", kind="MptModel")),
}  # fmt: skip
# Types whose class runs at any length.
UNBOUNDED: dict[str, tuple[str, Unrotated]] = {
    **{name: (SINES, Unrotated(name)) for name in ("pegasus_x", "m2m_100", "nllb-moe", "fsmt", "xglm")},
    "trocr-sines": (SINES, Unrotated("trocr", {"use_learned_position_embeddings": False}, "TrOCRForCausalLM")),
    "bloom": (ALIBI, Unrotated("bloom")),
    **{name: (BIAS, Unrotated(name)) for name in ("t5", "mt5", "umt5", "switch_transformers", "longt5")},
    "pop2piano": (BIAS, Unrotated("pop2piano", kind="Pop2PianoForConditionalGeneration")),
    "deberta-relative": (VECTORS, Unrotated("deberta", {**_DEBERTA, "max_relative_positions": 9})),
    "deberta-v2-relative": (VECTORS, Unrotated("deberta-v2", {**_DEBERTA, "position_buckets": 7})),
    "xlnet": (VECTORS, Unrotated("xlnet", {"d_inner": 40})),
    "funnel": (
        VECTORS,
        Unrotated("funnel", {"block_sizes": [1], "num_hidden_layers": DROP, "d_inner": 40}, "FunnelModel"),
    ),
    **{name: (NONE, Unrotated(name)) for name in ("mamba", "falcon_mamba")},
    "jamba": (NONE, Unrotated("jamba", {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1})),
    "rwkv": (NONE, Unrotated("rwkv", {"attention_hidden_size": 32, "num_hidden_layers": 2})),
    "mamba2": (NONE, Unrotated("mamba2", {"num_heads": 8, "head_dim": 8, "n_groups": 2, "state_size": 8})),
}
TEXT = {**CEILING, **UNBOUNDED}
# Types whose layers mix neighbours by themselves, so that the order of tokens matters without any position.
MIXING = {
    **dict.fromkeys(("convbert", "nystromformer"), "a convolution"),
    **dict.fromkeys(("mamba", "falcon_mamba", "mamba2", "rwkv", "jamba"), "a recurrence"),
    "fnet": "a Fourier transform along the tokens",
    "mobilebert": "an input that joins each token with its neighbours",
    "longt5": "attention within blocks",
    "funnel": "pooling", "xlnet": "a mask",
}  # fmt: skip


def saved(entry: Unrotated, where: Path) -> tuple[Any, Inspection]:
    """A model of the class, and what inspect says of it on disk."""
    model = random_model(entry)
    model.save_pretrained(where)
    return model, inspect(where)


def run(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """The hidden states of the text at ``ids``: those of the encoder, of a model with two halves."""
    with torch.no_grad():
        if model.config.is_encoder_decoder:
            model(input_ids=ids, decoder_input_ids=ids)
            return model.get_encoder()(input_ids=ids)[0]
        return model(input_ids=ids)[0]


def tokens(length: int) -> torch.Tensor:
    return torch.randint(5, TOKENS - 5, (1, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("name", TEXT)
def test_a_text_model_is_named(name: str, tmp_path: Path) -> None:
    scheme, entry = TEXT[name]
    model, result = saved(entry, tmp_path)
    assert (result.scheme, result.pairing, result.model_type) == (scheme, None, entry.model_type)
    assert [w.code for w in result.warnings] == ["no-rope"], result.warnings
    assert {e.source for e in result.evidence} == {"config", "tensors"}
    for position in result.scheme_detail:
        assert position.sentence in result.warnings[0].message
        for number in ("positions", "rows", "buckets", "vectors"):
            if number in position.numbers and position.scheme in (LEARNED, BIAS, VECTORS):
                assert str(position.numbers[number]) in position.sentence
    own = dict(model.named_parameters())
    figures = result.evidence[-1].figures
    assert all(list(own[tensor].shape) == shape for tensor, shape in figures.items() if tensor in own)
    if scheme in (LEARNED, BIAS, VECTORS):
        assert figures


@pytest.mark.parametrize("name", CEILING)
def test_the_ceiling_is_where_the_class_fails(name: str, tmp_path: Path) -> None:
    model, result = saved(CEILING[name][1], tmp_path)
    ceiling = min(p.ceiling for p in result.scheme_detail if p.ceiling is not None)
    run(model, tokens(ceiling))
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        run(model, tokens(ceiling + 1))


@pytest.mark.parametrize("name", UNBOUNDED)
def test_no_ceiling_is_said_where_the_class_has_none(name: str, tmp_path: Path) -> None:
    model, result = saved(UNBOUNDED[name][1], tmp_path)
    assert run(model, tokens(FAR)).shape[1] in (FAR, FAR // 2 + 1)
    assert "a hard ceiling" not in result.warnings[0].message
    assert all(p.ceiling is None for p in result.scheme_detail)


def silenced(model: Any, names: set[str]) -> None:
    """Positions taken away: the tensors that the result names, and what the class computes and stores nowhere."""
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name in names or name.endswith("pos_encoding"):
                tensor.zero_()
    for module in model.modules():
        if "Sinusoidal" in type(module).__name__:
            module.register_forward_hook(lambda _module, _args, output: torch.zeros_like(output))


def last_after(model: Any, order: list[int]) -> torch.Tensor:
    """What the last token becomes, and the first, when those between are read in another order."""
    hidden = run(model, tokens(len(order))[:, order])
    return hidden[0, -1] if hidden.dim() == 3 else hidden[0]


@pytest.mark.parametrize("name", [name for name in TEXT if name not in MIXING])
def test_without_the_tensors_that_are_named_order_does_not_matter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, result = saved(TEXT[name][1], tmp_path)
    plain, other = list(range(12)), [0, 4, 2, 9, 1, 8, 3, 10, 5, 7, 6, 11]
    assert (last_after(model, plain) - last_after(model, other)).abs().max() > 1e-5
    names = set(result.evidence[-1].figures)
    every = {n for n in model.state_dict() if any(re.sub(r"\d+", "0", n) == re.sub(r"\d+", "0", f) for f in names)}
    silenced(model, every | _twins(model, every))
    for builder in ("_get_alibi_slopes", "build_mpt_alibi_tensor"):
        module = sys.modules[type(model).__module__]
        if hasattr(module, builder):
            own: Callable[..., Any] = getattr(module, builder)
            monkeypatch.setattr(module, builder, lambda *a, own=own, **k: torch.zeros_like(own(*a, **k)))
    assert (last_after(model, plain) - last_after(model, other)).abs().max() < 1e-5


def _twins(model: nn.Module, names: set[str]) -> set[str]:
    """The same table in the other half of an encoder-decoder: one name stands for both."""
    swapped = {n.replace("encoder.", "decoder.") for n in names} | {n.replace("decoder.", "encoder.") for n in names}
    return swapped & set(dict(model.named_parameters()))


# Types that are built, saved and named, and not run: what it has by part, and the numbers that its config asks for.
NAMED: dict[str, tuple[Unrotated, tuple[tuple[str, str, dict[str, int]], ...]]] = {
    "xlstm": (Unrotated("xlstm"), (("", NONE, {}),)),
    "canine": (Unrotated("canine", {"num_hash_buckets": 31}), (("", LEARNED, {"rows": 31, "positions": 31}),)),
    "cpmant": (
        Unrotated("cpmant", {"position_bias_num_buckets": 14, "position_bias_max_distance": 33, "segment_types": 3,
                             "prompt_length": 4}),
        (("", BIAS, {"buckets": 14, "max_distance": 33}),)),
    "led": (Unrotated("led"), (("encoder", LEARNED, {"rows": 24, "positions": 24}),
                               ("decoder", LEARNED, {"rows": 18, "positions": 18}))),
    "reformer": (
        Unrotated("reformer", {"is_decoder": False, "axial_pos_shape": [4, 7], "axial_pos_embds_dim": [12, 20],
                               "attn_layers": ["local"]}),
        (("", LEARNED, {"rows": 28, "positions": 28}),)),
    "whisper": (Unrotated("whisper", {"pad_token_id": 0}), (
        ("encoder", SINES, {"rows": 26, "positions": 26}), ("decoder", LEARNED, {"rows": 19, "positions": 19}))),
    "speech_to_text": (Unrotated("speech_to_text", {"conv_channels": 16}), (
        ("encoder", SINES, {"positions": 26}), ("decoder", SINES, {"positions": 19}))),
    "udop": (Unrotated("udop"), (("", BIAS, {"buckets": 12, "max_distance": 21}),)),
    "layoutlmv3": (
        Unrotated("layoutlmv3", {"input_size": 16, "rel_pos_bins": 14, "max_rel_pos": 33}),
        (("text", LEARNED, {"rows": 23, "positions": 21}), ("attention", BIAS, {"buckets": 14, "max_distance": 33}),
         ("image", LEARNED, {"rows": 17, "positions": 17}))),
    "wav2vec2-bert": (
        Unrotated("wav2vec2-bert", {"left_max_position_embeddings": 5, "right_max_position_embeddings": 3}),
        (("", VECTORS, {"vectors": 9, "clip": 5}),)),
    "wav2vec2": (Unrotated("wav2vec2", {"conv_dim": [8], "conv_kernel": [3], "conv_stride": [2],
                                        "num_feat_extract_layers": 1}), (("", NONE, {"kernel": 6}),)),
    "wavlm": (
        Unrotated("wavlm", {"conv_dim": [8], "conv_kernel": [3], "conv_stride": [2], "num_feat_extract_layers": 1,
                            "num_buckets": 14, "max_bucket_distance": 33}),
        (("attention", BIAS, {"buckets": 14, "max_distance": 33}), ("input", NONE, {"kernel": 6}))),
    "speecht5": (Unrotated("speecht5", {"encoder_max_relative_position": 9, "conv_dim": [8], "conv_kernel": [3],
                                        "conv_stride": [2]}), (("encoder", VECTORS, {"vectors": 18, "clip": 9}),)),
    "parakeet_encoder": (Unrotated("parakeet_encoder"), (("", VECTORS, {}),)),
    "vit": (Unrotated("vit"), (("", LEARNED, {"rows": 37, "positions": 37}),)),
    "deit": (Unrotated("deit"), (("", LEARNED, {"rows": 38, "positions": 38}),)),
    "dinov2": (Unrotated("dinov2"), (("", LEARNED, {"rows": 37, "positions": 37}),)),
    "ijepa": (Unrotated("ijepa"), (("", LEARNED, {"rows": 36, "positions": 36}),)),
    "beit": (Unrotated("beit"), (("", NONE, {}),)),
    "beit-relative": (Unrotated("beit", {"use_relative_position_bias": True}), (("", BIAS, {"rows": 124}),)),
    "swin": (Unrotated("swin", _SWIN), (("", BIAS, {"rows": 25}),)),
    "swinv2": (Unrotated("swinv2", _SWIN), (("", BIAS, {}),)),
    "clip": (Unrotated("clip"), (("text", LEARNED, {"rows": 23, "positions": 23}),
                                 ("vision", LEARNED, {"rows": 37, "positions": 37}))),
    "siglip": (Unrotated("siglip"), (("text", LEARNED, {"rows": 23, "positions": 23}),
                                     ("vision", LEARNED, {"rows": 36, "positions": 36}))),
    "blip-2": (Unrotated("blip-2"), (("text", LEARNED, {"rows": 25, "positions": 23}),
                                     ("vision", LEARNED, {"rows": 37, "positions": 37}))),
    "git": (Unrotated("git"), (("text", LEARNED, {"rows": 23, "positions": 23}),
                               ("vision", LEARNED, {"rows": 37}))),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_every_part_is_named_with_its_numbers(name: str, tmp_path: Path) -> None:
    entry, parts = NAMED[name]
    model, result = saved(entry, tmp_path)
    found = [(p.where, p.scheme, {k: v for k, v in p.numbers.items() if v is not None}) for p in result.scheme_detail]
    assert [(where, scheme) for where, scheme, _ in found] == [(where, scheme) for where, scheme, _ in parts]
    for (_, _, numbers), (_, _, wanted) in zip(found, parts, strict=True):
        assert wanted.items() <= numbers.items()
    assert [w.code for w in result.warnings] == ["no-rope"], result.warnings
    assert (result.scheme, result.pairing) == (parts[0][1], None)
    own = [list(tensor.shape) for tensor in model.state_dict().values()]
    assert all(shape in own for shape in result.evidence[-1].figures.values())  # some are saved under another name


def test_enough_types_are_built_and_named() -> None:
    assert (
        len({entry.model_type for _, entry in TEXT.values()} | {entry.model_type for entry, _ in NAMED.values()}) > 90
    )


# --- the witnesses against each other ---------------------------------------------------------------------------------


def edited(where: Path, **config: Any) -> Path:
    edit_json(where / "config.json", **config)
    return where


def with_tensors(where: Path, changes: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    tensors = load_file(where / "model.safetensors")
    changes(tensors)
    save_file(tensors, where / "model.safetensors", metadata={"format": "pt"})
    return where


def conflicts(where: Path, code: str = "scheme-conflict") -> list[str]:
    return [warning.message for warning in inspect(where).warnings if warning.code == code]


def test_a_table_of_another_length_than_the_config_says_is_told(tmp_path: Path) -> None:
    saved(Unrotated("gpt2"), tmp_path)
    assert conflicts(tmp_path) == []
    (message,) = conflicts(edited(tmp_path, n_positions=31))
    assert "config.json means 31 rows, and wpe.weight [23, 32] has 23" in message
    (position,) = inspect(tmp_path).scheme_detail
    assert position.numbers == {"rows": 23, "positions": 23}


def test_a_scheme_without_its_tensor_is_told(tmp_path: Path) -> None:
    saved(Unrotated("t5"), tmp_path)

    def removed(tensors: dict[str, torch.Tensor]) -> None:
        for name in [n for n in tensors if "relative_attention_bias" in n]:
            del tensors[name]

    (message,) = conflicts(with_tensors(tmp_path, removed))
    assert "say relative-bias, and no tensor of it is in the weights" in message


def test_tensors_of_another_scheme_are_told(tmp_path: Path) -> None:
    saved(Unrotated("bloom"), tmp_path)
    name = "h.0.self_attention.rotary_emb.inv_freq"
    (message,) = conflicts(with_tensors(tmp_path, lambda t: t.update({name: torch.ones(4)})))
    assert name in message
    table = "embed_positions.weight"
    messages = conflicts(with_tensors(tmp_path, lambda t: t.update({table: torch.ones(9, 32)})))
    assert any(f"say alibi, and the weights hold {table} [9, 32]: learned" in message for message in messages)


def test_a_table_that_should_be_sinusoids_is_read(tmp_path: Path) -> None:
    saved(Unrotated("marian"), tmp_path)
    assert conflicts(tmp_path) == []
    name = "encoder.embed_positions.weight"

    def learned_instead(tensors: dict[str, torch.Tensor]) -> None:
        for table in [n for n in tensors if n.endswith("embed_positions.weight")]:
            tensors[table] = 0.02 * torch.randn(tensors[table].shape)

    messages = conflicts(with_tensors(tmp_path, learned_instead))
    assert messages
    assert "no sinusoids" in messages[0]
    assert name.split(".", 1)[1] in messages[0]


@pytest.mark.parametrize("kind", ["relative_key", "relative_key_query"])
def test_distances_that_transformers_5_forgot_are_told(kind: str, tmp_path: Path) -> None:
    """transformers 4.57 (modeling_bert.py) makes ``distance_embedding`` of 2 x 23 - 1 vectors; 5.24 reads no key."""
    saved(Unrotated("bert"), tmp_path)
    edited(tmp_path, position_embedding_type=kind)
    (message,) = conflicts(tmp_path)
    assert "say relative-vectors, and no tensor of it is in the weights" in message
    name = "encoder.layer.0.attention.self.distance_embedding.weight"
    with_tensors(tmp_path, lambda t: t.update({name: torch.ones(45, 8)}))
    assert conflicts(tmp_path) == []
    result = inspect(tmp_path)
    assert (result.scheme, result.scheme_detail[0].numbers) == (VECTORS, {"vectors": 45, "positions": 23})
    assert "a hard ceiling at 23 tokens" in result.warnings[0].message
    assert result.evidence[0].detail.startswith("transformers 4.57.6, models/bert/modeling_bert.py")
    (message,) = conflicts(tmp_path, "scheme-not-read")
    assert f"position_embedding_type is '{kind}'" in message
    assert any(name in message for message in conflicts(edited(tmp_path, position_embedding_type="absolute")))


def test_an_mpt_that_asks_for_no_alibi_is_told(tmp_path: Path) -> None:
    model, _ = saved(Unrotated("mpt", kind="MptModel"), tmp_path)
    assert conflicts(tmp_path, "scheme-not-read") == []
    attention = {**model.config.attn_config.to_dict(), "alibi": False}
    (message,) = conflicts(edited(tmp_path, attn_config=attention), "scheme-not-read")
    assert "attn_config.alibi is False, and the class of transformers has alibi" in message


# --- types that nobody knows ------------------------------------------------------------------------------------------

PLAIN = {"hidden.weight": torch.ones(4, 4)}
SINE_TABLE = torch.cat([f(torch.arange(30.0)[:, None] / 50.0 ** torch.arange(8.0)) for f in (torch.sin, torch.cos)], -1)
BY_TENSORS: dict[str, tuple[dict[str, torch.Tensor], str, str]] = {
    "wpe": ({"transformer.wpe.weight": torch.randn(31, 16)}, LEARNED, "a hard ceiling"),
    "sines": ({"encoder.embed_positions.weight": SINE_TABLE}, SINES, "30 rows"),
    "buckets": ({"layers.0.relative_attention_bias.weight": torch.ones(14, 4)}, BIAS, "14 buckets"),
    "window": ({"layers.0.relative_position_bias_table": torch.ones(25, 4)}, BIAS, "25 rows"),
    "distances": ({"a.distance_embedding.weight": torch.ones(45, 8)}, VECTORS, "45 vectors"),
    "deberta": ({"encoder.rel_embeddings.weight": torch.ones(18, 8)}, VECTORS, "18 vectors"),
    "transformer-xl": ({"layers.0.r_r_bias": torch.ones(4, 8)}, VECTORS, "Transformer-XL"),
}  # fmt: skip


def unknown(where: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    (where / "config.json").write_text(json.dumps({"model_type": "plainformer", **config}), encoding="utf-8")
    save_file({**PLAIN, **tensors}, where / "model.safetensors")
    return where


@pytest.mark.parametrize("name", BY_TENSORS)
def test_a_type_that_nobody_knows_is_named_by_its_tensors(name: str, tmp_path: Path) -> None:
    tensors, scheme, said = BY_TENSORS[name]
    result = inspect(unknown(tmp_path, tensors))
    assert (result.scheme, result.pairing, result.model_type) == (scheme, None, "plainformer")
    assert [e.source for e in result.evidence] == ["tensors"]
    assert [w.code for w in result.warnings] == ["no-rope", "scheme-by-tensors"]
    assert said in result.warnings[0].message


@pytest.mark.parametrize(
    ("tensors", "config"),
    [
        ({}, {}),
        ({"vision_tower.embeddings.position_embedding.weight": torch.ones(9, 4)}, {}),
        ({"wpe.weight": torch.ones(9, 4), "layers.0.attn.inv_freq": torch.ones(4)}, {}),
        ({"wpe.weight": torch.ones(9, 4), "layers.0.rotary_emb.cos": torch.ones(4)}, {}),
        ({"wpe.weight": torch.ones(9, 4)}, {"rope_theta": 10000.0}),
        ({"wpe.weight": torch.ones(9, 4)}, {"text_config": {"model_type": "plainertext"}}),
    ],
    ids=["nothing", "a tower's", "frequencies", "a rotary table", "a key of RoPE", "parts"],
)
def test_where_tensors_do_not_tell_a_type_stays_unknown(tensors: Any, config: Any, tmp_path: Path) -> None:
    with pytest.raises(UnknownFamilyError, match="plainformer"):
        inspect(unknown(tmp_path, tensors, **config))
