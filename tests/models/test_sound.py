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
from ropetool.rope.frequencies import Proportional
from tests.models.test_extended import TAKEN
from tests.models.test_properties import LONGER
from tests.models.test_table import where_positions_matter
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
        where_positions_matter(model_type, **LONGER.get(model_type, {})).save_pretrained(directory)
        edit_json(directory / "config.json", **_plain(read_json(directory / "config.json"), model_type))
        return directory

    return made


def _plain(config: dict[str, Any], model_type: str) -> dict[str, Any]:
    """Changes of a config: the trained length wherever it is told, and a block that does not scale.

    Where q grows with the position, the block must tell from which on; it stays, and reaches twice the trained length.
    """
    length = TABLE[model_type].keys.length
    changes: dict[str, Any] = dict.fromkeys((length, *({ORIGINAL} & config.keys())), TRAINED)
    if config.get("sliding_window"):
        changes["sliding_window"] = 1024
    block = config.get("rope_parameters") or {}
    if TEMPERATURE in block:
        changes["rope_parameters"] = {**block, "factor": FACTOR, ORIGINAL: TRAINED}
        changes[length] = int(TRAINED * FACTOR)
    elif block.get("rope_type", "default") in SCALED:
        bare = {key: value for key, value in block.items() if key not in SCALING_KEYS | {"type"}}
        changes["rope_parameters"] = {**bare, "rope_type": "default", "rope_theta": block["rope_theta"]}
    return changes


def failures(a: Path, b: Path) -> list[Check]:
    return [check for check in verify.verify(a, b, tokens=TOKENS).checks if not check.passed]


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
    """The extension of a checkpoint; None where its block can take no such method, or is another's already."""
    rotation = read_model(read_json(directory / "config.json")).rotations[0]
    pairs = rotation.geometry.rotary_dim // 2
    settings = {
        Method.ABF: {"base": 1e9},
        Method.LONGROPE: {"short_factor": [1.0] * pairs, "long_factor": [1.0 + pair / 4 for pair in range(pairs)]},
    }.get(method, {})
    factor = FACTOR * FACTOR if rotation.scaling.name in SCALED else FACTOR
    planned = partial(extend.plan, directory, into, method, factor=factor, original=TRAINED, settings=settings)
    proportional = isinstance(rotation.scaling, Proportional) and method not in OF_PROPORTIONAL
    if proportional or rotation.scaling.name in {*SCALED} - {method.value}:
        with pytest.raises(MethodError, match=r"is proportional|already extended by yarn"):
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
