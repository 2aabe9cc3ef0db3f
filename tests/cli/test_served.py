"""Whatever a server does: one sentence, exit code 2, in the time that was given, and the key in no message."""

from __future__ import annotations

import gzip
import json
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from ropetool.checkpoint.bundled import CHECKPOINT, bundled
from ropetool.cli import app
from ropetool.engines import client
from tests import serving
from tests.serving import Fake

VOCABULARY, TOKENS, TIMEOUT_S, PATIENCE_S = 257, 64, 1.0, 8.0
KEY = "sk-" + "k" * 30  # made up


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(bundled(CHECKPOINT))


@pytest.fixture
def fake(tokenizer) -> Iterator[Fake]:
    """A server whose model finds every token as likely."""
    even = math.log(1 / VOCABULARY)
    with serving.serving(Fake(lambda ids: torch.full((len(ids), VOCABULARY), even), tokenizer)) as running:
        yield running


@pytest.fixture
def refusal(capsys) -> Callable[..., str]:
    """Runs the command, which must end in one sentence and exit code 2, in time."""

    def run(url: str, *arguments: str) -> str:
        command = ["verify", str(bundled(CHECKPOINT)), "--served", url, "--tokens", str(TOKENS), "--quiet", *arguments]
        start = time.monotonic()
        code = app.run([*command, "--timeout", str(TIMEOUT_S)])
        assert time.monotonic() - start < PATIENCE_S
        told = capsys.readouterr()
        assert code == 2, told
        assert told.out == ""
        assert "fault of ropetool" not in told.err
        lines = told.err.splitlines()
        assert len(lines) == 1, told.err
        assert lines[0].startswith("error: ")
        assert len(lines[0]) < 600
        return lines[0]

    return run


ADDRESSES: Mapping[str, str] = {
    "localhost:8000": "is not the address of a server",
    "ftp://127.0.0.1:1": "is not the address of a server",
    "http://": "is not the address of a server",
    "http://127.0.0.1:99999999": "is not the address of a server",
    "http://127.0.0.1:x": "is not the address of a server",
    "http://[::1": "is not the address of a server",
    "http://a b": "is not the address of a server",
    "http://me:secret@127.0.0.1:1": "holds a password",
    "http://127.0.0.1:1/v1?key=1": "has more than a path",
    "http://\x00\x1b[31m:80": "is not the address of a server",
    "http://no-such-host.invalid": "cannot be asked",
    "http://" + "a" * 300 + ".invalid": "",
}


@pytest.mark.parametrize("url", ADDRESSES, ids=lambda url: repr(url)[:40])
def test_an_address_that_is_none(url, refusal) -> None:
    said = refusal(url)
    assert ADDRESSES[url] in said
    assert "secret" not in said
    assert said.isprintable()


def test_nobody_listens(refusal) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert f"{url}/v1/models cannot be asked" in refusal(url)


def test_an_address_with_or_without_its_version_is_the_same() -> None:
    same = ("http://a:1", "http://a:1/", "http://a:1/v1", "http://a:1/v1/", " http://a:1/v1 ")
    assert {client.base_of(url) for url in same} == {"http://a:1/v1"}
    assert client.base_of("https://a/inference") == "https://a/inference/v1"


Reply = Callable[[Any], bool]


def status(code: int, body: Any = None, **headers: str) -> Reply:
    def reply(handler: Any) -> bool:
        handler.send(code, b"" if body is None else json.dumps(body).encode(), **headers)
        return True

    return reply


def content(body: bytes, **headers: str) -> Reply:
    def reply(handler: Any) -> bool:
        handler.send(200, body, **headers)
        return True

    return reply


def silent(handler: BaseHTTPRequestHandler) -> bool:
    time.sleep(PATIENCE_S)
    return True


def dropped_at_once(handler: BaseHTTPRequestHandler) -> bool:
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)
    return True


def dropped_midway(handler: BaseHTTPRequestHandler) -> bool:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"data": [')
    return dropped_at_once(handler)


def trickled(start: bytes) -> Reply:
    """One byte after another, for ever."""

    def reply(handler: BaseHTTPRequestHandler) -> bool:
        handler.wfile.write(start)
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)

    return reply


def endless(handler: BaseHTTPRequestHandler) -> bool:
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * (1 << 16))


def no_http(handler: BaseHTTPRequestHandler) -> bool:
    handler.wfile.write(b"SSH-2.0-OpenSSH_9.7\r\n")
    return dropped_at_once(handler)


