"""A real llama.cpp server of a real trained model, asked over HTTP: right, and wrong by each of its flags."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ropetool.cli import app
from tests.clients import programs
from tests.clients.configs import PLAIN, SHORT_YARN, both, stretched
from tests.clients.conftest import with_keys

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("installed")]

TOKENS, CONTEXT = 128, 256
PLAIN_KEYS, YARN_KEYS = both(PLAIN), {**stretched(SHORT_YARN).keys, "max_position_embeddings": 4096}


@dataclass(frozen=True)
class Case:
    """What the checkpoint says, what the GGUF was made from, and the server's flags; ``said`` by a wrong one."""

    means: Mapping[str, Any]
    made_from: Mapping[str, Any]
    flags: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""


CASES: Mapping[str, Case] = {
    "right": Case(PLAIN_KEYS, PLAIN_KEYS),
    "right with YaRN": Case(YARN_KEYS, YARN_KEYS),
    "a base by a flag": Case(PLAIN_KEYS, PLAIN_KEYS, {"rope_freq_base": 10_000.0}, "fit base 10000 "),
    "a base in the GGUF": Case(PLAIN_KEYS, both(PLAIN, 10_000.0), {}, "fit base 10000 "),
    "a scale by a flag": Case(PLAIN_KEYS, PLAIN_KEYS, {"rope_freq_scale": 0.5}, "fit linear scaling by 2 "),
    "YaRN lost": Case(YARN_KEYS, PLAIN_KEYS, {}, "fit no scaling "),
    "the base of YaRN": Case(YARN_KEYS, YARN_KEYS, {"rope_freq_base": 10_000.0}, "fit base 10000 "),
}


@pytest.fixture(scope="module")
def made(shallow, tmp_path_factory) -> Callable[[Mapping[str, Any]], tuple[Path, Path]]:
    """The checkpoint with other keys and its GGUF, each made once."""
    directory, found = tmp_path_factory.mktemp("served"), {}

    def build(keys: Mapping[str, Any]) -> tuple[Path, Path]:
        name = json.dumps(keys, sort_keys=True)
        if name not in found:
            path = with_keys(shallow, directory / str(len(found)), **keys)
            found[name] = path, programs.to_gguf(path, directory / f"{path.name}.gguf")
        return found[name]

    return build


@pytest.mark.parametrize("name", CASES)
def test_a_server_of_llama_cpp(name, made, capsys) -> None:
    case = CASES[name]
    (checkpoint, _), (_, gguf) = made(case.means), made(case.made_from)
    server = programs.llama_cpp_server(gguf, CONTEXT, **case.flags)
    command = ["verify", str(checkpoint), "--served", server.listening_address, "--tokens", str(TOKENS), "--json"]
    code = app.run([*command, "--quiet"])
    result = json.loads(capsys.readouterr().out)
    assert code == int(bool(case.said)), result["headline"]
    assert result["passed"] is not bool(case.said)
    assert case.said in result["headline"], result["headline"]
    best = min(result["fits"], key=lambda fit: fit["apart"])
    near, far = (best["apart"], result["apart"]) if case.said else (result["apart"], best["apart"])
    assert near < result["tolerance"] < far
    assert near < far / 3


def test_more_than_the_server_holds_is_refused(made, capsys) -> None:
    checkpoint, gguf = made(PLAIN_KEYS)
    server = programs.llama_cpp_server(gguf, CONTEXT)
    command = ["verify", str(checkpoint), "--served", server.listening_address, "--tokens", "512"]
    assert app.run(command) == 2
    assert "the server takes 256 tokens with its answer; give --tokens below 256" in capsys.readouterr().err
