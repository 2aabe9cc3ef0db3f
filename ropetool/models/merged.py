"""The model that PEFT makes of a base and an adapter, as a checkpoint of its own for the length of a block."""

from __future__ import annotations

import importlib
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from ropetool.checkpoint.copying import copy_file
from ropetool.checkpoint.folder import CONFIG, Checkpoint, check_space, copy_side_files, open_checkpoint, side_files
from ropetool.errors import CheckpointError, UnsupportedError
from ropetool.models.loading import reason
from ropetool.models.options import DType
from ropetool.models.run import load

# A base in 16 bits is merged, and stored for the block, in float32.
MOST_BYTES_PER_BYTE = 2


@contextmanager
def merged(adapter: Path, base: Path) -> Iterator[Path]:
    """A temporary checkpoint of ``base`` with ``adapter`` merged into it in float32, with the config of the base.

    Raises `UnsupportedError` where PEFT is not installed, `CheckpointError` where it cannot merge the two.
    """
    try:
        peft = importlib.import_module("peft")
    except ImportError as error:
        raise UnsupportedError(
            "to run adapters merged into their bases, PEFT is needed, and it is not installed; `pip install peft`, or "
            "leave out --base to compare the adapters as files alone"
        ) from error
    whole = open_checkpoint(base)
    with tempfile.TemporaryDirectory(prefix="ropetool-") as name:
        place = Path(name)
        check_space(place, MOST_BYTES_PER_BYTE * whole.size_bytes)
        model = load(base, torch.device("cpu"), DType.FLOAT32).model
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
        except Exception as error:  # a stranger's adapter can make PEFT raise anything
            said = f"PEFT cannot merge {adapter} into {base}: {reason(error)}"
            raise CheckpointError(said, path=str(adapter)) from error
        model.save_pretrained(place)
        _as_the_base(whole, place)
        yield place


def _as_the_base(base: Checkpoint, place: Path) -> None:
    """The config as it is in the base, with the marker and every key, and the tokenizer."""
    (place / CONFIG).unlink()
    copy_file(base.directory / CONFIG, place / CONFIG)
    for file in side_files(base).taken:
        (place / file).unlink(missing_ok=True)
    copy_side_files(base, place, side_files(base))
