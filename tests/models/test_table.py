"""Every row of the family table equals what the probe reads from the model's own code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ropetool import convert, verify
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.models import probe, tiny
from ropetool.rope.pairing import Head, Pairing, index_map

# The builder's weights are small: at their size attention is nearly uniform, and no position matters.
LOUDER = 5.0
# Types whose norms are off by default (use_qk_norm, qk_layernorm); tests/tiny.py has one with them on.
NORMS_BEHIND_A_SWITCH = ("cohere", "phi", "stablelm")


def moved_rows(spans):
    """The rows of a projection in the other layout, as a plain list."""
    return index_map(spans, Pairing.HALF, Pairing.INTERLEAVED).tolist()


# Types that can be read, and not converted.
REFUSED = {"clvp_encoder", "deepseek_v4", "zaya"}


def test_what_is_refused():
    assert {row.model_type for row in TABLE.values() if row.refusal} == REFUSED


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


@pytest.fixture(scope="module", params=sorted(TABLE.keys() - REFUSED))
def pair(request, tmp_path_factory):
    """A tiny checkpoint with q and k loud enough for positions to matter, and its conversion."""
    source = tmp_path_factory.mktemp("built") / request.param
    model = tiny.build(request.param).model
    names = {m.module for m in TABLE[request.param].moves if m.feeds}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if names & set(name.split(".")) and name.endswith("weight"):
                parameter.mul_(LOUDER)
    model.save_pretrained(source)
    converted = source.with_name(f"{request.param}-converted")
    convert.apply(convert.plan(source, converted, TABLE[request.param].pairing.other))
    return source, converted


def test_verify_passes_and_the_control_fails(pair):
    result = verify.verify(*pair, tokens=48)
    assert result.passed, [check for check in result.checks if not check.passed]
    assert result.relative_diff <= 1e-5
    assert result.control["max_abs_diff"] > 1000 * result.max_abs_diff


def test_the_way_back_is_bit_identical(pair, tmp_path):
    source, converted = pair
    convert.apply(convert.plan(converted, tmp_path / "back", TABLE[source.name].pairing))
    read = [(path / "model.safetensors").read_bytes() for path in (source, converted, tmp_path / "back")]
    assert read[0] == read[2] != read[1]


@pytest.mark.parametrize("fault", ["not permuted", "inverse direction", "norm left", "bias left"])
def test_a_planted_fault_fails(pair, fault, tmp_path):
    """On the converted side: rows as they were, rows moved the wrong way, or a companion left alone."""
    source, converted = pair
    row = TABLE[source.name]
    modules, kind = {
        "norm left": (row.companions, "weight"),
        "bias left": (row.projections, "bias"),
    }.get(fault, (row.projections, "weight"))
    original, tensors = load_file(source / "model.safetensors"), load_file(converted / "model.safetensors")
    named = [n for n in tensors if set(modules) & set(n.split(".")) and n.endswith(kind)]
    names = [n for n in named if not original[n].equal(tensors[n])]
    if not named:  # nothing of the kind in this type, and the row says so too
        assert fault == "bias left" or not row.companions or row.model_type in NORMS_BEHIND_A_SWITCH
        return
    assert names
    wrong = Path(shutil.copytree(converted, tmp_path / "wrong"))
    if fault == "inverse direction":
        # As if the source had the other layout.
        plan = convert.plan(source, tmp_path / "unused", row.pairing, row.pairing.other)
        index = {move.tensor.name: torch.from_numpy(move.permutation.index) for move in plan.plan.moves}
        tensors.update({n: original[n][index[n]] for n in names if original[n].shape[0] == len(index[n])})
    else:
        tensors.update({n: original[n] for n in names})
    save_file({k: v.contiguous() for k, v in tensors.items()}, wrong / "model.safetensors", metadata={"format": "pt"})
    result = verify.verify(source, wrong, tokens=48)
    assert "logits" in {check.name for check in result.checks if not check.passed}
