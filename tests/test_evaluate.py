"""evaluate: losses by position and recall, against plain loops over the model's own logits."""

from __future__ import annotations

import json

import pytest
import torch

from ropetool import convert, evaluate
from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.checkpoint.folder import has_guard, read_config
from ropetool.errors import UsageError
from ropetool.families.reading import read_model
from ropetool.models import loading
from ropetool.models.options import Device, DType
from ropetool.models.recall import RecallTask
from ropetool.models.text import encode
from ropetool.rope.pairing import Pairing
from tests import tiny


@pytest.fixture(scope="module")
def novel():
    return bundled(TEXT).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere", "gpt_neox", "gptj"])
@pytest.mark.parametrize("chunk", [7, 64])
def test_losses_in_chunks_equal_the_plain_loss(name, chunk, checkpoint, monkeypatch):
    """Gemma 2 caps its logits and Cohere scales them after the head: the chunks must go through that too."""
    monkeypatch.setattr(evaluate, "CHUNK_TOKENS", chunk)
    path = checkpoint(name)
    ids = torch.randint(tiny.VOCAB, (tiny.LENGTH,), generator=torch.Generator().manual_seed(5))
    plain = torch.nn.functional.cross_entropy(tiny.logits(tiny.load(path))[:-1], ids[1:], reduction="none")
    ours = evaluate.position_losses(path, ids[None], Device.CPU, None)
    assert ours.shape == (1, len(ids) - 1)
    assert torch.allclose(ours[0], plain.double(), atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gptj", "deepseek_v3"])
def test_a_converted_checkpoint_has_the_losses_of_its_source(name, checkpoint, tmp_path, monkeypatch):
    """Whatever layout the class rotates; and run as it is stored, a converted one would have others."""
    source, there = checkpoint(name), tmp_path / "there"
    convert.apply(convert.plan(source, there, read_model(read_config(source)).pairing.other, None, "same"))
    ids = torch.randint(tiny.VOCAB, (1, tiny.LENGTH), generator=torch.Generator().manual_seed(5))
    want = evaluate.position_losses(source, ids, Device.CPU, None)
    assert torch.allclose(evaluate.position_losses(there, ids, Device.CPU, None), want, atol=1e-5)
    if has_guard(there):
        monkeypatch.setattr(loading, "permuted", lambda tensor, index: tensor)
        assert float((evaluate.position_losses(there, ids, Device.CPU, None) - want).abs().max()) > 0.5


def test_text_is_read_by_the_tokenizer_of_a_guarded_checkpoint(novel, tmp_path):
    convert.apply(convert.plan(bundled(CHECKPOINT), tmp_path / "there", Pairing.INTERLEAVED, None, "same"))
    assert has_guard(tmp_path / "there")
    want = evaluate.evaluate(bundled(CHECKPOINT), novel, edges=(64,), dtype=DType.FLOAT32)
    found = evaluate.evaluate(tmp_path / "there", novel, edges=(64,), dtype=DType.FLOAT32)
    assert found.lengths == want.lengths


def test_bins_are_weighted_by_token_and_cover_the_text(novel):
    result = evaluate.evaluate(bundled(CHECKPOINT), novel, edges=(16, 100, 200))
    assert [(b.start, b.stop, b.tokens) for b in result.lengths] == [(0, 16, 16), (16, 100, 84), (100, 200, 99)]
    whole = evaluate.evaluate(bundled(CHECKPOINT), novel, edges=(200,)).lengths[0]
    mean = sum(b.loss * b.tokens for b in result.lengths) / whole.tokens
    assert mean == pytest.approx(whole.loss, rel=1e-6)


def test_windows_are_read_from_position_zero_each(novel):
    """Two pieces of 128 tokens give the mean of the two, each run on its own."""
    path = bundled(CHECKPOINT)
    both = evaluate.evaluate(path, novel, edges=(128,), windows=2).lengths[0]
    ids = encode(path, novel)
    single = [evaluate.position_losses(path, ids[None, a : a + 128], Device.CPU, None).mean() for a in (0, 128)]
    assert both.tokens == 2 * 127
    assert both.loss == pytest.approx(float(sum(single) / 2), rel=1e-6)


def test_default_lengths_stop_where_the_text_does(novel):
    path = bundled(CHECKPOINT)
    assert [b.stop for b in evaluate.evaluate(path, novel).lengths] == [256]
    assert [b.stop for b in evaluate.evaluate(path, novel[:99]).lengths] == [100]


def test_two_runs_give_the_same_figures(novel):
    runs = [evaluate.evaluate(bundled(CHECKPOINT), novel, edges=(64, 256)) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_checkpoint_against_itself_gains_nothing(novel):
    path = bundled(CHECKPOINT)
    for b in evaluate.evaluate(path, novel, edges=(64, 256), against=path).lengths:
        assert b.against_loss == b.loss


def test_a_short_text_is_refused_with_the_numbers():
    with pytest.raises(UsageError, match=r"the text has \d+ tokens, the longest length is 256"):
        evaluate.evaluate(bundled(CHECKPOINT), "too short", edges=(256,))


@pytest.mark.parametrize("edges", [(10, 5), (5, 5), (1,)])
def test_lengths_must_rise(edges, novel):
    with pytest.raises(UsageError, match="must rise"):
        evaluate.evaluate(bundled(CHECKPOINT), novel, edges=edges)


def test_recall_counts_only_whole_answers(novel):
    """Against a loop of its own over one document at a time, reading answers by their characters."""
    path = bundled(CHECKPOINT)
    task = RecallTask.load(path / "recall.json")
    cell = evaluate.measure_recall(path, task, novel, (256,), documents=6, seed=3)[0]
    import random

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
    rng, right, asked = random.Random(3), 0, 0
    for _ in range(6):
        document = task.document(rng, 255, novel)
        ids = tokenizer(document.text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            said = model(ids).logits[0].argmax(-1)
        for start, stop in document.answers:
            asked += 1
            # one token in front of the characters: the token of the start of text
            right += tokenizer.decode(said[start:stop]) == document.text[start:stop]
    assert (cell.trials, cell.correct) == (asked, right)


def test_the_command_prints_one_json_object(capsys):
    from ropetool.cli.app import run

    path = str(bundled(CHECKPOINT))
    assert run(["evaluate", path, "--against", path, "--lengths", "64,256", "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["lengths"][0].keys() >= {"from", "to", "loss", "perplexity", "tokens", "against_loss"}
