"""The page in a real browser: sliders move the figures, switches switch, q and k are dragged, and nothing is fetched."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.reporting import CONFIGS, make_page, written

pytestmark = pytest.mark.browser
WIDTHS = (320, 360, 768, 1280)


@pytest.fixture(scope="module")
def full(measured, tmp_path_factory) -> Path:
    """The page of the bundled checkpoint, extended, with everything that was measured."""
    return make_page(tmp_path_factory.mktemp("full") / "page.html", *measured.arguments)


def number(text: str) -> float:
    return float(re.findall(r"-?[\d,]+(?:\.\d+)?", text)[0].replace(",", ""))


def rows(watched: Any, table: str) -> list[list[str]]:
    return watched.page.eval_on_selector(
        table, "t => [...t.tBodies[0].rows].map((r) => [...r.cells].map((c) => c.textContent))"
    )


def test_every_figure_is_drawn_and_said(full, show) -> None:
    watched = show(full)
    for figure in ("bands", "clocks", "pairing", "drag", "encoding", "decay", "stretches", "loss"):
        shapes = watched.page.eval_on_selector_all(f"#{figure} svg *", "all => all.length")
        assert shapes > 3, figure
        for part in ("title", "desc"):
            assert len(watched.text(f"#{figure}-{part}")) > 10
        assert watched.page.eval_on_selector(f"#{figure} details table", "t => t.rows.length") > 2
    assert "1,024" in watched.text("#way-note")


# ---- switches


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


# ---- sliders


def test_the_position_turns_the_clocks(full, show) -> None:
    watched = show(full)
    frequencies = watched.page.evaluate("() => JSON.parse(document.getElementById('data').textContent)"
                                        ".rope.layers[0].ways[0].inv_freq")  # fmt: skip
    watched.page.focus("#position")
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


def test_play_moves_on_and_pauses(full, show) -> None:
    watched = show(full)
    watched.page.click("#play")
    watched.page.wait_for_function("document.getElementById('position').value > 2")
    assert watched.page.get_attribute("#play", "aria-pressed") == "true"
    watched.page.click("#play")
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
    box = watched.page.locator("#bands svg").first.bounding_box()
    watched.page.mouse.click(box["x"] + 60, box["y"] + 100)
    watched.settled()
    assert "Pair 0 " in watched.text("#bands-readout")
    box = watched.page.locator("#pairing svg").first.bounding_box()
    watched.page.mouse.click(box["x"] + box["width"] - 12, box["y"] + 190)
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


# ---- q and k


def places(watched: Any) -> tuple[int, int]:
    watched.settled()
    return tuple(int(watched.page.get_attribute(f"#handle-{name}", "aria-valuenow")) for name in "qk")


def dot(watched: Any) -> float:
    return float(watched.text("#dot"))


def true_dot(watched: Any, q_at: int, k_at: int) -> float:
    """By complex numbers, from the page's own frequencies and vectors."""
    layers = watched.page.evaluate("() => JSON.parse(document.getElementById('data').textContent).rope.layers[0]")
    way, example = layers["ways"][0], layers["example"]
    total = 0.0
    for frequency, q, k in zip(way["inv_freq"], example["q"], example["k"], strict=True):
        total += (complex(*q) * complex(*k).conjugate() * complex(math.cos((q_at - k_at) * frequency),
                  math.sin((q_at - k_at) * frequency))).real  # fmt: skip
    return total * way["attention_factor"] ** 2


def test_the_dot_product_is_that_of_the_rotated_vectors(full, show) -> None:
    watched = show(full)
    for q_at, k_at in ((5, 2), (103, 100), (1000, 0), (0, 1000), (512, 512)):
        watched.page.fill("#q-number", str(q_at))
        watched.page.fill("#k-number", str(k_at))
        assert places(watched) == (q_at, k_at)
        assert dot(watched) == pytest.approx(true_dot(watched, q_at, k_at), abs=1e-6)


