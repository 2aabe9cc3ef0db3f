"""Whether two checkpoints can be compared at all: the same tensors, in the same form, in the same heads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from ropetool.checkpoint.compare import same_form
from ropetool.checkpoint.shards import Tensor
from ropetool.families.geometry import SHARE, Geometry
from ropetool.families.reading import Reading
from ropetool.families.verdict import Fault


def tensor_fault(a: Mapping[str, Tensor], b: Mapping[str, Tensor], what: str = "checkpoint") -> Fault | None:
    """The first tensor that is in one of the two alone, or of another dtype or shape."""
    for name in sorted(a.keys() ^ b.keys()):
        return Fault(f"{name} is in {'the first' if name in a else 'the second'} {what} only", name)
    for name, left in a.items():
        right = b[name]
        if not same_form(left, right):
            forms = f"{left.dtype}{list(left.shape)} in one and {right.dtype}{list(right.shape)} in the other"
            return Fault(f"{name} is {forms}", name)
    return None


def loading_fault(a: Mapping[str, Any], b: Mapping[str, Any]) -> Fault | None:
    """Whether two whole configs of one type have it loaded by another class, by code, or in another number type.

    ``torch_dtype`` is what transformers 4 calls it. A config that names no class or type leaves it to the loader.
    """
    for key in ("architectures", "auto_map"):
        ours, theirs = a.get(key), b.get(key)
        lost = key == "architectures" and not (ours and theirs)
        if a.get("model_type") == b.get("model_type") and ours != theirs and not lost:
            return Fault(f"{key} is {ours!r} in one and {theirs!r} in the other, so they load as other classes", key)
    one, other = (str(c.get("dtype") or c.get("torch_dtype") or "").removeprefix("torch.") for c in (a, b))
    if not (one and other) or one == other:
        return None
    return Fault(
        f"dtype is {one} in one and {other} in the other, so the class loads the same bytes otherwise", "dtype"
    )


def geometry_fault(a: Reading, b: Reading) -> Fault | None:
    """The first key by which the rows fall into other heads, or other layers turn."""
    return next(chain(_widths(a, b), _layers(a, b)), None)


# The fields of a geometry, in the order in which one explains the next.
FIELDS = ("heads", "kv_heads", "head_dim", "rotary_dim", "rope_start", "latent_dim", "value_dim", "experts")


def _widths(a: Reading, b: Reading) -> Iterator[Fault]:
    one, other = a.geometry, b.geometry
    differing = next((name for name in FIELDS if getattr(one, name) != getattr(other, name)), None)
    if differing is None:
        return
    where = _at(a, b, differing)
    values = f"{getattr(one, differing)} in one config and {getattr(other, differing)} in the other"
    heads = [(g.heads, g.kv_heads, g.head_dim) for g in (one, other)]
    said = f"{where}: {differing} is {values}"
    if heads[0] != heads[1]:
        said += f"; (query heads, key-value heads, head_dim) is {heads[0]} in one config and {heads[1]} in the other"
    yield Fault(said, where)


def _at(a: Reading, b: Reading, field: str) -> str:
    """The key that tells a field of the geometry: the first that differs, of those that the class reads."""
    keys = b.family.keys
    names = {
        "heads": (keys.heads,),
        "kv_heads": (keys.kv_heads, *(keys.one_kv_head or ())),
        "head_dim": (*keys.head_dim, keys.hidden),
        "latent_dim": (keys.latent,),
        "value_dim": (keys.value, *keys.head_dim),
        "experts": (keys.experts,),
    }.get(field, (*keys.rotary, *keys.head_dim))
    read = [key for key in names if key]
    differing = next((key for key in read if _value(a.config, key) != _value(b.config, key)), None)
    in_block = [r.rotations[0].block.sources[SHARE] for r in (b, a) if SHARE in r.rotations[0].block.sources]
    found = differing or next(iter(in_block), None) or next(iter(read), field)
    return ".".join((*b.decoder.path, found))


def _value(config: Mapping[str, Any], key: str) -> Any:
    """The value of ``a.b`` is that of b in the object a."""
    outer, _, inner = key.partition(".")
    value = config.get(outer)
    return _value(value, inner) if inner and isinstance(value, Mapping) else value


def _layers(a: Reading, b: Reading) -> Iterator[Fault]:
    if len(a.layers) == len(b.layers):
        wrong = [i for i, (one, other) in enumerate(zip(a.layers, b.layers, strict=True)) if _bare(one) != _bare(other)]
        if wrong:
            yield Fault(f"layer_types: layer {wrong[0]} has other heads in the second config", "layer_types")
    if a.nope_layers != b.nope_layers:
        nope = b.family.nope
        keys = [key for key in (nope.flags, nope.interval_key, "layer_types") if key] if nope else []
        where = next((key for key in keys if a.config.get(key) != b.config.get(key)), next(iter(keys), "layer_types"))
        layers = " and ".join(str(sorted(reading.nope_layers)) for reading in (a, b))
        yield Fault(f"{where}: the layers without rotation are {layers} in the two configs", where)


def _bare(geometry: Geometry) -> Geometry:
    return replace(geometry, class_defaults={})
