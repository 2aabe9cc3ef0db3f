"""Whether one config is an extension of another: the same numbers, but for those that the extension sets.

A number of a rope block that merely differs is another model, not an extension: a lost base, a factor applied twice, a
wrong original length, a beta that went missing. What an extension may set is known from its method, from the block
that was there before, and from what the marker of `extend` says of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from ropetool.families.methods import EXTENDING, Method
from ropetool.families.native import scaled_by_now
from ropetool.families.reading import Reading, Rotation
from ropetool.families.recipes import BASE, OF_PROPORTIONAL, ORIGINAL, RECIPES, derived_attention_factor
from ropetool.families.verdict import Fault
from ropetool.rope.frequencies import Default, Dynamic, Linear, LongRope, Proportional, Scaling, Yarn, ntk_theta

SETTINGS = "settings"  # the marker's entry: what a person set beyond factor and length
ATTENTION = "attention_factor"
# Fields of a scaling that have rules of their own here.
RULED = ("theta", "factor", "original_length", "explicit_attention_factor", "base")
NAMES = {"theta": "rope_theta", "original_length": ORIGINAL, "explicit_attention_factor": ATTENTION}
# People write an attention factor with 4 digits or more.
WRITTEN, COMPUTED = 1e-3, 1e-6


def extension_fault(a: Reading, b: Reading) -> Fault | None:
    """Why ``b`` is not an extension of ``a``, and the key at fault; None when it is one."""
    rules = (_others, _method_fault, _base_fault, _original_fault, _settings_fault, _factor_fault, _length_fault)
    return next((fault for rule in (*rules, _attention_fault) for fault in rule(a, b)), None)


def differing_key(a: Rotation, b: Rotation) -> str:
    """The first number in which two rotations differ, by the place where the second has it, or else the first."""
    one, other = a.scaling, b.scaling
    if type(one) is not type(other):
        return _key(a, b, "rope_type")
    name = next((f.name for f in fields(one) if getattr(one, f.name) != getattr(other, f.name)), "theta")
    return _key(a, b, NAMES.get(name, name))


def _key(a: Rotation, b: Rotation, key: str) -> str:
    """Where ``b`` has a key of its block, or where ``a`` has it, or where it would be."""
    block = next((where.rpartition(".")[0] for r in (b, a) for where in r.block.sources.values() if "." in where), "")
    there = next((r.block.sources[key] for r in (b, a) if key in r.block.sources), None)
    return there or f"{block or 'rope_parameters'}.{key}"


def _in_file(reading: Reading, key: str) -> str:
    """A key of the text part, as the path to it in config.json."""
    return ".".join((*reading.decoder.path, key))


def _at(a: Reading, b: Reading, key: str, said: str) -> Fault:
    """A fault in a key of the rope block of the scaled layers."""
    where = _in_file(b, _key(a.rotations[0], b.rotations[0], key))
    return Fault(said if key in said else f"{where}: {said}", where)


def _at_length(b: Reading, said: str) -> Fault:
    where = _in_file(b, b.family.keys.length)
    return Fault(f"{b.family.keys.length}: {said}", where)


def _others(a: Reading, b: Reading) -> Iterator[Fault]:
    kinds = [[rotation.layers for rotation in reading.rotations] for reading in (a, b)]
    if kinds[0] != kinds[1]:
        said = f"{', '.join(kinds[0])} layers have a rotation in the first, {', '.join(kinds[1])} in the second"
        yield Fault(f"rope_parameters: {said}", _in_file(b, "rope_parameters"))
        return
    for ours, theirs in zip(a.rotations[1:], b.rotations[1:], strict=True):
        if ours.scaling != theirs.scaling:
            where = _in_file(b, differing_key(ours, theirs))
            said = f"the rotation of {theirs.layers} layers differs in {where}, and an extension leaves it alone"
            yield Fault(said, where)


def _scaling(reading: Reading) -> Scaling:
    return reading.rotations[0].scaling


def _method(reading: Reading) -> str | None:
    return scaled_by_now(reading.extension, _scaling(reading))[0]


def _block_name(method: str) -> tuple[str, ...]:
    """The names that the scaling in a block can have for a method."""
    own = (RECIPES[Method(method)].rope_type, method)
    return (*own, Proportional.name) if Method(method) in OF_PROPORTIONAL else own


def _method_fault(a: Reading, b: Reading) -> Iterator[Fault]:
    method_a, method_b = _method(a), _method(b)
    theta_a, theta_b = _scaling(a).theta, _scaling(b).theta
    if method_b is None and theta_a != theta_b:
        said = f"the base is {theta_a:g} in the first and {theta_b:g} in the second, which is marked as no extension"
        yield _at(a, b, "rope_theta", said)
    elif method_b is None and _scaling(a) != _scaling(b):
        yield _at(a, b, "rope_type", f"the first is scaled by {method_a}, the second by nothing")
    elif method_b is None:
        yield _at_length(b, f"{b.reach} in the second, {a.reach} in the first, and nothing in the second is scaled")
    elif method_b in EXTENDING and _scaling(b).name not in _block_name(method_b):
        said = f"the marker says that the second was extended by {method_b}, and its block is {_scaling(b).name}"
        yield _at(a, b, "rope_type", said)
    elif method_a not in (None, method_b):
        yield _at(a, b, "rope_type", f"the first is scaled by {method_a}, the second by {method_b}")


def _base_fault(a: Reading, b: Reading) -> Iterator[Fault]:
    theta_a, theta_b = _scaling(a).theta, _scaling(b).theta
    native_a, native = a.extension.get("original_theta", theta_a), b.extension.get("original_theta", theta_b)
    said = None
    if native_a != native:
        said = f"the base before any extension is {native_a:g} in the first and {native:g} in the second"
    elif _method(b) == Method.ABF.value:
        given = _given(b).get(BASE)
        if theta_b <= native:
            said = f"the base is {theta_b:g}, not above {native:g}, the one before; the second says it was adjusted"
        elif given is not None and theta_b != given:
            said = f"the base is {theta_b:g}, and the marker says that it was adjusted to {given:g}"
    elif _method(b) == Method.NTK.value and b.extension:
        factor = b.extension.get("factor", 1.0)
        expected = ntk_theta(native, factor, b.rotations[0].geometry.rotary_dim)
        if not math.isclose(theta_b, expected, rel_tol=COMPUTED):
            said = f"the base is {theta_b:g}, but NTK-aware by factor {factor:g} makes it {expected:g}"
    elif theta_b != native:
        said = f"the base is {theta_b:g}, but {_method(b)} leaves it at {native:g}"
    if said:
        yield _at(a, b, "rope_theta", said)


def _original_fault(a: Reading, b: Reading) -> Iterator[Fault]:
    """The trained length that the second was extended over is the first's."""
    marked = b.extension.get("original_length")
    told = getattr(_scaling(b), "original_length", marked)
    if told is None:
        return
    known, at_most = _trained(a)
    said = None
    if marked is not None and told != marked:
        said = f"the second was extended over {told} trained tokens, and its marker says {marked}"
    elif known is not None and told != known:
        said = f"the second was extended over {told} trained tokens, the first has {known}"
    elif at_most is not None and told > at_most:
        said = f"the second was extended over {told} trained tokens, and the first serves {at_most}"
    elif known is None and marked is None and at_most and told != at_most and not at_most & (at_most - 1):
        said = f"the second was extended over {told} trained tokens, the first has {at_most}"
    if said:
        yield _at_length(b, said) if isinstance(_scaling(b), Dynamic) else _at(a, b, ORIGINAL, said)


