"""Every mistake is a rotation of its own, unlike what is meant; those that do not show are told."""

from __future__ import annotations

from typing import Any

import pytest

from ropetool.checkpoint.folder import read_config
from ropetool.engines.heard import Case
from ropetool.engines.mistakes import guesses, meant, mistakes, unseen
from ropetool.families.reading import read_model
from ropetool.rope.frequencies import Default, Linear
from tests.tiny import TINY

TOKENS = 64
LLAMA = {
    "model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "vocab_size": 96, "max_position_embeddings": 64, "rope_theta": 500_000.0,
}  # fmt: skip


def case_of(**keys: Any) -> Case:
    config = {**LLAMA, **keys}
    return Case(config, read_model(config))


@pytest.mark.parametrize("name", TINY)
def test_of_every_type_the_mistakes_differ_from_the_meaning_and_from_each_other(name, checkpoint) -> None:
    config = read_config(checkpoint(name))
    case = Case(config, read_model(config))
    truth, made = meant(case.reading), mistakes(case, TOKENS)
    made += guesses(case, TOKENS, made)
    assert made[0].pairing is truth.pairing.other
    assert all(len(one.turns) == len(case.reading.rotations) for one in made)
    rotations = [(one.pairing, one.turns) for one in (truth, *made)]
    assert len(set(rotations)) == len(rotations)
    assert all(one.said for one in made)
    assert len({one.said for one in made}) == len(made)


def test_a_base_that_is_the_usual_one_is_no_mistake() -> None:
    assert [one.said for one in mistakes(case_of(rope_theta=10_000.0), TOKENS)] == ["the other layout, interleaved"]
    assert "base 10000" in [one.said for one in mistakes(case_of(), TOKENS)]


def test_what_becomes_of_a_scaling() -> None:
    block = {"rope_type": "linear", "factor": 4.0}
    found = {one.said: one.turns[0].scaling for one in mistakes(case_of(rope_scaling=block), TOKENS)}
    assert found["no scaling"] == Default(500_000.0)
    assert found["the factor applied twice"] == Linear(500_000.0, 16.0)
    assert "linear scaling by the same factor" not in found


def test_what_dynamic_scaling_hides_is_told() -> None:
    case = case_of(rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    assert "no scaling" in unseen(case, TOKENS)
    assert "no scaling" not in unseen(case, 2 * TOKENS)
    assert "no scaling" in [one.said for one in mistakes(case, 2 * TOKENS)]
