"""Commands on checkpoints without RoPE: inspect describes them, every other one refuses with what it means."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tiny import snapshot
from tests.unrotated import Unrotated, random_model

# What is built, the scheme, and the words with the number that every refusal must have.
CASES: dict[str, tuple[Unrotated, str, str]] = {
    "gpt2": (Unrotated("gpt2"), "learned", "with 23 rows, a hard ceiling at 23 tokens"),
    "bert": (Unrotated("bert"), "learned", "a hard ceiling at 23 tokens"),
    "t5": (Unrotated("t5"), "relative-bias", "(12 buckets)"),
    "bloom": (Unrotated("bloom"), "alibi", "ALiBi: no table and no ceiling"),
    "mpt": (Unrotated("mpt", kind="MptModel"), "alibi", "builds for 27 tokens"),
    "pegasus": (Unrotated("pegasus"), "sinusoidal", "ends at 23 tokens"),
    "xlnet": (Unrotated("xlnet", {"d_inner": 40}), "relative-vectors", "Transformer-XL"),
    "mamba": (Unrotated("mamba"), "none", "no position embedding at all"),
    "esm": (Unrotated("esm", {"position_embedding_type": "absolute", "pad_token_id": 1, "mask_token_id": 4}), "learned",
            "a hard ceiling at 21 tokens"),
    "falcon": (Unrotated("falcon", {"alibi": True, "num_kv_heads": 4}), "alibi", "(its config names 23 tokens)"),
}  # fmt: skip
COMMANDS = {
    "extend": lambda source, out: ("extend", source, out, "--method", "linear", "--to", "64"),
    "convert": lambda source, out: ("convert", source, out, "--to", "interleaved"),
    "verify": lambda source, out: ("verify", source, source, "--out", out),
    "diff": lambda source, out: ("diff", source, source),
    "doctor": lambda source, out: ("doctor", source),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("unrotated")
    for name, (entry, _, _) in CASES.items():
        random_model(entry).save_pretrained(root / name)
    return {name: root / name for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_inspect_tells_the_scheme_and_both_witnesses(name: str, sources: dict[str, Path], run: Any) -> None:
    _, scheme, sentence = CASES[name]
    done = run("inspect", sources[name], "--json")
    assert done.code == 0
    assert (done.json["scheme"], done.json["pairing"], done.json["rope"]) == (scheme, None, [])
    assert sentence in done.json["scheme_detail"][0]["sentence"]
    assert [e["source"] for e in done.json["evidence"]] == ["config", "tensors"]
    shown = run("inspect", sources[name])
    assert shown.code == 0
    assert scheme in shown.out
    assert "by config" in shown.out
    assert "by tensors" in shown.out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", CASES)
def test_every_other_command_refuses(
    name: str, command: str, sources: dict[str, Path], run: Any, tmp_path: Path
) -> None:
    _, scheme, sentence = CASES[name]
    source, out = sources[name], tmp_path / "out"
    before = snapshot(source)
    done = run(*COMMANDS[command](source, out), "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "no-rope")
    assert done.json["error"]["scheme"] == scheme
    assert sentence in done.json["error"]["message"]
    assert "\n" not in done.json["error"]["message"]
    assert snapshot(source) == before
    assert list(tmp_path.iterdir()) == []


def test_inspect_imports_no_torch_for_them(sources: dict[str, Path]) -> None:
    code = (
        "import sys; from pathlib import Path; from ropetool.detect import inspect; "
        "inspect(Path(sys.argv[1])); sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    for name in CASES:
        assert subprocess.run([sys.executable, "-c", code, str(sources[name])], check=False).returncode == 0
