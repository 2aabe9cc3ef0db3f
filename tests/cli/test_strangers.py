"""What strangers send: refused in one sentence, at once, with little memory, and never waited for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import tiny
from tests.hostile import CONFIGS, HEADERS, PLACES, TYPES, Spoil
from tests.measured import Run, measured

# Beyond what the same command takes for a sound checkpoint. An index may have a million entries.
# A slower core, by what it takes for a sound one, has more.
SOUND_SECONDS = 0.35
MOST_SECONDS = {"header": 1.0, "config": 1.0, "type": 10.0, "place": 5.0}
MOST_MB = {"header": 200, "config": 200, "type": 600, "place": 500}
TABLES = {"header": HEADERS, "config": CONFIGS, "type": TYPES, "place": PLACES}
CONVERT = ("convert", "--to", "interleaved", "--dry-run", "--quiet")
ROWS = [(table, name) for table, rows in TABLES.items() for name in rows]


@pytest.fixture(scope="module")
def runs(checkpoint, tmp_path_factory) -> dict[tuple[str, str], Run]:
    """``convert --dry-run`` of a sound checkpoint, and of each hostile one."""
    place = tmp_path_factory.mktemp("hostile")
    sources = {("sound", ""): shutil.copytree(checkpoint("llama"), place / "sound")}
    for at, (table, name) in enumerate(ROWS):
        sources[table, name] = _hostile(checkpoint("llama"), place / str(at) / "c", TABLES[table][name][0])
    found = dict(
        zip(
            sources,
            measured([*CONVERT[:1], path, place / "out", *CONVERT[1:]] for path in sources.values()),
            strict=True,
        )
    )
    shutil.rmtree(place)
    return found


def _hostile(sound: Path, directory: Path, spoil: Spoil) -> Path:
    shutil.copytree(sound, directory)
    spoil(directory)
    return directory


@pytest.mark.parametrize(("table", "name"), ROWS, ids=lambda part: str(part))
def test_one_sentence_at_once(table: str, name: str, runs) -> None:
    run, said = runs[table, name], TABLES[table][name][1]
    assert (run.code, run.out) == (2, ""), run
    assert run.err.startswith("error: ")
    assert run.err.count("\n") == 1
    assert run.err.rstrip("\n").isprintable()
    assert said in run.err
    assert len(run.err) < 2500
    assert "fault of ropetool" not in run.err
    sound = runs["sound", ""].cpu_seconds
    assert run.cpu_seconds - sound < MOST_SECONDS[table] * max(1.0, sound / SOUND_SECONDS)
    assert run.peak_mb < MOST_MB[table]


def test_a_sound_one_is_read(runs) -> None:
    assert (runs["sound", ""].code, runs["sound", ""].err) == (0, "")
    assert runs["sound", ""].peak_mb < MOST_MB["header"]


@pytest.mark.parametrize("command", ["diff", "inspect", "doctor"])
def test_no_name_or_value_is_a_command_to_the_terminal(command: str, own, run, tmp_path: Path) -> None:
    red, title = "\x1b[31m", "\x1b]0;title\x07"
    source = own("llama")
    other = Path(shutil.copytree(source, tmp_path / "other"))
    tiny.edit_json(source / "config.json", **{f"key{red}": f"value{title}", "auto_map": {"AutoModel": f"x{red}.Y"}})
    (source / f"adapter{red}").mkdir()
    (source / f"adapter{red}" / "adapter_config.json").write_text("{}", encoding="utf-8")
    sides = (source, other) if command == "diff" else (source, "--engine", "ctranslate2")
    done = run(command, *(sides if command != "inspect" else sides[:1]))
    assert done.code in (0, 1)
    assert all(line.isprintable() for line in (done.out + done.err).split("\n"))
    if command == "diff":
        assert "key\\x1b[31m" in done.out
