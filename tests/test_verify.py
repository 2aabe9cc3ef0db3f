"""verify: passes every sound conversion of the table, and fails for each fault that is planted here."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool import convert, extend, verify
from ropetool.errors import CheckpointError, UsageError
from ropetool.families import plan
from ropetool.families.methods import EXTENDING, Weights
from ropetool.models.logits import compare_logits, derived_tolerance, on_disk, rounding, spread
from ropetool.models.options import Device, DType
from ropetool.models.passes import by_reference
from ropetool.models.rotary import rotate_pairs
from ropetool.models.tiny import build
from ropetool.rope import pairing
from ropetool.rope.layout import Pairing
from tests import tiny


def converted(source, destination, **options):
    """``source`` in the layout that it does not have."""
    reading = tiny.read_json(source / "config.json").get("ropetool", {}).get("pairing")
    stock = verify._side(source).reading.pairing
    convert.apply(convert.plan(source, destination, Pairing(reading or stock).other), **options)
    return destination


def rewrite(directory, change):
    """Change the tensors of a single-file checkpoint in place."""
    file = directory / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def failed(result):
    return {check.name for check in result.checks if not check.passed}


@pytest.mark.parametrize("name", list(tiny.TINY))
def test_a_sound_conversion_passes_in_every_family(name, checkpoint, tmp_path):
    source = checkpoint(name)
    result = verify.verify(source, converted(source, tmp_path / "out"))
    assert result.passed, result.checks
    assert result.relation == "converted"
    assert result.tokens == tiny.LENGTH
    assert result.relative_diff < 1e-4
    assert result.control["failed_as_it_must"]
    assert result.control["max_abs_diff"] > 1000 * result.max_abs_diff


def test_both_directions_pass(checkpoint, tmp_path):
    source = checkpoint("llama")
    assert verify.verify(converted(source, tmp_path / "out"), source).passed


@pytest.fixture
def fresh_maps():
    """A planted map is neither hidden by the maps that the plan keeps, nor left among them."""
    plan._permutation.cache_clear()
    yield
    plan._permutation.cache_clear()


@pytest.mark.usefixtures("fresh_maps")
def test_a_wrong_permutation_in_the_map_itself_is_seen(checkpoint, tmp_path, monkeypatch):
    """Plan and files agree on the wrong map, so only the rotation from the definition can see it."""
    right = pairing.rotary_index_map
    monkeypatch.setattr(pairing, "rotary_index_map", lambda width, source, target: right(width, target, source))
    source = checkpoint("llama")
    result = verify.verify(source, converted(source, tmp_path / "out"))
    assert failed(result) == {"logits"}


@pytest.mark.usefixtures("fresh_maps")
def test_a_map_that_uses_half_the_head_is_seen(checkpoint, tmp_path, monkeypatch):
    def too_narrow(width, source, target):
        index = pairing.np.arange(width)
        index[: width // 2] = right(width // 2, source, target)
        return index

    right = pairing.rotary_index_map
    monkeypatch.setattr(pairing, "rotary_index_map", too_narrow)
    source = checkpoint("llama")
    assert failed(verify.verify(source, converted(source, tmp_path / "out"))) == {"logits"}


FAULTS = {
    "k-not-permuted": ("layers.0.self_attn.k_proj.weight", "source"),
    "q-not-permuted": ("layers.1.self_attn.q_proj.weight", "source"),
    "bias-not-permuted": ("layers.0.self_attn.q_proj.bias", "source"),
    "v-permuted": ("layers.0.self_attn.v_proj.weight", "rolled"),
    "mlp-changed": ("layers.1.mlp.up_proj.weight", "rolled"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen_and_named(fault, checkpoint, tmp_path):
    tensor, how = FAULTS[fault]
    source, out = checkpoint("llama"), tmp_path / "out"
    converted(source, out)
    original = load_file(source / "model.safetensors")

    def plant(tensors):
        name = f"model.{tensor}"
        tensors[name] = original[name].clone() if how == "source" else tensors[name].roll(1, 0).contiguous()

    rewrite(out, plant)
    result = verify.verify(source, out)
    assert not result.passed
    assert "logits" in failed(result)
    culprit = next(check.detail for check in result.checks if not check.passed)
    assert tensor in culprit


@pytest.mark.parametrize("name", ["qwen3", "olmo2", "cohere-qk-norm"])
def test_a_norm_left_alone_is_seen(name, checkpoint, tmp_path):
    source, out = checkpoint(name), tmp_path / "out"
    converted(source, out)
    original = load_file(source / "model.safetensors")
    rewrite(out, lambda tensors: tensors.update({k: original[k].clone() for k in tensors if "q_norm" in k}))
    assert {"tensors-moved", "logits"} <= failed(verify.verify(source, out))


@pytest.mark.parametrize("wrong", [0, 1])
def test_the_layer_at_which_two_models_part_is_named(wrong, checkpoint, tmp_path, monkeypatch):
    source, out = checkpoint("llama"), tmp_path / "out"
    converted(source, out)
    name = f"model.layers.{wrong}.self_attn.k_proj.weight"
    rewrite(out, lambda tensors: tensors[name].copy_(tensors[name].roll(2, 0)))
    result = verify.verify(source, out)
    (logits,) = (check for check in result.checks if check.name == "logits")
    assert logits.where == f"model.layers.{wrong}"
    assert f"they part at model.layers.{wrong}" in logits.detail


def test_wrong_key_heads_are_seen(checkpoint, tmp_path):
    """k permuted as if it had as many heads as q, each narrower: the known fault under grouped queries."""
    source, out = checkpoint("llama"), tmp_path / "out"
    converted(source, out)
    original = load_file(source / "model.safetensors")

    def plant(tensors):
        for name in [n for n in tensors if "k_proj" in n]:
            rows = original[name]
            heads = rows.reshape(8, 2, rows.shape[0] // 16, -1)
            tensors[name] = heads.transpose(1, 2).reshape(rows.shape).contiguous()

    rewrite(out, plant)
    assert {"tensors-moved", "logits"} <= failed(verify.verify(source, out))


def test_one_token_proves_nothing_and_is_said(checkpoint, tmp_path):
    source = checkpoint("llama")
    result = verify.verify(source, converted(source, tmp_path / "out"), tokens=1)
    assert "control" in failed(result)
    assert not result.control["failed_as_it_must"]


def test_logits_that_are_not_finite_fail(own):
    a = own("llama")
    b = shutil.copytree(a, a.with_name("other"))
    for directory in (a, b):
        rewrite(directory, lambda tensors: tensors["model.embed_tokens.weight"].fill_(float("nan")))
    assert "logits-finite" in failed(verify.verify(a, b))


def test_a_lost_base_is_seen(own, checkpoint, tmp_path):
    """The same weights, the base of the config changed: an extension by name, and another model by logits."""
    source, other = checkpoint("llama"), own("llama")
    block = tiny.read_json(other / "config.json")["rope_parameters"]
    tiny.edit_json(other / "config.json", rope_parameters={**block, "rope_theta": 500000.0})
    for pair in ((source, other), (other, source)):
        assert failed(verify.verify(*pair)) == {"extension"}


def test_an_extension_passes_and_its_live_frequencies_are_the_planned(checkpoint, tmp_path):
    source, out = checkpoint("llama"), tmp_path / "out"
    extend.apply(extend.plan(source, out, extend.Method.YARN, factor=4.0))
    result = verify.verify(source, out)
    assert result.passed, result.checks
    assert result.relation == "extended"
    assert {"frequencies-live", "frequencies-changed"} <= {check.name for check in result.checks}


def block_of(directory, **changes):
    """Change the rope block of an extended checkpoint, in both styles."""
    config = tiny.read_json(directory / "config.json")
    edited = {where: {**config[where], **changes} for where in ("rope_parameters", "rope_scaling")}
    tiny.edit_json(directory / "config.json", **edited)


NOT_AN_EXTENSION = {
    "factor-twice": lambda d: block_of(d, factor=16.0),
    "wrong-original-length": lambda d: block_of(d, original_max_position_embeddings=8),
    "attention-factor": lambda d: block_of(d, attention_factor=3.0),
    "length-not-raised": lambda d: tiny.edit_json(d / "config.json", max_position_embeddings=tiny.LENGTH),
    "base": lambda d: (block_of(d, rope_theta=20000.0), tiny.edit_json(d / "config.json", rope_theta=20000.0)),
    "block-lost": lambda d: tiny.edit_json(
        d / "config.json", "rope_scaling", rope_parameters={"rope_type": "default", "rope_theta": 10000.0}
    ),
}


@pytest.mark.parametrize("fault", NOT_AN_EXTENSION)
def test_a_rope_block_that_is_no_extension_of_the_source_fails(fault, checkpoint, tmp_path):
    """The weights are the same and the class obeys the config: only the two configs together tell."""
    source, out = checkpoint("llama"), tmp_path / "out"
    extend.apply(extend.plan(source, out, extend.Method.YARN, factor=4.0))
    NOT_AN_EXTENSION[fault](out)
    assert failed(verify.verify(source, out)) & {"extension", "frequencies-changed"}


@pytest.mark.parametrize("method", EXTENDING)
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "deepseek_v3"])
def test_every_method_makes_an_extension_by_this_rule(method, name, checkpoint, tmp_path):
    source, once, twice = checkpoint(name), tmp_path / "once", tmp_path / "twice"
    extend.apply(extend.plan(source, once, method, factor=2.0, settings=tiny.needed(source, method, 2.0)))
    extend.apply(extend.plan(once, twice, method, factor=4.0, settings=tiny.needed(source, method, 4.0)))
    for pair in ((source, once), (source, twice), (once, twice)):
        result = verify.verify(*pair)
        assert result.relation == "extended"
        assert result.passed, [check for check in result.checks if not check.passed]
    assert "extension" in failed(verify.verify(twice, source))


def test_an_adjusted_base_must_be_above_the_one_before(checkpoint, tmp_path):
    source, out = checkpoint("llama"), tmp_path / "out"
    extend.apply(extend.plan(source, out, extend.Method.ABF, factor=4.0, settings={"base": 5e5}))
    config = tiny.read_json(out / "config.json")
    block = {**config["rope_parameters"], "rope_theta": 5000.0}
    tiny.edit_json(out / "config.json", rope_theta=5000.0, rope_parameters=block)
    (found,) = (check for check in verify.verify(source, out).checks if check.name == "extension")
    assert not found.passed
    assert "the base is 5000, not above 10000" in found.detail


OTHER_MODELS = {
    "rms_norm_eps": {"rms_norm_eps": 0.1},
    "hidden_act": {"hidden_act": "gelu"},
    "layers": {"num_hidden_layers": 1},
    "class": {"model_type": "mistral", "sliding_window": 4},
    "window-out-of-reach": {"model_type": "mistral", "sliding_window": 60},
    "tied": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("key", OTHER_MODELS)
@pytest.mark.parametrize("extended", [False, True])
def test_a_config_that_means_another_model_fails(key, extended, own, checkpoint, tmp_path):
    """Also where no token of the sequence shows it, and where an extension changes the logits by design."""
    source, other = checkpoint("llama"), own("llama")
    if extended:
        other = tmp_path / "out"
        extend.apply(extend.plan(source, other, extend.Method.YARN, factor=4.0))
    tiny.edit_json(other / "config.json", **OTHER_MODELS[key])
    assert "configs" in failed(verify.verify(source, other, tokens=24))


def test_heads_that_differ_fail_without_a_forward_pass(own, checkpoint):
    other = own("llama")
    tiny.edit_json(other / "config.json", num_attention_heads=16, num_key_value_heads=4, head_dim=8)
    for pair in ((checkpoint("llama"), other), (other, checkpoint("llama"))):
        result = verify.verify(*pair)
        assert not result.passed
        assert result.tokens == 0
        assert "(query heads, key-value heads, head_dim)" in result.checks[0].detail


def test_a_saved_table_that_was_not_rewritten_fails(own, tmp_path):
    source, out = own("llama"), tmp_path / "out"
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(source, lambda tensors: tensors.update({name: 10000.0 ** (-torch.arange(0, 16, 2) / 16)}))
    extend.apply(extend.plan(source, out, extend.Method.YARN, factor=4.0))
    assert verify.verify(source, out).passed
    (out / "model.safetensors").unlink()
    shutil.copy(source / "model.safetensors", out / "model.safetensors")
    assert failed(verify.verify(source, out)) == {"saved-frequencies"}


def test_bfloat16_passes_what_is_exact_and_fails_what_is_not(checkpoint, tmp_path):
    source = checkpoint("llama")
    out = converted(source, tmp_path / "out")
    assert verify.verify(source, out, dtype=DType.BFLOAT16).passed
    original = load_file(source / "model.safetensors")
    rewrite(out, lambda tensors: tensors.update({k: original[k].clone() for k in tensors if "k_proj" in k}))
    assert "logits" in failed(verify.verify(source, out, dtype=DType.BFLOAT16))


def test_the_same_files_pass_even_where_no_position_matters(own):
    """A model fresh from initialisation: the control cannot fail, and every byte is the same."""
    quiet = own("llama")
    rewrite(quiet, lambda tensors: [t.zero_() for n, t in tensors.items() if "q_proj" in n])
    result = verify.verify(quiet, quiet)
    assert result.passed
    assert not result.control["failed_as_it_must"]


def test_layers_of_one_kind_alone_are_no_fault(tmp_path):
    """A Gemma 3 whose layers are all of one kind has frequencies for that kind only."""
    source = tmp_path / "gemma"
    config = build("gemma3_text").config.to_dict()
    config["layer_types"] = ["full_attention"] * config["num_hidden_layers"]
    build("gemma3_text", layer_types=config["layer_types"]).model.save_pretrained(source)
    assert verify.verify(source, source).passed


def test_an_extension_of_a_converted_checkpoint_is_held_against_its_source(checkpoint, tmp_path):
    """The stock class cannot run it, so its weights are compared under the frequencies of the source."""
    source, middle, out = checkpoint("llama"), tmp_path / "middle", tmp_path / "out"
    converted(source, middle)
    extend.apply(extend.plan(middle, out, extend.Method.YARN, factor=4.0, weights=Weights.COPY))
    result = verify.verify(source, out)
    assert result.passed, result.checks
    assert result.relation == "extended"
    original = load_file(source / "model.safetensors")
    rewrite(out, lambda tensors: tensors.update({k: original[k].clone() for k in tensors if "k_proj" in k}))
    assert {"tensors-moved", "logits"} <= failed(verify.verify(source, out))


def test_an_extension_that_the_class_ignores_fails(checkpoint, tmp_path, monkeypatch):
    """The live frequencies stay those of the source, as when a class never reads the block."""
    from ropetool.models import run

    source, out = checkpoint("llama"), tmp_path / "out"
    extend.apply(extend.plan(source, out, extend.Method.LINEAR, factor=4.0))
    real_load = run.load

    def load_without_extension(path, *arguments, **options):
        return real_load(source, *arguments, **options)

    monkeypatch.setattr(run, "load", load_without_extension)
    assert {"frequencies-live", "rotation-by-definition"} <= failed(verify.verify(source, out))


def test_live_frequencies_rounded_to_bfloat16_are_seen(checkpoint, tmp_path, monkeypatch):
    from ropetool.models import run
    from ropetool.models.tables import table_modules

    source = checkpoint("llama")
    out, real_load = converted(source, tmp_path / "out"), run.load

    def load_rounded(path, *arguments, **options):
        runner = real_load(path, *arguments, **options)
        for module in table_modules(runner.model).values():
            module.inv_freq = module.inv_freq.bfloat16().float()
        return runner

    monkeypatch.setattr(run, "load", load_rounded)
    assert "frequencies-live" in failed(verify.verify(source, out))


def test_a_lost_attention_factor_is_seen(checkpoint, tmp_path):
    """The frequencies are right and cos and sin are not scaled: only the logits can tell."""
    from ropetool.models import run
    from ropetool.models.tables import table_modules

    source, out = checkpoint("llama"), tmp_path / "out"
    extend.apply(extend.plan(source, out, extend.Method.YARN, factor=4.0))
    runner = run.load(out, torch.device("cpu"), DType.FLOAT32)
    ids = torch.arange(2, 60)
    right = run.logits(runner, ids)
    for module in table_modules(runner.model).values():
        module.attention_scaling = 1.0
    lost = run.logits(runner, ids)
    side = verify._side(out)
    reference = by_reference(runner, side, side, ids, side.reading.pairing)
    allowed = rounding(right, DType.FLOAT32, side.layer_count)
    assert compare_logits(right, reference).max_abs_diff <= allowed
    assert compare_logits(lost, reference).max_abs_diff > 100 * allowed


def test_float64_leaves_a_millionth_of_what_float32_does(checkpoint, tmp_path):
    """Angles are float32 in any dtype, on both sides alike; all else computes in what was asked for."""
    source = checkpoint("llama")
    out = converted(source, tmp_path / "out")
    single, double = (verify.verify(source, out, dtype=dtype) for dtype in (DType.FLOAT32, DType.FLOAT64))
    assert double.passed
    assert double.tolerance < single.tolerance
    assert double.max_abs_diff < 1e-6 * single.max_abs_diff


def test_a_doubt_that_float32_leaves_is_settled_in_float64(checkpoint, tmp_path):
    """Where only the logits fail, and by little; a person who asks for float32 gets it, and the advice."""
    source = checkpoint("llama")
    out = converted(source, tmp_path / "out")
    apart = verify.verify(source, out).max_abs_diff
    settled = verify.verify(source, out, tolerance=0.1 * apart)
    assert (settled.passed, settled.dtype) == (True, "float64")
    for within, hinted in ((0.1, True), (1e-3, False)):
        result = verify.verify(source, out, tolerance=within * apart, dtype=DType.FLOAT32)
        assert result.culprit.name == "logits"
        assert failed(result) == {"logits"}
        assert ("run again with --dtype float64" in result.culprit.detail) is hinted
    rewrite(out, lambda tensors: tensors["model.norm.weight"].mul_(1.0001))
    result = verify.verify(source, out, tolerance=1e-5)
    assert result.dtype == "float32"
    assert len(failed(result)) > 1
    assert not any("float64" in check.detail for check in result.checks)


def test_a_fault_stays_one_in_float64(checkpoint, tmp_path, monkeypatch):
    """A difference that only looks like rounding: the rotation makes q and k longer by a millionth."""
    from ropetool.models import rotary

    source = checkpoint("llama")
    out = converted(source, tmp_path / "out")
    right = rotary.rotate_pairs
    monkeypatch.setattr(rotary, "rotate_pairs", lambda *arguments: right(*arguments) * (1 + 1e-6))
    single = verify.verify(source, out, dtype=DType.FLOAT32)
    result = verify.verify(source, out, tolerance=0.5 * single.max_abs_diff)
    assert result.dtype == "float64"
    assert failed(result) == {"logits"}


def test_the_tolerance_follows_type_depth_tokens_and_control():
    table = torch.randn(40, 96, generator=torch.Generator().manual_seed(1)) * 2.5
    first = derived_tolerance(table, DType.FLOAT32, 2, 8.0)
    assert first.allowed == rounding(table, DType.FLOAT32, 2) < 1e-3
    assert derived_tolerance(table, DType.FLOAT32, 8, 8.0).allowed == pytest.approx(2 * first.allowed)
    assert derived_tolerance(table, DType.FLOAT64, 2, 8.0).allowed == pytest.approx(first.allowed / 4)
    assert derived_tolerance(table.repeat(30, 1), DType.FLOAT32, 2, 8.0).allowed > 2 * first.allowed
    near = derived_tolerance(table, DType.FLOAT32, 2, 1e-3)
    assert near.allowed == pytest.approx(1e-5)
    assert "a 100th of the distance of the wrong layout, 0.001; less than what float32 can round" in near.reason
    assert "what float32 can round over 2 layers, 40 positions and logits that spread by 2.5" in first.reason
    assert derived_tolerance(table, DType.FLOAT32, 2, 8.0, given=0.5).allowed == 0.5


def test_tables_on_disk_are_compared_as_tables_in_memory(tmp_path):
    """In pieces, with the last one short: against the plain formulas over the whole."""
    generator = torch.Generator().manual_seed(2)
    a, b = (torch.randn(150, 33, generator=generator) * 3 + 7 for _ in range(2))
    found = compare_logits(on_disk(a, tmp_path / "a"), on_disk(b, tmp_path / "b"))
    log_a, log_b = a.double().log_softmax(-1), b.double().log_softmax(-1)
    assert found.max_abs_diff == float((a.double() - b.double()).abs().max())
    assert found.mean_kl == pytest.approx(float((log_a.exp() * (log_a - log_b)).sum(-1).mean()))
    assert found.top1_agreement == pytest.approx(float((a.argmax(-1) == b.argmax(-1)).double().mean()))
    assert spread(a) == pytest.approx(float(a.double().std(correction=0)))
    assert found.by_position[-1]["to"] == 150
    a[149, 3] = float("inf")
    assert not compare_logits(on_disk(a, tmp_path / "c"), b).finite


def test_quick_compares_the_files_alone(checkpoint, own, tmp_path):
    source = checkpoint("llama")
    out = converted(source, tmp_path / "out")
    result = verify.verify_files(source, out)
    assert (result.passed, result.relation, result.tokens, result.device) == (True, "converted", 0, "none")
    assert {"tensors-kept", "tensors-moved", "configs"} <= {check.name for check in result.checks}
    extended = tmp_path / "extended"
    extend.apply(extend.plan(source, extended, extend.Method.YARN, factor=4.0))
    assert verify.verify_files(source, extended).passed
    NOT_AN_EXTENSION["factor-twice"](extended)
    assert failed(verify.verify_files(source, extended)) == {"extension"}
    tiny.edit_json(out / "config.json", rms_norm_eps=0.1)
    assert failed(verify.verify_files(source, out)) == {"configs"}
    tiny.edit_json(out / "config.json", "rms_norm_eps")
    (lost,) = (check for check in verify.verify_files(source, out).checks if not check.passed)
    assert "rms_norm_eps" in lost.detail
    assert "leave out --quick to ask the class" in lost.detail
    rewrite(out, lambda tensors: tensors["model.layers.1.self_attn.k_proj.weight"].neg_())
    assert "tensors-moved" in failed(verify.verify_files(source, out))


def test_a_checkpoint_that_lacks_a_weight_is_refused(own, checkpoint):
    broken = own("llama")
    rewrite(broken, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    result = verify.verify(checkpoint("llama"), broken)
    assert not result.passed
    assert "up_proj.weight is in the first checkpoint only" in result.checks[0].detail
    with pytest.raises(CheckpointError, match=r"lacks 1 weights .*up_proj"):
        verify.verify(broken, broken)


def test_a_text_of_one_token_is_refused(checkpoint, monkeypatch):
    from ropetool.models import text

    monkeypatch.setattr(text, "encode", lambda path, words: torch.tensor([1]))
    with pytest.raises(UsageError, match="fewer than two tokens"):
        verify.verify(checkpoint("llama"), checkpoint("llama"), text="x")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has the device whose absence is tested")
def test_a_device_that_is_not_there_is_refused(checkpoint):
    with pytest.raises(UsageError, match="sees none here"):
        verify.verify(checkpoint("llama"), checkpoint("llama"), device=Device.CUDA)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("name", list(tiny.TINY))
def test_conversion_parity_on_cuda(name, checkpoint, tmp_path):
    source = checkpoint(name)
    result = verify.verify(source, converted(source, tmp_path / "out"), device=Device.CUDA)
    assert result.passed, result.checks


def test_positions_are_reported_in_buckets_that_cover_all(checkpoint, tmp_path):
    source = checkpoint("llama")
    result = verify.verify(source, converted(source, tmp_path / "out"), tokens=50)
    edges = [(bucket["from"], bucket["to"]) for bucket in result.by_position]
    assert edges == [(0, 16), (16, 32), (32, 50)]


@pytest.mark.parametrize("layout", list(Pairing))
def test_the_reference_rotation_is_the_complex_product(layout):
    """Independent oracle: a pair (a, b) turned by t is (a + ib) e^(it)."""
    x, angles = torch.randn(3, 5, 8, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    turned = rotate_pairs(x, angles.cos(), angles.sin(), layout)
    first, second = (slice(0, 4), slice(4, 8)) if layout is Pairing.HALF else (slice(0, 8, 2), slice(1, 8, 2))
    product = torch.complex(x[..., first], x[..., second]) * torch.polar(torch.ones_like(angles), angles)
    assert torch.allclose(turned[..., first], product.real)
    assert torch.allclose(turned[..., second], product.imag)


def test_the_result_is_one_json_object(checkpoint, tmp_path, capsys):
    from ropetool.cli.app import run

    source = checkpoint("llama")
    out, kept = converted(source, tmp_path / "out"), tmp_path / "result.json"
    assert run(["verify", str(source), str(out), "--json", "--quiet", "--out", str(kept)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(kept.read_text())
    assert printed.keys() >= {
        *("passed", "relation", "device", "dtype", "tokens", "max_abs_diff", "relative_diff", "mean_kl"),
        *("top1_agreement", "tolerance", "by_position", "control", "checks"),
    }
    rewrite(out, lambda tensors: tensors["lm_head.weight"].neg_())
    assert run(["verify", str(source), str(out), "--json", "--quiet"]) == 1


def test_an_error_of_the_class_does_not_hide_what_the_files_show(own, checkpoint):
    """A base that is null makes the class raise when it is built; that the base was lost is known before."""
    source = own("llama")
    block = tiny.read_json(source / "config.json")["rope_parameters"]
    tiny.edit_json(source / "config.json", rope_parameters={**block, "rope_theta": 500000.0})
    other = shutil.copytree(source, source.with_name("other"))
    tiny.edit_json(other / "config.json", rope_parameters={**block, "rope_theta": None})
    result = verify.verify(source, other)
    assert not result.passed
    assert result.culprit.name == "extension"
    assert result.checks[-1].name == "forward-pass"
    assert result.tokens == 0


def test_an_error_of_the_class_alone_is_raised(checkpoint, monkeypatch):
    from ropetool.models import passes

    def fail(*_):
        raise ZeroDivisionError("by a stranger's config")

    monkeypatch.setattr(passes, "logits", fail)
    with pytest.raises(CheckpointError, match=r"cannot be run beside .*ZeroDivisionError: by a stranger's config"):
        verify.verify(checkpoint("llama"), checkpoint("llama"))


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_joined_experts_run_in_float64(name, tmp_path):
    """torch's kernel for them knows no float64; a doubt could not be settled otherwise."""
    build(name).model.save_pretrained(tmp_path / name)
    assert verify.verify(tmp_path / name, tmp_path / name, dtype=DType.FLOAT64).passed


