"""Hub ids on the command line, against a Hub on the loopback that counts what it sends, and that can fail."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.numpy import save
from safetensors.torch import load_file, save_file

from ropetool.checkpoint.shards import read_shard
from tests import tiny
from tests.hub import TOKEN, Answer, Asked, Client, Fault, Hub, client, environment, files_of, serving
from tests.tiny import edit_json, snapshot

TO = ("--to", "interleaved")
YARN = ("--method", "yarn", "--to", "128")
_numbers = count()


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@pytest.fixture(scope="module")
def shared(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with client(hub, tmp_path_factory.mktemp("home")) as one:
        yield one


@pytest.fixture
def ask(shared: Client) -> Iterator[Client]:
    """One process for all tests, which use repositories of their own; what was planted ends with the test."""
    shared.hub.forget()
    yield shared
    shared.hub.fault, shared.hub.ranges = None, True


@pytest.fixture
def named(hub: Hub) -> Callable[..., str]:
    """The id of a new repository with the files of a directory."""

    def push(directory: Path, **options: Any) -> str:
        name = f"org/model-{next(_numbers)}"
        hub.repo(name, files_of(directory), **options)
        return name

    return push


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama in several shards, with a tokenizer and with weights in other formats beside them."""
    path = tiny.save(tiny.model_of("llama"), tmp_path_factory.mktemp("hub") / "sharded", max_shard_size="60KB")
    (path / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")
    (path / "tokenizer_config.json").write_text('{"model_max_length": 64}', encoding="utf-8")
    for other in ("pytorch_model.bin", "model.gguf", "original/consolidated.00.pth", "model.fp8.index.json"):
        (path / other).parent.mkdir(exist_ok=True)
        (path / other).write_bytes(b"never fetched")
    return path


def header_bytes(directory: Path) -> dict[str, int]:
    """The exact cost of reading the header of every shard: its length, then all of it."""
    return {f.name: 16 + int.from_bytes(f.read_bytes()[:8], "little") for f in directory.glob("*.safetensors")}


def sent_of_weights(hub: Hub) -> dict[str, int]:
    return {file: sent for file, sent in hub.sent.items() if file.endswith((".safetensors", ".bin", ".gguf", ".pth"))}


def facts(answer: tuple[int, str, str]) -> dict[str, Any]:
    code, out, err = answer
    assert code == 0, out + err
    return json.loads(out)


# What inspect and its like fetch.


@pytest.mark.parametrize("many", [False, True])
def test_inspect_reads_headers_to_the_byte_and_says_what_it_says_of_a_directory(
    many: bool, ask, named, checkpoint, sharded: Path
) -> None:
    source = sharded if many else checkpoint("llama")
    name = named(source)
    here, there = facts(ask("inspect", source, "--json")), facts(ask("inspect", name, "--json"))
    assert ask.hub.sent["config.json"] == (source / "config.json").stat().st_size
    assert sent_of_weights(ask.hub) == header_bytes(source)
    assert not {"tokenizer.json", "original/consolidated.00.pth", "model.fp8.index.json"} & set(ask.hub.sent)
    commit = ask.hub.repos[name].names["main"]
    assert there.pop("hub") == {"id": name, "revision": "main", "commit": commit}
    assert there.pop("checkpoint") == name
    assert here.pop("checkpoint") == str(source)
    if many:
        assert [w["code"] for w in here.pop("warnings")] == ["other-weights"]
        there.pop("warnings")
    assert there == here
    ask.hub.forget()
    assert facts(ask("inspect", f"{name}@{commit}", "--json"))["moves"] == here["moves"]
    assert [asked.kind for asked in ask.hub.asked] == ["api"]  # a commit never changes, so all of it is here
    assert commit in ask("inspect", name)[1]


def test_extend_without_weights_fetches_none(ask, named, sharded: Path, tmp_path: Path) -> None:
    name = named(sharded)
    facts(ask("extend", name, tmp_path / "there", *YARN, "--weights", "none", "--json"))
    assert sent_of_weights(ask.hub) == {}
    facts(ask("extend", sharded, tmp_path / "here", *YARN, "--weights", "none", "--json"))
    there, here = files_of(tmp_path / "there"), files_of(tmp_path / "here")
    config, same = json.loads(there.pop("config.json")), json.loads(here.pop("config.json"))
    assert config["ropetool"].pop("hub") == f"{name}@{ask.hub.repos[name].names['main']}"
    assert (config, there) == (same, here)
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} <= there.keys()


