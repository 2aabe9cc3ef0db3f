"""Studies: read back to the bit, resumed after a kill at any byte, and refused by the line where they are wrong."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropetool.checkpoint import study as module
from ropetool.checkpoint.strangers import Limits
from ropetool.checkpoint.study import MOST_KEY, Measured, Study
from ropetool.errors import (
    BusyError,
    CheckpointError,
    ConfigError,
    InternalError,
    NoSpaceError,
    OutputError,
    RopetoolError,
)

IDENTITY: dict[str, Any] = {"text": "ab12", "length": 1024, "dtype": "", "quick": True, "share": 0.1, "none": None}
LOSSES = Measured(((0.1 + 0.2, 1 / 3, 3.0), (2.5e-7, -1.0, 1e6)), (), 12.25)
ANSWERS = Measured((), (1, 0, 1, 1), 0.0)
ENTRY = {"key": "b", "blocks": [[1.5, 2.5]], "answers": None, "seconds": 1.0}
HUGE = 10**390

WRITER = """
import sys, time
from pathlib import Path
from ropetool.checkpoint.study import Measured, Study
with Study.open(Path(sys.argv[1]), {"a": 1}) as study:
    for number in range(int(sys.argv[2])):
        study.put(f"key {number}", Measured(((1.0, 2.0),), (), 1.0))
        print(number, flush=True)
    print("has it", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def writer() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start another process that puts measurements into a study, and keeps it open."""
    started: list[subprocess.Popen[str]] = []

    def start(path: Path, count: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WRITER, str(path), str(count)]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where a study is to be."""
    return tmp_path / "study.jsonl"


@pytest.fixture
def kept(place: Path) -> Path:
    """A study of two measurements."""
    with Study.open(place, IDENTITY) as study:
        study.put("losses", LOSSES)
        study.put("passkeys", ANSWERS)
    return place


def with_line(place: Path, *entries: Any) -> Path:
    """A study with lines as somebody else wrote them."""
    lines = [json.dumps({"ropetool_study": 1, "identity": IDENTITY}), *map(json.dumps, entries)]
    place.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return place


def test_what_was_put_is_there_to_the_bit(kept: Path) -> None:
    with Study.open(kept, IDENTITY) as study:
        assert (study.earlier, study.get("losses"), study.get("passkeys")) == (2, LOSSES, ANSWERS)
        assert study.get("another") is None
        study.put("another", ANSWERS)
        assert (study.earlier, study.get("another")) == (2, ANSWERS)
    header, *lines = map(json.loads, kept.read_text("utf-8").splitlines())
    assert header == {"ropetool_study": 1, "identity": IDENTITY}
    assert lines[0] == {
        "key": "losses", "blocks": [list(row) for row in LOSSES.blocks], "answers": None, "seconds": 12.25,
    }  # fmt: skip
    assert lines[1] == {"key": "passkeys", "blocks": None, "answers": [1, 0, 1, 1], "seconds": 0.0}
    assert [line["key"] for line in lines] == ["losses", "passkeys", "another"]


def test_in_memory_it_is_the_same_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Study.open(None, IDENTITY) as study:
        study.put("losses", Measured(((1, 2),), (), 3))
        assert study.get("losses") == Measured(((1.0, 2.0),), (), 3.0)
        assert study.earlier == 0
        with pytest.raises(ConfigError, match=r"the study, line 2 \('losses'\): it has 1 windows of 2 blocks"):
            study.get("losses", 2, 2, 0)
        with pytest.raises(ConfigError, match="so it cannot be kept"):
            study.put("other", Measured(((math.inf,),), (), 1.0))
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_made_by_the_first_measurement(place: Path) -> None:
    with Study.open(place, IDENTITY) as study:
        assert not place.exists()
        study.put("losses", LOSSES)
        assert place.read_bytes().count(b"\n") == 2
    with Study.open(place, IDENTITY):
        pass
    assert place.read_bytes().count(b"\n") == 2


def test_of_equal_keys_the_last_is_meant(kept: Path) -> None:
    with Study.open(kept, IDENTITY) as study:
        study.put("losses", ANSWERS)
        assert study.get("losses") == ANSWERS
    with Study.open(kept, IDENTITY) as study:
        assert (study.earlier, study.get("losses")) == (2, ANSWERS)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ((2, 4, 0), "it has 2 windows of 3 blocks and 0 answers, and this search has 2 windows of 4 blocks"),
        ((3, 3, 0), "this search has 3 windows of 3 blocks and 0 answers"),
        ((0, 0, 4), "this search has 0 windows of 0 blocks and 4 answers"),
    ],
)
def test_another_shape_is_refused_by_its_line(wanted: tuple[int, int, int], said: str, kept: Path) -> None:
    with Study.open(kept, IDENTITY) as study:
        assert study.get("losses", 2, 3, 0) == study.get("losses", windows=2) == LOSSES
        assert study.get("passkeys", 0, 0, 4) == ANSWERS
        assert study.get("nothing", *wanted) is None
        with pytest.raises(ConfigError, match=r"study.jsonl, line 2 \('losses'\)") as caught:
            study.get("losses", *wanted)
    assert said in caught.value.message
    assert "remove the line, or name another --study file" in caught.value.message
    assert (caught.value.fields["line"], caught.value.fields["key"]) == (2, "losses")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"text": "cd34"}, 'text is "ab12" there and "cd34" here'),
        ({"length": 2048, "quick": 1}, "length is 1024 there and 2048 here; quick is true there and 1 here"),
        ({"seed": 7}, "seed is absent there and 7 here"),
    ],
)
def test_another_identity_is_refused_with_both_values(change: dict[str, Any], said: str, kept: Path) -> None:
    before = kept.read_bytes()
    with pytest.raises(ConfigError, match=r"study.jsonl has measurements of another search") as caught:
        Study.open(kept, IDENTITY | change)
    assert said in caught.value.message
    assert "name another --study file, or remove this one" in caught.value.message
    assert caught.value.fields["keys"] == list(change)
    with pytest.raises(ConfigError, match=r"share is 0.1 there and absent here"):
        Study.open(kept, {key: value for key, value in IDENTITY.items() if key != "share"})
    assert kept.read_bytes() == before


