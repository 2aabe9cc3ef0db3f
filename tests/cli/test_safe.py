"""Every command, on other people's checkpoints: no code of theirs runs, no pickle is obeyed, no network is asked."""

from __future__ import annotations

import builtins
import json
import pickle
import shutil
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests import tiny
from tests.cli.conftest import ROOT
from tests.models import odd

TEXT = ROOT / "fixtures" / "text" / "persuasion.txt"
# Of a source, a converted (or equal) second checkpoint, and a place to write to.
COMMANDS: dict[str, Callable[[Path, Path, Path], tuple[object, ...]]] = {
    "inspect": lambda a, b, out: ("inspect", a),
    "inspect of everything": lambda a, b, out: ("inspect", a, "--code", "--weights", "--text", TEXT),
    "convert": lambda a, b, out: ("convert", a, out, "--to", "interleaved"),
    "convert as itself, proven": lambda a, b, out: (
        "convert",
        a,
        out,
        "--to",
        "interleaved",
        "--as",
        "same",
        "--verify",
    ),
    "convert by a text": lambda a, b, out: ("convert", a, out, "--to", "interleaved", "--dry-run", "--text", TEXT),
    "extend": lambda a, b, out: ("extend", a, out, "--method", "yarn", "--factor", "2"),
    "extend without weights": lambda a, b, out: (
        "extend",
        a,
        out,
        "--method",
        "dynamic",
        "--factor",
        "2",
        "--weights",
        "none",
    ),
    "verify": lambda a, b, out: ("verify", a, b, "--tokens", "16"),
    "verify by a text": lambda a, b, out: ("verify", a, b, "--tokens", "16", "--text", TEXT),
    "verify quickly": lambda a, b, out: ("verify", a, b, "--quick"),
    "verify the other way": lambda a, b, out: ("verify", b, a, "--tokens", "16"),
    "evaluate": lambda a, b, out: ("evaluate", a, "--lengths", "64", "--text", TEXT),
    "evaluate a pair": lambda a, b, out: ("evaluate", b, "--against", a, "--lengths", "64", "--text", TEXT),
    "evaluate by passkeys": lambda a, b, out: ("evaluate", a, "--lengths", "64", "--passkey", "--trials", "1"),
    "diff": lambda a, b, out: ("diff", a, b),
    "doctor": lambda a, b, out: ("doctor", a),
    "report": lambda a, b, out: ("report", a, "--against", b, "--out", out.with_suffix(".html")),
}


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Whatever asks the network or the person; it gets an error."""
    asked: list[str] = []

    def refuse(what: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            asked.append(f"{what} {arguments!r}")
            raise OSError(101, f"the test forbids {what}")

        return call

    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX:
            refuse("connect")(address)
        real(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, refuse(name))
    monkeypatch.setattr(builtins, "input", refuse("input"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return asked


def real_one(place: Path) -> Path:
    """The bundled trained checkpoint, whose tokenizer reads text."""
    return Path(shutil.copytree(ROOT / "fixtures" / "recall-256", place))


class Trap:
    """What shows that code of a checkpoint ran."""

    def __init__(self, place: Path) -> None:
        self.marker = place / "ran"

    @property
    def code(self) -> str:
        """A line of Python that springs it."""
        return f"open({str(self.marker)!r}, 'w').close()\n"

    def __reduce__(self) -> Any:
        return exec, (self.code,)


AUTO_MAP = {
    "AutoConfig": "trap.C",
    "AutoModel": "trap.M",
    "AutoModelForCausalLM": "trap.M",
    "AutoTokenizer": ["trap.T", "trap.T"],
    "AutoProcessor": "trap.P",
    "AutoImageProcessor": "trap.P",
}


def with_code(directory: Path, trap: Trap) -> Path:
    """A known type that brings classes of its own for everything, and a custom way to generate."""
    (directory / "trap.py").write_text(trap.code + "class C: pass\nM = T = P = C\n", encoding="utf-8")
    for name in ("__init__.py", "sitecustomize.py", "configuration_llama.py", "modeling_llama.py", "torch.py"):
        (directory / name).write_text(trap.code, encoding="utf-8")
    (directory / "custom_generate").mkdir()
    (directory / "custom_generate" / "generate.py").write_text(trap.code, encoding="utf-8")
    tiny.edit_json(directory / "config.json", auto_map=AUTO_MAP)
    tiny.edit_json(directory / "tokenizer_config.json", auto_map=AUTO_MAP)
    template = "{{ cycler.__init__.__globals__.os.system('touch " + str(trap.marker) + "') }}"
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    return directory


def with_code_and_no_weights(directory: Path, trap: Trap) -> Path:
    with_code(directory, trap)
    (directory / "model.safetensors").unlink()
    return directory


def of_an_unknown_type(directory: Path, trap: Trap) -> Path:
    shutil.rmtree(directory)
    odd.write(directory, "grouped")
    return with_code(real_tokenizer(directory), trap)


def real_tokenizer(directory: Path) -> Path:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "fixtures" / "recall-256" / name, directory / name)
    return directory


def with_a_kernel(directory: Path, trap: Trap) -> Path:
    """Keys by which transformers may fetch code or weights from the Hub."""
    tiny.edit_json(
        directory / "config.json",
        _attn_implementation="somebody/kernel",
        attn_implementation="somebody/kernel",
        use_kernels=True,
        _name_or_path="somebody/model",
        tokenizer_class="somebody/tokenizer--trap.T",
        use_timm_backbone=True,
        backbone="resnet18",
        use_pretrained_backbone=True,
        experts_implementation="somebody/kernel",
    )
    tiny.edit_json(directory / "generation_config.json", trust_remote_code=True, custom_generate="somebody/generate")
    return directory


def with_a_pickle_beside(directory: Path, trap: Trap) -> Path:
    for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({"model.norm.weight": trap}, directory / name)
    (directory / "vocab.pkl").write_bytes(pickle.dumps(trap))
    return directory


def of_a_pickle(directory: Path, trap: Trap) -> Path:
    with_a_pickle_beside(directory, trap)
    (directory / "model.safetensors").unlink()
    return directory


def of_a_pickle_of_old(directory: Path, trap: Trap) -> Path:
    (directory / "model.safetensors").unlink()
    torch.save({"model.norm.weight": trap}, directory / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    return directory


def of_two_pickles(directory: Path, trap: Trap) -> Path:
    names = list(load_file(directory / "model.safetensors"))
    (directory / "model.safetensors").unlink()
    torch.save({"model.norm.weight": trap}, directory / "pytorch_model-00001-of-00001.bin")
    weight_map = dict.fromkeys(names, "pytorch_model-00001-of-00001.bin")
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}), encoding="utf-8")
    return directory


FORMS: dict[str, Callable[[Path, Trap], Path]] = {
    "code": with_code,
    "code and no weights": with_code_and_no_weights,
    "code of an unknown type": of_an_unknown_type,
    "kernels and backbones": with_a_kernel,
    "pickles beside": with_a_pickle_beside,
    "a pickle": of_a_pickle,
    "a pickle of the old form": of_a_pickle_of_old,
    "an index of pickles": of_two_pickles,
}
# In which every command does its work, for what is hostile there is never looked at.
SOUND = ("code", "pickles beside")


@pytest.mark.parametrize("form", FORMS)
def test_no_code_runs_and_nothing_is_asked(form: str, run, asked: list[str], tmp_path: Path) -> None:
    trap = Trap(tmp_path)
    source = FORMS[form](real_one(tmp_path / "a"), trap)
    second = real_one(tmp_path / "b")
    codes = {}
    for name, command in COMMANDS.items():
        done = run(*command(source, second, tmp_path / f"out {name}"), "--json")
        assert not trap.marker.exists(), f"{name}: code of the checkpoint ran"
        assert not asked, f"{name}: {asked}"
        assert done.code in (0, 1, 2), f"{name}: {done.err}"
        assert done.json.get("error", {}).get("code") != "internal", f"{name}: {done.json}"
        codes[name] = done.code
    if form in SOUND:
        assert not {name for name, code in codes.items() if code == 2}, codes


def test_the_trap_springs(tmp_path: Path) -> None:
    trap = Trap(tmp_path)
    exec(trap.code)
    assert trap.marker.exists()
    trap.marker.unlink()
    torch.save({"a": trap}, tmp_path / "a.bin")
    torch.load(tmp_path / "a.bin", weights_only=False)
    assert trap.marker.exists()


def test_the_wire_is_cut(asked: list[str]) -> None:
    import huggingface_hub

    with suppress(Exception):  # whatever its HTTP library makes of a refused socket
        huggingface_hub.model_info("org/name")
    assert asked


def test_consent_is_what_makes_code_run(run, tmp_path: Path) -> None:
    trap = Trap(tmp_path)
    source = with_code(real_one(tmp_path / "a"), trap)
    run("inspect", source, "--trust-remote-code", "--json")
    assert trap.marker.exists()


def test_a_record_of_headers_that_came_with_the_files_is_not_followed(run, asked: list[str], tmp_path: Path) -> None:
    """It names a repository, and small tensors (saved tables, say) would be fetched from there."""
    source = real_one(tmp_path / "a")
    size = (source / "model.safetensors").stat().st_size
    record = {"repo": "evil/repo", "commit": "1" * 40, "sizes": {"model.safetensors": size}, "weights": []}
    (source / ".cache").mkdir()
    (source / ".cache" / "ropetool-headers.json").write_text(json.dumps(record), encoding="utf-8")
    done = run("convert", source, tmp_path / "out", "--to", "interleaved", "--json")
    assert (done.code, asked) == (0, [])
    assert "hub" not in tiny.read_json(tmp_path / "out" / "config.json")["ropetool"]
