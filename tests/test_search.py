"""A search on the bundled model: what it chooses, what it says of that, and that it does the same again."""

from __future__ import annotations

import errno
import json
import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ropetool import evaluate, extend
from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from ropetool.checkpoint.folder import read_config
from ropetool.checkpoint.search_results import read_search
from ropetool.cli import app
from ropetool.cli import searching as cli_searching
from ropetool.errors import ConfigError, UsageError
from ropetool.families.methods import Method, Weights
from ropetool.families.reading import read_model
from ropetool.models import bench, objective, outcome, searching, stages
from ropetool.models.bench import parts
from ropetool.models.options import DType
from ropetool.models.recall import RecallTask
from ropetool.models.spelling import spell
from tests import tiny
from tests.tiny import edit_json

SOURCE = bundled(CHECKPOINT)
TRIALS = 18
# A draw of text and passkeys with which the first setting that is asked answers as many as the default: the quickest.
SEED = 1
AUTO = ("--method", "auto", "--to", "1k", "--text", "bundled", "--dtype", "float32", "--seed", SEED)
# Beyond the bundled model's 256 tokens, and quick.
SHORT = ("--to", 384, "--dtype", "float32")


def run(capsys, *words: object) -> tuple[int, dict[str, Any], str]:
    capsys.readouterr()
    code = app.run([*map(str, words), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("search")


@pytest.fixture
def unasked(monkeypatch) -> None:
    """No passkeys are asked, which take most of the time of a search."""
    monkeypatch.setattr(stages, "GIVEN_DOCUMENTS", 0)


@pytest.fixture(scope="module")
def found(place: Path) -> dict[str, Any]:
    """One search, written to place/auto, its study and its result beside it."""
    words = ("--trials", TRIALS, "--study", place / "study.jsonl", "--out", place / "auto.json", "--quiet", "--json")
    assert app.run(["extend", *map(str, (SOURCE, place / "auto", *AUTO, *words))]) == 0
    return json.loads((place / "auto.json").read_text())


def test_what_is_written_is_what_was_chosen(found, place: Path) -> None:
    chosen = found["search"]["chosen"]
    reading = read_model(read_config(place / "auto"))
    scaling = reading.rotations[0].scaling
    assert reading.reach == 1024
    assert found["method"] == chosen["method"] == scaling.name
    assert scaling.attention_factor == chosen["attention_factor"]
    for key in ("beta_fast", "beta_slow", "factor"):
        assert getattr(scaling, key) == chosen["settings"].get(key, getattr(scaling, key))


def test_it_beats_the_default_on_text_that_it_did_not_see(found) -> None:
    search = found["search"]
    assert not search["is_default"], search["why"]
    assert search["gain"]["low"] > 0
    assert search["gain"]["beyond_noise"]
    assert search["default"]["method"] == "yarn"
    assert search["default"]["settings"] == {}
    by_bin = [(b["default"] - b["best"]) * b["tokens"] for b in search["bins"]]
    assert sum(by_bin) / sum(b["tokens"] for b in search["bins"]) == pytest.approx(search["gain"]["mean"], abs=1e-9)


def test_recall_is_at_least_that_of_the_best_fixed_method(found, place: Path) -> None:
    task, filler = RecallTask.load(SOURCE / "recall.json"), bundled(TEXT).read_text(encoding="utf-8")
    shares = {}
    for method in (Method.YARN, Method.NTK, Method.LLAMA3):
        made = extend.plan(SOURCE, place / f"fixed-{method.value}", method, to=1024, weights=Weights.LINK)
        extend.apply(made)
        shares[method.value] = made.destination
    counted = {
        name: evaluate.measure_recall(path, task, filler, [1024], documents=8, seed=11)[0].correct
        for name, path in {**shares, "chosen": place / "auto"}.items()
    }
    # One standard error of a difference of two shares near 1 of 72 questions.
    assert counted["chosen"] >= max(counted.values()) - 2, counted


def test_the_losses_that_it_tells_are_those_of_the_written_model(found, place: Path) -> None:
    """An oracle of its own: the written checkpoint, loaded by transformers, on the held-out part."""
    text = bundled(TEXT).read_text(encoding="utf-8")
    _, held = parts(SOURCE, text, 1024, 1, SEED, keys=False)
    windows = held.windows[:8]
    losses = evaluate.position_losses(place / "auto", windows, dtype=DType.FLOAT32)
    for b in found["search"]["bins"]:
        own = losses[:, b["from"] : b["to"]]
        assert float(own.mean()) == pytest.approx(b["best"], abs=2e-4)
        assert own.numel() == b["tokens"]
    plain = evaluate.position_losses(SOURCE, windows, dtype=DType.FLOAT32)
    for b in found["search"]["bins"]:
        assert float(plain[:, b["from"] : b["to"]].mean()) == pytest.approx(b["none"], abs=2e-4)


def test_every_trial_is_told(found) -> None:
    trials = found["search"]["trials"]
    assert [trial["number"] for trial in trials] == list(range(1, len(trials) + 1))
    screened = [trial for trial in trials if trial["stage"] in ("screen", "tune")]
    assert len(screened) <= TRIALS
    assert {trial["setting"]["method"] for trial in trials} >= {"yarn", "ntk", "abf", "llama3", "linear", "dynamic"}
    for trial in trials:
        assert trial["objective"] == pytest.approx(trial["loss"] + trial["penalty"])
        assert not trial["reused"]
    best = min(trial["objective"] for trial in trials)
    linear = next(trial for trial in trials if trial["setting"]["method"] == "linear")
    assert linear["objective"] > best + 0.5  # a setting that is known to be bad is seen to be


def test_the_pairs_are_those_of_the_written_config(found, place: Path) -> None:
    rotation = read_model(read_config(place / "auto")).rotations[0]
    width = rotation.geometry.rotary_dim
    plain = read_model(read_config(SOURCE)).rotations[0].scaling.inv_freq(width)
    told = [pair["best"] for pair in found["search"]["pairs"]]
    assert told == pytest.approx(list(plain / rotation.scaling.inv_freq(width)))


def test_engines_that_do_not_read_a_key_are_named(found) -> None:
    settings = found["search"]["chosen"]["settings"]
    assert "attention_factor" in settings, found["search"]["why"]
    deaf = {row["engine"] for row in found["search"]["engines"] if "attention_factor" in row["ignores"]}
    assert {"sglang", "mlx-lm"} <= deaf
    assert "transformers" not in deaf


def test_a_second_run_resumes_from_the_study_and_chooses_the_same(found, place: Path, capsys, monkeypatch) -> None:
    def no_model(*args, **kwargs):
        raise AssertionError("nothing was left to measure")

    monkeypatch.setattr("ropetool.models.bench.load", no_model)
    words = ("--trials", TRIALS, "--study", place / "study.jsonl", "--dry-run")
    code, again, _ = run(capsys, "extend", SOURCE, place / "again", *AUTO, *words)
    assert code == 0
    assert again["search"]["reused"] == len(again["search"]["trials"]) == len(found["search"]["trials"])
    for key in ("chosen", "gain", "bins", "passkey", "why"):
        assert again["search"][key] == found["search"][key]


def test_a_study_of_another_model_is_refused(found, place: Path, tmp_path: Path, capsys) -> None:
    other = tmp_path / "other"
    source_at(other)
    task = json.loads((other / "recall.json").read_text())
    edit_json(other / "recall.json", digits=task["digits"] + 1)
    words = ("--trials", TRIALS, "--study", place / "study.jsonl")
    code, told, _ = run(capsys, "extend", other, tmp_path / "out", *AUTO, *words)
    assert code == 2
    assert "words" in told["error"]["message"]
    assert not (tmp_path / "out").exists()


def source_at(where: Path) -> None:
    shutil.copytree(SOURCE, where)


def test_an_engine_binds_the_choice(unasked, tmp_path: Path, capsys) -> None:
    words = ("--method", "auto", *SHORT, "--text", "bundled", "--trials", 14, "--for", "sglang")
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *words)
    assert code == 0
    search = told["search"]
    assert search["wanted_engine"] == "sglang"
    assert all("attention_factor" not in trial["setting"]["settings"] for trial in search["trials"])
    assert any("sglang would not turn so" in left["why"] for left in search["left"])
    row = next(row for row in told["search"]["engines"] if row["engine"] == "sglang")
    assert row["right"]


def test_factors_are_searched_for_every_pair(unasked, tmp_path: Path, capsys) -> None:
    words = ("--method", "longrope", "--search", *SHORT, "--text", "bundled", "--trials", 24)
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *words)
    assert code == 0
    trials = [t["setting"]["settings"] for t in told["search"]["trials"] if t["setting"]["method"] == "longrope"]
    assert len(trials) > 12
    for settings in trials:
        long = settings["long_factor"]
        assert long == sorted(long)
        assert len(long) == len(settings["short_factor"]) == 16
        assert set(settings["short_factor"]) == {1.0}
    scaling = read_model(read_config(tmp_path / "out")).rotations[0].scaling
    assert scaling.name == told["search"]["chosen"]["method"]


