"""How two configs differ in what rotation and geometry they mean, and in the keys that are about neither."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from ropetool.checkpoint.config import BLOCKS, MARKER, SHARED_KEYS
from ropetool.errors import TwinError
from ropetool.families.difference import Difference, PartOf, What
from ropetool.families.family import Family
from ropetool.families.lengths import OTHER_LENGTH_KEYS
from ropetool.families.reading import Reading, Rotation, Warn
from ropetool.families.recipes import SCALING_KEYS
from ropetool.families.twin_rows import twin_row
from ropetool.families.twins import twin_config
from ropetool.families.verdict import Fault
from ropetool.rope.frequencies import Scaling

# Keys of a config that no logit depends on.
OUTSIDE_THE_LOGITS = frozenset(
    (
        *(MARKER, "transformers_version", "_name_or_path", "dtype", "torch_dtype", "architectures", "use_cache"),
        *("initializer_range", "auto_map", "id2label", "label2id", "router_aux_loss_coef", "output_router_logits"),
        *("output_attentions", "output_hidden_states", "return_dict", "problem_type", "_attn_implementation"),
    )
)
TRAINING_ENDINGS = ("_token_id", "_dropout", "_pdrop")
# Keys of a rope block that a scaling method reads; every other one (mRoPE sections, for one) is compared as it is.
BLOCK_KEYS = SCALING_KEYS | set(SHARED_KEYS)
WIDTHS = ("head_dim", "rope_start", "rotary_dim", "latent_dim", "value_dim", "experts")
# Float32 keeps a factor of cos and sin to 1e-7; people write it with 5 digits or more.
SAME_FACTOR = 1e-6
SAME_FREQUENCY = 1e-9
FIRST = ("rope_type",)


def config_differences(
    a: Reading, b: Reading, configs: tuple[Mapping[str, Any], Mapping[str, Any]], ignored: Collection[str] = ()
) -> tuple[list[Difference], list[Warn]]:
    """The differences of two configs, and notes on what is written differently and means the same.

    ``configs`` are the whole ones, ``ignored`` keys that the caller compares itself.
    """
    rotations, notes = _rotations(a, b)
    found = [*_model_type(a, b), *_layout(a, b), *rotations, *_geometry(a, b)]
    others, one_sided = _other_keys(a, b, configs, ignored)
    if not rotations and _rope_keys(a) != _rope_keys(b):
        said = "the rope keys are written differently, and mean the same to the class"
        notes.append(Warn("written-differently", said))
    if one_sided:
        said = f"in one config only, so that the other's class takes its own value: {'; '.join(one_sided)}"
        notes.append(Warn("one-sided-keys", said))
    return [*found, *others], notes


def _model_type(a: Reading, b: Reading) -> Iterator[Difference]:
    if a.model_type == b.model_type:
        return
    twins = twin_row(a.model_type, b.model_type) is not None
    part = PartOf.LAYOUT if twins and a.pairing is not b.pairing else None
    detail = (
        f"the two classes are the same model but for the layout: the first rotates {a.class_pairing.value}, the second "
        f"{b.class_pairing.value}"
        if twins
        else "two model classes that are not known to be the same but for the layout"
    )
    yield Difference(What.CONFIG, "model_type", a.model_type, b.model_type, detail, part)


def _layout(a: Reading, b: Reading) -> Iterator[Difference]:
    differ = a.pairing is not b.pairing
    if differ:
        said = (f"the {side}: {reading.evidence[0].detail}" for side, reading in (("first", a), ("second", b)))
        yield Difference(
            What.PAIRING, "layout of q and k", a.pairing.value, b.pairing.value, "; ".join(said), PartOf.LAYOUT
        )
    if a.model_type == b.model_type and a.class_pairing is not b.class_pairing:
        key = a.family.pairing_key or "auto_map"
        ways = f"{a.class_pairing.value} in the first, {b.class_pairing.value} in the second"
        said_a, said_b = (reading.config.get(key) for reading in (a, b))
        yield Difference(
            What.PAIRING, key, said_a, said_b, f"the class rotates {ways}", PartOf.LAYOUT if differ else None
        )


def _rotations(a: Reading, b: Reading) -> tuple[list[Difference], list[Warn]]:
    """The rotations of each kind of layer, and of the other sites, held against each other by name."""
    sides = [{r.layers: r for r in (*reading.others, *reading.rotations)} for reading in (a, b)]
    found: list[Difference] = []
    notes: list[Warn] = []
    for layers in dict.fromkeys((*sides[0], *sides[1])):
        left, right = (side.get(layers) for side in sides)
        where = "rope" if layers == "all" else f"rope of {layers}"
        if left is None or right is None:
            one, other = (None if rotation is None else rotation.scaling.name for rotation in (left, right))
            detail = f"only one of the two has a rotation for {layers} layers"
            found.append(Difference(What.CONFIG, where, one, other, detail))
            continue
        differing = list(_values(where, left, right))
        if differing and _same_numbers(left, right, a, b):
            said = ", ".join(f"{d.where.removeprefix(f'{where}: ')} ({d.a} and {d.b})" for d in differing)
            notes.append(Warn("written-differently", f"{where} differs in {said}, and turns by the same numbers"))
            continue
        found += [*_with_effect(differing, left, right, b), *_block_keys(where, left, right)]
    return found, notes


def _said(scaling: Scaling, other: Scaling) -> dict[str, Any]:
    """A scaling method as its values by the names that config.json has for them; its defaults only beside its like."""
    names = {"original_length": "original_max_position_embeddings", "theta": "rope_theta"}
    values = {
        names.get(field.name, field.name): getattr(scaling, field.name)
        for field in fields(scaling)
        if isinstance(other, type(scaling)) or getattr(scaling, field.name) != field.default
    }
    values.pop("explicit_attention_factor", None)
    return {"rope_type": scaling.name, **values, "attention_factor": scaling.attention_factor}


def _values(where: str, a: Rotation, b: Rotation) -> Iterator[Difference]:
    left, right = _said(a.scaling, b.scaling), _said(b.scaling, a.scaling)
    for key in sorted(left.keys() | right.keys(), key=lambda key: (key not in FIRST, key)):
        one, other = left.get(key), right.get(key)
        if one == other or (key == "attention_factor" and _same_factor(a, b)):
            continue
        detail = _detail(key, one, other, a, b)
        yield Difference(What.CONFIG, f"{where}: {key}", one, other, detail)


def _same_factor(a: Rotation, b: Rotation) -> bool:
    return math.isclose(a.scaling.attention_factor, b.scaling.attention_factor, rel_tol=SAME_FACTOR)


def _detail(key: str, one: Any, other: Any, a: Rotation, b: Rotation) -> str:
    if isinstance(one, tuple) and isinstance(other, tuple):
        wrong = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        return f"the lists differ from entry {wrong} on" if wrong is not None else "one list is longer"
    if one is None or other is None:
        return f"{(b if one is None else a).scaling.name} has it, and {(a if one is None else b).scaling.name} has not"
    if key == "rope_theta":
        return f"read from {a.theta_source} in the first, {b.theta_source} in the second"
    if key == "attention_factor":
        return f"q x k grows by its square: {(other / one) ** 2:.6g} times as large in the second"
    return "how the frequencies are scaled" if key == "rope_type" else "a number of the method"


def _with_effect(differing: list[Difference], a: Rotation, b: Rotation, second: Reading) -> list[Difference]:
    """The first of a rotation's differences also says what it comes to."""
    if not differing:
        return []
    first, *rest = differing
    method = second.extension.get("method")
    by = f"; the second was extended by {method}" if method and method != b.scaling.name else ""
    detail = f"{_effect(a, b)}{by}"
    return [Difference(first.what, first.where, first.a, first.b, f"{first.detail}; {detail}"), *rest]


