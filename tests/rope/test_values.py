"""Every value of a rope block that cannot be used is an error that names its key."""

from __future__ import annotations

import math

import pytest

from ropetool.errors import ConfigConflictError, ConfigError
from ropetool.rope.frequencies import METHODS, scaling_from_block
from ropetool.rope.values import count, flag, number, numbers, optional

ORIGINAL = "original_max_position_embeddings"
# A good block of every method, with every key that it reads.
GOOD: dict[str, dict] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "yarn": {"factor": 4.0, ORIGINAL: 64, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True, "mscale": 1.0,
             "mscale_all_dim": 1.0, "attention_factor": 1.2},
    "longrope": {"factor": 4.0, ORIGINAL: 64, "short_factor": [1.0, 1.0], "long_factor": [1.0, 2.0],
                 "short_mscale": 1.2, "long_mscale": 1.2, "attention_factor": 1.2},
    "llama3": {"factor": 8.0, ORIGINAL: 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "proportional": {"factor": 2.0, "partial_rotary_factor": 0.25},
}  # fmt: skip
NOT_NUMBERS = ("4", True, False, [4.0], {"value": 4}, [])
NO_SANE_NUMBERS = (-2.0, -1, math.nan, math.inf, -math.inf, 1e19, 10**400)
NOT_LISTS = (1.0, "1.0", True, {}, [], [None], [1.0, None], ["1.0", 1.0], [True, 1.0], [[1.0, 1.0]])
BEYOND: dict[str, tuple] = {
    "factor": (0, 0.5, 0.999),
    "partial_rotary_factor": (0, 1.01),
    "beta_fast": (0, 1e7),
    "beta_slow": (0, 1e-7),
    "mscale": (),  # 0 is how DeepSeek's own code spells "absent"
    "mscale_all_dim": (),
}


def bad_values(key: str) -> tuple:
    if key in ("short_factor", "long_factor"):
        return (*NOT_LISTS, *([1.0, value] for value in (*NO_SANE_NUMBERS, 0, 0.0, 1e-320)))
    if key == ORIGINAL:
        return (*NOT_NUMBERS, *NO_SANE_NUMBERS, 64.0, 64.5, 0, 1 << 41)
    if key == "truncate":
        return (0, 1, "true", "false", [], 0.0, [True])
    return (*NOT_NUMBERS, *NO_SANE_NUMBERS, *BEYOND.get(key, (0, 0.0, 1e-320)))


def test_the_good_blocks_are_good() -> None:
    assert set(GOOD) == set(METHODS)
    for method, block in GOOD.items():
        assert scaling_from_block({"rope_type": method, **block}, 1e4, 256).name == method


@pytest.mark.parametrize(("method", "key"), [(method, key) for method, block in GOOD.items() for key in block])
def test_every_bad_value_is_named(method: str, key: str) -> None:
    for value in bad_values(key):
        block = {"rope_type": method, **GOOD[method], key: value}
        if method == "longrope" and key == "attention_factor":  # beside it they would disagree first
            del block["short_mscale"], block["long_mscale"]
        elif method == "longrope":
            del block["attention_factor"]
        with pytest.raises(ConfigError) as caught:
            scaling_from_block(block, 1e4, 256)
        assert caught.value.fields["key"] == key, value
        assert key in caught.value.message
        assert len(caught.value.message) < 200


# Keys that may be absent: with a default of the method, or (the length) with max_position_embeddings in their place.
OPTIONAL = {
    *("beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim", "attention_factor", "partial_rotary_factor"),
    ORIGINAL,
}
RATIO_SERVES = {("yarn", "factor"), ("longrope", "factor"), ("proportional", "factor")}


@pytest.mark.parametrize(("method", "key"), [(method, key) for method, block in GOOD.items() for key in block])
def test_null_is_absent_and_what_must_be_there_is_missed(method: str, key: str) -> None:
    without = {"rope_type": method, **{k: v for k, v in GOOD[method].items() if k != key}}
    if key in OPTIONAL or (method, key) in RATIO_SERVES:
        assert scaling_from_block(without, 1e4, 256) == scaling_from_block({**without, key: None}, 1e4, 256)
        return
    for block in (without, {**without, key: None}):
        with pytest.raises(ConfigError, match=f"{key} is missing") as caught:
            scaling_from_block(block, 1e4, 256)
        assert caught.value.fields["key"] == key