def test_keys_move_q_and_k_and_both(full, show) -> None:
    watched = show(full)
    q, k = places(watched)
    first = dot(watched)
    watched.page.focus("#handle-both")
    for key, step in (("ArrowRight", 1), ("PageUp", 102), ("ArrowLeft", -1), ("PageDown", -102), ("ArrowUp", 1)):
        watched.page.keyboard.press(key)
        q, k = q + step, k + step
        assert places(watched) == (q, k)
        assert dot(watched) == pytest.approx(first, abs=1e-6)
    assert "Both moved 1 tokens" in watched.text("#drag-readout")
    for name in "qk":
        watched.page.focus(f"#handle-{name}")
        watched.page.keyboard.press("ArrowRight")
    assert places(watched) == (q + 1, k + 1)
    watched.page.keyboard.press("ArrowRight")
    assert places(watched) == (q + 1, k + 2)
    assert dot(watched) != pytest.approx(first, abs=1e-4)


def test_both_stop_together_at_the_ends(full, show) -> None:
    watched = show(full)
    q, k = places(watched)
    first = dot(watched)
    watched.page.focus("#handle-both")
    for key in ("End", "Home"):
        watched.page.keyboard.press(key)
        there = places(watched)
        assert there[0] - there[1] == q - k
        assert (max(there) == 1024) == (key == "End")
        assert (min(there) == 0) == (key == "Home")
        assert dot(watched) == pytest.approx(first, abs=1e-6)


def drag(watched: Any, name: str, by_pixels: float) -> None:
    box = watched.page.locator(f"#handle-{name} .grip").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    watched.page.mouse.move(x, y)
    watched.page.mouse.down()
    watched.page.mouse.move(x + by_pixels / 2, y)
    watched.page.mouse.move(x + by_pixels, y)
    watched.page.mouse.up()


def test_the_mouse_drags_q_and_k_and_both(full, show) -> None:
    watched = show(full)
    watched.page.locator("#drag svg").first.scroll_into_view_if_needed()
    q, k = places(watched)
    drag(watched, "q", 200)
    moved, still = places(watched)
    assert moved > q + 100
    assert still == k
    apart, first = moved - still, dot(watched)
    drag(watched, "both", -80)
    assert places(watched)[0] - places(watched)[1] == apart
    assert places(watched)[0] < moved
    assert dot(watched) == pytest.approx(first, abs=1e-6)
    watched.page.mouse.move(600, 300)  # what was let go stays
    there = places(watched)
    watched.page.mouse.move(900, 300)
    assert places(watched) == there


def test_a_finger_drags_them_too(full, show) -> None:
    watched = show(full, width=360, has_touch=True, is_mobile=True)
    watched.page.locator("#drag svg").first.scroll_into_view_if_needed()
    (q, k), first = places(watched), dot(watched)
    box = watched.page.locator("#handle-both .grip").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = watched.page.context.new_cdp_session(watched.page)
    scrolled = watched.page.evaluate("scrollY")
    for kind, at in (("touchStart", 0), ("touchMove", 20), ("touchMove", 60), ("touchEnd", None)):
        points = [] if at is None else [{"x": x + at, "y": y}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    now = places(watched)
    assert now[0] > q + 50
    assert now[0] - now[1] == q - k
    assert dot(watched) == pytest.approx(first, abs=1e-6)
    assert watched.page.evaluate("scrollY") == scrolled


def test_everything_can_be_reached_by_the_keyboard(full, show) -> None:
    watched = show(full)
    reached = set()
    for _ in range(80):
        watched.page.keyboard.press("Tab")
        reached.add(watched.page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert reached >= {"pair", "position", "position-number", "play", "handle-q", "handle-k", "handle-both", "q-number",
                       "k-number", "span", "factor", "SUMMARY", "INPUT", "A"}  # fmt: skip


def test_the_ways_are_switched_by_arrow_keys(full, show) -> None:
    watched = show(full)
    watched.page.focus("#ways input:checked")
    watched.page.keyboard.press("ArrowRight")
    watched.settled()
    assert watched.page.evaluate("document.activeElement.value") == "other:0"
    assert watched.text("#way-note").startswith("the other")


# ---- how it looks


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
    const behind = grip ? parse(getComputedStyle(grip.querySelector(".grip")).fill) : under(svg ? node.ownerSVGElement : node);
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


# ---- other pages


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "llama"])
def test_pages_of_other_kinds_work(name: str, tmp_path: Path, show) -> None:
    watched = show(make_page(tmp_path / "page.html", written(tmp_path / "c", CONFIGS[name])), width=360)
    assert watched.page.evaluate("document.documentElement.scrollWidth") <= 360
    if name == "bloom":
        assert watched.page.is_visible("#no-figures")
        return
    for way in watched.page.eval_on_selector_all("#ways input:enabled", "all => all.map((i) => i.value)"):
        watched.page.check(f'input[name="way"][value="{way}"]', force=True)
        watched.settled()
        assert "NaN" not in watched.page.inner_text("main")
        assert watched.page.eval_on_selector_all("path", "all => all.some((p) => /NaN|Infinity/.test(p.outerHTML))") is False


