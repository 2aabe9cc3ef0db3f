"""The lines of a verification on its logits: finite, equal, the same in a twin's class, and others in the control."""

from __future__ import annotations

from collections.abc import Iterator

from ropetool.families.file_checks import Side
from ropetool.families.verdict import Check
from ropetool.models.logits import Difference, Tolerance
from ropetool.models.options import DType


def finite_check(apart: Difference, parting: str | None) -> Check:
    """First of what is seen by running: a number that is none spoils every comparison after it."""
    if apart.finite:
        return Check("logits-finite", True, "all logits are finite")
    return Check("logits-finite", False, f"a logit is not finite; it begins at {parting or 'the head'}", parting)


def logit_checks(apart: Difference, allowed: Tolerance, tokens: int, parting: str | None) -> Iterator[Check]:
    """``parting`` is the first layer after which the two are no longer the same."""
    detail = f"over {tokens} positions the largest difference is {apart.max_abs_diff:.2e}"
    detail = f"{detail}; {allowed.allowed:.2e} is allowed: {allowed.reason}"
    if apart.max_abs_diff <= allowed.allowed:
        yield Check("logits", True, detail)
        return
    wrong = next((b for b in apart.by_position if not b["max_abs_diff"] <= allowed.allowed), apart.by_position[0])
    where = parting or f"positions {wrong['from']}-{wrong['to']}"
    yield Check("logits", False, f"{detail}; they part at {where}", where)


def stock_checks(a: Side, b: Side, apart: Difference | None, allowed: Tolerance) -> Iterator[Check]:
    """The second as plain transformers runs it: for a checkpoint that was written for a twin of the first's class."""
    if apart is not None:
        types = f"the stock class of {a.reading.model_type} and that of {b.reading.model_type}"
        detail = f"{types} are {apart.max_abs_diff:.2e} apart"
        yield Check("stock-classes", apart.max_abs_diff <= allowed.allowed, detail)


def control_check(
    control: Difference, allowed: Tolerance, b: Side, dtype: DType, *, fails: bool, proven: bool
) -> Check:
    """The layout that the weights do not have must miss by a wide margin, or equal logits prove nothing.

    Two checkpoints that are the same file for file and key for key need no such proof.
    """
    detail = f"the same weights as {b.reading.pairing.other.value} are {control.max_abs_diff:.2e} apart"
    if fails:
        return Check("control", True, f"{detail}; more than {allowed.control:.1e} is needed")
    if proven:
        return Check("control", True, f"{detail}: too little to prove anything, but every byte is the same")
    other = (
        "float32 (leave out --dtype)" if dtype is DType.BFLOAT16 else "more tokens, or a model that looks at positions"
    )
    advice = f"so equal logits prove nothing here; use {other}"
    return Check("control", False, f"{detail}, where more than {allowed.control:.1e} is needed, {advice}")
