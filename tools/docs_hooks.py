"""What MkDocs calls while it builds the site: pages and parts of pages that are made from code and measurements.

A comment ``<!-- made: NAME -->`` in a page of docs/ is replaced by what the part of that name makes; a name that no
part has is an error. Whole pages that are made (those of the commands that have none of their own, of the API, of the
files beside the README) are added to the files and to the navigation.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # `tools` is no installed package

from tools import docs_api, docs_commands, docs_engines, docs_errors, docs_figures, docs_measured  # noqa: E402  after the path to them

MADE = re.compile(r"<!-- made: ([^>]*?) -->")
# What lies beside the README, as pages.
BESIDE = {
    "project/changelog.md": "CHANGELOG.md",
    "project/contributing.md": "CONTRIBUTING.md",
    "project/security.md": "SECURITY.md",
}

PARTS: Mapping[str, Callable[[], str]] = {
    **docs_commands.parts(), **docs_engines.parts(),
    **docs_errors.parts(), **docs_figures.parts(), **docs_measured.parts(),
}  # fmt: skip
PAGES: Mapping[str, str] = {**docs_commands.pages(), **docs_api.pages()}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of commands and of the API into the navigation, after the first page of each."""
    nav: list[Any] = config.nav or []
    for index, entry in enumerate(nav):
        for title, first in entry.items():
            folder = str(first).removesuffix("/index.md")
            made = [page for page in PAGES if Path(page).parent.name == folder and page != first]
            if made:
                nav[index] = {title: [first, *made]}
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that nobody wrote."""
    beside = {page: (ROOT / name).read_text(encoding="utf-8") for page, name in BESIDE.items()}
    for page, text in {**PAGES, **beside}.items():
        if files.get_file_from_path(page) is None:
            files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Put what is made where a page asks for it."""

    def made(found: re.Match[str]) -> str:
        part = PARTS.get(found[1])
        if part is None:
            raise PluginError(f"{page.file.src_uri} asks for {found[1]!r}, which no part makes: {', '.join(PARTS)}")
        return part()

    return MADE.sub(made, markdown)