def test_nothing_better_than_noise_gives_the_default(found, monkeypatch, place: Path, tmp_path: Path, capsys) -> None:
    real = outcome.gain

    def noisy(*args):
        return replace(real(*args), low=-0.01)

    monkeypatch.setattr(outcome, "gain", noisy)
    words = ("--trials", TRIALS, "--study", place / "study.jsonl")
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *AUTO, *words)
    assert code == 0
    assert told["search"]["is_default"]
    assert "not better than the default beyond noise" in told["search"]["why"]
    assert told["search"]["chosen"] == told["search"]["default"]
    assert read_config(tmp_path / "out")["rope_parameters"].keys().isdisjoint({"beta_fast", "attention_factor"})


def test_passkeys_that_are_lost_keep_the_default(found, monkeypatch, place: Path, tmp_path: Path, capsys) -> None:
    monkeypatch.setattr(outcome, "fewer", lambda one, other: True)
    words = ("--trials", TRIALS, "--study", place / "study.jsonl")
    _, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *AUTO, *words)
    assert told["search"]["is_default"]
    assert "passkeys where the default finds" in told["search"]["why"]


def test_the_parts_do_not_overlap_and_passkeys_are_told_in_words_of_the_first() -> None:
    text = bundled(TEXT).read_text(encoding="utf-8")
    choosing, held = parts(SOURCE, text, 256, 5, 7, keys=True)
    rows = [set(map(tuple, part.windows.tolist())) for part in (choosing, held)]
    assert not rows[0] & rows[1]
    assert not torch.equal(choosing.documents[0].ids, held.documents[0].ids)
    middle = text.find("\n", len(text) // 2) + 1
    first = text[:middle]
    filler = spell(SOURCE, first)
    body = held.documents[0].ids.tolist()
    whole = " ".join(map(str, (*filler, *filler)))
    assert " ".join(map(str, body[1:40])) in whole or any(
        " ".join(map(str, body[at : at + 40])) in whole for at in range(1, 200)
    )


def test_a_text_that_is_too_short_is_refused_with_the_numbers(tmp_path: Path, capsys) -> None:
    text = tmp_path / "short.txt"
    text.write_text("a few words only " * 40, encoding="utf-8")
    words = ("--method", "auto", "--to", "1k", "--text", text)
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *words)
    assert code == 2
    assert "a search needs twice the new length, 2048" in told["error"]["message"]


