"""Write a config for the twin: another class, the same model but for the layout, with the same tensor names.

So a converted checkpoint loads in stock transformers. A config is rewritten by a row of ``twins.json`` alone; what the
twin cannot express is refused, with the key that says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropetool.checkpoint.config import BLOCKS, MARKER, check_layers, count, marker, text_config
from ropetool.checkpoint.strangers import read_json_file
from ropetool.errors import ConfigConflictError, RopetoolError, TwinError
from ropetool.families.geometry import CLASS_DEFAULT, SHARE
from ropetool.families.lengths import TOKENIZER_CONFIG
from ropetool.families.reading import Reading, Warn, read_model
from ropetool.families.table import TABLE
from ropetool.families.twin_rows import CLASS_FACTS, ClassFacts, TwinRow, meant, twin_row, twin_rows
from ropetool.rope.pairing import Pairing

SAME = "same"
# Entries of a twin's marker: the type that it was written from, and the whole config.
TWIN_OF, BEFORE = "twin_of", "config_before"
# What transformers' cache reads of any config when it generates (cache_utils.py, get_layer_types_and_kwargs in 5.24,
# DynamicCache in 4.57). A class that fills in layer_types hides the others, and its twin need not.
CACHE_READS = frozenset(
    ("attention_chunk_size", "kv_sharing_modes", "layer_types", "num_kv_shared_layers", "per_layer_config",
     "sliding_window")
)  # fmt: skip
# Tokenizer classes that read tokenizer.json as it is, whatever the model type.
GENERIC_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")


@dataclass(frozen=True)
class Choice:
    """The class that a result is written for: ``config`` is None where it keeps the source's."""

    model_type: str
    config: Mapping[str, Any] | None
    warnings: tuple[Warn, ...] = ()


def choose_twin(config: Mapping[str, Any], reading: Reading, to: Pairing, wanted: str | None) -> Choice:
    """The class to write the layout ``to`` for: the source's own, or a twin where that would rotate the other layout.

    ``wanted`` is a model type that must be taken, or ``same``; None takes the first twin that can express this very
    config, the type first that it was once written from. Raises `TwinError` where ``wanted`` cannot be.
    """
    own = reading.model_type
    obeys = reading.family.pairing_key is not None
    right = obeys or reading.class_pairing is to
    if wanted in (SAME, own) or (wanted is None and right):
        return Choice(own, None)
    if wanted is not None:
        return _named(config, reading, to, wanted, right=right)
    reasons = []
    for row in _by_preference(config, own):
        try:
            return Choice(row.target, *twin_config(config, reading, row))
        except TwinError as error:
            reasons.append(error.message)
    return Choice(own, None, (Warn("no-twin", reasons[0]),) if reasons else ())


def _named(config: Mapping[str, Any], reading: Reading, to: Pairing, wanted: str, *, right: bool) -> Choice:
    row = twin_row(reading.model_type, wanted)
    if row is None:
        known = ", ".join(r.target for r in twin_rows(reading.model_type))
        raise TwinError(
            f"{wanted} is no twin of {reading.model_type}; "
            + (f"its twins are {known}" if known else "no class is known that is the same model but for the layout"),
            model_type=reading.model_type,
            twin=wanted,
        )
    if right:
        raise TwinError(
            f"the class of {reading.model_type} rotates {to.value} itself, and that of {wanted} rotates "
            f"{to.other.value}; leave out --as",
            model_type=reading.model_type,
            twin=wanted,
        )
    return Choice(wanted, *twin_config(config, reading, row))


def _by_preference(config: Mapping[str, Any], own: str) -> list[TwinRow]:
    before = marker(config).get(TWIN_OF)
    return sorted((row for row in twin_rows(own) if row.target in TABLE), key=lambda row: row.target != before)


def twin_config(config: Mapping[str, Any], reading: Reading, row: TwinRow) -> tuple[dict[str, Any], tuple[Warn, ...]]:
    """``config`` as the class of ``row.target`` says it, and what is lost beside the logits.

    On the way back that is the config that the marker kept, if nothing was changed since. Raises `TwinError` naming the
    key that the target cannot express.
    """
    before, told = _before(config, row), {k: v for k, v in marker(config).items() if k != BEFORE}
    told[TWIN_OF] = row.source
    if before is not None:
        return {**before, MARKER: told}, ()
    written, lost = _written(config, reading, row)
    return {**written, MARKER: {**told, BEFORE: _unmarked(config)}}, lost


