"""Diff: planted differences of every kind are named, what means the same is the same, and rows are told apart."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ropetool import convert, extend
from ropetool.checkpoint import compare, distance
from ropetool.checkpoint.config import Style
from ropetool.checkpoint.folder import has_guard, open_checkpoint
from ropetool.checkpoint.shards import read_shard
from ropetool.diff import WRONG_ROWS, Diff, diff
from ropetool.errors import CheckpointError, NoRotaryError, RopetoolError, UsageError
from ropetool.families.difference import Difference, How, PartOf, What
from ropetool.families.methods import EXTENDING, Method, Weights
from ropetool.families.plan import plan_conversion
from ropetool.families.reading import read_model
from ropetool.rope.pairing import Pairing
from tests import quantised, tiny
from tests.tiny import TINY, edit_json, read_json

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED
RECALL = Path(__file__).resolve().parent.parent / "fixtures" / "recall-256"
LAYER = "model.layers.0.self_attn"
Array = np.ndarray[Any, Any]


def converted(source: Path, destination: Path, written_as: str | None = "same") -> Path:
    to = read_model(open_checkpoint(source).config).pairing.other
    convert.apply(convert.plan(source, destination, to, written_as=written_as))
    return destination


def edit_tensors(directory: Path, edit: Callable[[dict[str, Array]], None]) -> None:
    """Change the tensors of a checkpoint of one shard."""
    file = directory / "model.safetensors"
    tensors = dict(load_file(file))
    edit(tensors)
    file.unlink()  # so that a hard link to it keeps what it has
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, file, metadata={"format": "pt"})


def to_interleaved(x: Array, heads: int, rotary: int | None = None) -> Array:
    """Rows of half heads as interleaved ones, by reshape; ``rotary`` rows of each head turn."""
    shape, x = x.shape, x.reshape(heads, -1, *x.shape[1:])
    turned, rest = x[:, :rotary], x[:, rotary or x.shape[1] :]
    turned = turned.reshape(heads, 2, -1, *x.shape[2:]).swapaxes(1, 2).reshape(turned.shape)
    return np.concatenate([turned, rest], axis=1).reshape(shape)


def to_half(x: Array, heads: int) -> Array:
    """The way back."""
    shape, x = x.shape, x.reshape(heads, -1, 2, *x.shape[1:])
    return x.swapaxes(1, 2).reshape(shape)


def only(result: Diff) -> Difference:
    (found,) = result.differences
    return found


# --- the same -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_a_checkpoint_is_the_same_as_itself_and_as_its_copy(name: str, checkpoint, own) -> None:
    for other in (checkpoint(name), own(name)):
        result = diff(checkpoint(name), other)
        assert (result.same, result.differences, result.summary) == (True, (), "no difference")
        assert result.tensors == len(load_file(other / "model.safetensors"))
        assert result.turning == moving(other)


def moving(source: Path) -> int:
    opened = open_checkpoint(source)
    return len(plan_conversion(opened, read_model(opened.config), HALF, INTERLEAVED).moves)


STYLED = {"llama": Method.YARN, "qwen3": Method.LINEAR, "gpt_neox": Method.YARN, "phi3": Method.NTK}


@pytest.mark.parametrize(("name", "method"), STYLED.items())
def test_styles_that_mean_the_same_are_the_same(name: str, method: Method, checkpoint, tmp_path: Path) -> None:
    made = {}
    for style in Style:
        made[style] = tmp_path / style.value
        extend.apply(extend.plan(checkpoint(name), made[style], method, factor=4.0, style=style))
    for a in Style:
        for b in Style:
            result = diff(made[a], made[b])
            assert result.differences == (), (a, b)
            assert ("written-differently" in {note.code for note in result.notes}) == (a is not b)


# config.json edits that change no meaning: keys to set, keys to remove.
MEANING_THE_SAME: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("llama", {"rope_theta": 10000.0}, ("rope_parameters",)),
    ("llama", {"rope_parameters": None, "rope_theta": 10000}, ()),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 1.0, "rope_theta": 10000.0}}, ()),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 1.0, "rope_theta": 10000.0}}, ()),
    ("gpt_neox", {"rotary_emb_base": 10000, "rotary_pct": 0.5}, ("rope_parameters",)),
    ("phi3", {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}, ("rope_parameters",)),
    ("llama", {"torch_dtype": "float32", "transformers_version": "4.57.6"}, ("dtype",)),
    ("qwen2", {"sliding_window": 16, "use_sliding_window": False}, ("layer_types",)),
)


@pytest.mark.parametrize(("name", "changes", "removed"), MEANING_THE_SAME)
def test_what_means_the_same_is_the_same(name: str, changes, removed, checkpoint, own) -> None:
    other = own(name)
    edit_json(other / "config.json", *removed, **changes)
    for pair in ((checkpoint(name), other), (other, checkpoint(name))):
        assert diff(*pair).differences == ()


def test_an_attention_factor_that_is_written_out_is_the_same(checkpoint, tmp_path: Path) -> None:
    plain, written = tmp_path / "plain", tmp_path / "written"
    extend.apply(extend.plan(checkpoint("llama"), plain, Method.YARN, factor=4.0, style=Style.V5))
    shutil.copytree(plain, written)
    block = read_json(written / "config.json")["rope_parameters"]
    edit_json(written / "config.json", rope_parameters={**block, "attention_factor": 1.1386294})
    assert diff(plain, written).same
    edit_json(written / "config.json", rope_parameters={**block, "attention_factor": 1.2})
    assert only(diff(plain, written)).where == "rope: attention_factor"


# --- another layout -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TINY)
def test_a_converted_pair_differs_by_the_permutation_alone(name: str, checkpoint, tmp_path: Path) -> None:
    source, other = checkpoint(name), converted(checkpoint(name), tmp_path / "out")
    for a, b in ((source, other), (other, source)):
        result = diff(a, b)
        layouts = [read_model(open_checkpoint(side).config).pairing.value for side in (a, b)]
        assert result.summary.startswith("the same model in the other layout")
        assert {found.part_of for found in result.differences} == {PartOf.LAYOUT}
        tensors = [found for found in result.differences if found.what is What.TENSOR]
        assert len(tensors) == moving(source) == result.turning
        assert {(found.how, found.a, found.b) for found in tensors} == {(How.LAYOUT, *layouts)}
        (pairing,) = [found for found in result.differences if found.where == "layout of q and k"]
        assert (pairing.what, pairing.a, pairing.b) == (What.PAIRING, *layouts)


@pytest.mark.parametrize("name", ["llama", "ernie4_5", "helium"])
def test_a_twin_is_the_same_model_in_the_other_layout(name: str, checkpoint, tmp_path: Path) -> None:
    source = RECALL if name == "llama" else checkpoint(name)
    twin = converted(source, tmp_path / "twin", written_as=None)
    result = diff(source, twin)
    assert result.summary.startswith("the same model in the other layout")
    assert result.summary.endswith("nothing else differs")
    (kind,) = [found for found in result.differences if found.where == "model_type"]
    assert (kind.a, kind.b) == (name, read_json(twin / "config.json")["model_type"])
    edit_json(twin / "config.json", rms_norm_eps=0.5)
    changed = diff(source, twin)
    assert "rms_norm_eps" in {found.where for found in changed.differences if found.part_of is None}
    assert "same model" not in changed.summary


@pytest.mark.parametrize("way", quantised.WAYS.values(), ids=lambda way: way.name)
def test_a_quantised_pair_differs_by_the_permutation_alone(way, tmp_path: Path) -> None:
    plain = tiny.save(tiny.model_of("llama", num_hidden_layers=1), tmp_path / "plain")
    source = quantised.quantise(plain, way, tmp_path / "source")
    result = diff(source, converted(source, tmp_path / "out"))
    assert result.summary.startswith("the same model in the other layout")
    assert {found.how for found in result.differences if found.what is What.TENSOR} == {How.LAYOUT}


def test_a_guarded_config_is_read(checkpoint, tmp_path: Path) -> None:
    other = converted(checkpoint("qwen3"), tmp_path / "out")
    assert has_guard(other)
    result = diff(checkpoint("qwen3"), other)
    assert "model_type" not in {found.where for found in result.differences}
    assert "guarded" in {note.code for note in result.notes}


# --- rows that do not lie as the config says ------------------------------------------------------------------------


def wrong_heads(tensors: dict[str, Array]) -> None:
    """k as if it had the eight heads of q: the fault of many scripts under grouped queries."""
    for layer in (0, 1):
        for projection, heads in (("q_proj", 8), ("k_proj", 8)):
            for kind in ("weight", "bias"):
                name = f"model.layers.{layer}.self_attn.{projection}.{kind}"
                tensors[name] = to_interleaved(tensors[name], heads)


def one(name: str, change: Callable[[Array], Array]) -> Callable[[dict[str, Array]], None]:
    def edit(tensors: dict[str, Array]) -> None:
        tensors[name] = change(tensors[name])

    return edit


def shuffled(x: Array) -> Array:
    return x[np.random.default_rng(3).permutation(len(x))]


def in_v_too(x: Array) -> Array:
    """All twelve heads of a fused projection of eight q, two k and two v heads, of which half the rows turn."""
    return to_interleaved(x, 12, 8)


K, Q, QKV = (f"{LAYER}.{name}.weight" for name in ("k_proj", "q_proj", "qkv_proj"))
# tiny model, tensor, what is done to its half rows, words of the detail. None of these is the layout's permutation.
OTHER_ORDERS: tuple[tuple[str, str, Callable[[Array], Array], str], ...] = (
    ("llama", K, lambda x: to_interleaved(x, 8), "half to interleaved, as if these 32 rows were 8 heads of 4"),
    ("llama", K, lambda x: to_half(x, 8), "as if these 32 rows were 8 heads of 4"),
    ("llama", K, lambda x: to_interleaved(x, 4), "half to interleaved, as if these 32 rows were 4 heads of 8"),
    ("llama", Q, lambda x: to_interleaved(x, 2), "half to interleaved, as if these 128 rows were 2 heads of 64"),
    ("llama", Q, lambda x: to_interleaved(x, 1), "half to interleaved, as if these 128 rows were 1 head of 128"),
    ("llama", Q, lambda x: to_interleaved(to_interleaved(x, 8), 8), "half to interleaved, done twice"),
    ("llama", Q, shuffled, "no permutation that is known"),
    ("phi3", QKV, in_v_too, "half to interleaved, in v as well as in q and k"),
    ("gpt_neox", "gpt_neox.layers.0.attention.query_key_value.weight",
     lambda x: np.concatenate([to_interleaved(part, 1) if i % 3 < 2 else part
                               for i, part in enumerate(np.split(x, 24))]),
     "half to interleaved, as if the whole head turned"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "tensor", "change", "words"), OTHER_ORDERS)
def test_another_order_of_rows_is_no_layout(name: str, tensor: str, change, words: str, checkpoint, own) -> None:
    other = own(name)
    edit_tensors(other, one(tensor, change))
    result = diff(checkpoint(name), other)
    found = only(result)
    assert (found.what, found.where, found.how, found.part_of) == (What.TENSOR, tensor, How.OTHER_ORDER, None)
    assert words in found.detail
    assert found.facts["rows_differing"] > 0
    assert result.summary == WRONG_ROWS


def test_wrong_heads_in_a_whole_conversion_are_seen(checkpoint, own) -> None:
    other = own("llama")
    edit_tensors(other, wrong_heads)
    edit_json(other / "config.json", ropetool={"version": "0", "pairing": "interleaved"})
    result = diff(checkpoint("llama"), other)
    by_projection = {"q_proj": How.LAYOUT, "k_proj": How.OTHER_ORDER}
    tensors = [found for found in result.differences if found.what is What.TENSOR]
    assert len(tensors) == 8
    assert all(found.how is by_projection[found.where.split(".")[-2]] for found in tensors)
    assert result.summary == WRONG_ROWS


def test_the_inverse_direction_is_named(checkpoint, own) -> None:
    other = own("llama")
    edit_tensors(other, one(Q, lambda x: to_half(x, 8)))
    edit_json(other / "config.json", ropetool={"version": "0", "pairing": "interleaved"})
    result = diff(checkpoint("llama"), other)
    (found,) = [d for d in result.differences if d.where == Q]
    assert (found.how, found.a, found.b, found.part_of) == (How.LAYOUT, "interleaved", "half", None)
    assert "though the first is read as half and the second as interleaved" in found.detail
    assert result.summary == WRONG_ROWS


def test_rows_permuted_under_the_same_config_are_named(checkpoint, own) -> None:
    other = own("llama")
    edit_tensors(other, one(Q, lambda x: to_interleaved(x, 8)))
    result = diff(checkpoint("llama"), other)
    assert (only(result).how, only(result).part_of) == (How.LAYOUT, None)
    assert "though both are read as half" in only(result).detail
    assert result.summary == WRONG_ROWS


def test_a_config_of_the_other_layout_over_the_same_rows_is_named(checkpoint, own) -> None:
    other = own("llama")
    edit_json(other / "config.json", ropetool={"version": "0", "pairing": "interleaved"})
    result = diff(checkpoint("llama"), other)
    left = [found for found in result.differences if found.how is How.NOT_PERMUTED]
    assert len(left) == moving(other) == 8
    assert result.summary == WRONG_ROWS


def test_a_bias_that_was_forgotten_is_named(checkpoint, tmp_path: Path) -> None:
    source, other = checkpoint("llama"), converted(checkpoint("llama"), tmp_path / "out")
    bias = f"{LAYER}.q_proj.bias"
    edit_tensors(other, one(bias, lambda x: load_file(source / "model.safetensors")[bias]))
    result = diff(source, other)
    assert [found.where for found in result.differences if found.how is How.NOT_PERMUTED] == [bias]
    assert result.summary == WRONG_ROWS


def test_rows_that_are_alike_need_not_move(checkpoint, tmp_path: Path, own) -> None:
    source = own("llama")
    edit_tensors(source, one(f"{LAYER}.q_proj.bias", np.zeros_like))
    result = diff(source, converted(source, tmp_path / "out"))
    assert result.summary.startswith("the same model in the other layout")
    assert sum(found.what is What.TENSOR for found in result.differences) == moving(source) - 1


# --- other values ---------------------------------------------------------------------------------------------------


def some_rows(x: Array) -> Array:
    x = x.copy()
    x[[3, 5, 40]] += np.float32(0.25)
    return x


def test_other_values_are_counted(checkpoint, own) -> None:
    other = own("llama")
    edit_tensors(other, one(Q, some_rows))
    found = only(diff(checkpoint("llama"), other))
    assert (found.how, found.facts["rows"], found.facts["rows_differing"]) == (How.VALUES, 128, 3)
    assert found.facts["max_abs_diff"] == pytest.approx(0.25, rel=1e-6)
    assert "3 of 128 rows hold other values; the largest |difference| is 0.25" in found.detail


def test_rows_trained_further_in_the_other_layout_are_held_against_permuted_ones(checkpoint, tmp_path: Path) -> None:
    other = converted(checkpoint("llama"), tmp_path / "out")
    edit_tensors(other, one(Q, some_rows))
    result = diff(checkpoint("llama"), other)
    (found,) = [d for d in result.differences if d.where == Q]
    assert (found.how, found.facts["rows_differing"]) == (How.VALUES, 3)
    assert "after its rows are permuted from half to interleaved" in found.detail
    assert "same model" not in result.summary


DTYPES = {"F16": np.float16, "F32": np.float32, "F64": np.float64}


@pytest.mark.parametrize("dtype", [*DTYPES, "BF16", "I8"])
def test_distances_in_every_dtype(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = np.random.default_rng(1).integers(-64, 64, (64, 24)).astype(np.float32)
    b = a[::-1].copy()
    b[[2, 50], 7] += 8
    for file, values in (("a", a), ("b", b)):
        save_raw(tmp_path / file, dtype, values)
    (shard_a, shard_b) = (read_shard(tmp_path / file) for file in "ab")
    for size in (8 << 20, 300):
        monkeypatch.setattr(distance, "BUFFER_BYTES", size)
        found = distance.distance(shard_a, shard_a.tensors["x"], shard_b, shard_b.tensors["x"], np.arange(64)[::-1])
        largest = None if dtype == "I8" else 8.0
        mean = None if dtype == "I8" else 16 / (64 * 24)
        assert (found.rows, found.rows_differing, found.max_abs, found.mean_abs) == (64, 2, largest, mean)


def save_raw(file: Path, dtype: str, values: Array) -> None:
    """One tensor ``x`` of a dtype that numpy may not have; small whole numbers are exact in all of them."""
    if dtype == "BF16":
        raw = (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    else:
        raw = values.astype(DTYPES.get(dtype, np.int8)).tobytes()
    header = {"x": {"dtype": dtype, "shape": list(values.shape), "data_offsets": [0, len(raw)]}}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    file.write_bytes(len(head).to_bytes(8, "little") + head + raw)


def test_a_value_that_is_no_number_is_infinitely_far(tmp_path: Path) -> None:
    for file, value in (("a", 1.0), ("b", np.nan)):
        save_raw(tmp_path / file, "F32", np.full((2, 4), value))
    shard_a, shard_b = (read_shard(tmp_path / file) for file in "ab")
    found = distance.distance(shard_a, shard_a.tensors["x"], shard_b, shard_b.tensors["x"], np.arange(2))
    assert found.max_abs == np.inf


# --- other tensors --------------------------------------------------------------------------------------------------


def without(name: str) -> Callable[[dict[str, Array]], None]:
    def edit(tensors: dict[str, Array]) -> None:
        del tensors[name]

    return edit


def added(name: str, value: Array) -> Callable[[dict[str, Array]], None]:
    def edit(tensors: dict[str, Array]) -> None:
        tensors[name] = value

    return edit


V, EMBED, INV_FREQ = f"{LAYER}.v_proj.weight", "model.embed_tokens.weight", f"{LAYER}.rotary_emb.inv_freq"
FREQUENCIES = np.ones(8, np.float32)
OTHER_TENSORS = (
    (one(V, lambda x: x + np.float32(1)), V, How.VALUES, None, None, "no layout reaches"),
    (without(V), V, How.MISSING, "F32[32, 96]", None, "in the first checkpoint only"),
    (added("extra", FREQUENCIES), "extra", How.MISSING, None, "F32[8]", "in the second checkpoint only"),
    (added(INV_FREQ, FREQUENCIES), INV_FREQ, How.MISSING, None, "F32[8]", "in the second checkpoint only"),
    (one(EMBED, lambda x: x.astype(np.float16)), EMBED, How.FORM, "F32", "F16", "of another dtype or shape"),
    (one(EMBED, lambda x: x[:-1]), EMBED, How.FORM, "F32[96, 96]", "F32[95, 96]", "of another dtype or shape"),
    (one(Q, lambda x: x.astype(np.float16)), Q, How.FORM, "F32", "F16", "of another dtype or shape"),
)


@pytest.mark.parametrize(("edit", "where", "how", "a", "b", "words"), OTHER_TENSORS)
def test_other_tensors_are_named(edit, where: str, how: How, a, b, words: str, checkpoint, own) -> None:
    other = own("llama")
    edit_tensors(other, edit)
    found = only(diff(checkpoint("llama"), other))
    assert (found.what, found.where, found.how, found.a, found.b) == (What.TENSOR, where, how, a, b)
    assert words in found.detail
    assert (found.facts["count"], found.facts["names"]) == (1, [where])


def test_many_tensors_of_one_kind_are_one_line(checkpoint, own) -> None:
    other = own("llama")

    def edit(tensors: dict[str, Array]) -> None:
        for name in tensors:
            if "self_attn" not in name:
                tensors[name] = tensors[name] + np.float32(1)

    edit_tensors(other, edit)
    found = only(diff(checkpoint("llama"), other))
    assert found.facts["count"] > len(found.facts["names"]) == 8
    assert found.where.endswith(f"and {found.facts['count'] - 1} more")


def test_saved_frequencies_that_differ_are_named_and_held_against_the_config(checkpoint, own, tmp_path: Path) -> None:
    sides = []
    for side, base in (("a", 10000.0), ("b", 500000.0)):
        sides.append(Path(shutil.copytree(own("llama") if side == "a" else sides[0], tmp_path / side)))
        edit_tensors(sides[-1], added(INV_FREQ, (base ** (-np.arange(8) / 8)).astype(np.float32)))
    result = diff(*sides)
    assert (only(result).where, only(result).how) == (INV_FREQ, How.VALUES)
    assert "the second" in next(note.message for note in result.notes if note.code == "stale-inv-freq")


# --- configs --------------------------------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
LLAMA3 = {**YARN, "rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def block(**changes: Any) -> dict[str, Any]:
    return {"rope_parameters": {**YARN, **changes}}


LONG = {**YARN, "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 4.0, 8.0]}
# tiny model, keys of the first, keys of the second, kind of difference, where, both values.
CONFIGS: tuple[tuple[str, dict[str, Any], dict[str, Any], What, str, Any, Any], ...] = (
    ("llama", {}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, What.CONFIG, "rope: rope_theta",
     10000.0, 5e5),
    ("llama", block(), block(factor=8.0), What.CONFIG, "rope: factor", 4.0, 8.0),
    ("llama", block(), block(rope_theta=5e5), What.CONFIG, "rope: rope_theta", 10000.0, 5e5),
    ("llama", block(), block(original_max_position_embeddings=32), What.CONFIG,
     "rope: original_max_position_embeddings", 64, 32),
    ("llama", block(), block(beta_slow=0.1), What.CONFIG, "rope: beta_slow", 1.0, 0.1),
    ("llama", block(), block(truncate=False), What.CONFIG, "rope: truncate", True, False),
    ("llama", block(), block(attention_factor=1.5), What.CONFIG, "rope: attention_factor", 1.138629436111989, 1.5),
    ("llama", block(), {"rope_parameters": LLAMA3}, What.CONFIG, "rope: rope_type", "yarn", "llama3"),
    ("llama", {"rope_parameters": LLAMA3}, {"rope_parameters": {**LLAMA3, "high_freq_factor": 8.0}}, What.CONFIG,
     "rope: high_freq_factor", 4.0, 8.0),
    ("phi3", {"rope_parameters": {**LONG, "partial_rotary_factor": 0.5}},
     {"rope_parameters": {**LONG, "partial_rotary_factor": 0.5, "long_factor": [1.0, 2.0, 4.0, 9.0]}}, What.CONFIG,
     "rope: long_factor", (1.0, 2.0, 4.0, 8.0), (1.0, 2.0, 4.0, 9.0)),
    ("llama", block(mrope_section=[2, 3, 3]), block(mrope_section=[4, 2, 2]), What.CONFIG, "rope: mrope_section",
     [2, 3, 3], [4, 2, 2]),
    ("llama", {}, {"num_attention_heads": 4}, What.CONFIG, "heads", 8, 4),
    ("llama", {}, {"num_key_value_heads": 4}, What.CONFIG, "kv_heads", 2, 4),
    ("llama", {}, {"head_dim": 8}, What.CONFIG, "head_dim", 16, 8),
    ("gpt_neox", {}, {"rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25}}, What.CONFIG,
     "rotary_dim", 8, 4),
    ("llama", {}, {"rms_norm_eps": 0.5}, What.CONFIG, "rms_norm_eps", 1e-06, 0.5),
    ("llama", {}, {"hidden_act": "gelu"}, What.CONFIG, "hidden_act", "silu", "gelu"),
    ("llama", {}, {"model_type": "mistral"}, What.CONFIG, "model_type", "llama", "mistral"),
    ("deepseek_v3", {}, {"rope_interleave": False}, What.PAIRING, "layout of q and k", "interleaved", "half"),
    ("llama", {}, {"ropetool": {"version": "0", "pairing": "interleaved"}}, What.PAIRING, "layout of q and k", "half",
     "interleaved"),
    ("llama", {}, {"rope_traditional": True}, What.PAIRING, "rope_traditional", None, True),
    ("llama", {}, {"max_position_embeddings": 128}, What.LENGTH, "config.json: max_position_embeddings", 64, 128),
    ("llama", {}, {"model_max_length": 128}, What.LENGTH, "config.json: model_max_length", None, 128),
    ("mistral", {"sliding_window": 16}, {"sliding_window": None}, What.LENGTH, "sliding_window", 16, None),
    ("mistral", {"sliding_window": 16}, {"sliding_window": 32}, What.LENGTH, "sliding_window", 16, 32),
)  # fmt: skip


def with_config(directory: Path, config: dict[str, Any], **changes: Any) -> Path:
    """A directory that holds a config alone."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    return directory