@pytest.mark.parametrize(
    ("method", "key"),
    [("yarn", ORIGINAL), ("llama3", ORIGINAL), ("longrope", ORIGINAL), ("dynamic", "max_position_embeddings"),
     ("yarn", "factor"), ("longrope", "factor")],
)  # fmt: skip
def test_without_a_length_nothing_takes_its_place(method: str, key: str) -> None:
    block = {"rope_type": method, **GOOD[method], key: None}
    with pytest.raises(ConfigError, match=f"{key} is missing") as caught:
        scaling_from_block(block, 1e4, None)
    assert caught.value.fields["key"] == key


@pytest.mark.parametrize("name", ["ntk", "abf", "axial", "", 3, 0, False, ["yarn"], {"rope_type": "yarn"}])
@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_a_type_that_is_none_is_named(name: object, key: str) -> None:
    with pytest.raises(ConfigError, match="is not a rope type that can be read; known are default, linear") as caught:
        scaling_from_block({key: name, "factor": 2.0}, 1e4, 64)
    assert caught.value.fields["key"] == "rope_type"


@pytest.mark.parametrize("theta", [1, 1.0, 0.5, 0, -1e4, math.nan, math.inf, 1e19, "10000", True])
@pytest.mark.parametrize("method", GOOD)
def test_a_base_that_is_none_is_refused(method: str, theta: float) -> None:
    """A base of 1 turns every pair alike, below 1 the order of the pairs reverses; its logarithm divides in YaRN."""
    with pytest.raises(ConfigError, match="rope_theta") as caught:
        scaling_from_block({"rope_type": method, **GOOD[method]}, theta, 256)
    assert caught.value.fields["key"] == "rope_theta"


@pytest.mark.parametrize(
    ("block", "keys", "values"),
    [
        ({"rope_type": "yarn", "type": "linear", "factor": 2.0}, ["rope_type", "type"], ["yarn", "linear"]),
        ({"rope_type": "default", "type": 3}, ["rope_type", "type"], ["default", 3]),
        ({"rope_type": "longrope", **GOOD["longrope"], "attention_factor": 1.1},
         ["attention_factor", "short_mscale"], [1.1, 1.2]),
        ({"rope_type": "longrope", **GOOD["longrope"], "long_mscale": 1.3},
         ["attention_factor", "long_mscale"], [1.2, 1.3]),
    ],
)  # fmt: skip
def test_two_keys_that_disagree_are_both_named(block: dict, keys: list, values: list) -> None:
    with pytest.raises(ConfigConflictError) as caught:
        scaling_from_block(block, 1e4, 64)
    assert (caught.value.fields["keys"], caught.value.fields["values"]) == (keys, values)
    assert all(str(part) in caught.value.message for part in (*keys, *values))


def test_two_keys_that_agree_are_one() -> None:
    block = {"rope_type": "linear", "type": "linear", "factor": 2.0}
    assert scaling_from_block(block, 1e4, 64) == scaling_from_block({"type": "linear", "factor": 2}, 1e4, 64)


@pytest.mark.parametrize("key", ["short_mscale", "long_mscale"])
def test_an_mscale_of_a_list_goes_with_both_lists(key: str) -> None:
    other = {"short_mscale": "long_mscale", "long_mscale": "short_mscale"}[key]
    lists = {k: v for k, v in GOOD["longrope"].items() if k not in (other, "attention_factor")}
    with pytest.raises(ConfigError, match=f"{other} is missing"):
        scaling_from_block({"rope_type": "longrope", **lists}, 1e4, 64)
    for method in set(GOOD) - {"longrope", "default"}:
        with pytest.raises(ConfigError, match=f"{key} is read beside longrope only, not beside {method}") as caught:
            scaling_from_block({"rope_type": method, **GOOD[method], key: 1.2}, 1e4, 64)
        assert caught.value.fields["key"] == key


def test_each_reader_gives_what_is_there() -> None:
    block = {"number": 3, "count": 64, "numbers": [1, 2.5], "flag": False, "null": None}
    assert (number(block, "number"), optional(block, "number"), optional(block, "null")) == (3.0, 3.0, None)
    assert (count(block, "count"), count(block, "null", 7), count(block, "absent", 7)) == (64, 7, 7)
    assert (numbers(block, "numbers"), flag(block, "flag", True), flag(block, "null", True)) == (
        (1.0, 2.5),
        False,
        True,
    )
    assert (number(block, "null", 0.5), number(block, "number", least=3, most=3)) == (0.5, 3.0)
