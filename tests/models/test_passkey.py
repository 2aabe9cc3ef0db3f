"""Passkey documents: exact lengths in any tokenizer, the needle where it was wanted, and answers as greedy decoding."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

from ropetool import evaluate
from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.errors import UsageError
from ropetool.models import passkey
from ropetool.models.options import Device, DType, PasskeyPlan
from ropetool.models.passkey import Document, document, documents, haystack, right
from ropetool.models.spelling import opening, spell

NOVEL = bundled(TEXT).read_text(encoding="utf-8")
LENGTHS = (410, 411, 733)


def _bpe(**options: object) -> tuple[Tokenizer, trainers.BpeTrainer]:
    special = ["<s>", "</s>", "[UNK]"]
    return Tokenizer(models.BPE(unk_token="[UNK]", **options)), trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, show_progress=False
    )


def sentencepiece_like() -> Tokenizer:
    """As Llama 2: a space before every text, written as a low line, and a beginning of sequence."""
    tokenizer, trainer = _bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    trainer.initial_alphabet = ["\n"]  # a token of its own, as there
    tokenizer.train_from_iterator([NOVEL[:60_000].replace("\n", " "), "0123456789"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def gpt2_like() -> Tokenizer:
    """Spaces belong to the word after them; nothing is put before a text."""
    tokenizer, trainer = _bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer.initial_alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([NOVEL[:60_000], "0123456789"], trainer)
    return tokenizer


def bert_like() -> Tokenizer:
    """Lower case, no white space at all, and special tokens on both sides."""
    tokenizer, trainer = _bpe()
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator([NOVEL[:60_000].lower(), "0123456789?"], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return tokenizer


def _own_words(directory: Path) -> None:
    shutil.copytree(bundled(CHECKPOINT), directory)


def _classic_words(directory: Path) -> None:
    shutil.copytree(bundled(CHECKPOINT), directory, ignore=shutil.ignore_patterns("recall.json"))


def _byt5(directory: Path) -> None:
    ByT5Tokenizer().save_pretrained(directory)


def _fast(make: Callable[[], Tokenizer]) -> Callable[[Path], None]:
    def save(directory: Path) -> None:
        PreTrainedTokenizerFast(tokenizer_object=make()).save_pretrained(directory)

    return save


TOKENIZERS: dict[str, Callable[[Path], None]] = {
    "bytes, own task": _own_words,
    "bytes, classic": _classic_words,
    "byt5": _byt5,
    "sentencepiece-like": _fast(sentencepiece_like),
    "gpt2-like": _fast(gpt2_like),
    "bert-like": _fast(bert_like),
}


@pytest.fixture(scope="module")
def checkpoint_with(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def path(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("tokenizers") / name.split(",")[0]
            TOKENIZERS[name](made[name])
            if not (made[name] / "config.json").exists():
                (made[name] / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
        return made[name]

    return path


def decoded(path: Path, ids: torch.Tensor) -> str:
    return str(AutoTokenizer.from_pretrained(path).decode(ids.tolist(), skip_special_tokens=True))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_document_has_exactly_its_length_and_its_needle_at_its_depth(name, length, checkpoint_with) -> None:
    path = checkpoint_with(name)
    for depth in (0.0, 0.3, 0.5, 1.0):
        found = documents(path, NOVEL, length, depth, 3, 7)
        assert [len(d.ids) for d in found] == [length] * 3
        assert len({tuple(d.ids.tolist()) for d in found}) == 3
        for d in found:
            assert d.needle == len(haystack(path, NOVEL).head) or depth > 0
            before = decoded(path, d.ids[: d.needle]).lower()
            stated = decoded(path, d.ids[d.needle : -d.answer_tokens]).lower()
            answer = "".join(decoded(path, d.ids[-d.answer_tokens :]).split())
            assert answer.isdigit()
            if name == "bytes, own task":
                assert f"[{stated.strip()[1]}{answer}]" in stated
                assert stated.endswith(f"\n?{stated.strip()[1]}")
            else:
                kept = "".join(stated.split())
                assert kept.startswith(f"thepasskeyis{answer}.rememberit.{answer}isthepasskey.")
                assert kept.endswith("whatisthepasskey?thepasskeyis")
                assert "passkey" not in before.replace(" ", "")


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_needle_lies_at_its_share_of_a_long_document(name, checkpoint_with) -> None:
    for depth in (0.1, 0.5, 0.9):
        (d,) = documents(checkpoint_with(name), NOVEL, 8000, depth, 1, 7)
        assert d.needle / 8000 == pytest.approx(depth, abs=0.06)


@pytest.mark.parametrize("name", ["sentencepiece-like", "gpt2-like", "bytes, classic", "byt5"])
def test_pieces_are_spelled_as_the_tokenizer_spells_the_whole(name, checkpoint_with) -> None:
    path = checkpoint_with(name)
    text, after = "\nThe pass key is 71432.", " There and back again."
    tokenizer = AutoTokenizer.from_pretrained(path)
    whole = tokenizer(after + text, add_special_tokens=False)["input_ids"]
    pieces = (*spell(path, after), *spell(path, text, after=after))
    assert list(pieces) == whole


@pytest.mark.parametrize(
    ("name", "tokens"), [("sentencepiece-like", 1), ("gpt2-like", 0), ("bert-like", 1), ("byt5", 0)]
)
def test_only_what_goes_before_a_text_is_put_before_a_document(name, tokens, checkpoint_with) -> None:
    assert len(opening(checkpoint_with(name))) == tokens


def test_a_cell_does_not_depend_on_what_else_is_asked(checkpoint_with) -> None:
    path = checkpoint_with("gpt2-like")

    def ids(length: int, depth: float, trials: int, seed: int) -> list[list[int]]:
        return [d.ids.tolist() for d in documents(path, NOVEL, length, depth, trials, seed)]

    assert ids(500, 0.5, 4, 7)[:2] == ids(500, 0.5, 2, 7)
    assert ids(500, 0.5, 2, 8) != ids(500, 0.5, 2, 7)


def test_a_length_without_room_is_refused_with_the_numbers(checkpoint_with) -> None:
    path = checkpoint_with("gpt2-like")
    with pytest.raises(UsageError, match=r"of 50 tokens cannot be: its fixed parts take \d+") as raised:
        documents(path, NOVEL, 50, 0.5, 1, 7)
    least = raised.value.fields["least"]
    assert len(document(haystack(path, NOVEL), least + 5, 0.5, random.Random(1)).ids) == least + 5


# --- answers --------------------------------------------------------------------------------------------------------


def greedy(model: torch.nn.Module, d: Document) -> bool:
    """Whether plain transformers' greedy decoding says the answer."""
    prompt = d.ids[None, : -d.answer_tokens]
    said = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=d.answer_tokens, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return said[0, prompt.shape[1] :].tolist() == d.ids[-d.answer_tokens :].tolist()