@pytest.mark.parametrize("verb", ["convert", "extend"])
def test_a_dry_run_fetches_headers_alone(verb: str, ask, named, sharded: Path, tmp_path: Path) -> None:
    name, how = named(sharded), TO if verb == "convert" else YARN
    there = facts(ask(verb, name, tmp_path / "out", *how, "--dry-run", "--json"))
    assert sent_of_weights(ask.hub) == header_bytes(sharded)
    here = facts(ask(verb, sharded, tmp_path / "out", *how, "--dry-run", "--json"))
    told = {warning["code"] for warning in there.pop("warnings")}
    assert told == {w["code"] for w in here.pop("warnings")} - {"left-behind", "weights-linked"} | (
        {"weights-copied"} if verb == "extend" else set()
    )
    assert there == here
    assert not (tmp_path / "out").exists()


def test_what_is_refused_costs_no_weights(ask, named, sharded: Path, tmp_path: Path) -> None:
    name = named(sharded)
    code, out, _ = ask("convert", name, tmp_path / "out", "--to", "half", "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "already-converted")
    assert sent_of_weights(ask.hub) == header_bytes(sharded)
    (tmp_path / "out").mkdir()
    ask.hub.forget()
    assert ask("convert", name, tmp_path / "out", *TO)[0] == 2
    assert sent_of_weights(ask.hub) == {}


def test_saved_frequencies_are_read_by_range(ask, named, own) -> None:
    source = own("llama")
    tensors = load_file(source / "model.safetensors")
    stale = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": 777.0 ** -(torch.arange(8) / 8) for n in (0, 1)}
    save_file({**tensors, **stale}, source / "model.safetensors", metadata={"format": "pt"})
    name = named(source)
    here, there = (facts(ask("inspect", which, "--json"))["warnings"] for which in (source, name))
    assert [w["code"] for w in there] == ["stale-inv-freq"]
    assert there == here
    of_one = 8 * 4
    assert sent_of_weights(ask.hub) == {"model.safetensors": header_bytes(source)["model.safetensors"] + of_one}
    ask.hub.forget()
    assert facts(ask("inspect", name, "--json"))["warnings"] == here
    assert sent_of_weights(ask.hub) == {}


def test_code_of_a_repository_is_fetched_with_its_config(ask, named, tmp_path: Path) -> None:
    source = tmp_path / "odd"
    write = f"from pathlib import Path; from tests.models import odd; odd.write(Path({str(source)!r}), 'partial')"
    # In another process, for transformers keeps such code imported.
    subprocess.run([sys.executable, "-c", write], env=environment(ask.hub, tmp_path / "home"), check=True)
    name = named(source)
    assert json.loads(ask("inspect", name, "--json")[1])["error"]["code"] == "unknown-family"
    here, there = (facts(ask("inspect", which, "--trust-remote-code", "--json")) for which in (source, name))
    assert there["moves"] == here["moves"]
    assert there["pairing"] == here["pairing"]
    assert sent_of_weights(ask.hub) == header_bytes(source)


def test_a_server_without_ranges_is_left_after_the_header(ask, hub: Hub) -> None:
    rows = save({"model.embed_tokens.weight": np.zeros((1 << 20, 16), np.float32)})
    config = (Path(__file__).parents[2] / "fixtures/recall-256/config.json").read_bytes()
    hub.repo("org/no-ranges", {"config.json": config, "model.safetensors": rows})
    hub.ranges = False
    code, out, _ = ask("inspect", "org/no-ranges", "--json")
    error = json.loads(out)["error"]  # it was read: the model has no q
    assert (code, error["code"]) == (2, "bad-checkpoint")
    assert f"in org/no-ranges@{hub.repos['org/no-ranges'].names['main'][:12]}: " in error["message"]
    assert 0 < hub.sent["model.safetensors"] < len(rows) / 4


# What convert and its like fetch.


def test_convert_is_that_of_a_directory_and_leaves_the_cache_as_it_is(
    ask, named, sharded: Path, tmp_path: Path
) -> None:
    name = named(sharded)
    code, _, said = ask("convert", name, tmp_path / "there", *TO)
    assert code == 0
    assert re.search(rf"fetching \d+ files with weights .* of {name} from {ask.hub.endpoint}", said)
    assert "\x1b" not in said
    assert len(said.splitlines()) == 1  # no bar off a terminal
    assert not {"pytorch_model.bin", "model.gguf", "original/consolidated.00.pth"} & set(ask.hub.sent)
    assert ask("convert", sharded, tmp_path / "here", *TO)[0] == 0
    there, here = files_of(tmp_path / "there"), files_of(tmp_path / "here")
    config, same = json.loads(there.pop("config.json")), json.loads(here.pop("config.json"))
    assert config["ropetool"].pop("hub") == f"{name}@{ask.hub.repos[name].names['main']}"
    assert (config, there) == (same, here)
    assert not [
        path
        for path in (tmp_path / "there").rglob("*")
        if path.is_symlink() or (path.stat().st_nlink > 1 and path.is_file())
    ]
    before = snapshot(ask.home / "hub")
    ask.hub.forget()
    assert ask("convert", name, tmp_path / "again", *TO, "--quiet")[2] == ""
    assert sent_of_weights(ask.hub) == {}
    assert snapshot(ask.home / "hub") == before


def test_extend_copies_what_lies_in_the_cache(ask, named, checkpoint, tmp_path: Path) -> None:
    name = named(checkpoint("llama"))
    told = facts(ask("extend", name, tmp_path / "out", *YARN, "--json"))
    assert {"weights-copied"} == {w["code"] for w in told["warnings"]} & {"weights-copied", "weights-linked"}
    assert (tmp_path / "out" / "model.safetensors").stat().st_nlink == 1
    cached = next((ask.home / "hub").glob(f"models--{name.replace('/', '--')}/snapshots/*"))
    told = facts(ask("extend", cached, tmp_path / "by-path", *YARN, "--json"))
    assert "weights-copied" in {w["code"] for w in told["warnings"]}
    assert json.loads((tmp_path / "by-path/config.json").read_text())["ropetool"]["hub"].startswith(f"{name}@")


def test_verify_and_evaluate_take_ids(ask, named, tmp_path: Path) -> None:
    fixture = Path(__file__).parents[2] / "fixtures" / "recall-256"
    name = named(fixture)
    facts(ask("convert", name, tmp_path / "out", *TO, "--json"))
    verdict = facts(ask("verify", name, tmp_path / "out", "--tokens", "32", "--json"))
    assert (verdict["passed"], verdict["relation"]) == (True, "converted")
    losses = facts(ask("evaluate", name, "--against", name, "--lengths", "128", "--json"))
    assert (losses["checkpoint"], losses["against"]) == (name, name)
    code, out, _ = ask("verify", name, named(tmp_path / "out"), "--json", "--tokens", "32")
    assert (code, json.loads(out)["passed"]) == (0, True)


def test_pickles_are_named_by_inspect_and_fetched_by_convert(ask, named, checkpoint, tmp_path: Path) -> None:
    source = tmp_path / "pickled"
    model = tiny.load_stored(checkpoint("llama"))
    model.config.save_pretrained(source)
    torch.save(model.state_dict(), source / "pytorch_model.bin")
    name = named(source)
    (told,) = facts(ask("inspect", name, "--json"))["warnings"]
    assert told["code"] == "no-weights"
    assert "only pytorch_model.bin; convert and verify read pickles" in told["message"]
    assert sent_of_weights(ask.hub) == {}
    facts(ask("convert", name, tmp_path / "out", *TO, "--json"))
    facts(ask("convert", source, tmp_path / "here", *TO, "--json"))
    assert files_of(tmp_path / "out")["model.safetensors"] == files_of(tmp_path / "here")["model.safetensors"]


def test_adapters_and_their_bases(ask, named, checkpoint, tmp_path: Path) -> None:
    base, adapter = named(checkpoint("llama")), tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": base}
    (adapter / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    rows = {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": np.ones((128, 4), np.float32)}
    (adapter / "adapter_model.safetensors").write_bytes(save(rows))
    name = named(adapter)
    code, out, _ = ask("inspect", name, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "missing-file")  # no network that was not asked for
    assert "--base" in json.loads(out)["error"]["message"]
    assert facts(ask("inspect", name, "--base", base, "--json"))["moves"]["tensors"] == 1
    assert sent_of_weights(ask.hub) == {**header_bytes(adapter), **header_bytes(checkpoint("llama"))}
    facts(ask("convert", name, tmp_path / "out", *TO, "--base", base, "--json"))
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()


# Which repository, and which commit of it.


def test_a_local_path_always_wins(ask, named, checkpoint, tmp_path: Path) -> None:
    name = named(checkpoint("qwen3"))
    (tmp_path / "org").mkdir()
    (tmp_path / name).symlink_to(checkpoint("llama"))
    result = facts(ask("inspect", name, "--json", cwd=tmp_path))
    assert (result["model_type"], "hub" in result) == ("llama", False)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(tmp_path / "nowhere")
    assert ask("inspect", name, cwd=tmp_path)[0] == 2
    for path in (f"./{name}", tmp_path / name / "nothing", f"{name}/deeper"):
        assert ask("inspect", path, cwd=tmp_path)[0] == 2
    assert ask.hub.asked == []
    (tmp_path / name).unlink()
    assert facts(ask("inspect", name, "--json", cwd=tmp_path))["model_type"] == "qwen3"


def test_revisions_are_branches_tags_and_commits(ask, hub: Hub, own) -> None:
    name, source = "org/revisions", own("llama")
    old = hub.repo(name, files_of(source))
    hub.repos[name].names["v1.0"] = old
    edit_json(source / "config.json", max_position_embeddings=640)
    new = hub.repos[name].push(files_of(source), "main", "feature/longer")
    lengths = {"v1.0": 64, "feature/longer": 640, "main": 640, old: 64, new: 640}
    for revision, length in lengths.items():
        result = facts(ask("inspect", f"{name}@{revision}", "--json"))
        assert result["rope"][0]["length"] == length
        assert result["hub"]["revision"] == revision
        assert result["hub"]["commit"] == (old if length == 64 else new)
    assert facts(ask("inspect", name, "--json"))["hub"]["commit"] == new


def test_names_that_lead_outside_are_not_fetched(ask, hub: Hub, checkpoint, tmp_path: Path) -> None:
    evil = {"../../../evil.json": b"{}", "/etc/evil.json": b"{}", "a/../../evil.py": b""}
    hub.repo("org/evil", {**files_of(checkpoint("llama")), **evil})
    facts(ask("inspect", "org/evil", "--json"))
    facts(ask("convert", "org/evil", tmp_path / "out", *TO, "--json"))
    assert not {asked.file for asked in hub.asked} & evil.keys()


def test_the_token_goes_to_the_hub_and_no_further(ask, named, checkpoint, tmp_path: Path) -> None:
    name = named(checkpoint("llama"), gated=True, private=True)
    facts(ask("convert", name, tmp_path / "out", *TO, "--json", token=TOKEN))
    assert {asked.authorised for asked in ask.hub.asked if asked.kind != "large"} == {True}
    assert {asked.authorised for asked in ask.hub.asked if asked.kind == "large"} == {False}


# What can go wrong. A fault gets the handler, and tells whether it has answered.


def on(kind: str, act: Callable[[Answer, Asked], object], file: str = "") -> Fault:
    def fault(answer: Answer, asked: Asked) -> bool:
        if asked.kind != kind or (file and asked.file != file):
            return False
        act(answer, asked)
        return True

    return fault


def status(code: int, message: str = "") -> Callable[[Answer, Asked], object]:
    return lambda answer, asked: answer.error(code, message=message)


def sends(body: bytes, **how: Any) -> Callable[[Answer, Asked], object]:
    return lambda answer, asked: answer.send(body, **how)


def waits(answer: Answer, asked: Asked) -> None:
    time.sleep(3)
    answer.close_connection = True


def short_range(answer: Answer, asked: Asked) -> None:
    answer.send(b"abcd", 206, {"Content-Range": "bytes 0-3/999999"})


def other_range(answer: Answer, asked: Asked) -> None:
    answer.send(b"abcdefgh", 206, {"Content-Range": "bytes 8-15/999999"})


def lying_header(answer: Answer, asked: Asked) -> None:
    first, last = map(int, re.findall(r"\d+", asked.range or ""))
    body = struct.pack("<Q", 64) + b"{nonsense".ljust(64)
    answer.send(body[first : last + 1], 206, {"Content-Range": f"bytes {first}-{last}/999999"})


def moves_on(answer: Answer, asked: Asked) -> None:
    repo = answer.hub.repos[asked.file]
    old = repo.names["main"]
    files = repo.commits[old]
    repo.push({**files, "README.md": os.urandom(8)})
    siblings = [{"rfilename": name} for name in files]
    answer.send(json.dumps({"id": asked.file, "sha": old, "siblings": siblings}).encode())


def without_commit(answer: Answer, asked: Asked) -> None:
    answer.send(b"{}", 200, {"ETag": '"1"'})


GONE = "http://127.0.0.1:9/gone"
# What is planted, the code of the error, and what its sentence must say. {at} is the address of the Hub.
FAULTS: dict[str, tuple[Fault | None, str, tuple[str, ...]]] = {
    "gated": (None, "hub-access", ("{name} is gated", "{at}/{name}", "HF_TOKEN")),
    "private": (None, "hub-not-found", ("neither a local path nor a repository at {at}", "HF_TOKEN")),
    "a wrong token": (None, "hub-access", ("does not accept the token", "{at}/settings/tokens")),
    "forbidden": (on("api", status(403, "no, not you")), "hub-access", ("forbids", "no, not you", "HF_TOKEN")),
    "a server error": (on("api", status(500, "boom")), "hub", ("answered 500 (boom)", "try again later")),
    # Not 500 or 503, of which the library hopes for half a minute that they pass.
    "an error for a file": (on("file", status(501)), "hub", ("answered 501", "config.json", "try again later")),
    "too many requests": (on("api", status(429)), "hub", ("answered 429", "too many requests", "wait")),
    "a page of HTML": (on("api", sends(b"<html>")), "hub", ("does not answer as a Hub", "HF_ENDPOINT")),
    "JSON of something else": (on("api", sends(b"[1]")), "hub", ("does not answer as a Hub", "HF_ENDPOINT")),
    "no commit": (on("file", without_commit, "config.json"), "hub", ("does not answer as a Hub", "HF_ENDPOINT")),
    "a file that is not there": (
        on("file", lambda answer, asked: answer.error(404, "EntryNotFound"), "generation_config.json"),
        "hub-not-found", ("has no file generation_config.json",)),
    "no answer": (on("api", waits), "hub-offline", ("cannot be reached", "timed out", "HF_HUB_OFFLINE=1")),
    "no answer for a header": (on("large", waits), "hub-transfer", ("model.safetensors", "timed out", "run again")),
    "a header cut off": (
        on("large", sends(b"12345678", cut=3)), "hub-transfer", ("model.safetensors of {name}", "run again")),
    "a header too short": (on("large", short_range), "hub-transfer", ("sent 4 of the 8 bytes",)),
    "another range": (on("large", other_range), "hub-transfer", ("sent 0 of the 8 bytes",)),
    "a header that lies": (on("large", lying_header), "bad-shard", ("model.safetensors", "cannot be read as JSON")),
    "the host of large files is gone": (
        on("file", sends(b"", status=302, headers={"Location": GONE}), "model.safetensors"),
        "hub-transfer", ("model.safetensors", "onnection refused", "run again")),
    "a branch that moves": (on("api", moves_on), "hub-transfer", ("moved on from commit", "run again")),
}  # fmt: skip


@pytest.mark.parametrize("planted", FAULTS)
def test_each_failure_is_one_sentence(planted: str, ask, named, checkpoint, tmp_path: Path) -> None:
    fault, code, said = FAULTS[planted]
    name = named(checkpoint("llama"), gated=planted == "gated", private=planted == "private")
    ask.hub.fault = fault
    token = "hf_wrong" if planted == "a wrong token" else ""
    for as_json in (True, False):
        done, out, err = ask("convert", name, tmp_path / "out", *TO, *["--json"] * as_json, token=token)
        error = json.loads(out)["error"] if as_json else {"code": code, "message": err.removeprefix("error: ")}
        assert (done, error["code"]) == (2, code), out + err
        assert len(error["message"].strip().splitlines()) == 1
        assert "Traceback" not in error["message"]
        for words in said:
            assert words.format(at=ask.hub.endpoint, name=name) in error["message"]
        if as_json:
            assert err == ""
        if as_json and code.startswith("hub"):
            assert {"id": name, "revision": None, "endpoint": ask.hub.endpoint}.items() <= error.items()
    assert not (tmp_path / "out").exists()
    ask.hub.fault = None
    if not (ask.hub.repos[name].gated or ask.hub.repos[name].private):  # nothing half-fetched is taken for whole
        facts(ask("inspect", name, "--json"))


def test_what_is_not_there(ask, named, hub: Hub, checkpoint) -> None:
    name = named(checkpoint("llama"))
    hub.repo("org/no-checkpoint", {"README.md": b"hello", "model.gguf": b"GGUF"})
    hub.repo("org/no-weights", {"config.json": (checkpoint("llama") / "config.json").read_bytes()})
    for text, code, said in (
        ("org/nothing", "hub-not-found", "org/nothing is neither a local path nor a repository at"),
        (f"{name}@nothing", "hub-not-found", f"{name} at {hub.endpoint} has no revision 'nothing'"),
        (
            "org/no-checkpoint",
            "hub-not-found",
            "has no config.json, so it is no checkpoint of transformers; its 2 files",
        ),
    ):
        done, out, _ = ask("inspect", text, "--json")
        assert (done, json.loads(out)["error"]["code"]) == (2, code)
        assert said in json.loads(out)["error"]["message"]
    (told,) = facts(ask("inspect", "org/no-weights", "--json"))["warnings"]
    assert told["code"] == "no-weights"


def test_a_transfer_that_breaks_off_ends_after_some_tries(ask, named, checkpoint, tmp_path: Path) -> None:
    """The library goes on where it was, five times; then there is a sentence, and next time the rest is fetched."""
    name = named(checkpoint("llama"))
    facts(ask("convert", name, tmp_path / "out", *TO, "--dry-run", "--json"))

    def breaks_off(answer: Answer, asked: Asked) -> bool:
        if asked.kind == "large":
            content = answer.hub.repos[name].commits[answer.hub.repos[name].names["main"]]["model.safetensors"]
            answer.send(content, cut=0 if asked.range else 1000)
        return asked.kind == "large"

    ask.hub.fault = breaks_off
    code, out, err = ask("convert", name, tmp_path / "out", *TO, "--json", "--quiet")
    error = json.loads(out)["error"]
    assert (code, error["code"], err) == (2, "hub-transfer", "")
    assert f"model.safetensors of {name} did not arrive whole" in error["message"]
    assert not (tmp_path / "out").exists()
    ask.hub.fault = None
    facts(ask("convert", name, tmp_path / "out", *TO, "--json"))


def test_a_file_of_the_wrong_size_is_not_kept(ask, named, checkpoint, tmp_path: Path) -> None:
    name = named(checkpoint("llama"))
    facts(ask("inspect", name, "--json"))
    ask.hub.fault = on("large", sends(b"too short"))
    code, out, _ = ask("convert", name, tmp_path / "out", *TO, "--json")
    assert (code, json.loads(out)["error"]["code"]) == (2, "hub-transfer")
    assert not list((ask.home / "hub" / f"models--{name.replace('/', '--')}").rglob("*.safetensors"))


# Other processes: without the network, on a terminal, interrupted.


def run_with(hub: Hub, home: Path, *arguments: object, **more: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "ropetool", *map(str, arguments)], env=environment(hub, home, **more),
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_offline_there_is_only_the_cache(ask, named, sharded: Path, tmp_path: Path) -> None:
    name = named(sharded)
    offline = {"HF_HUB_OFFLINE": "1"}
    home, out = ask.home, tmp_path / "out"
    code, _, said = run_with(ask.hub, home, "inspect", name, **offline)
    assert code == 2
    assert said.startswith(f"error: {name} is no local path, and HF_HUB_OFFLINE is set: its config.json is not in the")
    inspected = facts(ask("inspect", name, "--json"))
    ask.hub.forget()
    assert facts(run_with(ask.hub, home, "inspect", name, "--json", **offline)) == inspected
    code, printed, _ = run_with(ask.hub, home, "convert", name, out, *TO, "--json", **offline)
    error = json.loads(printed)["error"]
    assert (code, error["code"]) == (2, "hub-offline")
    assert re.search(r"HF_HUB_OFFLINE is set: model-00001-of-\d+.safetensors is not in the cache", error["message"])
    assert ask.hub.asked == []
    facts(ask("convert", name, out, *TO, "--json"))
    ask.hub.forget()
    facts(run_with(ask.hub, home, "convert", name, tmp_path / "again", *TO, "--json", **offline))
    assert files_of(out) == files_of(tmp_path / "again")
    assert ask.hub.asked == []


def test_a_hub_that_cannot_be_reached(ask, named, sharded: Path) -> None:
    name = named(sharded)
    facts(ask("inspect", name, "--json"))
    code, printed, _ = run_with(ask.hub, ask.home, "inspect", name, "--json", HF_ENDPOINT="http://127.0.0.1:9")
    error = json.loads(printed)["error"]
    assert (code, error["code"]) == (2, "hub-offline")  # not the cache, which may be old, without a word
    assert f"{name} is no local path, and http://127.0.0.1:9 cannot be reached (" in error["message"]
    assert "onnection refused" in error["message"]


@pytest.mark.parametrize("quiet", [False, True])
def test_a_bar_on_a_terminal_alone(quiet: bool, ask, named, checkpoint, tmp_path: Path) -> None:
    name = named(checkpoint("llama"))
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "ropetool", "convert", name, tmp_path / "out", *TO, *["--quiet"] * quiet],
        env=environment(ask.hub, tmp_path / "home"), stdout=subprocess.PIPE, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    shown = b""
    while chunk := _read(master):
        shown += chunk
    out = process.communicate(timeout=60)[0]
    assert process.returncode == 0, shown
    assert b"%|" not in out
    assert (b"model.safetensors: 100%|" in shown) is not quiet
    assert b"config.json" not in shown
    assert (shown == b"") is quiet


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other end is closed
        return b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_while_weights_arrive(
    number: int, code: int, ask, named, checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = named(checkpoint("llama"))
    monkeypatch.setattr(constants, "HF_ASSETS_CACHE", str(tmp_path / "home" / "assets"))

    def stalls(answer: Answer, asked: Asked) -> bool:
        if asked.kind == "large" and asked.range is None:
            answer.send_response(200)
            answer.send_header("Content-Length", "1000000")
            answer.end_headers()
            answer.wfile.write(b"x" * 1000)
            process.send_signal(number)
            time.sleep(1)
            answer.close_connection = True
            return True
        return False

    ask.hub.fault = stalls
    process = subprocess.Popen(
        [sys.executable, "-m", "ropetool", "convert", name, tmp_path / "out", *TO], text=True,
        env=environment(ask.hub, tmp_path / "home", HF_HUB_DOWNLOAD_TIMEOUT="30"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    _, said = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in said) == (code, False), said
    assert "nothing half-written was left" in said
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "home").rglob("*.safetensors")) or all(
        read_shard(path).remote for path in (tmp_path / "home").rglob("*.safetensors")
    )