def _trained(a: Reading) -> tuple[int | None, int | None]:
    """The trained length of a model where its config tells it, and the most that it can be.

    max_position_embeddings may hold more than that (Qwen3: 40960 for 32768), and does under a linear block.
    """
    scaling = _scaling(a)
    known = a.extension.get("original_length") or getattr(scaling, "original_length", None)
    known = known or a.rotations[0].block.values.get(ORIGINAL)
    if known is None and isinstance(scaling, Linear) and a.length:
        return None, a.length
    return known, a.length


def _taken(a: Reading, b: Reading) -> float | None:
    """The trained length under a block that does not tell it, where the first's length can only be that."""
    length, ours = a.length, _scaling(a)
    if length is None or not isinstance(_scaling(b), Linear):
        return None
    if isinstance(ours, Linear):
        return length / ours.factor
    return None if length & (length - 1) else length


def _given(b: Reading) -> Mapping[str, Any]:
    """What the marker says that a person set."""
    given = b.extension.get(SETTINGS)
    return given if isinstance(given, dict) else {}


def _settings_fault(a: Reading, b: Reading) -> Iterator[Fault]:
    """Every number of the method is the one that was there, or the one that was set, or the method's own."""
    ours, theirs = _scaling(a), _scaling(b)
    same = type(ours) is type(theirs) and not isinstance(theirs, Default)
    for field in fields(theirs):
        if field.name in RULED:
            continue
        value = getattr(theirs, field.name)
        if field.name in _given(b):
            expected, by = _given(b)[field.name], "the marker says that it was set to"
        elif same:
            if isinstance(value, tuple) and getattr(ours, "factor", None) != getattr(theirs, "factor", None):
                continue  # lists that were searched anew for another factor
            expected, by = getattr(ours, field.name), "the first has"
        elif SETTINGS in b.extension and _own(b, field.name, field.default) is not MISSING:
            expected, by = _own(b, field.name, field.default), "nothing else was asked for than"
        else:
            continue
        if value != (tuple(expected) if isinstance(expected, list) else expected):
            yield _at(a, b, field.name, f"{field.name} is {_apart(value, expected, by)}")


