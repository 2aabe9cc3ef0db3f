"""The run-time properties hold of every class, but for what its row says; and each check sees the fault it is for."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

from ropetool import extend
from ropetool.checkpoint.config import Style
from ropetool.families.cannot import CACHED, DEFINITION, LIVE, NORMS, NOT_ROUNDED, RELATIVE, V
from ropetool.families.methods import Method, Weights
from ropetool.families.reading import Reading, read_model
from ropetool.families.table import TABLE
from ropetool.models import cached, tiny, tiny_composites
from ropetool.models.cached import cached_decoding, pieces
from ropetool.models.catalog import known, quiet
from ropetool.models.load import Runner
from ropetool.models.logits import rounding
from ropetool.models.options import DType
from ropetool.models.properties import OBSERVED, observed_checks, relative_position
from ropetool.models.run import logits
from ropetool.models.seams import EAGER
from tests.models import live
from tests.models.test_extended import OWN_VALUES
from tests.models.test_table import MIDDLE_TWICE, ROUGH

pytestmark = pytest.mark.oldest

VERSION_4 = version("transformers").startswith("4.")
ALL = {*OBSERVED, RELATIVE, CACHED}
# In transformers 4.57: Evolla's config names another type, and the state of RecurrentGemma stays for the next batch.
NOT_IN_4 = {*OWN_VALUES, "evolla", "recurrent_gemma"} if VERSION_4 else set()
TYPES = tuple(model_type for model_type in sorted(TABLE) if known(model_type) and model_type not in NOT_IN_4)
TOKENS = 48
# Some classes attend by a choice that rounding can turn, or have a window in their cache that their mask has not: both
# only where there are more tokens than these.
CHOOSING = (
    "axk2", "deepseek_v32", "deepseek_v4", "dots3_note_text", "glm_moe_dsa", "hy_v4", "hy_v4_vl_text",
    "mistral_large4_text",
)  # fmt: skip
WINDOW_IN_CACHE_ALONE = (
    "kyutai_speech_to_text", "moshi", "qwen3_omni_moe_talker_text", "qwen3_omni_moe_text", "qwen3_vl_moe_text",
    "unlimited_ocr_text", *(["phimoe"] if VERSION_4 else []),
)  # fmt: skip
LONGER: dict[str, dict[str, Any]] = {
    **{model_type: {"index_topk": 64} for model_type in CHOOSING},
    **{model_type: {"sliding_window": 64} for model_type in WINDOW_IN_CACHE_ALONE},
    **MIDDLE_TWICE,
    "minimax_m3_vl_text": {"index_topk_blocks": 32},
}  # fmt: skip
# What is seen to differ beyond its window or choice, however its tiny weights turn out.
PARTING = sorted({*WINDOW_IN_CACHE_ALONE, "deepseek_v32", "hy_v4", "hy_v4_vl_text"} - {"unlimited_ocr_text"})


@dataclass
class Subject:
    """A model whose positions matter, what its config says, tokens, and the bound for its logits."""

    runner: Runner
    reading: Reading
    ids: torch.Tensor
    allowed: float

    def checks(self) -> dict[str, Any]:
        """Every check, by name."""
        found = [
            *observed_checks(self.runner, self.reading),
            relative_position(self.runner, self.ids, self.reading, self.allowed),
            cached_decoding(self.runner, self.ids, self.reading, self.allowed),
        ]
        return {check.name: check for check in found}

    def failed(self) -> dict[str, str | None]:
        """The checks that fail, each with its culprit."""
        return {name: check.where for name, check in self.checks().items() if not check.passed}


def is_attention(name: str) -> bool:
    inside = re.search(r"attn|attention|temporal_block|mixer|shared_transformer|layers\.\d+\.linear\.", name)
    return inside is not None and "norm" not in name.rpartition(".")[0].rpartition(".")[2]


def made_to_matter(model: Any) -> Any:
    """Attention of unit gain, so that positions matter; nothing is the same in all slots, which would hide faults."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and is_attention(name) and parameter.std():
                parameter.div_(parameter.std() * parameter.shape[-1] ** 0.5)
            elif parameter.numel() > 1 and not parameter.std():
                parameter.mul_(0.7 + 0.6 * torch.rand(parameter.shape, generator=generator))
    return model.eval()


def subject_of(model: Any, directory: Path, tokens: int = TOKENS) -> Subject:
    model.config.save_pretrained(directory)
    reading = read_model(json.loads((directory / "config.json").read_text("utf-8")))
    runner = Runner(model, torch.device("cpu"))
    ids = torch.randint(2, 60, (tokens,), generator=torch.Generator().manual_seed(5))
    layers = reading.config.get("num_hidden_layers") or reading.config.get("n_layer") or 1
    allowed = rounding(logits(runner, ids), DType.FLOAT32, layers)
    return Subject(runner, reading, ids, allowed)


