"""A search as it is shown: in the terminal, as JSON, in a report there, on its page and as a figure; made by hand."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
import pytest
from rich.console import Console

from ropetool.cli import app
from ropetool.models.searched import Pair, Searched, Trial
from ropetool.views import jsons, search, tables
from ropetool.views.report import elements, plots
from tests.reporting import CONFIGS, make_page, written
from tests.searched_example import AS_DEFAULT, NTK, PAIRS, SEARCHED, extended, kept, saved

COLUMNS = 120
HOSTILE = "</script><script>alert(1)</script>\u202e<img src=x onerror=alert(1)>{{script}}"


def printed(shown: Any, width: int = COLUMNS) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(shown)
    return console.export_text()


def flat(text: str) -> str:
    return " ".join(text.split())


def line(text: str, start: str) -> list[str]:
    """The words of the one line that begins so."""
    (found,) = (each.split() for each in text.splitlines() if each.strip().startswith(start))
    return found


# ---- the terminal


def test_the_terminal_tells_everything() -> None:
    text = printed(search.searched(SEARCHED))
    told = flat(text)
    assert text.splitlines()[0] == SEARCHED.why
    for part in (
        "search on emma.txt", "+0.0283 nats a token, 95 % between +0.0190 and +0.0377: beyond noise",
        "257 paired differences of 32 tokens", "19 of 20 at 128 tokens, the default 18",
        "17 of 21 at 256 tokens, the default 13", SEARCHED.objective,
        "7001 tokens to choose by, of which 4 x 256 were read; 7002 others to report by, 8 x 256 read",
        "4, 1 of them from the study; decided at 256 tokens", "of 30.5 minutes, float32 on cpu, seed 11",
        "yarn beta_fast 9.043, beta_slow 0.2682, factor 4.5 (factor 4.5, attention factor 1.069, theta 10000)",
        "yarn (factor 4, attention factor 1.13863, theta 10000)", "not tried: dynamic: vllm does not honour it",
        f"cut short: {SEARCHED.cut[0]}", "[short-text] the text has 7,001 tokens",
    ):  # fmt: skip
        assert part in told
    assert line(text, "bound to") == ["bound", "to", "what", "is", "honoured", "by", "vllm"]
    assert "best of the first" not in text
    assert max(map(len, text.splitlines())) <= COLUMNS


def test_every_trial_is_a_line() -> None:
    text = printed(search.searched(SEARCHED), 160)
    assert line(text, "1   screen") == ["1", "screen", "256", "yarn", "2.3884", "0.0010", "2.3894", "study"]
    assert line(text, "2   screen") == ["2", "screen", "128", "abf", "base", "50312.5", "2.4691", "0.0020", "2.4711",
                                        "10.2"]  # fmt: skip
    assert "short_factor 1 to 1, long_factor 1 to 4.5" in flat(text)
    assert line(text, "3   confirm")[-5:] == ["2.3581", "0.0030", "2.3611", "58", "11.2"]


def test_only_the_best_at_the_length_that_decided_is_marked() -> None:
    cheaper = replace(SEARCHED.trials[1], objective=2.0)
    table = search._trials(replace(SEARCHED, trials=(SEARCHED.trials[0], cheaper, *SEARCHED.trials[2:])))
    cells = [str(cell.style) for cell in table.columns[7]._cells]
    assert cells == ["", "", "green", ""]


def test_losses_by_position_say_who_gains() -> None:
    text = printed(search._positions(SEARCHED))
    assert line(text, "0-64") == ["0-64", "3.1234", "3.1244", "+0.0010", "3.1004"]
    assert line(text, "64-128") == ["64-128", "2.5021", "2.5512", "+0.0491", "5.7500"]
    assert line(text, "128-256") == ["128-256", "2.4433", "2.4135", "-0.0298", "-"]
    styles = [str(cell.style) for cell in search._positions(SEARCHED).columns[3]._cells]
    assert styles == ["", "green", "red"]


def test_bars_grow_with_the_factor_of_the_pair() -> None:
    bars = [cell.plain.count(search.FULL) for cell in search._pairs(SEARCHED).columns[4]._cells]
    assert (len(bars), bars[0], bars[-1]) == (PAIRS, round(search.BAR_CELLS / 4.5), search.BAR_CELLS)
    assert bars == sorted(bars)
    fast = search._pairs(replace(SEARCHED, pairs=(Pair(0, 6.0, 0.5, 1.0),))).columns[4]._cells
    assert [cell.plain.count(search.FULL) for cell in fast] == [search.BAR_CELLS / 2]


def test_engines_that_read_all_of_it_are_not_told() -> None:
    told = flat(printed(search.searched(SEARCHED)))
    assert "vllm 0.26.0 attention_factor turns so, at another temperature" in told
    assert "llama.cpp converter b9000 beta_slow, factor turns by factor 4" in told
    for name in ("transformers", "mlx-lm"):
        assert name not in told
    alike = replace(SEARCHED, engines=SEARCHED.engines[:1])
    assert "engines that read it otherwise" not in printed(search.searched(alike))


def test_the_default_that_was_kept_is_no_gain() -> None:
    text = printed(search.searched(AS_DEFAULT))
    told = flat(text)
    assert text.splitlines()[0] == AS_DEFAULT.why
    assert "-0.0040 and +0.0062: not beyond noise" in told
    assert "best of the first part yarn beta_fast 9.043" in told
    for part in ("bound to", "passkeys", "not tried", "cut short", "warning"):
        assert part not in told


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    long = replace(NTK, settings={f"a_long_key_{at}": at / 7 for at in range(12)})
    many = replace(SEARCHED, trials=(*SEARCHED.trials, replace(SEARCHED.trials[0], setting=long)))
    assert max(map(len, printed(search.searched(many), width).splitlines())) <= width


def test_the_search_comes_before_what_was_written() -> None:
    text = printed(tables.extended(extended(), searched=SEARCHED))
    assert text.index(SEARCHED.why) < text.index("wrote models/longer")
    alone = printed(tables.extended(extended(), dry_run=True))
    assert "search on" not in alone
    assert "would write models/longer" in alone


# ---- JSON


def test_the_json_has_every_field_as_it_is() -> None:
    told = kept(SEARCHED)["search"]
    assert told.keys() == {field.name for field in fields(Searched)} | {"reused"}
    for key in ("checkpoint", "objective", "why", "is_default", "decided", "seed", "wanted_engine", "minutes"):
        assert told[key] == getattr(SEARCHED, key)
    assert (told["reused"], told["text_tokens"], told["edges"]) == (1, [7001, 7002], [64, 128, 256])
    assert told["gain"] == {
        "mean": 0.0283, "low": 0.019, "high": 0.0377, "units": 257, "unit_tokens": 32, "beyond_noise": True,
    }  # fmt: skip
    assert told["bins"][0] == {"from": 0, "to": 64, "tokens": 4096, "best": 3.1234, "default": 3.1244, "none": 3.1004}
    assert told["bins"][2]["none"] is None
    assert told["passkey"][1] == {"length": 256, "trials": 21, "best": 17, "default": 13}
    assert told["pairs"][2] == {"index": 2, "wavelength": pytest.approx(628.32), "best": 2.0, "default": 1.75}
    assert told["warnings"] == [{"code": "short-text", "message": SEARCHED.warnings[0].message}]
    assert told["left"] == [{"method": "dynamic", "why": "vllm does not honour it"}]
    assert told["default"] == {
        "method": "yarn", "settings": {}, "factor": 4.0, "theta": 10000.0, "attention_factor": 1.138629,
    }  # fmt: skip


def test_the_json_of_a_trial_and_of_an_engine() -> None:
    told = kept(SEARCHED)["search"]
    assert all(trial.keys() == {field.name for field in fields(Trial)} for trial in told["trials"])
    lists = told["trials"][3]["setting"]["settings"]
    assert lists == {"short_factor": [1.0] * PAIRS, "long_factor": [1.0 + at / 2 for at in range(PAIRS)]}
    assert [trial["reused"] for trial in told["trials"]] == [True, False, False, False]
    assert told["trials"][1]["bins"] == [3.5, 2.5]
    assert [engine["right"] for engine in told["engines"]] == [True, True, False, None]
    assert told["engines"][2]["ignores"] == ["beta_slow", "factor"]


def test_without_a_search_there_is_no_key() -> None:
    assert "search" not in jsons.extended(extended())
    assert kept(AS_DEFAULT)["search"]["gain"]["beyond_noise"] is False


# ---- a report of it


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., list[str]]:
    """The words of a report on a checkpoint of config.json alone, with a search that may be changed first."""

    def make(result: Searched = SEARCHED, output: str = "", **changed: Any) -> list[str]:
        source = written(tmp_path / "c", CONFIGS["llama"])
        told = kept(result, output or str(source))
        told["search"] |= changed
        return [str(source), "--search", str(saved(tmp_path, told))]

    return make


def warned(capsys, *words: str) -> list[dict[str, str]]:
    capsys.readouterr()
    assert app.run(["report", *words, "--json"]) == 0
    return [w for w in json.loads(capsys.readouterr().out)["warnings"] if w["code"] == "result-of-another"]


def test_a_search_of_another_is_told(report, capsys, tmp_path: Path) -> None:
    assert warned(capsys, *report()) == []
    assert warned(capsys, *report(output="elsewhere", checkpoint=str(tmp_path / "c"))) == []
    assert warned(capsys, *report(output=str(tmp_path / "x" / ".." / "c"))) == []
    (warning,) = warned(capsys, *report(output="elsewhere"))
    assert "kept.json is of elsewhere, made of models/source, not of" in warning["message"]


def test_a_file_without_a_search_is_refused(tmp_path: Path, capsys) -> None:
    source = written(tmp_path / "c", CONFIGS["llama"])
    assert app.run(["report", str(source), "--search", str(saved(tmp_path, {"output": "x"}))]) == 2
    assert "holds no result of extend --method auto" in flat(capsys.readouterr().err)


def test_a_report_in_the_terminal_has_it(report, capsys) -> None:
    assert app.run(["report", *report()]) == 0
    text = capsys.readouterr().out
    assert SEARCHED.why in flat(text)
    assert line(text, "0-64") == ["0-64", "3.1234", "3.1244", "3.1004"]
    assert line(text, "128-256") == ["128-256", "2.4433", "2.4135", "–"]
    for part in (
        "passkeys at 256 tokens, held out: 17 of 21, the default 13",
        "vllm 0.26.0 does not read attention_factor: turns so, at another temperature",
        "not tried: dynamic: vllm does not honour it", f"cut short: {SEARCHED.cut[0]}", "warning [short-text]",
    ):  # fmt: skip
        assert part in flat(text)
    assert max(map(len, text.splitlines())) <= COLUMNS


def of(tree: Element, tag: str) -> list[Element]:
    return [node for node in tree.iter() if isinstance(node.tag, str) and node.tag.rpartition("}")[2] == tag]


def words(node: Element) -> str:
    return flat("".join(node.itertext()))


def page(out: Path, *arguments: str) -> tuple[str, Element]:
    """The page, and as a browser reads it; any error of syntax is one here."""
    raw = make_page(out, *arguments).read_text("utf-8")
    return raw, html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(raw)


def cells(tree: Element, caption: str) -> list[list[str]]:
    (found,) = (table for table in of(tree, "table") if [words(node) for node in of(table, "caption")] == [caption])
    (body,) = of(found, "tbody")
    return [[words(cell) for cell in row] for row in of(body, "tr")]


def test_the_page_has_every_number_as_a_table(report, tmp_path: Path) -> None:
    _, tree = page(tmp_path / "page.html", *report())
    assert cells(tree, "Loss by position") == [
        ["0–64", "3.1234", "3.1244", "3.1004"], ["64–128", "2.5021", "2.5512", "5.7500"],
        ["128–256", "2.4433", "2.4135", "–"],
    ]  # fmt: skip
    assert cells(tree, "Factor of each pair")[7] == ["7", "6.283e+07", "4.500", "3.625"]
    assert len(cells(tree, "Factor of each pair")) == PAIRS
    trials = cells(tree, "All trials")
    assert trials[1] == ["2", "screen", "128", "abf base 50312.5", "2.4691", "0.0020", "2.4711"]
    assert len(trials) == len(SEARCHED.trials)
    facts = dict(cells(tree, "The search"))
    assert facts["gain on text held out"] == "+0.0283 nats a token, 95 % between +0.0190 and +0.0377"
    assert facts["from and to"] == "64 trained tokens to 256"
    assert facts["passkeys at 256, held out"] == "17 of 21, the default 13"
    assert cells(tree, "Engines that read it otherwise") == [
        ["vllm 0.26.0", "attention_factor", "turns so, at another temperature"],
        ["llama.cpp converter b9000", "beta_slow, factor", "turns by factor 4"],
    ]
    for note in ("not tried: dynamic: vllm does not", f"cut short: {SEARCHED.cut[0]}", "warning [short-text]"):
        assert note in words(of(tree, "main")[0])
    assert SEARCHED.why in words(of(tree, "main")[0])


def test_its_figures_have_a_name_words_and_numbers(report, tmp_path: Path) -> None:
    _, tree = page(tmp_path / "page.html", *report())
    figures = {node.get("id"): node for node in of(tree, "figure")}
    for name in ("search-loss", "search-pairs"):
        (picture,) = of(figures[name], "svg")
        assert picture.get("role") == "img"
        assert (picture.get("aria-labelledby") or "").split() == [f"{name}-title", f"{name}-desc"]
        assert all(words(node) for tag in ("title", "desc", "h4") for node in of(figures[name], tag))
        (numbers,) = of(figures[name], "details")
        (scroll,) = of(numbers, "div")
        assert (scroll.get("tabindex"), scroll.get("role"), bool(scroll.get("aria-label"))) == ("0", "region", True)


def test_without_a_search_the_page_has_no_such_figure(report, tmp_path: Path) -> None:
    _, tree = page(tmp_path / "page.html", report()[0])
    assert "Engines that read it otherwise" not in {words(node) for node in of(tree, "caption")}
    assert not {"search-loss", "search-pairs"} & {node.get("id") for node in of(tree, "figure")}


def test_what_strangers_write_into_a_search_is_text(report, tmp_path: Path) -> None:
    setting = {"method": HOSTILE, "settings": {HOSTILE: HOSTILE}}
    trial = {**kept(SEARCHED)["search"]["trials"][0], "stage": HOSTILE, "setting": setting}
    raw, tree = page(
        tmp_path / "page.html",
        *report(output=HOSTILE, checkpoint=HOSTILE, why=HOSTILE, text=HOSTILE, objective=HOSTILE, trials=[trial],
                cut=[HOSTILE], left=[{"method": HOSTILE, "why": HOSTILE}],
                **dict.fromkeys(("chosen", "best", "default"), setting)),
    )  # fmt: skip
    assert (len(of(tree, "script")), len(of(tree, "img"))) == (2, 0)
    assert not re.search("[\x00\x1b\u202e]", raw)
    assert words(of(tree, "main")[0]).count(flat(elements.clean(HOSTILE))) >= 13


def test_a_search_is_drawn(report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="--png is an extra; make test installs it")
    out = tmp_path / "png"
    assert app.run(["report", *report(), "--png", str(out), "--quiet"]) == 0
    assert (out / "search.png").read_bytes().startswith(b"\x89PNG")


def test_a_drawing_has_the_numbers() -> None:
    pytest.importorskip("matplotlib", reason="--png is an extra; make test installs it")
    from matplotlib.figure import Figure

    figure, told = Figure(), kept(SEARCHED)["search"]
    bins = [{**b, "start": b["from"], "stop": b["to"]} for b in told["bins"]]
    plots._search(figure, {**told, "bins": bins, "best": "the best", "default": "yarn"})
    above, below = figure.axes
    best, default, none, trained = above.lines
    assert [str(each.get_label()) for each in above.lines] == [
        "best: the best", "default: yarn", "no extension", "trained: 64",
    ]  # fmt: skip
    assert list(best.get_xdata()) == [0, 64, 64, 128, 128, 256]
    assert list(best.get_ydata()) == [3.1234, 3.1234, 2.5021, 2.5021, 2.4433, 2.4433]
    assert list(default.get_ydata())[-1] == 2.4135
    assert (list(none.get_xdata()), list(none.get_ydata())) == (
        [0, 64, 64, 128], [3.1004, 3.1004, 5.75, 5.75],
    )  # fmt: skip
    low, high = above.get_ylim()
    assert (low, high) == pytest.approx((2.4135 - 0.0711, 3.1244 + 0.0711), abs=1e-4), "what is lost beyond is cut off"
    assert list(trained.get_xdata()) == [64, 64]
    assert [list(each.get_ydata())[-1] for each in below.lines] == [4.5, 3.625]


def test_a_search_of_nothing_is_drawn_and_shown(report, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="--png is an extra; make test installs it")
    bare = report(AS_DEFAULT, bins=[], pairs=[], trials=[], best={"method": "yarn", "settings": {}})
    make_page(tmp_path / "page.html", *bare)
    assert app.run(["report", *bare, "--png", str(tmp_path / "png"), "--quiet"]) == 0
    assert app.run(["report", *bare, "--quiet"]) == 0
