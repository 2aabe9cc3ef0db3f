"""Which tensors of a PEFT adapter move with the rows of q and k, and which methods can be converted at all.

A method is exact where it changes a weight by parameters that are the output rows' own, beside others that no row
has a part of: a permutation P of the rows of W + B A is that of W and of B, and A stays. Where rows share parameters
(blocks, Kronecker factors, spectra, banks of vectors) no such tensor exists for the converted base, and the adapter is
refused: merge it into its base, and convert the merged model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ropetool.checkpoint.adapter import BASE_KEY, base_of
from ropetool.checkpoint.config import MARKER, marker, with_marker
from ropetool.checkpoint.folder import ADAPTER_CONFIG, Checkpoint, read_config
from ropetool.checkpoint.shards import Shard, Tensor
from ropetool.errors import ConfigError, UnclaimedTensorError, UnsupportedError
from ropetool.families.plan import Claim, Move, Permutation, Plan, claims, permutation_of
from ropetool.families.reading import Evidence, Reading, read_model
from ropetool.rope.pairing import Pairing

MERGE = "merge it into its base and convert the merged model"
PREFIX = "base_model.model."
# Segments that PEFT puts around a full copy: base_layer of a bias, the others of a whole module.
FULL_COPY = ("base_layer", "modules_to_save", "ln_tuning_layers")


@dataclass(frozen=True)
class Method:
    """A PEFT method: the parameters whose rows are the output rows of the wrapped module, and those that stay."""

    rows: tuple[str, ...] = ()
    stays: tuple[str, ...] = ()
    refused: str = ""


def _refused(reason: str, *names: str) -> dict[str, Method]:
    return dict.fromkeys(names, Method(refused=reason))


# Read from peft 0.21.2, tuners/<method>/layer.py: get_delta_weight, merge and forward.
METHODS: Mapping[str, Method] = {
    # W + s B A (+ the bias of B); DoRA: rows of that, each brought to the length in lora_magnitude_vector.
    "LORA": Method(("lora_B", "lora_magnitude_vector"), ("lora_A",)),
    "ADALORA": Method(("lora_B",), ("lora_A", "lora_E", "ranknum")),  # W + B (A * E), E per rank
    "LOHA": Method(("hada_w1_a", "hada_w2_a"), ("hada_w1_b", "hada_w2_b")),  # W + (w1_a w1_b) * (w2_a w2_b)
    "HIRA": Method(("hira_B",), ("hira_A",)),  # W + W * (B A), elementwise
    "IA3": Method(("ia3_l",)),  # one factor per output row; of shape [1, in] in feedforward_modules, per input
    "OFT": Method((), ("oft_R",)),  # W R: the inputs are rotated
    "BOFT": Method(("boft_s",), ("boft_R",)),  # s * (W R): the inputs are rotated, the output rows scaled
    "HRA": Method((), ("hra_u",)),  # W H: the inputs are reflected
    "DELORA": Method(("delora_B",), ("delora_A", "delora_lambda", "delora_w_norm")),  # norms of columns, not of rows
    "LN_TUNING": Method(),  # full copies of norms
    **_refused("a Kronecker product of two factors; the rows that move share entries of both", "LOKR"),
    **_refused("random or shared matrices that serve every projection alike, v too", "VERA", "PVERA", "RANDLORA"),
    **_refused("vectors of one bank that all modules share", "VBLORA", "UNILORA"),
    **_refused("a transform over the whole weight, in which rows have no entries of their own", "FOURIERFT", "WAVEFT"),
    **_refused("circulant blocks that several rows share", "C3A"),
    **_refused("a rotation of output rows in pairs of its own", "ROAD"),
    **_refused("blocks of rows, and rows that move could leave theirs", "GRALORA", "MISS"),
    **_refused("entries listed by their place in the weight", "SHIRA"),
    **_refused("a mixture or a choice of several adapters", "POLY", "XLORA"),
    **_refused("keys of virtual tokens, put into the cache beside rotated ones", "PREFIX_TUNING", "CARTRIDGE"),
    **_refused("an attention of its own over virtual tokens", "ADAPTION_PROMPT"),
}  # fmt: skip
# What is trained there are embeddings, which no layout reaches.
LAYOUT_FREE = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "CPT", "TRAINABLE_TOKENS")


@dataclass(frozen=True)
class Adapter:
    """An opened adapter, and its base as a config that is understood. ``pairing`` is the layout of the adapter.

    ``uncertain``: that comes from a base that was converted, and that a person named, not the adapter; it may have
    been trained before.
    """

    checkpoint: Checkpoint
    base: Path
    base_name: str
    reading: Reading
    pairing: Pairing
    evidence: tuple[Evidence, ...]
    method: Method
    uncertain: bool


def read_adapter(checkpoint: Checkpoint, given_base: Path | None = None, declared: Pairing | None = None) -> Adapter:
    """Understand an opened adapter through its base: ``given_base``, or the one that it names.

    Its layout is what ropetool marked, else ``declared``, else that of the base, on which it was trained. Raises
    `UnsupportedError` for a method that cannot be converted, `MissingFileError` where the base is not known.
    """
    method = _method(checkpoint.config)
    base = base_of(checkpoint.directory, checkpoint.config, given_base)
    reading = read_model(read_config(base))
    own = _own_witness(checkpoint.config, declared)
    by_hand = given_base is not None and reading.evidence[0].source == "marker"
    of_base = tuple(replace(e, detail=f"{e.detail} (its base, {base})") for e in reading.evidence)
    evidence = (own, *of_base) if own else of_base
    own_name = checkpoint.config.get(BASE_KEY) or marker(checkpoint.config).get("base")
    renamed = own_name is None or by_hand
    name = str(base) if renamed else str(own_name)
    return Adapter(checkpoint, base, name, reading, Pairing(evidence[0].says), evidence, method, by_hand and not own)


def _method(config: Mapping[str, Any]) -> Method:
    kind = config.get("peft_type")
    if not isinstance(kind, str):
        raise ConfigError(f"{ADAPTER_CONFIG} has no peft_type: it was not written by PEFT", key="peft_type", value=kind)
    if kind in LAYOUT_FREE:
        raise UnsupportedError(
            f"{kind} trains embeddings, on which the layout has no bearing; use the adapter as it is with either base",
            peft_type=kind,
        )
    method = METHODS.get(kind, Method(refused="parameters whose part in the rows of q and k is not known"))
    if config.get("use_bdlora"):
        method = Method(refused="a block-diagonal lora_B, where each block of rows has a share of the rank of its own")
    if method.refused:
        raise UnsupportedError(f"{kind} holds {method.refused}; {MERGE}", peft_type=kind)
    return method


def _own_witness(config: Mapping[str, Any], declared: Pairing | None) -> Evidence | None:
    """What the adapter says of its layout, or the person who gave it; None: the base must tell."""
    says = marker(config).get("pairing")
    if says is None:
        return Evidence("option", declared.value, "you say so") if declared else None
    if says not in tuple(Pairing):
        raise ConfigError(f"the marker's pairing is {says!r}, not half or interleaved", key="ropetool.pairing")
    if declared not in (None, Pairing(says)):
        raise ConfigError(
            f"--from says {declared.value}, but {ADAPTER_CONFIG} was marked {says} when ropetool wrote it; leave out "
            f"--from, or remove the marker if the weights were changed since",
            key="ropetool.pairing",
        )
    return Evidence("marker", says, f"{ADAPTER_CONFIG} was marked by ropetool when it wrote this adapter")


@dataclass(frozen=True)
class _Part:
    """A tensor of the adapter: the tensor of the base that it belongs to, and whether it has that one's rows."""

    tensor: Tensor
    shard: Shard
    belongs_to: str
    has_rows: bool


