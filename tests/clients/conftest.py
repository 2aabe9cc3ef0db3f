"""The same trained model as each client is given it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from ropetool import convert
from ropetool.rope.layout import Pairing


@pytest.fixture(scope="session")
def checkpoints(smollm2, tmp_path_factory) -> dict[str, Path]:
    """By name: the weights in either layout, each a llama to its config; and what mlx-lm is to make of them."""
    made = tmp_path_factory.mktemp("clients")
    convert.apply(convert.plan(smollm2, made / "interleaved", Pairing.INTERLEAVED))
    weights = {"half": smollm2, "interleaved": made / "interleaved"}
    for name, path in tuple(weights.items()):
        for flag in (False, True):
            for_mlx_lm = f"{name}, rope_traditional {str(flag).lower()}"
            weights[for_mlx_lm] = with_config_keys_of_mlx_lm(path, made / for_mlx_lm, rope_traditional=flag)
    return weights


def with_config_keys_of_mlx_lm(checkpoint: Path, destination: Path, *, rope_traditional: bool) -> Path:
    shutil.copytree(checkpoint, destination, copy_function=os.link)
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"rope_traditional": rope_traditional, "rope_theta": config["rope_parameters"]["rope_theta"]}
    (destination / "config.json").unlink()
    (destination / "config.json").write_text(json.dumps(config))
    return destination