def _before(config: Mapping[str, Any], row: TwinRow) -> dict[str, Any] | None:
    """The config that this one was written from, if it is still what is written for that one."""
    before, there = marker(config).get(BEFORE), twin_row(row.target, row.source)
    if there is None or not isinstance(before, dict) or before.get("model_type") != row.target:
        return None
    try:
        written, _ = _written(before, read_model(before), there)
    except RopetoolError:  # a marker that was damaged: what it keeps is no config
        return None
    return before if _unmarked(written) == _unmarked(config) else None


def _unmarked(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != MARKER}


def _written(config: Mapping[str, Any], reading: Reading, row: TwinRow) -> tuple[dict[str, Any], tuple[Warn, ...]]:
    """`twin_config` by the row, without the marker.

    Values that the source's class fills in and the target's would fill in otherwise are written out.
    """
    source, target = CLASS_FACTS[row.source], CLASS_FACTS[row.target]
    values = _effective(config, source)
    _check_readable(config, row, source, target)
    _check_rope(reading, row)
    _check_square(values, reading, row)
    _check_required(config, values, reading, row)
    head_dim, layers = reading.geometry.head_dim, _layers(values)
    written = _renamed(config, row, source, target)
    geometry = {"num_key_value_heads": reading.geometry.kv_heads, "head_dim": head_dim}
    for key, default in source.fields.items():
        if key in target.fields and (key in config or default != target.fields[key]):
            written[key] = values[key]
    written |= {key: value for key, value in geometry.items() if written.get(key) != value}
    written |= {key: meant(value, head_dim, layers) for key, value in row.sets.items()}
    written |= _case(values, row)
    _write_rope(written, reading)
    return written, _lost(values, row, target)


def _effective(config: Mapping[str, Any], source: ClassFacts) -> dict[str, Any]:
    """Every key of the class with the value that it takes: of config.json under any of its names, or the default."""
    values = {**source.fields, **{key: config[key] for key in source.fields if key in config}}
    for alias, key in source.aliases.items():
        if alias not in config:
            continue
        if key in config and config[key] != config[alias]:
            raise ConfigConflictError(
                f"{alias} is {config[alias]!r} but {key} is {config[key]!r}, and they are two names of one key",
                keys=[alias, key],
                values=[config[alias], config[key]],
            )
        values[key] = config[alias]
    return values


def _refuse(row: TwinRow, key: str, because: str) -> TwinError:
    return TwinError(
        f"the class of {row.target} cannot be this {row.source}: {because}; --as same keeps the type",
        key=key,
        model_type=row.source,
        twin=row.target,
    )


def _check_readable(config: Mapping[str, Any], row: TwinRow, source: ClassFacts, target: ClassFacts) -> None:
    """Nothing may be in the config whose meaning to one of the two classes was not tried."""
    if text_config(config) is not config:
        raise _refuse(row, "text_config", "config.json is that of a composite model (text_config)")
    named = config.get("architectures") or []
    others = [name for name in (named if isinstance(named, list) else [named]) if not str(name).endswith("ForCausalLM")]
    for key in config:
        if key == "architectures" and others:
            raise _refuse(row, key, f"architectures names {others[0]}, and only causal language models were tried")
        if key == "auto_map" and config[key]:
            raise _refuse(row, key, "config.json names code of its own (auto_map), which the twin does not run")
        reads = source.reads | target.reads | CACHE_READS
        if key in reads and key not in source.fields and config[key] is not None:
            raise _refuse(row, key, f"what {key} does there was not tried")


def _check_rope(reading: Reading, row: TwinRow) -> None:
    for rotation in reading.rotations:
        values, sources = rotation.block.values, rotation.block.sources
        if rotation.block.rope_type not in row.rope_types:
            key = sources.get("rope_type", "rope_type")
            raise _refuse(row, key, f"{key} is {rotation.block.rope_type!r}, which was not found to be the same there")
        if values.get(SHARE) not in (None, 1):
            key = sources.get(SHARE, SHARE)
            raise _refuse(row, key, f"{key} is {values[SHARE]!r}, and only a whole head turns alike in both classes")


