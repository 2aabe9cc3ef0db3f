"""verify fails every planted fault of the table, and names its first culprit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from ropetool import verify
from ropetool.cli import app
from ropetool.errors import RopetoolError
from ropetool.families.verdict import Check
from tests import starts
from tests.mutations import LIVE, MUTATIONS, Live, Mutation
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


@pytest.mark.parametrize("fault", LIVE, ids=named)
def test_a_fault_of_the_running_model_is_seen(
    fault: Live, pair_of: Callable[[str, str], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = pair_of(fault.start, fault.relation)
    right = transformers.PreTrainedModel.from_pretrained.__func__

    def wrong(kind: Any, *args: Any, **options: Any) -> Any:
        model, info = right(kind, *args, **options)
        fault.plant(model)
        return model, info

    monkeypatch.setattr(transformers.PreTrainedModel, "from_pretrained", classmethod(wrong))
    failed = [check for check in checked(pair) if not check.passed]
    assert failed, "verify passed it"
    assert fault.check in {check.name for check in failed}, failed
    assert re.fullmatch(fault.where, str(failed[0].where)), failed[0]


ON_THE_COMMAND_LINE = ("one-head-left", "norm-epsilon", "factor-twice", "stale-copy-in-another-shard", "lora-b-left")


@pytest.mark.parametrize("name", ON_THE_COMMAND_LINE)
def test_the_command_line_says_the_culprit_and_exits_with_1(
    name: str, pair_of: Callable[[str, str], Pair], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == name)
    start = mutation.starts[0]
    sound = pair_of(start, mutation.relation)
    pair = Pair(sound.a, starts.copied(sound.b, tmp_path / start))
    mutation.plant(pair)
    for options in ([], ["--quick"]):
        assert app.run(["verify", str(pair.a), str(pair.b), "--json", *options]) == 1
        said = json.loads(capsys.readouterr().out)
        first = next(check for check in said["checks"] if not check["passed"])
        assert re.fullmatch(mutation.where, first["where"])


def test_what_is_refused_exits_with_2(
    pair_of: Callable[[str, str], Pair], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mutation = next(mutation for mutation in MUTATIONS if mutation.name == "one-style-updated")
    sound = pair_of("llama", mutation.relation)
    pair = Pair(sound.a, starts.copied(sound.b, tmp_path / "b"))
    mutation.plant(pair)
    assert app.run(["verify", str(pair.a), str(pair.b), "--json"]) == 2
    assert re.search(mutation.refused, json.loads(capsys.readouterr().out)["error"]["message"])


def test_the_suite_is_wide() -> None:
    """As many faults and families as the suite is for; a name may have a row for each way of fusing."""
    names = {mutation.name for mutation in MUTATIONS} | {fault.name for fault in LIVE}
    models = {starts.STARTS[start].model.partition("-")[0] for _, start in ROWS}
    assert len(names) >= 100
    assert len(models) >= 16
