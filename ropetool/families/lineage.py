"""Whether one config is an extension of another: same trained length, same base underneath, a length that follows."""

from __future__ import annotations

import math

from ropetool.families.methods import Method
from ropetool.families.native import scaled_by_now
from ropetool.families.reading import Reading
from ropetool.families.recipes import RECIPES, derived_attention_factor
from ropetool.rope.frequencies import Dynamic, LongRope, Yarn, ntk_theta


def extension_fault(a: Reading, b: Reading) -> str | None:
    """Why ``b`` is not an extension of ``a``, in a sentence; None when it is one.

    Numbers of a rope block that merely differ are another model, not an extension: a lost base, a factor applied twice,
    a wrong original length.
    """
    for ours, theirs in zip(a.rotations[1:], b.rotations[1:], strict=True):
        if ours.scaling != theirs.scaling:
            return f"the rotation of {theirs.layers} layers differs, and an extension leaves it alone"
    return _base_fault(a, b) or _length_fault(a, b) or _attention_fault(a, b)


def _method(reading: Reading) -> str | None:
    return scaled_by_now(reading.extension, reading.rotations[0].scaling)[0]


def _base_fault(a: Reading, b: Reading) -> str | None:
    theta_a, theta_b = a.rotations[0].scaling.theta, b.rotations[0].scaling.theta
    native_a = a.extension.get("original_theta", theta_a)
    native_b = b.extension.get("original_theta", theta_b)
    method_a, method_b = _method(a), _method(b)
    if method_b is None:
        return f"the base is {theta_a:g} in the first and {theta_b:g} in the second, which is marked as no extension"
    if method_a not in (None, method_b):
        return f"the first is scaled by {method_a}, the second by {method_b}"
    if native_a != native_b:
        return f"the base before any extension is {native_a:g} in the first and {native_b:g} in the second"
    if method_b == Method.ABF.value:
        if theta_b <= native_b:
            return f"the base is {theta_b:g}, not above {native_b:g}, the one before; the second says it was adjusted"
    elif method_b == Method.NTK.value:
        factor = b.extension.get("factor", 1.0)
        expected = ntk_theta(native_b, factor, b.rotations[0].geometry.rotary_dim)
        if not math.isclose(theta_b, expected, rel_tol=1e-6):
            return f"the base is {theta_b:g}, but NTK-aware by factor {factor:g} makes it {expected:g}"
    elif theta_b != native_b:
        return f"the base is {theta_b:g}, but {method_b} leaves it at {native_b:g}"
    return None


def _length_fault(a: Reading, b: Reading) -> str | None:
    scaling, earlier = b.rotations[0].scaling, b.extension
    native = a.extension.get("original_length") or a.rotations[0].original_length
    told = getattr(scaling, "original_length", earlier.get("original_length"))
    if told is not None and native is not None and told != native:
        return f"the second was extended over {told} trained tokens, the first has {native}"
    reach = b.reach or 0
    if reach < (a.reach or 0):
        return f"the second serves {reach} tokens, fewer than the {a.reach} of the first"
    method = _method(b)
    if method in tuple(Method) and RECIPES[Method(method)].own_factor:
        return None
    factor = scaling.factor if isinstance(scaling, (Yarn, Dynamic)) else earlier.get("factor")
    if told is not None and factor is not None and reach and abs(told * factor - reach) >= 1:
        return f"factor {factor:g} over {told} tokens makes {told * factor:g}, but the config's length is {reach}"
    return None


def _attention_fault(a: Reading, b: Reading) -> str | None:
    ours, theirs = (getattr(r.rotations[0].scaling, "explicit_attention_factor", None) for r in (a, b))
    if theirs is None or theirs == ours:
        return None
    scaling = b.rotations[0].scaling
    assert isinstance(scaling, (Yarn, LongRope))
    derived = derived_attention_factor(scaling)
    if math.isclose(theirs, derived, rel_tol=1e-3):
        return None
    return (
        f"attention_factor is {theirs:g}; the factor {scaling.factor:g} gives {derived:.6g}, and the first has {ours}"
    )