@pytest.mark.parametrize(("name", "first", "second", "what", "where", "a", "b"), CONFIGS)
def test_planted_differences_of_configs_are_named(
    name: str, first, second, what: What, where: str, a, b, checkpoint, tmp_path: Path
) -> None:
    config = read_json(checkpoint(name) / "config.json")
    sides = [with_config(tmp_path / side, config, **changes) for side, changes in (("a", first), ("b", second))]
    result = diff(*sides)
    (found,) = [d for d in result.differences if d.where == where]
    assert (found.what, found.a, found.b) == (what, a, b)
    assert found.detail
    back = diff(*reversed(sides))
    assert [(d.what, d.where, d.b, d.a) for d in back.differences] == [
        (d.what, d.where, d.a, d.b) for d in result.differences
    ]


def test_a_difference_of_rotation_says_what_it_comes_to(checkpoint, tmp_path: Path) -> None:
    config = read_json(checkpoint("llama") / "config.json")
    sides = [with_config(tmp_path / side, config, **block(factor=factor)) for side, factor in (("a", 4.0), ("b", 8.0))]
    first = diff(*sides).differences[0]
    scalings = [read_model(read_json(side / "config.json")).rotations[0].scaling for side in sides]
    slow, slower = (scaling.inv_freq(16) for scaling in scalings)
    assert f"{(slow != slower).sum()} of 8 pairs turn at another speed, by up to a factor of 2" in first.detail


