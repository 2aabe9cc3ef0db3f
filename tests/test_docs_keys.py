"""The keys of the JSON on each command's page are those that the command prints: none is missing, and none made up."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from ropetool import convert
from ropetool.checkpoint import in_place
from ropetool.checkpoint.bundled import CHECKPOINT, bundled
from ropetool.cli import app, demo
from ropetool.rope.layout import Pairing
from tests import hub, pages, serving, unrotated
from tools import docs_commands

HEADING = "## The keys of the JSON"
CELL = re.compile(r"^\| ((?:`[^`]+`(?:, )?)+) \|", re.MULTILINE)
REST = ".*"
# Command lines whose answers together have every key; `WITH` has what each finds in the directory that it runs in.
RUNS: dict[str, tuple[str, ...]] = {
    "inspect": (
        "inspect source", "inspect wrong --weights --text bundled", "inspect longer --text bundled --code",
        "inspect gpt2", "HUB inspect org/name",
    ),
    "convert": (
        "convert source a --to interleaved --as same --for mlx-lm --dry-run", "convert begun --undo",
    ),
    "extend": (
        "extend source b --method yarn --to 1k --dry-run",
        "extend source c --method auto --to 512 --text bundled --trials 8 --dry-run",
        "extend source d --method auto --to 512 --text bundled --trials 4 --for sglang --dry-run",
    ),
    "verify": ("verify source longer", "verify source wrong --quick", "verify source --served URL --tokens 48"),
    "evaluate": ("evaluate longer --against source --lengths 256,512 --passkey --trials 1 --depths 0",),
    "diff": ("diff source wrong", "diff source longer"),
    "doctor": ("doctor longer",),
    "report": (
        "evaluate longer --against source --lengths 256 --out measured.json", "verify source longer --out proof.json",
        "report longer --against source --evaluate measured.json --verify proof.json --out page.html",
    ),
    "families": ("families llava", "families qwen3", "families zaya"),
    "demo": ("demo --out demo",),
}  # fmt: skip


def leaves(value: Any, path: str = "") -> Iterator[str]:
    """Where every value of a JSON object lies; an empty list or object is a value."""
    if isinstance(value, dict) and value:
        for key, entry in value.items():
            yield from leaves(entry, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for entry in value:
            yield from leaves(entry, f"{path}[]")
    else:
        yield path


def told(page: str) -> set[str]:
    """The keys that a page has in its tables."""
    return {key for cell in CELL.findall(page.partition(HEADING)[2]) for key in re.findall(r"`([^`]+)`", cell)}


def is_told(leaf: str, keys: set[str]) -> bool:
    """Whether a page has the key: itself, all below it (that is empty here or null), or a key that it is below of."""
    below = any(key.startswith((f"{leaf}.", f"{leaf}[]")) for key in keys)
    return leaf in keys or f"{leaf}[]" in keys or below or any(
        key.endswith(REST) and f"{leaf}.".startswith(key[: -len(REST)] + ".") for key in keys
    )  # fmt: skip


def is_printed(key: str, printed: set[str]) -> bool:
    """Whether a key of a page is in some answer."""
    bare = key.removesuffix(REST)
    return any(leaf == bare or (key != bare and leaf.startswith(f"{bare}.")) for leaf in printed)


class Cut(BaseException):
    """The end of a run in the middle."""


def begin(directory: Path) -> None:
    """A conversion in place that is cut off after its first batch of rows."""

    def change(*arguments: Any) -> int:
        in_place_change(*arguments)
        raise Cut

    in_place_change = in_place._change
    plan = convert.plan(directory, None, Pairing.INTERLEAVED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_place, "_change", change)
        with pytest.raises(Cut):
            convert.apply(plan)


@dataclass(frozen=True)
class Place:
    """Where the commands run: the directory, the address of a server, and a client of a Hub."""

    directory: Path
    url: str
    hub: hub.Client


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("keys")
    source = shutil.copytree(bundled(CHECKPOINT), directory / "source")
    for line in (
        f"convert {source} {directory}/wrong --to interleaved --as same",
        f"extend {source} {directory}/longer --method yarn --to 1k",
    ):
        assert app.run([*line.split(), "--quiet", "--json"]) == 0
    shutil.copy(source / "config.json", directory / "wrong" / "config.json")
    begin(shutil.copytree(source, directory / "begun"))
    unrotated.random_model(unrotated.Unrotated("gpt2")).save_pretrained(directory / "gpt2")
    fake = serving.Fake(serving.transformers(source), AutoTokenizer.from_pretrained(source))
    with serving.serving(fake), hub.serving() as running, hub.client(running, directory) as client:
        running.repo("org/name", hub.files_of(source))
        yield Place(directory, fake.url, client)


@pytest.fixture
def answers(place: Place, capfd, monkeypatch) -> Callable[[str], dict[str, Any]]:
    """The JSON that a command line prints."""

    # Keys alone are looked at: tests/cli/test_demo.py has the whole demo.
    monkeypatch.setattr(demo, "LOSS_WINDOWS", 1)
    monkeypatch.setattr(demo, "RECALL_DOCUMENTS", 2)

    def run(line: str) -> dict[str, Any]:
        monkeypatch.chdir(place.directory)
        arguments = [*line.replace("URL", place.url).split(), "--json", "--quiet"]
        if arguments[0] == "HUB":
            return json.loads(place.hub(*arguments[1:])[1])
        capfd.readouterr()
        app.run(arguments)
        return json.loads(capfd.readouterr().out)

    return run


def page_of(command: str) -> str:
    return (pages.ROOT / "docs" / "commands" / f"{command}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", docs_commands.commands())
def test_a_page_has_the_keys_that_its_command_prints(command: str, answers) -> None:
    keys = told(page_of(command))
    said = {line: answers(line) for line in RUNS[command]}
    printed = {leaf for line, answer in said.items() if command in line.split() for leaf in leaves(answer)}
    assert {leaf for leaf in printed if not is_told(leaf, keys)} == set(), "printed, and not on the page"
    assert {key for key in keys if not is_printed(key, printed)} == set(), "on the page, and never printed"


def test_a_missing_and_a_made_up_key_are_seen() -> None:
    printed = set(leaves({"rope": [{"theta": 1.0}], "heads": {"query": 8}, "warnings": [], "text": None}))
    assert printed == {"rope[].theta", "heads.query", "warnings", "text"}
    keys = told(f"{HEADING}\n| `rope[].theta`, `rope[].factor` | x |\n| `warnings[].code` | x |\n| `text.*` | x |\n")
    assert {leaf for leaf in printed if not is_told(leaf, keys)} == {"heads.query"}
    assert {key for key in keys if not is_printed(key, printed)} == {"rope[].factor", "warnings[].code"}
