"""The family table against the model classes themselves: layout, rows, tensors and defaults."""

from __future__ import annotations

import copy
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig
from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

from ropetool.checkpoint.config import BLOCKS, rope_blocks
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.errors import ConfigError
from ropetool.families.family import Family, Moved
from ropetool.families.geometry import CLASS_DEFAULT, Each, GeometryKeys, Part, read_geometry
from ropetool.families.parts import CLASSES
from ropetool.families.plan import claims
from ropetool.families.positions import OTHER
from ropetool.families.reading import OWN_BLOCK, nope_layers, read_model
from ropetool.families.table import TABLE
from ropetool.models import catalog
from ropetool.rope.pairing import Head, pairs
from tests import tiny
from tests.tiny import TINY

TOKENS = 32
# What a test of the defaults builds: head counts that every class's default divides, and a head_dim that none has.
HEADS, HEAD_DIM = 160, 80


# Rows whose bare config (little more than sizes) can be read by one block.
BARE = {t: row for t, row in TABLE.items() if not row.kinds}


def test_every_tiny_config_has_a_row() -> None:
    unknown = {entry.model_type for entry in TINY.values()} - TABLE.keys()
    assert not unknown, f"tests/tiny.py has model types that are not in the table: {', '.join(sorted(unknown))}"


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_a_row_is_complete(row: Family) -> None:
    assert "".join(moved.feeds for moved in row.moves).count("q") >= 1
    assert "".join(moved.feeds for moved in row.moves).count("k") >= 1
    assert f"/modeling_{CLASSES[row.model_type]['module']}.py: " in row.source
    assert not {moved.module for moved in row.moves} & set(row.stays)
    assert bool(row.methods is None) == (not row.methods_reason)
    assert row.model_type not in OTHER


# --- the rotation of the class --------------------------------------------------------------------------------------


class Seen(Exception):
    """Carries q and k out of the first attention, after the class has rotated them."""


def recorded(model: Any, attention: Any, module: str, monkeypatch: pytest.MonkeyPatch) -> tuple[torch.Tensor, ...]:
    """q and k of the first layer when output row r of ``module`` is 1 in sequence r, and all others are 0."""

    def record(module: Any, query: torch.Tensor, key: torch.Tensor, *rest: Any, **options: Any) -> None:
        raise Seen(query.detach(), key.detach())

    rows = getattr(attention, module).weight.shape[0]
    one_hot = torch.eye(rows)[:, None, :].expand(rows, TOKENS, rows)
    handle = getattr(attention, module).register_forward_hook(lambda *ignored: one_hot)
    monkeypatch.setattr(sys.modules[type(attention).__module__], "eager_attention_forward", record)
    try:
        model(input_ids=torch.ones(rows, TOKENS, dtype=torch.long), use_cache=False)
    except Seen as seen:
        return seen.args
    finally:
        handle.remove()
    raise AssertionError("the class did not call its attention function")


def turning_pairs(x_RHTD: torch.Tensor) -> set[tuple[int, int, float]]:
    """(first row, second row, angle per token) of every pair that x shows: a row turns from its own slot into the
    slot of its partner, positive sine for the first of the two."""
    own, partner = {}, {}
    for row, x_HTD in enumerate(x_RHTD):
        moving = (x_HTD[:, 1:] != x_HTD[:, :1]).any(dim=1)
        slots = {tuple(slot) for slot in moving.nonzero().tolist()}
        if not slots:
            continue
        start = {slot for slot in slots if x_HTD[slot[0], 0, slot[1]] != 0}
        own[row], partner[row] = frozenset(start), frozenset(slots - start)
    found = set()
    for row, slots in own.items():
        others = [other for other in own if own[other] == partner[row]]
        assert len(others) == 1, f"row {row} turns into the slots of rows {others}"
        assert partner[others[0]] == slots
        head, slot = next(iter(slots))
        to_head, to_slot = next(iter(partner[row]))
        angle = float(torch.atan2(x_RHTD[row, to_head, 1, to_slot], x_RHTD[row, head, 1, slot]))
        if angle > 0:
            found.add((row, others[0], angle))
    assert 2 * len(found) == len(own)
    return found