GEMMA3 = {
    "model_type": "gemma3_text", "hidden_size": 96, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 2, "max_position_embeddings": 64, "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
NESTED = {
    "full_attention": {"rope_type": "default", "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
SMOLLM3 = {
    "model_type": "smollm3", "hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2, "rope_theta": 1e4,
    "num_hidden_layers": 4, "max_position_embeddings": 64, "no_rope_layers": [1, 1, 1, 0],
}  # fmt: skip
LLAVA = {
    "model_type": "llava", "text_config": {**SMOLLM3, "model_type": "llama"}, "vision_config": {"hidden_size": 32},
}  # fmt: skip
# two configs, and where they differ.
WHOLE_CONFIGS = (
    ({**GEMMA3, "rope_theta": 1e6, "rope_local_base_freq": 1e4}, {**GEMMA3, "rope_parameters": NESTED}, []),
    (
        {**GEMMA3, "rope_theta": 1e6, "rope_local_base_freq": 2e4}, {**GEMMA3, "rope_parameters": NESTED},
        ["rope of sliding_attention: rope_theta"],
    ),
    (
        {**GEMMA3, "rope_parameters": NESTED}, {**GEMMA3, "rope_parameters": {**NESTED, "full_attention": YARN}},
        [f"rope of full_attention: {key}" for key in (
            "rope_type", "attention_factor", "factor", "original_max_position_embeddings", "rope_theta")],
    ),
    (SMOLLM3, {**SMOLLM3, "no_rope_layers": [1, 1, 0, 0]}, ["layers without rotation"]),
    (SMOLLM3, {**SMOLLM3, "no_rope_layers": [1, 1, 1, 0], "no_rope_layer_interval": 4}, []),
    (LLAVA, {**LLAVA, "text_config": {**LLAVA["text_config"], "rope_theta": 5e5}}, ["rope: rope_theta"]),
    (LLAVA, {**LLAVA, "text_config": {**LLAVA["text_config"], "hidden_act": "x"}}, []),
    (LLAVA, {**LLAVA, "vision_config": {"hidden_size": 64}}, ["vision_config"]),
)  # fmt: skip


@pytest.mark.parametrize(("first", "second", "where"), WHOLE_CONFIGS)
def test_kinds_of_layers_and_parts_of_configs(first, second, where: list[str], tmp_path: Path) -> None:
    result = diff(with_config(tmp_path / "a", first), with_config(tmp_path / "b", second))
    assert [found.where for found in result.differences] == where


def test_a_key_of_one_config_alone_is_a_note(checkpoint, tmp_path: Path) -> None:
    config = read_json(checkpoint("llama") / "config.json")
    bare = {key: value for key, value in config.items() if key != "rms_norm_eps"}
    result = diff(with_config(tmp_path / "a", config), with_config(tmp_path / "b", bare))
    (note,) = [note for note in result.notes if note.code == "one-sided-keys"]
    assert "rms_norm_eps 1e-06 (first)" in note.message
    assert "keys of one side are in the notes" in result.summary


# --- extended -------------------------------------------------------------------------------------------------------


SETTINGS: dict[Method, dict[str, Any]] = {
    Method.LONGROPE: {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]},
    Method.ABF: {"base": 40000.0},
}


@pytest.mark.parametrize("method", list(EXTENDING))
def test_an_extended_pair_is_told_as_one(method: Method, checkpoint, tmp_path: Path) -> None:
    other = tmp_path / "out"
    extend.apply(extend.plan(checkpoint("llama"), other, method, to=256, settings=SETTINGS.get(method)))
    for pair, words in (
        ((checkpoint("llama"), other), "the second is the first"),
        ((other, checkpoint("llama")), "the first is"),
    ):
        result = diff(*pair)
        assert result.summary.startswith(words)
        assert f"extended by {method.value} from 64 to 256 tokens; nothing else differs" in result.summary
        assert {found.part_of for found in result.differences} == {PartOf.EXTENSION}


def test_an_extension_whose_length_does_not_follow_is_none(checkpoint, tmp_path: Path) -> None:
    other = tmp_path / "out"
    extend.apply(extend.plan(checkpoint("llama"), other, Method.YARN, to=256))
    edit_json(other / "config.json", max_position_embeddings=512)
    assert "extended" not in diff(checkpoint("llama"), other).summary


def test_extended_and_converted(checkpoint, tmp_path: Path) -> None:
    extend.apply(extend.plan(checkpoint("llama"), tmp_path / "long", Method.YARN, to=256))
    result = diff(checkpoint("llama"), converted(tmp_path / "long", tmp_path / "out"))
    assert {found.part_of for found in result.differences} == {PartOf.LAYOUT, PartOf.EXTENSION}
    assert result.summary.startswith("the same model in the other layout")
    assert "extended by yarn" in result.summary


# --- lengths in other files -----------------------------------------------------------------------------------------

LENGTHS = (
    ("tokenizer_config.json", "model_max_length", 64, 128, (64, 128)),
    ("tokenizer_config.json", "model_max_length", 64, int(1e30), (64, None)),
    ("tokenizer_config.json", "model_max_length", None, int(1e30), None),
    ("generation_config.json", "max_length", 20, 64, (20, 64)),
    ("generation_config.json", "max_length", 20, None, (20, None)),
)


@pytest.mark.parametrize(("file", "key", "first", "second", "said"), LENGTHS)
def test_lengths_in_every_file(file: str, key: str, first, second, said, own, tmp_path: Path) -> None:
    sides = []
    for side, value in (("a", first), ("b", second)):
        sides.append(Path(shutil.copytree(own("llama") if side == "a" else sides[0], tmp_path / side)))
        (sides[-1] / file).write_text(json.dumps({} if value is None else {key: value}), encoding="utf-8")
    result = diff(*sides)
    found = [(d.what, d.where, (d.a, d.b)) for d in result.differences]
    assert found == ([] if said is None else [(What.LENGTH, f"{file}: {key}", said)])


# --- what is not compared, or refused -------------------------------------------------------------------------------


def test_configs_alone_are_compared_and_said(checkpoint, tmp_path: Path) -> None:
    config = read_json(checkpoint("llama") / "config.json")
    bare = with_config(tmp_path / "bare", config)
    for pair in ((bare, bare), (bare, checkpoint("llama")), (checkpoint("llama"), bare)):
        result = diff(*pair)
        assert (result.same, result.tensors) == (True, None)
        assert result.summary == "no difference in the configs; there were no weights to compare"
        (note,) = [note for note in result.notes if note.code == "no-weights"]
        assert str(bare) in note.message
    extend.apply(extend.plan(checkpoint("llama"), tmp_path / "long", Method.NTK, to=128, weights=Weights.NONE))
    assert "extended by ntk" in diff(checkpoint("llama"), tmp_path / "long").summary


def test_rows_that_cannot_be_told_are_compared_as_they_are(checkpoint, own) -> None:
    other = own("llama")
    edit_json(other / "config.json", num_attention_heads=6, num_key_value_heads=3, head_dim=16)
    result = diff(other, checkpoint("llama"))
    assert "rows-unknown" in {note.code for note in result.notes}
    assert result.turning == 0
    assert {found.where for found in result.differences} == {"heads", "kv_heads"}
    edit_tensors(other, one(Q, some_rows))
    assert Q in {found.where for found in diff(other, checkpoint("llama")).differences}


def test_hard_links_are_not_read(checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extend.apply(extend.plan(checkpoint("llama"), tmp_path / "long", Method.NTK, to=128))
    monkeypatch.setattr(compare, "BUFFER_BYTES", "not a size")
    assert "nothing else differs" in diff(checkpoint("llama"), tmp_path / "long").summary


def refused(*pair: Path) -> RopetoolError:
    with pytest.raises(RopetoolError) as raised:
        diff(*pair)
    return raised.value


def test_what_is_refused(checkpoint, own, tmp_path: Path) -> None:
    source, adapter = checkpoint("llama"), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}", encoding="utf-8")
    error = refused(source, adapter)
    assert isinstance(error, UsageError)
    assert "verify compares two adapters" in error.message
    pickled = with_config(tmp_path / "pickled", read_json(source / "config.json"))
    (pickled / "pytorch_model.bin").write_bytes(b"x")
    assert "pytorch_model.bin" in refused(source, pickled).message
    bloom = with_config(tmp_path / "bloom", {"model_type": "bloom"})
    assert isinstance(refused(bloom, source), NoRotaryError)
    assert isinstance(refused(source, tmp_path / "nothing"), CheckpointError)
    cut = own("llama")
    with (cut / "model.safetensors").open("r+b") as file:
        file.truncate(5000)
    assert isinstance(refused(source, cut), CheckpointError)


def test_a_diff_reads_and_writes_nothing_else(own, tmp_path: Path) -> None:
    source = own("llama")
    other = converted(source, tmp_path / "out")
    before = [tiny.snapshot(side) for side in (source, other)]
    done: list[int] = []
    result: Diff = diff(source, other, done.append)
    assert sum(done) == open_checkpoint(source).size_bytes
    assert result.a == str(source)
    assert [tiny.snapshot(side) for side in (source, other)] == before
