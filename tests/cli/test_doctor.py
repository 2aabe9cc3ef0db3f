"""``ropetool doctor``: exit codes, what a script reads, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ropetool import doctor
from ropetool.engines.listeners import LISTENERS
from tests.test_doctor import CONFLICTS, LONG, THETA, YARN, Trap, dual, found, save, v4, v5


@pytest.mark.parametrize("trap", CONFLICTS, ids=lambda trap: trap.name)
def test_a_contradiction_is_told_by_what_each_engine_hears(trap: Trap, run, tmp_path: Path) -> None:
    done = run("doctor", save(tmp_path, trap.config), "--json")
    assert done.code == 1
    assert [warning["code"] for warning in done.json["warnings"]] == ["config-conflict"]
    assert done.json["means"]["rope"] == []
    diagnosis = doctor.diagnose(tmp_path)
    table = run("doctor", tmp_path).out
    for engine, (verdict, said) in trap.says.items():
        finding = found(diagnosis, engine)
        assert finding.verdict == verdict, engine
        (row,) = [
            entry for entry in done.json["engines"]
            if entry["engine"] == engine.split()[0] and entry["version"] == finding.listener.version
        ]  # fmt: skip
        if verdict == "unknown":
            assert said.split(", ")[0] in " ".join(table.split()), engine
            assert row["theta"] is not None
        assert row["right"] is (None if verdict == "unknown" else False)


BAD = (
    ({"rope_theta": "100000"}, "rope_theta"),
    ({"rope_parameters": [1]}, "rope_parameters"),
    (v4({**YARN, "factor": "4"}), "factor"),
    (v4({**YARN, "factor": -4.0}), "factor"),
    (v4({**YARN, "factor": 0.5}), "factor"),
    (v4({"rope_type": 3, "factor": 2.0}), "rope_type"),
    (v4({**LONG, "long_factor": ["a"] * 32}), "long_factor"),
    ({"num_attention_heads": "9", "rope_theta": THETA}, "num_attention_heads"),
)


@pytest.mark.parametrize(("changes", "key"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_value_of_the_wrong_kind_is_refused(changes: dict[str, Any], key: str, run, tmp_path: Path) -> None:
    done = run("doctor", save(tmp_path, changes), "--json")
    assert done.code == 2
    assert key in done.json["error"]["message"]


def test_exit_code_counts_wrong_and_loads_not_alone(run, tmp_path: Path) -> None:
    save(tmp_path, v5({"rope_type": "default"}))
    assert run("doctor", tmp_path).code == 1
    assert run("doctor", tmp_path, "--engine", "transformers").code == 1
    assert run("doctor", tmp_path, "--engine", "ctranslate2").code == 0
    assert run("doctor", tmp_path, "--engine", "torchtune").code == 0  # unknown
    assert run("doctor", tmp_path, "--engine", "nothing").code == 2
    save(tmp_path, dual(YARN))
    assert run("doctor", tmp_path, "--engine", "ctranslate2").code == 1  # loads not
    assert run("doctor", tmp_path, "--engine", "transformers").code == 0


ENGINE = {"engine", "version", "origin", "pairing", "right", "theta", "type", "factor", "attention_factor", "length",
          "ignores", "verdict", "fix"}  # fmt: skip


def test_what_a_script_reads(run, tmp_path: Path) -> None:
    done = run("doctor", save(tmp_path, v5({"rope_type": "default"})), "--engine", "mlx-lm", "--json")
    assert done.err == ""
    assert done.json.keys() >= {"engines", "warnings"}
    (row,) = done.json["engines"]
    assert row.keys() >= ENGINE
    assert {key: row[key] for key in ENGINE - {"fix", "version"}} == {
        "engine": "mlx-lm", "origin": "ran", "pairing": "half", "right": False, "theta": 10000.0, "type": "default",
        "factor": None, "attention_factor": 1.0, "length": 32768, "ignores": ["rope_parameters"], "verdict": "wrong",
    }  # fmt: skip
    assert '"rope_theta": 100000.0' in row["fix"]


def test_the_table_fits_a_pipe(run, tmp_path: Path) -> None:
    done = run("doctor", save(tmp_path, dual(YARN)))
    assert max(map(len, done.out.splitlines())) <= 120
    assert all(row.engine.value in done.out for row in LISTENERS)
    words = " ".join(done.out.split())
    assert "loads-not" in words
    assert "--method ntk --to 32768 --replace" in words


def test_no_rotation(run, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    done = run("doctor", tmp_path, "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "no-rope")
