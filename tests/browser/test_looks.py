"""How the page looks: nothing leaves the window, every text can be read in both schemes, no figure is blank."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import PIL.Image
import pytest

WIDTHS = (320, 360, 768, 1280)
pytestmark = pytest.mark.browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(width: int, scheme: str, full, show, tmp_path: Path) -> None:
    watched = show(full, width=width, color_scheme=scheme)
    for way in ("own", "llama3"):
        watched.choose(way)
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    for details in watched.page.query_selector_all("details:not([open]) > summary"):
        details.click()
    watched.settled()
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
    # In a picture no text leaves it on either side.
    outside = watched.page.evaluate(OUTSIDE)
    assert outside == []


OUTSIDE = """() => [...document.querySelectorAll("figure svg text")].filter((text) => {
  const [own, all] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
  return own.width > 0 && (own.left < all.left - 2 || own.right > all.right + 2);
}).map((text) => text.closest("figure").id + ": " + text.textContent)"""

# Every visible text with the colours of itself and of the nearest background under it, as sRGB from 0 to 255.
COLOURS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const under = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parse(getComputedStyle(at).backgroundColor);
      if (a === 0) continue;
      if (a === 1) return [r, g, b];
      const below = under(at.parentElement);
      return [r, g, b].map((part, index) => part * a + below[index] * (1 - a));
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    const hidden = node.closest("script, style, title, desc, noscript, [hidden], canvas, option");
    if (!own || hidden || !node.getClientRects().length || node.closest(":has(> input:disabled)")) continue;
    const style = getComputedStyle(node);
    const svg = node.namespaceURI.endsWith("svg");
    const front = svg ? style.fill : style.color;
    const grip = svg && node.closest(".handle");
    const flat = svg ? node.ownerSVGElement : node;
    const behind = grip ? parse(getComputedStyle(grip.querySelector(".grip")).fill) : under(flat);
    found.push({ text: node.textContent.trim().slice(0, 40), front: parse(front).slice(0, 3), behind });
  }
  return found;
}"""


def luminance(colour: list[float]) -> float:
    """WCAG 2.2, "relative luminance"."""
    parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(one: list[float], other: list[float]) -> float:
    """WCAG 2.2, "contrast ratio": 4.5 is what success criterion 1.4.3 asks of text."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(scheme: str, full, show) -> None:
    watched = show(full, color_scheme=scheme)
    for details in watched.page.query_selector_all("details:not([open]) > summary"):
        details.click()
    found = watched.page.evaluate(COLOURS)
    assert len(found) > 300
    weak = {(c["text"], round(contrast(c["front"], c["behind"]), 2)) for c in found
            if contrast(c["front"], c["behind"]) < 4.5}  # fmt: skip
    assert weak == set()
    back = luminance(watched.page.evaluate(COLOURS)[0]["behind"])
    assert (back < 0.1) == (scheme == "dark")


def test_marks_stand_out_from_their_card(full, show) -> None:
    """3 to 1 is what WCAG 2.2 asks of graphics (1.4.11)."""
    for scheme in ("light", "dark"):
        page = show(full, color_scheme=scheme).page
        card = page.evaluate("getComputedStyle(document.querySelector('figure')).backgroundColor")
        for kind in ("own", "other", "ghost", "trained", "new"):
            mark = page.eval_on_selector(f".{kind}", "n => getComputedStyle(n).stroke")
            colours = [[float(part) for part in re.findall(r"[\d.]+", colour)[:3]] for colour in (mark, card)]
            assert contrast(*colours) >= 3, (scheme, kind)


def test_the_colours_follow_the_system_while_it_is_open(full, show) -> None:
    watched = show(full, color_scheme="light")
    drawn = "c => c.toDataURL()"
    light = watched.page.eval_on_selector("#heat", drawn)
    watched.page.emulate_media(color_scheme="dark")
    watched.settled()
    assert watched.page.eval_on_selector("#heat", drawn) != light


def test_the_width_may_change(full, show) -> None:
    watched = show(full)
    before = float(watched.page.get_attribute("#bands svg", "width"))
    watched.page.set_viewport_size({"width": 400, "height": 800})
    watched.page.wait_for_timeout(200)
    assert float(watched.page.get_attribute("#bands svg", "width")) < before / 2


def test_a_weak_colour_is_seen(full, show, tmp_path: Path) -> None:
    weak = full.read_text("utf-8").replace("--soft: #525c69", "--soft: #c0c4ca")
    weak = re.sub(r"<meta http-equiv[^>]*>", "", weak)
    (tmp_path / "weak.html").write_text(weak, encoding="utf-8")
    found = show(tmp_path / "weak.html").page.evaluate(COLOURS)
    assert sum(contrast(c["front"], c["behind"]) < 4.5 for c in found) > 20


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_pictures_of_the_page_are_no_blanks(width: int, full, show) -> None:
    """``ROPETOOL_SCREENSHOTS=DIR`` keeps the pictures to be looked at."""
    watched = show(full, width=width)
    keep = os.environ.get("ROPETOOL_SCREENSHOTS")
    if keep:
        watched.page.screenshot(path=Path(keep) / f"page-{width}.png", full_page=True)
    for figure in watched.page.query_selector_all("figure"):
        picture = PIL.Image.open(io.BytesIO(figure.screenshot())).convert("RGB")
        assert len(picture.getcolors(maxcolors=1 << 24)) > 20


def test_a_part_that_is_too_wide_is_seen(full, show, tmp_path: Path) -> None:
    text = re.sub(r"<meta http-equiv[^>]*>", "", full.read_text("utf-8"))
    wide = text.replace("<main>", '<main><p style="width: 500px">wide</p>')
    (tmp_path / "wide.html").write_text(wide, encoding="utf-8")
    assert show(tmp_path / "wide.html", width=360).page.evaluate("document.documentElement.scrollWidth") > 360
