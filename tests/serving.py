"""A server of log-probabilities on the loopback, in the forms of those that people run, which can be told to fail.

The forms of the answers are those of vLLM 0.26 (vllm/entrypoints/openai/completion/serving.py), SGLang 0.5
(python/sglang/srt/entrypoints/openai/utils.py, `to_openai_style_logprobs`) and llama.cpp's server, build 11549.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import Tensor

Model = Callable[[list[int]], Tensor]  # token ids to log-probabilities [T, V]
Body = Mapping[str, Any]


def transformers(checkpoint: Any) -> Model:
    """Plain transformers in float32, as its class rotates what config.json says."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)

    def log_probs(ids: list[int]) -> Tensor:
        with torch.inference_mode():
            return model(torch.tensor([ids])).logits[0].log_softmax(-1)

    return log_probs


def _legacy(rows: Tensor, ids: list[int], body: Body, name: Callable[[int], str]) -> dict[str, Any]:
    """OpenAI's older object: of the whole prompt and what was generated with ``echo``, else of the latter."""
    generated = int(rows[-1].argmax())
    tokens = [*ids, generated] if body.get("echo") else [generated]
    before = len(ids) + 1 - len(tokens)
    top = [None if before + at == 0 else rows[before + at - 1].topk(body["logprobs"]) for at in range(len(tokens))]
    return {
        "tokens": [name(token) for token in tokens],
        "token_logprobs": [
            None if found is None else float(rows[before + at - 1, token])
            for at, (token, found) in enumerate(zip(tokens, top, strict=True))
        ],
        "top_logprobs": [
            None
            if found is None
            else {name(int(i)): float(v) for v, i in zip(found.values, found.indices, strict=True)}
            for found in top
        ],
    }


def vllm(fake: Fake, ids: list[int], body: Body) -> Any:
    names = body.get("return_tokens_as_token_ids")
    return _legacy(fake.model(ids), ids, body, lambda token: f"token_id:{token}" if names else fake.text([token]))


def sglang(fake: Fake, ids: list[int], body: Body) -> Any:
    return _legacy(fake.model(ids), ids, body, lambda token: fake.text([token]))


def by_text(fake: Fake, ids: list[int], body: Body) -> Any:
    """A server that knows no echo, and names tokens by their text alone."""
    return _legacy(fake.model(ids), ids, {**body, "echo": False}, lambda token: fake.text([token]))


def llama_cpp(fake: Fake, ids: list[int], body: Body) -> Any:
    top = fake.model(ids)[-1].topk(body["logprobs"])
    entries = [
        {"id": int(i), "token": fake.text([int(i)]), "logprob": float(v)}
        for v, i in zip(top.values, top.indices, strict=True)
    ]
    return {"content": [{**entries[0], "top_logprobs": entries}]}


FORMS = {"vllm": vllm, "sglang": sglang, "llama.cpp": llama_cpp, "by text": by_text}


@dataclass
class Fake:
    """What is served, how it answers, and what it was asked. ``fault`` answers in its place where it returns True."""

    model: Model
    tokenizer: Any
    form: str = "vllm"
    most_top: int = 20
    takes_ids: bool = True
    models: Any = field(default_factory=lambda: {"data": [{"id": "tiny", "max_model_len": 1024}]})
    change: Callable[[dict[str, Any]], Any] = lambda answer: answer
    fault: Callable[[BaseHTTPRequestHandler], bool] = lambda handler: False
    asked: list[Body] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""

    def text(self, ids: list[int]) -> str:
        return str(self.tokenizer.decode(ids))

    def answer(self, body: Body) -> tuple[int, Any]:
        prompt = body["prompt"]
        if isinstance(prompt, list) and not self.takes_ids:
            return 422, {"detail": "prompt must be a string"}
        if body["logprobs"] > self.most_top:
            return 400, {"error": {"message": f"at most {self.most_top} logprobs"}}
        ids = self.tokenizer(prompt)["input_ids"] if isinstance(prompt, str) else prompt
        choice = {"index": 0, "text": "", "logprobs": FORMS[self.form](self, ids, body), "finish_reason": "length"}
        usage = {"prompt_tokens": len(ids), "completion_tokens": 1, "total_tokens": len(ids) + 1}
        return 200, self.change({"object": "text_completion", "choices": [choice], "usage": usage})


class Handler(BaseHTTPRequestHandler):
    fake: Fake
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if not self.fault():
            self.send_json(200, self.fake.models) if self.path == "/v1/models" else self.send_json(404, {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.fake.asked.append(body)
        if not self.fault():
            self.send_json(*self.fake.answer(body)) if self.path == "/v1/completions" else self.send_json(404, {})

    def fault(self) -> bool:
        self.fake.keys.append(self.headers.get("authorization"))
        with suppress(ConnectionError):  # whoever asked may have heard enough
            return self.fake.fault(self)
        return True

    def send_json(self, status: int, value: Any) -> None:
        self.send(status, json.dumps(value).encode())

    def send(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving(fake: Fake) -> Iterator[Fake]:
    """The server, as long as the block lasts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Serving", (Handler,), {"fake": fake}))
    server.daemon_threads = True
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True, kwargs={"poll_interval": 0.05}).start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