def test_a_budget_that_is_too_short_is_refused_before_the_work(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(searching.Search, "measure", lambda *args: pytest.fail("it measured"))
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *AUTO, "--budget", "0.001")
    assert code == 2
    assert "the least that a search needs here is" in told["error"]["message"]
    assert not (tmp_path / "out").exists()


def test_a_budget_is_kept_and_what_it_cut_is_said(unasked, tmp_path: Path, capsys, monkeypatch) -> None:
    """Readings that become slow: the search stops in time, and still reports."""
    real = searching.Search._has_room
    monkeypatch.setattr(
        searching.Search, "_has_room", lambda self, s, stage: real(self, s + 1e6 * (len(self.entries) > 3), stage)
    )
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *AUTO, "--trials", "12")
    assert code == 0
    assert len(told["search"]["trials"]) == 4
    assert any("the budget ended in the stage screen" in said for said in told["search"]["cut"])


def test_a_machine_that_stands_still_still_gives_the_default(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(searching.Search, "report_seconds", lambda self: 1e9)
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *AUTO, "--trials", "12")
    assert code == 0
    assert [trial["setting"]["method"] for trial in told["search"]["trials"]] == ["yarn"]
    assert told["search"]["is_default"]


def test_what_there_was_no_time_to_read_is_not_told(tmp_path: Path, capsys, monkeypatch) -> None:
    def at_the_end(state: searching.Search) -> int:
        state.ends = 0.0
        return 1

    monkeypatch.setattr(outcome, "_windows", at_the_end)
    monkeypatch.setattr(stages, "GIVEN_DOCUMENTS", 5)
    words = ("--method", "auto", *SHORT, "--text", "bundled", "--trials", 4)
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *words)
    assert code == 0
    assert [(b["to"], b["none"] is None) for b in told["search"]["bins"]][2:] == [(256, False), (384, True)]
    said = " ".join(told["search"]["cut"])
    assert "no extension was read inside the trained window alone" in said
    assert "no held-out passkeys were asked" in said


