"""Doctor: the known traps, each as a row; verdicts, exit codes and what a script reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ropetool import convert, doctor
from ropetool.doctor import Diagnosis, Finding, Verdict
from ropetool.engines import compare
from ropetool.engines.heard import Heard, Turn
from ropetool.engines.listeners import LISTENERS
from ropetool.engines.names import EngineName
from ropetool.engines.opening import open_case
from ropetool.engines.repair import find_edit
from ropetool.errors import ConfigError, NoRotaryError
from ropetool.rope.frequencies import Default, Linear, LongRope, Yarn
from ropetool.rope.layout import Pairing

LLAMA = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 2, "head_dim": 64,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 64, "max_position_embeddings": 32768,
}  # fmt: skip
THETA = 100000.0
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
LISTS = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
LONG = {"rope_type": "longrope", **LISTS, "original_max_position_embeddings": 8192}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
NESTED = {
    "full_attention": {**YARN, "rope_theta": 1e6, "truncate": False},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
GEMMA3 = {"model_type": "gemma3_text", "num_attention_heads": 8, "num_key_value_heads": 2,
          "layer_types": ["full_attention", "sliding_attention"]}  # fmt: skip
PHI3 = {"model_type": "phi3", "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": None}


def v5(block: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {**block, "rope_theta": THETA}, **more}


def v4(block: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"rope_scaling": block, "rope_theta": THETA, **more}


def dual(block: dict[str, Any], **more: Any) -> dict[str, Any]:
    return v4(block) | v5(block, **more)


TF5, TF4 = "transformers 5", "transformers 4"
MLX, CT2, TUNE = "mlx-lm", "ctranslate2", "torchtune"


@dataclass(frozen=True)
class Trap:
    """A config, and by engine the verdict with a part of its reason."""

    name: str
    config: dict[str, Any]
    says: dict[str, tuple[str, str]]


RIGHT = ("right", "")
BASE_LOST = ("wrong", "theta 10000 instead of 100000")
TRAPS = (
    Trap("as transformers 5 saves it", v5({"rope_type": "default"}),
         {TF5: RIGHT, TF4: BASE_LOST, MLX: BASE_LOST, CT2: RIGHT, TUNE: ("unknown", "your recipe")}),
    Trap("as transformers 4 saves it", {"rope_theta": THETA}, {TF5: RIGHT, TF4: RIGHT, MLX: RIGHT, CT2: RIGHT}),
    Trap("dual", dual(YARN), {TF5: RIGHT, TF4: RIGHT, MLX: RIGHT, CT2: ("loads-not", "'yarn'"),
                              TUNE: ("wrong", "no scaling instead of yarn (factor 4 over 8192)")}),
    Trap("both blocks, the base in one", {"rope_scaling": YARN, **v5(YARN)}, {TF5: BASE_LOST, TF4: BASE_LOST}),
    Trap("a block's base is null", {"rope_parameters": {**YARN, "rope_theta": None}, "rope_theta": 1e4},
         {TF5: ("loads-not", "rope_parameters.rope_theta is null"), TF4: ("wrong", "no scaling instead of yarn")}),
    Trap("the base is null", {"rope_theta": None}, {TF5: ("loads-not", "null"), TF4: ("loads-not", "null")}),
    Trap("no factor", v5({key: value for key, value in YARN.items() if key != "factor"}),
         {TF5: ("loads-not", "has no factor")}),
    Trap("attention factor", dual({**YARN, "attention_factor": 1.0}),
         {TF5: RIGHT, TF4: RIGHT, MLX: ("wrong", "attention factor 1.1386294 instead of 1")}),
    Trap("truncate", dual({**YARN, "truncate": False}), {TF5: RIGHT, MLX: ("wrong", "truncate True instead of False")}),
    Trap("longrope", dual(LONG, original_max_position_embeddings=8192),
         {TF5: RIGHT, TF4: RIGHT, MLX: ("wrong", "the long factors for short prompts too")}),
    Trap("longrope, no factor and no trained length above", dual(LONG), {TF5: RIGHT, TF4: ("loads-not", "no factor")}),
    Trap("longrope, the trained length in the block alone", dual({**LONG, "factor": 4.0}),
         {TF5: RIGHT, TF4: ("wrong", "trained length 32768 instead of 8192")}),
    Trap("llama3", dual(LLAMA3), {TF5: RIGHT, MLX: RIGHT, CT2: ("wrong", "no scaling instead of llama3")}),
    Trap("dynamic", dual({"rope_type": "dynamic", "factor": 4.0}), {TF5: RIGHT, MLX: RIGHT}),
    Trap("su", v4({**LONG, "rope_type": "su"}), {TF5: ("loads-not", "'su'"), MLX: ("loads-not", "'su'")}),
    Trap("mrope", v4({"type": "mrope", "mrope_section": [8, 12, 12]}),
         {TF5: ("loads-not", "'mrope'"), TF4: ("loads-not", "'mrope'"), MLX: RIGHT}),
    Trap("truncate in a block per layer type", {**GEMMA3, "rope_parameters": NESTED},
         {TF5: ("wrong", "full_attention layers: truncate True instead of False"),
          MLX: ("wrong", "full_attention layers: no scaling instead of yarn")}),
    Trap("phi3, yarn", {**PHI3, **v4(YARN)}, {TF5: ("loads-not", "short_factor")}),
    Trap("phi3, a block of five keys", {**PHI3, **v5(LONG, original_max_position_embeddings=8192),
                                        "rope_scaling": {**LONG, "type": "longrope"}, "rope_theta": THETA},
         {TF5: RIGHT, TF4: ("loads-not", "type, short_factor, long_factor and nothing else")}),
    Trap("glm in mlx-lm turns whole heads", {"model_type": "glm", "rope_theta": THETA, "partial_rotary_factor": 0.5},
         {TF5: RIGHT, MLX: ("wrong", "turns 64 rows of a head instead of 32")}),
    Trap("mixtral without head_dim", {"model_type": "mixtral", "head_dim": None, **dual(YARN)},
         {TF5: ("loads-not", "no head_dim"), TF4: ("loads-not", "no head_dim")}),
    Trap("a class that it does not have", {"model_type": "nanochat", "rope_theta": THETA},
         {TF4: ("loads-not", "no model type nanochat")}),
)  # fmt: skip

# Configs that contradict themselves, or that a class would pass over: by engine what it hears of them all the same.
CONFLICTS = (
    Trap("blocks differ", {"rope_scaling": YARN, **v5({**YARN, "factor": 2.0})},
         {TF5: ("unknown", "theta 10000, factor 4"), TF4: ("unknown", "factor 4")}),
    Trap("bases differ", v5({"rope_type": "default"}, rope_theta=1e6),
         {TF5: ("unknown", "theta 100000"), TF4: ("unknown", "theta 1000000"), MLX: ("unknown", "theta 1000000")}),
    Trap("names differ", v4({"type": "linear", "rope_type": "dynamic", "factor": 2.0}),
         {TF5: ("unknown", "dynamic"), TF4: ("unknown", "linear"), MLX: ("unknown", "linear")}),
    Trap("stale trained length", v5(YARN, original_max_position_embeddings=16384),
         {TF5: ("unknown", "over 16384"), TF4: ("unknown", "theta 10000")}),
    Trap("flat block of Gemma 3", {**GEMMA3, **v5(YARN)}, {TF5: ("unknown", "theta 1000000")}),
    Trap("a type that few know", v4({"type": "ntk", "factor": 2.0}),
         {TF5: ("loads-not", "'ntk'"), TF4: ("loads-not", "'ntk'"), MLX: ("loads-not", "'ntk'")}),
)  # fmt: skip


def config_of(changes: dict[str, Any]) -> dict[str, Any]:
    merged = {**LLAMA, **changes}
    return {key: value for key, value in merged.items() if key != "head_dim" or value is not None}


def save(directory: Path, changes: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(changes)), encoding="utf-8")
    return directory


def found(diagnosis: Diagnosis, engine: str) -> Finding:
    name, _, major = engine.partition(" ")
    (finding,) = [
        finding for finding in diagnosis.findings
        if finding.listener.engine.value == name and finding.listener.version.startswith(major)
    ]  # fmt: skip
    return finding


@pytest.mark.parametrize("trap", TRAPS, ids=lambda trap: trap.name)
def test_a_known_trap(trap: Trap, tmp_path: Path) -> None:
    diagnosis = doctor.diagnose(save(tmp_path, trap.config))
    for engine, (verdict, why) in trap.says.items():
        finding = found(diagnosis, engine)
        assert finding.verdict == verdict, f"{engine}: {finding.why}"
        assert why in finding.why, engine
        assert bool(finding.fix) == (verdict != "right"), engine


def test_every_edit_makes_its_engine_right() -> None:
    edits = 0
    for trap in TRAPS:
        case = open_case(config_of(trap.config))
        for row in LISTENERS:
            edit = find_edit(case, row)
            if edit is not None:
                edits += 1
                heard = row.hears(edit[1])
                assert not heard.refusal
                left = {fault.about for fault in compare.faults(edit[1], heard)}
                before = row.hears(case)  # a length that was wrong already is for a flag to say
                short = not before.refusal and {fault.about for fault in compare.faults(case, before)}
                assert left <= {"length"} & (short or set()), (trap.name, row.source)
    assert edits > 15


def test_length(tmp_path: Path) -> None:
    """Up to the trained length, nothing is wrong with the long factors that mlx-lm always takes, but they are taken."""
    save(tmp_path, dual(LONG, original_max_position_embeddings=8192))
    assert found(doctor.diagnose(tmp_path, length=32768), MLX).verdict == Verdict.RIGHT
    assert found(doctor.diagnose(tmp_path, length=8192), MLX).verdict == Verdict.WRONG
    diagnosis = doctor.diagnose(tmp_path, length=131072)
    assert [warning.code for warning in diagnosis.warnings] == ["beyond-length"]
    assert "--to 131072" in diagnosis.warnings[0].message


def converted(source: Path, output: Path, to: Pairing = Pairing.INTERLEAVED, **options: Any) -> Path:
    convert.apply(convert.plan(source, output, to, **options))
    return output


def test_layouts(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    source = checkpoint("llama")
    guarded = doctor.diagnose(converted(source, tmp_path / "guarded", written_as="same"))
    assert {finding.verdict for finding in guarded.findings} == {Verdict.LOADS_NOT}
    assert all("ropetool convert SRC DST --to half" in finding.fix for finding in guarded.findings)
    twin = doctor.diagnose(converted(checkpoint("helium"), tmp_path / "twin", to=Pairing.HALF))
    assert (twin.model_type, found(twin, TF5).verdict) == ("qwen2", Verdict.RIGHT)
    mlx = doctor.diagnose(converted(source, tmp_path / "mlx", engine=EngineName.MLX_LM))
    assert found(mlx, MLX).verdict == Verdict.RIGHT
    wrong = found(mlx, TF5)
    assert (wrong.verdict, wrong.why) == (Verdict.WRONG, "rotates as half, the weights are interleaved")
    assert "ropetool convert SRC DST --to half" in wrong.fix
    tune = found(doctor.diagnose(converted(source, tmp_path / "tune", engine=EngineName.TORCHTUNE)), TUNE)
    assert tune.verdict == Verdict.UNKNOWN


def test_no_rotation(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}', encoding="utf-8")
    with pytest.raises(NoRotaryError):
        doctor.diagnose(tmp_path)


def test_another_fault_of_the_config_is_no_contradiction() -> None:
    with pytest.raises(ConfigError, match="num_attention_heads"):
        open_case({key: value for key, value in config_of(dual(YARN)).items() if key != "num_attention_heads"})


YARN_MEANT = Yarn(THETA, 4.0, 8192)
LONG_MEANT = LongRope(THETA, (1.0,) * 32, (2.0,) * 32, 8192, 4.0)
COMPARED = (
    (YARN_MEANT, YARN_MEANT, None),
    (YARN_MEANT, replace(YARN_MEANT, theta=THETA * (1 + 1e-9)), None),
    (YARN_MEANT, replace(YARN_MEANT, beta_fast=16.0), "beta fast 16 instead of 32"),
    (YARN_MEANT, replace(YARN_MEANT, original_length=32768), "trained length 32768 instead of 8192"),
    (YARN_MEANT, replace(YARN_MEANT, explicit_attention_factor=1.0), "attention factor 1 instead of 1.1386294"),
    (YARN_MEANT, Linear(THETA, 4.0), "linear (factor 4) instead of yarn (factor 4 over 8192)"),
    (YARN_MEANT, Default(1e4), "no scaling instead of yarn (factor 4 over 8192), theta 10000 instead of 100000"),
    (LONG_MEANT, replace(LONG_MEANT, original_length=4096), "trained length 4096 instead of 8192"),
    (LONG_MEANT, replace(LONG_MEANT, long_factor=(3.0,) * 32), "another list of long factors"),
)  # fmt: skip
BLOCK_OF = {"yarn": dual(YARN), "longrope": dual(LONG)}


@pytest.mark.parametrize(
    ("meant", "heard", "said"), COMPARED, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_comparator_names_what_differs(meant: Any, heard: Any, said: str | None) -> None:
    case = open_case(config_of(BLOCK_OF[meant.name]))
    assert case.reading.rotations[0].scaling == replace(meant, **{"factor": 4.0})
    faults = compare.faults(case, Heard((Turn("all", heard, 64),), Pairing.HALF))
    assert (said is None) == (not faults)
    assert said is None or any(said in fault.said for fault in faults)


def test_a_length_that_stops_is_a_fault_and_one_counted_twice_is_called_so() -> None:
    linear = open_case(config_of(dual({"rope_type": "linear", "factor": 4.0})))
    turn = Turn("all", linear.reading.rotations[0].scaling, 64)
    twice = compare.faults(linear, Heard((turn,), Pairing.HALF, length=131072, stops=True))
    assert [fault.said for fault in twice] == ["length counted twice: 131072 instead of 32768"]
    short = Heard((turn,), Pairing.HALF, length=8192, stops=True)
    assert [fault.said for fault in compare.faults(linear, short, 16384)] == ["stops at 8192 tokens, short of 16384"]
    assert not compare.faults(linear, short, 4096)
    assert not compare.faults(linear, replace(short, stops=False))
