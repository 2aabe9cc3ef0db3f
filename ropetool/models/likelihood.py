"""The log-probabilities that a checkpoint gives by itself: as it means them, or rotated in any other way.

Shape suffixes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ropetool.engines.completions import Sample
from ropetool.engines.mistakes import Rotated, meant
from ropetool.errors import CheckpointError, ServerAnswerError, UnsupportedError
from ropetool.families.protection import stock_is_right
from ropetool.families.reading import Reading
from ropetool.models.options import DType
from ropetool.models.rotary import Rotary
from ropetool.models.run import Runner, load, logits, reference_rotation
from ropetool.models.text import encode

SEED = 20260101
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Own:
    """A loaded checkpoint, and what its config says."""

    runner: Runner
    reading: Reading


def own(path: Path, reading: Reading, device: torch.device, dtype: DType, **options: Any) -> Own:
    """Load a checkpoint as it is stored, by `load`; raises `UnsupportedError` for a class that predicts no tokens."""
    runner = load(path, device, dtype, **options)
    if runner.model.get_output_embeddings() is None:
        raise UnsupportedError(f"{type(runner.model).__name__} has no head that predicts tokens, so nothing to compare")
    return Own(runner, reading)


def as_meant(loaded: Own, ids: Sequence[int]) -> Tensor:
    """The log-probabilities [T, V] of its own class; by the reference rotation where that rotates another layout."""
    if stock_is_right(loaded.reading):
        return _log_probs(loaded.runner, ids)
    return rotated(loaded, meant(loaded.reading), ids)


@contextmanager
def in_bfloat16(loaded: Own) -> Iterator[None]:
    """Within, what every module hands on is rounded to bfloat16, as a server in that type rounds it."""

    def around(_module: nn.Module, _args: Any, output: Any) -> Any:
        return output.bfloat16().to(output.dtype) if isinstance(output, Tensor) and output.is_floating_point() else None

    with ExitStack() as undo:
        for module in loaded.runner.model.modules():
            if not any(True for _ in module.children()):
                undo.callback(module.register_forward_hook(around).remove)
        yield


def rotated(loaded: Own, how: Rotated, ids: Sequence[int]) -> Tensor:
    """The log-probabilities [T, V] by the reference rotation, as ``how`` says."""
    reading = loaded.reading
    learned = reading.family.learned
    live = how.turns == meant(reading).turns
    with reference_rotation(
        loaded.runner, _rotaries(reading, how), reading.nope_layers, live=live, learned=learned
    ):  # fmt: skip
        return _log_probs(loaded.runner, ids)


def _rotaries(reading: Reading, how: Rotated) -> Mapping[str, Rotary]:
    """One for every kind of layer; sites beside the main one keep their frequencies."""
    backwards, found = reading.family.backwards, {}
    for site, rotation in zip(reading.family.others, reading.others, strict=True):
        geometry = rotation.geometry
        found[rotation.layers] = Rotary(
            site.pairing or how.pairing, rotation.scaling, geometry.rope_start, geometry.rotary_dim, backwards=backwards
        )
    for rotation, turn in zip(reading.rotations, how.turns, strict=True):
        start = rotation.geometry.rope_start
        found[rotation.layers] = Rotary(how.pairing, turn.scaling, start, turn.rotary_dim, backwards=backwards)
    return found


def _log_probs(runner: Runner, ids: Sequence[int]) -> Tensor:
    return logits(runner, torch.tensor(ids, dtype=torch.long)).float().log_softmax(-1)


def at(log_probs_TV: Tensor, samples: Sequence[Sample]) -> list[Floats]:
    """Those that a server told of, one array for each sample; raises `ServerAnswerError` for a token that is none."""
    found = []
    for sample in samples:
        tokens, most = list(sample.log_probs), log_probs_TV.shape[1]
        if not 0 <= min(tokens) <= max(tokens) < most:
            raise ServerAnswerError(
                f"the server tells of token {max(tokens, key=abs)}, and the vocabulary of the checkpoint has {most} "
                f"tokens; does it serve this checkpoint?",
                token=max(tokens, key=abs),
            )
        found.append(log_probs_TV[sample.seen - 1, tokens].double().numpy())
    return found


def token_ids(path: Path, reading: Reading, text: str, tokens: int, *, given: bool) -> tuple[int, ...]:
    """``tokens`` ids of ``text``; seeded random ones where the text was not ``given`` and there is no tokenizer.

    Of a directory without one transformers 5.24 makes an empty tokenizer for some types, which finds few ids or none.
    """
    try:
        ids = tuple(encode(path, text).tolist()[:tokens])
    except CheckpointError:
        if given:
            raise
        ids = ()
    if given or len(ids) == tokens:
        return ids
    vocabulary = reading.config.get("vocab_size")
    if not isinstance(vocabulary, int) or vocabulary < 1:
        raise CheckpointError("config.json has no vocab_size, so no token ids can be drawn", key="vocab_size")
    generator = torch.Generator().manual_seed(SEED)
    return tuple(torch.randint(vocabulary, (tokens,), generator=generator).tolist())
