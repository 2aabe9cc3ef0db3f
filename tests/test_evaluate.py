"""evaluate: losses by position and recall, against plain loops over the model's own logits."""

from __future__ import annotations

import math
import shutil
import weakref
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from transformers import AutoConfig, ByT5Tokenizer

from ropetool import convert, evaluate, extend
from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.checkpoint.folder import has_guard, read_config
from ropetool.errors import CheckpointError, UnsupportedError, UsageError
from ropetool.families.reading import read_model
from ropetool.models import loading, measure
from ropetool.models.options import Device, DType, PasskeyPlan
from ropetool.models.recall import RecallTask
from ropetool.models.text import encode
from ropetool.rope.pairing import Pairing
from tests import tiny


@pytest.fixture(scope="module")
def novel():
    return bundled(TEXT).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "cohere", "gpt_neox", "gptj", "deepseek_v3"])
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


def test_short_context_has_a_bin_of_its_own_and_a_summary(novel, monkeypatch):
    """The user asks for what is long alone; what it cost in a short context is there all the same."""
    path = bundled(CHECKPOINT)
    result = evaluate.evaluate(path, novel, edges=(512, 700), against=path, dtype=DType.FLOAT32)
    assert [(b.start, b.stop) for b in result.lengths] == [(0, 256), (256, 512), (512, 700)]
    short, inside, beyond = result.summary.short, result.summary.inside, result.summary.beyond
    assert [(b.start, b.stop) for b in (short, inside, beyond)] == [(0, 128), (0, 256), (256, 700)]
    assert [b.tokens for b in (short, inside, beyond)] == [128, 256, 443]
    assert all(b.difference == 0 and b.perplexity == pytest.approx(math.exp(b.loss)) for b in (short, inside, beyond))
    assert inside.loss == pytest.approx(result.lengths[0].loss, rel=1e-9)
    weighted = sum(b.loss * b.tokens for b in result.lengths[1:]) / beyond.tokens
    assert beyond.loss == pytest.approx(weighted, rel=1e-9)
    monkeypatch.setattr(evaluate, "SHORT_TOKENS", 32)
    assert [b.stop for b in evaluate.evaluate(path, novel, edges=(64,)).lengths] == [32, 64]


def test_nothing_lies_beyond_where_nothing_was_read(novel):
    summary = evaluate.evaluate(bundled(CHECKPOINT), novel, edges=(100, 200)).summary
    assert ((summary.inside.start, summary.inside.stop), summary.beyond) == ((0, 200), None)


@pytest.mark.parametrize("method", ["yarn", "dynamic", "longrope"])
def test_the_reading_of_an_extension(method, novel, tmp_path):
    """Static methods go in chunks, others by one pass for each length; against transformers, length by length."""
    from transformers import AutoModelForCausalLM

    source, there = bundled(CHECKPOINT), tmp_path / "there"
    needs = tiny.needed(source, extend.Method(method))
    extend.apply(extend.plan(source, there, extend.Method(method), to=1024, settings=needs))
    result = evaluate.evaluate(there, novel, edges=(128, 256, 512, 900), against=source, dtype=DType.FLOAT32)
    assert result.passes.how == ("cached" if method == "yarn" else "per-length")
    assert (result.against_passes.how, result.trained_length, result.reach) == ("cached", 256, 1024)
    ids = encode(source, novel)[:901]
    model = AutoModelForCausalLM.from_pretrained(there, dtype=torch.float32)
    for b in result.lengths:
        read = 900 if method == "yarn" else b.stop
        fresh = model if method == "yarn" else AutoModelForCausalLM.from_pretrained(there, dtype=torch.float32)
        with torch.no_grad():
            logits = fresh(ids[None, :read], use_cache=False).logits[0, b.start : b.stop]
        targets = ids[b.start + 1 : b.stop + 1] if b.stop < 900 else ids[b.start + 1 : 900]
        want = torch.nn.functional.cross_entropy(logits[: len(targets)], targets)
        assert b.loss == pytest.approx(float(want), abs=1e-5)


def test_one_model_is_in_memory_at_a_time(novel, monkeypatch):
    alive, sound = [], measure.load_right

    def counted(*args, **kwargs):
        assert [ref for ref in alive if ref() is not None] == []
        runner = sound(*args, **kwargs)
        alive.append(weakref.ref(runner.model))
        return runner

    monkeypatch.setattr(measure, "load_right", counted)
    path = bundled(CHECKPOINT)
    evaluate.evaluate(path, novel, edges=(64,), against=path, passkey=PasskeyPlan((0.5,), 1))
    assert len(alive) == 2