def built(model_type: str, directory: Path, **overrides: Any) -> Subject:
    values = {**LONGER.get(model_type, {}), **overrides, "attn_implementation": EAGER}
    model = made_to_matter(tiny.build(model_type, **values).model)
    return subject_of(model.double() if model_type in ROUGH else model, directory)


# --- the table ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", TYPES)
def test_every_class_has_the_properties_but_for_what_its_row_says(model_type, tmp_path):
    """Without its lines a row is measured like any other: what a line takes out must fail, and nothing else may."""
    subject = built(model_type, tmp_path)
    major = int(version("transformers").split(".")[0])
    said = {name for line in subject.reading.family.cannot if line.major in (0, major) for name in line.checks}
    subject.reading = replace(subject.reading, family=replace(subject.reading.family, cannot=()))
    checks = subject.checks()
    assert checks.keys() == ALL
    assert {name for name, check in checks.items() if not check.passed} == said, checks
    unmeasured = [check for check in checks.values() if check.detail.startswith("cannot")]
    assert all("it looks ahead" in check.detail for check in unmeasured)  # that was seen


def test_what_a_row_takes_out_passes_with_its_reason(tmp_path):
    """Every check, of a class that has none of the properties: as they say, or as they stand in transformers 4."""
    checks = built("esm" if VERSION_4 else "clvp_encoder", tmp_path).checks()
    assert all(check.passed and check.detail.startswith("cannot, by the class: ") for check in checks.values())


@pytest.mark.skipif(VERSION_4, reason="there, classes of transformers 4 are measured, and some lines are of 5 alone")
@pytest.mark.parametrize("model_type", PARTING)
def test_a_cache_is_asked_within_windows_and_choices_only(model_type, tmp_path, monkeypatch):
    """Past them these classes' caches differ from one pass, whatever RoPE does; so none is in the list for nothing."""
    short = {"sliding_window": 16} if "sliding_window" in LONGER[model_type] else {"index_topk": 4}
    subject = built(model_type, tmp_path, **short)
    assert CACHED not in subject.failed()
    monkeypatch.setattr(cached, "windows_of", lambda model: [])
    assert CACHED in subject.failed()


def test_a_prefill_that_differs_is_not_taken_for_looking_ahead(tmp_path, monkeypatch):
    """The first tokens alone give other logits with a cache than without one."""
    subject = built("llama", tmp_path)
    right = subject.runner.model.forward

    def spoiled(*arguments, use_cache=False, **options):
        output = right(*arguments, use_cache=use_cache, **options)
        output.logits = output.logits.roll(1, dims=1) if use_cache else output.logits
        return output

    monkeypatch.setattr(subject.runner.model, "forward", spoiled)
    assert subject.failed() == {CACHED: "token 0"}


@pytest.mark.skipif(VERSION_4, reason="tiny_composites builds what transformers 5 has")
@pytest.mark.parametrize("model_type", ["paligemma", "gemma3", "glm4v", "llava", "qwen2_5_vl", "mistral3", "qwen3_vl"])
def test_a_multimodal_model_has_them_on_text(model_type, tmp_path):
    """PaliGemma counts positions from 1, the mRoPE classes make three axes of them."""
    model = made_to_matter(tiny_composites.build(model_type))
    model.set_attn_implementation(EAGER)
    assert not subject_of(model, tmp_path).failed()


# --- methods --------------------------------------------------------------------------------------------------------

TRAINED, FACTOR = 64, 4.0
EXTENDED = [
    ("llama", Method.YARN), ("llama", Method.LLAMA3), ("llama", Method.DYNAMIC), ("llama", Method.LONGROPE),
    ("phi3", Method.LONGROPE), ("glm4", Method.YARN), ("gpt_neox", Method.DYNAMIC), ("deepseek_v3", Method.YARN),
    ("gemma3_text", Method.YARN), ("qwen3", Method.YARN), ("nanochat", Method.YARN), ("falcon", Method.DYNAMIC),
    ("qwen2_vl_text", Method.DYNAMIC), ("longcat_flash", Method.LINEAR),
    *([] if VERSION_4 else [("modernbert", Method.YARN)]),  # its row takes the rotation out there
]  # fmt: skip


