"""Values that a config, a marker or a flag can hold, and that no command may answer with a traceback."""

from __future__ import annotations

import json
import os

import pytest

from ropetool.cli import app
from tests import tiny

HUGE = 10**400
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "rope_theta": 10000.0}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}

CONFIGS = {
    "a count of 400 digits": {"head_dim": HUGE},
    "a head of 2 billion rows": {"head_dim": 1 << 31},
    "turns beyond any pair": {"rope_parameters": {**YARN, "beta_fast": 1e308}},
    "a factor list of the wrong length": {"rope_parameters": LONGROPE},
    "a marker that is no object": {"ropetool": 5},
    "an extension that is no object": {"ropetool": {"extension": 5}},
    "an extension whose method is a list": {"ropetool": {"extension": {"method": ["a"]}}},
    "an extension whose base is text": {"ropetool": {"extension": {"original_theta": "x"}}},
    "an extension whose files are null": {"ropetool": {"extension": {"files": {"tokenizer_config.json": None}}}},
    "an extension that added a number": {"ropetool": {"extension": {"added": [1]}}},
    "layers whose types are lists": {"layer_types": [[], "full_attention"]},
    "layers without end": {"num_hidden_layers": 1 << 39},
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_hostile_config_gets_one_sentence(case, own, tmp_path, capsys):
    source = own("llama")
    tiny.edit_json(source / "config.json", **CONFIGS[case])
    out = tmp_path / "out"
    assert app.run(["extend", str(source), str(out), "--method", "yarn", "--factor", "4", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] not in ("internal", "usage")
    assert not out.exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--method", "yarn", "--factor", "1e300"],
        ["--method", "yarn", "--to", "٢٥٦"],
        ["--method", "yarn", "--to", "9" * 40],
        ["--method", "ntk", "--factor", "nan"],
    ],
)
def test_hostile_lengths(arguments, checkpoint, tmp_path, capsys):
    assert app.run(["extend", str(checkpoint("llama")), str(tmp_path / "out"), *arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"


def test_one_pair_has_no_ntk(own, tmp_path, capsys):
    source = own("llama")
    tiny.edit_json(source / "config.json", head_dim=2, num_attention_heads=64, num_key_value_heads=16)
    out = tmp_path / "out"
    assert app.run(["extend", str(source), str(out), "--method", "ntk", "--factor", "2", "--weights", "none"]) == 2
    assert "needs two pairs" in capsys.readouterr().err


def test_more_tokens_than_a_machine_has_is_a_usage_error(checkpoint, capsys):
    path = str(checkpoint("llama"))
    assert app.run(["verify", path, path, "--tokens", "9" * 30, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "usage"


def test_a_loop_of_links_is_named(tmp_path, capsys):
    os.symlink("loop", tmp_path / "loop")
    assert app.run(["convert", str(tmp_path / "loop"), str(tmp_path / "out"), "--to", "half"]) == 2
    assert "loop" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value"),
    [("layer_types", "x"), ("rms_norm_eps", "small"), ("quantization_config", {"quant_method": "gptq", "bits": 4})],
)
def test_what_transformers_cannot_read_is_no_traceback(key, value, own, checkpoint, capsys):
    broken = own("llama")
    tiny.edit_json(broken / "config.json", **{key: value})
    assert app.run(["verify", str(checkpoint("llama")), str(broken), "--json", "--quiet"]) in (1, 2)
    assert json.loads(capsys.readouterr().out).get("error", {}).get("code") != "internal"


def test_a_fault_of_ropetool_is_never_a_failed_check(checkpoint, capsys, monkeypatch):
    from ropetool import detect

    def broken(path, **options):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(detect, "inspect", broken)
    assert app.run(["inspect", str(checkpoint("llama")), "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "internal"
    assert "ZeroDivisionError: planted" in error["message"]


def test_the_result_does_not_land_in_a_checkpoint(checkpoint, capsys):
    path = checkpoint("llama")
    assert app.run(["verify", str(path), str(path), "--out", str(path / "config.json")]) == 2
    assert "lies inside the checkpoint" in capsys.readouterr().err


def test_code_of_its_own_and_an_ignored_share_are_said(own, capsys):
    source = own("llama")
    tiny.edit_json(source / "config.json", auto_map={"AutoModel": "x.Y"}, partial_rotary_factor=0.5)
    assert app.run(["inspect", str(source), "--json"]) == 0
    assert {w["code"] for w in json.loads(capsys.readouterr().out)["warnings"]} >= {"custom-code", "share-ignored"}


def test_an_ignored_share_does_not_survive_an_extension(own, tmp_path):
    """The class rotates the whole head; transformers' yarn would read the share, and the model would not run."""
    source, out = own("llama"), tmp_path / "out"
    tiny.edit_json(source / "config.json", partial_rotary_factor=0.5)
    assert app.run(["extend", str(source), str(out), "--method", "yarn", "--factor", "4", "--quiet"]) == 0
    assert app.run(["verify", str(source), str(out), "--quiet"]) == 0


def test_no_argument_prints_the_help(capsys):
    assert app.run([]) == 0
    assert "Commands:" in capsys.readouterr().out
