"""Every row of the family table equals what the probe reads from the model's own code."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool import convert, verify
from ropetool.errors import UnsupportedError
from ropetool.families.attention_rows import heads_of
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.models import probe, tiny
from ropetool.models.options import DType
from ropetool.models.report import Role
from ropetool.rope.pairing import Head, Pairing, index_map


def moved_rows(spans):
    """The rows of a projection in the other layout, as a plain list."""
    return index_map(spans, Pairing.HALF, Pairing.INTERLEAVED).tolist()


# Types that can be read, and not converted.
REFUSED = {"clvp_encoder", "deepseek_v4", "diffusion_gemma_text", "zaya"}
# Types that are converted, and that verify cannot run in another layout, with the words of its error.
UNSEEN = {"qwen4_exp_text": "multiplies no q of all tokens"}
# Types whose own forward pass in float32 is 1e-5 to 1e-4 of a standard deviation off the one in float64.
ROUGH = {"dbrx", "embedding_gemma2_text"}
TOKENS = 32
# Types whose norms are off by default; tests/models/test_switches.py has them on.
NORMS_BEHIND_A_SWITCH = {"cohere", "glm4_moe", "idefics", "phi", "stablelm"}
# The weight of a projection that gives k and nothing else.
K_ALONE = r"\bk_proj(\.linear)?\.weight$|\bkey\.weight$"
# Types whose v has another number of rows than k.
V_OF_ANOTHER_WIDTH = {"mimo_v2_flash"}


def test_every_type_that_transformers_builds_has_a_row():
    assert set(tiny.rope_model_types()) == TABLE.keys()


def test_what_is_refused():
    assert {row.model_type for row in TABLE.values() if row.refusal} == REFUSED


# Dory's layers in the middle run twice, and its cache needs some before and after them.
MIDDLE_TWICE = {
    "dory": {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "n_input_layers": 1,
             "n_recurrent_layers": 2, "n_output_layers": 1},
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(TABLE.keys() - REFUSED))
def read(request, tmp_path_factory):
    """What the table says of a tiny checkpoint, and what the probe reads from the model that it was saved from."""
    report = probe.probe_model_type(request.param)
    assert report.unread is None, report.unread
    rotated = [attention for attention in report.attentions if attention.pairing is not None]
    assert rotated, "the probe saw no rotation"
    return read_model(saved_config(request.param, tmp_path_factory)), report, rotated


def saved_config(model_type, tmp_path_factory):
    directory = tmp_path_factory.mktemp("config")
    tiny.build(model_type).config.save_pretrained(directory)
    return json.loads((directory / "config.json").read_text("utf-8"))


def site_of(reading, attention):
    """The row's site that a probed module is, with its geometry in that module's first layer."""
    sites = list(
        zip(reading.family.sites, (reading.geometry, *(other.geometry for other in reading.others)), strict=True)
    )
    for site, geometry in sites[1:]:
        if f".{attention.paths[0]}".endswith(f".{site.module}") or (attention.kind == "indexer" in site.module):
            return site, geometry
    main, _ = sites[0]
    return main, reading.geometry_of_layer(f"layers.{attention.layers[0]}") if attention.layers[0] >= 0 else sites[0][1]


def test_the_pairing(read):
    reading, _, rotated = read
    for attention in rotated:
        site, _ = site_of(reading, attention)
        assert attention.pairing == (site.pairing or reading.class_pairing)
        assert attention.backwards == reading.family.backwards


def test_the_rows_of_every_projection(read):
    """Those that the row names move as it says; every other projection of the attention stays.

    A tensor that the class splits on loading is compared with the modules that it becomes, one after the other.
    """
    reading, _, rotated = read
    for attention in rotated:
        site, geometry = site_of(reading, attention)
        probed = {projection.name: projection.spans for projection in attention.projections}
        for moved in site.moves:
            parts = moved.loaded_as or (moved.module,)
            if moved.feeds and set(parts) <= probed.keys():
                spans = [span for part in parts for span in probed.pop(part)]
                assert moved_rows(spans) == moved_rows(geometry.spans(moved.rows)), moved.module
        assert probed.keys() != {p.name for p in attention.projections}, "no projection of the row was seen"
        for name, spans in probed.items():
            assert not any(isinstance(span, Head) for span in spans), f"{name} moves, and the row does not say so"


def test_the_heads_of_q_and_of_k(read):
    """Where the rotated rows of each head of q and of k begin, in fused projections too."""
    reading, _, rotated = read
    for attention in rotated:
        site, geometry = site_of(reading, attention)
        probed = {projection.name: projection.parts for projection in attention.projections}
        for moved in site.moves:
            parts = [part for name in moved.loaded_as or (moved.module,) for part in probed.get(name, ())]
            if moved.feeds and parts:
                ends = [0, *itertools.accumulate(part.rows for part in parts)]
                starts = {
                    role: tuple(
                        end + part.rope_start
                        for part, end in zip(parts, ends, strict=False)
                        if part.role is role and part.rope_dim
                    )
                    for role in (Role.Q, Role.K)
                }
                heads = heads_of(geometry, moved.rows, moved.feeds)
                assert (heads.q, heads.k) == (starts[Role.Q], starts[Role.K]), moved.module


def test_the_frequencies(read):
    reading, _, rotated = read
    if reading.family.learned:
        return  # the probe reads them with the learned factors, which no config has
    planned = {r.layers: r.scaling.inv_freq(r.geometry.rotary_dim) for r in reading.rotations}
    planned = {"all" if layers == reading.family.within else layers: f for layers, f in planned.items()}
    for attention in rotated:
        if site_of(reading, attention)[0].module == reading.family.attention and "patcher" not in attention.paths[0]:
            expected = planned["all"] if "all" in planned else planned[attention.kind]
            assert np.allclose(attention.inv_freq, expected, rtol=1e-4, atol=1e-6)


def test_the_layers_without_rotation(read):
    reading, report, rotated = read
    named = {name for moved in reading.family.moves for name in (moved.module, *moved.loaded_as)}
    rotating = {layer for attention in rotated for layer in attention.layers}
    still = {
        layer
        for attention in report.attentions
        if attention.pairing is None and attention.kind not in ("cross_attention", *reading.family.mixers)
        if named & {p.name for p in attention.projections}
        for layer in attention.layers
    }
    assert set(reading.nope_layers) == still - rotating


def test_the_norms_between_projection_and_rotation(read):
    reading, _, rotated = read
    for attention in rotated:
        site, _ = site_of(reading, attention)
        listed = {name for moved in site.moves if not moved.feeds for name in (moved.module, *moved.loaded_as)}
        found = {norm.name for norm in attention.norms if norm.role.value in "qk" and norm.weight_shape}
        assert found <= listed
        assert {name.partition(".")[0] for name in attention.touching} <= listed | set(site.stays)


def is_attention(name):
    """Whether a parameter is a projection of an attention, or of the block that only an attention feeds (Zamba 2)."""
    inside = re.search(r"attn|attention|temporal_block|mixer|shared_transformer|layers\.\d+\.linear\.", name)
    return inside and "norm" not in name.rpartition(".")[0].rpartition(".")[2]


def where_positions_matter(model_type, **values):
    """A tiny model whose attention is of unit gain."""
    model = tiny.build(model_type, **values).model
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and is_attention(name):
                parameter.div_(parameter.std() * parameter.shape[-1] ** 0.5)
            elif set(name.split(".")) & set(TABLE[model_type].companions) and not parameter.std():
                parameter.mul_(torch.linspace(0.5, 1.5, len(parameter)))  # one value in all rows shows no order
    return model


@pytest.fixture(scope="module", params=sorted(TABLE.keys() - REFUSED - UNSEEN.keys()))
def pair(request, tmp_path_factory):
    """A tiny checkpoint whose attention is of unit gain, so that positions matter, and its conversion."""
    source = tmp_path_factory.mktemp("built") / request.param
    where_positions_matter(request.param, **MIDDLE_TWICE.get(request.param, {})).save_pretrained(source)
    converted = source.with_name(f"{request.param}-converted")
    convert.apply(convert.plan(source, converted, TABLE[request.param].pairing.other, written_as="same"))
    return source, converted


def verified(source, other):
    """As verify does it; in float64 where the class's own rounding in float32 is far above the bar."""
    dtype = DType.FLOAT64 if source.name in ROUGH else DType.FLOAT32
    return verify.verify(source, other, tokens=TOKENS, dtype=dtype)


