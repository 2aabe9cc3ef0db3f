"""What engines honour of a planned extension, against what is known of them, and against planted rows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropetool import extend
from ropetool.checkpoint.config import Style
from ropetool.engines import ctranslate2, honours, llama_cpp_runtime, mlx_lm, sglang, transformers4, transformers5, vllm
from ropetool.engines.heard import Case, Heard, Listener
from ropetool.engines.honours import Honour, honour, takes
from ropetool.engines.listeners import LISTENERS
from ropetool.engines.names import EngineName
from ropetool.families.methods import Method, Weights
from ropetool.rope.frequencies import Yarn
from tests.engines.test_flags import CONFIGS

RECALL = Path(__file__).resolve().parents[2] / "fixtures" / "recall-256"
LENGTH = 1024
KEYS = (
    *("attention_factor", "beta_fast", "beta_slow", "factor", "low_freq_factor", "high_freq_factor", "long_factor"),
    *("short_factor", "truncate"),
)
LISTS = {"short_factor": [1.0] * 16, "long_factor": [1.0 + pair / 4 for pair in range(16)]}
TUNED = {"attention_factor": 1.07, "beta_fast": 16.0, "beta_slow": 0.5}
# transformers 5 and 4, and llama.cpp's two parts, under a name each.
NAMES = (
    *("transformers 5", "transformers 4", "vllm", "sglang", "mlx-lm", "converter", "runtime", "exllamav2"),
    *("ctranslate2", "torchtune"),
)


def extended(source: Path, method: Method, style: Style = Style.DUAL, to: int = LENGTH, **settings: Any) -> Case:
    """The config of an extension that was planned, as engines are given it."""
    plan = extend.plan(
        source, source.parent / "nothing", method, to=to, settings=settings, style=style, weights=Weights.NONE
    )
    return Case(plan.config, plan.reading)


def of(case: Case, keys: tuple[str, ...] = KEYS) -> dict[str, Honour]:
    """What every row makes of a case, by name."""
    return dict(zip(NAMES, honours.honours(case, keys), strict=True))


@pytest.fixture
def written(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Writes a directory with a config alone."""

    def write(config: dict[str, Any]) -> Path:
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return tmp_path / "source"

    return write


def test_a_line_for_every_row_by_the_version_it_is_known_of() -> None:
    found = honours.honours(extended(RECALL, Method.YARN), KEYS)
    assert [(h.engine, h.part, h.version, h.origin) for h in found] == [
        (row.engine.value, row.part, row.version, row.origin.value) for row in LISTENERS
    ]


def test_yarn_as_it_is_by_default_is_right_where_engines_know_it() -> None:
    found = of(extended(RECALL, Method.YARN))
    assert {name for name, h in found.items() if h.right} == set(NAMES) - {"exllamav2", "ctranslate2", "torchtune"}
    assert all(found[name].ignores == () and found[name].said == "" for name in found if found[name].right)
    assert (found["exllamav2"].right, found["exllamav2"].said) == (False, "trained length 1024 instead of 256")
    assert (found["ctranslate2"].right, found["ctranslate2"].ignores) == (False, ())
    assert found["ctranslate2"].said == "will not load it: it knows no rope type 'yarn'"


# Of the tuned YaRN: whether it turns so, and which of its keys the engine does not read.
TUNED_YARN: Mapping[str, tuple[bool | None, tuple[str, ...]]] = {
    "transformers 5": (True, ()),
    "transformers 4": (True, ()),
    "vllm": (True, ()),
    "sglang": (False, ("attention_factor",)),
    "mlx-lm": (False, ("attention_factor",)),
    "converter": (True, ()),
    "runtime": (False, ("attention_factor", "beta_fast", "beta_slow")),
    "exllamav2": (False, ("attention_factor", "beta_fast", "beta_slow")),
    "ctranslate2": (False, ()),
    "torchtune": (False, ("attention_factor", "beta_fast", "beta_slow", "factor")),
}