def _part(shard: Shard, tensor: Tensor, method: Method) -> _Part:
    """Read a name: ``<module>.<parameter>[.<adapter's name>][.weight]``, or a full copy of a tensor of the base."""
    segments = tensor.name.removeprefix(PREFIX).split(".")
    at = next((i for i, segment in enumerate(segments) if segment in (*method.rows, *method.stays)), None)
    if at is not None and len(segments) - at <= 3:
        # Of one row, it scales the inputs: IA3 in feedforward_modules.
        has_rows = segments[at] in method.rows and not (len(tensor.shape) == 2 and tensor.shape[0] == 1)
        return _Part(tensor, shard, _plain((*segments[:at], "weight")), has_rows)
    return _Part(tensor, shard, _plain(segments), True)


def _plain(segments: Sequence[str]) -> str:
    """A name without the segments that PEFT puts around a module; the adapter's name may follow them."""
    wrapper = next((i for i, segment in enumerate(segments) if segment in FULL_COPY), None)
    if wrapper is None:
        return ".".join(segments)
    rest = segments[wrapper + 1 :]
    return ".".join((*segments[:wrapper], *(rest[1:] if len(rest) > 1 else rest)))


def plan_adapter(adapter: Adapter, target: Pairing) -> Plan:
    """Plan the moves that take an adapter to layout ``target``.

    Raises `ShapeError` for a tensor that does not fit the base, `UnclaimedTensorError` for one of an attention module
    that the base's row or the method does not explain.
    """
    if adapter.checkpoint.config.get("layer_replication") and (adapter.reading.layers or adapter.reading.still_layers):
        raise UnsupportedError(
            f"layer_replication numbers the layers anew, and those of {adapter.reading.model_type} differ in their "
            f"heads, so which rows are whose is not known; {MERGE}"
        )
    shards = adapter.checkpoint.shards
    parts = [_part(shard, tensor, adapter.method) for shard in shards for tensor in shard.tensors.values()]
    found = {c.tensor.name: permutation_of(c, adapter.pairing, target) for c in _claims(parts, adapter)}
    _check_names([part for part in parts if adapter.reading.decoder.owns(part.belongs_to)], found)
    moves = []
    for part in parts:
        permutation = found.get(part.belongs_to)
        if permutation is None or not part.has_rows:
            continue
        part.tensor.row_bytes(len(permutation.index))
        if permutation.blocks:
            moves.append(Move(part.shard, part.tensor, permutation))
    return Plan(adapter.pairing, target, tuple(moves))