@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_neox", "glm4", "gemma2"])
def test_pages_of_tiny_models_work(name: str, checkpoint, tmp_path: Path, show) -> None:
    watched = show(make_page(tmp_path / "page.html", checkpoint(name)), width=768)
    watched.choose("linear")
    assert "× 4 slower" in watched.text("#bands-readout")


HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def test_what_strangers_write_is_not_run(tmp_path: Path, measured, show) -> None:
    import json

    kept = json.loads(measured.evaluated.read_text("utf-8"))
    kept |= {"checkpoint": HOSTILE, "against": HOSTILE}
    (tmp_path / "e.json").write_text(json.dumps(kept), encoding="utf-8")
    source = written(tmp_path / HOSTILE.replace("/", "_"), CONFIGS["llama"])
    watched = show(make_page(tmp_path / "page.html", source, "--evaluate", tmp_path / "e.json"))
    assert watched.page.title().endswith(": its RoPE")
    assert watched.page.query_selector("img") is None
    assert HOSTILE in watched.page.inner_text("#loss-legend")


def test_without_scripts_what_is_said_is_there(full, show) -> None:
    watched = show(full, java_script_enabled=False, checked=False)
    text = watched.page.inner_text("main")
    assert all(word in text for word in ("transformers", "tensors-kept", "Passkeys found by", "weights"))
    assert "JavaScript, which is off" in watched.page.inner_text("header")


# ---- the watching itself


@pytest.mark.parametrize(
    ("planted", "seen"),
    [
        ("<img src='https://example.org/x.png'>", "Content Security Policy"),
        ("<script>alert(1)</script>", "Content Security Policy"),
        ("<p style='color: red'>x</p>", "Content Security Policy"),
    ],
)
def test_what_the_policy_forbids_is_seen(planted: str, seen: str, full, show, tmp_path: Path) -> None:
    text = full.read_text("utf-8").replace("<main>", f"<main>{planted}")
    (tmp_path / "planted.html").write_text(text, encoding="utf-8")
    watched = show(tmp_path / "planted.html", checked=False)
    watched.page.wait_for_timeout(100)
    assert any(seen in fault for fault in watched.faults)


def test_a_request_and_an_error_are_seen(full, show, tmp_path: Path) -> None:
    (tmp_path / "other.png").write_bytes(b"")
    planted = "<img src='other.png'><script>throw new Error('planted')</script>"
    (tmp_path / "planted.html").write_text(f"<!doctype html><title>x</title>{planted}", encoding="utf-8")
    watched = show(tmp_path / "planted.html", checked=False)
    assert watched.asked == [(tmp_path / "other.png").as_uri()]
    assert any("planted" in fault for fault in watched.faults)


def test_a_weak_colour_is_seen(full, show, tmp_path: Path) -> None:
    weak = full.read_text("utf-8").replace("--soft: #525c69", "--soft: #c0c4ca")
    weak = re.sub(r"<meta http-equiv[^>]*>", "", weak)
    (tmp_path / "weak.html").write_text(weak, encoding="utf-8")
    found = show(tmp_path / "weak.html").page.evaluate(COLOURS)
    assert sum(contrast(c["front"], c["behind"]) < 4.5 for c in found) > 20


def open_all(show: Callable[..., Any], full: Path, width: int) -> Any:
    return show(full, width=width)


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_pictures_of_the_page_are_no_blanks(width: int, full, show, tmp_path: Path) -> None:
    """Every figure shows colours beside its background; ``ROPETOOL_SCREENSHOTS=DIR`` keeps the pictures to be looked at."""
    import io
    import os

    import PIL.Image

    watched = open_all(show, full, width)
    keep = os.environ.get("ROPETOOL_SCREENSHOTS")
    if keep:
        watched.page.screenshot(path=Path(keep) / f"page-{width}.png", full_page=True)
    for figure in watched.page.query_selector_all("figure"):
        picture = PIL.Image.open(io.BytesIO(figure.screenshot())).convert("RGB")
        assert len(picture.getcolors(maxcolors=1 << 24)) > 20
