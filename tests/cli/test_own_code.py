"""Checkpoints that bring code of their own: refused without consent, read from the code with it, and never guessed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

import ropetool
from ropetool import convert
from ropetool.checkpoint.folder import read_config
from ropetool.models.own_buffers import fill
from ropetool.models.own_code import own_class
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.models import odd
from tests.tiny import digest, read_json, snapshot

TRUST = "--trust-remote-code"
ROTATE = "q, k = (rotate(y, *cos_sin) for y in (q, k))"


@pytest.fixture(autouse=True, scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """transformers copies code into a folder of the user's before it imports it; here into one that goes."""
    from transformers import dynamic_module_utils

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        patch.setattr(sys, "path", list(sys.path))
        for name in [n for n in sys.modules if n.startswith("transformers_modules")]:
            patch.delitem(sys.modules, name)
        yield
        for name in [n for n in sys.modules if n.startswith("transformers_modules")]:
            del sys.modules[name]


CHECKPOINTS = {
    "grouped": ("half", {}),
    "partial": ("interleaved", {"partial_rotary_factor": 0.5}),
}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_without_consent_it_is_refused_and_its_code_does_not_run(name: str, run, tmp_path: Path) -> None:
    target, values = CHECKPOINTS[name]
    trap = ("import torch\n", f"import torch\nopen({str(tmp_path / 'ran')!r}, 'w')\n")
    source = odd.write(tmp_path / "source", name, **values)
    odd.write_code(source, name, trap)
    for command in (("inspect", source), ("convert", source, tmp_path / "out", "--to", target)):
        done = run(*command, "--json")
        assert done.code == 2
        assert done.json["error"]["code"] == "unknown-family"
        assert TRUST in done.json["error"]["message"]
    assert {p.name for p in tmp_path.iterdir()} == {"source"}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_with_consent_it_converts_both_ways_and_verifies(name: str, run, tmp_path: Path) -> None:
    target, values = CHECKPOINTS[name]
    source = odd.write(tmp_path / "source", name, **values)
    before = snapshot(source)
    found = run("inspect", source, TRUST, "--json").json
    origin = Pairing(target).other.value
    assert found["pairing"] == origin
    assert [(e["source"], e["says"]) for e in found["evidence"]] == [("code", origin)]
    assert "OddForCausalLM of modeling_odd" in found["evidence"][0]["detail"]
    assert found["heads"] == {"query": 6, "key_value": 2}
    width = int(16 * values.get("partial_rotary_factor", 1))
    assert [(r["theta"], r["head_dim"], r["rotary_dim"]) for r in found["rope"]] == [(5000.0, 16, width)]
    done = run("convert", source, tmp_path / "there", "--to", target, TRUST, "--json")
    assert done.code == 0
    assert done.json["verified"]
    assert {"read-by-probe", "class-rotates-other-layout"} <= {w["code"] for w in done.json["warnings"]}
    assert run("convert", tmp_path / "there", tmp_path / "back", "--to", origin, TRUST, "--json").json["verified"]
    verdict = run("verify", source, tmp_path / "there", TRUST, "--json").json
    assert (verdict["passed"], verdict["relation"]) == (True, "converted")
    assert verdict["control"]["failed_as_it_must"]
    shards = [digest(tmp_path / d / "model.safetensors") for d in ("source", "there", "back")]
    assert shards[0] == shards[2] != shards[1]
    assert {p.name for p in (tmp_path / "there").iterdir()} == {p.name for p in source.iterdir()}
    assert snapshot(source) == before


