"""torchtune: no rope key of config.json is read; base and length are arguments of the model builder, set in a recipe.

Read in torchtune/models/*/_component_builders.py, models/llama3_1/_position_embeddings.py and
training/checkpointing/_checkpointer.py of version 0.6.1.
"""

from __future__ import annotations

from dataclasses import replace

from ropetool.engines.heard import Case, Heard, Listener, Turn, pairing_heard
from ropetool.engines.names import EngineName, Origin
from ropetool.engines.rows import TORCHTUNE_ADJACENT, TORCHTUNE_HALF
from ropetool.rope.frequencies import Default, Llama3, Scaling

# Llama3ScaledRoPE: these are its own; scale_factor is an argument of the builders of llama3_1 and llama3_2.
LOW, HIGH, ORIGINAL = 1.0, 4.0, 8192


def hear(case: Case) -> Heard:
    """What torchtune can be told of a config: the base, and one kind of scaling for Llama."""
    reading = case.reading
    pairing = pairing_heard(EngineName.TORCHTUNE, case)
    if reading.model_type not in (*TORCHTUNE_ADJACENT, *TORCHTUNE_HALF):
        return Heard(unknown=f"no model builder for {reading.model_type} was read")
    unread = "it reads no rope key of config.json: base, scaling and length are set in your recipe"
    if case.conflict:
        return Heard(pairing=pairing, unknown=unread)
    scaling = reading.rotations[0].scaling
    built, arguments = _built(scaling, reading.model_type)
    turns = tuple(
        Turn(rotation.layers, replace(built, theta=rotation.scaling.theta), rotation.geometry.rotary_dim)
        for rotation in reading.rotations
    )
    advice = f"build the model with rope_base={scaling.theta:.10g}{arguments}, max_seq_len={reading.length}"
    return Heard(turns, pairing, unknown=unread if built == scaling else "", advice=advice)


def _built(scaling: Scaling, model_type: str) -> tuple[Scaling, str]:
    """The scaling that a builder can make nearest to the one that is meant, and its arguments."""
    own = isinstance(scaling, Llama3) and (
        scaling.low_freq_factor, scaling.high_freq_factor, scaling.original_length,
    ) == (LOW, HIGH, ORIGINAL)  # fmt: skip
    if own and isinstance(scaling, Llama3) and model_type in TORCHTUNE_ADJACENT[:1]:
        return scaling, f", scale_factor={scaling.factor:g} (torchtune.models.llama3_2)"
    return Default(scaling.theta), ""


ROW = Listener(
    EngineName.TORCHTUNE, "0.6.1", "torchtune/models/*/_component_builders.py", Origin.READ, hear,
)  # fmt: skip
