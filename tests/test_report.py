"""Report: its numbers against the methods themselves, and what has none."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from ropetool import report
from ropetool.checkpoint.folder import read_config
from ropetool.errors import NoRotaryError, UsageError
from ropetool.families.reading import read_model
from ropetool.report import MOST_ROWS, Layers, spectrum
from ropetool.rope.pairing import Pairing
from tests.reporting import CONFIGS, written

TURNING = [name for name in CONFIGS if name != "bloom"]


def layers_of(source: Path) -> tuple[Layers, ...]:
    return spectrum(source).layers


@pytest.mark.parametrize("name", TURNING)
def test_the_numbers_are_those_of_the_methods(name: str, tmp_path: Path) -> None:
    source = written(tmp_path, CONFIGS[name])
    reading = read_model(read_config(source))
    found = layers_of(source)
    assert [layers.layers for layers in found] == [rotation.layers for rotation in reading.rotations]
    for layers, rotation in zip(found, reading.rotations, strict=True):
        own, width = layers.ways[0], rotation.geometry.rotary_dim
        assert own.method == "own"
        assert own.inv_freq == tuple(rotation.scaling.inv_freq(width, own.length))
        assert own.attention_factor == rotation.scaling.attention_factor_at(own.length)
        for way in layers.ways:
            assert len(way.inv_freq) == len(way.wavelength) == len(way.slower) == width // 2
            assert len(way.score) == len(way.bound) == len(layers.distances)
            for frequency, wavelength in zip(way.inv_freq, way.wavelength, strict=True):
                assert wavelength is None if frequency == 0 else wavelength == pytest.approx(2 * math.pi / frequency)
            if way.length is None:
                assert way.turns is None
            else:
                assert way.turns == pytest.approx(np.array(way.inv_freq) * way.length / (2 * math.pi))


def test_the_methods_do_what_is_known_of_them(tmp_path: Path) -> None:
    (layers,) = layers_of(written(tmp_path, CONFIGS["llama3"]))
    four = {way.method: way for way in layers.ways if way.factor == 4.0}
    assert set(four["linear"].slower) == {4.0}
    assert (four["ntk"].slower[0], four["ntk"].slower[-1]) == (1, pytest.approx(4))
    assert (four["yarn"].slower[0], four["yarn"].slower[-1]) == (1, 4)
    assert four["yarn"].attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    kept = [w for w, s in zip(four["llama3"].wavelength, four["llama3"].slower, strict=True) if s == 1]
    assert max(kept) <= 8192 / 4


def test_the_rows_of_a_head_are_those_that_a_conversion_moves(checkpoint) -> None:
    (layers,) = layers_of(checkpoint("deepseek_v3"))
    head = layers.head
    assert (head.head_dim, head.rope_start, head.rotary_dim, head.pairing) == (12, 4, 8, "interleaved")
    assert head.pairs == {"half": ((4, 8), (5, 9), (6, 10), (7, 11)), "interleaved": ((4, 5), (6, 7), (8, 9), (10, 11))}
    assert head.moves["half"] == (0, 1, 2, 3, 4, 6, 8, 10, 5, 7, 9, 11)
    assert head.moves["interleaved"] == (0, 1, 2, 3, 4, 8, 5, 9, 6, 10, 7, 11)
    for layout in Pairing:
        old = [row for pair in head.pairs[layout.other.value] for row in pair]
        new = [head.moves[layout.value][row] for pair in head.pairs[layout.value] for row in pair]
        assert new == old


def test_the_example_has_length_one_and_a_likeness(checkpoint) -> None:
    (layers,) = layers_of(checkpoint("llama"))
    q, k = np.array(layers.example.q), np.array(layers.example.k)
    assert (np.linalg.norm(q), np.linalg.norm(k)) == pytest.approx((1, 1))
    assert 0.5 < (q * k).sum() < 1


def test_local_layers_have_their_window(tmp_path: Path) -> None:
    assert [layers.window for layers in layers_of(written(tmp_path, CONFIGS["gemma3"]))] == [None, 1024]


def test_the_factor_of_the_checkpoint_is_looked_at_first(tmp_path: Path, monkeypatch) -> None:
    shown = {
        name: [layers.shown_factor for layers in layers_of(written(tmp_path / name, CONFIGS[name]))]
        for name in ("llama", "llama3", "gemma3")
    }
    assert shown == {"llama": [4.0], "llama3": [16.0], "gemma3": [8.0, 4.0]}


def test_a_head_that_is_too_wide_is_not_drawn(tmp_path: Path) -> None:
    found = spectrum(written(tmp_path, {**CONFIGS["llama"], "head_dim": 2 * MOST_ROWS}))
    assert found.layers == ()
    assert [w.code for w in found.warnings] == ["not-drawn"]
    assert spectrum(written(tmp_path, {**CONFIGS["llama"], "head_dim": MOST_ROWS})).layers


@pytest.mark.parametrize(("switch", "said"), [("learned", "among the weights"), ("backwards", "the other way")])
def test_what_the_figures_do_not_show_is_said(switch: str, said: str, tmp_path: Path, monkeypatch) -> None:
    from dataclasses import replace

    reading = read_model(read_config(written(tmp_path, CONFIGS["llama"])))
    changed = replace(reading, family=replace(reading.family, **{switch: True}))
    monkeypatch.setattr(report, "understand", lambda *_, **__: changed)
    assert [said in warning.message for warning in spectrum(tmp_path).warnings] == [True]


def test_what_does_not_turn_has_no_spectrum(tmp_path: Path) -> None:
    with pytest.raises(NoRotaryError, match="ALiBi"):
        spectrum(written(tmp_path, CONFIGS["bloom"]))


def test_an_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA"}', encoding="utf-8")
    with pytest.raises(UsageError, match="make the report of that"):
        spectrum(tmp_path)
