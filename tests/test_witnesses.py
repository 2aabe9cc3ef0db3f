"""The verbs and their witnesses: each sees a checkpoint that was never permuted, and the headline's remedy mends it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ropetool import convert, extend
from ropetool.cli import app
from ropetool.detect import Inspection, inspect
from ropetool.doctor import diagnose
from ropetool.errors import AlreadyConvertedError, ConfigError, LayoutContradictedError
from ropetool.families.methods import Method
from ropetool.families.reading import Evidence
from ropetool.families.trained_length import declared_length
from ropetool.models import text_findings
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.native import META, native
from tests.tiny import edit_json
from tests.witnesses import KnowsRows, believe, never_permuted

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED
TEXT = Evidence("text", "interleaved", "2.9 nats against 9.1", 0.999, {"gap": 6.2})
HEADLINE = (
    "the class says half, the weights say interleaved: this checkpoint was probably never permuted; `ropetool convert "
    "SRC DST --from interleaved --to half` mends it"
)


@pytest.fixture
def witness(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> KnowsRows:
    """A witness that knows the rows of the tiny Llama, in the place of the statistic."""
    return believe(monkeypatch, KnowsRows(checkpoint("llama")))


def codes(warnings: Any) -> list[str]:
    return [warning.code for warning in warnings]


def seen(result: Inspection) -> list[tuple[str, str]]:
    return [(evidence.source, evidence.says) for evidence in result.evidence]


def test_inspect_asks_the_weights_only_when_told(checkpoint, witness: KnowsRows) -> None:
    plain = inspect(checkpoint("llama"))
    assert witness.asked == 0
    assert (plain.pairing, seen(plain)) == ("half", [("family", "half")])
    assert plain.verdict is not None
    assert "not provable from the config" in plain.verdict.strength
    asked = inspect(checkpoint("llama"), weights=True)
    assert seen(asked) == [("family", "half"), ("weights", "half")]
    assert asked.verdict is not None
    assert asked.verdict.strength == "agreement of 2 independent witnesses (the class and the weights)"
    assert not asked.warnings


def test_a_checkpoint_that_was_never_permuted(own, witness: KnowsRows, monkeypatch: pytest.MonkeyPatch) -> None:
    source = never_permuted(own("llama"))
    assert inspect(source).pairing == "half"  # nobody looked
    result = inspect(source, weights=True)
    assert result.pairing == "interleaved"
    assert result.verdict is not None
    assert result.verdict.headline == HEADLINE
    assert codes(result.warnings) == ["layout-contradicted"]
    by_text(TEXT, monkeypatch)
    both = inspect(source, weights=True, text="it is read by nobody")
    assert both.verdict is not None
    assert "the class says half, the weights and the text say interleaved" in both.verdict.headline
    assert [e.source for e in both.evidence] == ["family", "weights", "text"]


def by_text(evidence: Evidence, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text says so, whoever reads it."""

    def findings(path: Path, reading: Any, *_: Any, **__: Any) -> text_findings.TextFindings:
        return text_findings.TextFindings(evidence, None, declared_length(path, reading), ())

    monkeypatch.setattr(text_findings, "text_findings", findings)


def test_layers_that_differ_are_mixed(own, witness: KnowsRows) -> None:
    result = inspect(never_permuted(own("llama"), layers=(1,)), weights=True)
    assert result.pairing == "mixed"
    assert result.verdict is not None
    assert "by layer: half, interleaved" in result.verdict.headline
    assert codes(result.warnings)[0] == "layout-mixed"
    with pytest.raises(LayoutContradictedError, match="start again from its source"):
        convert.plan(Path(result.checkpoint), Path(result.checkpoint).parent / "there", INTERLEAVED)


