"""What must hold of any right RoPE model at run time: how it rotates, and what a shift of all positions does.

Each check says "cannot" with the reason where the scaling method, or by its row the class, has no such property.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from ropetool.errors import UnsupportedError
from ropetool.families.cannot import DEFINITION, LIVE, NORMS, NOT_ROUNDED, RELATIVE, V
from ropetool.families.reading import Reading
from ropetool.families.recipes import ORIGINAL, TEMPERATURE
from ropetool.families.verdict import Check
from ropetool.models.catalog import inputs_of
from ropetool.models.frequency_checks import frequency_checks
from ropetool.models.inputs import Inputs
from ropetool.models.load import Runner
from ropetool.models.reference import vocabulary_of, with_live
from ropetool.models.rotary import Rotary
from ropetool.models.rotation_checks import rotation_checks
from ropetool.models.run import scores_of
from ropetool.models.survey import Look, look
from ropetool.models.turnings import gets_a_table, turnings_of
from ropetool.rope.pairing import Pairing

OBSERVED = (NORMS, DEFINITION, V, LIVE, NOT_ROUNDED)
# Few tokens show a shift and a cache as well as many do, and every pass of a model may read all of it from disk.
TOKENS = 48
# Far enough that a table, a window or a mask by position would show, near enough that angles hardly round more.
SHIFT = 96
# What forward methods raise where an argument is not for them.
RAISED = (TypeError, ValueError, AttributeError, RuntimeError, IndexError)
# How much more a gap in the positions must do than a shift: a class that does not look at position_ids passes for the
# wrong reason.
GAP_MARGIN = 10.0
# What a shift may do of what the gap does: a class that scales q by its position (Beam) does more.
SHARE_OF_GAP = 3e-4


def rotaries_of(reading: Reading, pairing: Pairing) -> dict[str, Rotary]:
    """The rotation of every kind of layer and every other site, with the weights in layout ``pairing``."""
    family, turned = reading.family, {}
    layouts = [(site.pairing or pairing, found) for site, found in zip(family.others, reading.others, strict=True)]
    for layout, found in (*layouts, *((pairing, rotation) for rotation in reading.rotations)):
        span = found.geometry
        turned[found.layers] = Rotary(
            layout, found.scaling, span.rope_start, span.rotary_dim, backwards=family.backwards
        )
    return turned


def cannot(reading: Reading, *names: str) -> dict[str, Check]:
    """The checks of these names that the row of the class takes out, under this transformers, each with the reason."""
    reasons = {name: row.reason for row in reading.family.cannot if row.major in (0, _major()) for name in row.checks}
    return {n: Check(n, True, f"cannot, by the class: {reasons[n]}") for n in names if n in reasons}


@functools.cache
def _major() -> int:
    """The first number of transformers' version, which lies in a file of many lines."""
    return int(version("transformers").split(".")[0])


def by_no_row(reading: Reading, check: Check) -> Check:
    """A check that fails by the class as well as by a fault: where no row says which, it tells, and does not fail."""
    if check.passed or not reading.family.probed:
        return check
    return Check(check.name, True, f"cannot be told, as the class is not in the family table: {check.detail}")


def room(reading: Reading) -> tuple[int | None, str]:
    """How many tokens may be in play before the method changes the frequencies, and the method; None for any number."""
    found = [r.scaling for r in reading.rotations if r.scaling.follows_length]
    if not found:
        return None, ""
    # A class that has seen more goes back below the trained length only (transformers 5.24, dynamic_rope_update).
    return min(int(scaling.original_length) - 1 for scaling in found), found[0].name  # type: ignore[attr-defined]  # both have it


def grown(reading: Reading) -> int | None:
    """From which position on q grows with it, which a shift then shows: Llama 4's scaling as Ministral 3 has it."""
    blocks = [rotation.block.values for rotation in reading.rotations]
    return min((int(b[ORIGINAL]) for b in blocks if b.get(TEMPERATURE) and b.get(ORIGINAL)), default=None)


