"""What scripts rely on: the keys of every JSON object, what goes to stdout and what to stderr, lengths."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from ropetool import __version__
from ropetool.cli.options import parse_length, parse_lengths
from ropetool.families.decoder import COMPOSITES
from ropetool.families.table import TABLE
from tests.tiny import edit_json, snapshot

INSPECT = {"checkpoint", "model_type", "scheme", "pairing", "evidence", "rope", "heads", "nope_layers", "moves",
           "warnings"}  # fmt: skip
ROPE = {"layers", "type", "theta", "theta_source", "factor", "original_length", "length", "attention_factor",
        "head_dim", "rotary_dim"}  # fmt: skip
CONVERT = {"output", "from", "to", "model_type", "tensors", "bytes", "seconds", "warnings"}
EXTEND = {"output", "method", "factor", "original_length", "length", "theta", "attention_factor", "changed", "engines",
          "kv_cache", "warnings"}  # fmt: skip
FAMILY = {"model_type", "pairing", "projections", "companions", "source"}


def test_inspect(run, checkpoint) -> None:
    done = run("inspect", checkpoint("qwen3"), "--json")
    assert done.code == 0
    assert done.err == ""
    result = done.json
    assert result.keys() >= INSPECT
    (rope,) = result["rope"]
    assert rope.keys() >= ROPE
    assert (rope["layers"], rope["type"], rope["theta_source"]) == ("all", "default", "rope_parameters.rope_theta")
    assert result["heads"] == {"query": 8, "key_value": 2}
    assert result["moves"].keys() == {"tensors", "bytes", "share"}
    assert [e.keys() for e in result["evidence"]] == [{"source", "says", "detail"}]
    assert result["nope_layers"] == []


def test_inspect_without_rope(run, own) -> None:
    source = own("llama")
    edit_json(source / "config.json", model_type="bloom")
    done = run("inspect", source, "--json")
    assert done.code == 0
    assert done.json.keys() >= INSPECT
    assert (done.json["scheme"], done.json["pairing"], done.json["moves"]) == ("alibi", None, None)
    assert [w.keys() for w in done.json["warnings"]] == [{"code", "message"}]


def test_convert(run, checkpoint, tmp_path: Path) -> None:
    planned = run("convert", checkpoint("llama"), tmp_path / "out", "--to", "interleaved", "--dry-run", "--json")
    assert planned.code == 0
    assert list(tmp_path.iterdir()) == []
    done = run("convert", checkpoint("llama"), tmp_path / "out", "--to", "interleaved", "--json")
    assert done.code == 0
    for result, dry in ((planned.json, True), (done.json, False)):
        assert result.keys() >= CONVERT
        assert (result["from"], result["to"], result["model_type"]) == ("half", "interleaved", "llama")
        assert result["output"] == str(tmp_path / "out")
        assert result["dry_run"] is dry
    same = ("output", "from", "to", "tensors", "bytes", "warnings")
    assert {k: planned.json[k] for k in same} == {k: done.json[k] for k in same}
    assert done.json["seconds"] > 0
    assert (done.json["for"], done.json["loads_in"]) == (None, ["ropetool.load"])


def test_convert_for_an_engine(run, checkpoint, tmp_path: Path) -> None:
    arguments = ("convert", checkpoint("llama"), tmp_path / "out", "--to", "interleaved")
    refused = run(*arguments, "--for", "vllm", "--json")
    assert refused.code == 2
    assert refused.json["error"].keys() >= {"code", "message", "engine", "model_type", "pairing"}
    assert list(tmp_path.iterdir()) == []
    assert run(*arguments, "--for", "nothing").code == 2
    planned = run(*arguments, "--for", "mlx-lm", "--dry-run")
    assert "rope_traditional true; mlx_lm.load" in planned.out
    done = run(*arguments, "--for", "mlx-lm", "--json", "--verify")
    assert done.code == 0
    assert done.json["for"].keys() == {"engine", "version", "origin", "source", "keys", "load"}
    assert done.json["for"]["keys"] == {"rope_traditional": True}
    assert done.json["loads_in"] == ["mlx-lm", "ropetool.load"]


def test_convert_for_another_class(run, checkpoint, tmp_path: Path) -> None:
    source = checkpoint("ernie4_5")
    twin = run("convert", source, tmp_path / "twin", "--to", "half", "--json").json
    assert (twin["model_type"], twin["written_as"]) == ("llama", "llama")
    assert twin["warnings"] == []
    assert run("inspect", tmp_path / "twin", "--json").json["model_type"] == "llama"
    same = run("convert", source, tmp_path / "same", "--to", "half", "--as", "same", "--json").json
    assert (same["model_type"], same["written_as"]) == ("ernie4_5", None)
    shown = run("convert", source, tmp_path / "shown", "--to", "half", "--as", "iquestcoder", "--dry-run").out
    assert "written as" in shown
    refused = run("convert", source, tmp_path / "x", "--to", "half", "--as", "mistral", "--json")
    assert refused.code == 2
    assert refused.json["error"]["code"] == "no-twin"
    assert refused.json["error"]["key"] == "use_bias"
    assert not (tmp_path / "x").exists()


def test_extend(run, checkpoint, tmp_path: Path) -> None:
    options = ("--method", "yarn", "--to", "256", "--json")
    planned = run("extend", checkpoint("llama"), tmp_path / "out", *options, "--dry-run")
    assert list(tmp_path.iterdir()) == []
    done = run("extend", checkpoint("llama"), tmp_path / "out", *options)
    assert (planned.code, done.code) == (0, 0)
    assert done.json.keys() >= EXTEND
    assert {**planned.json, "dry_run": None} == {**done.json, "dry_run": None}
    assert [c.keys() for c in done.json["changed"]] == [{"file", "key", "from", "to"}] * len(done.json["changed"])
    assert {"file": "config.json", "key": "max_position_embeddings", "from": 64, "to": 256} in done.json["changed"]
    assert all(e.keys() >= {"engine", "flags", "note"} for e in done.json["engines"])
    assert (done.json["factor"], done.json["original_length"], done.json["length"]) == (4.0, 64, 256)
    cache = done.json["kv_cache"]
    assert (cache["bytes_per_token"], cache["length"]) == ({"bf16": 256, "fp8": 128}, 256)
    assert cache["bytes"] == {"bf16": 256 * 256, "fp8": 128 * 256}


def test_diff(run, checkpoint, tmp_path: Path) -> None:
    source, other = checkpoint("llama"), tmp_path / "out"
    same = run("diff", source, source, "--json")
    assert (same.code, same.json["same"], same.json["differences"]) == (0, True, [])
    assert run("convert", source, other, "--to", "interleaved", "--as", "same").code == 0
    done = run("diff", source, other, "--json")
    assert (done.code, done.json["same"]) == (1, False)
    assert done.json.keys() >= {"same", "differences", "summary", "notes", "a", "b", "tensors", "turning"}
    assert all(found.keys() >= {"what", "where", "a", "b", "detail"} for found in done.json["differences"])
    assert {found["what"] for found in done.json["differences"]} == {"pairing", "tensor"}
    shown = run("diff", source, other)
    assert shown.code == 1
    assert "model.layers.*.self_attn.q_proj.weight" in shown.out
    assert "the same model in the other layout" in shown.out
    for side, sections in (("a", [2, 3, 3]), ("b", [4, 2, 2])):
        (tmp_path / side).mkdir()
        block = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
        (tmp_path / side / "config.json").write_text((source / "config.json").read_text("utf-8"), encoding="utf-8")
        edit_json(tmp_path / side / "config.json", rope_parameters=block)
    bare = run("diff", tmp_path / "a", tmp_path / "b")
    assert (bare.code, "mrope_section" in bare.out, "[4, 2, 2]" in bare.out) == (1, True, True)
    assert "[no-weights]" in bare.out
    refused = run("diff", source, tmp_path / "nothing", "--json")
    assert (refused.code, refused.json["error"]["code"]) == (2, "missing-file")


def test_families(run) -> None:
    done = run("families", "--json")
    assert done.code == 0
    rows = done.json["families"]
    assert [row["model_type"] for row in rows] == list(TABLE)
    assert all(row.keys() >= FAMILY for row in rows)
    (one,) = run("families", "qwen3", "--json").json["families"]
    assert one["projections"] == ["q_proj", "k_proj"]
    assert one["companions"] == ["q_norm", "k_norm"]
    assert one["pairing"] == "half"


def test_families_list_the_multimodal_types(run) -> None:
    rows = {row["model_type"]: row for row in run("families", "--json").json["composites"]}
    assert rows.keys() == COMPOSITES.keys()
    assert all(row.keys() >= {"text", "path", "towers", "converts", "reason"} for row in rows.values())
    assert all(row["converts"] == (row["reason"] is None) for row in rows.values())
    done = run("families", "llava", "--json").json
    assert [row["model_type"] for row in done["families"]] == ["llama"]
    assert done["composites"] == [rows["llava"]]
    assert rows["llava"] == {
        "model_type": "llava", "text": "llama", "path": "text_config", "towers": ["vision_tower"], "converts": True,
        "reason": None,
    }  # fmt: skip
    assert run("families", "llama", "--json").json["composites"] == []
    table = run("families", "llava").out
    assert all(word in table for word in ("llava", "llama", "text_config", "vision_tower", "yes"))


def test_families_have_every_key_that_scripts_are_promised(run) -> None:
    promised = FAMILY | {"twins", "checked"}
    assert all(row.keys() >= promised for row in run("families", "--json").json["families"])


@pytest.mark.parametrize("name", ["llama", "glm4", "deepseek_v3", "gpt_neox"])
def test_tables_hold_the_same_facts(name: str, run, checkpoint) -> None:
    done = run("inspect", checkpoint(name))
    facts = run("inspect", checkpoint(name), "--json").json
    assert done.err == ""
    for part in (facts["pairing"], facts["model_type"], f"{facts['rope'][0]['rotary_dim']} of", "64 tokens"):
        assert part in done.out
    assert max(map(len, done.out.splitlines())) <= 120


def test_no_colour_and_no_bar_in_a_pipe(start, checkpoint, tmp_path: Path) -> None:
    process = start("convert", checkpoint("llama"), tmp_path / "out", "--to", "interleaved")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "\x1b" not in out + err
    assert err == ""
    assert "half -> interleaved" in out


def test_quiet_changes_nothing_on_stdout(run, checkpoint, tmp_path: Path) -> None:
    arguments = ("extend", checkpoint("llama"), tmp_path / "out", "--method", "ntk", "--factor", "2", "--dry-run")
    loud, quiet = run(*arguments), run(*arguments, "--quiet")
    assert loud.out == quiet.out
    assert quiet.err == ""


def test_warnings_reach_both_forms(run, own, tmp_path: Path) -> None:
    source = own("llama")
    (source / "pytorch_model.bin").write_bytes(b"x")
    arguments = ("convert", source, tmp_path / "out", "--to", "interleaved", "--dry-run")
    assert "pytorch_model.bin was not copied" in run(*arguments).out.replace("\n", " ")
    codes = {w["code"] for w in run(*arguments, "--json").json["warnings"]}
    assert codes == {"left-behind", "class-rotates-other-layout", "no-twin"}


def test_a_result_is_never_infinity_or_nan(run, checkpoint) -> None:
    text = run("inspect", checkpoint("llama"), "--json").out
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_version_and_help(run) -> None:
    assert run("--version").out == f"ropetool {__version__}\n"
    assert run("--help").code == 0
    for command in ("inspect", "convert", "extend", "verify", "evaluate", "report", "families", "demo"):
        done = run(command, "--help")
        assert done.code == 0
        assert f"Example: ropetool {command}" in done.out
        assert "--json" in done.out


def test_the_paths_of_a_conversion_may_hold_spaces_and_markup(run, own, tmp_path: Path) -> None:
    source = own("llama").rename(tmp_path / "a [bold]model[red] ü")
    before = snapshot(source)
    done = run("convert", source, tmp_path / "out [red]", "--to", "interleaved")
    assert done.code == 0
    assert "[red]" in done.out
    assert "[bold]" in run("inspect", source).out
    assert snapshot(source) == before


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("32768", 32768), ("32k", 32768), ("32K", 32768), ("1m", 1048576), ("1M", 1048576), ("1.5k", 1536), (" 4k ", 4096),
     ("0.5m", 524288), (4096, 4096)],
)  # fmt: skip
def test_lengths(text: str | int, tokens: int) -> None:
    assert parse_length(text) == tokens


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "0", "0k", "1g", "32 k", "1e3", "1.3", "0x10", "1.0001k", "nan", "³", "9" * 400]
)
def test_no_lengths(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a length in tokens"):
        parse_length(text)


def test_lists_of_lengths() -> None:
    assert parse_lengths("1k,2k,4096") == (1024, 2048, 4096)
    with pytest.raises(typer.BadParameter):
        parse_lengths("1k,,2k")


def test_lengths_of_both_spellings_are_the_same_extension(run, checkpoint, tmp_path: Path) -> None:
    options = ("extend", checkpoint("llama"), tmp_path / "out", "--method", "linear", "--dry-run", "--json")
    assert run(*options, "--to", "1k").json == run(*options, "--to", "1024").json
    assert run(*options, "--to", "1m", "--original", "64").json["length"] == 1 << 20


def test_what_verify_refuses_never_has_its_name(run, checkpoint, tmp_path: Path, monkeypatch) -> None:
    """Here the conversion forgets to move anything; --verify looks before the result is renamed."""
    from ropetool import convert

    monkeypatch.setattr(convert, "pieces_of", lambda moves: ())
    done = run("convert", checkpoint("llama"), tmp_path / "out", "--to", "interleaved", "--verify", "--json")
    assert (done.code, done.json["passed"]) == (1, False)
    assert "was not kept" in done.err
    assert list(tmp_path.iterdir()) == []
