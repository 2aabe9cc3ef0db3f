"""What doctor says of an engine is what the engine does with a real trained model, right or wrong.

Transformers on the plain meaning of a config is the truth. Where doctor says right, the engine gives its
log-probabilities; where it says wrong, those of transformers with the numbers that doctor says the engine hears,
which are far from the truth; where it says that the engine does not load it, the engine raises.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from ropetool import doctor, extend
from ropetool.checkpoint.config import Style
from ropetool.doctor import Finding, Verdict
from ropetool.engines.dialect import ORIGINAL
from ropetool.engines.heard import Turn
from ropetool.engines.listen import values_of
from ropetool.engines.names import EngineName
from ropetool.rope.frequencies import Llama3
from ropetool.rope.pairing import Pairing
from tests.clients import programs
from tests.clients.compare import ALLOWED, difference
from tests.clients.configs import CASES, ROPE_KEYS, both
from tests.clients.conftest import with_keys

TOKENS = 64
FAR = 100 * ALLOWED
WITH_ATTENTION_FACTOR = ("yarn", "longrope")  # where nothing says it, transformers has one of its own for these
MAJOR = transformers.__version__.split(".")[0]


@dataclass(frozen=True)
class Client:
    """A program, the row of doctor that speaks of it, and the cases that it is run on."""

    engine: EngineName
    program: Callable[[Path, list[int]], torch.Tensor]
    cases: tuple[str, ...]
    version: str = ""
    part: str = ""


def torchtune_as_told(checkpoint: Path, tokens: list[int]) -> torch.Tensor:
    """It reads no rope key: it is given what doctor says, by the way that doctor names for the layout."""
    heard = finding_of("torchtune", checkpoint).heard
    scaling = heard.turns[0].scaling
    taken = programs.torchtune_names if heard.pairing is Pairing.INTERLEAVED else programs.torchtune_import
    factor = scaling.factor if isinstance(scaling, Llama3) else 1
    return programs.torchtune_with(checkpoint, taken(checkpoint), tokens, scaling.theta, factor)


COMMON = ("as transformers 5 saves it", "yarn", "linear", "dynamic past a trained length of 32", "llama3", "longrope")
YARNS = ("yarn with an attention factor", "yarn with its betas", "yarn, its ramp not cut to whole pairs")
# What transformers 4 makes of it is far off past 8192 tokens only; the case with a short trained length shows that.
ONLY_LONG = ("longrope",)
CLIENTS: Mapping[str, Client] = {
    "transformers": Client(
        EngineName.TRANSFORMERS, programs.transformers, tuple(name for name in CASES if name not in ONLY_LONG),
        version=f"{MAJOR}.",
    ),
    "mlx-lm": Client(
        EngineName.MLX_LM, programs.mlx_lm,
        (*COMMON, *YARNS, "both styles", "yarn in the style of transformers 5", "converted for mlx-lm",
         "half, called traditional"),
    ),
    "ctranslate2": Client(
        EngineName.CTRANSLATE2, programs.ctranslate2,
        (*COMMON, "as transformers 4 saves it", "converted for torchtune"),
    ),
    "torchtune": Client(
        EngineName.TORCHTUNE, torchtune_as_told,
        ("both styles", "linear", "llama3", "llama3 over 8192 tokens", "converted for torchtune"),
    ),
    "llama.cpp": Client(
        EngineName.LLAMA_CPP, programs.llama_cpp,
        (*COMMON, *YARNS, "as transformers 4 saves it", "converted for mlx-lm"), part="runtime",
    ),
}  # fmt: skip
# The rows of transformers are run in the environment of either version, without the other programs.
MARKS = {"transformers": (pytest.mark.real, pytest.mark.oldest)}
RUNS = [
    pytest.param(client, name, marks=MARKS.get(client, (pytest.mark.clients,)), id=f"{client}-{name}")
    for client, row in CLIENTS.items()
    for name in row.cases
]


class Runs:
    """Runs that several tests look at, each made once."""

    def __init__(self, written: Callable[[str], Path], shallow: Path, directory: Path, tokens: list[int]) -> None:
        self.written, self.shallow, self.directory, self.tokens = written, shallow, directory, tokens
        self.made: dict[tuple[str, str], torch.Tensor] = {}

    def of(self, client: str, name: str) -> torch.Tensor:
        """What the client gives for a case; raises whatever it raises."""
        if (client, name) not in self.made:
            self.made[client, name] = CLIENTS[client].program(self.written(name), self.tokens)
        return self.made[client, name]

    def truth(self, name: str) -> torch.Tensor:
        """What the case means: the trained weights as they were, and a block that every transformers reads."""
        case = CASES[name]
        return self.computed(self.shallow, both(case.means), case.length)

    def heard(self, name: str, finding: Finding) -> torch.Tensor:
        """What the engine would compute by what doctor says that it hears."""
        weights, turn = self.written(name), finding.heard.turns[0]
        if finding.heard.pairing is Pairing.INTERLEAVED:
            weights = self.gathered(weights)
        return self.computed(weights, both(block_of(turn), turn.scaling.theta), CASES[name].length)

    def computed(self, weights: Path, keys: dict[str, Any], length: int) -> torch.Tensor:
        original = keys["rope_parameters"].get(ORIGINAL)
        above = {} if original is None else {ORIGINAL: original}  # where transformers 4 looks for longrope's
        keys = {**dict.fromkeys(ROPE_KEYS), **above, **keys, "max_position_embeddings": length}
        key = str(weights), json.dumps(keys, sort_keys=True)
        if key not in self.made:
            checkpoint = with_keys(weights, self.directory / f"computed-{len(self.made)}", **keys)
            self.made[key] = programs.transformers(checkpoint, self.tokens)
        return self.made[key]

    def gathered(self, checkpoint: Path) -> Path:
        """The weights in half order that turn as the checkpoint's do where adjacent rows are taken as pairs."""
        path = self.directory / f"gathered-{checkpoint.name}"
        if not path.exists():
            with_keys(checkpoint, path)
            gather(path / "model.safetensors", json.loads((path / "config.json").read_text("utf-8"))["head_dim"])
        return path


