"""The page as a file: sound HTML of every kind of checkpoint, texts for every figure, and nothing strange is run."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest

from ropetool.views.report import elements, page
from ropetool.views.report.page import ASSETS, SCRIPTS, asset
from tests.reporting import CONFIGS, make_page, measured, written  # noqa: F401 - one is a fixture
from tests.tiny import edit_json, read_json

FIGURES = ("bands", "clocks", "pairing", "drag", "encoding", "decay")
MOST_BYTES = 500_000
TINY = ("deepseek_v3", "gpt_neox", "glm4", "gemma2", "qwen3", "phi3")
FILES = Path(page.__file__).parent / ASSETS


def parsed(text: str) -> Element:
    """The page as a browser reads it; any error of syntax is one here."""
    return html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(text)


def of(tree: Element, tag: str) -> list[Element]:
    return [node for node in tree.iter() if isinstance(node.tag, str) and node.tag.rpartition("}")[2] == tag]


def words(node: Element) -> str:
    return " ".join("".join(node.itertext()).split())


def data(tree: Element) -> dict[str, Any]:
    (found,) = (node for node in of(tree, "script") if node.get("id") == "data")
    return json.loads(found.text or "")


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[..., Element]:
    """The page of a checkpoint, parsed."""

    def make(*arguments: object, most_bytes: int = MOST_BYTES) -> Element:
        out = make_page(tmp_path / "page.html", *arguments)
        assert out.stat().st_size < most_bytes
        return parsed(out.read_text("utf-8"))

    return make


def check_page(tree: Element, figures: tuple[str, ...]) -> None:
    """What holds of every page."""
    ids = [node.get("id") for node in tree.iter() if node.get("id")]
    assert len(ids) == len(set(ids))
    for node in tree.iter():
        for name in ("aria-labelledby", "for"):
            assert set((node.get(name) or "").split()) <= set(ids)
        assert not [name for name in node.attrib if str(name).startswith("on") or name in ("style", "src")]
        assert (node.get("href") or "#").startswith("#")
    found = of(tree, "figure")
    assert [node.get("id") for node in found] == list(figures)
    for figure in found:
        check_figure(figure)
    assert [node.tag for node in of(tree, "h1")] == ["h1"]
    assert all(of(table, "caption") or table.get("id") for table in of(tree, "table"))


def check_figure(figure: Element) -> None:
    """A title, a description in words, and the numbers as a table."""
    pictures = [*of(figure, "svg"), *of(figure, "canvas")]
    assert pictures
    for picture in pictures:
        assert picture.get("role") in ("img", "group")
        assert len((picture.get("aria-labelledby") or "").split()) == 2
    assert all(words(node) for name in ("title", "desc", "h3", "h4") for node in of(figure, name))
    assert of(figure, "title")
    assert of(figure, "desc")
    (details,) = of(figure, "details")
    assert of(details, "table")


@pytest.mark.parametrize("name", TINY)
def test_pages_of_tiny_models(name: str, checkpoint, page_of) -> None:
    tree = page_of(checkpoint(name))
    check_page(tree, FIGURES)
    told = data(tree)
    assert told["inspect"]["pairing"] in words(of(tree, "main")[0])
    assert told["rope"]["layers"][0]["head"]["pairing"] == told["inspect"]["pairing"]
    assert {engine["engine"] for engine in told["doctor"]["engines"]} >= {"transformers", "vllm", "llama.cpp"}
    for engine in told["doctor"]["engines"]:
        assert engine["version"] in words(of(tree, "main")[0])


@pytest.mark.parametrize("name", CONFIGS)
def test_pages_of_configs_alone(name: str, tmp_path: Path, page_of) -> None:
    tree = page_of(written(tmp_path / name, CONFIGS[name]), most_bytes=MOST_BYTES * (4 if name == "a wide head" else 1))
    check_page(tree, () if name == "bloom" else FIGURES)
    text = words(of(tree, "main")[0])
    assert {"bloom": "ALiBi", "gemma3": "sliding_attention", "gemma4": "proportional"}.get(name, "rows turn") in text


def test_the_page_of_everything(measured, page_of) -> None:  # noqa: F811  a fixture
    tree = page_of(*measured.arguments)
    check_page(tree, (*FIGURES, "stretches", "loss", "search-loss", "search-pairs"))
    text = words(of(tree, "main")[0])
    told = data(tree)
    assert (told["verify"]["passed"], told["warnings"]) == (True, [])
    for check in told["verify"]["checks"]:
        assert check["name"] in text
    for loss in told["evaluate"]["lengths"]:
        assert f"{loss['loss']:.3f}" in text
        assert f"{loss['against_loss']:.3f}" in text
    grids = [node for node in of(tree, "table") if "Passkeys found by" in words(node)]
    assert len(grids) == 2
    for grid, key in zip(grids, ("correct", "against_correct"), strict=True):
        assert [words(cell) for cell in of(grid, "td")] == [f"{c[key]}/2" for c in told["evaluate"]["passkey"]]
    assert told["against"]["checkpoint"] == str(measured.source)


def test_figures_are_of_the_other_one_too(measured, tmp_path: Path, page_of) -> None:  # noqa: F811  a fixture
    told = data(page_of(*measured.arguments))
    assert told["rope"]["layers"][0]["ways"][0]["type"] == "yarn"
    assert told["against"]["rope"]["layers"][0]["ways"][0]["type"] == "default"
    assert told["rope"]["layers"][0]["shown_factor"] == 4


def test_the_policy_names_exactly_what_is_run(checkpoint, tmp_path: Path) -> None:
    text = make_page(tmp_path / "page.html", checkpoint("llama")).read_text("utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in (style, script)]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; base-uri 'none'; "
        f"form-action 'none'"
    )
    assert text.index("Content-Security-Policy") < text.index("<style>")


# What strangers would write into names and values.
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "\"onmouseover=\"alert(1)' x='",
    "<img src=x onerror=alert(1)>",
    "{{script}} $& $1 \\1 &lt;b&gt;",
    "a\x00b\x1b[31m\r\u202eevil\u2028\x85",
    "]]>&amp;</style></title><svg/onload=alert(1)>",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_what_strangers_write_is_text(text: str, measured, checkpoint, tmp_path: Path) -> None:  # noqa: F811  a fixture
    source = tmp_path / text.replace("/", "_").replace("\0", "")
    written(source, read_json(checkpoint("llama") / "config.json"))
    verified, evaluated = (json.loads(file.read_text("utf-8")) for file in (measured.verified, measured.evaluated))
    verified |= {"relation": text, "device": text, "dtype": text}
    verified["checks"][0] |= {"name": text, "detail": text, "where": text, "passed": False}
    evaluated |= {"checkpoint": text, "against": text, "dtype": text, "device": text}
    for name, kept in (("v.json", verified), ("e.json", evaluated)):
        (tmp_path / name).write_text(json.dumps(kept), encoding="utf-8")
    out = make_page(
        tmp_path / "page.html", source, "--against", checkpoint("llama"), "--verify", tmp_path / "v.json", "--evaluate",
        tmp_path / "e.json",
    )  # fmt: skip
    raw = out.read_text("utf-8")
    tree = parsed(raw)
    check_page(tree, (*FIGURES, "stretches", "loss"))
    assert len(of(tree, "script")) == 2
    assert len(of(tree, "style")) == 1
    assert [node.tag for node in of(tree, "img")] == []
    assert not re.search("[\x00\x1b\x85\u202e\u2028\r]", raw)
    shown, told = elements.clean(text), data(tree)
    main = words(of(tree, "main")[0])
    assert main.count(" ".join(shown.split())) >= 8
    assert (told["verify"]["relation"], told["evaluate"]["against"]) == (shown, shown)
    assert words(of(tree, "h1")[0]) == " ".join(elements.clean(str(source)).split())


def test_hostile_values_of_a_config_are_text(own, tmp_path: Path, page_of) -> None:
    source = own("gemma2")
    text = HOSTILE[0]
    edit_json(source / "config.json", architectures=[text], torch_dtype=text, _name_or_path=text)
    (source / f"{text.replace('/', '_')}.bin").write_bytes(b"x")
    tree = page_of(source)
    check_page(tree, FIGURES)
    assert len(of(tree, "script")) == 2


def test_a_long_text_is_cut(tmp_path: Path, measured, checkpoint, page_of) -> None:  # noqa: F811  a fixture
    kept = json.loads(measured.verified.read_text("utf-8"))
    kept["relation"] = "x" * 100_000
    (tmp_path / "v.json").write_text(json.dumps(kept), encoding="utf-8")
    told = data(page_of(checkpoint("llama"), "--verify", tmp_path / "v.json"))
    assert len(told["verify"]["relation"]) < 2 * elements.MOST_CHARACTERS


def test_numbers_that_json_has_not_are_null() -> None:
    assert page._plain({"a": [float("nan"), float("inf"), 1.5], "b": "x"}) == {"a": [None, None, 1.5], "b": "x"}


# ---- the assets, as files


def test_every_asset_is_used_and_packaged() -> None:
    scripts = {f"{name}.js" for name in SCRIPTS}
    pages = {
        "page.html",
        "figures.html",
        "verify.html",
        "stretches.html",
        "loss.html",
        "passkeys.html",
        "page.css",
        "search.html",
    }
    assert {path.name for path in FILES.iterdir()} == scripts | pages


# What would run a text as code, or fetch something: none of it is in any script.
FORBIDDEN = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "createContextualFragment", "eval(",
    "Function(", "fetch(", "XMLHttpRequest", "WebSocket", "import(", "sendBeacon", "localStorage", "setTimeout(\"",
    "srcdoc", ".src", "href",
)  # fmt: skip


def script_faults(text: str) -> list[str]:
    """Words that no script may have, lines that are too long, and addresses that are no name of a namespace."""
    faults = [word for word in FORBIDDEN if word in text]
    faults += [line for line in text.splitlines() if len(line) > 120]
    return faults + [
        found for found in re.findall(r"https?://[^\s\"']+", text) if found != "http://www.w3.org/2000/svg"
    ]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_put_texts_into_texts_alone(name: str) -> None:
    assert script_faults(asset(f"{name}.js")) == []
    assert asset(f"{name}.js").count("\n") <= 250


@pytest.mark.parametrize("planted", ['node.innerHTML = "x";', 'fetch("x");', 'const a = "https://example.org/x";'])
def test_a_planted_fault_is_seen(planted: str) -> None:
    assert script_faults(f"{asset('dom.js')}\n{planted}\n")


def test_every_element_that_a_script_asks_for_is_there() -> None:
    html = "\n".join(path.read_text("utf-8") for path in FILES.glob("*.html"))
    there = set(re.findall(r'\bid="([\w-]+)"', html))
    asked = {found for name in SCRIPTS for found in re.findall(r'byId\("([\w-]+)"\)', asset(f"{name}.js"))}
    asked |= {
        found for name in SCRIPTS for found in re.findall(r'querySelector\("#([\w-]+) svg"\)', asset(f"{name}.js"))
    }
    assert asked - there == set()
    assert len(asked) > 40


def test_every_class_that_is_given_has_a_style() -> None:
    style = asset("page.css")
    scripts = "\n".join(asset(f"{name}.js") for name in SCRIPTS)
    given = {word for found in re.findall(r'class: "([^"]+)"', scripts) for word in found.split()}
    for word in given - {"dot", "bar", "hand", "clock", "picked", "grip"}:  # names for tests, with another's style
        assert f".{word}" in style, word