@torch.no_grad()
def observed_checks(runner: Runner, reading: Reading) -> list[Check]:
    """How every attention of a model rotates, in two short passes: frequencies, norms, definition, and v.

    The runner runs in its own class, with weights in the layout of that. Frequencies that follow the length are asked
    of the rotary modules alone for the length that the checkpoint reaches.
    """
    out = cannot(reading, *OBSERVED)
    if len(out) == len(OBSERVED):
        return list(out.values())
    model, rotaries = runner.model, rotaries_of(reading, reading.class_pairing)
    if reading.family.learned:
        rotaries = with_live(model, rotaries, learned=True)
    seen = look(model, inputs_of(model.config.model_type, type(model)), vocabulary_of(model))
    checks = {check.name: check for check in rotation_checks(model, seen, rotaries, reading.nope_layers)}
    if not out.keys() >= {LIVE, NOT_ROUNDED}:
        checks |= {check.name: check for check in _frequency_checks(model, seen, reading, rotaries)}
    return [{**checks, **out}[name] for name in OBSERVED]


def _frequency_checks(model: Any, seen: Look, reading: Reading, rotaries: Mapping[str, Rotary]) -> list[Check]:
    lengths: dict[int, int | None] = {seen.tokens: None}
    if room(reading)[0] is not None and reading.reach:
        lengths[reading.reach] = reading.reach
    try:
        turned = {tokens: turnings_of(model, seen.tables, length) for tokens, length in lengths.items()}
    except UnsupportedError as error:
        return [Check(name, False, error.message, error.fields.get("module")) for name in (LIVE, NOT_ROUNDED)]
    without = [s.name for s in seen.sites if s.rotates and not gets_a_table(model, seen.tables, s.name)]
    return list(frequency_checks(turned, rotaries, without))


@torch.no_grad()
def relative_position(runner: Runner, ids_T: Tensor, reading: Reading, allowed: float) -> Check:
    """Shifting all positions by a constant moves no logit by more than ``allowed``: one pass over three sequences.

    The third has a gap in it: its logits must differ, or the class does not look at positions at all.
    """
    out = cannot(reading, RELATIVE)
    if out:
        return out[RELATIVE]
    most, method = room(reading)
    limit = most or grown(reading) or reading.length or TOKENS + SHIFT
    ids = ids_T[: min(TOKENS, limit // 2)]
    shift = min(SHIFT, limit - len(ids))
    if len(ids) < 2:
        why = f"the method: {method} changes its frequencies beyond {most} tokens" if method else "so few tokens"
        return Check(RELATIVE, True, f"cannot, by {why}")
    try:
        logits_BTV = scores_of(runner.model(**_at_positions(runner, ids, shift))).flatten(2).cpu().double()
    except RAISED as error:
        said = f"{type(runner.model).__name__} does not run at positions of ours: {error}"
        return by_no_row(reading, Check(RELATIVE, False, said))
    return by_no_row(reading, _shift_check(logits_BTV, shift, allowed))


def _shift_check(logits_BTV: Tensor, shift: int, allowed: float) -> Check:
    at_zero, shifted, torn = logits_BTV
    by_token, control = (at_zero - shifted).abs().amax(-1), float((at_zero - torn).abs().max())
    apart = float(by_token.max())
    # Whoever looks at absolute positions moves the logits about as far as the gap does.
    allowed = max(allowed, control * SHARE_OF_GAP)
    said = f"positions {shift} further on move the logits of {len(by_token)} tokens by up to {apart:.2e}; "
    said += f"{allowed:.2e} is allowed"
    if not apart <= allowed:
        first = int((~(by_token <= allowed)).nonzero()[0])
        return Check(RELATIVE, False, f"{said}; the first is at token {first}", where=f"token {first}")
    said += f", and a gap of as many moves them by {control:.2e}"
    if not control > GAP_MARGIN * apart:
        return Check(RELATIVE, False, f"{said}: the class does not look at position_ids", where="position_ids")
    quiet = "" if control > GAP_MARGIN * allowed else ": too little to prove much"
    return Check(RELATIVE, True, said + quiet)


def _at_positions(runner: Runner, ids_T: Tensor, shift: int) -> Inputs:
    """The tokens three times: from position 0, from ``shift``, and with all but the first third so far on.

    The mask says that each is one sequence: without it transformers takes positions with gaps for several.
    """
    model = runner.model
    positions_T = torch.arange(len(ids_T), device=runner.device)
    arguments = inputs_of(model.config.model_type, type(model))(model, ids_T[None].expand(3, -1).to(runner.device))
    torn_T = positions_T + shift * (positions_T > len(ids_T) // 3)  # at no border of a chunk of attention
    arguments["position_ids"] = torch.stack((positions_T, positions_T + shift, torn_T))
    return {**arguments, "attention_mask": torch.ones_like(arguments["position_ids"])}
