"""Frequencies saved in a checkpoint: old exports keep ``rotary_emb.inv_freq`` beside the weights.

New loaders ignore such a buffer, old ones take it as it is. So it must agree with the config, before and after an
extension.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import Enum

import numpy as np

from ropetool.checkpoint.floats import NUMPY_DTYPES, decode_floats
from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.shards import Shard, Tensor
from ropetool.families.reading import Reading, Rotation, Warn
from ropetool.families.verdict import Fault
from ropetool.rope.frequencies import Floats

# Relative distances: float32 keeps 1e-7, bfloat16 4e-3 and float16 5e-4 (but nothing of the slowest pairs).
EXACT, ROUNDED = 1e-5, 2e-2
ROUNDED_AT_TOKENS = 4096
# rotary_emb, rotary_emb_local, rotary_pos_emb; ESM's rotary_embeddings, which its class reads from the checkpoint.
TABLE = re.compile(r"\b(rot|rope)\w*\.inv_freq$")
SIXTEEN_BITS = ("BF16", "F16")

ReadFloats = Callable[[Shard, Tensor], Floats | None]


class How(str, Enum):
    """What is wrong with a saved table; the value is the code of its warning."""

    STALE = "stale-inv-freq"
    ROUNDED = "rounded-inv-freq"


def saved_frequencies(checkpoint: Checkpoint) -> Iterator[tuple[Shard, Tensor]]:
    """Every saved inv_freq buffer, in whichever shard it lies."""
    for shard in checkpoint.shards:
        for tensor in shard.tensors.values():
            if TABLE.search(tensor.name) and len(tensor.shape) == 1:
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
    checkpoint: Checkpoint, reading: Reading, read: ReadFloats = read_floats
) -> tuple[Warn, ...]:
    """Warnings for saved buffers that disagree with the config, each with the base that the buffer means.

    ``read`` gives the values of one, where they do not lie in its shard. One that is stale goes before one that is
    rounded.
    """
    rounded: tuple[Warn, ...] = ()
    for _, (how, said) in _faults(checkpoint, reading, read):  # each may be a request to the Hub
        if how is How.STALE:
            return (Warn(how.value, said),)
        rounded = rounded or (Warn(how.value, said),)
    return rounded


def saved_frequency_fault(a: Checkpoint, b: Checkpoint, one: Reading, other: Reading) -> Fault | None:
    """The first table of ``b`` that is not what its config means, as exactly as its dtype can hold it.

    One that is rounded to 16 bits in 32 is a fault too, unless that of ``a`` is so already.
    """
    rounded = {tensor.name for tensor, (how, _) in _faults(a, one, read_floats) if how is How.ROUNDED}
    for tensor, (how, said) in _faults(b, other, read_floats):
        own = tensor.dtype in SIXTEEN_BITS or tensor.name in rounded
        if how is How.STALE or not own:
            return Fault(said, tensor.name)
    return None


def rounded_tables(checkpoint: Checkpoint, reading: Reading) -> Iterator[str]:
    """Each saved table that is rounded to 16 bits, in a sentence."""
    return (said for _, (how, said) in _faults(checkpoint, reading, read_floats) if how is How.ROUNDED)


def of_text(checkpoint: Checkpoint, reading: Reading) -> Iterator[tuple[Shard, Tensor]]:
    """The saved tables that the config speaks of: those of the text part, in a float dtype."""
    for shard, tensor in saved_frequencies(checkpoint):
        if not reading.decoder.tower_of(tensor.name) and decode_floats(b"", tensor.dtype) is not None:
            yield shard, tensor


def _faults(
    checkpoint: Checkpoint, reading: Reading, read: Callable[[Shard, Tensor], Floats | None]
) -> Iterator[tuple[Tensor, tuple[How, str]]]:
    """Every saved table that is not what the config means for its layer, and what is wrong with it."""
    if reading.refusal:  # CLVP's table is of a width that its config does not tell
        return
    for shard, tensor in of_text(checkpoint, reading):
        saved = read(shard, tensor)
        rotations = _rotations_of(reading, tensor.name)
        if saved is None or not rotations or any(_near(saved, rotation, EXACT) for rotation in rotations):
            continue
        name, rotation = f"{tensor.name} in {shard.path.name}", rotations[0]
        close = next((rotation for rotation in rotations if _near(saved, rotation, ROUNDED)), None)
        if close is None:
            yield tensor, (How.STALE, f"{name} {_disagreement(saved, rotation)}")
            continue
        off_rad = float(np.abs(saved - _expected(close)).max()) * ROUNDED_AT_TOKENS
        said = (
            f"{name} is rounded to 16 bits: in an engine that uses it, angles at {ROUNDED_AT_TOKENS} tokens are off by "
            f"up to {off_rad:.2g} radians"
        )
        yield tensor, (How.ROUNDED, said)


def _rotations_of(reading: Reading, name: str) -> tuple[Rotation, ...]:
    """The rotations that a table can be of: that of its layer's kind where its name tells the layer, else any."""
    kinds, layer = reading.config.get("layer_types"), re.search(r"\.(\d+)\.", name)
    if isinstance(kinds, list) and layer and int(layer[1]) < len(kinds):
        own = tuple(rotation for rotation in reading.rotations if rotation.layers == kinds[int(layer[1])])
        return own or reading.rotations
    return reading.rotations


def _expected(rotation: Rotation) -> Floats:
    return rotation.scaling.inv_freq(rotation.geometry.rotary_dim)


def _near(saved: Floats, rotation: Rotation, within: float) -> bool:
    expected = _expected(rotation)
    return len(saved) == len(expected) and np.allclose(saved, expected, rtol=within, atol=0)


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
