"""The ways to turn: each is what `extend` would write, of every kind of checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropetool import extend
from ropetool.checkpoint.folder import read_config
from ropetool.errors import MethodError
from ropetool.families.methods import Method, Weights
from ropetool.families.reading import read_model
from ropetool.families.ways import FACTORS, OWN, SHOWN, Ways, ways_of
from ropetool.rope.frequencies import Default
from tests.reporting import CONFIGS, written

NAMES = ("llama", "gpt_neox", "glm4", "phi3", "deepseek_v3", "qwen3")


def ways(source: Path, at: int = 0, original: int | None = None) -> Ways:
    reading = read_model(read_config(source))
    return ways_of(reading, reading.rotations[at], original)


def extended(source: Path, target: Path, method: Method, **options: Any) -> Path:
    extend.apply(extend.plan(source, target, method, weights=Weights.NONE, **options))
    return target


@pytest.mark.parametrize("method", SHOWN)
@pytest.mark.parametrize("name", NAMES)
def test_a_way_is_what_extend_would_write(name: str, method: Method, checkpoint, tmp_path: Path) -> None:
    source = checkpoint(name)
    found = {way.factor: way for way in ways(source).methods if way.method == method.value}
    assert found.keys() == set(FACTORS)
    for factor in (2.0, 8.0):
        try:
            plan = extend.plan(source, tmp_path / "out", method, factor=factor, weights=Weights.NONE)
        except MethodError:
            assert found[factor].note
            continue
        assert not found[factor].note
        assert found[factor].scaling == plan.reading.rotations[0].scaling
        assert found[factor].length == plan.result.length


@pytest.mark.parametrize("method", SHOWN)
def test_under_an_extension_lie_the_same_ways(method: Method, checkpoint, tmp_path: Path) -> None:
    source = checkpoint("llama")
    before, after = ways(source), ways(extended(source, tmp_path / "out", method, factor=4.0))
    assert (after.trained, after.reach) == (64, 256)
    assert after.unscaled == before.unscaled
    assert after.methods == before.methods
    found = next(way for way in after.methods if way.method == method.value and way.factor == 4)
    assert after.own[0].scaling.inv_freq(16, 256) == pytest.approx(found.scaling.inv_freq(16, 256))


def test_an_own_factor_is_shown_with_the_others(checkpoint, tmp_path: Path) -> None:
    found = ways(extended(checkpoint("llama"), tmp_path / "out", Method.YARN, factor=3.0))
    assert found.factors == (2.0, 3.0, 4.0, 8.0, 16.0, 32.0)


SETTINGS: dict[Method, dict[str, Any]] = {
    Method.YARN: {"beta_fast": 16.0, "truncate": False},
    Method.LLAMA3: {"low_freq_factor": 2.0, "high_freq_factor": 16.0},
}


@pytest.mark.parametrize("method", SETTINGS)
@pytest.mark.parametrize("factor", [4.0, 8.0, 16.0])
def test_an_extension_goes_on_with_its_settings(method: Method, factor: float, checkpoint, tmp_path: Path) -> None:
    source = extended(checkpoint("llama"), tmp_path / "out", method, factor=4.0, settings=SETTINGS[method])
    found = next(way for way in ways(source).methods if (way.method, way.factor) == (method.value, factor))
    plan = extend.plan(source, tmp_path / "further", method, factor=factor, replace_existing=True, weights=Weights.NONE)
    assert found.scaling == plan.reading.rotations[0].scaling
    assert SETTINGS[method].items() <= vars(found.scaling).items()


@pytest.mark.parametrize(("name", "lengths"), [("longrope", [256, 64]), ("dynamic", [256, 64]), ("llama3", [131072])])
def test_what_depends_on_the_length_is_shown_at_both(name: str, lengths: list[int], tmp_path: Path) -> None:
    own = ways(written(tmp_path, CONFIGS[name])).own
    assert [way.method for way in own] == [OWN] * len(lengths)
    assert [way.length for way in own] == lengths


def test_a_trained_length_in_doubt_is_said(tmp_path: Path) -> None:
    source = written(tmp_path, CONFIGS["qwen3"])
    found, told = ways(source), ways(source, original=32768)
    assert found.trained == 40960
    assert [w.code for w in found.warnings] == ["trained-length-unclear"]
    assert (told.trained, told.warnings) == (32768, ())
    assert 1.25 in told.factors


def test_without_any_length_there_are_no_methods(tmp_path: Path) -> None:
    source = written(tmp_path, CONFIGS["no length"])
    found, told = ways(source), ways(source, original=2048)
    assert (found.trained, found.reach, found.methods) == (None, None, ())
    assert found.own[0].length is None
    assert "no trained length is shown" in found.warnings[0].message
    assert (told.trained, len(told.methods)) == (2048, len(SHOWN) * len(FACTORS))


def test_local_layers_are_left_as_they_are(tmp_path: Path) -> None:
    source = written(tmp_path, CONFIGS["gemma3"])
    wide, local = ways(source), ways(source, at=1)
    assert (wide.unscaled.scaling, local.unscaled.scaling) == (Default(1e6), Default(1e4))
    assert wide.factors == FACTORS
    assert (local.methods, local.factors) == ((), ())


def test_pairs_that_stand_still_do_so_without_scaling_too(tmp_path: Path) -> None:
    found = ways(written(tmp_path, CONFIGS["gemma4"]))
    plain = found.unscaled.scaling.inv_freq(128)
    assert np.count_nonzero(plain) == 16
    assert {left.method for left in found.left} == {"ntk", "dynamic", "yarn", "llama3"}
    assert all("linear and abf" in left.why for left in found.left)
    assert {way.method for way in found.methods} == {"linear"}