def test_a_setting_that_gives_no_numbers_is_infinitely_bad(unasked, tmp_path: Path, capsys, monkeypatch) -> None:
    real = bench.text_losses

    def lost(runner, *args):
        losses_T, passes = real(runner, *args)
        by_steps = runner.model.config.rope_parameters["rope_type"] == "linear"
        if by_steps:
            losses_T[3] = float("inf")
        return losses_T, passes

    monkeypatch.setattr(bench, "text_losses", lost)
    words = ("--method", "auto", *SHORT, "--text", "bundled", "--trials", 10)
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *words)
    assert code == 0
    trials = told["search"]["trials"]
    lines = [trial for trial in trials if trial["setting"]["method"] == "linear"]
    assert [(trial["loss"], trial["objective"], trial["bins"]) for trial in lines] == [(None, None, [])]
    assert trials[-1]["number"] > lines[0]["number"]
    (left,) = (left for left in told["search"]["left"] if left["method"] == "linear")
    assert "no number" in left["why"]


def test_a_default_that_gives_no_numbers_is_an_error(tmp_path: Path, capsys, monkeypatch) -> None:
    def lost(runner, ids_T, stops, passes, *args):
        return torch.full((len(ids_T) - 1,), float("inf")), passes

    monkeypatch.setattr(bench, "text_losses", lost)
    words = ("--method", "auto", *SHORT, "--text", "bundled", "--trials", 4)
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *words)
    assert code == 2
    assert "no number in float32" in told["error"]["message"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("length", [257, 385, 513])
def test_a_length_one_beyond_a_bin_has_no_empty_bin(length: int) -> None:
    """The last position predicts nothing."""
    bins = objective.bins_for(256, length)
    rows = [[1.0] * -(-(length - 1) // bins.block)]
    found = objective.by_bin(rows, bins, length)
    assert len(found) == len(bins.edges)
    assert sum(tokens for _, tokens in found) == length - 1
    assert bins.edges[-1] == length


@pytest.mark.parametrize(
    "text", ["word " * 4000, "word" * 5000, "a line\n" + "word " * 4000 + "\n", "s. " * 6000, "x\n" * 9000]
)
def test_a_text_is_cut_near_its_middle(text: str) -> None:
    at = bench._middle(text)
    assert abs(at - len(text) / 2) <= len(text) / 20 + 2
    assert text[at - 1] in "\n d"
    assert not text.startswith("word ") or text[at:].startswith("word")


def test_passkeys_that_better_settings_lose_are_told(place: Path, found, tmp_path: Path, capsys, monkeypatch) -> None:
    """By a study in which all but the default answer half of the choosing part's."""
    monkeypatch.setattr(searching, "MOST_ASKED", 1)
    lines = [json.loads(line) for line in (place / "study.jsonl").read_text().splitlines()]
    asked = [line for line in lines[1:] if line["key"].startswith("passkeys choosing")]
    for line in asked[1:]:
        line["answers"] = [at % 2 for at in range(60)]
    (tmp_path / "study.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--trials", TRIALS, "--study", tmp_path / "study.jsonl", "--dry-run")
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *AUTO, *words)
    assert code == 0
    search, default = told["search"], asked[0]["answers"]
    lower = [t for t in search["trials"] if t["objective"] < search["trials"][0]["objective"]]
    assert search["trials"][0]["passkeys"] == sum(default)
    assert [t["passkeys"] for t in lower if t["passkeys"] is not None] == [30]
    assert search["is_default"]
    assert search["why"].startswith(f"{len(lower)} settings lie below the default on the choosing part, ")
    assert f"answer 30 of its passkeys at most where the default answers {sum(default)}" in search["why"]


def test_a_lower_setting_that_was_passed_over_is_told(place: Path, found, tmp_path: Path, capsys, monkeypatch) -> None:
    """By the same, and a second that is made to answer all."""
    asked = searching.Search._asked

    def answered(self, entry, count):
        kept = asked(self, entry, count) if entry.trial.number == 1 else [30, 60][sum(
            e.trial.passkeys is not None for e in self.entries) > 1]  # fmt: skip
        entry.trial = replace(entry.trial, passkeys=kept)
        return kept

    monkeypatch.setattr(searching.Search, "_asked", answered)
    monkeypatch.setattr(outcome, "_keys", lambda *args: ((), False))
    words = ("--trials", TRIALS, "--study", place / "study.jsonl", "--dry-run")
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *AUTO, *words)
    assert code == 0
    said = "; 1 with a lower objective answered fewer passkeys of the choosing part than the default (30 at most)"
    assert told["search"]["why"].endswith(said)
    assert told["search"]["best"] != min(told["search"]["trials"], key=lambda trial: trial["objective"])["setting"]


def test_a_default_that_nothing_else_could_be_tried_beside_says_why(unasked, tmp_path: Path, capsys) -> None:
    extend.apply(extend.plan(SOURCE, tmp_path / "linear", Method.LINEAR, to=512, weights=Weights.LINK))
    words = ("--method", "auto", "--to", 640, "--text", "bundled", "--trials", 4, "--dry-run")
    code, told, _ = run(capsys, "extend", tmp_path / "linear", tmp_path / "out", *words)
    assert code == 0
    assert told["search"]["default"]["method"] == "linear"
    assert (
        "nothing but the default was measured (this checkpoint is already extended by linear" in told["search"]["why"]
    )
    assert "--replace" in told["search"]["why"]
    assert len({left["why"] for left in told["search"]["left"]}) == len(told["search"]["left"])


def test_trials_that_are_too_few_to_tune_are_told(unasked, tmp_path: Path, capsys) -> None:
    words = ("--method", "longrope", "--search", *SHORT, "--text", "bundled", "--trials", 5, "--dry-run")
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *words)
    assert code == 0
    assert any(
        "longrope was not tuned: 9 settings make a generation, so that it takes 11 trials, and there were 5" in said
        for said in told["search"]["cut"]
    )