def extended(model_type: str, method: Method, directory: Path, trained: int = TRAINED, tokens: int = TOKENS) -> Subject:
    """A model of an extended config."""
    source, target = directory / "source", directory / "target"
    tiny.build(model_type, max_position_embeddings=trained).config.save_pretrained(source)
    pairs = read_model(json.loads((source / "config.json").read_text("utf-8"))).geometry.rotary_dim // 2
    lists = {"short_factor": [1.0 + 0.01 * i for i in range(pairs)], "long_factor": [1.0 + i for i in range(pairs)]}
    settings = lists if method is Method.LONGROPE else {}
    extend.apply(
        extend.plan(source, target, method, factor=FACTOR, original=trained, settings=settings, style=Style.DUAL,
                    weights=Weights.NONE, replace_existing=True)
    )  # fmt: skip
    with quiet():
        model = live.model_of(live.load_config(target))
    tiny.randomise(model)
    subject = subject_of(made_to_matter(model), directory / "model", tokens)
    return replace(subject, reading=read_model(json.loads((target / "config.json").read_text("utf-8"))))


@pytest.mark.parametrize(("model_type", "method"), [pair for pair in EXTENDED if pair[0] in TYPES])
def test_an_extended_model_has_them_too(model_type, method, tmp_path):
    subject = extended(model_type, method, tmp_path)
    assert not subject.failed()
    assert subject.reading.rotations[0].scaling.name == method.value


@pytest.mark.parametrize("method", [Method.DYNAMIC, Method.LONGROPE])
def test_a_method_that_follows_the_length_is_kept_within_it(method, tmp_path):
    checks = extended("llama", method, tmp_path).checks()
    assert f"beyond it {method.value} cannot" in checks[CACHED].detail
    assert not checks[RELATIVE].detail.startswith("cannot")


@pytest.mark.parametrize("method", [Method.DYNAMIC, Method.LONGROPE])
def test_where_the_tokens_leave_no_room_it_cannot(method, tmp_path):
    checks = extended("llama", method, tmp_path, trained=4, tokens=12).checks()
    for name in (RELATIVE, CACHED):
        assert checks[name].passed
        assert checks[name].detail.startswith(f"cannot, by the method: {method.value}"), checks[name]


# --- faults ---------------------------------------------------------------------------------------------------------


def rounded(dtype: torch.dtype) -> Any:
    """The frequencies were cast to 16 bits and back."""

    def plant(model: Any, monkeypatch: Any) -> None:
        rotary = model.model.rotary_emb
        rotary.inv_freq = rotary.inv_freq.to(dtype).float()

    return plant


def factor_lost(model: Any, monkeypatch: Any) -> None:
    """The right frequencies, and cos and sin of length 1."""
    model.model.rotary_emb.attention_scaling = 1.0


def other_base_in_layer_1(model: Any, monkeypatch: Any) -> None:
    """One layer makes a table of its own."""

    def other(_module: Any, args: Any, kwargs: Any) -> Any:
        cos, sin = kwargs["position_embeddings"]
        return args, {**kwargs, "position_embeddings": (cos.flip(-1), sin.flip(-1))}

    model.model.layers[1].self_attn.register_forward_pre_hook(other, with_kwargs=True)


def local_scaled(model: Any, monkeypatch: Any) -> None:
    """The sliding layers turn as the full ones do."""
    rotary = model.model.rotary_emb
    if VERSION_4:
        model.model.rotary_emb_local.inv_freq = rotary.inv_freq
    else:
        rotary.sliding_attention_inv_freq = rotary.full_attention_inv_freq


def v_turned(model: Any, monkeypatch: Any) -> None:
    """v of the second layer is multiplied by cosines as well, from position 0 in every piece."""

    def turn(_module: Any, _args: Any, out: Any) -> Any:
        cos, _ = model.model.rotary_emb(out, torch.arange(out.shape[1])[None])
        return out * cos.repeat(1, 1, out.shape[-1] // cos.shape[-1])

    model.model.layers[1].self_attn.v_proj.register_forward_hook(turn)


def one_head_still(model: Any, monkeypatch: Any) -> None:
    """The first head of q does not turn in any layer."""
    from transformers.models.llama import modeling_llama

    turn = modeling_llama.apply_rotary_pos_emb

    def most(q: Any, k: Any, *args: Any, **kwargs: Any) -> Any:
        turned, k = turn(q, k, *args, **kwargs)
        return torch.cat((q[:, :1], turned[:, 1:]), dim=1), k

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", most)


def late_in_cache(model: Any, monkeypatch: Any) -> None:
    """Every piece after the first is taken one position too far on."""
    shift_positions(model, monkeypatch, lambda positions: positions + (positions[..., :1] > 0).long())


def piece_from_zero(model: Any, monkeypatch: Any) -> None:
    """Every piece begins at position 0."""
    shift_positions(model, monkeypatch, lambda positions: positions - positions[..., :1])


def positions_ignored(model: Any, monkeypatch: Any) -> None:
    """Positions are counted, not taken."""
    shift_positions(model, monkeypatch, lambda positions: torch.arange(positions.shape[-1])[None].expand_as(positions))


def k_stands_still(model: Any, monkeypatch: Any) -> None:
    """k is not rotated."""
    from transformers.models.llama import modeling_llama

    turn = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, *a, **kw: (turn(q, k, *a, **kw)[0], k))


