"""The config that a conversion writes: for the source's own class or a twin's, and for an engine where one is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ropetool import __version__
from ropetool.checkpoint.config import with_marker
from ropetool.engines.names import EngineName
from ropetool.engines.writing import WrittenFor, disagreeing_keys, without_engine, written_for
from ropetool.errors import UnsupportedError
from ropetool.families.decoder import with_text_keys
from ropetool.families.protection import has_own_class, protected, stock_is_right, who_runs_it
from ropetool.families.reading import Reading, Warn, read_model
from ropetool.families.twins import SAME, Choice, choose_twin
from ropetool.rope.pairing import Pairing


@dataclass(frozen=True)
class Output:
    """The config of a converted checkpoint, the class that it is for, and the engine that was named."""

    config: dict[str, Any]
    reading: Reading
    choice: Choice
    engine: WrittenFor | None = None

    @property
    def twin(self) -> str | None:
        """The type that it is written as, where that is another one."""
        return self.choice.model_type if self.choice.config is not None else None

    @property
    def guarded(self) -> dict[str, Any]:
        """The config as it may lie on a disk."""
        return protected(self.config, self.reading)

    def warnings(self, target: Pairing) -> Iterator[Warn]:
        """What a person must know who loads the result."""
        yield from self.choice.warnings
        yield from self._loading_warnings()
        yield from () if self.reading.family.probed else disagreeing_keys(self.config, target)

    def _loading_warnings(self) -> Iterator[Warn]:
        after = self.reading
        if stock_is_right(after):
            return
        refused = "the config.json of the result is guarded: plain transformers refuses to load it"
        loaded = f"{refused}, and {who_runs_it(self.config, after)}"
        if self.engine:
            loaded = f"the result is for {self.engine.engine}, and loaded by plain transformers it is silently wrong"
        whose = "own" if has_own_class(after) else "stock"
        said = f"the {whose} class of {after.model_type} rotates {after.class_pairing.value}; {loaded}"
        yield Warn("class-rotates-other-layout", said)


def output_config(
    config: Mapping[str, Any], reading: Reading, to: Pairing, written_as: str | None, engine: EngineName | None
) -> Output:
    """The config to write for weights in the layout ``to``.

    ``written_as`` is a twin's type, or ``same``; None takes a twin where one can express the model, or with ``engine``
    only where that engine would not read the model's own type. Raises `TwinError` and `UnsupportedError` for a type or
    an engine that would rotate the weights wrongly.
    """
    source = without_engine(config)
    if reading.family.probed:  # twins and engines are known by the table's rows
        written_as = written_as or SAME
    if engine is None:
        choice = choose_twin(source, reading, to, written_as)
        return _output(_config_after(choice.config or source, reading, to), reading, to, choice)
    choice = choose_twin(source, reading, to, written_as or SAME)
    try:
        return _for_engine(source, reading, to, choice, engine)
    except UnsupportedError as refusal:
        twin = choice if written_as is not None else choose_twin(source, reading, to, None)
        if twin.config is None or twin is choice:
            raise
        with suppress(UnsupportedError):
            return _for_engine(source, reading, to, twin, engine)
        raise refusal


def _for_engine(source: Mapping[str, Any], reading: Reading, to: Pairing, choice: Choice, engine: EngineName) -> Output:
    config, told = written_for(_config_after(choice.config or source, reading, to), engine)
    return _output(config, reading, to, choice, told)


def _output(
    config: dict[str, Any], before: Reading, to: Pairing, choice: Choice, engine: WrittenFor | None = None
) -> Output:
    if not before.family.probed:
        return Output(config, read_model(config), choice, engine)
    rotated = to if before.family.pairing_key else before.class_pairing  # the config has the key set
    return Output(config, replace(before, pairing=to, class_pairing=rotated), choice, engine)


def _config_after(config: Mapping[str, Any], reading: Reading, target: Pairing) -> dict[str, Any]:
    """The config with the marker, and with the key that the class obeys where it has one."""
    marked = with_marker(config, version=__version__, pairing=target.value)
    key = reading.family.pairing_key
    if key is None:
        return marked
    return with_text_keys(marked, reading.decoder.path, **{key: target is Pairing.INTERLEAVED})
