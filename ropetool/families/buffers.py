"""Frequencies saved in a checkpoint: old exports keep ``rotary_emb.inv_freq`` beside the weights.

New loaders ignore such a buffer, old ones take it as it is. So it must agree with the config, before and after an
extension.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ropetool.checkpoint.floats import NUMPY_DTYPES, decode_floats
from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.shards import Shard, Tensor
from ropetool.families.reading import Reading, Rotation, Warn
from ropetool.rope.frequencies import Floats

# Relative distances: float32 keeps 1e-7, bfloat16 4e-3 and float16 5e-4 (but nothing of the slowest pairs).
EXACT, ROUNDED = 1e-5, 2e-2
ROUNDED_AT_TOKENS = 4096
SUFFIX = "rotary_emb.inv_freq"


def saved_frequencies(checkpoint: Checkpoint) -> Iterator[tuple[Shard, Tensor]]:
    """Every saved inv_freq buffer, in whichever shard it lies."""
    for shard in checkpoint.shards:
        for tensor in shard.tensors.values():
            if tensor.name.endswith(SUFFIX) and len(tensor.shape) == 1:
                yield shard, tensor


def read_floats(shard: Shard, tensor: Tensor) -> Floats | None:
    """A small float tensor as float64; None for a dtype that is none of F32, F16, BF16 and F64."""
    return decode_floats(shard.read(tensor), tensor.dtype)


def encode_floats(values: Floats, dtype: str) -> bytes | None:
    """The bytes of ``values`` in a safetensors dtype, rounded to nearest even; None for a dtype not handled."""
    if dtype == "BF16":
        bits = values.astype(np.float32).view(np.uint32)
        return bytes(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes())
    name = NUMPY_DTYPES.get(dtype)
    return None if name is None else values.astype(name).tobytes()


def stale_frequency_warnings(
    checkpoint: Checkpoint, reading: Reading, read: Callable[[Shard, Tensor], Floats | None] = read_floats
) -> tuple[Warn, ...]:
    """Warnings for saved buffers that disagree with the config, each with the base that the buffer means.

    ``read`` gives the values of one, where they do not lie in its shard.
    """
    if not reading.rotations:  # the numbers are not known, so none is stale
        return ()
    rotation = reading.rotations[0]
    rotary_dim = rotation.geometry.rotary_dim
    expected = rotation.scaling.inv_freq(rotary_dim)
    for shard, tensor in saved_frequencies(checkpoint):
        if reading.decoder.tower_of(tensor.name):
            continue
        saved = read(shard, tensor)
        if saved is None or (len(saved) == len(expected) and np.allclose(saved, expected, rtol=EXACT, atol=0)):
            continue
        if len(saved) == len(expected) and np.allclose(saved, expected, rtol=ROUNDED, atol=0):
            off_rad = float(np.abs(saved - expected).max()) * ROUNDED_AT_TOKENS
            message = (
                f"{tensor.name} in {shard.path.name} is rounded to 16 bits: in an engine that uses it, angles at "
                f"{ROUNDED_AT_TOKENS} tokens are off by up to {off_rad:.2g} radians"
            )
            return (Warn("rounded-inv-freq", message),)
        return (Warn("stale-inv-freq", f"{tensor.name} in {shard.path.name} {_disagreement(saved, rotation)}"),)
    return ()


def _disagreement(saved: Floats, rotation: Rotation) -> str:
    rotary_dim, scaling = rotation.geometry.rotary_dim, rotation.scaling
    if len(saved) != rotary_dim // 2:
        return (
            f"has {len(saved)} frequencies, for a rotary width of {2 * len(saved)}, but the config means "
            f"{rotary_dim // 2}, for a width of {rotary_dim}"
        )
    means = f"{saved[1] ** (-rotary_dim / 2):g}" if len(saved) > 1 and saved[1] > 0 else "unknown"
    return (
        f"was saved for base {means} (from its second entry), but the config means {scaling.theta:g} with rope type "
        f"{scaling.name}"
    )
