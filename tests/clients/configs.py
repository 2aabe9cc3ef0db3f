"""The configs that doctor is asked about, over the weights of one trained model, and what each of them means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ropetool.engines.names import EngineName

THETA, TRAINED = 100_000.0, 8192  # of SmolLM2
ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")

PLAIN = {"rope_type": "default"}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": TRAINED}
# Trained lengths so short that the scaling shows within the few tokens of a test.
SHORT_YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
LINEAR = {"rope_type": "linear", "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": TRAINED,
    "short_factor": [1.0] * 32, "long_factor": [1 + pair / 8 for pair in range(32)],
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A config as it may be met: its rope keys, and the block that they mean; ``converted_for`` makes the weights
    interleaved as `convert --for` does."""

    keys: Mapping[str, Any]
    means: Mapping[str, Any]
    length: int = TRAINED
    converted_for: EngineName | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def v5(block: Mapping[str, Any], theta: float = THETA) -> dict[str, Any]:
    """The style of transformers 5, which it saves."""
    return {"rope_parameters": {**block, "rope_theta": theta}}


def v4(block: Mapping[str, Any], theta: float = THETA) -> dict[str, Any]:
    """The style of transformers 4, which older programs read."""
    return {"rope_theta": theta, "rope_scaling": None if block == PLAIN else dict(block)}


def both(block: Mapping[str, Any], theta: float = THETA) -> dict[str, Any]:
    """Both styles, equal, as `extend` writes them."""
    scaling = {} if block == PLAIN else {"rope_scaling": dict(block)}
    return {**v5(block, theta), "rope_theta": theta, **scaling}


def stretched(block: Mapping[str, Any], style: Any = both) -> Written:
    """A scaled block, with the length that it makes of the trained one."""
    return Written(style(block), block, int(block["factor"] * block["original_max_position_embeddings"]))


CASES: Mapping[str, Written] = {
    "as transformers 5 saves it": Written(v5(PLAIN), PLAIN),
    "as transformers 4 saves it": Written(v4(PLAIN), PLAIN),
    "both styles": Written(both(PLAIN), PLAIN),
    "yarn": stretched(YARN),
    "yarn in the style of transformers 5": stretched(YARN, v5),
    "yarn with an attention factor": stretched({**YARN, "attention_factor": 1.5}),
    "yarn with its betas": stretched({**SHORT_YARN, "beta_fast": 8.0, "beta_slow": 2.0}),
    "yarn, its ramp not cut to whole pairs": stretched({**SHORT_YARN, "truncate": False}),
    "linear": Written(both(LINEAR), LINEAR),
    "dynamic past a trained length of 32": Written(both(DYNAMIC), DYNAMIC, 32),
    "llama3": stretched(LLAMA3),
    "llama3 over 8192 tokens": stretched({**LLAMA3, "original_max_position_embeddings": TRAINED}),
    "longrope": stretched(LONGROPE),
    "longrope past a trained length of 32": stretched({**LONGROPE, "original_max_position_embeddings": 32}),
    "converted for mlx-lm": Written(both(PLAIN), PLAIN, converted_for=EngineName.MLX_LM),
    "converted for torchtune": Written(both(PLAIN), PLAIN, converted_for=EngineName.TORCHTUNE),
    "half, called traditional": Written(both(PLAIN), PLAIN, more={"rope_traditional": True}),
}