def _effect(a: Rotation, b: Rotation) -> str:
    """What two rotations do differently, beyond their trained lengths, in a clause."""
    left, right = (_frequencies(rotation, _beyond(a, b)) for rotation in (a, b))
    if len(left) != len(right):
        return f"{len(left)} pairs turn in the first, {len(right)} in the second"
    apart = ~np.isclose(left, right, rtol=SAME_FREQUENCY, atol=0)
    turning = apart & (left > 0) & (right > 0)
    ratio = float(np.max(np.maximum(left[turning] / right[turning], right[turning] / left[turning]), initial=1.0))
    return f"{int(apart.sum())} of {len(left)} pairs turn at another speed, by up to a factor of {ratio:.4g}"


def _frequencies(rotation: Rotation, length: int | None) -> np.ndarray[Any, np.dtype[np.float64]]:
    return rotation.scaling.inv_freq(rotation.geometry.rotary_dim, length)


def _beyond(a: Rotation, b: Rotation) -> int | None:
    """A length past the trained ones, at which dynamic and longrope show what they do there."""
    known = [rotation.original_length for rotation in (a, b) if rotation.original_length]
    return 4 * max(known) if known else None


def _same_numbers(left: Rotation, right: Rotation, a: Reading, b: Reading) -> bool:
    """Whether two rotations are the same at every length that can be told apart, whatever they are called."""
    if left.geometry.rotary_dim != right.geometry.rotary_dim:
        return False
    lengths = {None, a.length, b.length, left.original_length, right.original_length, _beyond(left, right)}
    return _same_factor(left, right) and all(
        np.allclose(_frequencies(left, length), _frequencies(right, length), rtol=SAME_FREQUENCY, atol=0)
        for length in lengths
    )


def _block_keys(where: str, a: Rotation, b: Rotation) -> Iterator[Difference]:
    """Keys of a block that belong to no scaling method."""
    left, right = a.block.values, b.block.values
    for key in sorted((left.keys() | right.keys()) - BLOCK_KEYS):
        if left.get(key) != right.get(key):
            yield Difference(
                What.CONFIG, f"{where}: {key}", left.get(key), right.get(key), "a key of the block for this class"
            )