def test_verify_passes_and_the_control_fails(pair):
    result = verified(*pair)
    assert result.passed, [check for check in result.checks if not check.passed]
    assert result.relative_diff <= 1e-5
    assert result.control["max_abs_diff"] > 1000 * result.max_abs_diff


def test_the_way_back_is_bit_identical(pair, tmp_path):
    source, converted = pair
    convert.apply(convert.plan(converted, tmp_path / "back", TABLE[source.name].pairing))
    read = [(path / "model.safetensors").read_bytes() for path in (source, converted, tmp_path / "back")]
    assert read[0] == read[2] != read[1]


@pytest.mark.parametrize("model_type", UNSEEN)
def test_the_way_back_of_what_verify_cannot_run(model_type, tmp_path):
    tiny.build(model_type).model.save_pretrained(tmp_path / "a")
    for source, target, pairing in (("a", "b", TABLE[model_type].pairing.other), ("b", "c", TABLE[model_type].pairing)):
        convert.apply(convert.plan(tmp_path / source, tmp_path / target, pairing, written_as="same"))
    read = [(tmp_path / name / "model.safetensors").read_bytes() for name in "abc"]
    assert read[0] == read[2] != read[1]
    with pytest.raises(UnsupportedError, match=UNSEEN[model_type]):
        verify.verify(tmp_path / "a", tmp_path / "b", tokens=TOKENS)


