"""The two witnesses of a checkpoint without RoPE, joined: its config and class, and its tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ropetool.checkpoint.floats import decode_floats
from ropetool.checkpoint.folder import Checkpoint
from ropetool.families.positions import Claim, Position
from ropetool.families.reading import Evidence, Warn
from ropetool.families.scheme_tensors import BESIDE, Table, matching, rotary, tables
from ropetool.families.schemes import LEARNED, ROWS, SINUSOIDAL

# Schemes that are nothing without their tensors: sinusoids and ALiBi can be computed.
STORED = ("learned", "relative-bias", "relative-vectors")
# Rows read to tell a saved table of sinusoids from a learned one, and the error that 16 bits may leave in a circle.
FROM_ROW, TO_ROW, CIRCLE = 3, 9, 2e-2


@dataclass(frozen=True)
class Seen:
    """What a checkpoint has instead of RoPE, with the evidence of each witness, and where they part."""

    positions: tuple[Position, ...]
    evidence: tuple[Evidence, ...]
    warnings: tuple[Warn, ...]


@dataclass(frozen=True)
class _Checked:
    """One claim, held against the tensors that are its own."""

    claim: Claim
    found: tuple[Table, ...]
    position: Position
    warnings: tuple[Warn, ...]


def seen_by_both(claims: tuple[Claim, ...], checkpoint: Checkpoint | None) -> Seen:
    """What config and class claim, held against the tensors; the config alone where there are none."""
    by_config = tuple(_config_evidence(claim) for claim in claims)
    warnings = tuple(warning for claim in claims for warning in _said_by_nobody(claim))
    if checkpoint is None:
        return Seen(tuple(claim.position(claim.numbers) for claim in claims), by_config, warnings)
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    checked = tuple(_checked(claim, shapes, checkpoint) for claim in claims)
    own = {name for entry in checked for table in entry.found for name in table.names}
    own |= {name for name in shapes for claim in claims if claim.place.idle and re.search(claim.place.idle, name)}
    others = list(tables({name: shape for name, shape in shapes.items() if name not in own}))
    positions = (*(entry.position for entry in checked), *_beside(others, claims, checkpoint))
    found = [table for entry in checked for table in entry.found] + others
    conflicts = (w for entry in checked for w in entry.warnings)
    strangers = (*_strangers(others, claims), *_turning(shapes, claims))
    evidence = (*by_config, _tensor_evidence(found, checkpoint))
    return Seen(positions, evidence, (*conflicts, *strangers, *warnings))


def seen_by_tensors(checkpoint: Checkpoint) -> Seen | None:
    """The scheme of a type that nobody knows, from its tensors alone; None where they do not show one for certain.

    Tensors of a part beside the text decoder (a vision tower) say nothing of it, and one of a rotary embedding says
    that there is RoPE as well.
    """
    shapes = {name: tensor.shape for name, tensor in checkpoint.tensors.items()}
    found = tuple(table for table in tables(shapes) if not BESIDE.search(table.name))
    if not found or rotary(shapes) or any("inv_freq" in name for name in shapes):
        return None
    return Seen(
        tuple(_position(table, checkpoint) for table in found), (_tensor_evidence(list(found), checkpoint),), ()
    )


def speaks_of_rope(config: Mapping[str, Any]) -> bool:
    """Whether a config of an unknown type has parts of other models, or a key of RoPE: then tensors do not decide."""
    return any(isinstance(value, dict) and "model_type" in value for value in config.values()) or any(
        re.search("rope|rotary", key) and value not in (None, False, 0) for key, value in config.items()
    )


def _config_evidence(claim: Claim) -> Evidence:
    where = f"{claim.where}: " if claim.where else ""
    keys = ", ".join(f"{name} {number}" for name, number in claim.numbers.items())
    said = f"{where}{claim.source}" + (f"; by config.json {keys}" if keys else "; config.json gives no number")
    return Evidence("config", claim.place.scheme.name, said, figures=claim.numbers)


def _tensor_evidence(found: list[Table], checkpoint: Checkpoint) -> Evidence:
    if not found:
        return Evidence("tensors", "none", f"none of {len(checkpoint.tensors)} tensors is one of a position scheme")
    schemes = dict.fromkeys(_kind(table, checkpoint) for table in found)
    figures = {table.name: list(table.shape) for table in found}
    return Evidence("tensors", ", ".join(schemes), "; ".join(str(table) for table in found[:4]), figures=figures)


def _kind(table: Table, checkpoint: Checkpoint) -> str:
    saved = table.scheme.name == LEARNED.name and is_sinusoidal(checkpoint, table.name)
    return SINUSOIDAL.name if saved else table.scheme.name


def _checked(claim: Claim, shapes: Mapping[str, tuple[int, ...]], checkpoint: Checkpoint) -> _Checked:
    """A claim with the numbers of its own tensors, which go before the config's: they are what there is."""
    place, numbers = claim.place, claim.numbers
    name = place.scheme.name
    found = matching(shapes, place.tensor, place.scheme, claim.word) if place.tensor else ()
    faults = []
    if not found and place.tensor and name in STORED:
        faults.append(f"config and class say {name}{_of(claim)}, and no tensor of it is in the weights")
    for table in found:
        kind = place.scheme.number
        ours = numbers.get(kind)
        if table.number is not None and ours is not None and table.number != ours:
            faults.append(f"config.json means {ours} {kind}{_of(claim)}, and {table} has {table.number}")
    if found and name in (LEARNED.name, SINUSOIDAL.name):
        fault = _values_fault(claim, found[0], checkpoint)
        faults += [fault] if fault else []
    if found and found[0].number is not None:
        numbers = place.completed({**numbers, **found[0].numbers}, claim.config)
    return _Checked(claim, found, claim.position(numbers), tuple(Warn("scheme-conflict", fault) for fault in faults))