def test_only_ropetool_loads_the_result(run, tmp_path: Path) -> None:
    """The class in the checkpoint would rotate it wrongly, and takes what it is given: the config has to stop it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    source, there = odd.write(tmp_path / "source", "grouped"), tmp_path / "there"
    config = {**read_json(source / "config.json"), "auto_map": {**odd.AUTO_MAP, "AutoTokenizer": ["t.T", None]}}
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert run("convert", source, there, "--to", "half", TRUST).code == 0
    assert read_json(there / "config.json")["auto_map"] == {"AutoTokenizer": ["t.T", None]}
    said = r"these odd weights are stored as half, and the class that comes with them would .*trust_remote_code=True"
    for kind in (AutoConfig, AutoModelForCausalLM):
        for trust in (True, False):
            with pytest.raises(Exception, match=said):
                kind.from_pretrained(there, trust_remote_code=trust)
    with pytest.raises(TypeError, match="got str"):  # the sentence, for a number of columns
        own_class(there).from_pretrained(there)
    options = {"dtype": torch.float32, "attn_implementation": "eager", "trust_remote_code": True}
    want = tiny.logits(ropetool.load(source, **options))
    assert torch.equal(tiny.logits(ropetool.load(there, **options)), want)
    # The fault planted: the guard taken off by hand.
    (there / "config.json").write_text(json.dumps(read_config(there)), encoding="utf-8")
    stock = AutoModelForCausalLM.from_pretrained(there, **options).eval()
    fill(stock)
    assert float((tiny.logits(stock) - want).abs().max()) > 0.1


def test_two_checkpoints_with_the_same_config_code_each_run_their_own_model(tmp_path: Path) -> None:
    """transformers' Auto classes would run the first one's class for the second."""
    import torch

    from ropetool.models.run import load

    classes = []
    for name in CHECKPOINTS:
        source = odd.write(tmp_path / name / "same-name", name)
        classes.append(type(load(source, torch.device("cpu"), None, trust_remote_code=True).model))
    assert classes[0] is not classes[1]


def test_rows_fused_by_key_value_group(tmp_path: Path) -> None:
    """InternLM2's wqkv, 4 query and 2 key-value heads of 8 rows: q, q and k of each group move, v does not."""
    source = odd.write(tmp_path / "s", "grouped", num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    plan = convert.plan(source, tmp_path / "out", Pairing.HALF, trust_remote_code=True)
    convert.apply(plan, check=lambda result: True)
    turned, kept = [0, 2, 4, 6, 1, 3, 5, 7], list(range(8))
    index = [8 * head + row for head in range(8) for row in (kept if head % 4 == 3 else turned)]
    before, after = (load_file(d / "model.safetensors") for d in (source, tmp_path / "out"))
    for kind in ("weight", "bias"):
        name = f"model.layers.1.attention.wqkv.{kind}"
        assert after[name].equal(before[name][index])
    assert {n for n in before if not after[n].equal(before[n])} == {
        f"model.layers.{layer}.attention.wqkv.{kind}" for layer in (0, 1) for kind in ("weight", "bias")
    }


def test_pairs_that_turn_by_the_negative_angle(run, tmp_path: Path) -> None:
    backwards = ("(-x[..., 1::2], x[..., 0::2])", "(x[..., 1::2], -x[..., 0::2])")
    source = odd.write(tmp_path / "source", "grouped", backwards)
    assert run("convert", source, tmp_path / "out", "--to", "half", TRUST, "--json").json["verified"]


MIX = "q = q @ torch.linspace(-1, 1, self.head_dim**2).view(self.head_dim, -1).to(q)"
SCALE = "self.num_key_value_groups", "self.scale = nn.Parameter(torch.ones(config.head_dim)); self.num_key_value_groups"
UNREADABLE = {
    "q mixed after the projection": (((ROTATE, f"{ROTATE}; {MIX}"),), "several of its slots"),
    "a learned scale on q": ((SCALE, (ROTATE, f"{ROTATE}; q = q * self.scale")), "q or k depends on scale"),
    "v turned too": (((ROTATE, "q, k, v = (rotate(y, *cos_sin) for y in (q, k, v))"),), "v is rotated too"),
    "rotates nothing": (((ROTATE, "pass"),), "no rotary position embedding"),
    "fails on import": (
        (("import torch\n", "import torch\nraise OSError('gone')\n"),),
        "cannot be loaded: OSError: gone",
    ),
    "fails when run": (((ROTATE, "raise KeyError('not today')"),), "not today"),
}


@pytest.mark.parametrize("fault", UNREADABLE)
def test_code_that_cannot_be_read_is_refused_with_the_reason(fault: str, run, tmp_path: Path) -> None:
    edits, words = UNREADABLE[fault]
    source = odd.write(tmp_path / "source", "grouped")
    odd.write_code(source, "grouped", *edits)
    for command in (("inspect", source), ("convert", source, tmp_path / "out", "--to", "half")):
        done = run(*command, TRUST, "--json")
        assert done.code == 2
        assert words in done.json["error"]["message"]
    assert {p.name for p in tmp_path.iterdir()} == {"source"}


def test_frequencies_that_no_config_means_are_not_invented(run, tmp_path: Path) -> None:
    slower = ("1.0 / config.rope_theta**exponents", "1.0 / (1.0 + torch.arange(config.head_dim // 2))")
    source = odd.write(tmp_path / "source", "grouped", slower)
    found = run("inspect", source, TRUST, "--json").json
    assert (found["pairing"], found["rope"]) == ("interleaved", [])
    assert "rope-unknown" in {w["code"] for w in found["warnings"]}
    done = run("convert", source, tmp_path / "out", "--to", "half", TRUST, "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "unsupported")
    assert "could not be verified" in done.json["error"]["message"]


def test_a_base_that_the_code_has_fixed_is_read_from_the_code(run, tmp_path: Path) -> None:
    source = odd.write(tmp_path / "source", "grouped", ("config.rope_theta**exponents", "10000.0**exponents"))
    found = run("inspect", source, TRUST, "--json").json
    assert [(r["theta"], r["theta_source"]) for r in found["rope"]] == [(10000.0, "class default")]
    assert "theta-ignored" in {w["code"] for w in found["warnings"]}


def test_what_code_prints_does_not_reach_stdout(run, tmp_path: Path) -> None:
    loud = (("import torch\n", "import torch\nprint('hello')\n"), (ROTATE, f"{ROTATE}; print(1)"))
    source = odd.write(tmp_path / "source", "grouped")
    odd.write_code(source, "grouped", *loud)
    assert run("inspect", source, TRUST, "--json").json["pairing"] == "interleaved"
    assert run("convert", source, tmp_path / "out", "--to", "half", TRUST, "--json").json["verified"]


def test_a_result_that_fails_is_never_seen_and_the_verdict_is_printed(run, tmp_path: Path, monkeypatch) -> None:
    """Here the conversion forgets to move anything."""
    source = odd.write(tmp_path / "source", "grouped")
    monkeypatch.setattr(convert, "parts", lambda moves: [])
    monkeypatch.setattr(convert, "carry_out", lambda *arguments: None)
    done = run("convert", source, tmp_path / "out", "--to", "half", TRUST, "--json")
    assert done.code == 1
    assert not done.json["passed"]
    assert "was not kept" in done.err
    assert {p.name for p in tmp_path.iterdir()} == {"source"}


def own_llama(tmp_path: Path, base: str) -> Path:
    """A Llama whose config.json names a class of its own, derived from another of transformers."""
    source = tmp_path / "source"
    tiny.save(tiny.model_of("llama", hidden_size=128), source)  # all that Helium takes
    module = base.removesuffix("ForCausalLM").lower()
    imported = f"from transformers.models.{module}.modeling_{module} import {base}"
    (source / "modeling_own.py").write_text(f"{imported}\n\n\nclass OwnForCausalLM({base}):\n    pass\n", "utf-8")
    tiny.edit_json(source / "config.json", auto_map={"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"})
    return source


def test_a_known_types_own_class_is_held_against_its_row(run, tmp_path: Path) -> None:
    source = own_llama(tmp_path, "LlamaForCausalLM")
    assert "custom-code" in {w["code"] for w in run("inspect", source, "--json").json["warnings"]}
    found = run("inspect", source, TRUST, "--json").json
    assert [e["source"] for e in found["evidence"]] == ["family", "code"]
    assert not {w["code"] for w in found["warnings"]} & {"custom-code", "custom-code-differs"}


def test_a_known_types_own_class_that_differs_is_said_and_not_converted(run, tmp_path: Path) -> None:
    source = own_llama(tmp_path, "HeliumForCausalLM")
    found = run("inspect", source, TRUST, "--json").json
    (said,) = [w["message"] for w in found["warnings"] if w["code"] == "custom-code-differs"]
    assert "it rotates interleaved, the row half" in said
    done = run("convert", source, tmp_path / "out", "--to", "interleaved", TRUST, "--json")
    assert done.code == 2
    assert "it rotates interleaved" in done.json["error"]["message"]
    assert not (tmp_path / "out").exists()
    assert read_json(source / "config.json")["model_type"] == "llama"


def test_code_in_another_repository_is_refused(run, tmp_path: Path) -> None:
    source = odd.write(tmp_path / "source", "grouped")
    config = read_json(source / "config.json")
    config["auto_map"]["AutoModelForCausalLM"] = "somebody/else--modeling_odd.OddForCausalLM"
    (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
    done = run("inspect", source, TRUST, "--json")
    assert done.code == 2
    assert "code of another repository" in done.json["error"]["message"]
