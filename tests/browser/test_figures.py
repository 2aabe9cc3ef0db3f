"""Every figure in a real browser: it is drawn and said in words, switches switch it, and sliders move it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.reporting import CONFIGS, make_page, written

pytestmark = pytest.mark.browser


def rows(watched: Any, table: str) -> list[list[str]]:
    return watched.page.eval_on_selector(
        table, "t => [...t.tBodies[0].rows].map((r) => [...r.cells].map((c) => c.textContent))"
    )


def test_every_figure_is_drawn_and_said(full, show) -> None:
    watched = show(full)
    for figure in (
        "bands",
        "clocks",
        "pairing",
        "drag",
        "encoding",
        "decay",
        "stretches",
        "loss",
        "search-loss",
        "search-pairs",
    ):
        shapes = watched.page.eval_on_selector_all(f"#{figure} svg *", "all => all.length")
        assert shapes > 3, figure
        for part in ("title", "desc"):
            assert len(watched.text(f"#{figure}-{part}")) > 10
        assert watched.page.eval_on_selector(f"#{figure} details table", "t => t.rows.length") > 2
    assert "1,024" in watched.text("#way-note")


def test_ways_switch_what_is_drawn(full, show) -> None:
    watched = show(full)
    heights = {}
    for way in ("own", "other", "none", "linear", "ntk", "dynamic", "yarn", "llama3"):
        watched.choose(way)
        heights[way] = tuple(watched.attributes("#bands .bar", "height"))
        dots = watched.attributes("#bands circle.dot", "cy")
        slower = [row[-1] for row in rows(watched, "#bands-table")]
        if way in ("other", "none"):
            assert set(slower) == {"× 1"}
        if way == "linear":
            assert set(slower) == {"× 4"}
        assert len(dots) == len(slower) == 16
    assert heights["own"] == heights["yarn"]
    assert heights["other"] == heights["none"]
    assert len(set(heights.values())) == len(heights) - 2


def test_the_factor_switches(full, show) -> None:
    watched = show(full)
    watched.choose("linear")
    for factor in ("2", "32", "8"):
        watched.page.select_option("#factor", factor)
        watched.settled()
        assert {row[-1] for row in rows(watched, "#bands-table")} == {f"× {factor}"}
        assert f"{256 * int(factor):,} tokens" in watched.text("#way-note")


def test_a_method_that_cannot_be_had_cannot_be_chosen(tmp_path: Path, show) -> None:
    watched = show(make_page(tmp_path / "page.html", written(tmp_path / "c", CONFIGS["gemma4"])))
    disabled = watched.page.eval_on_selector_all("#ways input:disabled", "all => all.map((i) => i.value)")
    assert disabled == ["ntk:0", "dynamic:0", "yarn:0", "llama3:0"]
    assert "linear and abf" in watched.page.eval_on_selector("#ways label:has(:disabled)", "l => l.title")


def test_kinds_of_layers_switch(tmp_path: Path, show) -> None:
    watched = show(make_page(tmp_path / "page.html", written(tmp_path / "c", CONFIGS["gemma3"])))
    assert "base 1,000,000" in watched.text("#way-note")
    watched.page.select_option("#layers", "1")
    watched.settled()
    note = watched.text("#way-note")
    assert "base 10,000" in note
    assert "look back 1,024 tokens" in note
    for figure in ("bands", "decay"):
        assert "looks back: 1,024" in watched.text(f"#{figure} svg")
    assert "leaves these layers as they are" in note
    assert not watched.page.is_visible("#factor")
    assert watched.page.eval_on_selector_all("#ways input", "all => all.length") == 1
    watched.page.select_option("#layers", "0")
    watched.settled()
    assert watched.page.is_visible("#factor")


def test_one_kind_of_layers_is_no_choice(full, show) -> None:
    assert not show(full).page.is_visible("#layers")


def test_the_encoding_switches_between_map_and_curves(full, show) -> None:
    watched = show(full)
    assert (watched.page.is_visible("#heat"), watched.page.is_visible("#curves")) == (True, False)
    watched.page.check('input[value="curves"]', force=True)
    watched.settled()
    assert (watched.page.is_visible("#heat"), watched.page.is_visible("#curves")) == (False, True)
    before = watched.attributes("#curves path.own", "d")
    watched.page.focus("#pair")
    watched.page.keyboard.press("Home")
    watched.settled()
    assert watched.attributes("#curves path.own", "d") != before
    assert "pair 0" in watched.text("#encoding-desc")


def test_the_position_turns_the_clocks(full, show) -> None:
    watched = show(full)
    frequencies = watched.page.evaluate("() => JSON.parse(document.getElementById('data').textContent)"
                                        ".rope.layers[0].ways[0].inv_freq")  # fmt: skip
    watched.page.focus("#position")
    watched.page.keyboard.press("Home")
    for _ in range(3):
        watched.page.keyboard.press("ArrowRight")
    watched.settled()
    assert watched.page.input_value("#position-number") == "3"
    for pair, _, degrees, _ in rows(watched, "#clocks-table"):
        angle = math.degrees(3 * frequencies[int(pair)]) % 360
        assert float(degrees.rstrip("°")) == pytest.approx(angle, abs=0.51)
    hands = watched.attributes("#clocks .hand", "d")
    watched.page.fill("#position-number", "200")
    watched.settled()
    assert watched.page.input_value("#position") == "200"
    assert watched.attributes("#clocks .hand", "d")[:6] != hands[:6]
    watched.page.fill("#position-number", "999999")
    watched.settled()
    assert watched.page.input_value("#position") == "1024"
    watched.page.keyboard.press("Tab")
    assert watched.page.input_value("#position-number") == "1024"


def test_play_moves_on_and_pauses(full, show) -> None:
    watched = show(full)
    watched.page.click("#play")
    watched.page.fill("#position-number", "0")
    watched.settled()
    at = 0
    for _ in range(200):  # the page's policy forbids what Playwright's own waiting evaluates
        at = int(watched.page.input_value("#position"))
        if at > 2:
            break
        watched.page.wait_for_timeout(50)
    assert at > 2
    assert watched.page.get_attribute("#play", "aria-pressed") == "true"
    watched.page.click("#play")
    watched.settled()
    there = watched.page.input_value("#position")
    watched.page.wait_for_timeout(300)
    assert watched.page.input_value("#position") == there


def test_the_pair_is_picked_in_every_figure(full, show) -> None:
    watched = show(full)
    watched.page.focus("#pair")
    watched.page.keyboard.press("End")
    watched.settled()
    assert "Pair 15 (rows 15 and 31)" in watched.text("#bands-readout")
    assert "rows 15 and 31 in half, 30 and 31 in interleaved" in watched.text("#pairing-readout")
    assert "Pair 15" in watched.text("#plane-desc")
    assert "rows 15 and 31" in watched.page.get_attribute("#pair", "aria-valuetext")


def test_a_click_picks_the_pair_under_it(full, show) -> None:
    watched = show(full)
    watched.page.locator("#bands svg").first.click(position={"x": 60, "y": 100})
    watched.settled()
    assert "Pair 0 " in watched.text("#bands-readout")
    strips = watched.page.locator("#pairing svg").first
    strips.click(position={"x": strips.bounding_box()["width"] - 12, "y": 190})
    watched.settled()
    assert "Pair 15:" in watched.text("#pairing-readout")


def test_the_range_of_positions_changes_the_map(full, show) -> None:
    watched = show(full)
    widths = []
    for key in ("Home", "End"):
        watched.page.focus("#span")
        watched.page.keyboard.press(key)
        watched.settled()
        widths.append(watched.page.eval_on_selector("#heat", "c => [c.width, c.height]"))
    assert widths == [[16, 32], [384, 32]]
    assert watched.text("#span-shown") == "0 to 1,024"
