"""Whether the numbers that a config means are those that the class was seen to turn by."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ropetool.checkpoint.config import ALL_LAYERS
from ropetool.errors import ConfigError
from ropetool.families.decoder import Decoder
from ropetool.families.family import Family
from ropetool.families.reading import Reading, read_as
from ropetool.models.report import AttentionReport

# The probe reads angles of float32 tables.
FREQUENCY_RTOL, FREQUENCY_ATOL, LENGTH_RTOL = 1e-4, 1e-6, 1e-4


def numbers_fault(
    family: Family,
    seen: Sequence[tuple[Mapping[str, Any], Sequence[AttentionReport]]],
    text: Mapping[str, Any],
    live: Mapping[str, Any],
) -> str | None:
    """Why the rotation of a class is not what its config means, None if it is.

    ``seen`` are the configs of tiny models with what the probe saw. ``live`` is the checkpoint's config as its class
    understands it: where that is not what config.json (``text``) says, the class makes something of its own of it.
    """
    try:
        for config, attentions in seen:
            reading = read_as(config, Decoder(family, config))
            fault = next(filter(None, (_attention_fault(reading, attention) for attention in attentions)), None)
            if fault:
                return fault
        said, meant = ([r.scaling for r in read_as(c, Decoder(family, c)).rotations] for c in (text, live))
    except ConfigError as error:
        return error.message
    return None if said == meant else f"config.json means {said}, but its class makes {meant} of it"


def _attention_fault(reading: Reading, attention: AttentionReport) -> str | None:
    rotation = next((r for r in reading.rotations if r.layers in (ALL_LAYERS, attention.kind)), None)
    if rotation is None:
        return f"its config has no rope block for layers of the kind {attention.kind}"
    planned = rotation.scaling.inv_freq(rotation.geometry.rotary_dim)
    if len(planned) != len(attention.inv_freq) or not np.allclose(
        attention.inv_freq, planned, rtol=FREQUENCY_RTOL, atol=FREQUENCY_ATOL
    ):
        return (
            f"by its config ({rotation.scaling.name}, {rotation.scaling.theta:g}) a tiny model would turn at "
            f"{_some(planned.tolist())} radians per token, but {attention.class_name} turns at "
            f"{_some(attention.inv_freq)}"
        )
    factor, length = rotation.scaling.attention_factor, attention.attention_scaling
    if length is not None and not math.isclose(length, factor, rel_tol=LENGTH_RTOL):
        return f"by its config cos and sin are {factor:g} long, but {attention.class_name} makes k {length:g} long"
    return None


def _some(frequencies: Sequence[float]) -> str:
    return ", ".join(f"{f:.4g}" for f in list(frequencies)[:4]) + ", ..."