def _check_names(parts: Sequence[_Part], found: Mapping[str, Permutation | None]) -> None:
    """An adapter with attention modules under none of the base's names would be copied as if nothing moved."""
    unknown = next((part for part in parts if re.search(r"(attn|attention)\.", part.belongs_to)), None)
    if unknown is not None and not found:
        raise UnclaimedTensorError(
            f"{unknown.tensor.name} seems to be of an attention module, and the row of the base names none so; "
            f"whether it must move is not known; {MERGE}",
            tensor=unknown.tensor.name,
        )


def _claims(parts: list[_Part], adapter: Adapter) -> Iterator[Claim]:
    """What the base's row says of the tensors that the adapter's belong to, as if they were there."""
    ordered = sorted(parts, key=lambda part: part.has_rows)  # so that one with the rows gives its shape
    tensors = {p.belongs_to: Tensor(p.belongs_to, p.tensor.dtype, p.tensor.shape, 0, 0) for p in ordered}
    shard = Shard(adapter.checkpoint.shards[0].path, 0, tensors)
    stand_in = Checkpoint(adapter.base, dict(adapter.reading.config), (shard,), None, dict.fromkeys(tensors, shard))
    try:
        yield from claims(stand_in, adapter.reading)
    except UnclaimedTensorError as error:
        named = error.fields.get("tensor")
        own = next((part.tensor.name for part in parts if part.belongs_to == named), named)
        raise UnclaimedTensorError(f"{own}: {error.message}", **{**error.fields, "tensor": own}) from error


def written_config(adapter: Adapter, target: Pairing, version: str) -> dict[str, Any]:
    """The adapter_config.json of the result: marked, and naming a base only where that has the layout of the result.

    A base of the other layout goes into the marker, for the way back: PEFT would load it without a word, and be wrong.
    """
    config = dict(adapter.checkpoint.config)
    earlier = {key: value for key, value in marker(config).items() if key != "base"}
    fits = adapter.reading.pairing is target
    written = {**config, BASE_KEY: adapter.base_name if fits else None, MARKER: earlier}
    return with_marker(written, version=version, pairing=target.value, **({} if fits else {"base": adapter.base_name}))