@pytest.mark.parametrize("style", Style)
def test_a_tuned_yarn_says_which_engines_lose_what(style: Style) -> None:
    found = of(extended(RECALL, Method.YARN, style, **TUNED))
    differs = {  # rope_parameters alone is not read by transformers 4, mlx-lm and exllamav2
        Style.V5: ("transformers 4", "mlx-lm", "exllamav2"),
        Style.V4: (),
        Style.DUAL: (),
    }[style]
    for name, (right, ignores) in TUNED_YARN.items():
        if name not in differs:
            assert (name, found[name].right, found[name].ignores) == (name, right, ignores)
    for name in differs:
        assert found[name].right is False
        assert set(found[name].ignores) == {*TUNED, "factor"}
        assert "instead of yarn" in found[name].said or "will not load it" in found[name].said
    assert "attention factor 1.1386294 instead of 1.07; with --json-model-override-args" in found["sglang"].said
    assert found["runtime"].said.startswith("beta fast 32 instead of 16, beta slow 1 instead of 0.5; attention factor")


def test_flags_that_mend_it_are_said() -> None:
    found = of(extended(RECALL, Method.YARN, beta_fast=16.0))
    said = "with --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 256 -c 1024 --yarn-beta-fast 16 it would turn so"
    assert found["runtime"].said == f"beta fast 32 instead of 16; {said}"


def test_the_ends_of_the_ramp() -> None:
    found = of(extended(RECALL, Method.YARN, truncate=False))
    unread = {name for name, h in found.items() if "truncate" in h.ignores}
    assert unread == {"mlx-lm", "converter", "runtime", "exllamav2", "torchtune"}
    assert found["vllm"].right
    assert found["sglang"].right


def test_longrope() -> None:
    found = of(extended(RECALL, Method.LONGROPE, **LISTS, attention_factor=1.1))
    assert found["transformers 5"].right
    assert found["transformers 5"].ignores == ()
    assert "short_factor" in found["mlx-lm"].ignores  # it always takes the long factors
    assert "long_factor" not in found["mlx-lm"].ignores
    for name in ("vllm", "sglang", "mlx-lm"):  # the attention factor of the lengths, whatever the block says
        assert (name, found[name].right) == (name, False)
        assert "attention_factor" in found[name].ignores
        assert "attention factor 1.118034 instead of 1.1" in found[name].said
    for name in ("converter", "runtime"):  # factors for Phi and MiniCPM alone
        assert {"long_factor", "short_factor"} <= set(found[name].ignores)
    assert found["ctranslate2"].said == "will not load it: it knows no rope type 'longrope'"


def test_llama3() -> None:
    found = of(extended(RECALL, Method.LLAMA3, low_freq_factor=2.0))
    three = ("factor", "low_freq_factor", "high_freq_factor")
    assert {name: h.ignores for name, h in found.items() if h.ignores} == {"ctranslate2": three, "torchtune": three}
    assert {name for name, h in found.items() if not h.right} == {"ctranslate2", "torchtune"}


def test_a_new_base_is_heard_by_all_who_read_one() -> None:
    found = of(extended(RECALL, Method.NTK), ("rope_theta", *KEYS))
    assert {name for name, h in found.items() if not h.right} == {"torchtune"}
    assert found["torchtune"].right is None
    assert "set in your recipe" in found["torchtune"].said
    assert {name: h.ignores for name, h in found.items() if h.ignores} == {"torchtune": ("rope_theta",)}


def test_a_length_that_an_engine_counts_otherwise_is_no_matter_of_turning() -> None:
    """A flag holds it to the length: see `ropetool.engines.flags`."""
    case = extended(RECALL, Method.LINEAR)
    assert vllm.hear(case).length == sglang.hear(case).length == 4 * LENGTH
    found = of(case)
    assert {name for name, h in found.items() if not h.right} == {"torchtune"}
    assert takes(EngineName.VLLM, case) == takes(EngineName.SGLANG, case) == ""


def test_only_keys_that_are_there_and_hold_a_number_are_told() -> None:
    case = extended(RECALL, Method.YARN)
    assert honour(llama_cpp_runtime.ROW, case, ("beta_fast", "rope_type", "nothing")).ignores == ()
    text = {**case.config, "rope_parameters": {**case.config["rope_parameters"], "beta_fast": None}}
    assert honour(llama_cpp_runtime.ROW, Case(text, case.reading), ("beta_fast",)).ignores == ()


