"""The figures of a search in a real browser: what they draw and say, on a phone, in the dark, and by the keyboard."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.browser.test_looks import COLOURS, OUTSIDE, contrast
from tests.reporting import CONFIGS, make_page, written
from tests.searched_example import SEARCHED, kept, saved

pytestmark = pytest.mark.browser
FIGURES = ("search-loss", "search-pairs")


@pytest.fixture(scope="module")
def searched(tmp_path_factory) -> Path:
    """The page of a checkpoint of config.json alone, with a search made by hand."""
    place = tmp_path_factory.mktemp("searched")
    source = written(place / "c", CONFIGS["llama"])
    return make_page(place / "page.html", source, "--search", saved(place, kept(SEARCHED, str(source))))


def heights(path: str) -> list[float]:
    """How far down each point of a line lies."""
    return [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", path)]


def test_lines_are_as_high_as_their_numbers(searched, show) -> None:
    watched = show(searched)
    best, default = (
        heights(watched.attributes(f"#search-loss svg path.{kind}", "d")[0]) for kind in ("own", "other")
    )  # two points for each bin: its two ends
    none = heights(watched.attributes("#search-loss svg path.trained:not(.dashed)", "d")[0])
    assert (len(best), len(default), len(none)) == (6, 6, 4)
    assert none[0] < 260
    top = min(*best, *default)
    assert top - 40 < none[2] == none[3] < top, "what is lost beyond the trained length runs along the top"
    assert best[2] > default[2], "a lower loss is further down"
    assert best[4] < default[4]
    per_nat = (best[2] - best[0]) / (3.1234 - 2.5021)
    assert none[0] - best[0] == pytest.approx((3.1234 - 3.1004) * per_nat, abs=0.2)
    own, other = (heights(watched.attributes(f"#search-pairs svg path.{kind}", "d")[0]) for kind in ("own", "other"))
    assert len(own) == len(other) == len(SEARCHED.pairs)
    assert own[0] == other[0]
    assert own[-1] < other[-1], "a larger factor is further up"


def test_words_tell_the_last_numbers(searched, show) -> None:
    watched = show(searched)
    assert "128 to 256 the loss of the best is 2.4433, and of the default 2.4135" in watched.text("#search-loss-desc")
    assert "turns 4.500 times slower at best, and 3.625 by default" in watched.text("#search-pairs-desc")
    assert "best: yarn beta_fast 9.043" in watched.text("#search-loss-legend")
    assert "trained: 64" in watched.text("#search-loss svg")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 768])
def test_it_fits_and_can_be_read(width: int, scheme: str, searched, show) -> None:
    watched = show(searched, width=width, color_scheme=scheme)
    for details in watched.page.query_selector_all("details:not([open]) > summary"):
        details.click()
    watched.settled()
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    assert [text for text in watched.page.evaluate(OUTSIDE) if text.startswith("search")] == []
    found = watched.page.evaluate(COLOURS)
    assert any("2.4433" in colour["text"] for colour in found)
    assert [c["text"] for c in found if contrast(c["front"], c["behind"]) < 4.5] == []


def test_numbers_are_reached_by_the_keyboard(searched, show) -> None:
    watched = show(searched)
    watched.page.focus("#search-pairs summary")
    assert not watched.page.is_visible("#search-pairs table")
    watched.page.keyboard.press("Enter")
    assert watched.page.is_visible("#search-pairs table")
    watched.page.keyboard.press("Tab")
    label = watched.page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert label == "Factor of each pair"


@pytest.mark.parametrize("part", ["bins", "pairs"])
def test_a_part_without_numbers_is_no_fault(part: str, show, tmp_path: Path) -> None:
    """That nothing goes wrong in it is what `show` looks at."""
    told = kept(replace(SEARCHED, **{part: ()}), "x")
    for nothing in told["search"]["bins"], told["search"]["pairs"]:
        for entry in nothing[1:]:
            entry |= {"best": None, "default": None}
    source = written(tmp_path / "c", CONFIGS["llama"])
    watched = show(make_page(tmp_path / "page.html", source, "--search", saved(tmp_path, told)))
    assert [watched.page.is_visible(f"#{figure}") for figure in FIGURES] == [True, True]