@pytest.mark.parametrize("to", Pairing)
def test_convert_stops_and_the_remedy_mends_it(
    to: Pairing, checkpoint, own, witness: KnowsRows, tmp_path: Path
) -> None:
    source, there = never_permuted(own("llama")), tmp_path / "there"
    with pytest.raises(LayoutContradictedError) as stopped:
        convert.plan(source, there, to)
    assert stopped.value.exit_code == 2
    assert HEADLINE in stopped.value.message
    assert "--from half to go by the config" in stopped.value.message
    assert "--from interleaved to go by what was measured" in stopped.value.message
    assert stopped.value.fields["declared"] == "half"
    assert stopped.value.fields["measured"] == "interleaved"
    assert [w["source"] for w in stopped.value.fields["witnesses"]] == ["family", "weights"]
    if to is INTERLEAVED:
        with pytest.raises(AlreadyConvertedError, match="you say so"):
            convert.plan(source, there, to, INTERLEAVED)
        return
    result = convert.apply(convert.plan(source, there, to, INTERLEAVED))
    assert "layout-contradicted" not in codes(result.warnings)
    mended = inspect(there, weights=True)
    assert (mended.pairing, codes(mended.warnings)) == ("half", [])
    right, wrong = tiny.logits(tiny.load(checkpoint("llama"))), tiny.logits(tiny.load(source))
    assert torch.equal(tiny.logits(tiny.load(there)), right)
    assert (wrong - right).abs().max() > 0.1  # the fault was one


def test_from_goes_before_the_weights_and_is_a_warning(own, witness: KnowsRows, tmp_path: Path) -> None:
    planned = convert.plan(never_permuted(own("llama")), tmp_path / "there", INTERLEAVED, HALF)
    (warning,) = (w for w in planned.warnings if w.code == "layout-contradicted")
    assert warning.message == "the weights say interleaved, and --from half: it is converted as --from says"


def test_weights_that_are_asked_beside_the_copying_stop_it(own, witness: KnowsRows, tmp_path: Path) -> None:
    source = never_permuted(own("llama"))
    before = {path.name for path in tmp_path.iterdir()}
    planned = convert.plan(source, tmp_path / "there", INTERLEAVED, weights_later=True)
    assert "layout-contradicted" not in codes(planned.warnings)
    with pytest.raises(LayoutContradictedError, match="the class says half, the weights say interleaved"):
        convert.apply(planned)
    assert {path.name for path in tmp_path.iterdir()} == before
    planned = convert.plan(source, tmp_path / "there", INTERLEAVED, HALF, weights_later=True)
    assert "layout-contradicted" in codes(convert.apply(planned).warnings)
    with pytest.raises(LayoutContradictedError):  # in place there is no later
        convert.plan(source, None, INTERLEAVED, weights_later=True)


def test_the_text_stops_a_conversion_too(checkpoint, tmp_path: Path) -> None:
    with pytest.raises(LayoutContradictedError, match="the class says half, the text says interleaved"):
        convert.plan(checkpoint("llama"), tmp_path / "there", INTERLEAVED, heard=(TEXT,))
    weak = Evidence("text", "interleaved", "a small gap", 0.7)
    convert.plan(checkpoint("llama"), tmp_path / "there", INTERLEAVED, heard=(weak,))


def test_random_weights_stop_nothing(checkpoint, tmp_path: Path) -> None:
    """By the statistic itself: a tiny random checkpoint shows nothing, and converts as ever."""
    result = inspect(checkpoint("llama"), weights=True)
    assert seen(result) == [("family", "half"), ("weights", "unknown")]
    planned = convert.plan(checkpoint("llama"), tmp_path / "there", INTERLEAVED)
    assert "layout-contradicted" not in codes(planned.warnings)


def test_a_marker_over_other_weights(checkpoint, own, witness: KnowsRows, tmp_path: Path) -> None:
    """config.json of a converted checkpoint beside the weights of its source."""
    convert.apply(convert.plan(checkpoint("llama"), tmp_path / "there", INTERLEAVED, written_as="same"))
    right = inspect(tmp_path / "there", weights=True)
    assert right.verdict is not None
    assert (right.pairing, right.verdict.warning) == ("interleaved", "")
    assert "(the marker and the weights)" in right.verdict.strength
    wrong = own("llama")
    (wrong / "config.json").write_bytes((tmp_path / "there" / "config.json").read_bytes())
    result = inspect(wrong, weights=True)
    assert result.pairing == "half"
    assert codes(result.warnings)[0] == "layout-contradicted"
    assert "class-rotates-other-layout" not in codes(result.warnings)
    assert result.verdict is not None
    assert "the marker says interleaved, the weights say half" in result.verdict.headline
    with pytest.raises(LayoutContradictedError, match="To go by the marker all the same, give --from interleaved"):
        convert.plan(wrong, tmp_path / "other", HALF)
    with pytest.raises(ConfigError, match="was marked interleaved"):
        convert.plan(wrong, tmp_path / "other", INTERLEAVED, HALF)