def test_what_rows_declare_of_a_block_is_found_by_asking_too() -> None:
    """`Heard.ignores` is told by the rows themselves, from their keys; asking must come to no fewer."""
    told = 0
    for settings in (TUNED, {**TUNED, "truncate": False}):
        for style in (Style.V4, Style.V5):
            case = extended(RECALL, Method.YARN, style, **settings)
            for row in LISTENERS:
                heard = row.hears(case)
                named = {name.rpartition(".")[2] for name in heard.ignores if "." in name} & set(KEYS)
                assert named <= set(honour(row, case, KEYS).ignores), row.source
                told += len(named)
    assert told > 10


# Planted rows: transformers 5 with a fault, or with its own way to say a key.
def row_of(hears: Callable[[Case], Heard]) -> Listener:
    return replace(transformers5.ROW, hears=hears)


def with_scaling(case: Case, **changes: Any) -> Heard:
    """What transformers 5 hears, with fields of its YaRN changed."""
    heard = transformers5.hear(case)
    scaling = heard.turns[0].scaling
    assert isinstance(scaling, Yarn)
    return replace(heard, turns=(replace(heard.turns[0], scaling=replace(scaling, **changes)),))


def test_a_row_that_drops_a_key_is_seen_and_one_that_honours_it_is_not() -> None:
    case = extended(RECALL, Method.YARN, **TUNED)
    deaf = row_of(lambda given: with_scaling(given, beta_fast=16.0))
    assert honour(transformers5.ROW, case, KEYS).ignores == ()
    assert honour(deaf, case, KEYS).ignores == ("beta_fast",)
    assert honour(deaf, case, KEYS).right is True, "by chance: it turns so, and reads nothing"
    assert honour(row_of(lambda given: with_scaling(given, beta_slow=1.0)), case, KEYS).right is False


def test_a_row_that_refuses_another_value_has_read_it() -> None:
    case = extended(RECALL, Method.YARN, **TUNED)

    def strict(given: Case) -> Heard:
        factor = given.config["rope_parameters"]["attention_factor"]
        return transformers5.hear(case) if factor == 1.07 else Heard(refusal="no")

    def unsure(given: Case) -> Heard:
        heard = strict(given)
        return Heard(unknown="what that does was not read") if heard.refusal else heard

    for hears in (strict, unsure):
        assert "attention_factor" not in honour(row_of(hears), case, KEYS).ignores
        assert honour(row_of(hears), case, KEYS).ignores == ("beta_fast", "beta_slow", "factor")


def test_of_a_row_that_will_not_load_or_does_not_know_no_key_is_told() -> None:
    case = extended(RECALL, Method.YARN, **TUNED)
    refusing = honour(row_of(lambda given: Heard(refusal="it has no class")), case, KEYS)
    assert (refusing.right, refusing.ignores, refusing.said) == (False, (), "will not load it: it has no class")
    unread = honour(row_of(lambda given: Heard(unknown="was not read")), case, KEYS)
    assert (unread.right, unread.ignores, unread.said) == (None, (), "was not read")
    bare = honour(row_of(lambda given: replace(transformers5.hear(given), pairing=None)), case, KEYS)
    assert (bare.right, bare.said) == (None, "no class for llama was read in its source")


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("llava", [("text_config", "rope_parameters"), ("text_config", "rope_scaling")]),
        ("gemma3", [("rope_parameters", "full_attention"), ("rope_scaling",)]),
    ],
)
def test_a_key_is_changed_in_every_place_and_nothing_else_is(name: str, places: list[tuple[str, ...]], written) -> None:
    case = extended(written(CONFIGS[name]), Method.YARN, to=16384, beta_fast=16.0)
    before, given = copy.deepcopy(case.config), []

    def note(asked: Case) -> Heard:
        given.append(asked.config)
        return transformers5.hear(asked)

    assert honour(row_of(note), case, ("beta_fast",)).ignores == ()
    assert case.config == before
    first, changed = given
    assert first == before
    for path in places:
        block: Any = changed
        for key in path:
            block = block[key]
        assert block["beta_fast"] == 20.0
        block["beta_fast"] = 16.0
    assert changed == before


@pytest.mark.parametrize(
    ("value", "moved"),
    [
        (1.0, 1.25), (32.0, 40.0), (32, 40), (1, 2), (0.0, 1.25), (4096, 5120), (True, False), (False, True),
        ([1.0, 2.0], [1.25, 2.5]), ("yarn", "yarn"), (None, None), (["a"], ["a"]), ([], []),
    ],
)  # fmt: skip
def test_values_move_by_a_quarter(value: Any, moved: Any) -> None:
    found = honours._moved({"rope_scaling": {"k": value, "other": 3.0}}, "k")["rope_scaling"]
    assert found == {"k": moved, "other": 3.0}
    assert type(found["k"]) is type(moved)