def test_a_file_cut_at_any_byte_loses_one_measurement_at_most(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kill may leave it: the whole lines are there, and the next measurement takes the place of the rest."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    raw = kept.read_bytes()
    whole = [at + 1 for at, byte in enumerate(raw) if byte == 10]
    for cut in range(len(raw)):
        kept.write_bytes(raw[:cut])
        lines = sum(end <= cut for end in whole)
        with Study.open(kept, IDENTITY) as study:
            assert study.earlier == max(0, lines - 1), cut
            assert kept.read_bytes() == raw[:cut], "opening writes nothing"
            study.put("new", ANSWERS)
        assert kept.read_bytes().endswith(b'"seconds": 0.0}\n'), "nothing of the torn line is left"
        with Study.open(kept, IDENTITY) as study:
            assert study.earlier == max(0, lines - 1) + 1, cut
            assert (study.get("new"), study.get("losses")) == (ANSWERS, LOSSES if lines > 1 else None)
        assert kept.read_bytes().startswith(raw[: whole[lines - 1]] if lines else raw[: whole[0]])


@pytest.mark.parametrize("tail", [b'{"key": "c", "blo\n', b"\0\0\0\0", b"\xff\xfe\n", b"\n"])
def test_a_last_line_that_is_no_json_is_dropped(tail: bytes, kept: Path) -> None:
    whole = kept.read_bytes()
    kept.write_bytes(whole + tail)
    with Study.open(kept, IDENTITY) as study:
        assert study.earlier == 2
        study.put("new", ANSWERS)
    assert kept.read_bytes().startswith(whole + b'{"key": "new"')
    kept.write_bytes(whole + tail + b"{}")
    if tail.endswith(b"\n"):
        with pytest.raises(ConfigError, match=r"study.jsonl, line 4: it cannot be read as JSON"):
            Study.open(kept, IDENTITY)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"Once upon a time", "it has no line that ends"),
        (b'{"a": 1}', "it has no line that ends"),
        (b"Once upon a time\n", "its first line cannot be read as JSON"),
        (b'{"a": 1}\n', "its first line has no ropetool_study"),
        (b"[1]\n", "its first line has no ropetool_study"),
        (b'{"ropetool_study": 2, "identity": {}}\n', "has ropetool_study 2, and this ropetool reads 1"),
        (b'{"ropetool_study": true, "identity": {}}\n', "has ropetool_study True"),
        (b'{"ropetool_study": 1}\n', "must have an identity of plain values"),
        (b'{"ropetool_study": 1, "identity": [1]}\n', "must have an identity of plain values"),
        (b'{"ropetool_study": 1, "identity": {"a": [1]}}\n', "must have an identity of plain values"),
        (b'{"ropetool_study": 1, "identity": {}, "more": 1}\n', "must have an identity of plain values"),
        (b'{"ropetool_study": 1, "identity": {"a": 1, "a": 2}}\n', "the key 'a' appears twice"),
        (b'{"ropetool_study": 1, "identity": {"a": NaN}}\n', "NaN is not a JSON number"),
        (b"[" * 100_000 + b"\n", "nested more than 64 levels"),
    ],
)
def test_what_is_no_study_is_refused_and_left_as_it_is(content: bytes, said: str, place: Path) -> None:
    place.write_bytes(content)
    with pytest.raises(ConfigError, match=r"study.jsonl is not a study, or was damaged") as caught:
        Study.open(place, IDENTITY)
    assert said in caught.value.message
    assert "name another --study file, or remove this one" in caught.value.message
    assert place.read_bytes() == content


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": 3}, "key is 3; it must be a text"),
        ({"key": "k" * (MOST_KEY + 1)}, f"it must be a text of at most {MOST_KEY} characters"),
        ({"key": None}, "key is None"),
        ({"blocks": []}, "blocks is []"),
        ({"blocks": [[]]}, "blocks is [[]]"),
        ({"blocks": [[1.0], [1.0, 2.0]]}, "lists of equal length, above 0"),
        ({"blocks": [1.0]}, "blocks is [1.0]"),
        ({"blocks": [["1"]]}, "blocks is [['1']]"),
        ({"blocks": [[True]]}, "blocks is [[True]]"),
        ({"blocks": [[None]]}, "blocks is [[None]]"),
        ({"blocks": {"a": [1.0]}}, "blocks is {'a'"),
        ({"blocks": [[1.1e6]]}, "numbers from -1,000,000 to 1,000,000"),
        ({"blocks": [[HUGE]]}, "blocks is [[1000"),
        ({"blocks": None}, "both blocks and answers are null"),
        ({"answers": []}, "answers is []"),
        ({"answers": [2]}, "answers is [2]; it must be null, or a list of 0 and 1"),
        ({"answers": [True]}, "answers is [True]"),
        ({"answers": [1.0]}, "answers is [1.0]"),
        ({"answers": "01"}, "answers is '01'"),
        ({"seconds": -1}, "seconds is -1; it must be a number of seconds, 0 or more"),
        ({"seconds": False}, "seconds is False"),
        ({"seconds": None}, "seconds is None"),
        ({"seconds": HUGE}, "seconds is 1000"),
        ({"more": 1}, "it must be an object of key, blocks, answers, seconds"),
    ],
    ids=lambda value: str(value)[:40],
)
@pytest.mark.parametrize("last", [True, False])
def test_a_malformed_line_is_refused_by_number_and_key(
    change: dict[str, Any], said: str, last: bool, place: Path
) -> None:
    before, after = {**ENTRY, "key": "a"}, [] if last else [{**ENTRY, "key": "c"}]
    with_line(place, before, ENTRY | change, *after)
    key = (ENTRY | change)["key"]
    named = f" ({key[:MOST_KEY]!r})" if isinstance(key, str) else ""
    with pytest.raises(ConfigError) as caught:
        Study.open(place, IDENTITY)
    assert caught.value.message.startswith(f"study.jsonl, line 3{named}: ")
    assert said in caught.value.message
    assert "remove the line, or name another --study file" in caught.value.message
    assert caught.value.fields["line"] == 3


