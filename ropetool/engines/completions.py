"""Ask a server for log-probabilities by /v1/completions, in the forms of vLLM, SGLang and llama.cpp.

Two forms carry them. A server that reads a whole prompt out (``echo`` with ``logprobs``: vLLM, SGLang) gives that of
every token of the prompt after the first; any other gives the top ones of the next token (llama.cpp), so it is asked
once for each of several lengths. Read in: vllm/entrypoints/openai/completion/serving.py and protocol.py (vLLM 0.26),
python/sglang/srt/entrypoints/openai/serving_completions.py and utils.py (SGLang 0.5); run: llama.cpp's server, build
11549 (xllamacpp 2026.10.11549), which passes over ``echo`` and the name of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Any

from ropetool.engines.client import NEEDS_KEY, Client, get, post, quoted
from ropetool.errors import ServerAnswerError, ServerRefusalError, UsageError

PATH, MODELS = "/completions", "/models"
# vLLM gives 20 unless --max-logprobs says otherwise, OpenAI's own API 5.
TOP = (20, 5)
# How many lengths are asked for where an answer is about the next token alone, and how many single tokens.
LENGTHS, SINGLES = 24, 24
# llama.cpp says nothing of a next token that is part of a letter. With fewer answers than this share nothing is told.
ENOUGH = 0.5
FEWEST = 4
# Rounding may put a probability above 1, by no more than this in nats.
ROUNDING = 1e-3
LEAST = -1e9  # what stands for the logarithm of nothing is infinite, or a number as large as there is
TOKEN_ID = "token_id:"  # how vLLM writes a token where `return_tokens_as_token_ids` is set
# Answers that may be about the form of a request, so that another form is tried.
ABOUT_THE_FORM = (
    HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY, HTTPStatus.INTERNAL_SERVER_ERROR,
    HTTPStatus.NOT_IMPLEMENTED,
)  # fmt: skip


class Form(str, Enum):
    """What a server tells: of every token of a prompt, or the top ones of the next."""

    PROMPT = "prompt"
    NEXT = "next"


@dataclass(frozen=True)
class Model:
    """A model as the server lists it, and the longest request in tokens, where it tells that."""

    name: str
    length: int | None


@dataclass(frozen=True)
class Sample:
    """Log-probabilities, in nats and by token id, of the token after the first ``seen`` of ``prompt``."""

    prompt: tuple[int, ...]
    seen: int
    log_probs: Mapping[int, float]


@dataclass(frozen=True)
class Told:
    """Everything that the server told: along one long prompt, and after single tokens."""

    form: Form
    along: tuple[Sample, ...]
    singles: tuple[Sample, ...]


@dataclass(frozen=True)
class Asker:
    """Where and how to ask: ids as they are, or ``as_text``; ``token_of`` knows the id of a token by its text."""

    client: Client
    model: str
    top: int
    text_of: Callable[[Sequence[int]], str | None]
    token_of: Callable[[str], int | None]
    as_text: bool = False


def served_model(client: Client, name: str | None) -> Model:
    """The model to ask for: the one named, else the only one that the server lists.

    Raises `UsageError` where it lists several, or not the one named; `ServerError` where there is no list.
    """
    try:
        listed = get(client, MODELS).get("data")
    except ServerRefusalError as refusal:
        if name is None or refusal.fields.get("status") in NEEDS_KEY:
            raise
        return Model(name, None)
    entries = [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []
    found = {str(entry["id"]): entry for entry in entries if isinstance(entry.get("id"), str)}
    if not found:
        raise ServerAnswerError(f"{client.base}{MODELS} lists no model; name one by --model", url=client.base)
    names = ", ".join(quoted(client, model) for model in list(found)[:5])
    if name is None and len(found) > 1:
        raise UsageError(f"the server at {client.base} has {len(found)} models, {names} among them; choose by --model")
    if name is not None and name not in found:
        return Model(name, None)  # an alias, which the server may know and not list
    name = name or next(iter(found))
    return Model(name, _longest(found[name]))


def _longest(entry: Mapping[str, Any]) -> int | None:
    """``max_model_len`` (vLLM, SGLang), or ``meta.n_ctx`` (llama.cpp)."""
    meta = entry.get("meta")
    told = (entry.get("max_model_len"), meta.get("n_ctx") if isinstance(meta, Mapping) else None)
    return next((tokens for tokens in told if isinstance(tokens, int) and tokens > 1), None)


def ask(asker: Asker, ids: Sequence[int], say: Callable[[str], None]) -> Told:
    """What the server tells of ``ids``, in the first form that it takes; raises `ServerError` where it takes none."""
    refused: list[ServerRefusalError] = []
    for form in _forms(asker):
        try:
            return _ask_in(form, ids, say)
        except ServerRefusalError as refusal:
            if refusal.fields.get("status") not in ABOUT_THE_FORM:
                raise
            refused.append(refusal)
    raise refused[0]


def _forms(asker: Asker) -> Iterator[Asker]:
    for as_text in (False, True):
        for top in TOP:
            yield Asker(asker.client, asker.model, top, asker.text_of, asker.token_of, as_text)


def _ask_in(asker: Asker, ids: Sequence[int], say: Callable[[str], None]) -> Told:
    say(f"asking {asker.client.base} for the log-probabilities of {len(ids)} tokens")
    whole = _samples(asker, ids, echo=True)
    if whole and whole[0].seen < len(ids):
        places = _spread(len(ids) - 1, SINGLES)
        # As text, a pair must begin as the tokenizer begins.
        pairs = [[ids[0] if asker.as_text else ids[at], ids[at + 1]] for at in places]
        return Told(Form.PROMPT, whole, _told(asker, pairs, ids, echo=True))
    prefixes = [ids[: at + 1] for at in _spread(len(ids), LENGTHS, first=len(ids) // LENGTHS - 1)]
    singles = [[token] for token in dict.fromkeys(ids[at] for at in _spread(len(ids), SINGLES))]
    return Told(Form.NEXT, _told(asker, prefixes, ids), _told(asker, singles, ids))


def _spread(stop: int, count: int, first: int = 0) -> list[int]:
    """Up to ``count`` numbers below ``stop``, evenly, the last among them."""
    first = max(first, 0)
    steps = max(min(count, stop - first) - 1, 1)
    return sorted({first + round(step * (stop - 1 - first) / steps) for step in range(steps + 1)})


def _told(asker: Asker, prompts: Sequence[Sequence[int]], ids: Sequence[int], echo: bool = False) -> tuple[Sample, ...]:
    """What is told of each prompt; of some it may be nothing. Raises `ServerAnswerError` where it is of most."""
    told = [_samples(asker, prompt, echo=echo) for prompt in prompts]
    found = [sample for samples in told if samples for sample in samples[:1]]
    if len(found) < max(ENOUGH * len(prompts), min(FEWEST, len(prompts))):
        raise _silent(asker, f" after {len(prompts) - len(found)} of {len(prompts)} prompts")
    return tuple(found)


def _silent(asker: Asker, when: str = "") -> ServerAnswerError:
    form = " as text that gives the same tokens again" if asker.as_text else ""
    return ServerAnswerError(
        f"{asker.client.base}{PATH} gives no log-probabilities{when}{form}; ask a server that knows `echo` with "
        f"`logprobs` (vLLM, SGLang) or `logprobs` of the next token (llama.cpp)",
        url=asker.client.base,
    )


def _samples(asker: Asker, ids: Sequence[int], *, echo: bool) -> tuple[Sample, ...] | None:
    """One request: a sample for each token of the prompt but the first, or one of the next; None for no answer."""
    prompt = asker.text_of(ids) if asker.as_text else list(ids)
    if not prompt:
        return None
    body = {
        "model": asker.model, "prompt": prompt, "max_tokens": 1, "temperature": 0,
        "logprobs": 1 if echo else asker.top, "return_tokens_as_token_ids": True,
    }  # fmt: skip
    answer = post(asker.client, PATH, body | {"echo": True} if echo else body)
    return _read(asker, tuple(ids), answer, echo=echo)


def _read(asker: Asker, ids: tuple[int, ...], answer: Mapping[str, Any], *, echo: bool) -> tuple[Sample, ...] | None:
    usage, choices = answer.get("usage"), answer.get("choices")
    counted = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
    if isinstance(counted, int) and counted != len(ids):
        raise _odd(asker, f"counts {counted} tokens in a prompt of {len(ids)}: its tokenizer is another, or it cuts")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, Mapping):
        raise _odd(asker, "answers with an object that has no choices[0]")
    told = choice.get("logprobs")
    if told is not None and not isinstance(told, Mapping):
        raise _odd(asker, f"answers with logprobs that are a {type(told).__name__}, not an object")
    along = told.get("token_logprobs") if told else None
    if echo and told and isinstance(along, list) and len(along) >= len(ids) > 1:
        return _along(asker, ids, along, told.get("tokens"))
    if not told:
        return None
    return (Sample(ids, len(ids), _next(asker, told)),)


def _along(asker: Asker, ids: tuple[int, ...], values: Sequence[Any], tokens: Any) -> tuple[Sample, ...]:
    """``token_logprobs`` of an echoed prompt: the first is null, the token that was generated comes last."""
    named = tokens if isinstance(tokens, list) and len(tokens) == len(values) else ()
    for at, (token, name) in enumerate(zip(ids, named, strict=False)):
        if isinstance(name, str) and name.startswith(TOKEN_ID) and name != f"{TOKEN_ID}{token}":
            raise _odd(asker, f"reads {name} where token {token} of the prompt was sent, at position {at}")
    return tuple(
        Sample(ids, at, {ids[at]: _log_prob(asker, values[at], f"token_logprobs[{at}]")}) for at in range(1, len(ids))
    )


def _next(asker: Asker, told: Mapping[str, Any]) -> Mapping[int, float]:
    """The top log-probabilities of the next token: llama.cpp's list with ids, or the older object with names."""
    content, top = told.get("content"), told.get("top_logprobs")
    found: dict[int, float] = {}
    if isinstance(content, list) and content and isinstance(content[0], Mapping):
        entries = content[0].get("top_logprobs")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, Mapping) and type(entry.get("id")) is int:
                found[entry["id"]] = _log_prob(asker, entry.get("logprob"), f"that of token {entry['id']}")
    elif isinstance(top, list) and top and isinstance(top[-1], Mapping):
        for name, value in top[-1].items():
            number = name.removeprefix(TOKEN_ID)
            token = int(number) if name != number and number.isdecimal() else asker.token_of(name)
            if token is not None:
                found[token] = _log_prob(asker, value, f"that of {name!r}")
    if not found:
        raise _odd(asker, "answers with logprobs, but with none of a token that the checkpoint's tokenizer knows")
    return found


def _log_prob(asker: Asker, value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value <= ROUNDING:  # nor is NaN
        raise _odd(asker, f"gives {quoted(asker.client, repr(value))[:40]} as a log-probability ({where})")
    return float(max(value, LEAST))


def _odd(asker: Asker, what: str) -> ServerAnswerError:
    return ServerAnswerError(
        f"{asker.client.base}{PATH} {what}; nothing can be compared with that", url=asker.client.base
    )