def _values_fault(claim: Claim, table: Table, checkpoint: Checkpoint) -> str | None:
    """Where a table is saved, its numbers tell sinusoids from what was learned."""
    if claim.place.scheme.name == LEARNED.name or is_sinusoidal(checkpoint, table.name) is not False:
        return None
    return f"config and class say sinusoidal{_of(claim)}, and the rows of {table} are no sinusoids"


def _of(claim: Claim) -> str:
    return f" in the {claim.where}" if claim.where else ""


def _position(table: Table, checkpoint: Checkpoint) -> Position:
    saved = _kind(table, checkpoint) == SINUSOIDAL.name
    scheme = SINUSOIDAL if saved else table.scheme
    numbers = {scheme.number: table.number} if scheme.number and table.number is not None else {}
    return Position(scheme.name, table.name.rpartition(".")[0], numbers, scheme.sentence(numbers))


def _beside(others: list[Table], claims: tuple[Claim, ...], checkpoint: Checkpoint) -> Iterator[Position]:
    """Tensors of a scheme that the model is known to have, at a place that its row does not name."""
    known = {claim.place.scheme.name for claim in claims}
    for table in others:
        if table.scheme.name in known and table.scheme.number == ROWS:
            yield _position(table, checkpoint)


def _strangers(others: list[Table], claims: tuple[Claim, ...]) -> Iterator[Warn]:
    """Tensors of a scheme that config and class do not have."""
    known = sorted({claim.place.scheme.name for claim in claims})
    for table in others:
        if table.scheme.name not in known and not BESIDE.search(table.name):
            said = f"config and class say {' and '.join(known)}, and the weights hold {table}: {table.scheme.name}"
            yield Warn("scheme-conflict", said)


def _turning(shapes: Mapping[str, tuple[int, ...]], claims: tuple[Claim, ...]) -> Iterator[Warn]:
    name = rotary(shapes)
    if name is not None:
        yield Warn("scheme-conflict", f"config and class say {claims[0].place.scheme.name}, and the weights hold "
                                      f"{name}, which only a rotary embedding has")  # fmt: skip


def _said_by_nobody(claim: Claim) -> Iterator[Warn]:
    """Keys of the config that the class of today's transformers does not obey."""
    place = claim.place
    if place.forgotten:
        value = claim.config.get(place.forgotten)
        yield Warn("scheme-not-read", f"{place.forgotten} is {value!r}, and the class of transformers 5 does not read "
                                      f"it: it runs this checkpoint wrongly, as one with absolute positions; use "
                                      f"transformers 4")  # fmt: skip
    if place.denied is not None and place.denied.holds(claim.config):
        value = place.denied.value(claim.config)
        yield Warn("scheme-not-read", f"{place.denied.key} is {value!r}, and the class of transformers has "
                                      f"{place.scheme.name} whatever it says")  # fmt: skip


def is_sinusoidal(checkpoint: Checkpoint, name: str) -> bool | None:
    """Whether a saved table is one of sinusoids, by a few of its rows; None where they cannot be read.

    Every sine stands with its cosine, beside it or half a row on (a quarter, for two axes), so their squares add up to
    one.
    """
    tensor, shard = checkpoint.tensors[name], checkpoint.weight_map[name]
    rows, width = (math.prod(tensor.shape[:-1]), tensor.shape[-1]) if len(tensor.shape) > 1 else (0, 0)
    if rows <= TO_ROW or width < 4 or width % 2 or tensor.size_bytes % rows:
        return None
    row = tensor.size_bytes // rows
    some = replace(tensor, start=tensor.start + FROM_ROW * row, stop=tensor.start + TO_ROW * row)
    values = decode_floats(shard.read(some), tensor.dtype)
    if values is None:
        return None
    table = values.reshape(TO_ROW - FROM_ROW, width)
    spans = [width // 2, width // 4] if width % 4 == 0 else [width // 2]
    apart = (table.reshape(TO_ROW - FROM_ROW, -1, 2, span).swapaxes(2, 3) for span in (1, *spans))
    return any(bool(np.all(np.abs(np.sum(pairs**2, axis=-1) - 1) < CIRCLE)) for pairs in apart)