def test_a_place_that_takes_no_file_is_refused_before_the_work(tmp_path: Path, capsys, monkeypatch) -> None:
    def full(**options):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(cli_searching.tempfile, "TemporaryFile", full)
    monkeypatch.setattr(searching.Search, "measure", lambda *args: pytest.fail("it measured"))
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *AUTO, "--trials", "4")
    assert code == 2
    assert f"DST cannot be written: {tmp_path} takes no file (Read-only file system)" in told["error"]["message"]


def test_an_engine_that_takes_no_method_is_not_sent_on(tmp_path: Path, capsys) -> None:
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *AUTO, "--for", "torchtune")
    assert code == 2
    assert "torchtune would not turn so" in told["error"]["message"]
    assert "--search" not in told["error"]["message"]


def test_text_that_says_nothing_is_warned_of(unasked, tmp_path: Path, capsys) -> None:
    draw = random.Random(1)
    letters = [c for c in bundled(TEXT).read_text(encoding="utf-8")[:3000] if c.isprintable()]
    text = tmp_path / "noise.txt"
    text.write_text("".join(draw.choice(sorted(set(letters))) for _ in range(9000)), encoding="utf-8")
    words = ("--method", "auto", *SHORT, "--text", text, "--trials", 4)
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *words)
    assert code == 0
    assert "loss-of-chance" in {warning["code"] for warning in told["search"]["warnings"]}