HEAD = b"HTTP/1.1 200 OK\r\n"
BROKEN: Mapping[str, tuple[Reply, str]] = {
    "a key is wanted": (status(401), "answers 401: it does not take anyone without a key; set OPENAI_API_KEY"),
    "forbidden": (status(403, {"error": {"message": "not yours"}}), "answers 403: it does not take anyone"),
    "no such path": (status(404), "answers 404: there is no OpenAI-compatible API at that address"),
    "busy": (status(429, {"message": "slow down"}), "answers 429 (slow down)"),
    "broken": (status(500, {"detail": "oh\n\x1b[31m no"}), "answers 500 (oh ?[31m no)"),
    "loading": (status(503, {"error": {"message": "Loading model"}}), "answers 503 (Loading model)"),
    "an error that is no object": (status(502, ["bad gateway"]), "answers 502, without saying why"),
    "a redirect to itself": (status(307, Location="/v1/models"), "answers 307 and points to /v1/models"),
    "a redirect elsewhere": (status(301, Location="http://127.0.0.1:1/v1/"), "give that address itself"),
    "a web page": (content(b"<html><body>Welcome</body></html>"), "answers with no JSON object but with '<html>"),
    "nothing": (content(b""), "answers with no JSON object"),
    "JSON cut short": (content(b'{"data": [{"id": "ti'), "answers with no JSON object"),
    "JSON without end": (content(b"[" * 100_000), "answers with no JSON object"),
    "a list": (content(b"[]"), "answers with no JSON object"),
    "no UTF-8": (content(b"\xff\xfe\x00"), "answers with no JSON object"),
    "a compressed answer": (
        content(gzip.compress(b" " * 50_000_000), **{"Content-Encoding": "gzip"}), "answers with no JSON object",
    ),
    "silence": (silent, "gave no whole answer within 1 seconds"),
    "a body byte by byte": (
        trickled(HEAD + b"Content-Length: 100000\r\n\r\n{"), "gave no whole answer within 1 seconds",
    ),
    "headers byte by byte": (trickled(HEAD + b"X-Long: "), "gave no whole answer within 1 seconds"),
    "an end before the answer": (dropped_at_once, "cannot be asked"),
    "an end within the answer": (dropped_midway, "cannot be asked"),
    "no HTTP": (no_http, "cannot be asked"),
    "no end": (endless, "answers with more than 1 MiB"),
}  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
@pytest.mark.parametrize("fault", BROKEN)
def test_an_answer_that_is_none(fault, path, fake, refusal, monkeypatch) -> None:
    monkeypatch.setattr(client, "MOST_BYTES", 1 << 20)
    reply, said = BROKEN[fault]
    fake.fault = lambda handler: handler.path == path and reply(handler)
    told = refusal(fake.url)
    assert said in told
    assert f"{fake.url}{path}" in told