def test_doctor_holds_the_engines_against_the_weights(checkpoint, own, witness: KnowsRows) -> None:
    right = diagnose(checkpoint("llama"))
    assert not codes(right.warnings)
    result = diagnose(never_permuted(own("llama")))
    assert (result.pairing, result.passed) == ("interleaved", False)
    assert codes(result.warnings)[0] == "layout-contradicted"
    stock = next(f for f in result.findings if f.listener.engine.value == "transformers")
    assert stock.verdict.value == "wrong"
    assert "--from interleaved --to half" in stock.fix


def test_extend_says_that_the_layout_is_wrong(checkpoint, own, witness: KnowsRows, tmp_path: Path) -> None:
    for source, expected in ((checkpoint("llama"), False), (never_permuted(own("llama")), True)):
        planned = extend.plan(source, tmp_path / "there", Method.YARN, factor=2)
        assert ("layout-contradicted" in codes(planned.result.warnings)) is expected


def test_weights_that_are_not_there_are_unknown(own) -> None:
    source = own("llama")
    (source / "model.safetensors").unlink()
    assert seen(inspect(source, weights=True)) == [("family", "half"), ("weights", "unknown")]


def test_a_key_of_an_engine_that_contradicts_the_class(own, tmp_path: Path) -> None:
    source = own("llama")
    edit_json(source / "config.json", rope_traditional=True)
    result = inspect(source)
    assert (result.pairing, seen(result)) == ("half", [("family", "half"), ("config", "interleaved")])
    assert codes(result.warnings) == ["key-contradicts"]
    assert "mlx-lm" in result.evidence[1].detail
    assert "key-contradicts" in codes(convert.plan(source, tmp_path / "there", INTERLEAVED).warnings)
    edit_json(source / "config.json", rope_traditional=False)
    assert not inspect(source).warnings


def test_the_code_is_asked_only_when_told(checkpoint) -> None:
    result = inspect(checkpoint("llama"), code=True)
    assert seen(result) == [("family", "half"), ("code", "half")]
    assert result.verdict is not None
    assert result.verdict.strength.startswith("declared by the class")


def test_whoever_cannot_be_asked_is_unknown(tmp_path: Path) -> None:
    source = native(tmp_path / "a", META, "consolidated.00.pth")
    result = inspect(source, code=True, weights=True, text="unread")
    assert seen(result) == [("config", "interleaved"), ("code", "unknown"), ("weights", "unknown"), ("text", "unknown")]
    assert result.pairing == "interleaved"
    still = tmp_path / "b"
    still.mkdir()
    (still / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    assert codes(inspect(still, weights=True).warnings) == ["no-rope", "not-asked"]
    assert codes(inspect(still).warnings) == ["no-rope"]


def run(*arguments: object) -> int:
    return app.run([str(argument) for argument in arguments])


def test_the_command_line(own, witness: KnowsRows, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = never_permuted(own("llama"))
    assert run("inspect", source, "--weights", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["pairing"] == "interleaved"
    assert shown["verdict"] == {
        "pairing": "interleaved", "strength": "the weights against the class", "headline": HEADLINE,
    }  # fmt: skip
    assert shown["warnings"][0] == {"code": "layout-contradicted", "message": HEADLINE}
    assert shown["evidence"][1]["confidence"] == 0.9999
    assert run("inspect", source, "--weights") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith(HEADLINE)
    assert printed.count(HEADLINE) == 1
    assert "interleaved (over 99.9% sure): by layer" in printed
    assert run("convert", source, tmp_path / "there", "--to", "interleaved", "--json") == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert (error["code"], error["measured"]) == ("layout-contradicted", "interleaved")
    assert not (tmp_path / "there").exists()
    assert run("convert", source, tmp_path / "there", "--from", "interleaved", "--to", "half", "--json") == 0


def test_convert_asks_a_text_when_it_is_given(
    checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    by_text(TEXT, monkeypatch)
    command = ("convert", checkpoint("llama"), tmp_path / "there", "--to", "interleaved")
    assert run(*command, "--text", "bundled") == 2
    assert "the text says interleaved: 2.9 nats against 9.1" in capsys.readouterr().err
    assert not (tmp_path / "there").exists()
    assert run(*command, "--text", "bundled", "--from", "half", "--json") == 0
    assert "layout-contradicted" in capsys.readouterr().out
    assert run("convert", checkpoint("llama"), tmp_path / "other", "--to", "interleaved", "--quiet") == 0