BAD = {
    "--search finds the factors of longrope": ("--method", "yarn", "--search", "--to", "1k", "--text", "bundled"),
    "--text is about a search": ("--method", "yarn", "--to", "1k", "--text", "bundled"),
    "--budget is about a search": ("--method", "yarn", "--to", "1k", "--budget", "3"),
    "needs the new length by --to": ("--method", "auto", "--text", "bundled"),
    "measures on a text": ("--method", "auto", "--to", "1k"),
    "leave out --beta-fast": ("--method", "auto", "--to", "1k", "--text", "bundled", "--beta-fast", "3"),
    "leave out --factor": ("--method", "auto", "--to", "1k", "--text", "bundled", "--factor", "4"),
    "--seed -1 is out of range": (*AUTO, "--seed", "-1"),
    "no number of minutes above 0": (*AUTO, "--budget", "0"),
}


@pytest.mark.parametrize("said", BAD)
def test_what_cannot_be_asked_is_refused(said: str, tmp_path: Path, capsys) -> None:
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *BAD[said])
    assert code == 2
    assert said in told["error"]["message"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("flag", "place"), [("--study", "inside"), ("--out", "inside"), ("--study", "out/s"),
                                             ("--out", "out/s")])  # fmt: skip
def test_nothing_is_kept_in_a_checkpoint(flag: str, place: str, tmp_path: Path, capsys) -> None:
    source_at(tmp_path / "source")
    where = tmp_path / ("source/s.jsonl" if place == "inside" else place)
    code, told, _ = run(capsys, "extend", tmp_path / "source", tmp_path / "out", *AUTO, flag, where, "--dry-run")
    assert code == 2
    assert flag in told["error"]["message"]
    assert not where.exists()


def test_two_files_of_one_name_are_refused(tmp_path: Path, capsys) -> None:
    words = ("--study", tmp_path / "x", "--out", tmp_path / "x")
    code, told, _ = run(capsys, "extend", SOURCE, tmp_path / "out", *AUTO, *words)
    assert code == 2
    assert "--study and --out are both" in told["error"]["message"]


@pytest.fixture
def phi3(tmp_path: Path) -> Path:
    """A checkpoint whose class takes no other block than longrope, and that has one."""
    path = tiny.save(tiny.model_of("phi3", vocab_size=512), tmp_path / "phi3")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SOURCE / name, path / name)
    settings = tiny.needed(path, Method.LONGROPE)
    extend.apply(extend.plan(path, tmp_path / "longer", Method.LONGROPE, to=128, settings=settings))
    return tmp_path / "longer"


