"""``ropetool evaluate`` as users run it: the same figures twice, what is kept, what is shown, what is refused."""

from __future__ import annotations

import json

import pytest

from ropetool import extend
from ropetool.checkpoint.bundled import CHECKPOINT, TEXT, bundled
from tests.tiny import snapshot

SOURCE = bundled(CHECKPOINT)
BIN = {"from", "to", "loss", "perplexity", "tokens"}


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    path = tmp_path_factory.mktemp("extended") / "yarn-1k"
    extend.apply(extend.plan(SOURCE, path, extend.Method.YARN, to=1024))
    return path


@pytest.fixture
def asked(extended):
    return (
        *("evaluate", extended, "--against", SOURCE, "--lengths", "512,1k"),
        *("--passkey", "--depths", "0,0.5", "--trials", "2", "--seed", "3"),
    )


def test_two_runs_give_the_same_figures_and_out_keeps_them(run, asked, tmp_path):
    kept = tmp_path / "result.json"
    first, second = run(*asked, "--json", "--quiet"), run(*asked, "--json", "--quiet", "--out", kept)
    assert (first.code, first.err, second.err) == (0, "", "")
    assert first.json == second.json == json.loads(kept.read_text(encoding="utf-8"))


def test_the_keys_that_scripts_rely_on(run, asked):
    result = run(*asked, "--json", "--quiet").json
    assert [(b["from"], b["to"]) for b in result["lengths"]] == [(0, 256), (256, 512), (512, 1024)]
    assert all(b.keys() == BIN | {"against_loss"} for b in result["lengths"])
    assert [(c["length"], c["depth"]) for c in result["passkey"]] == [(512, 0.0), (512, 0.5), (1024, 0.0), (1024, 0.5)]
    cell = {"length", "depth", "trials", "correct", "against_correct"}
    assert all(c.keys() == cell and c["trials"] == 2 for c in result["passkey"])
    assert (result["seed"], result["tokens"], result["trained_length"], result["reach"]) == (3, 1024, 256, 1024)
    assert result["summary"].keys() == {"short", "inside", "beyond"}
    for part in result["summary"].values():
        assert part.keys() == BIN | {"against_loss", "difference"}
        assert part["difference"] == part["loss"] - part["against_loss"]
    assert (result["passes"]["how"], "KV cache" in result["passes"]["why"]) == ("cached", True)
    assert [w["code"] for w in result["warnings"]] == ["against-beyond-reach"]


def test_without_another_model_and_passkeys_their_keys_are_empty(run):
    result = run("evaluate", SOURCE, "--lengths", "64,256", "--json", "--quiet").json
    assert all(b.keys() == BIN for b in result["lengths"])
    assert (result["passkey"], result["seed"], result["against"], result["summary"]["beyond"]) == ([], None, None, None)
    assert result["summary"]["short"].keys() == BIN


def test_the_table_shows_cost_and_gain_at_one_glance(run, asked):
    done = run(*asked)
    assert done.code == 0
    for said in (
        *("short context, 0-128", "inside the trained length, 0-256", "beyond it, 256-1024", "gain", "by position"),
        *("passkeys found of 2 (seed 3)", f"below each bar: {SOURCE}", "read cached"),
    ):
        assert said in done.out
    assert done.out.replace(str(SOURCE), "").count("/2") == 8
    assert "warning [against-beyond-reach]" in done.err


def test_lengths_beyond_the_config_are_said_on_stderr(run):
    done = run("evaluate", SOURCE, "--lengths", "256,300", "--json")
    assert done.code == 0
    assert [w["code"] for w in done.json["warnings"]] == ["beyond-reach"]
    assert "up to 300 tokens, and its config.json is made for 256" in done.err


def test_another_text_is_read(run, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text(bundled(TEXT).read_text(encoding="utf-8")[5000:5400], encoding="utf-8")
    other = run("evaluate", SOURCE, "--lengths", "256", "--text", words, "--json").json
    novel = run("evaluate", SOURCE, "--lengths", "256", "--json").json
    assert other["lengths"][0]["loss"] != novel["lengths"][0]["loss"]
    done = run("evaluate", SOURCE, "--lengths", "512", "--text", words, "--json")
    assert (done.code, done.json["error"]["tokens"], done.json["error"]["length"]) == (2, 401, 512)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--depths", "0,1"), "--depths is about passkeys; give --passkey as well"),
        (("--seed", "1"), "--seed is about passkeys"),
        (("--passkey", "--depths", "0,2"), "a depth is a share of the document, from 0 to 1"),
        (("--passkey", "--depths", "half"), "is not a list of shares; write 0,0.5,1"),
        (("--passkey", "--trials", "0"), "--trials"),
        (("--passkey", "--lengths", "20"), "a passkey document of 20 tokens cannot be"),
        (("--lengths", "100,50"), "must rise"),
    ],
)
def test_what_cannot_be_is_one_sentence(options, said, run):
    done = run("evaluate", SOURCE, *options)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_out_is_refused_where_it_would_harm_and_before_the_work(run, extended, tmp_path):
    before = snapshot(extended)
    for out, said in (
        (extended / "result.json", "lies inside the checkpoint"),
        (SOURCE / "result.json", "lies inside the checkpoint"),
        (tmp_path / "no" / "result.json", "is not a directory"),
        (tmp_path, "is a directory"),
    ):
        done = run("evaluate", extended, "--against", SOURCE, "--lengths", "256", "--out", out)
        assert (done.code, said in done.err) == (2, True), done.err
    assert snapshot(extended) == before


def test_weights_that_stay_on_disk_change_no_loss(capsys, monkeypatch):
    """With room for no weight in memory; a budget that is too small is refused with its numbers."""
    from ropetool.cli.app import run
    from ropetool.models import placement

    path, maps = str(bundled(CHECKPOINT)), []
    mapped = placement.device_map_of
    monkeypatch.setattr(placement, "device_map_of", lambda *given: maps.append(mapped(*given)) or maps[-1])

    def losses(*more):
        code = run(["evaluate", path, "--lengths", "64,256", "--json", "--quiet", *more])
        return code, json.loads(capsys.readouterr().out)

    code, refused = losses("--max-memory", "10MB")
    assert (code, refused["error"]["code"]) == (2, "out-of-memory")
    monkeypatch.setattr(placement, "_room", lambda *given: 0)
    code, away = losses("--max-memory", "8GB")
    assert code == 0, away
    assert "disk" in maps[-1].values()
    assert away["lengths"] == losses()[1]["lengths"]
