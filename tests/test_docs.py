"""The documentation holds: its code runs (tests/pages.py), its links lead somewhere, what is made of the code is whole.

The blocks themselves are tests of their own, which pytest collects from README and docs (conftest.py).
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from sybil.example import SybilFailure

from ropetool.cli import app
from tests import pages
from tests.pages import ROOT, alike
from tools import docs_api, docs_commands, docs_engines, docs_griffe, docs_markdown

FENCE = re.compile(r"^ *(`{3,}|~{3,})([^\n`]*)$", re.MULTILINE)
SKIP = re.compile(r"^ *<!--\s*skip:(.*?)-->", re.DOTALL | re.MULTILINE)
REASON = re.compile(r' next "[^"]{8,}" ')
# Blocks that are no code to run: a schema, what belongs into a file.
SHOWN_ONLY = ("json",)
RUN = ("console", "python", "text")


def blocks(text: str) -> list[str]:
    """The language of every fenced block."""
    found = FENCE.findall(text)
    assert len(found) % 2 == 0, "a block that does not end"
    return [info.strip() for _, info in found[::2]]


@pytest.mark.parametrize("page", pages.pages_of(ROOT), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(blocks(text)) <= {*RUN, *SHOWN_ONLY}
    for directive in SKIP.findall(text):
        assert REASON.fullmatch(directive), f"a block is skipped without a reason: {directive!r}"
    examples = list(pages.sybil().parse(page).examples())
    hidden = text.count("invisible-code-block")
    assert len(examples) == sum(lang in RUN for lang in blocks(text)) + hidden + len(SKIP.findall(text))


def test_most_blocks_run() -> None:
    texts = [page.read_text(encoding="utf-8") for page in pages.pages_of(ROOT)]
    assert len(texts) > 15
    run, skipped = (sum(count) for count in zip(*((len(blocks(t)), len(SKIP.findall(t))) for t in texts), strict=True))
    assert run - skipped > 80
    assert skipped < run / 5


ALIKE = {
    "the same": ("a b\n", "a b\n"),
    "spaces, blank lines, rules": ("a  b\nc\n", " a b\n\n ──── \n c\n"),
    "broken elsewhere": ("one two\nthree\n", "one\ntwo three\n"),
    "anything between": ("a\n...\nd\n", "a\nb\nc\nd\n"),
    "nothing between": ("a\n...\nd\n", "a\nd\n"),
    "anything within": ("loss 2.5... nats\n", "loss 2.56 nats\n"),
    "seconds": ("time 0.00 s\n", "time 12.34 s\n"),
    "rounding": ("off by 1.4e-05, 3.17e-05\n", "off by 1.4e-05, 9.20e-05\n"),
    "no rounding": ("0.00e+00\n", "0.00e+00\n"),
}
UNLIKE = {
    "another word": ("a b\n", "a c\n"),
    "more": ("a\n", "a\nb\n"),
    "less": ("a\nb\n", "a\n"),
    "nothing": ("", "a\n"),
    "another order": ("a\n...\nb\n", "b\na\n"),
    "a figure": ("2.56\n", "2.57\n"),
    "a figure beside seconds": ("2 in 0.01 s\n", "3 in 0.01 s\n"),
    "seconds that are none": ("0.01 s\n", "0.01 m\n"),
    "rounding, a hundred times": ("3.17e-05\n", "3.17e-03\n"),
    "rounding that is none": ("3.17e-05\n", "0.00e+00\n"),
    "rounding, another sign": ("3.17e-05\n", "-3.17e-05\n"),
}


@pytest.mark.parametrize(("shown", "printed"), ALIKE.values(), ids=ALIKE)
def test_what_is_alike(shown: str, printed: str) -> None:
    assert alike(shown, printed)


@pytest.mark.parametrize(("shown", "printed"), UNLIKE.values(), ids=UNLIKE)
def test_what_is_not_alike(shown: str, printed: str) -> None:
    assert not alike(shown, printed)


RIGHT = """
```console
$ ropetool --version
ropetool ...
$ echo one; exit 3
one
$ echo $?
3
$ ropetool inspect nowhere
error: nowhere does not exist
$ ls fixtures/recall-256/config.json
fixtures/recall-256/config.json
```

```python
x = 1 + 1
print(x)
```

```text
2
```

