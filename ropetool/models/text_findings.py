"""What a text tells of a checkpoint: its layout, its base, and the length that it was trained with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ropetool.checkpoint.folder import read_config
from ropetool.errors import RopetoolError, UnsupportedError
from ropetool.families.context import context_of
from ropetool.families.reading import Evidence, Reading, Warn
from ropetool.families.trained_length import TrainedLength, declared_length, length_warnings, with_measured
from ropetool.models.fallbacks import release
from ropetool.models.likelihood import Own, own
from ropetool.models.load import pick_device
from ropetool.models.loading import reason
from ropetool.models.loss_rise import Reader, Size, rise
from ropetool.models.options import Device, DType, MaxMemory
from ropetool.models.pickles import as_safetensors
from ropetool.models.runner import silent
from ropetool.models.text import encode
from ropetool.models.text_witness import (
    BASE_TOKENS,
    FEWEST_TOKENS,
    TOKENS,
    UNKNOWN,
    BaseCurve,
    LayoutLosses,
    base_warnings,
    layout_and_bases,
)
from ropetool.models.trial import check_causal_on

# Of a text as much as counts its tokens well, and fills the longest reading.
CHARACTERS = 400_000

Talk = Callable[[str], None]


@dataclass(frozen=True)
class TextLosses:
    """The losses of a text by layout, and a curve over the base for each kind of layer; none where it was not read."""

    layouts: LayoutLosses
    bases: tuple[BaseCurve, ...]


@dataclass(frozen=True)
class TextFindings:
    """What a text told.

    ``evidence`` is the witness of the layout; where nothing could be read it says why, and ``losses`` is None.
    ``lengths`` is what is declared beside what was measured; ``warnings`` are of the base and of the lengths.
    """

    evidence: Evidence
    losses: TextLosses | None
    lengths: TrainedLength
    warnings: tuple[Warn, ...]


def text_findings(
    path: Path,
    reading: Reading,
    text: str,
    device: Device = Device.AUTO,
    *,
    dtype: DType | None = None,
    max_memory: MaxMemory | None = None,
    trust_remote_code: bool = False,
    talk: Talk = silent,
    layout_alone: bool = False,
) -> TextFindings:
    """Let the checkpoint at ``path`` read ``text``, in every layout and with every base of a grid.

    The first 512 tokens tell of layout and base; the trained length is measured on up to 16384, only where layout and
    base are those that config.json means, and not with ``layout_alone``. ``dtype`` None keeps the stored one. What a
    checkpoint cannot do is said in the evidence, or in ``lengths.detail``: nothing is raised but `UsageError` for a
    device that is not there.
    """
    lengths = declared_length(path, reading)
    pick_device(device)
    try:
        with as_safetensors(path) as files:
            return _read(files, reading, text, lengths, device, {
                "dtype": dtype, "max_memory": max_memory, "trust_remote_code": trust_remote_code, "talk": talk,
            }, layout_alone)  # fmt: skip
    except RopetoolError as error:
        said = error.message
    except Exception as error:  # noqa: BLE001 - a class that runs on a stranger's config can raise anything
        said = f"{type(error).__name__}: {reason(error)}"
    lengths = _not_measured(lengths, "the text could not be read")
    return TextFindings(_unread(said), None, lengths, length_warnings(lengths))


def _unread(said: str) -> Evidence:
    return Evidence("text", UNKNOWN, f"the text could not be read: {said}")


def _not_measured(lengths: TrainedLength, why: str) -> TrainedLength:
    return replace(lengths, detail=f"not measured: {why}")


def _read(
    path: Path, reading: Reading, text: str, lengths: TrainedLength, device: Device, ways: dict[str, Any],
    layout_alone: bool,
) -> TextFindings:  # fmt: skip
    if not reading.rotations:
        raise UnsupportedError(reading.refusal)
    ids_T = encode(path, text[:CHARACTERS])
    windows = _windows(ids_T, lengths.trained)
    evidence, layouts, bases, size = _by_layout(path, reading, ids_T, windows, device, ways)
    warnings = base_warnings(bases)
    why = "the layout alone was asked" if layout_alone else _untold(evidence, reading, warnings)
    lengths = _not_measured(lengths, why) if why else _measured(path, reading, ids_T, lengths, size, device, ways)
    return TextFindings(evidence, TextLosses(layouts, bases), lengths, (*warnings, *length_warnings(lengths)))


def _windows(ids_T: Tensor, trained: int | None) -> list[list[int]]:
    """Pieces within the trained length, of 512 tokens at most; raises `UnsupportedError` where they are too short."""
    length = min(TOKENS, trained or TOKENS, len(ids_T))
    if length < FEWEST_TOKENS:
        raise UnsupportedError(
            f"{length} tokens are too few to tell layouts apart (the text has {len(ids_T)}, the trained length is "
            f"{trained}); {FEWEST_TOKENS} are the least"
        )
    pieces = min(BASE_TOKENS, len(ids_T)) // length
    return [[int(token) for token in row] for row in ids_T[: pieces * length].reshape(pieces, length)]


def _by_layout(
    path: Path, reading: Reading, ids_T: Tensor, windows: list[list[int]], device: Device, ways: dict[str, Any]
) -> tuple[Evidence, LayoutLosses, tuple[BaseCurve, ...], Size]:
    ways["talk"]("reading the text in both layouts, and with other bases")
    loaded = own(path, reading, pick_device(device), tokens=TOKENS, **ways)
    try:
        _check_vocabulary(loaded, ids_T)
        check_causal_on(loaded.runner, ids_T[: len(windows[0])])
        geometry = reading.geometry
        layers = int(reading.config.get("num_hidden_layers") or 1)
        size = Size(loaded.runner.model.num_parameters(), layers * geometry.heads * geometry.head_dim)
        return *layout_and_bases(loaded, windows, ids_T.tolist()), size
    finally:
        del loaded
        release()


def _check_vocabulary(loaded: Own, ids_T: Tensor) -> None:
    words, highest = len(loaded.runner.model.get_input_embeddings().weight), int(ids_T.max())
    if highest >= words:
        raise UnsupportedError(
            f"the text has the token {highest}, and the model knows {words}: the tokenizer is that of another model"
        )


def _untold(evidence: Evidence, reading: Reading, warnings: tuple[Warn, ...]) -> str:
    """Why the trained length cannot be measured; empty where it can."""
    if evidence.says == UNKNOWN:
        return "the text tells nothing of this checkpoint"
    if evidence.says != reading.pairing.value:
        return f"the text says {evidence.says}, and config.json means {reading.pairing.value}: mend that first"
    wrong = any(warning.code == "wrong-base" for warning in warnings)
    return "config.json has another base than the weights: mend that first" if wrong else ""


def _measured(
    path: Path, reading: Reading, ids_T: Tensor, lengths: TrainedLength, size: Size, device: Device,
    ways: dict[str, Any],
) -> TrainedLength:  # fmt: skip
    """The lengths with what was measured; read beyond what the checkpoint is made to serve."""
    ways["talk"]("reading more of it at once, to see where the loss turns up")
    reader = Reader(path, context_of(read_config(path)), device, ways["dtype"], ways["max_memory"], ways["talk"], size)
    try:
        found = rise(reader, ids_T, lengths.expected or TOKENS)
    except RopetoolError as error:
        return _not_measured(lengths, error.message)
    if found is None:
        said = (
            f"{len(ids_T)} tokens of text, and a model of {size.parameters:.2g} parameters, are too little or too much"
        )
        return _not_measured(lengths, said)
    return with_measured(lengths, found.turns_up, found.read_tokens, found.bins)
