"""Pages of other checkpoints, strangers' among them; and that what goes wrong in a page is seen at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.reporting import CONFIGS, make_page, written

pytestmark = pytest.mark.browser


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
        assert (
            watched.page.eval_on_selector_all("path", "all => all.some((p) => /NaN|Infinity/.test(p.outerHTML))")
            is False
        )


@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_neox", "glm4", "gemma2"])
def test_pages_of_tiny_models_work(name: str, checkpoint, tmp_path: Path, show) -> None:
    watched = show(make_page(tmp_path / "page.html", checkpoint(name)), width=768)
    watched.choose("linear")
    assert "× 4 slower" in watched.text("#bands-readout")


HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>"


def test_what_strangers_write_is_not_run(tmp_path: Path, measured, show) -> None:
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