<!-- skip: next "it would fail, and says so" -->
```console
$ false and wrong
```
"""
FAULTS = {
    "other output": ("```console\n$ echo one\ntwo\n```\n", "two"),
    "output that is not shown": ("```console\n$ echo one\n```\n", "one"),
    "an error that is not shown": ("```console\n$ ropetool inspect nowhere\n```\n", "does not exist"),
    "no prompt": ("```console\nropetool --version\n```\n", "begins with"),
    "code that raises": ("```python\nraise ValueError('so it is')\n```\n", "so it is"),
    "a name of nowhere": ("```python\nprint(y)\n```\n", "'y' is not defined"),
    "print that is not shown": ("```python\nprint(1)\n```\n\n```python\npass\n```\n", "not shown"),
    "print as the last": ("```python\nprint(1)\n```\n", "not shown"),
    "other print": ("```python\nprint(1)\n```\n\n```text\n2\n```\n", "is shown as"),
    "text of nothing": ("```text\n2\n```\n", "prints nothing"),
}


def run_page(text: str, place: Path) -> None:
    """Run all blocks of a page."""
    page = place / "page.md"
    page.write_text(text, encoding="utf-8")
    document = pages.sybil().parse(page)
    pages.open_page(document.namespace)
    try:
        for example in document.examples():
            try:
                example.evaluate()
            except Exception as error:
                if type(error).__name__ != "SkipTest":
                    raise
    finally:
        pages.close_page(document.namespace)


def test_a_right_page_passes(tmp_path: Path) -> None:
    run_page(RIGHT, tmp_path)


@pytest.mark.parametrize(("text", "said"), FAULTS.values(), ids=FAULTS)
def test_a_planted_fault_fails(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises((SybilFailure, AssertionError, ValueError, NameError), match=re.escape(said)):
        run_page(text, tmp_path)


LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "fixtures/recall-256/README.md")


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def dead_links(page: Path) -> list[str]:
    """Links of a page that lead nowhere in the repository."""
    text, dead = page.read_text(encoding="utf-8"), []
    for link in LINK.findall(text):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            dead.append(link)
    return dead


@pytest.mark.parametrize("name", BESIDE)
def test_links_beside_the_site_lead_somewhere(name: str) -> None:
    assert dead_links(ROOT / name) == []


def test_a_dead_link_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One thing\n[a](#one-thing) [b](#another) [c](nothing.md) [d](page.md#one-thing) [e](https://x.y)"
    )
    assert dead_links(page) == ["#another", "nothing.md"]


# What a page may have at its end, and the words by which MkDocs or its hooks name each fault; a build ends at some of
# them at once.
PLANTED: dict[str, tuple[tuple[str, str], ...]] = {
    "links": (
        ("[x](nowhere.md)", "nowhere.md"), ("[x](tutorial.md#nowhere)", "#nowhere"), ("[x](#nor-here)", "#nor-here"),
    ),
    "a name": (("::: ropetool.nowhere", "ropetool.nowhere could not be found"),),
    "a part": (("<!-- made: nowhere -->", "asks for 'nowhere'"),),
}  # fmt: skip


def build(root: Path, out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)],
        cwd=root, env={**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}, capture_output=True,
        text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site") / "out"
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def planted(place: Path, *texts: str) -> subprocess.CompletedProcess[str]:
    """Build a copy of the site whose first page has ``texts`` at its end."""
    shutil.copytree(ROOT / "docs", place / "docs")
    shutil.copy(ROOT / "mkdocs.yml", place)
    for name in ("tools", "ropetool"):
        (place / name).symlink_to(ROOT / name)
    with (place / "docs" / "index.md").open("a", encoding="utf-8") as page:
        page.write("\n" + "\n\n".join(texts) + "\n")
    return build(place, place / "site")


@pytest.mark.parametrize("faults", PLANTED.values(), ids=PLANTED)
def test_what_leads_nowhere_fails_the_build(faults: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    done = planted(tmp_path, *(text for text, _ in faults))
    assert done.returncode != 0
    assert [word for _, word in faults if word not in done.stderr] == [], done.stderr[-2000:]


class Fetched(HTMLParser):
    """What a page makes a browser fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed", "object") or (
            tag == "link" and not {"canonical", "next", "prev"} & set((dict(attrs).get("rel") or "").split())
        ):
            self.found += [value for key, value in attrs if key in ("src", "href", "data", "srcset") and value]


def fetched(html: str) -> list[str]:
    parser = Fetched()
    parser.feed(html)
    return parser.found