def test_a_class_that_takes_only_longrope_is_told_the_way(phi3: Path, tmp_path: Path, capsys) -> None:
    words = ("--method", "auto", "--to", 256, "--text", "bundled")
    code, told, _ = run(capsys, "extend", phi3, tmp_path / "out", *words)
    assert code == 2
    assert "`--method longrope --search` finds a factor for each pair instead" in told["error"]["message"]


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path, capsys) -> None:
    path = tiny.save(tiny.model_of("llama", vocab_size=40), tmp_path / "llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SOURCE / name, path / name)
    words = ("--method", "auto", "--to", 256, "--text", "bundled", "--trials", 4)
    code, told, _ = run(capsys, "extend", path, tmp_path / "out", *words)
    assert code == 2
    assert "its tokenizer is that of another model" in told["error"]["message"]


def test_a_class_that_takes_only_longrope_is_searched_for_factors(phi3: Path, tmp_path: Path, capsys) -> None:
    words = ("--method", "longrope", "--search", "--to", 256, "--text", "bundled", "--trials", 12)
    code, told, _ = run(capsys, "extend", phi3, tmp_path / "out", *words)
    assert code == 0, told
    assert told["search"]["default"]["method"] == "longrope"
    (warning,) = (w for w in told["search"]["warnings"] if w["code"] == "short-prompts")
    _, held = parts(phi3, bundled(TEXT).read_text(encoding="utf-8"), 256, 1, 7, keys=False)
    short = held.windows[:8, : tiny.LENGTH]
    own, plain = (float(evaluate.position_losses(path, short).mean()) for path in (tmp_path / "out", phi3))
    assert f"a loss of {own:.4f} nats, and without extension {plain:.4f}" in warning["message"]
    assert read_model(read_config(tmp_path / "out")).rotations[0].scaling.name == "longrope"


def test_pairs_are_held_against_the_base_of_before(unasked, tmp_path: Path, capsys) -> None:
    """Of a class for which the default is another base, NTK's."""
    path = tiny.save(tiny.model_of("phi3", vocab_size=512), tmp_path / "phi3")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SOURCE / name, path / name)
    words = ("--method", "auto", "--to", 256, "--text", "bundled", "--trials", 4)
    code, told, _ = run(capsys, "extend", path, tmp_path / "out", *words)
    assert code == 0
    assert told["search"]["default"]["method"] == "ntk"
    before, after = (read_model(read_config(each)).rotations[0] for each in (path, tmp_path / "out"))
    plain, written = (each.scaling.inv_freq(each.geometry.rotary_dim) for each in (before, after))
    pairs, which = told["search"]["pairs"], "default" if told["search"]["is_default"] else "best"
    assert [pair["wavelength"] for pair in pairs] == pytest.approx(list(2 * math.pi / plain))
    assert [pair[which] for pair in pairs] == pytest.approx(list(plain / written))
    assert pairs[-1][which] > 2


def test_auto_is_no_method_of_a_plan(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="auto is a search"):
        extend.plan(SOURCE, tmp_path / "out", Method.AUTO, to=1024)


def test_the_result_is_read_back_and_shown(found, place: Path, capsys) -> None:
    page = place / "page.html"
    words = ("report", place / "auto", "--search", place / "auto.json", "--out", page)
    code, told, _ = run(capsys, *words)
    assert code == 0
    assert told["search"]["chosen"].startswith("yarn")
    assert not any(warning["code"] == "result-of-another" for warning in told["warnings"])
    text = page.read_text(encoding="utf-8")
    for part in ("search-loss", "search-pairs", "All trials", found["search"]["why"][:40]):
        assert part in text
    assert app.run(["report", str(place / "auto"), "--search", str(place / "auto.json")]) == 0
    out = capsys.readouterr().out
    assert "search on" in out
    assert found["search"]["why"][:40] in out


def test_a_result_of_another_is_warned_of(found, place: Path, tmp_path: Path, capsys) -> None:
    source_at(tmp_path / "other")
    code, told, _ = run(capsys, "report", tmp_path / "other", "--search", place / "auto.json")
    assert code == 0
    assert "result-of-another" in {warning["code"] for warning in told["warnings"]}


@pytest.mark.parametrize("key", ["why", "is_default", "gain", "bins", "pairs", "trials", "chosen", "length"])
def test_a_malformed_result_names_its_key(found, place: Path, tmp_path: Path, key: str) -> None:
    broken = json.loads(json.dumps(found))
    broken["search"][key] = [] if key not in ("bins", "pairs", "trials") else "x"
    (tmp_path / "x.json").write_text(json.dumps(broken))
    with pytest.raises(ConfigError, match=f"search.{key}"):
        read_search(tmp_path / "x.json")
    del broken["search"]
    (tmp_path / "x.json").write_text(json.dumps(broken))
    with pytest.raises(ConfigError, match="holds no result of extend --method auto"):
        read_search(tmp_path / "x.json")


def test_the_terminal_shows_all_of_it(found, place: Path, capsys) -> None:
    words = ("--trials", TRIALS, "--study", place / "study.jsonl", "--dry-run", "--quiet")
    assert app.run(["extend", str(SOURCE), str(place / "shown"), *map(str, (*AUTO, *words))]) == 0
    out = capsys.readouterr().out
    for part in ("all trials", "next-token loss by position, held-out part", "how many times slower each pair turns",
                 "engines that read it otherwise", "gain, held out", "95 % between"):  # fmt: skip
        assert part in out
