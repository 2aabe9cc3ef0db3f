"""What a config without RoPE means: which places its class gets positions from, with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ropetool.families.scheme_rows import INSTEAD, TEXT, V5
from ropetool.families.scheme_rows_media import MEDIA
from ropetool.families.schemes import POSITIONS, OtherScheme, Part, Place

V4 = "transformers 4.57.6"
OTHER: Mapping[str, OtherScheme] = {row.model_type: row for row in (*TEXT, *MEDIA)}
# Types of the family table, by what they have where their config asks for no RoPE.
INSTEAD_OF_ROPE: Mapping[str, OtherScheme] = {row.model_type: row for row in INSTEAD}


@dataclass(frozen=True)
class Position:
    """One place where a model gets positions from: its scheme, the part of the model, and what it means.

    ``ceiling`` is the number of tokens beyond which its class fails, None where it has none or that is not known.
    """

    scheme: str
    where: str
    numbers: Mapping[str, int]
    sentence: str
    ceiling: int | None = None


@dataclass(frozen=True)
class Claim:
    """What config and class say of one place: ``config`` is the part's, ``word`` is in the names of its tensors."""

    place: Place
    where: str
    word: str
    source: str
    config: Mapping[str, Any] = field(repr=False)

    @property
    def numbers(self) -> dict[str, int]:
        """The numbers that the config gives."""
        return self.place.read(self.config)

    def position(self, numbers: Mapping[str, int]) -> Position:
        """The place with ``numbers``."""
        scheme = self.place.scheme
        ceiling = numbers.get(POSITIONS) if scheme.ends else None
        return Position(scheme.name, self.where, dict(numbers), scheme.sentence(numbers), ceiling)


def claims_of(config: Mapping[str, Any], rows: Mapping[str, OtherScheme] = OTHER) -> tuple[Claim, ...]:
    """What config and class say of every place; empty for a type that has RoPE, or that is not known."""
    return _claims(config, rows.get(str(config.get("model_type"))), "", "")


def _claims(config: Mapping[str, Any], row: OtherScheme | None, within: str, word: str) -> tuple[Claim, ...]:
    if row is None:
        return ()
    own = tuple(
        Claim(place, " ".join(part for part in (within, place.where) if part), word, _source(row, place), config)
        for place in row.places
        if all(when.holds(config) for when in place.when)
    )
    parts = [_of_part(config, row, part) for part in row.parts]
    return own + tuple(claim for part in parts for claim in part) if all(parts) else ()


def _source(row: OtherScheme, place: Place) -> str:
    """Where the class was read: what transformers 5 forgot, in the last version before."""
    return row.source.replace(V5, V4) if place.forgotten else row.source


def _of_part(config: Mapping[str, Any], row: OtherScheme, part: Part) -> tuple[Claim, ...]:
    """A part's claims; none where the part is of a type that is not known here."""
    inner = config.get(part.key)
    inner = inner if isinstance(inner, dict) else {}
    return _claims(inner, OTHER.get(str(inner.get("model_type") or part.model_type)),
                   part.key.removesuffix("_config").replace("_", " "), part.word)  # fmt: skip


def positions_of(config: Mapping[str, Any], rows: Mapping[str, OtherScheme] = OTHER) -> tuple[Position, ...]:
    """The places with the numbers that the config gives."""
    return tuple(claim.position(claim.numbers) for claim in claims_of(config, rows))


def said(positions: tuple[Position, ...]) -> str:
    """All places in one sentence, each once."""
    places = {f"{p.where}: {p.sentence}" if p.where else p.sentence: None for p in positions}
    return "; ".join(places)