def test_no_page_asks_the_network(site: Path) -> None:
    files = list(site.rglob("*.html"))
    assert len(files) > 25
    for file in files:
        html = file.read_text(encoding="utf-8")
        assert fetched(html), file
        assert [url for url in fetched(html) if "://" in url or url.startswith("//")] == []
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\((?!['\"]?data:)['\"]?(?:https?:)?//|@import", sheet.read_text(encoding="utf-8")), (
            sheet
        )


def test_what_asks_the_network_is_seen() -> None:
    html = (
        '<a href="https://a.b"></a><link rel="stylesheet" href="https://f.g/x.css"><script src="//c.d/x.js"></script>'
    )
    assert fetched(html) == ["https://f.g/x.css", "//c.d/x.js"]


def test_every_command_has_a_page_with_all_its_options(site: Path) -> None:
    index = (site / "commands" / "index.html").read_text(encoding="utf-8")
    for name, command in docs_commands.commands().items():
        html = (site / "commands" / f"{name}.html").read_text(encoding="utf-8")
        assert f'href="{name}.html"' in index
        given = [option for p in command.params if p.param_type_name == "option" for option in p.opts]
        assert given
        assert [option for option in given if not re.search(rf"(?<![\w-]){option}(?![\w-])", html)] == [], name


def test_a_command_without_a_page_of_its_own_gets_one() -> None:
    made = docs_commands.pages()["commands/families.md"]
    asked = re.findall(r"<!-- made: ([^>]*?) -->", made)
    assert asked
    assert set(asked) <= docs_commands.parts().keys()


def exits_with_one(module: str) -> bool:
    """Whether a module of the command line, or one of it that it imports, leaves with exit code 1."""
    path = ROOT / "ropetool" / "cli" / f"{module}.py"
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if any(isinstance(n, ast.Call) and ast.unparse(n) == "typer.Exit(1)" for n in ast.walk(tree)):
        return True
    below = {str(n.module).removeprefix("ropetool.cli.") for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    return any(exits_with_one(name) for name in below if name != "app")


def test_who_ends_with_exit_code_1_is_told() -> None:
    ends = {command.callback.__name__ for command in app.app.registered_commands if command.callback}
    assert {name for name in ends if exits_with_one(name)} == docs_commands.FAILED.keys()
    assert not exits_with_one("families")


def test_every_verb_of_the_package_is_in_the_api() -> None:
    modules = {path.stem for path in (ROOT / "ropetool").glob("[a-z]*.py")}
    public = {name.split(".")[1] for page in docs_api.PUBLIC.values() for name in page.names}
    assert modules <= public
    assert set(docs_api.pages()) <= {f"api/{name}.md" for name in docs_api.PUBLIC}


@pytest.fixture(scope="module")
def answers() -> Iterator[dict[str, dict[str, str]]]:
    """The verdict of every engine on every way of writing, by name."""
    return {
        way.title: {docs_engines.name_of(found.listener): found.verdict.value for found in said.findings}
        for way, _, said in docs_engines.asked()
    }


def test_the_tables_of_engines_say_what_is_known(answers) -> None:
    """A few cells that are known from running the engines (tests/engines): the page cannot be empty or shifted."""
    assert answers["plain, v4 keys"]["mlx-lm"] == "right"
    assert answers["plain, v5 keys"]["mlx-lm"] == "wrong"
    assert answers["plain, v5 keys"]["transformers 5"] == "right"
    assert answers["plain, v5 keys"]["transformers 4"] == "wrong"
    assert answers["yarn by ropetool"]["mlx-lm"] == "right"
    assert answers["yarn by ropetool"]["ctranslate2"] == "loads-not"
    assert set(answers["two styles that disagree"].values()) == {"unknown"}


def test_a_cell_is_one_cell() -> None:
    made = docs_markdown.table(("A", "B"), [("x | y", "two\nlines")], right=(1,))
    assert made.splitlines() == ["| A | B |", "| --- | ---: |", r"| x \| y | two<br>lines |"]
    assert docs_markdown.code("a") == "`a`"
    assert docs_markdown.code("--to <a|b>") == "<code>--to &lt;a&#124;b&gt;</code>"
    assert docs_markdown.prose("give --from half, or `--to`; x<y") == "give `--from` half, or `--to`; x&lt;y"


def test_a_table_of_a_docstring_is_one_of_markdown() -> None:
    text = "Words.\n\n=====  ===\na      b\n=====  ===\n`x`    1 2\nlong   3\n=====  ===\n\n::\n\n    block"
    made = ["Words.", "", "| a | b |", "| --- | --- |", "| `x` | 1 2 |", "| long | 3 |", "", "", "", "    block"]
    assert docs_griffe.as_markdown(text).splitlines() == made
    assert docs_griffe.as_markdown("a == b\nTitle\n=====\n") == "a == b\nTitle\n====="


def test_names_that_a_module_gathers_are_told_where_they_are_defined() -> None:
    told = docs_api.blocks("ropetool.rope.pairing")
    assert told[0] == "::: ropetool.rope.pairing\n    options:\n      members: false"
    assert any(block.startswith("::: ropetool.rope.layout.Pairing\n") for block in told)
    assert docs_api.blocks("ropetool.convert") == ["::: ropetool.convert"]
    assert docs_api.blocks("ropetool.checkpoint.config.Style") == ["::: ropetool.checkpoint.config.Style"]