def _layers(values: Mapping[str, Any]) -> int:
    check_layers(values)
    return count(values, "num_hidden_layers") or 0


def _check_square(values: Mapping[str, Any], reading: Reading, row: TwinRow) -> None:
    geometry, hidden = reading.geometry, count(values, "hidden_size")
    width = geometry.heads * geometry.head_dim
    if row.square and width != hidden:
        raise _refuse(
            row,
            "head_dim",
            f"{geometry.heads} heads of head_dim {geometry.head_dim} make {width}, and it wants hidden_size, {hidden}",
        )


def _check_required(config: Mapping[str, Any], values: Mapping[str, Any], reading: Reading, row: TwinRow) -> None:
    for key, spec in row.required.items():
        value, wanted = values[key], meant(spec, reading.geometry.head_dim, _layers(values))
        computed = row.computed.get(key)
        if value is None and computed is not None and all(values[k] == v for k, v in computed.items()):
            continue
        if value != wanted:
            said = f"{wanted[0]!r} for every layer" if isinstance(wanted, list) and wanted else repr(wanted)
            here = f"{key} is {value!r}" if key in config else f"{key} is not in config.json (class default {value!r})"
            raise _refuse(row, key, f"{here}, and only {said} can be written for it")


def _case(values: Mapping[str, Any], row: TwinRow) -> Mapping[str, Any]:
    """The target's switches for the source's."""
    for ours, theirs in row.cases:
        if all(bool(values[key]) is value for key, value in ours.items()):
            return theirs
    keys = list(row.cases[0][0])
    said = ", ".join(f"{key} {str(bool(values[key])).lower()}" for key in keys)
    can = " or ".join("/".join(str(value).lower() for value in ours.values()) for ours, _ in row.cases)
    raise _refuse(row, keys[0], f"it is {said}, and only {can} can be written for it")


def _renamed(config: Mapping[str, Any], row: TwinRow, source: ClassFacts, target: ClassFacts) -> dict[str, Any]:
    """The config under its new type, without keys that only one of the two classes knows."""
    gone = {*source.fields, *source.aliases} ^ {*target.fields, *target.aliases}
    gone |= source.aliases.keys() | target.aliases.keys()
    names = {"model_type": row.target, "architectures": [target.architecture]}
    return {key: names.get(key, value) for key, value in config.items() if key not in gone} | names


def _write_rope(written: dict[str, Any], reading: Reading) -> None:
    """The base that the source's class fills in, and a block where there is none: the twin's may fill in others."""
    theta = reading.rotations[0].scaling.theta
    blocks = [where for where in BLOCKS if written.get(where)]
    if reading.rotations[0].theta_source == CLASS_DEFAULT:
        written |= {where: {**written[where], "rope_theta": theta} for where in blocks}
    if not blocks:
        written |= {"rope_theta": theta, BLOCKS[0]: {"rope_type": "default", "rope_theta": theta}}


def _lost(values: Mapping[str, Any], row: TwinRow, target: ClassFacts) -> tuple[Warn, ...]:
    """Dropouts that the target does not have: no logit depends on them, further training does."""
    return tuple(
        Warn("dropout-lost", f"{key} is {value:g}, and the class of {row.target} has none in training")
        for key, value in values.items()
        if key.endswith("dropout") and key not in target.fields and value
    )


def tokenizer_warnings(directory: Path, source: str, target: str) -> tuple[Warn, ...]:
    """Where transformers takes another tokenizer class for the new type (tokenization_auto.py goes by that too)."""
    ours, theirs = CLASS_FACTS[source].tokenizer, CLASS_FACTS[target].tokenizer
    path = directory / TOKENIZER_CONFIG
    if ours == theirs or not path.is_file():
        return ()
    named = read_json_file(path).get("tokenizer_class") or ours
    if str(named).removesuffix("Fast") in (*GENERIC_TOKENIZERS, str(theirs)) or named in GENERIC_TOKENIZERS:
        return ()
    said = (
        f"the tokenizer is a {named}; for the type {target} AutoTokenizer may take {theirs or 'what the file names'} "
        f"instead: compare the ids of a text, or load the tokenizer by its class"
    )
    return (Warn("tokenizer-by-type", said),)
