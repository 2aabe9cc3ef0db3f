"""Where a row of a projection lies, in words: its layer, and its head of q, k or v."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ropetool.checkpoint.compare import Mask
from ropetool.families.geometry import Each, Geometry, Part, Rows
from ropetool.families.plan import Claim

WORDS = {
    Part.PLAIN: "v",
    Part.VALUE: "v",
    Part.LATENT: "the latent",
    Part.ROTARY_ONLY: "the rotary part of k",
}


def place_of(claim: Claim, row: int) -> str:
    """A row of a claimed tensor: ``layer 1, head 2 of q``."""
    layer = claim.layer.rpartition(".")[2]
    known = [f"layer {layer}"] if layer.isdigit() else []
    head = _head(claim, row)
    return ", ".join((*known, head) if head else known)


def rows_of_v(claim: Claim) -> Mask | None:
    """Which rows of a claimed tensor are v's, where it holds q or k as well; None where none is."""
    if claim.moved is None or not claim.moved.feeds:
        return None
    parts = _parts(claim.geometry, claim.moved.rows, claim.moved.feeds)
    runs = [np.full(_rows(claim, part), WORDS.get(part) == "v") for part, _ in parts]
    mask: Mask = np.concatenate(runs)
    return mask if mask.any() else None


def _rows(claim: Claim, part: Part) -> int:
    return sum(span.rows for span in claim.geometry.spans((part,)))


def _head(claim: Claim, row: int) -> str:
    if claim.moved is None:
        return ""
    numbers: Counter[str] = Counter()
    start = 0
    for part, owner in _parts(claim.geometry, claim.moved.rows, claim.moved.feeds):
        rows = _rows(claim, part)
        said = WORDS.get(part, owner)
        if start <= row < start + rows:
            if part in (Part.LATENT, Part.ROTARY_ONLY):
                return f"in {said}"
            return f"head {numbers[said]}{f' of {said}' if said else ''}"
        numbers[said] += 1
        start += rows
    return ""


def _parts(geometry: Geometry, rows: tuple[Rows, ...], feeds: str) -> Iterator[tuple[Part, str]]:
    """Every part in the order of the rows, with what it is of: of fused heads, q comes first and k after it."""
    turning = [index for index, part in enumerate(rows) if _turns(part)]
    for index, part in enumerate(rows):
        owner = feeds
        if feeds == "qk" and len(turning) > 1:
            owner = "q" if index == turning[0] else "k"
        if isinstance(part, Part):
            yield part, owner
            continue
        for _ in range(geometry.times(part.count)):
            yield from _parts(geometry, part.parts, owner)


def _turns(part: Rows) -> bool:
    return any(map(_turns, part.parts)) if isinstance(part, Each) else part in (Part.ROTARY, Part.ROTARY_ONLY)
