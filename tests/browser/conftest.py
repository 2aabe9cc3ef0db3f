"""Chromium, driven by Playwright: a page opened in it is watched for requests, for errors, and for what it logs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.reporting import make_page, measured  # noqa: F401 - one is a fixture

PATIENCE_MS = 10_000
NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class Watched:
    """An open page, what it asked for beside its own file, and what went wrong in it."""

    page: Any
    asked: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def settled(self) -> None:
        """Wait until what was asked for is drawn: two frames, for changes are drawn on the next one."""
        self.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def text(self, selector: str) -> str:
        return self.page.eval_on_selector(selector, "node => node.value ?? node.textContent")

    def attributes(self, selector: str, name: str) -> list[str]:
        return self.page.eval_on_selector_all(selector, "(all, name) => all.map((n) => n.getAttribute(name))", name)

    def choose(self, way: str) -> None:
        self.page.check(f'input[name="way"][value="{way}:0"]', force=True)
        self.settled()


@pytest.fixture(scope="session")
def full(measured, tmp_path_factory) -> Path:  # noqa: F811  a fixture
    """The page of the bundled checkpoint, extended, with everything that was measured."""
    return make_page(tmp_path_factory.mktemp("full") / "page.html", *measured.arguments)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """The browser; the reason is said where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; make test does")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("there is no chromium, and it could not be installed: apt-get install chromium")
    with playwright.sync_playwright() as running:
        # Its sandbox needs rights that a container's root has not.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = running.chromium.launch(executable_path=path, args=options)
        yield opened
        opened.close()


@pytest.fixture
def show(browser) -> Iterator[Callable[..., Watched]]:
    """Open a file in a window; at the end nothing may have been asked for, and nothing have gone wrong."""
    opened: list[tuple[Watched, Any]] = []

    def open_file(file: Path, *, width: int = 1280, checked: bool = True, **options: Any) -> Watched:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(PATIENCE_MS)
        watched = Watched(context.new_page())
        watched.page.on("request", lambda r: r.url == file.as_uri() or watched.asked.append(r.url))
        watched.page.on("console", lambda m: watched.faults.append(f"{m.type}: {m.text}"))
        watched.page.on("pageerror", lambda error: watched.faults.append(str(error)))
        watched.page.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            watched.settled()
        opened.append((watched, checked))
        return watched

    yield open_file
    for watched, checked in opened:
        watched.page.context.close()
        if checked:
            assert (watched.asked, watched.faults) == ([], [])