def expected_pairs(row: Family, moved: Moved, reading: Any, theta: float) -> list[tuple[int, int, float]]:
    """The pairs that the row of the table means, with theta^(-2i/R) from the class's own theta."""
    result, start = [], 0
    for span in reading.geometry.spans(moved.rows):
        if isinstance(span, Head):
            base = start + span.rope_start
            for i, (a, b) in enumerate(pairs(span.rope_dim, reading.class_pairing)):
                result.append((base + a, base + b, theta ** (-2 * i / span.rope_dim)))
        start += span.rows
    return result


def first_attention(model: Any) -> Any:
    """The first attention module, with norms between projection and rotation taken out: they mix no rows."""
    attention = next(m for m in model.modules() if type(m).__name__.endswith("Attention"))
    for norm in ("q_norm", "k_norm"):
        if hasattr(attention, norm):
            setattr(attention, norm, torch.nn.Identity())
    return attention


def rotation_faults(name: str, row: Family, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> list[str]:
    """Where the rotation of the class is not the one that ``row`` tells."""
    model = tiny.model_of(name, **changes)
    config = model.config.to_dict()
    monkeypatch.setitem(TABLE, row.model_type, row)  # type: ignore[arg-type]  # a Mapping, and a dict
    reading = read_model(config)
    theta = (config.get("rope_parameters") or {}).get("rope_theta", 10000.0)
    attention, faults = first_attention(model), []
    for moved in (m for m in row.moves if m.feeds and getattr(attention, m.module, None) is not None):
        query, key = recorded(model, attention, moved.module, monkeypatch)
        found: set[tuple[int, int, float]] = set()
        for letter, x in (("q", query), ("k", key)):
            if letter in moved.feeds:
                found |= turning_pairs(x)
        expected = expected_pairs(row, moved, reading, theta)
        by_row = {first: (second, angle) for first, second, angle in found}
        if {(a, b) for a, b, _ in expected} != {(a, b) for a, b, _ in found}:
            faults.append(f"{moved.module}: the class turns {sorted(found)[:3]}, the row says {expected[:3]}")
        elif not all(np.isclose(by_row[a][1], angle, rtol=1e-4, atol=0) for a, _, angle in expected):
            faults.append(f"{moved.module}: the angles differ")
    return faults


@pytest.mark.parametrize("name", TINY)
def test_the_class_rotates_as_its_row_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rotation_faults(name, TABLE[TINY[name].model_type], monkeypatch) == []


@pytest.mark.parametrize("name", [n for n, t in TINY.items() if TABLE[t.model_type].pairing_key])
def test_a_key_that_the_class_obeys_turns_its_layout(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = TABLE[TINY[name].model_type]
    assert rotation_faults(name, row, monkeypatch, **{str(row.pairing_key): False}) == []


def _row(model_type: str, **changes: Any) -> Family:
    return replace(TABLE[model_type], **changes)


ROTARY, PLAIN = Part.ROTARY, Part.PLAIN
WRONG_ROWS: dict[str, tuple[str, Family]] = {
    **{f"{n}, the other layout": (n, _row(TINY[n].model_type, pairing=TABLE[TINY[n].model_type].pairing.other))
       for n in TINY if TABLE[TINY[n].model_type].pairing_key is None},
    "gpt_neox, v in the middle": ("gpt_neox", _row("gpt_neox", moves=(
        Moved("query_key_value", (Each("heads", (ROTARY, PLAIN, ROTARY)),), "qk"),))),
    "gpt_neox, blocks instead of heads": ("gpt_neox", _row("gpt_neox", moves=(
        Moved("query_key_value", (*[Each("heads", (ROTARY,))] * 2, Each("heads", (PLAIN,))), "qk"),))),
    "gpt_neox, the whole head": ("gpt_neox", _row("gpt_neox", keys=GeometryKeys(kv_heads=None))),
    "phi3, v before k": ("phi3", _row("phi3", moves=(Moved("qkv_proj", (
        Each("heads", (ROTARY,)), Each("kv_heads", (PLAIN,)), Each("kv_heads", (ROTARY,))), "qk"),))),
    "phi3, the whole head": ("phi3", _row("phi3", keys=GeometryKeys())),
    "glm4, the whole head": ("glm4", _row("glm4", keys=GeometryKeys())),
    "deepseek_v3, the rotary part first": ("deepseek_v3", _row("deepseek_v3", keys=replace(
        TABLE["deepseek_v3"].keys, rope_at_end=False))),
    "llama, k moved by query heads": ("llama", _row("llama", moves=(
        Moved("q_proj", (Each("heads", (ROTARY,)),), "q"), Moved("k_proj", (Each("heads", (ROTARY,)),), "k")))),
}  # fmt: skip


@pytest.mark.parametrize("planted", WRONG_ROWS)
def test_a_wrong_row_is_seen(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, row = WRONG_ROWS[planted]
    assert rotation_faults(name, row, monkeypatch) != []


# --- the tensors of the class ---------------------------------------------------------------------------------------


def attention_tensors(model: Any) -> set[str]:
    """Names of all tensors inside modules that the class itself calls attention."""
    inside = tuple(n for n, m in model.named_modules() if type(m).__name__.endswith("Attention"))
    return {name for name in model.state_dict() if name.startswith(tuple(f"{prefix}." for prefix in inside))}


@pytest.mark.parametrize("name", TINY)
def test_every_attention_tensor_is_claimed_and_no_other(name: str, checkpoint) -> None:
    opened = open_checkpoint(checkpoint(name))
    claimed = {claim.tensor.name: claim for claim in claims(opened, read_model(opened.config))}
    assert set(claimed) == attention_tensors(tiny.model_of(name))
    moved = {n.split(".")[-2] for n, claim in claimed.items() if claim.moved}
    stays = {n.split(".")[-2] for n, claim in claimed.items() if not claim.moved}
    assert not moved & stays
    assert not moved & {"v_proj", "o_proj", "dense", "out_proj", "kv_b_proj", "q_a_proj"}


@pytest.mark.parametrize("name", [name for name, entry in TINY.items() if entry.norms])
def test_norms_between_projection_and_rotation_move(name: str, checkpoint) -> None:
    opened = open_checkpoint(checkpoint(name))
    moved = {c.tensor.name for c in claims(opened, read_model(opened.config)) if c.moved}
    assert {n for n in opened.tensors if "q_norm" in n or "k_norm" in n} <= moved


# --- the defaults of the class --------------------------------------------------------------------------------------


# What a class cannot be built without, beside the sizes.
FLOW_HEAD = {"flow_head_config": {"condition_dim": HEADS * HEAD_DIM}}
CANNOT_LACK: dict[str, dict[str, Any]] = {
    "gradium_phonon_tts": FLOW_HEAD,
    "pocket_tts": FLOW_HEAD,
    "moonshine_streaming": {"num_key_value_heads": HEADS},
}
CANNOT_LACK_IN_BLOCK: dict[str, dict[str, Any]] = {"cosmos3_edge_text": {"mrope_section": [24, 20, 20]}}
NO_TYPES_NO_NOPE = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}


def bare_config(row: Family) -> dict[str, Any]:
    """A config with head counts and hidden sizes only, as far as may be: everything else is left to the class."""
    config: dict[str, Any] = {"model_type": row.model_type, **CANNOT_LACK.get(row.model_type, {})}
    config |= {needs.key: needs.value for needs in row.needs}
    if row.defaults.keys() & OWN_BLOCK.keys():
        config["rope_parameters"] = {"rope_type": "default", **CANNOT_LACK_IN_BLOCK.get(row.model_type, {})}
    if row.nope and row.nope.layer_type and not row.nope.interval:
        config |= NO_TYPES_NO_NOPE
    for keys in (row.keys, *(site.keys for site in row.others if site.section)):
        put(config, keys.heads, HEADS)
        put(config, keys.hidden, HEADS * HEAD_DIM)
    return config


def put(config: dict[str, Any], key: str, value: Any) -> None:
    """Set a key, which may be one of an object inside (``a.b``)."""
    outer, _, inner = key.rpartition(".")
    (config.setdefault(outer, {}) if outer else config)[inner] = value


def got(config: Any, key: str) -> Any:
    """The value of a key in a config object; None where it has none."""
    outer, _, inner = key.rpartition(".")
    return getattr(getattr(config, outer) if outer else config, inner, None)


def turning_part(row: Family, config: Any) -> Any:
    """The config object whose rope block the class rotates by."""
    return getattr(config, row.section) if row.section else config


def kv_heads_of(row: Family, config: Any) -> int:
    """As the class counts them."""
    if row.keys.one_kv_head:  # modeling_falcon.py, FalconAttention.__init__
        one, grouped = (getattr(config, key) for key in row.keys.one_kv_head)
        if not grouped:
            return 1 if one else HEADS
    return (got(config, row.keys.kv_heads) if row.keys.kv_heads else None) or HEADS


def site_defaults(row: Family, config: Any) -> dict[str, Any]:
    """Heads and head_dim of the sites beside the main one that have keys of their own in the same config."""
    sites = {site.module: site.keys for site in row.others if site.keys.heads.startswith("index")}
    return {
        f"{module}.{what}": got(config, key)
        for module, keys in sites.items()
        for what, key in (("heads", keys.heads), ("head_dim", keys.head_dim[0]))
    }


def class_defaults(row: Family) -> dict[str, Any]:
    """What the class makes of a bare config."""
    config = AutoConfig.for_model(**bare_config(row))
    turning = turning_part(row, config)
    rope = getattr(turning, "rope_parameters", None) or {}
    latent = row.keys.latent is not None
    head_dim = (
        sum(getattr(config, key) for key in row.keys.head_dim)
        if latent
        else getattr(turning, "head_dim", None) or HEAD_DIM
    )
    rotary = config.qk_rope_head_dim if latent else int(head_dim * rope.get("partial_rotary_factor", 1.0))
    return {
        "kv_heads": kv_heads_of(row, config),
        "head_dim": head_dim,
        "rotary_dim": config.rotary_dim if "rotary_dim" in row.keys.rotary else rotary,
        "latent_dim": getattr(config, row.keys.latent) if row.keys.latent else 0,
        "value_dim": getattr(config, row.keys.value) if row.keys.value else head_dim,
        "experts": getattr(config, row.keys.experts) if row.keys.experts else 1,
        # Two classes have none: recurrent_gemma looks back through a window alone, clvp_encoder builds no table.
        "length": getattr(turning, row.keys.length, None),
        "theta": rope.get("rope_theta", 10000.0),
        "use_sliding_window": getattr(config, "use_sliding_window", True),
        **site_defaults(row, config),
    }


def default_faults(row: Family, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where ropetool reads a bare config unlike the class."""
    monkeypatch.setitem(TABLE, row.model_type, row)  # type: ignore[arg-type]  # a Mapping, and a dict
    reading = read_model(bare_config(row))
    read = {
        "kv_heads": reading.geometry.kv_heads,
        "head_dim": reading.geometry.head_dim,
        "rotary_dim": reading.geometry.rotary_dim,
        "latent_dim": reading.geometry.latent_dim,
        "value_dim": reading.geometry.value_dim,
        "experts": reading.geometry.experts,
        "length": reading.length,
        "theta": reading.rotations[0].scaling.theta,
        "use_sliding_window": row.defaults.get("use_sliding_window", True),
    }
    for site, other in zip(row.others, reading.others, strict=True):
        read |= {f"{site.module}.heads": other.geometry.heads, f"{site.module}.head_dim": other.geometry.head_dim}
    told = class_defaults(row)
    return [f"{key} is {read[key]} here and {told[key]} in the class" for key in told if read[key] != told[key]]


@pytest.mark.parametrize("row", BARE.values(), ids=BARE)
def test_the_defaults_of_a_row_are_those_of_the_class(row: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_faults(row, monkeypatch) == []


@pytest.mark.parametrize("row", BARE.values(), ids=BARE)
def test_a_wrong_or_missing_default_is_seen(row: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {key: value for key, value in row.defaults.items() if key not in OWN_BLOCK}
    for key, value in values.items():
        wrong = (not value) if isinstance(value, bool) else value * 2 if value > 1 else value * 0.75
        planted = replace(row, defaults={**row.defaults, key: wrong})
        assert _seen(planted, monkeypatch), f"{key} = {wrong}"
    for key in values:
        planted = replace(row, defaults={k: v for k, v in row.defaults.items() if k != key})
        if (key, row.defaults[key]) != ("partial_rotary_factor", 1.0):  # what is meant without it, too
            assert _seen(planted, monkeypatch), f"no {key}"


def _seen(row: Family, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a row fails the check, or cannot even be read."""
    try:
        return bool(default_faults(row, monkeypatch))
    except ConfigError:
        return True


FILLING_IN = {t: row for t, row in BARE.items() if row.defaults.keys() & OWN_BLOCK.keys()}


@pytest.mark.parametrize("row", FILLING_IN.values(), ids=FILLING_IN)
def test_a_class_that_fills_in_a_block_needs_one_in_the_config(row: Family) -> None:
    config = {key: value for key, value in bare_config(row).items() if key not in BLOCKS}
    theirs = AutoConfig.for_model(**config, rope_theta=54321.0).rope_parameters
    assert theirs["rope_theta"] != 54321.0 or theirs["rope_type"] != "default"
    with pytest.raises(ConfigError, match=f"the class of {row.model_type} then (scales|turns) by values of its own"):
        read_model(config)


@pytest.mark.parametrize("row", BARE.values(), ids=BARE)
def test_a_default_in_use_is_reported_with_its_value(row: Family) -> None:
    reading = read_model(bare_config(row))
    said = " | ".join(warning.message for warning in reading.warnings)
    used = {} if reading.length is None else {row.keys.length: reading.length}
    for geometry in (reading.geometry, *(other.geometry for other in reading.others)):
        used |= geometry.class_defaults
    for key, value in used.items():
        assert f"no {key}; the class default {value:g} is used" in said
    if row.theta_keys:
        assert f"class default {row.theta_default:g}" in said
    assert reading.rotations[0].theta_source == CLASS_DEFAULT


@pytest.mark.parametrize("row", [r for r in TABLE.values() if r.pairing_key], ids=lambda row: row.model_type)
def test_the_default_of_a_pairing_key(row: Family) -> None:
    config = AutoConfig.for_model(row.model_type)
    assert getattr(config, str(row.pairing_key)) is (row.pairing.value == "interleaved")


def test_gptj_has_its_base_fixed_in_the_code() -> None:
    table = create_sinusoidal_positions(2, 8)
    np.testing.assert_allclose(table[1, :4], np.sin([1, 0.1, 0.01, 0.001]), rtol=1e-6)
    config = {"model_type": "gptj", "n_head": 4, "n_embd": 64, "rotary_dim": 8, "rope_theta": 500000}
    reading = read_model(config)
    assert reading.rotations[0].scaling.theta == 10000.0
    assert any("does not read it" in warning.message for warning in reading.warnings)


@pytest.mark.parametrize("model_type", ["gptj", "gpt_neox"])
def test_a_base_under_a_name_that_the_class_does_not_read_is_said(model_type: str) -> None:
    reading = read_model({**bare_config(TABLE[model_type]), "rope_theta": 500000})
    assert reading.rotations[0].scaling.theta == 10000.0
    assert "theta-ignored" in {warning.code for warning in reading.warnings}


@pytest.mark.parametrize(
    "row", [r for r in TABLE.values() if r.nope and not r.nope.unmoved], ids=lambda row: row.model_type
)
def test_layers_without_rotation_are_those_of_the_class(row: Family) -> None:
    nope, layers = row.nope, 10
    config = {"model_type": row.model_type, "num_hidden_layers": layers, row.keys.heads: HEADS, row.keys.hidden: 12800}
    if not (nope.interval or nope.flags):
        with pytest.raises(ConfigError, match="no layer_types, which tell the layers without rotation"):
            nope_layers(config, nope)
        return
    theirs = AutoConfig.for_model(**config)
    flags = getattr(theirs, nope.flags) if nope.flags else [kind != nope.layer_type for kind in theirs.layer_types]
    assert nope_layers(config, nope) == {index for index, rotates in enumerate(flags) if not rotates}
    if all(flags):  # its default rotates everywhere
        config[nope.flags] = [*flags[:3], 0, *flags[4:]]
        assert nope_layers(config, nope) == {3}
    if nope.only_with:
        assert nope_layers({**config, nope.only_with: None}, nope) == set()


# Configs in which nothing coincides, for classes that count heads or widths in a way of their own.
COUNTED_OTHERWISE: dict[str, dict[str, Any]] = {
    "jetmoe": {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "kv_channels": 8,
               "num_local_experts": 4, "num_experts_per_tok": 2, "num_hidden_layers": 1},
    "zamba2": {"hidden_size": 96, "num_attention_heads": 6, "use_mem_rope": True, "num_hidden_layers": 2,
               "layers_block_type": ["linear_attention", "hybrid"]},
    "dbrx": {"d_model": 96, "n_heads": 6, "n_layers": 1, "attn_config": {"rope_theta": 10000.0}},
    "falcon": {"hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 1},
}  # fmt: skip


@pytest.mark.parametrize("model_type", COUNTED_OTHERWISE)
def test_rows_are_as_many_as_the_class_has(model_type: str) -> None:
    config = {"model_type": model_type, **COUNTED_OTHERWISE[model_type]}
    with torch.device("meta"):
        model = catalog.model_class(model_type)(AutoConfig.for_model(**copy.deepcopy(config)))
    reading = read_model(config)
    for moved in (moved for moved in reading.family.moves if moved.feeds):
        weight = next(p for name, p in model.named_parameters() if name.endswith(f".{moved.module}.weight"))
        assert sum(span.rows for span in reading.geometry.spans(moved.rows)) == weight.shape[:-1].numel()


# --- what the class reads, the table reads --------------------------------------------------------------------------

SPELLINGS: tuple[dict[str, Any], ...] = (
    {"rope_theta": 50000.0},
    {"rotary_emb_base": 50000},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 50000.0}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50000.0}},
    {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_theta": 50000.0},
    {"rotary_pct": 0.75},
    {"partial_rotary_factor": 0.75},
    {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}},
)


@pytest.mark.parametrize(
    ("row", "spelling"),
    [(row, spelling) for row in BARE.values() for spelling in SPELLINGS
     if row.theta_keys and not (row.methods and "rope_scaling" in spelling)],
    ids=lambda value: getattr(value, "model_type", value),
)  # fmt: skip
def test_base_and_width_are_what_the_class_makes_of_them(row: Family, spelling: dict[str, Any]) -> None:
    """Whatever key a config carries them under: what ropetool reports is what the class computes with."""
    needed = CANNOT_LACK_IN_BLOCK.get(row.model_type, {})
    spelled = {key: {**value, **needed} if isinstance(value, dict) else value for key, value in spelling.items()}
    config = {
        key: value for key, value in bare_config(row).items() if key not in BLOCKS or not set(BLOCKS) & set(spelled)
    }
    (config[row.section] if row.section else config).update(spelled)
    theirs = turning_part(row, AutoConfig.for_model(**copy.deepcopy(config)))
    if set(BLOCKS) & set(spelled) - set(row.blocks):
        with pytest.raises(ConfigError, match=r"does not read rope_(scaling|parameters), and would ignore it"):
            read_model(config)
        return
    rope = theirs.rope_parameters if row.blocks else {"rope_theta": theirs.rope_theta}
    reading = read_model(config)
    assert reading.rotations[0].scaling.theta == rope["rope_theta"]
    if row.keys.latent is None:
        head_dim = reading.geometry.head_dim
        share = rope.get("partial_rotary_factor", 1.0)
        # A class whose code does not look at the share rotates the whole head, whatever the config says.
        reads_share = bool(row.keys.rotary) or row.keys.share_in_block
        assert reading.geometry.rotary_dim == (int(head_dim * share) if reads_share else head_dim)


def test_geometry_of_a_bare_config_needs_head_count_and_width() -> None:
    for row in TABLE.values():
        with pytest.raises(ConfigError, match=row.keys.heads):
            read_geometry({}, rope_blocks({})[0], row.keys, row.defaults)
