"""A method that was made by hand is held to what a config may say, and to nothing else."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from ropetool.errors import ConfigConflictError, ConfigError
from ropetool.rope.checked import FIELDS, KEYS, checked
from ropetool.rope.frequencies import (
    MAX_LENGTH,
    METHODS,
    ORIGINAL,
    AdjustedBase,
    Default,
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    NtkAware,
    Proportional,
    Scaling,
    Yarn,
    scaling_from_block,
)
from ropetool.rope.rotary import rope_cache
from tests.rope.test_values import GOOD, bad_values

WIDTH = 8
LONG = LongRope(1e4, (1.0,) * 4, (2.0,) * 4, 64, 4.0)
# A method whose numbers are good, those that make it bad, and the key that is named.
BAD: tuple[tuple[Scaling, dict[str, Any], str], ...] = (
    (AdjustedBase(1e4, 5e5), {"base": 0.5}, "base"),
    (AdjustedBase(1e4, 5e5), {"base": 1}, "base"),
    (AdjustedBase(1e4, 5e5), {"base": 1e4}, "base"),
    (AdjustedBase(1e4, 5e5), {"base": float("nan")}, "base"),
    (AdjustedBase(1e4, 5e5), {"theta": 5e5, "base": 1e4}, "base"),  # in each other's place
    (Default(1e4), {"theta": 1e19}, "theta"),
    (Default(1e4), {"theta": 10**400}, "theta"),
    (Dynamic(1e4, 4.0, 64), {"factor": 0.5}, "factor"),
    (Dynamic(1e4, 4.0, 64), {"original_length": 0}, MAX_LENGTH),
    (Dynamic(1e4, 4.0, 64), {"original_length": -8}, MAX_LENGTH),
    (Dynamic(1e4, 4.0, 64), {"original_length": 64.5}, MAX_LENGTH),
    (Dynamic(1e4, 4.0, 64), {"original_length": "64"}, MAX_LENGTH),
    (Dynamic(1e4, 4.0, 64), {"original_length": None}, ORIGINAL),
    (Linear(1e4, 4.0), {"factor": 0.5}, "factor"),
    (Linear(1e4, 4.0), {"factor": None}, "factor"),
    (Llama3(1e4, 8.0, 1.0, 4.0, 64), {"low_freq_factor": 4.0, "high_freq_factor": 1.0}, "high_freq_factor"),
    (Llama3(1e4, 8.0, 1.0, 4.0, 64), {"low_freq_factor": 4.0}, "high_freq_factor"),
    (Llama3(1e4, 8.0, 1.0, 4.0, 64), {"original_length": 0}, ORIGINAL),
    (Llama3(1e4, 8.0, 1.0, 4.0, 64), {"original_length": -1}, ORIGINAL),
    (LONG, {"original_length": 1}, ORIGINAL),
    (LONG, {"factor": float("nan")}, "factor"),
    (LONG, {"factor": 0.0}, "factor"),
    (LONG, {"factor": None}, "factor"),
    (LONG, {"explicit_attention_factor": 0.0}, "attention_factor"),
    (LONG, {"short_factor": (1.0, 1.0, 1.0, -1.0)}, "short_factor"),
    (LONG, {"long_factor": (1.0, 1.0, 1.0, None)}, "long_factor"),
    (LONG, {"short_mscale": 1.2}, "long_mscale"),
    (NtkAware(1e4, 4.0), {"factor": -4.0}, "factor"),
    (NtkAware(1e4, 4.0), {"factor": 0.0}, "factor"),
    (NtkAware(1e4, 4.0), {"factor": float("nan")}, "factor"),
    (NtkAware(1e4, 4.0), {"factor": 1e-5}, "factor"),
    (Proportional(1e4, 0.5), {"share": -0.25}, "partial_rotary_factor"),
    (Proportional(1e4, 0.5), {"share": 2.0}, "partial_rotary_factor"),
    (Proportional(1e4, 0.5), {"factor": None}, "factor"),
    (Yarn(1e4, 4.0, 4096), {"explicit_attention_factor": float("nan")}, "attention_factor"),
    (Yarn(1e4, 4.0, 4096), {"explicit_attention_factor": 0}, "attention_factor"),
    (Yarn(1e4, 4.0, 4096), {"explicit_attention_factor": -1.0}, "attention_factor"),
    (Yarn(1e4, 4.0, 4096), {"beta_fast": 0}, "beta_fast"),
    (Yarn(1e4, 4.0, 4096), {"beta_fast": 1, "beta_slow": 32}, "beta_fast"),
    (Yarn(1e4, 4.0, 4096), {"original_length": 0}, ORIGINAL),
    (Yarn(1e4, 4.0, 4096), {"factor": 0.5}, "factor"),
    (Yarn(1e4, 4.0, 4096), {"factor": None}, "factor"),
    (Yarn(1e4, 4.0, 4096), {"truncate": None}, "truncate"),
)


@pytest.mark.parametrize(("good", "change", "key"), BAD, ids=repr)
def test_numbers_that_make_no_table_are_named(good: Scaling, change: dict[str, Any], key: str) -> None:
    assert checked(good) is good
    assert all(np.isfinite(table).all() for table in rope_cache(16, WIDTH, good))
    with pytest.raises(ConfigError) as caught:
        rope_cache(16, WIDTH, replace(good, **change))
    assert caught.value.fields["key"] == key
    assert FIELDS.get(key, key) in caught.value.message


# Numbers that are unusual, and that some config has or may have.
UNUSUAL: tuple[Scaling, ...] = (
    NtkAware(1e4, 1000.0),  # HunYuan's alpha
    NtkAware(1e4, 0.5),  # of which the reader asks no more than a number
    replace(LONG, factor=0.5),  # a max_position_embeddings that a user lowered
    Linear(1e4, 1.0),
    Linear(np.float32(1e4), np.float32(2.0)),
    Proportional(1e4, 1.0),
    replace(LONG, short_factor=np.ones(4), long_factor=(np.float32(2.0),) * 4, original_length=np.int64(64)),
    replace(LONG, short_mscale=1.05, long_mscale=1.25),
    Yarn(1e4, 40.0, 4096, mscale=1.0, mscale_all_dim=0.0),
    Yarn(1e4, 4.0, 4096, beta_fast=4.0, beta_slow=4.0),
    Llama3(1e4, 1.0, 1.0, 4.0, 8192),
)


@pytest.mark.parametrize("scaling", UNUSUAL, ids=repr)
def test_unusual_numbers_are_taken_as_they_are(scaling: Scaling) -> None:
    assert checked(scaling) is scaling
    assert all(np.isfinite(table).all() for table in rope_cache(16, WIDTH, scaling))


class Other(Scaling):
    name = "a method of another module"


def test_a_method_of_another_module_has_its_own_rules() -> None:
    other = Other(1e19)
    assert checked(other) is other


def test_two_that_disagree_are_both_named() -> None:
    with pytest.raises(
        ConfigConflictError, match=r"LongRope is held to .* attention_factor is 1.5 but .* short_mscale"
    ):
        checked(replace(LONG, explicit_attention_factor=1.5, short_mscale=1.2, long_mscale=1.2))


def field_of(scaling: Scaling, key: str) -> str:
    return next(field.name for field in fields(scaling) if KEYS.get(field.name, field.name) == key)


@pytest.mark.parametrize(("method", "key"), [(method, key) for method, block in GOOD.items() for key in block])
def test_what_the_reader_refuses_is_refused_of_the_class(method: str, key: str) -> None:
    """One set of rules: every value that the reader of a config names as bad, in the field that it would fill."""
    good = scaling_from_block({"rope_type": method, **GOOD[method]}, 1e4, 64)
    if method == "longrope" and key == "attention_factor":
        good = replace(good, short_mscale=None, long_mscale=None)
    elif method == "longrope":
        good = replace(good, explicit_attention_factor=None)
    assert checked(good) is good
    for value in bad_values(key):
        if (method, key) == ("longrope", "factor") and value in (0.5, 0.999):
            continue  # of a block's own factor only: see UNUSUAL
        with pytest.raises(ConfigError) as caught:
            checked(replace(good, **{field_of(good, key): value}))
        assert caught.value.fields["key"] == key, value


def test_every_method_that_the_reader_knows_is_held_to_its_rules() -> None:
    assert set(GOOD) == set(METHODS)