def moved_names(row, kind, names):
    """Those of ``names`` that a kind of fault is in: the weights or biases of projections, or all that moves beside."""
    modules = [re.escape(m).replace(r"\*", r"\d+") for m in (row.companions if kind == "norm" else row.projections)]
    end = {"norm": r"(\.\w+)?", "bias": r"\.bias", "not": r"\.weight"}[kind]
    return [name for name in names if any(re.search(rf"\b{m}{end}$", name) for m in modules)]


def planted(fault, source, converted, row):
    """The converted tensors with a fault in them; None where the type has nothing that the fault could be in."""
    original, tensors = (load_file(path / "model.safetensors") for path in (source, converted))
    steps = convert.plan(source, source.with_name("unused"), row.pairing.other, written_as="same").plan.moves
    maps = {move.tensor.name: torch.from_numpy(move.permutation.index) for move in steps}
    if fault in ("not permuted", "bias left", "norm left"):
        names = moved_names(row, fault.partition(" ")[0], maps)
        return {**tensors, **{n: original[n] for n in names}} if names else None
    if fault == "inverse direction":  # as if the source had the other layout
        return {**tensors, **{n: rows(original[n], index.argsort()) for n, index in maps.items()}}
    keys = {n: index for n, index in maps.items() if re.search(K_ALONE, n)}
    if fault == "wrong k heads":  # the rows of k as if it had as many heads as q
        reading = read_model(json.loads((source / "config.json").read_text("utf-8")))
        heads, kv_heads = reading.geometry.heads, reading.geometry.kv_heads
        if kv_heads == heads:
            return None
        wrong = {n: rows(original[n], as_heads(heads, len(index), row.pairing)) for n, index in keys.items()}
        return {**tensors, **wrong} if wrong else None
    values = {n.replace("k_proj", "v_proj").replace("key", "value"): index for n, index in keys.items()}
    moved = {n: rows(original[n], index) for n, index in values.items() if len(index) == len(original.get(n, ""))}
    return {**tensors, **moved} if moved else None


def rows(tensor, index):
    """``tensor`` with its leading rows, however many dimensions they are stored in, in another order."""
    return tensor.reshape(len(index), -1)[index].reshape(tensor.shape)


def as_heads(heads, count, pairing):
    """The map of ``count`` rows taken for ``heads`` whole heads, or half as many where those are of an odd width."""
    heads = heads if count // heads % 2 == 0 else heads // 2
    head = Head(count // heads, 0, count // heads)
    return torch.from_numpy(index_map([head] * heads, pairing, pairing.other))


def may_be_without(fault, source, row):
    """Whether the row itself says that a type has nothing that the fault could be in: no test passes for less."""
    reading = read_model(json.loads((source / "config.json").read_text("utf-8")))
    of_decoder = [n for n in load_file(source / "model.safetensors") if row.towers.isdisjoint(n.split("."))]
    alone = any(re.search(K_ALONE, name) for name in moved_names(row, "not", of_decoder))
    return {
        "norm left": not row.companions or row.model_type in NORMS_BEHIND_A_SWITCH,
        "bias left": not [n for n in moved_names(row, "bias", of_decoder) if "cross" not in n],
        "wrong k heads": not alone or reading.geometry.kv_heads == reading.geometry.heads,
        "v permuted": not alone or row.model_type in V_OF_ANOTHER_WIDTH,
    }.get(fault, False)


FAULTS = ("not permuted", "inverse direction", "wrong k heads", "bias left", "norm left", "v permuted")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails(pair, fault, tmp_path):
    source, converted = pair
    row = TABLE[source.name]
    tensors = planted(fault, source, converted, row)
    if tensors is None:
        assert may_be_without(fault, source, row)
        return
    wrong = Path(shutil.copytree(converted, tmp_path / "wrong"))
    save_file({k: v.contiguous() for k, v in tensors.items()}, wrong / "model.safetensors", metadata={"format": "pt"})
    result = verified(source, wrong)
    assert "logits" in {check.name for check in result.checks if not check.passed}
