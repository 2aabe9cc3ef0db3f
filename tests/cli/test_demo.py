"""The demo: the main job end to end on the bundled checkpoint, and what that checkpoint must show."""

from __future__ import annotations

import json

import pytest

from ropetool.checkpoint.bundled import CHECKPOINT, bundled
from ropetool.cli.app import run
from tests import tiny


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    assert run(["demo", "--out", str(out), "--quiet"]) == 0
    return out, tiny.read_json(out / "results.json")


def shares(report, name):
    return {cell["length"]: cell["correct"] / cell["trials"] for cell in report["recall"][name]}


def test_the_bundled_checkpoint_is_what_it_says():
    path = bundled(CHECKPOINT)
    config = tiny.read_json(path / "config.json")
    assert config["model_type"] == "llama"
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == (8, 2)
    assert config["head_dim"] >= 32
    assert config["head_dim"] * 8 != config["hidden_size"]
    assert config["max_position_embeddings"] == 256
    assert (path / "model.safetensors").stat().st_size <= 4 << 20
    assert "ropetool" not in config


def test_every_step_leaves_its_result(results):
    out, report = results
    assert report.keys() >= {"inspect", "convert", "verify", "extend", "recall", "evaluate"}
    assert report["inspect"]["pairing"] == "half"
    assert report["convert"]["to"] == "interleaved"
    assert report["verify"]["passed"]
    assert report["verify"]["control"]["failed_as_it_must"]
    assert tiny.read_json(out / "yarn-1024" / "config.json")["max_position_embeddings"] == 1024
    assert tiny.read_json(out / "interleaved" / "config.json")["ropetool"]["pairing"] == "interleaved"


def test_yarn_gives_recall_where_the_trained_model_has_none(results):
    _, report = results
    before, after = shares(report, "no extension"), shares(report, "YaRN to 1024")
    assert after[1024] >= 0.80
    assert after[1024] - before[1024] >= 0.40


def test_inside_the_trained_window_little_moves(results):
    _, report = results
    before, after = shares(report, "no extension"), shares(report, "YaRN to 1024")
    assert abs(after[256] - before[256]) < 0.05
    window = report["evaluate"]["lengths"][0]
    assert (window["from"], window["to"]) == (0, 256)
    assert abs(window["loss"] / window["against_loss"] - 1) < 0.05


def test_the_demo_refuses_an_output_that_exists(tmp_path, capsys):
    assert run(["demo", "--out", str(tmp_path), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "output-exists"
