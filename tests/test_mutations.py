"""verify fails every planted fault of the table, and names its first culprit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from ropetool import verify
from ropetool.errors import RopetoolError
from ropetool.families.verdict import Check
from tests import starts
from tests.mutations import MUTATIONS, Mutation
from tests.planting import Pair

ROWS = [(mutation, start) for mutation in MUTATIONS for start in mutation.starts]


def named(value: object) -> str:
    return getattr(value, "name", str(value))


@pytest.fixture(scope="session")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Pair]:
    """A start and what ropetool makes of it, seen to be sound; both built once."""
    sources: dict[str, Path] = {}
    pairs: dict[tuple[str, str], Pair] = {}

    def build(start: str, relation: str) -> Pair:
        if start not in sources:
            sources[start] = starts.built(start, tmp_path_factory.mktemp("start"))
        if (start, relation) not in pairs:
            source = sources[start]
            made = starts.made(source, relation, tmp_path_factory.mktemp("made") / start)
            pairs[start, relation] = Pair(source, made)
            quick = starts.STARTS[start].way is not None
            checks = checked(pairs[start, relation], quick=quick)
            assert all(check.passed for check in checks), [check for check in checks if not check.passed]
        return pairs[start, relation]

    return build


def checked(pair: Pair, *, quick: bool = False) -> tuple[Check, ...]:
    return (verify.verify_files if quick else verify.verify)(pair.a, pair.b).checks


@pytest.mark.parametrize(("mutation", "start"), ROWS, ids=named)
def test_a_planted_fault_is_seen_and_its_culprit_named(
    mutation: Mutation, start: str, pair_of: Callable[[str, str], Pair], tmp_path: Path
) -> None:
    sound = pair_of(start, mutation.relation)
    pair = Pair(sound.a, starts.copied(sound.b, tmp_path / start))
    mutation.plant(pair)
    if mutation.refused:
        with pytest.raises(RopetoolError, match=f"(?s){mutation.refused}") as caught:
            checked(pair, quick=mutation.quick)
        assert caught.value.exit_code == 2
        return
    failed = [check for check in checked(pair, quick=mutation.quick) if not check.passed]
    assert failed, "verify passed it"
    first = failed[0]
    assert first.name == mutation.check, failed
    assert first.where is not None, first
    assert re.fullmatch(mutation.where, first.where), first
    assert first.where.rpartition(".")[2] in first.detail, first
    assert re.search(mutation.says, first.detail), first
