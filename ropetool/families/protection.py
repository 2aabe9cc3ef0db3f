"""When a checkpoint needs the guard: its weights are in a layout that its stock class does not rotate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropetool.checkpoint.config import marker
from ropetool.checkpoint.guard import guarded
from ropetool.families.reading import Reading, read_model

# The marker's entry that tells for which engine a checkpoint was written.
ENGINE = "for"


def stock_is_right(reading: Reading) -> bool:
    """Whether the stock class rotates the layout that the weights have."""
    return reading.pairing is reading.class_pairing


def guard_sentence(reading: Reading, *, loadable: bool = True) -> str:
    """What transformers prints in its error: what this is, and the two ways on, or one where it is not loadable."""
    stored, rotated = reading.pairing.value, reading.class_pairing.value
    trust = " --trust-remote-code" if has_own_class(reading) else ""
    load = f"load them with {loader(reading)}, or " if loadable else ""
    return (
        f"these {reading.model_type} weights are stored as {stored}, and the {_class(reading)} would rotate them as "
        f"{rotated}, silently wrong; {load}convert them back with `ropetool convert SRC DST --to {rotated}{trust}`"
    )


def is_loadable(config: Mapping[str, Any]) -> bool:
    """Whether `ropetool.load` can put the rows back for the class: those of quantised weights do not move in memory."""
    return not config.get("quantization_config")


def loader(reading: Reading) -> str:
    """The call that runs a checkpoint right in any layout."""
    return "ropetool.load(path, trust_remote_code=True)" if has_own_class(reading) else "ropetool.load(path)"


def who_runs_it(config: Mapping[str, Any], reading: Reading) -> str:
    """What runs a guarded checkpoint right, in a clause."""
    if is_loadable(config):
        return f"{loader(reading)} runs it right"
    return f"{loader(reading)} does too: quantised rows do not move in memory, so convert it back to load it"


def _class(reading: Reading) -> str:
    return "class that comes with them" if has_own_class(reading) else "stock class"


def has_own_class(reading: Reading) -> bool:
    """Whether the class that the reading is about is code in the checkpoint."""
    return reading.family.probed and bool(reading.config.get("auto_map"))


def protected(config: Mapping[str, Any], reading: Reading | None = None) -> dict[str, Any]:
    """The config as it may lie on a disk: guarded, unless the stock class is right or an engine was named for it."""
    reading = reading or read_model(config)
    if stock_is_right(reading) or marker(config).get(ENGINE) is not None:
        return dict(config)
    return guarded(config, guard_sentence(reading, loadable=is_loadable(config)), reading.decoder.path)