@pytest.mark.parametrize("name", ["qwen3", "olmo2", "deepseek_v3", "llama-dynamic"])
def test_what_a_class_makes_in_float32_is_no_fault_in_float64(name, checkpoint, tmp_path):
    """Norms of q and k, and the angles of a method that follows the length, are float32 in any type."""
    source, out = checkpoint(name.partition("-")[0]), tmp_path / "out"
    if name.endswith("dynamic"):
        extend.apply(extend.plan(source, out, extend.Method.DYNAMIC, factor=4.0))
    else:
        converted(source, out)
    result = verify.verify(source, out, dtype=DType.FLOAT64)
    assert result.passed, result.culprit


def test_one_file_is_a_checkpoint(checkpoint, tmp_path):
    """By any name, with its config.json beside it; other weights in the directory do not count."""
    source, out = checkpoint("llama"), tmp_path / "out"
    converted(source, out)
    (out / "model.safetensors").rename(out / "mine.safetensors")
    shutil.copy(source / "model.safetensors", out / "model.safetensors")
    result = verify.verify(source / "model.safetensors", out / "mine.safetensors")
    assert result.passed, result.culprit
    assert result.relation == "converted"


def test_an_adapter_among_the_weights_is_not_added_in_silence(checkpoint, own):
    """transformers adds it to the model wherever PEFT is installed."""
    source, other = checkpoint("llama"), own("llama")
    tiny.edit_json(other / "config.json")
    (other / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x"}))
    save_file({"a.lora_A.weight": torch.ones(2, 2)}, other / "adapter_model.safetensors")
    assert verify.verify(source, other, quick=True).culprit.where == "adapter_config.json"
    assert verify.verify(source, other).culprit.where == "adapter_config.json"
    for pair in ((other, other), (other, source)):
        with pytest.raises(CheckpointError, match=r"an adapter lies among the weights .*adapter_config\.json"):
            verify.verify(*pair)


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_type_to_load_in_that_is_another_fails(key, checkpoint, own):
    """The bytes are the same, and whoever loads by config.json rounds them."""
    source, other = checkpoint("llama"), own("llama")
    tiny.edit_json(other / "config.json", "dtype", **{key: "bfloat16"})
    for quick in (False, True):
        (found,) = (check for check in verify.verify(source, other, quick=quick).checks if not check.passed)
        assert (found.name, found.where) == ("configs", "dtype")
        assert "float32" in found.detail
        assert "bfloat16" in found.detail


def test_attention_that_looks_ahead_cannot_be_decoded_with_a_cache(tmp_path):
    """Identical files pass, and the line says why (EmbeddingGemma, gte-Qwen2)."""
    build("gemma3_text", use_bidirectional_attention=True).model.save_pretrained(tmp_path / "a")
    result = verify.verify(tmp_path / "a", tmp_path / "a")
    assert result.passed, result.culprit
    (cached,) = (check for check in result.checks if check.name == "cached-decoding")
    assert "cannot, by the class: it looks ahead" in cached.detail


OTHER_CLASSES = {
    "architectures": {"architectures": ["LlamaModel"]},
    "auto_map": {"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}},
}


@pytest.mark.parametrize("key", OTHER_CLASSES)
def test_a_config_that_has_another_class_loaded_fails(key, checkpoint, own):
    other = own("llama")
    tiny.edit_json(other / "config.json", **OTHER_CLASSES[key])
    assert verify.verify(checkpoint("llama"), other, quick=True).culprit.where == key


def test_what_is_not_a_number_is_told_first(own, checkpoint):
    other = own("llama")
    rewrite(other, lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"].fill_(float("nan")))
    result = verify.verify(other, other)
    assert result.culprit.name == "logits-finite"
    assert result.culprit.where == "model.layers.1"