def gather(file: Path, head_dim: int) -> None:
    """In each head of q and k, the even rows first, then the odd ones."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight"))]:
        heads = tensors[name].unflatten(0, (-1, head_dim))
        tensors[name] = torch.cat((heads[:, 0::2], heads[:, 1::2]), 1).flatten(0, 1).contiguous()
    file.unlink()
    save_file(tensors, file, metadata={"format": "pt"})


def block_of(turn: Turn) -> dict[str, Any]:
    """The rope block of what an engine hears, in the words of transformers, which computes the rest from it."""
    values = {key: value for key, value in values_of(turn.scaling).items() if key != "rope_theta"}
    if turn.scaling.name in WITH_ATTENTION_FACTOR:
        values["attention_factor"] = turn.scaling.attention_factor
    return values


@pytest.fixture(scope="module")
def runs(written, shallow, tokens, tmp_path_factory) -> Runs:
    return Runs(written, shallow, tmp_path_factory.mktemp("computed"), tokens[:TOKENS])


def finding_of(client: str, checkpoint: Path) -> Finding:
    row = CLIENTS[client]
    findings = doctor.diagnose(checkpoint, engine=row.engine).findings
    (found,) = (f for f in findings if f.listener.version.startswith(row.version) and f.listener.part == row.part)
    return found


def stops_short(finding: Finding) -> bool:
    """Whether the engine is said to serve less than the tokens of the test."""
    heard = finding.heard
    return heard.stops and heard.length is not None and heard.length <= TOKENS


def check(runs: Runs, client: str, name: str, finding: Finding) -> None:
    """Hold what doctor found against the run. Unknown is for an engine that is told by hand, and then is right."""
    if finding.verdict is Verdict.LOADS_NOT or stops_short(finding):
        with pytest.raises(Exception):  # noqa: B017, PT011  each program has exceptions of its own
            runs.of(client, name)
        return
    assert finding.heard.turns, finding.why
    given, truth = runs.of(client, name), runs.truth(name)
    assert difference(given, runs.heard(name, finding)) <= ALLOWED, finding
    apart = difference(given, truth)
    assert apart > FAR if finding.verdict is Verdict.WRONG else apart <= ALLOWED, finding


@pytest.mark.parametrize(("client", "name"), RUNS)
def test_what_doctor_says_is_what_the_engine_does(client, name, request, written, runs) -> None:
    if client != "transformers":
        request.getfixturevalue("installed")
    check(runs, client, name, finding_of(client, written(name)))


@pytest.mark.real
@pytest.mark.oldest
@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_is_run_where_it_is_right_and_where_it_is_not(client, written) -> None:
    verdicts = {finding_of(client, written(name)).verdict for name in CLIENTS[client].cases}
    assert verdicts & {Verdict.WRONG, Verdict.LOADS_NOT}
    assert verdicts - {Verdict.WRONG, Verdict.LOADS_NOT}


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "style"), [("yarn", Style.DUAL), ("yarn in the style of transformers 5", Style.V5)], ids=str
)
def test_an_extended_case_is_what_extend_writes(name, style, written, tmp_path) -> None:
    case = CASES[name]
    plan = extend.plan(written("both styles"), tmp_path / "out", extend.Method.YARN, to=case.length, style=style)
    assert {key: plan.config[key] for key in ROPE_KEYS if key in plan.config} == case.keys
    assert plan.config["max_position_embeddings"] == case.length


def heard_as(finding: Finding, **fields: Any) -> Finding:
    return replace(finding, heard=replace(finding.heard, **fields))


def with_theta_doubled(finding: Finding) -> Finding:
    turn = finding.heard.turns[0]
    return heard_as(finding, turns=(replace(turn, scaling=replace(turn.scaling, theta=2 * turn.scaling.theta)),))


PLANTED: Mapping[str, tuple[str, Callable[[Finding], Finding]]] = {
    "right called wrong": ("both styles", lambda finding: replace(finding, verdict=Verdict.WRONG)),
    "wrong called right": ("converted for torchtune", lambda finding: replace(finding, verdict=Verdict.RIGHT)),
    "said not to load": ("both styles", lambda finding: replace(finding, verdict=Verdict.LOADS_NOT)),
    "said to stop short": ("both styles", lambda finding: heard_as(finding, stops=True, length=TOKENS)),
    "nothing heard": ("both styles", lambda finding: heard_as(finding, turns=())),
    "another base": ("both styles", with_theta_doubled),
    "another base where it is wrong": ("converted for torchtune", with_theta_doubled),
    "the other layout": ("both styles", lambda finding: heard_as(finding, pairing=Pairing.INTERLEAVED)),
}


@pytest.mark.real
@pytest.mark.oldest
@pytest.mark.parametrize("fault", PLANTED)
def test_a_wrong_word_of_doctor_is_seen(fault, written, runs) -> None:
    name, plant = PLANTED[fault]
    finding = finding_of("transformers", written(name))
    check(runs, "transformers", name, finding)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check(runs, "transformers", name, plant(finding))