def follows_no_length(model: Any, monkeypatch: Any) -> None:
    """The frequencies of dynamic or longrope stay as they are at first."""
    model.model.rotary_emb.rope_type = "default"


def shift_positions(model: Any, monkeypatch: Any, change: Any) -> None:
    rotary = model.model.rotary_emb
    forward = rotary.forward
    monkeypatch.setattr(rotary, "forward", lambda x, position_ids: forward(x, change(position_ids)))


LAYER_0, LAYER_1 = "model.layers.0.self_attn", "model.layers.1.self_attn"
FAULTS = [
    ("llama", None, rounded(torch.bfloat16), {LIVE: LAYER_0, NOT_ROUNDED: LAYER_0, DEFINITION: LAYER_0}),
    ("llama", None, rounded(torch.float16), {LIVE: LAYER_0, NOT_ROUNDED: LAYER_0, DEFINITION: LAYER_0}),
    ("llama", Method.YARN, factor_lost, {LIVE: LAYER_0, NORMS: LAYER_0, DEFINITION: LAYER_0}),
    ("llama", None, other_base_in_layer_1, {LIVE: LAYER_1, NOT_ROUNDED: LAYER_1, DEFINITION: LAYER_1}),
    ("gemma3_text", Method.LINEAR, local_scaled, {LIVE: LAYER_0, DEFINITION: LAYER_0}),
    ("llama", None, v_turned, {V: LAYER_1, CACHED: "token 24"}),
    ("llama", None, one_head_still, {DEFINITION: LAYER_0, RELATIVE: "token 1"}),
    ("llama", None, k_stands_still, {DEFINITION: LAYER_0, RELATIVE: "token 1"}),
    ("llama", None, late_in_cache, {CACHED: "token 24"}),
    ("llama", None, piece_from_zero, {CACHED: "token 24"}),
    ("llama", None, positions_ignored, {CACHED: "token 24", RELATIVE: "position_ids"}),
    ("llama", Method.DYNAMIC, follows_no_length, {LIVE: LAYER_0}),
    ("llama", Method.LONGROPE, follows_no_length, {LIVE: LAYER_0}),
]  # fmt: skip


@pytest.mark.parametrize(("model_type", "method", "plant", "seen"), FAULTS)
def test_a_fault_is_seen_by_its_own_check_and_named(model_type, method, plant, seen, tmp_path, monkeypatch):
    subject = extended(model_type, method, tmp_path) if method else built(model_type, tmp_path)
    assert not subject.failed()
    plant(subject.runner.model, monkeypatch)
    assert subject.failed() == seen


def test_frequencies_that_fit_in_16_bits_are_no_alarm(tmp_path):
    """A base of 2^16 over 8 pairs: every frequency is a power of a quarter."""
    base = {"rope_theta": 2.0**16}
    subject = built("llama", tmp_path, **base if VERSION_4 else {"rope_parameters": {"rope_type": "default", **base}})
    inv_freq = subject.runner.model.model.rotary_emb.inv_freq
    assert torch.equal(inv_freq, inv_freq.bfloat16().float())
    assert not subject.failed()


def test_a_model_whose_positions_hardly_matter_is_no_alarm(tmp_path):
    """With small scores attention is nearly uniform, as in a model that was not trained."""
    model = tiny.build("llama", attn_implementation=EAGER).model
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.q_proj.weight.mul_(0.01)
    subject = subject_of(model, tmp_path)
    checks = subject.checks()
    assert all(check.passed for check in checks.values())
    assert "too little to prove much" in checks[RELATIVE].detail


def test_a_class_that_no_row_speaks_for_does_not_fail_by_its_own_ways(tmp_path):
    subject = built("t5gemma2_decoder" if not VERSION_4 else "esm", tmp_path)
    subject.reading = replace(subject.reading, family=replace(subject.reading.family, cannot=(), probed=True))
    check = subject.checks()[RELATIVE]
    assert check.passed
    assert check.detail.startswith("cannot be told, as the class is not in the family table: ")


@pytest.mark.parametrize("tokens", range(6, 50))
def test_pieces_are_all_tokens_in_order(tokens):
    cut = list(pieces(tokens))
    assert [i for piece in cut for i in range(tokens)[piece]] == list(range(tokens))
    assert [len(range(tokens)[piece]) for piece in cut][-2:] == [1, 1]
    assert len(range(tokens)[cut[1]]) > 0