def _own(b: Reading, name: str, default: Any) -> Any:
    """What a method takes where nothing is said: by its recipe, or by the formula."""
    return RECIPES[Method(str(_method(b)))].defaults.get(name, default) if _method(b) in EXTENDING else MISSING


def _apart(value: Any, expected: Any, by: str) -> str:
    """Two values, and of two lists the first entry that differs."""
    if not isinstance(value, tuple):
        return f"{_said(value)} in the second, and {by} {_said(expected)}"
    index = next((i for i, pair in enumerate(zip(value, expected, strict=False)) if pair[0] != pair[1]), None)
    if index is None:
        return f"a list of {len(value)} in the second, and {by} one of {len(expected)}"
    return f"{value[index]:g} at entry {index} in the second, and {by} {expected[index]:g}"


def _said(value: Any) -> str:
    return "absent" if value is None else f"{value:g}" if isinstance(value, float) else str(value).lower()


def _factor(b: Reading) -> float | None:
    """The factor of the extension: that of the block, or the marker's where the base alone was set."""
    method = _method(b)
    in_block = method not in EXTENDING or RECIPES[Method(method)].is_scaled
    found = getattr(_scaling(b), "factor", None) if in_block else None
    return found if found is not None else b.extension.get("factor")


def _factor_fault(a: Reading, b: Reading) -> Iterator[Fault]:
    factor, marked, before = _factor(b), b.extension.get("factor"), getattr(_scaling(a), "factor", None)
    if factor is None:
        return
    if marked is not None and not math.isclose(factor, marked, rel_tol=COMPUTED):
        yield _at(a, b, "factor", f"the factor is {factor:g}, and the marker says that it was extended by {marked:g}")
    elif before is not None and _method(a) == _method(b) and factor < before:
        yield _at(a, b, "factor", f"the factor is {factor:g}, below that of the first, {before:g}")


def _length_fault(a: Reading, b: Reading) -> Iterator[Fault]:
    reach, marked = b.reach or 0, b.extension.get("length")
    factor = _factor(b)
    told = getattr(_scaling(b), "original_length", b.extension.get("original_length")) or _taken(a, b)
    method = _method(b)
    recipe = RECIPES[Method(method)] if method in EXTENDING else None
    own = recipe is not None and (recipe.own_factor or (recipe.reaches_by_factor and marked is not None))
    if marked is not None and reach != marked:
        yield _at_length(b, f"the second serves {reach} tokens, and its marker says that it was extended to {marked}")
    elif reach < (a.reach or 0):
        yield _at_length(b, f"the second serves {reach} tokens, fewer than the {a.reach} of the first")
    elif reach == a.reach and _method(a) is None and (told is None or told >= reach):
        yield _at_length(b, f"the second serves {reach} tokens, as the first does: it was scaled, and not raised")
    elif not own and told is not None and factor is not None and reach and abs(told * factor - reach) >= 1:
        said = f"factor {factor:g} over {told} tokens makes {told * factor:g}, but the config's length is {reach}"
        yield _at(a, b, "factor", said)


def _attention_fault(a: Reading, b: Reading) -> Iterator[Fault]:
    """A given attention factor is the one that was set, or kept with its factor, or what the formula gives."""
    ours, theirs = _scaling(a), _scaling(b)
    if not isinstance(theirs, (Yarn, LongRope)):
        return
    if isinstance(theirs, Yarn) and not (isinstance(ours, Yarn) or b.extension or b.geometry.latent_dim):
        plain = replace(theirs, mscale=None, mscale_all_dim=None).attention_factor
        if not math.isclose(plain, theirs.attention_factor, rel_tol=WRITTEN):
            said = (
                f"mscale makes the attention factor {theirs.attention_factor:.6g}, where the factor {theirs.factor:g} "
            )
            yield _at(a, b, "mscale", f"{said}gives {plain:.6g}; only latent attention makes up for that elsewhere")
            return
    factor, given = theirs.explicit_attention_factor, _given(b).get(ATTENTION)
    derived = derived_attention_factor(theirs)
    kept = getattr(ours, "explicit_attention_factor", None) if _keeps_factor(ours, theirs) else None
    expected = next((value for value in (given, kept) if value is not None), derived)
    used = derived if factor is None else factor
    exact = expected is not derived
    if math.isclose(used, expected, rel_tol=COMPUTED if exact else WRITTEN):
        return
    before = getattr(ours, "explicit_attention_factor", None)
    said = f"attention_factor is {_said(factor)}; the factor {theirs.factor:g} gives {derived:.6g}, and the first has "
    set_to = f", and the marker says that it was set to {given:g}" if given is not None else ""
    yield _at(a, b, ATTENTION, f"{said}{_said(before)}{set_to}")


def _keeps_factor(ours: Scaling, theirs: Yarn | LongRope) -> bool:
    return isinstance(ours, type(theirs)) and ours.factor == theirs.factor
