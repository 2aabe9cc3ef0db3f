"""A kept search: read back as it was, and refused by the key where it was not made so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropetool.checkpoint.results import MOST_ENTRIES
from ropetool.checkpoint.search_results import read_search
from ropetool.errors import ConfigError
from tests.searched_example import LISTS, SEARCHED, kept, saved, trial

MISSING = object()


def short(part: object) -> str:
    """A name that is the same in every process."""
    return "missing" if part is MISSING else str(part)[:40]


def test_what_was_kept_is_read(tmp_path: Path) -> None:
    found, made = read_search(saved(tmp_path, kept(SEARCHED))), SEARCHED
    assert (found.file, found.output, found.checkpoint) == ("kept.json", "models/longer", made.checkpoint)
    assert (found.why, found.is_default, found.objective) == (made.why, made.is_default, made.objective)
    assert (found.original_length, found.length, found.text) == (64, 256, "emma.txt")
    assert (found.gain, found.low, found.high) == (made.gain.mean, made.gain.low, made.gain.high)
    assert (found.best, found.default) == ("yarn beta_fast 9.043, beta_slow 0.2682, factor 4.5", "yarn")
    assert found.chosen == found.best
    assert [(b.start, b.stop, b.best, b.default, b.none) for b in found.bins] == [
        (b.start, b.stop, b.best, b.default, b.none) for b in made.bins
    ]
    assert [(p.index, p.wavelength, p.best, p.default) for p in found.pairs] == [
        (p.index, p.wavelength, p.best, p.default) for p in made.pairs
    ]
    assert [(t.number, t.stage, t.length, t.loss, t.penalty, t.objective) for t in found.trials] == [
        (t.number, t.stage, t.length, t.loss, t.penalty, t.objective) for t in made.trials
    ]
    assert [(k.length, k.trials, k.best, k.default) for k in found.passkey] == [(128, 20, 19, 18), (256, 21, 17, 13)]
    assert [(e.name, e.ignores, e.said) for e in found.deaf] == [
        ("vllm 0.26.0", ("attention_factor",), "turns so, at another temperature"),
        ("llama.cpp converter b9000", ("beta_slow", "factor"), "turns by factor 4"),
    ]
    assert found.notes == (
        "not tried: dynamic: vllm does not honour it", f"cut short: {made.cut[0]}",
        "warning [short-text] the text has 7,001 tokens to choose by",
    )  # fmt: skip
    assert [t.setting for t in found.trials][1::2] == [
        "abf base 50312.5", "longrope short_factor 1 to 1, long_factor 1 to 4.5",
    ]  # fmt: skip


def test_what_json_cannot_say_is_none(tmp_path: Path) -> None:
    broken = replace(SEARCHED, trials=(trial(1, LISTS, float("inf")),))
    (found,) = read_search(saved(tmp_path, kept(broken))).trials
    assert (found.loss, found.penalty, found.objective) == (None, 0.001, None)


def test_the_longest_search_that_can_be_asked_for_is_read(tmp_path: Path) -> None:
    """1,000 trials of two lists for heads of 256, each number with as many digits as a float has."""
    factor = 1.2345678901234567
    lists = replace(LISTS, settings={"short_factor": [factor] * 128, "long_factor": [factor] * 128})
    bins = (factor,) * 12
    trials = tuple(trial(at, lists, factor, bins=bins) for at in range(1, 1001))
    assert len(read_search(saved(tmp_path, kept(replace(SEARCHED, trials=trials)))).trials) == 1000


# (where the value is below `search`, the value, what is said)
FAULTS: tuple[tuple[tuple[str | int, ...], Any, str], ...] = (
    *(((key,), MISSING, f"search.{key} is missing") for key in (
        "checkpoint", "why", "is_default", "objective", "original_length", "length", "text", "chosen", "best",
        "default", "gain", "bins", "pairs", "trials", "passkey", "engines", "left", "cut", "warnings")),
    *(((key,), 3, f"search.{key} is 3; it must be a text") for key in ("checkpoint", "why", "objective", "text")),
    *(((key,), "yarn", f"search.{key} is 'yarn'; it must be an object") for key in ("chosen", "best", "default",
                                                                                  "gain")),
    *(((key,), {}, f"search.{key} is {{}}; it must be a list of objects")
      for key in ("bins", "pairs", "trials", "passkey", "engines", "left", "warnings")),
    *((("cut",), value, f"search.cut is {value!r}; it must be a list of texts") for value in ("x", [3])),
    *((("passkey", 1, key), 0.5, f"search.passkey[1].{key} is 0.5; it must be a whole number")
      for key in ("length", "trials", "best", "default")),
    *((("engines", 2, key), None, f"search.engines[2].{key} is None; it must be a text")
      for key in ("engine", "part", "version", "said")),
    (("engines", 0, "right"), 1, "search.engines[0].right is 1; it must be true or false"),
    (("engines", 0, "ignores"), None, "search.engines[0].ignores is None; it must be a list of texts"),
    *((("left", 0, key), 1, f"search.left[0].{key} is 1; it must be a text") for key in ("method", "why")),
    *((("warnings", 0, key), 1, f"search.warnings[0].{key} is 1; it must be a text") for key in ("code", "message")),
    *(((key,), -1, f"search.{key} is -1; it must be a whole number") for key in ("original_length", "length")),
    (("is_default",), 0, "search.is_default is 0; it must be true or false"),
    (("trials",), [{}] * (MOST_ENTRIES + 1), f"search.trials has {MOST_ENTRIES + 1} entries"),
    *((("gain", key), "x", f"search.gain.{key} is 'x'; it must be a number") for key in ("mean", "low", "high")),
    *(((of, "method"), None, f"search.{of}.method is None; it must be a text") for of in ("chosen", "best", "default")),
    *(((of, "settings"), [], f"search.{of}.settings is []; it must be an object") for of in ("chosen", "best",
                                                                                            "default")),
    (("bins", 1, "from"), 0.5, "search.bins[1].from is 0.5; it must be a whole number"),
    (("bins", 1, "to"), 64, "search.bins[1].to is 64; it must be above from, which is 64"),
    *((("bins", 1, key), True, f"search.bins[1].{key} is True; it must be a number")
      for key in ("best", "default", "none")),
    (("pairs", 2, "index"), "2", "search.pairs[2].index is '2'; it must be a whole number"),
    *((("pairs", 2, key), [], f"search.pairs[2].{key} is []; it must be a number")
      for key in ("wavelength", "best", "default")),
    *((("trials", 1, key), None, f"search.trials[1].{key} is None; it must be a whole number")
      for key in ("number", "length")),
    *((("trials", 1, key), "low", f"search.trials[1].{key} is 'low'; it must be a number")
      for key in ("loss", "penalty", "objective")),
    (("trials", 1, "stage"), 1, "search.trials[1].stage is 1; it must be a text"),
    (("trials", 1, "setting"), None, "search.trials[1].setting is None; it must be an object"),
    (("trials", 1, "setting", "method"), MISSING, "search.trials[1].setting.method is missing"),
    (("trials", 1, "setting", "settings"), MISSING, "search.trials[1].setting.settings is missing"),
)  # fmt: skip


@pytest.mark.parametrize(("place", "value", "said"), FAULTS, ids=short)
def test_a_fault_is_named_by_its_key(place, value, said: str, tmp_path: Path) -> None:
    told = kept(SEARCHED)
    holder = told["search"]
    for key in place[:-1]:
        holder = holder[key]
    if value is MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    with pytest.raises(ConfigError) as caught:
        read_search(saved(tmp_path, told))
    assert caught.value.message.startswith(f"kept.json: {said}")


def test_where_it_was_written_must_be_told(tmp_path: Path) -> None:
    told = kept(SEARCHED)
    del told["output"]
    with pytest.raises(ConfigError, match=r"kept\.json: output is missing"):
        read_search(saved(tmp_path, told))


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"output": "x", "method": "yarn"}, "holds no result of extend --method auto (there is no search)"),
        ({"lengths": []}, "there is no search"),
        ({"error": {"code": "usage", "message": "the text is too short"}}, "the text is too short"),
    ],
)
def test_another_result_is_no_search(told, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_search(saved(tmp_path, told))
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([], "none"),
        ([[1.5], 2], "1.5 to 1.5 to 2"),
        ("x" * 100, "x" * 40),
        (10**320, str(10**320)[:40]),
        (None, "None"),
    ],
    ids=short,
)
def test_settings_that_nobody_made_are_shown_in_short(value, shown: str, tmp_path: Path) -> None:
    told = json.loads(json.dumps(kept(SEARCHED)))
    told["search"]["chosen"]["settings"] = {"key": value}
    assert read_search(saved(tmp_path, told)).chosen == f"yarn key {shown}"
