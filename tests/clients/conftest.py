"""The same trained model as each client is given it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ropetool import convert
from ropetool.engines.names import EngineName
from ropetool.rope.layout import Pairing


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


def with_keys(checkpoint: Path, destination: Path, **keys: object) -> Path:
    shutil.copytree(checkpoint, destination, copy_function=os.link)
    config = json.loads((checkpoint / "config.json").read_text("utf-8"))
    (destination / "config.json").unlink()
    (destination / "config.json").write_text(json.dumps(config | keys), encoding="utf-8")
    return destination
