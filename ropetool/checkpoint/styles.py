"""The rope block of a config, written in the keys of transformers 4, of transformers 5, or of both.

transformers 5 fails on a block without a base; transformers 4, mlx-lm and others take the base from the top level only,
under the class's own name for it. So it is written wherever the readers of a style look.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool.checkpoint.config import BLOCKS, Style

V4_BLOCK, V5_BLOCK = "rope_scaling", "rope_parameters"


def with_rope_block(
    config: Mapping[str, Any],
    block: Mapping[str, Any],
    theta: float,
    style: Style,
    partial_rotary_factor: float | None = None,
    *,
    theta_key: str = "rope_theta",
    share_key: str = "partial_rotary_factor",
) -> dict[str, Any]:
    """A copy of a ``config`` whose layers are alike, with its rope block replaced, written in ``style``.

    ``block`` holds the scaling keys (``rope_type`` and its parameters; only ``rope_type: default`` for none).
    ``theta_key`` and ``share_key`` are the class's own top-level names of the base and of the rotary share. A key that
    was there keeps its place.
    """
    new: dict[str, Any] = {}
    if style is not Style.V5:
        new = {theta_key: theta, V4_BLOCK: dict(block) if _is_scaled(block) else None}
        if partial_rotary_factor is not None:
            new[share_key] = partial_rotary_factor
    if style is not Style.V4:
        share = {} if partial_rotary_factor is None else {"partial_rotary_factor": partial_rotary_factor}
        new[V5_BLOCK] = {**block, "rope_theta": theta, **share}
    return replaced(config, new, {*BLOCKS, "rope_theta", theta_key})


def with_nested_blocks(
    config: Mapping[str, Any],
    blocks: Mapping[str, Mapping[str, Any]],
    style: Style,
    theta_keys: Mapping[str, str],
    scaled_by_flat: frozenset[str],
) -> dict[str, Any]:
    """A copy of a ``config`` with a block per layer type, each with its ``rope_theta``, written in ``style``.

    ``theta_keys`` are the class's top-level names of the bases, ``scaled_by_flat`` the layer types that it scales by a
    flat ``rope_scaling``. Where `says_flat` is false for them, the keys of version 4 are left out.
    """
    new: dict[str, Any] = {}
    if style is not Style.V5 and says_flat(blocks, theta_keys, scaled_by_flat):
        new = {theta_keys[layers]: block["rope_theta"] for layers, block in blocks.items()}
        scaled = next((_without_theta(block) for block in blocks.values() if _is_scaled(block)), None)
        new[V4_BLOCK] = scaled
    if style is not Style.V4:
        old = config.get(V5_BLOCK) or {}
        unrotated = {key: None for key, value in old.items() if value is None and key not in blocks}
        new[V5_BLOCK] = {**{layers: dict(block) for layers, block in blocks.items()}, **unrotated}
    return replaced(config, new, {*BLOCKS, "rope_theta", *filter(None, theta_keys.values())})


def says_flat(
    blocks: Mapping[str, Mapping[str, Any]], theta_keys: Mapping[str, str], scaled_by_flat: frozenset[str]
) -> bool:
    """Whether the keys of version 4 can say ``blocks``: a name for every base, and the right layers scaled."""
    bases: dict[str, float] = {}
    for layers, block in blocks.items():
        key = theta_keys.get(layers)
        if not key or bases.setdefault(key, block["rope_theta"]) != block["rope_theta"]:
            return False
    scalings = {layers: _without_theta(block) if _is_scaled(block) else None for layers, block in blocks.items()}
    if not any(scalings.values()):
        return True
    wanted = next(scaling for scaling in scalings.values() if scaling)
    return all(scaling == (wanted if layers in scaled_by_flat else None) for layers, scaling in scalings.items())


def _is_scaled(block: Mapping[str, Any]) -> bool:
    return bool(block.get("rope_type", "default") != "default")


def _without_theta(block: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "rope_theta"}


def replaced(config: Mapping[str, Any], new: Mapping[str, Any], old_keys: set[str]) -> dict[str, Any]:
    """``config`` without ``old_keys``, but for those that ``new`` has; a key that was there keeps its place."""
    kept = {key: new.get(key, value) for key, value in config.items() if key in new or key not in old_keys}
    return {**kept, **new}
