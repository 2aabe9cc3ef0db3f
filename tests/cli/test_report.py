"""``ropetool report``: its JSON, what it writes and where not, and what it says of results that are another's."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.reporting import CONFIGS, measured, written  # noqa: F401 - one is a fixture
from tests.tiny import edit_json, snapshot

KEYS = {"checkpoint", "inspect", "doctor", "no_doctor", "rope", "no_rope", "against", "verify", "evaluate", "search",
        "warnings", "written"}  # fmt: skip
WAY = {"method", "type", "theta", "factor", "length", "attention_factor", "note", "inv_freq", "wavelength", "turns",
       "slower", "score", "bound"}  # fmt: skip


def test_json(run, checkpoint) -> None:
    done = run("report", checkpoint("qwen3"), "--json")
    assert (done.code, done.err) == (0, "")
    told = done.json
    assert told.keys() == KEYS
    assert told["inspect"] == {**run("inspect", checkpoint("qwen3"), "--weights", "--json").json}
    assert told["doctor"] == run("doctor", checkpoint("qwen3"), "--json").json
    (layers,) = told["rope"]["layers"]
    assert all(way.keys() == WAY for way in layers["ways"])
    assert [told[key] for key in ("against", "verify", "evaluate", "search", "written")] == [None, None, None, None, []]


def test_a_page_and_its_json(run, measured, tmp_path: Path) -> None:  # noqa: F811  a fixture
    before = snapshot(measured.extended)
    out = tmp_path / "page.html"
    done = run("report", *measured.arguments, "--out", out, "--json")
    assert done.code == 0
    assert done.json["written"] == [str(out)]
    assert done.json["verify"]["relation"] == "extended"
    assert out.stat().st_mode & 0o777 == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert snapshot(measured.extended) == before
    again = run("report", *measured.arguments, "--out", out)
    assert (again.code, again.out.strip()) == (0, f"wrote {out}")


def test_doctors_findings_do_not_fail_a_report(run, own) -> None:
    source = own("llama")
    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    edit_json(source / "config.json", rope_parameters=block, max_position_embeddings=256)
    assert run("doctor", source).code == 1
    assert run("report", source, "--quiet").code == 0


def test_what_contradicts_itself_is_an_error(run, own) -> None:
    source = own("llama")
    edit_json(source / "config.json", rope_theta=5.0)
    done = run("report", source, "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "config-conflict")


def test_without_rope_it_says_so(run, tmp_path: Path) -> None:
    told = run("report", written(tmp_path, CONFIGS["bloom"]), "--json").json
    assert (told["rope"], told["doctor"]) == (None, None)
    assert "ALiBi" in told["no_rope"]
    assert "ALiBi" in told["no_doctor"]


def test_the_trained_length_can_be_told(run, tmp_path: Path) -> None:
    source = written(tmp_path, CONFIGS["qwen3"])
    assert run("report", source, "--json").json["rope"]["layers"][0]["trained"] == 40960
    told = run("report", source, "--original", "32k", "--json").json
    assert told["rope"]["layers"][0]["trained"] == 32768
    assert told["rope"]["warnings"] == []


def test_results_of_another_are_told(run, measured, checkpoint) -> None:  # noqa: F811  a fixture
    done = run("report", checkpoint("llama"), "--evaluate", measured.evaluated, "--json")
    assert [w["code"] for w in done.json["warnings"]] == ["result-of-another"]
    done = run("report", checkpoint("llama"), "--verify", measured.verified, "--json")
    assert [w["code"] for w in done.json["warnings"]] == ["result-of-another"]
    for of in (measured.source, measured.extended):
        assert run("report", of, "--verify", measured.verified, "--json").json["warnings"] == []
    assert str(measured.extended) in done.json["warnings"][0]["message"]
    swapped = (measured.source, "--against", measured.extended, "--evaluate", measured.evaluated)
    assert len(run("report", *swapped, "--json").json["warnings"]) == 2
    relative = os.path.relpath(measured.extended)
    assert run("report", relative, "--evaluate", measured.evaluated, "--json").json["warnings"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--out", "{source}/page.html"), "lies inside the checkpoint"),
        (("--png", "{source}/png"), "lies inside the checkpoint"),
        (("--png", "{source}"), "lies inside the checkpoint"),
        (("--against", "{source}", "--out", "{source}/x.html"), "lies inside the checkpoint"),
        (("--out", "{tmp}/none/page.html"), "is not a directory"),
        (("--out", "{tmp}"), "is a directory; name a file"),
        (("--png", "{tmp}/file"), "is a file; name a directory"),
        (("--verify", "{tmp}/none.json"), "none.json: No such file"),
        (("--verify", "{tmp}/file"), "cannot be read as JSON"),
        (("--evaluate", "{source}/config.json"), "holds no result of evaluate"),
        (("--original", "many"), "is not a length in tokens"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(options, said: str, run, own, tmp_path: Path) -> None:
    source = own("llama")
    (tmp_path / "file").write_text("x", encoding="utf-8")
    before = snapshot(tmp_path)
    done = run("report", source, *(option.format(source=source, tmp=tmp_path) for option in options))
    assert (done.code, said in done.err) == (2, True), done.err
    assert snapshot(tmp_path) == before


def test_an_adapter_has_a_verdict_and_no_figures(run, tmp_path: Path, checkpoint) -> None:
    config = {"peft_type": "LORA", "base_model_name_or_path": str(checkpoint("llama"))}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    rows = {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": np.ones((128, 4), np.float32)}
    save_file(rows, tmp_path / "adapter_model.safetensors")
    told = run("report", tmp_path, "--json").json
    assert told["inspect"]["pairing"] == "half"
    assert told["rope"] is None
    assert "make the report of that" in told["no_rope"]
