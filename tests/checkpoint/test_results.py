"""Results that were kept: read back as they were, and refused by the key where they were not made so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ropetool.checkpoint.results import MOST_ENTRIES, read_evaluation, read_verification
from ropetool.errors import ConfigError
from tests.reporting import measured  # noqa: F401 - a fixture

HUGE = 10**400


def short(part: object) -> str:
    """A name that is the same in every process."""
    return getattr(part, "__name__", str(part))[:40]


def test_what_was_kept_is_read(measured) -> None:  # noqa: F811  a fixture
    kept = json.loads(measured.verified.read_text("utf-8"))
    found = read_verification(measured.verified)
    assert (found.passed, found.relation, found.tokens) == (True, "extended", 64)
    assert found.checkpoints == (str(measured.source), str(measured.extended))
    assert (found.tolerance, found.control) == (kept["tolerance"], kept["control"]["max_abs_diff"])
    assert [(c.name, c.passed, c.detail, c.where) for c in found.checks] == [
        (c["name"], c["passed"], c["detail"], c["where"]) for c in kept["checks"]
    ]
    assert [(s.start, s.stop, s.difference) for s in found.by_position] == [
        (s["from"], s["to"], s["max_abs_diff"]) for s in kept["by_position"]
    ]
    kept, result = json.loads(measured.evaluated.read_text("utf-8")), read_evaluation(measured.evaluated)
    assert (result.checkpoint, result.against) == (str(measured.extended), str(measured.source))
    assert result.trained_length == 256
    assert [(b.start, b.stop, b.loss, b.tokens, b.against_loss) for b in result.lengths] == [
        (b["from"], b["to"], b["loss"], b["tokens"], b["against_loss"]) for b in kept["lengths"]
    ]
    assert [(c.length, c.depth, c.correct, c.against_correct, c.trials) for c in result.passkey] == [
        (c["length"], c["depth"], c["correct"], c["against_correct"], c["trials"]) for c in kept["passkey"]
    ]


def test_of_a_server_too(measured, tmp_path: Path) -> None:  # noqa: F811  a fixture
    kept = json.loads(measured.verified.read_text("utf-8"))
    kept |= {"relation": "served", "by_position": [{"from": 0, "to": 16, "apart": 0.5}], "control": {"apart": 3.0}}
    del kept["a"], kept["b"]
    assert read_verification(saved(tmp_path, kept)).checkpoints == ()
    found = read_verification(saved(tmp_path, kept | {"checkpoint": "served"}))
    assert found.checkpoints == ("served",)
    assert (found.relation, found.by_position[0].difference, found.control) == ("served", 0.5, None)


def test_what_json_cannot_say_is_none(measured, tmp_path: Path) -> None:  # noqa: F811  a fixture
    kept = json.loads(measured.evaluated.read_text("utf-8"))
    kept["lengths"][0]["loss"] = None
    assert read_evaluation(saved(tmp_path, kept)).lengths[0].loss is None


def saved(directory: Path, kept: dict[str, Any]) -> Path:
    path = directory / "kept.json"
    path.write_text(json.dumps(kept), encoding="utf-8")
    return path


# (what is read, where the value is, the value, what is said)
FAULTS: tuple[tuple[Callable[..., object], tuple[str | int, ...], Any, str], ...] = (
    (read_verification, ("passed",), 1, "passed is 1; it must be true or false"),
    (read_verification, ("relation",), ["same"], "relation is ['same']; it must be a text"),
    (read_verification, ("tokens",), -1, "tokens is -1; it must be a whole number"),
    (read_verification, ("tokens",), 0.5, "tokens is 0.5; it must be a whole number"),
    (read_verification, ("tokens",), True, "tokens is True; it must be a whole number"),
    (read_verification, ("tolerance",), "0.1", "tolerance is '0.1'; it must be a number"),
    (read_verification, ("tolerance",), HUGE // 10, "tolerance is 1000"),
    (read_verification, ("control",), None, "control is None; it must be an object"),
    (read_verification, ("checks",), {}, "checks is {}; it must be a list of objects"),
    (read_verification, ("checks", 1), "x", "checks is ["),
    (read_verification, ("checks", 1, "name"), 3, "checks[1].name is 3; it must be a text"),
    (read_verification, ("by_position", 0, "to"), 0, "by_position[0].to is 0; it must be above from, which is 0"),
    (read_evaluation, ("checkpoint",), None, "checkpoint is None; it must be a text"),
    (read_evaluation, ("lengths", 0, "loss"), "low", "lengths[0].loss is 'low'; it must be a number"),
    (read_evaluation, ("lengths", 0, "from"), HUGE // 10, "lengths[0].from is 1000"),
    (read_evaluation, ("lengths",), [{}] * (MOST_ENTRIES + 1), f"has {MOST_ENTRIES + 1} entries"),
    (read_evaluation, ("passkey", 0, "depth"), 1.5, "passkey[0].depth is 1.5; it must be a share from 0 to 1"),
    (read_evaluation, ("passkey", 0, "correct"), 9, "passkey[0].correct is 9; it must be at most the trials, 2"),
    (read_evaluation, ("passkey", 0, "against_correct"), 9, "at most the trials, 2"),
    (read_evaluation, ("passkey", 0, "trials"), 0, "at most the trials, 0"),
)  # fmt: skip


@pytest.mark.parametrize(("read", "place", "value", "said"), FAULTS, ids=short)
def test_a_fault_is_named_by_its_key(read, place, value, said: str, measured, tmp_path: Path) -> None:  # noqa: F811
    file = measured.verified if read is read_verification else measured.evaluated
    kept = json.loads(file.read_text("utf-8"))
    holder = kept
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = value
    with pytest.raises(ConfigError) as caught:
        read(saved(tmp_path, kept))
    assert said in caught.value.message
    assert caught.value.message.startswith("kept.json")


@pytest.mark.parametrize("read", [read_verification, read_evaluation])
def test_a_key_that_is_missing_is_named(read, measured, tmp_path: Path) -> None:  # noqa: F811  a fixture
    file = measured.verified if read is read_verification else measured.evaluated
    kept = json.loads(file.read_text("utf-8"))
    for key in ("device", "dtype"):
        with pytest.raises(ConfigError, match=f"kept.json: {key} is missing"):
            read(saved(tmp_path, {name: value for name, value in kept.items() if name != key}))


@pytest.mark.parametrize(
    ("read", "kept", "said"),
    [
        (read_verification, {"lengths": []}, "holds no result of verify"),
        (read_evaluation, {"relation": "same"}, "holds no result of evaluate"),
        (read_evaluation, {"error": {"code": "usage", "message": "the text is too short"}}, "the text is too short"),
    ],
)
def test_another_result_is_no_result(read, kept, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        read(saved(tmp_path, kept))
