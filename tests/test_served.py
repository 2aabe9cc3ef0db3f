"""A server that rotates as the checkpoint means passes; one that does not fails, and the mistake is named.

The servers compute with plain transformers, on copies of the bundled checkpoint that say something else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from ropetool import served
from ropetool.checkpoint.bundled import CHECKPOINT, bundled
from ropetool.errors import ServerAnswerError, UsageError
from ropetool.models import likelihood
from ropetool.served import Served, verify_served
from tests import serving
from tests.serving import FORMS, Fake
from tests.tiny import TINY

TOKENS = 128
THETA, TRAINED = 100_000.0, 256
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": TRAINED}
LINEAR = {"rope_type": "linear", "factor": 4.0}
PLAIN = {"rope_type": "default"}


def block(scaling: Mapping[str, Any], theta: float = THETA) -> dict[str, Any]:
    keys = {**scaling, "rope_theta": theta}
    return {"rope_parameters": keys, "rope_theta": theta, "rope_scaling": None}


@pytest.fixture(scope="module")
def variant(tmp_path_factory) -> Callable[..., Path]:
    """The bundled checkpoint with another rope block, made once."""
    directory, made = tmp_path_factory.mktemp("variants"), {}

    def build(scaling: Mapping[str, Any] = PLAIN, theta: float = THETA, change: Callable[[Path], None] | None = None):
        key = json.dumps([scaling, theta, change and change.__name__])
        if key not in made:
            path = directory / str(len(made))
            shutil.copytree(bundled(CHECKPOINT), path)
            config = json.loads((path / "config.json").read_text("utf-8"))
            length = (
                int(TRAINED * scaling.get("factor", 1)) if "original_max_position_embeddings" in scaling else TRAINED
            )
            text = json.dumps({**config, **block(scaling, theta), "max_position_embeddings": length})
            (path / "config.json").write_text(text, "utf-8")
            if change:
                change(path)
            made[key] = path
        return made[key]

    return build


def other_layout(path: Path) -> None:
    """In each head of q and k the even rows first: halves then turn as adjacent rows would have."""
    tensors = load_file(path / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight"))]:
        heads = tensors[name].unflatten(0, (-1, 32))
        tensors[name] = torch.cat((heads[:, 0::2], heads[:, 1::2]), 1).flatten(0, 1).contiguous()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def other_weights(path: Path) -> None:
    tensors = load_file(path / "model.safetensors")
    torch.manual_seed(0)
    changed = {
        name: t if t.dim() < 2 else torch.randn_like(t.float()).to(t) * t.float().std() for name, t in tensors.items()
    }
    save_file(changed, path / "model.safetensors", metadata={"format": "pt"})


def eight_bits(path: Path) -> None:
    """Every 32 values of a matrix in 8 bits with one scale."""
    tensors = load_file(path / "model.safetensors")
    for name in [name for name, tensor in tensors.items() if tensor.dim() == 2]:
        blocks = tensors[name].float().reshape(-1, 32)
        scale = blocks.abs().amax(1, keepdim=True).clamp_min(1e-12) / 127
        tensors[name] = ((blocks / scale).round() * scale).reshape(tensors[name].shape)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


def a_window(path: Path) -> None:
    """No rotation at all, but something that shows at later positions only."""
    config = json.loads((path / "config.json").read_text("utf-8"))
    changed = {**config, "model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 8}
    (path / "config.json").write_text(json.dumps(changed), "utf-8")


def compared(meant: Path, running: Path, form: str = "vllm", tokens: int = TOKENS, **options: Any) -> Served:
    fake = Fake(serving.transformers(running), AutoTokenizer.from_pretrained(meant), form, **options)
    with serving.serving(fake):
        return verify_served(meant, fake.url, tokens=tokens)


@pytest.mark.parametrize("form", FORMS)
def test_a_right_server_passes(form, variant) -> None:
    result = compared(variant(), variant(), form)
    assert result.found.passed, result.found.headline
    assert result.form == ("prompt" if form in ("vllm", "sglang") else "next")
    assert result.found.apart < served.FLOAT32_APART < result.found.control["apart"]
    assert all(fit.excluded for fit in result.found.fits)


# What the checkpoint means, what the server computes, and what the headline must name.
WRONG: Mapping[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "base": ({}, {"theta": 10_000.0}, "fit base 10000 "),
    "layout": ({}, {"change": other_layout}, "fit the other layout, interleaved "),
    "another base": ({}, {"theta": 1_000_000.0}, "fit base 1000000 "),
    "scaling lost": ({"scaling": YARN}, {}, "fit no scaling "),
    "linear instead": ({"scaling": YARN}, {"scaling": LINEAR}, "fit linear scaling by the same factor "),
    "factor twice": ({"scaling": LINEAR}, {"scaling": {**LINEAR, "factor": 16.0}}, "fit the factor applied twice "),
    "attention factor": ({"scaling": YARN}, {"scaling": {**YARN, "attention_factor": 1.0}}, "fit no attention factor "),
    "trained length": (
        {"scaling": YARN}, {"scaling": {**YARN, "original_max_position_embeddings": 4 * TRAINED}},
        "fit max_position_embeddings taken for the trained length ",
    ),
    "a scaling told by hand": ({}, {"scaling": {**LINEAR, "factor": 2.0}}, "fit linear scaling by 2 "),
}  # fmt: skip


@pytest.mark.parametrize("form", ["vllm", "llama.cpp"])
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_server_fails_and_its_mistake_is_named(mistake, form, variant) -> None:
    meant, runs, said = WRONG[mistake]
    result = compared(variant(**meant), variant(**runs), form)
    assert not result.found.passed
    assert said in result.found.headline, result.found.headline
    (found,) = [check for check in result.found.checks if not check.passed and check.name.startswith("not: ")]
    assert found.name.removeprefix("not: ") in said
    best = min(result.found.fits, key=lambda fit: fit.apart)
    assert best.apart < served.FLOAT32_APART < result.found.tolerance < result.found.apart


def test_engines_that_read_the_config_so_are_named(variant, tmp_path) -> None:
    """config.json in the style of transformers 5 alone: older readers take the base of the class."""
    path = tmp_path / "v5"
    shutil.copytree(variant(), path)
    config = json.loads((path / "config.json").read_text("utf-8"))
    del config["rope_theta"], config["rope_scaling"]
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    result = compared(path, variant(theta=10_000.0))
    assert "fit base 10000 " in result.found.headline
    assert "mlx-lm" in result.found.headline
    assert (
        next(check.where for check in result.found.checks if check.name == "not: base 10000")
        == "rope_parameters.rope_theta"
    )


def test_a_right_server_in_eight_bits_passes_and_a_wrong_one_fails(variant) -> None:
    right = compared(variant(), variant(change=eight_bits))
    assert right.found.passed, right.found.headline
    assert right.found.single_tokens_apart > served.FLOAT32_APART
    wrong = compared(variant(), variant(theta=10_000.0, change=eight_bits))
    assert not wrong.found.passed
    assert "base 10000" in wrong.found.headline


def test_other_weights_are_told_from_a_wrong_rotation(variant) -> None:
    result = compared(variant(), variant(change=other_weights))
    assert not result.found.passed
    assert result.found.headline.startswith("nothing is proven: after a single token, which no rotation touches")
    assert "serves other weights" in result.found.headline
    assert next(check for check in result.found.checks if check.name == "single-tokens").where == "weights"


def test_what_no_mistake_explains_is_said_so(variant) -> None:
    result = compared(variant(), variant(change=a_window))
    assert not result.found.passed
    assert "fit none of" in result.found.headline


@pytest.mark.parametrize("name", TINY)
def test_every_kind_of_model_is_compared(name, checkpoint) -> None:
    """Fused, partial and latent projections, both layouts; without a tokenizer, on random tokens."""
    fake = Fake(serving.transformers(checkpoint(name)), None)
    with serving.serving(fake):
        result = verify_served(checkpoint(name), fake.url)
    assert result.found.passed, result.found.headline
    assert result.found.apart < served.FLOAT32_APART
    assert any(fit.excluded for fit in result.found.fits)


def test_a_class_that_does_not_turn_by_its_config_proves_nothing(variant, monkeypatch) -> None:
    load = likelihood.load

    def load_and_spoil(*args: Any, **options: Any) -> Any:
        runner = load(*args, **options)
        runner.model.model.rotary_emb.inv_freq.mul_(1.5)
        return runner

    monkeypatch.setattr(likelihood, "load", load_and_spoil)
    result = compared(variant(), variant())
    assert not result.found.passed
    assert result.found.headline.startswith("nothing is proven: the checkpoint's own class is")
    assert not next(check for check in result.found.checks if check.name == "reference").passed


def test_a_control_that_does_not_miss_proves_nothing(variant) -> None:
    fake = Fake(serving.transformers(variant()), AutoTokenizer.from_pretrained(variant()))
    with serving.serving(fake):
        result = verify_served(variant(), fake.url, tokens=TOKENS, tolerance=1e3)
    assert not result.found.passed
    assert "too near to 1e+03 nats to prove anything" in result.found.headline


def test_what_cannot_be_told_apart_is_said(variant) -> None:
    dynamic = {"rope_type": "dynamic", "factor": 2.0}
    result = compared(variant(dynamic), variant(dynamic))
    assert result.found.passed
    assert "no scaling" in result.found.unseen
    with pytest.raises(UsageError, match="turns by the length in play"):
        compared(variant(dynamic), variant(dynamic), tokens=TRAINED + 1)


def test_a_server_that_takes_text_alone_is_sent_text(variant) -> None:
    fake = Fake(serving.transformers(variant()), AutoTokenizer.from_pretrained(variant()), "sglang", takes_ids=False)
    with serving.serving(fake):
        assert verify_served(variant(), fake.url, tokens=TOKENS).found.passed
    assert all(isinstance(body["prompt"], str) for body in fake.asked[2:])


def test_a_server_that_gives_five_top_ones_is_asked_for_five(variant) -> None:
    fake = Fake(serving.transformers(variant()), AutoTokenizer.from_pretrained(variant()), "llama.cpp", most_top=5)
    with serving.serving(fake):
        assert verify_served(variant(), fake.url, tokens=TOKENS).found.passed


def test_tokens_that_the_server_says_nothing_of_are_passed_over(variant) -> None:
    """llama.cpp tells nothing of a token that is a part of a letter."""
    often = iter(range(1000))

    def change(answer: dict[str, Any]) -> Any:
        if next(often) % 3 == 0:
            answer["choices"][0]["logprobs"] = None
        return answer

    result = compared(variant(), variant(), "llama.cpp", change=change)
    assert result.found.passed
    assert result.positions < 24


def test_a_server_that_says_nothing_is_refused(variant) -> None:
    with pytest.raises(ServerAnswerError, match="gives no log-probabilities"):
        compared(variant(), variant(), change=lambda answer: {**answer, "choices": [{"text": "", "logprobs": None}]})


def test_the_length_fits_the_server(variant) -> None:
    models = {"data": [{"id": "tiny", "meta": {"n_ctx": 65}}]}
    assert compared(variant(), variant(), models=models, tokens=None).tokens == 64
    with pytest.raises(UsageError, match="the server takes 65 tokens"):
        compared(variant(), variant(), models=models, tokens=65)
    with pytest.raises(UsageError, match="too few to see a rotation"):
        compared(variant(), variant(), tokens=8)


def test_several_models_are_not_chosen_from(variant) -> None:
    models = {"data": [{"id": "one"}, {"id": "two"}]}
    with pytest.raises(UsageError, match="has 2 models, one, two among them; choose by --model"):
        compared(variant(), variant(), models=models)
    fake = Fake(serving.transformers(variant()), AutoTokenizer.from_pretrained(variant()), models=models)
    with serving.serving(fake):
        assert verify_served(variant(), fake.url, tokens=TOKENS, model="two").model == "two"
    assert {body["model"] for body in fake.asked} == {"two"}


def test_a_checkpoint_in_the_other_layout_than_its_class_is_compared_too(variant, tmp_path) -> None:
    """Its weights are interleaved by the marker: the server that has them right gives what the original gives."""
    from ropetool import convert
    from ropetool.rope.pairing import Pairing

    path = tmp_path / "interleaved"
    convert.apply(convert.plan(variant(), path, Pairing.INTERLEAVED, written_as="same"))
    right = compared(path, variant())
    assert right.found.passed, right.found.headline
    assert right.found.control["layout"] == "half"
