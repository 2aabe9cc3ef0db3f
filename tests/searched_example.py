"""A search as its verb gives it, made by hand: every field has a value of its own, so that none passes for another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ropetool.extend import Extended
from ropetool.families.kv_cache import KvCache
from ropetool.families.reading import Warn
from ropetool.models.searched import Gain, Hearing, Keys, Left, Pair, PositionBin, Searched, Setting, Trial
from ropetool.views import jsons

PAIRS = 8
DEFAULT = Setting("yarn", {}, 4.0, 10000.0, 1.138629)
BEST = Setting("yarn", {"beta_fast": 9.043, "beta_slow": 0.2682, "factor": 4.5}, 4.5, 10000.0, 1.069)
FACTORS = {"short_factor": [1.0] * PAIRS, "long_factor": [1.0 + at / 2 for at in range(PAIRS)]}
LISTS = Setting("longrope", FACTORS, 4.0, 10000.0, 1.19)
NTK = Setting("abf", {"base": 50312.5}, 4.0, 50312.5, 1.0)


def trial(number: int, setting: Setting, objective: float, **values: Any) -> Trial:
    """A trial; its loss lies below its objective by the penalty."""
    penalty = number / 1000
    made = Trial(
        number, "screen", setting, 256, objective - penalty, penalty, objective, (3.5, 2.5, 2.25), 8.25 + number, False
    )
    return replace(made, **values)


TRIALS = (
    trial(1, DEFAULT, 2.3894, reused=True),
    trial(2, NTK, 2.4711, length=128, bins=(3.5, 2.5)),
    trial(3, BEST, 2.3611, stage="confirm", passkeys=58),
    trial(4, LISTS, 2.4012, stage="tune"),
)
SEARCHED = Searched(
    checkpoint="models/source",
    objective="mean loss, plus what is lost inside the trained window",
    original_length=64,
    length=256,
    text="emma.txt",
    text_tokens=(7001, 7002),
    edges=(64, 128, 256),
    decided=256,
    windows=(4, 8),
    device="cpu",
    dtype="float32",
    seed=11,
    budget_minutes=30.5,
    minutes=12.25,
    wanted_engine="vllm",
    chosen=BEST,
    best=BEST,
    default=DEFAULT,
    is_default=False,
    why="yarn beta_fast 9.043 beats the default by +0.0283 nats per token",
    gain=Gain(0.0283, 0.019, 0.0377, 257, 32),
    bins=(
        PositionBin(0, 64, 4096, 3.1234, 3.1244, 3.1004),
        PositionBin(64, 128, 4097, 2.5021, 2.5512, 5.75),
        PositionBin(128, 256, 8191, 2.4433, 2.4135, None),
    ),
    passkey=(Keys(128, 20, 19, 18), Keys(256, 21, 17, 13)),
    pairs=tuple(Pair(at, 6.2832 * 10**at, 1.0 + at * 0.5, 1.0 + at * 0.375) for at in range(PAIRS)),
    engines=(
        Hearing("transformers", "", "5.24.0", True, (), ""),
        Hearing("vllm", "", "0.26.0", True, ("attention_factor",), "turns so, at another temperature"),
        Hearing("llama.cpp", "converter", "b9000", False, ("beta_slow", "factor"), "turns by factor 4"),
        Hearing("mlx-lm", "", "0.31.0", None, (), "not asked"),
    ),
    trials=TRIALS,
    left=(Left("dynamic", "vllm does not honour it"),),
    cut=("2 of 4 stages were left out, for the budget of 30.5 minutes",),
    warnings=(Warn("short-text", "the text has 7,001 tokens to choose by"),),
)
AS_DEFAULT = replace(
    SEARCHED, chosen=DEFAULT, is_default=True, why="the default is written: nothing beat it beyond noise",
    gain=Gain(0.0011, -0.004, 0.0062, 257, 32), left=(), cut=(), warnings=(), passkey=(), wanted_engine=None,
)  # fmt: skip


def kept(searched: Searched, output: str = "models/longer") -> dict[str, Any]:
    """What ``extend --out`` keeps of it."""
    return json.loads(jsons.dumps(jsons.extended(extended(output), searched=searched)))


def saved(directory: Path, told: Mapping[str, Any]) -> Path:
    """A file that holds it."""
    path = directory / "kept.json"
    path.write_text(json.dumps(told), encoding="utf-8")
    return path


def extended(output: str = "models/longer") -> Extended:
    """The extension by what was chosen."""
    return Extended(output, "yarn", 4.5, 64, 256, 10000.0, 1.069, KvCache(256), (), (), ())
