"""q and k at any positions, by mouse, finger and keyboard: the dot product stays put when both move."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser


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


def test_a_k_that_does_not_turn_is_seen(full, show, tmp_path: Path) -> None:
    """What these tests rest on: with the fault planted, the dot product moves when both move."""
    text = re.sub(r"<meta http-equiv[^>]*>", "", full.read_text("utf-8"))
    planted = text.replace("turned(k[pair], state.k,", "turned(k[pair], 0,")
    assert planted != text
    (tmp_path / "planted.html").write_text(planted, encoding="utf-8")
    watched = show(tmp_path / "planted.html")
    first = dot(watched)
    watched.page.focus("#handle-both")
    watched.page.keyboard.press("ArrowRight")
    assert places(watched) == (513, 257)
    assert dot(watched) != pytest.approx(first, abs=1e-4)
