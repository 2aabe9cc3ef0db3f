"""No false alarm: verify passes every type of the table against itself, and against what each method makes of it.

What a conversion makes of it is in `test_table`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from ropetool import extend, verify
from ropetool.errors import MethodError, UnsupportedError
from ropetool.families.methods import Method
from ropetool.families.reading import read_model
from ropetool.families.recipes import OF_PROPORTIONAL, ORIGINAL, SCALING_KEYS, TEMPERATURE
from ropetool.families.table import TABLE
from ropetool.families.verdict import Check
from ropetool.models.options import DType
from ropetool.rope.frequencies import Proportional
from tests.models.test_extended import TAKEN
from tests.models.test_table import ROUGH, where_positions_matter
from tests.tiny import edit_json, read_json

TOKENS = 24
TRAINED, FACTOR = 64, 2.0
SCALED = ("yarn", "llama3", "longrope")


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny checkpoint of a type, not scaled, whose windows are no limit to an extension."""

    @cache
    def made(model_type: str) -> Path:
        directory = tmp_path_factory.mktemp("sound") / model_type
        where_positions_matter(model_type).save_pretrained(directory)
        edit_json(directory / "config.json", **_plain(read_json(directory / "config.json"), model_type))
        return directory

    return made


def _plain(config: dict[str, Any], model_type: str) -> dict[str, Any]:
    """Changes of a config: the trained length wherever it is told, and a block that does not scale."""
    lengths = {TABLE[model_type].keys.length, *({ORIGINAL} & config.keys())}
    changes: dict[str, Any] = dict.fromkeys(lengths, TRAINED)
    if config.get("sliding_window"):
        changes["sliding_window"] = 1024
    block = config.get("rope_parameters") or {}
    if block.get("rope_type", "default") in SCALED:
        bare = {key: value for key, value in block.items() if key not in SCALING_KEYS | {"type"}}
        told = {ORIGINAL: 1 << 20} if TEMPERATURE in block else {}  # q grows with the position beyond it
        changes["rope_parameters"] = {**bare, **told, "rope_type": "default", "rope_theta": block["rope_theta"]}
    return changes


def failures(a: Path, b: Path) -> list[Check]:
    """In float64 where the class's own rounding in float32 is far above the bar, as in `test_table`."""
    dtype = DType.FLOAT64 if a.name in ROUGH else None
    return [check for check in verify.verify(a, b, tokens=TOKENS, dtype=dtype).checks if not check.passed]


def failures_of_files(a: Path, b: Path) -> list[Check]:
    return [check for check in verify.verify_files(a, b).checks if not check.passed]


# Types that verify cannot run by a rotation of its own, with the words of its error.
UNSEEN = {
    "clvp_encoder": "does not rotate q and k by a table of its own",
    "deepseek_v4": "rotates v as well as q and k",
    "qwen4_exp_text": "multiplies no q of all tokens",
}
SEEN = sorted(TABLE.keys() - UNSEEN.keys())


@pytest.mark.parametrize("model_type", SEEN)
def test_a_checkpoint_is_itself(model_type: str, source: Callable[[str], Path]) -> None:
    assert not failures(source(model_type), source(model_type))


@pytest.mark.parametrize("model_type", UNSEEN)
def test_what_cannot_be_run_is_itself_by_its_files(model_type: str, source: Callable[[str], Path]) -> None:
    assert not failures_of_files(source(model_type), source(model_type))
    with pytest.raises(UnsupportedError, match=UNSEEN[model_type]):
        verify.verify(source(model_type), source(model_type), tokens=TOKENS)


def extended(directory: Path, method: Method, into: Path) -> Path | None:
    """The extension of a checkpoint; None where its block can take no such method."""
    rotation = read_model(read_json(directory / "config.json")).rotations[0]
    pairs = rotation.geometry.rotary_dim // 2
    settings = {
        Method.ABF: {"base": 1e9},
        Method.LONGROPE: {"short_factor": [1.0] * pairs, "long_factor": [1.0 + pair / 4 for pair in range(pairs)]},
    }.get(method, {})
    planned = partial(
        extend.plan, directory, into, method, factor=FACTOR, original=TRAINED, settings=settings, replace_existing=True
    )
    if isinstance(rotation.scaling, Proportional) and method not in OF_PROPORTIONAL:
        with pytest.raises(MethodError, match="is proportional"):
            planned()
        return None
    extend.apply(planned())
    return into


@pytest.mark.parametrize(("model_type", "method"), TAKEN, ids=lambda value: getattr(value, "value", value))
def test_every_extension_is_one_by_its_files(
    model_type: str, method: Method, source: Callable[[str], Path], tmp_path: Path
) -> None:
    made = extended(source(model_type), method, tmp_path / "b")
    assert made is None or not failures_of_files(source(model_type), made)


def one_each() -> list[tuple[str, Method]]:
    """One method for every type, another for the next."""
    taken = {model_type: [method for named, method in TAKEN if named == model_type] for model_type in SEEN}
    some = {model_type: methods for model_type, methods in taken.items() if methods}
    return [(model_type, methods[i % len(methods)]) for i, (model_type, methods) in enumerate(some.items())]


@pytest.mark.parametrize(("model_type", "method"), one_each(), ids=lambda value: getattr(value, "value", value))
def test_an_extension_is_one(model_type: str, method: Method, source: Callable[[str], Path], tmp_path: Path) -> None:
    made = extended(source(model_type), method, tmp_path / "b")
    assert made is None or not failures(source(model_type), made)