def block_fault(a: Reading, b: Reading) -> Fault | None:
    """The first key of a rope block that belongs to no scaling method, and is another in the second.

    Of a list with the base of every layer, which layers have one: the base is the block's.
    """
    bases = b.family.theta_list
    one, two = ([bool(theta) for theta in reading.config.get(bases) or ()] for reading in (a, b))
    if one != two:
        return Fault(f"{bases} has a base for other layers in the second config", ".".join((*b.decoder.path, bases)))
    theirs = {rotation.layers: rotation for rotation in b.rotations}
    for ours in a.rotations:
        other = theirs.get(ours.layers)
        for found in () if other is None else _block_keys(ours.layers, ours, other):
            key = found.where.rpartition(" ")[2]
            sources = {**ours.block.sources, **(other.block.sources if other else {})}
            where = ".".join((*b.decoder.path, sources[key]))
            return Fault(f"{where} is {found.a!r} in one and {found.b!r} in the other", where)
    return None


def _geometry(a: Reading, b: Reading) -> Iterator[Difference]:
    for name in ("heads", "kv_heads", *WIDTHS):
        one, other = getattr(a.geometry, name), getattr(b.geometry, name)
        if one != other:
            yield Difference(What.CONFIG, name, one, other, "so the rows of q and k fall into other heads")
    if len(a.layers) == len(b.layers):
        pairs = enumerate(zip(a.layers, b.layers, strict=True))
        wrong = [layer for layer, (one, other) in pairs if _shape(one) != _shape(other)]
        if wrong and _shape(a.geometry) == _shape(b.geometry):
            one, other = (list(_shape(side.layers[wrong[0]])) for side in (a, b))
            detail = f"{len(wrong)} layers have other heads; these are layer {wrong[0]}'s {', '.join(SHAPE)}"
            yield Difference(What.CONFIG, "heads by layer", one, other, detail)
    if a.nope_layers != b.nope_layers:
        one, other = (sorted(reading.nope_layers) for reading in (a, b))
        yield Difference(What.CONFIG, "layers without rotation", one, other, "other layers do not turn")


SHAPE = ("heads", "kv_heads", *WIDTHS)


def _shape(geometry: Any) -> tuple[int, ...]:
    return tuple(getattr(geometry, name) for name in SHAPE)


def _read_keys(family: Family) -> set[str]:
    """The keys that the reading of a config accounts for."""
    keys, nope = family.keys, family.nope
    single = (keys.heads, keys.kv_heads, keys.latent, keys.value, keys.length, family.pairing_key)
    read = [*BLOCKS, *SHARED_KEYS, *OTHER_LENGTH_KEYS, *family.theta_keys, *keys.rotary, *keys.head_dim, *single]
    read += [key for kind in family.kinds for key in (kind.theta_key, *kind.instead, *kind.instead.values())]
    read += [nope.flags, nope.interval_key, nope.only_with] if nope else []
    return {key for key in read if key}


def _rope_keys(reading: Reading) -> dict[str, Any]:
    """The keys that say how the model turns, as they are written."""
    keys = {*BLOCKS, *SHARED_KEYS, *reading.family.theta_keys, *(kind.theta_key for kind in reading.family.kinds)}
    return {key: value for key, value in reading.config.items() if key in keys and value is not None}


def _other_keys(
    a: Reading, b: Reading, configs: tuple[Mapping[str, Any], Mapping[str, Any]], ignored: Collection[str]
) -> tuple[list[Difference], list[str]]:
    """Keys that are not about RoPE: those with two values, and words for those that one config alone has."""
    left, right = (_spread(config, reading) for config, reading in zip(configs, (a, b), strict=True))
    row = twin_row(a.model_type, b.model_type)
    notes = []
    if row is not None and row.source == a.model_type:
        try:
            left = dict(twin_config(configs[0], a, row)[0])
        except TwinError as error:
            notes.append(error.message)
    read = {"model_type", *ignored, *_read_keys(a.family), *_read_keys(b.family)}
    found = []
    for key in sorted(left.keys() | right.keys()):
        name = key.rpartition(".")[2]
        if name in read or name in OUTSIDE_THE_LOGITS or key.endswith(TRAINING_ENDINGS):
            continue
        one, other = left.get(key), right.get(key)
        if one is None or other is None:
            if one != other:
                value, side = (one, "first") if other is None else (other, "second")
                notes.append(f"{key} {_short(value)} ({side})")
        elif one != other:
            found.append(Difference(What.CONFIG, key, one, other, "not about the rotation; another model all the same"))
    return found, notes


def _spread(config: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """A whole config, with the keys of its text decoder one by one."""
    path = reading.decoder.path
    if not path:
        return dict(config)
    prefix = ".".join(path)
    return {key: value for key, value in config.items() if key != path[0]} | {
        f"{prefix}.{key}": value for key, value in reading.config.items()
    }


def _short(value: Any) -> str:
    said = str(value)
    return said if len(said) <= 40 else f"{said[:37]}..."