@pytest.mark.parametrize("text", ["[1]", "null", "3", '{"key": "b"}'])
def test_a_line_that_is_no_measurement_is_refused(text: str, place: Path) -> None:
    with with_line(place).open("a", encoding="utf-8") as file:
        file.write(text + "\n")
    with pytest.raises(ConfigError, match=r"line 2.*it must be an object of key, blocks, answers, seconds"):
        Study.open(place, IDENTITY)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "9" * 500])
def test_numbers_that_are_none_are_refused(number: str, place: Path) -> None:
    line = f'{{"key": "b", "blocks": [[{number}]], "answers": null, "seconds": 1.0}}\n'
    with with_line(place).open("a", encoding="utf-8") as file:
        file.write(2 * line)
    with pytest.raises(ConfigError, match=r"study.jsonl, line 2: it cannot be read as JSON"):
        Study.open(place, IDENTITY)


@pytest.mark.parametrize(
    ("key", "measured", "said"),
    [
        ("b", Measured(((math.nan,),), (), 1.0), "blocks is [[nan]]"),
        ("b", Measured(((-math.inf, 1.0),), (), 1.0), "blocks is [[-inf, 1.0]]"),
        ("b", Measured(((1.0,), (1.0, 2.0)), (), 1.0), "lists of equal length"),
        ("b", Measured((), (), 1.0), "both blocks and answers are null"),
        ("b", Measured((), (3,), 1.0), "answers is [3]"),
        ("b", Measured((), (1,), math.nan), "seconds is nan"),
        ("b" * 201, ANSWERS, "at most 200 characters"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(key: str, measured: Measured, said: str, kept: Path) -> None:
    before = kept.read_bytes()
    with Study.open(kept, IDENTITY) as study:
        with pytest.raises(ConfigError, match="so it cannot be kept") as caught:
            study.put(key, measured)
        assert said in caught.value.message
        assert study.get(key) is None
        assert kept.read_bytes() == before
        study.put("c", ANSWERS)
    with Study.open(kept, IDENTITY) as study:
        assert study.earlier == 3


def test_more_than_any_study_has_is_refused(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = kept.stat().st_size
    for limits in (Limits(size_bytes + 10, 2_000_000), Limits(64 << 20, 50)):
        monkeypatch.setattr(module, "LIMITS", limits)
        with Study.open(kept, IDENTITY) as study, pytest.raises(ConfigError, match="a study has at most"):
            study.put("c", ANSWERS)
        assert kept.stat().st_size == size_bytes
    for limits in (Limits(size_bytes - 1, 2_000_000), Limits(64 << 20, 10)):
        monkeypatch.setattr(module, "LIMITS", limits)
        with pytest.raises(
            ConfigError, match=r"study.jsonl comes to \d+ bytes and about 44 values; a study has at most"
        ):
            Study.open(kept, IDENTITY)


def test_places_where_no_study_can_be(tmp_path: Path, kept: Path) -> None:
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory" / "out").symlink_to(kept)
    (tmp_path / "directory" / "dangling").symlink_to(tmp_path / "nothing")
    cases: tuple[tuple[str, type[RopetoolError], str], ...] = (
        ("directory", CheckpointError, "is a directory, and must be a file"),
        ("pipe", CheckpointError, "is a pipe, and must be a file"),
        ("missing/study", OutputError, "missing, where study would be, is not a directory; make it"),
        ("study.jsonl/study", OutputError, "is not a directory"),
        ("directory/out", OutputError, "is a symbolic link to .*study.jsonl, outside of its directory"),
        ("directory/dangling", OutputError, "is a symbolic link to .*nothing"),
    )
    for name, kind, said in cases:
        with pytest.raises(kind, match=said):
            Study.open(tmp_path / name, IDENTITY)
    assert not (tmp_path / "nothing").exists()


def test_a_link_within_the_directory_is_followed(tmp_path: Path, kept: Path) -> None:
    (tmp_path / "link").symlink_to("study.jsonl")
    (tmp_path / "ahead").symlink_to("made.jsonl")
    with Study.open(tmp_path / "link", IDENTITY) as study:
        assert study.earlier == 2
    with Study.open(tmp_path / "ahead", IDENTITY) as study:
        study.put("a", ANSWERS)
    assert (tmp_path / "made.jsonl").is_file()
    assert (tmp_path / "ahead").is_symlink()


def test_a_study_has_one_process_at_a_time(writer, place: Path) -> None:
    process = writer(place, 3)
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(4)][-1] == "has it\n"
    with pytest.raises(BusyError, match=r"is in use: .* adds to it; wait until that has ended, or name") as caught:
        Study.open(place, {"a": 1})
    if caught.value.fields["pid"] is not None:  # where the system tells
        assert caught.value.fields["pid"] == process.pid
        assert f"process {process.pid}" in caught.value.message
    process.send_signal(signal.SIGKILL)
    process.wait()
    with Study.open(place, {"a": 1}) as study:
        assert study.earlier == 3


def test_what_a_killed_process_had_measured_is_there(writer, place: Path) -> None:
    process = writer(place, 1_000_000)
    assert process.stdout is not None
    told = [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    told += process.stdout.readlines()
    with Study.open(place, {"a": 1}) as study:
        assert study.earlier in (len(told), len(told) + 1)
        assert all(study.get(f"key {number}", 1, 2, 0) for number in range(len(told)))


def test_a_lock_goes_with_the_study(kept: Path) -> None:
    first = Study.open(kept, IDENTITY)
    with pytest.raises(BusyError):
        Study.open(kept, IDENTITY)
    first.close()
    first.close()
    with Study.open(kept, IDENTITY):
        pass
    with pytest.raises(ConfigError):
        Study.open(kept, {})
    with Study.open(kept, IDENTITY):
        pass
    with pytest.raises(InternalError, match=r"study.jsonl is closed, and 'c' was to be put into it"):
        first.put("c", ANSWERS)


def test_a_study_made_meanwhile_is_not_written_over(place: Path) -> None:
    with Study.open(place, IDENTITY) as late:
        with Study.open(place, IDENTITY) as early:
            early.put("a", ANSWERS)
        before = place.read_bytes()
        with pytest.raises(BusyError, match="was made by another process since this one began; run again"):
            late.put("b", LOSSES)
        assert late.get("b") is None
    assert place.read_bytes() == before


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_goes_without(number: int, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with Study.open(place, IDENTITY) as study:
        study.put("a", ANSWERS)
    with Study.open(place, IDENTITY) as study:
        assert study.earlier == 1


@pytest.mark.parametrize(
    ("number", "kind", "said"),
    [
        (errno.ENOSPC, NoSpaceError, "no space left while writing .*study.jsonl; the 2 measurements before are kept"),
        (errno.EIO, OutputError, "study.jsonl cannot be written: Input/output error; the 2 measurements before"),
    ],
)
def test_a_full_disk_loses_the_one_measurement(
    number: int, kind: type[OutputError], said: str, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, write = kept.read_bytes(), os.pwrite

    def half(descriptor: int, data: memoryview, at: int) -> int:
        write(descriptor, data[: len(data) // 2], at)
        raise OSError(number, os.strerror(number))

    with Study.open(kept, IDENTITY) as study:
        monkeypatch.setattr(os, "pwrite", half)
        with pytest.raises(kind, match=said):
            study.put("long " * 20, LOSSES)
        monkeypatch.undo()
        assert len(kept.read_bytes()) > len(whole)
        study.put("c", ANSWERS)
    with Study.open(kept, IDENTITY) as study:
        assert study.earlier == 3
    assert kept.read_bytes().startswith(whole + b'{"key": "c"')


def test_every_measurement_is_on_disk_before_the_next(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = os.fsync

    def note(descriptor: int) -> None:
        sync(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "fsync", note)
    with Study.open(kept, IDENTITY) as study:
        for key in "abc":
            study.put(key, ANSWERS)
            assert synced[-1] == kept.stat().st_size
    assert len(synced) == 3


@pytest.mark.parametrize("identity", [{"a": [1]}, {"a": math.nan}, {1: "a"}])
def test_an_identity_is_plain_values(identity: dict[Any, Any]) -> None:
    with pytest.raises(InternalError, match="must be plain values by name"):
        Study.open(None, identity)


def test_the_study_of_a_search_has_room() -> None:
    """A thousand readings of 64 blocks, and as many of passkeys."""
    with Study.open(None, IDENTITY) as study:
        for number in range(1000):
            study.put(f"losses {number}", Measured((tuple(1 + block / 7 for block in range(64)),), (), 1.0))
        assert study.get("losses 999", 1, 64, 0)