MODELS: Mapping[str, tuple[Any, str]] = {
    "no list": ({"data": None}, "lists no model"),
    "an empty list": ({"data": []}, "lists no model"),
    "no names": ({"data": [{"id": 3}, "x", None]}, "lists no model"),
    "another object": ({"models": "x"}, "lists no model"),
    "a context of two tokens": ({"data": [{"id": "a", "max_model_len": 2}]}, "the server takes 2 tokens"),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_list_of_models_that_is_none(case, fake, refusal) -> None:
    fake.models, said = MODELS[case]
    assert said in refusal(fake.url)


def answered(**choice: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda answer: {**answer, "choices": [choice]}


def with_values(value: Any) -> Callable[[dict[str, Any]], Any]:
    """Every log-probability of an echoed prompt is ``value``."""

    def change(answer: dict[str, Any]) -> Any:
        told = answer["choices"][0]["logprobs"]
        told["token_logprobs"] = [None] + [value] * (len(told["token_logprobs"]) - 1)
        return answer

    return change


def other_tokens(answer: dict[str, Any]) -> Any:
    told = answer["choices"][0]["logprobs"]
    told["tokens"] = ["token_id:7" for _ in told["tokens"]]
    return answer


SHAPES: Mapping[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no choices": (lambda answer: {}, "no choices[0]"),
    "no choice": (lambda answer: {"choices": []}, "no choices[0]"),
    "a choice that is text": (lambda answer: {"choices": ["x"]}, "no choices[0]"),
    "no log-probabilities": (answered(text="", logprobs=None), "gives no log-probabilities"),
    "log-probabilities that are a list": (answered(logprobs=[1]), "logprobs that are a list, not an object"),
    "an object of another shape": (answered(logprobs={"x": 1}), "with none of a token that the checkpoint's tokenizer"),
    "a list of another shape": (answered(logprobs={"content": [{"top_logprobs": 3}]}), "with none of a token"),
    "ids that are text": (
        answered(logprobs={"content": [{"top_logprobs": [{"id": "3", "logprob": -1}]}]}), "with none of a token",
    ),
    "an id beyond the vocabulary": (
        answered(logprobs={"content": [{"top_logprobs": [{"id": 10**9, "logprob": -1}]}]}),
        "tells of token 1000000000, and the vocabulary of the checkpoint has 257 tokens",
    ),
    "not a number": (with_values(math.nan), "gives nan as a log-probability (token_logprobs[1])"),
    "more than certain": (with_values(0.5), "gives 0.5 as a log-probability"),
    "text": (with_values("-1"), "gives '-1' as a log-probability"),
    "true": (with_values(True), "gives True as a log-probability"),
    "null": (with_values(None), "gives None as a log-probability"),
    "a number of any size": (with_values(10**400), "as a log-probability"),
    "other tokens": (other_tokens, "reads token_id:7 where token"),
    "a prompt cut short": (
        lambda answer: {**answer, "usage": {"prompt_tokens": 5}}, "counts 5 tokens in a prompt of 64",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHAPES)
def test_log_probabilities_that_are_none(case, fake, refusal) -> None:
    fake.change, said = SHAPES[case]
    assert said in refusal(fake.url)


def test_a_model_that_is_not_there(fake, refusal) -> None:
    body = {"error": {"message": "The model `x` does not exist."}}
    fake.fault = lambda handler: handler.path.endswith("/completions") and status(404, body)(handler)
    assert "answers 404 (The model `x` does not exist.)" in refusal(fake.url, "--model", "x")


def test_the_key_is_sent_and_never_said(fake, refusal, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    fake.fault = status(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
    said = refusal(fake.url)
    assert fake.keys == [f"Bearer {KEY}"]
    assert KEY not in said
    assert "does not take the key in OPENAI_API_KEY (Incorrect API key provided: ***)" in said


@pytest.mark.parametrize("key", ["with\nline", "with space", "ключ"])
def test_a_key_that_is_none_is_not_said(key, fake, refusal, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    said = refusal(fake.url)
    assert "OPENAI_API_KEY holds what no key can" in said
    assert key not in said
    assert fake.keys == []


USES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "neither": ((), "give a second checkpoint B, or --served URL"),
    "both": (("B", "--served", "http://a"), "leave out B"),
    "a base": (("--served", "http://a", "--base", "B"), "leave out --base"),
    "no forward pass": (("--served", "http://a", "--quick"), "leave out --quick"),
    "a model without a server": (("B", "--model", "x"), "--model is about a server"),
    "a time without a server": (("B", "--timeout", "3"), "--timeout is about a server"),
}


@pytest.mark.parametrize("case", USES)
def test_what_does_not_go_together(case, capsys, tmp_path) -> None:
    given, said = USES[case]
    there = [str(bundled(CHECKPOINT)) if word == "B" else word for word in given]
    assert app.run(["verify", str(bundled(CHECKPOINT)), *there]) == 2
    assert said in capsys.readouterr().err


@pytest.fixture(scope="module")
def right(tokenizer) -> Iterator[Fake]:
    with serving.serving(Fake(serving.transformers(bundled(CHECKPOINT)), tokenizer)) as running:
        yield running


def test_the_result_as_json_and_in_a_file(right, capsys, tmp_path) -> None:
    out = tmp_path / "result.json"
    command = ["verify", str(bundled(CHECKPOINT)), "--served", right.url, "--tokens", str(TOKENS), "--quiet"]
    assert app.run([*command, "--json", "--out", str(out)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(out.read_text("utf-8"))
    assert result["passed"] is True
    assert result["relation"] == "served"
    assert {
        "server",
        "model",
        "form",
        "tokens",
        "apart",
        "tolerance",
        "control",
        "by_position",
        "checks",
        "fits",
    } < set(result)
    assert result["control"]["failed_as_it_must"] is True
    assert {"name", "passed", "detail", "where"} == set(result["checks"][0])


def test_the_result_as_a_table(right, capsys) -> None:
    command = ["verify", str(bundled(CHECKPOINT)), "--served", right.url, "--tokens", str(TOKENS)]
    assert app.run(command) == 0
    told = capsys.readouterr()
    assert "passed: the server rotates as the checkpoint means (half, base 100000)" in told.out
    assert "running it with the other layout, interleaved" in told.err


def test_a_result_is_not_written_into_the_checkpoint(right, capsys, own) -> None:
    checkpoint: Path = own("llama")
    assert app.run(["verify", str(checkpoint), "--served", right.url, "--out", str(checkpoint / "x.json")]) == 2
    assert "lies inside the checkpoint" in capsys.readouterr().err