TAKES = (
    (Method.YARN, {}, {EngineName.EXLLAMAV2, EngineName.CTRANSLATE2, EngineName.TORCHTUNE}),
    (Method.NTK, {}, {EngineName.TORCHTUNE}),
    (Method.LLAMA3, {}, {EngineName.CTRANSLATE2, EngineName.TORCHTUNE}),
    (Method.YARN, TUNED, set(EngineName) - {EngineName.TRANSFORMERS, EngineName.VLLM}),
    (Method.YARN, {"beta_fast": 16.0}, {
        EngineName.LLAMA_CPP, EngineName.EXLLAMAV2, EngineName.CTRANSLATE2, EngineName.TORCHTUNE,
    }),
)  # fmt: skip


@pytest.mark.parametrize(("method", "settings", "refusing"), TAKES)
def test_an_engine_takes_what_all_of_its_parts_turn_by(
    method: Method, settings: dict[str, float], refusing: set[EngineName]
) -> None:
    case = extended(RECALL, method, **settings)
    assert {engine for engine in EngineName if takes(engine, case)} == refusing


def test_the_reason_names_part_and_version() -> None:
    case = extended(RECALL, Method.YARN, beta_fast=16.0)
    assert takes(EngineName.LLAMA_CPP, case) == f"beta fast 32 instead of 16 (runtime, {llama_cpp_runtime.ROW.version})"
    said = f"will not load it: it knows no rope type 'yarn' ({ctranslate2.ROW.version})"
    assert takes(EngineName.CTRANSLATE2, case) == said


def test_both_versions_count_that_know_the_type(written) -> None:
    """A checkpoint that transformers 4 would read otherwise is not taken; one of a type that it lacks is."""
    said = takes(EngineName.TRANSFORMERS, extended(RECALL, Method.YARN, Style.V5))
    assert "no scaling instead of yarn" in said
    assert said.endswith(f"({transformers4.ROW.version})")
    newer = {**CONFIGS["qwen3"], "model_type": "afmoe"}
    case = extended(written(newer), Method.YARN, to=16384)
    assert transformers4.hear(case).refusal == "it has no model type afmoe"
    assert takes(EngineName.TRANSFORMERS, case) == ""


def test_an_engine_that_does_not_know_the_type_says_so(written) -> None:
    case = extended(written(CONFIGS["gpt_neox"]), Method.YARN, to=16384)
    assert takes(EngineName.EXLLAMAV2, case).startswith("it has no class for gpt_neox, and takes it for a Llama")
    assert takes(EngineName.TORCHTUNE, case).startswith("no model builder for gpt_neox was read (")
    assert takes(EngineName.CTRANSLATE2, case).startswith("will not load it: its loader asks for rotary_pct")


@pytest.mark.parametrize("row", [sglang.ROW, mlx_lm.ROW, vllm.ROW], ids=lambda row: row.engine.value)
@pytest.mark.parametrize("style", Style)
@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_a_type_is_known_also_where_its_scaling_is_not(name: str, style: Style, row: Listener, written) -> None:
    """By the config without scaling: it must be one that a row that knows the type loads, whatever style it reads."""
    case = extended(written(CONFIGS[name]), Method.LINEAR, style, to=16384)

    def no_scaling(given: Case) -> Heard:
        heard = row.hears(given)
        return Heard(refusal="no") if not heard.turns or heard.turns[0].scaling.name != "default" else heard

    assert honours._knows(replace(row, hears=no_scaling), case)
    assert not honours._knows(replace(row, hears=lambda given: Heard(refusal="no such type")), case)


def test_without_scaling_the_bases_are_where_either_style_has_them(written) -> None:
    case = extended(written(CONFIGS["gemma3"]), Method.LINEAR, Style.V5, to=16384)
    assert not {"rope_theta", "rope_local_base_freq"} & set(case.config)
    plain = honours._plain(case)
    assert (plain["rope_theta"], plain["rope_local_base_freq"]) == (1e6, 1e4)
    assert plain["rope_parameters"] == {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