def test_progress_counts_every_pass_of_both_models(novel, tmp_path):
    """Tokens of the text, of one pass for each length, and of the passkeys; it ends where it said that it would."""
    source, there = bundled(CHECKPOINT), tmp_path / "there"
    extend.apply(extend.plan(source, there, extend.Method.DYNAMIC, to=1024))
    seen = []
    evaluate.evaluate(
        there, novel, edges=(128, 256, 512), windows=2, against=source, passkey=PasskeyPlan((0.0, 1.0), 3),
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    keys = 2 * 3 * (128 + 256 + 512)
    assert seen[-1] == (2 * (2 * 512 + keys) + 2 * (128 + 256),) * 2
    assert all(a <= b for (a, _), (b, _) in pairwise(seen))
    assert len(seen) > 20


def test_lengths_beyond_the_config_are_read_and_said(novel):
    said = []
    result = evaluate.evaluate(bundled(CHECKPOINT), novel, edges=(256, 300), talk=said.append)
    (warning,) = result.warnings
    assert warning.code == "beyond-reach"
    assert "up to 300 tokens" in warning.message
    assert "made for 256" in warning.message
    assert said[0] == f"warning [beyond-reach] {warning.message}"
    assert evaluate.evaluate(bundled(CHECKPOINT), novel, edges=(256,)).warnings == ()


def _with_tokenizer(path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled(CHECKPOINT) / name, path / name)
    return path


def _vast(name, path, **changes):
    """A tiny checkpoint with room for bytes, and the bundled tokenizer."""
    return _with_tokenizer(tiny.save(tiny.model_of(name, vocab_size=260, **changes), path))


def test_a_class_with_a_table_of_positions_is_refused_with_the_numbers(novel, tmp_path):
    path = _vast("gptj", tmp_path / "gptj")
    assert evaluate.evaluate(path, novel, edges=(tiny.LENGTH,)).lengths[-1].stop == tiny.LENGTH
    with pytest.raises(UnsupportedError, match=f"beyond {tiny.LENGTH} tokens: GPTJ.* and 100 were asked for"):
        evaluate.evaluate(path, novel, edges=(100,))


def test_learned_positions_are_refused_and_other_schemes_are_measured(novel, tmp_path):
    from transformers import BloomConfig, BloomForCausalLM, GPT2Config, GPT2LMHeadModel, MptConfig, MptForCausalLM

    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=260, n_positions=64, n_embd=32, n_layer=2, n_head=4))
    path = _with_tokenizer(tiny.save(gpt2, tmp_path / "gpt2"))
    assert evaluate.evaluate(path, novel, edges=(64,)).trained_length == 64
    said = r"beyond 64 tokens: GPT2LMHeadModel has no rotary .* with 64 rows, a hard ceiling at 64 tokens"
    with pytest.raises(UnsupportedError, match=said):
        evaluate.evaluate(path, novel, edges=(65,))
    mpt = MptForCausalLM(MptConfig(vocab_size=260, d_model=32, n_layers=2, n_heads=4, max_seq_len=70))
    path = _with_tokenizer(tiny.save(mpt, tmp_path / "mpt"))
    assert evaluate.evaluate(path, novel, edges=(70,)).lengths[-1].stop == 70
    with pytest.raises(UnsupportedError, match=r"beyond 70 tokens: .* ALiBi, which its class builds for 70 tokens"):
        evaluate.evaluate(path, novel, edges=(71,))
    bloom = BloomForCausalLM(BloomConfig(vocab_size=260, hidden_size=32, n_layer=2, n_head=4))
    found = evaluate.evaluate(_with_tokenizer(tiny.save(bloom, tmp_path / "bloom")), novel, edges=(100,))
    assert (found.trained_length, found.reach, found.lengths[-1].stop) == (None, None, 100)


def test_other_tokens_or_too_small_a_vocabulary_are_refused(novel, checkpoint, tmp_path):
    path = bundled(CHECKPOINT)
    bytes_after_three = tmp_path / "byt5"
    shutil.copytree(path, bytes_after_three, ignore=shutil.ignore_patterns("tokenizer*"))
    ByT5Tokenizer().save_pretrained(bytes_after_three)
    with pytest.raises(UsageError, match="reads the text as other tokens than"):
        evaluate.evaluate(path, novel, edges=(64,), against=bytes_after_three)
    with pytest.raises(UsageError, match=r"the text has the token \d+, and .* knows"):
        evaluate.evaluate(path, novel, edges=(64,), against=checkpoint("llama"))  # no tokenizer, few words


def test_scores_that_are_no_numbers_are_an_error(novel, tmp_path):
    model = tiny.model_of("llama", vocab_size=260)
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    path = _with_tokenizer(tiny.save(model, tmp_path / "nan"))
    with pytest.raises(CheckpointError, match="are no numbers at 64 of 64 positions, first at 0"):
        evaluate.evaluate(path, novel, edges=(64,))


def test_passkeys_stand_beside_those_of_the_other_model(novel, tmp_path):
    source, there = bundled(CHECKPOINT), tmp_path / "there"
    extend.apply(extend.plan(source, there, extend.Method.YARN, to=1024))
    plan = PasskeyPlan((0.1, 0.4), 4, 11)
    result = evaluate.evaluate(there, novel, edges=(20, 256, 1024), against=source, passkey=plan)
    own = evaluate.measure_passkey(there, (256, 1024), novel, plan)
    other = evaluate.measure_passkey(source, (256, 1024), novel, plan)
    assert result.passkey == tuple(replace(a, against_correct=b.correct) for a, b in zip(own, other, strict=True))
    assert result.seed == 11
    # 20 tokens have no room for it, and the other model is made for fewer than 1024
    assert [w.code for w in result.warnings] == ["passkey-too-short", "against-beyond-reach"]
    far = [c for c in result.passkey if c.length == 1024]
    assert sum(c.correct for c in far) > sum(c.against_correct for c in far) + 2  # what the extension is for


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


AHEAD = {"llama": {"is_causal": False}, "gemma3_text": {"use_bidirectional_attention": True}}


@pytest.mark.parametrize("name", AHEAD)
def test_a_model_that_sees_the_next_token_has_no_loss_of_predicting_it(name, tmp_path):
    config = AutoConfig.for_model(name, **{**tiny.COMMON, **AHEAD[name]})
    tiny.random_model(config).save_pretrained(tmp_path / name)
    ids = torch.randint(tiny.VOCAB, (1, 64), generator=torch.Generator().manual_seed(5))
    with pytest.raises(UnsupportedError, match="looks ahead: later tokens move the scores of earlier ones"):
        evaluate.position_losses(tmp_path / name, ids, Device.CPU, None)