@pytest.mark.parametrize("name", ["bytes, own task", "bytes, classic"])
def test_what_counts_as_right_is_what_greedy_decoding_says(name, checkpoint_with) -> None:
    path = checkpoint_with(name)
    lengths, plan = (400, 900), PasskeyPlan((0.0, 0.5, 1.0), 4, 3)
    cells = evaluate.measure_passkey(path, lengths, NOVEL, plan, device=Device.CPU, dtype=DType.FLOAT32)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    want = {
        (length, depth): sum(greedy(model, d) for d in documents(path, NOVEL, length, depth, plan.trials, plan.seed))
        for length in lengths
        for depth in plan.depths
    }
    assert {(c.length, c.depth): c.correct for c in cells} == want
    assert all(c.trials == plan.trials for c in cells)
    if name == "bytes, own task":
        assert 0 < sum(want.values()) < len(want) * plan.trials  # both outcomes are there


def test_a_needle_that_says_another_number_is_not_found(checkpoint_with, monkeypatch) -> None:
    path = checkpoint_with("bytes, own task")
    plan = PasskeyPlan((0.2, 0.5), 5, 3)
    sound = evaluate.measure_passkey(path, (256,), NOVEL, plan, dtype=DType.FLOAT32)
    assert sum(c.correct for c in sound) >= 8
    own = passkey._own

    def another_answer(*args):
        needle, others, question, answer = own(*args)
        return needle, others, question, answer[::-1] if answer[0] != answer[-1] else (answer[0] ^ 1, *answer[1:])

    monkeypatch.setattr(passkey, "_own", another_answer)
    damaged = evaluate.measure_passkey(path, (256,), NOVEL, plan, dtype=DType.FLOAT32)
    assert sum(c.correct for c in damaged) <= 1


def test_every_token_of_the_answer_must_be_right() -> None:
    d = Document(torch.tensor([1, 2, 3, 4, 5]), 2, 1)
    assert right(d, [0, 0, 4, 5, 9])
    assert right(d, [4, 5, 9])
    assert not right(d, [0, 0, 4, 6, 9])
    assert not right(d, [0, 0, 6, 5, 9])
    assert not right(d, [0, 4, 5, 9, 9])


@pytest.mark.parametrize(("depths", "trials"), [((), 5), ((1.5,), 5), ((-0.1,), 5), ((0.5,), 0)])
def test_a_plan_that_cannot_be_is_refused(depths, trials) -> None:
    with pytest.raises(UsageError, match="a depth is a share"):
        PasskeyPlan(depths, trials)


def test_a_damaged_task_is_one_sentence(checkpoint_with, tmp_path) -> None:
    there = tmp_path / "there"
    shutil.copytree(checkpoint_with("bytes, own task"), there)
    (there / "recall.json").write_text(json.dumps({"statement": 1}), encoding="utf-8")
    with pytest.raises(Exception, match="wanted an object with"):
        evaluate.measure_passkey(there, (256,), NOVEL)
