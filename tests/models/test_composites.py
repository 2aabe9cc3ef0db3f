"""Multimodal checkpoints: the text decoder converts, every other part stays, and the data agrees with the classes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

import ropetool
from ropetool import convert, detect, verify
from ropetool.checkpoint.config import marker
from ropetool.checkpoint.folder import has_guard, open_checkpoint, read_config
from ropetool.errors import UnclaimedTensorError, UnsupportedError
from ropetool.families.decoder import COMPOSITES, Composite, decoder_of, no_conversion
from ropetool.families.family import ONE_HEAD, K, Q
from ropetool.families.plan import plan_conversion
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.families.towers import towers_of
from ropetool.models import tiny_composites
from ropetool.models.catalog import quiet
from ropetool.models.meaning import config_fault
from ropetool.models.tiny import CannotBuild
from ropetool.models.unguarded import config_options
from ropetool.rope.pairing import Pairing
from tests.tiny import edit_json, read_json
from tools import read_composites

TOKENS = 40
# The builder's weights are small: at their size attention is nearly uniform, and no position matters.
LOUDER = 5.0
# Why a type that converts has no test of its own here.
NOT_BUILT = {
    "apertus1p5": "its codes must lie within the vocabulary, which is tiny",
    "dots3_note": "its class asks for numbers of the whole that its text part has by layer",
    "esmfold2": "its text part takes no grouped heads, and the builder's have them",
    "fast_vlm": "its tower needs timm",
    "gemma3n": "its tower needs timm",
    "muse_spark": "its vision adapter has 147 million parameters at any size of its towers",
    "perception_lm": "its tower needs timm",
    "pe_audio_video": "its tower needs timm",
    "pe_video": "its tower needs timm",
    "vibevoice": "its audio towers have 700 million parameters at any config",
    "vibevoice_asr": "its audio towers have 700 million parameters at any config",
}
NOT_LOADED = {"jev": "its class makes no use of what from_pretrained returns beside the model"}
DRAWS_NOISE = ("diffusion_gemma",)
CONVERTS = sorted(name for name, row in COMPOSITES.items() if no_conversion(row) is None)
BUILT = [name for name in CONVERTS if name not in {*NOT_BUILT, *NOT_LOADED}]


def text_config(model: nn.Module, row: Composite) -> Any:
    """The live config of the text decoder."""
    return read_composites.at(model.config, row.path)


def attentions(model: nn.Module, row: Composite) -> dict[str, nn.Module]:
    """The text decoder's attention modules that the row of its type is about, by the class's own structure."""
    text = text_config(model, row)
    name = TABLE[row.text_type].attention
    return {
        path: module
        for path, module in model.named_modules()
        if f".{path}".endswith(f".{name}") and type(read_composites.config_beside(model, path)) is type(text)
    }


@dataclass(frozen=True)
class Pair:
    """A tiny multimodal model with loud q and k, its checkpoint, the conversion of that, and what the class loads."""

    row: Composite
    model: Any
    source: Path
    converted: Path
    again: Any


@pytest.fixture(scope="module", params=BUILT)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """One type after the other."""
    row = COMPOSITES[request.param]
    model = tiny_composites.build(row.model_type)
    moved = {m.module for m in TABLE[row.text_type].moves if m.feeds}
    with torch.no_grad():
        for module in attentions(model, row).values():
            for key, parameter in module.named_parameters():
                if moved & set(key.split(".")) and key.endswith("weight"):
                    parameter.mul_(LOUDER)
    source = tmp_path_factory.mktemp("composites") / row.model_type
    model.save_pretrained(source)
    converted = source.with_name(f"{source.name}-converted")
    convert.apply(convert.plan(source, converted, read_model(read_json(source / "config.json")).pairing.other))
    return Pair(row, model, source, converted, loaded(model, converted))


def tensors(directory: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint by its name on disk."""
    return {name: t for shard in sorted(directory.glob("*.safetensors")) for name, t in load_file(shard).items()}


def loaded(model: Any, directory: Path) -> Any:
    """A checkpoint's tensors as they are stored, in the class itself."""
    with quiet():
        stored = config_options(directory)
        again, info = type(model).from_pretrained(directory, dtype=torch.float32, output_loading_info=True, **stored)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    return again.eval()


def test_only_rows_of_the_text_decoder_move(pair: Pair) -> None:
    """Which parameters changed, by the class's own names: q, k and their norms in the text decoder, no other."""
    family = TABLE[pair.row.text_type]
    moved = {name for site in family.sites for m in site.moves for name in (m.module, *m.loaded_as)}
    feeding = {name for m in family.moves if m.feeds for name in (m.loaded_as or (m.module,))}
    inside = tuple(f"{path}." for path in attentions(pair.model, pair.row))
    before, after = pair.model.state_dict(), pair.again.state_dict()
    changed = {key for key in before if not before[key].equal(after[key])}
    assert changed
    assert all(key.startswith(inside) and moved & set(key.split(".")) for key in changed)
    touched = {path for path in inside for key in changed if key.startswith(path)}
    assert touched == {p for p in inside for name in feeding if any(key.startswith(p + name) for key in before)}


def test_every_other_part_is_byte_identical(pair: Pair) -> None:
    before, after = tensors(pair.source), tensors(pair.converted)
    decoder = decoder_of(read_json(pair.source / "config.json"))
    assert before.keys() == after.keys()
    assert all(before[key].equal(after[key]) for key in before if not decoder.owns(key))
    counts = towers_of(open_checkpoint(pair.source), decoder)
    assert set(counts) <= set(pair.row.towers)
    assert bool(counts) == bool(pair.row.towers)


def by_definition(rows: Tensor, heads: int, rotary: int, to: Pairing) -> Tensor:
    """Rows of separate heads with their first ``rotary`` slots in the other order: [a0 a1 | b0 b1] or [a0 b0 a1 b1]."""
    per_head = rows.reshape(heads, -1, *rows.shape[1:])
    turning, still = per_head[:, :rotary], per_head[:, rotary:]
    steps = (2, rotary // 2) if to is Pairing.INTERLEAVED else (rotary // 2, 2)
    turned = turning.reshape(heads, *steps, *rows.shape[1:]).transpose(1, 2).reshape(turning.shape)
    return torch.cat((turned, still), dim=1).reshape(rows.shape)


def turned_back(model: nn.Module, row: Composite, to: Pairing) -> int:
    """Put q and k of the text decoder into layout ``to`` by the definition, with the module's own numbers."""
    text, done = text_config(model, row), set()  # parts may share their parameters
    share = (getattr(text, "rope_parameters", None) or {}).get("partial_rotary_factor") or 1.0
    moved = {m.module for m in TABLE[row.text_type].moves}
    for module in attentions(model, row).values():
        rotary = int(module.head_dim * share)
        for key, parameter in module.named_parameters():
            if key.split(".")[0] in moved and parameter not in done:
                parameter.copy_(by_definition(parameter, parameter.shape[0] // module.head_dim, rotary, to))
                done.add(parameter)
    return len(done)


def test_the_rows_come_back_by_the_definition(pair: Pair) -> None:
    """Put back by a reshape, in the class, the converted model is the same again; and until then it is another."""
    family, reading = TABLE[pair.row.text_type], read_model(read_json(pair.source / "config.json"))
    alike = len({(r.geometry.head_dim, r.geometry.rotary_dim) for r in reading.rotations}) == 1
    if not alike or family.others or not all(m.rows in (Q, K, ONE_HEAD) for m in family.moves):
        pytest.skip("fused rows, MLA, or heads that differ by layer: the tests of the table cover those rows")
    back, before = copy.deepcopy(pair.again), pair.model.state_dict()
    with torch.no_grad():
        assert turned_back(back, pair.row, reading.pairing)
    assert all(tensor.equal(before[key]) for key, tensor in back.state_dict().items())
    ids = torch.randint(6, 60, (1, TOKENS), generator=torch.Generator().manual_seed(3))
    try:
        with torch.no_grad():
            right, wrong, again = (model(input_ids=ids, use_cache=False)[0] for model in (pair.model, pair.again, back))
    except (TypeError, ValueError, AttributeError) as error:
        pytest.skip(f"the class takes no text alone: {error}")
    assert (wrong - right).abs().max() > 1e-4 * right.abs().max()
    assert pair.row.model_type in DRAWS_NOISE or again.equal(right)


def test_what_inspect_and_convert_say(pair: Pair) -> None:
    """The whole's type, the text decoder's numbers, the other parts by name; the marker at the top of config.json."""
    row, text, found = pair.row, text_config(pair.model, pair.row), detect.inspect(pair.source)
    assert found.model_type == row.model_type
    assert found.heads["query"] == text.num_attention_heads
    assert found.moves is not None
    assert set(found.towers) <= set(row.towers)
    warned = [w for w in found.warnings if w.code == "tower-left-alone"]
    assert len(warned) == bool(found.towers)
    assert all(tower in warned[0].message for tower in found.towers)
    before, after = (read_config(path) for path in (pair.source, pair.converted))
    assert marker(after)["pairing"] == detect.inspect(pair.converted).pairing != found.pairing
    part_before, part_after = (read_composites.at_keys(config, row.path) for config in (before, after))
    changed = {key for key in part_after if part_after[key] != part_before.get(key)}
    assert changed == {TABLE[row.text_type].pairing_key} - {None}


WHOLE = ["gemma3", "llava", "qwen2_vl", "qwen3_vl"]


def test_the_classes_refuse_a_result_that_they_would_rotate_wrongly(pair: Pair) -> None:
    """By the config alone: the whole's class and its config's, the text part's config, and the Auto classes."""
    kinds = (AutoConfig, AutoModel, type(pair.model), type(pair.model.config), type(text_config(pair.model, pair.row)))
    obeys = TABLE[pair.row.text_type].pairing_key is not None
    assert has_guard(pair.converted) is not obeys
    for kind in () if obeys else kinds:
        with quiet(), pytest.raises(Exception, match=f"these {pair.row.model_type} weights are stored as"):
            kind.from_pretrained(pair.converted)


def test_ropetool_loads_the_model_that_was(pair: Pair) -> None:
    with quiet():
        again = ropetool.load(pair.converted, dtype=torch.float32)
    assert type(again) is type(pair.model)
    obeys = TABLE[pair.row.text_type].pairing_key is not None
    want, found = (pair.again if obeys else pair.model).state_dict(), again.state_dict()
    assert found.keys() == want.keys()
    assert all(tensor.equal(want[key]) for key, tensor in found.items())


@pytest.mark.parametrize("name", WHOLE)
def test_from_one_end_to_the_other(name: str, tmp_path: Path) -> None:
    """Converted, verified, refused by plain classes, run by ropetool.load, and the same bytes when it comes back."""
    source, there, back = tmp_path / "source", tmp_path / "there", tmp_path / "back"
    model = tiny_composites.build(name)
    with torch.no_grad():
        for module in attentions(model, COMPOSITES[name]).values():
            module.q_proj.weight.mul_(LOUDER)
            module.k_proj.weight.mul_(LOUDER)
    model.save_pretrained(source)
    stock = read_model(read_config(source)).pairing
    convert.apply(convert.plan(source, there, stock.other))
    result = verify.verify(source, there)
    assert result.passed, [check for check in result.checks if not check.passed]
    assert result.control["failed_as_it_must"]
    ids = torch.randint(6, 60, (1, TOKENS), generator=torch.Generator().manual_seed(3))
    right, wrong, again = (
        m(input_ids=ids, use_cache=False).logits.detach()
        for m in (loaded(model, source), loaded(model, there), ropetool.load(there, dtype=torch.float32))
    )
    assert again.equal(right)
    assert (wrong - right).abs().max() > 1e-3 * right.abs().max()
    convert.apply(convert.plan(there, back, stock))
    assert (back / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    was, now = (read_json(path / "config.json") for path in (source, back))
    assert json.dumps({key: value for key, value in now.items() if key != "ropetool"}) == json.dumps(was)
    assert verify.verify(there, back).passed


# --- the data against the classes -----------------------------------------------------------------------------------


def test_the_data_is_what_the_config_classes_say() -> None:
    """Type, path and how the class reads its text part, for every composite type that transformers has."""
    found = read_composites.composite_types()
    assert found.keys() == COMPOSITES.keys()
    fields = ("text_type", "path", "via", "obeys_type", "reads_flat", "refusal")
    for name, (path, text_type) in found.items():
        row = read_composites.row(name, path, text_type, with_places=False)
        assert {key: row[key] for key in fields} == {
            key: list(value) if isinstance(value := getattr(COMPOSITES[name], key), tuple) else value for key in fields
        }
    numbers = json.loads(read_composites.OUT.read_text(encoding="utf-8"))["class_numbers"]
    assert read_composites.class_numbers() == numbers


def test_the_places_and_parts_are_those_of_the_class(pair: Pair) -> None:
    places, towers = read_composites.anatomy(pair.model, pair.row.path, pair.row.text_type)
    assert places
    assert places <= set(pair.row.places)
    assert towers <= set(pair.row.towers)
    assert bool(towers) == bool(pair.row.towers)


@pytest.mark.parametrize("name", ["llava", "qwen2_vl", "llama4"])
def test_a_row_is_what_the_tool_computes(name: str) -> None:
    row = COMPOSITES[name]
    assert read_composites.look(name, row.path, row.text_type) == (list(row.places), list(row.towers))


def test_those_that_are_not_built_cannot_be() -> None:
    for name in NOT_BUILT:
        with pytest.raises(CannotBuild):
            tiny_composites.build(name)


@pytest.mark.parametrize("name", sorted(COMPOSITES))
def test_the_class_takes_the_type_that_ropetool_takes(name: str) -> None:
    """A text part without model_type, and one that names another: what the class makes of each."""
    row = COMPOSITES[name]
    config = read_composites.made(name, row.path, {"model_type": "llama"})
    if config is None:  # the class refuses a part that does not fit its others
        return
    obeyed = type(config).__name__ == "LlamaConfig"
    assert obeyed == (row.obeys_type or row.text_type == "llama")


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.fixture
def llava(tmp_path: Path) -> Path:
    """A tiny LLaVA that the test may change."""
    directory = tmp_path / "llava"
    tiny_composites.build("llava").save_pretrained(directory)
    return directory


def renamed(directory: Path, change: Callable[[str], str]) -> None:
    """Give the tensors of a checkpoint other names."""
    found = {change(name): tensor for name, tensor in tensors(directory).items()}
    save_file(found, directory / "model.safetensors", metadata={"format": "pt"})


def planned(directory: Path) -> set[str]:
    checkpoint = open_checkpoint(directory)
    plan = plan_conversion(checkpoint, read_model(checkpoint.config), Pairing.HALF, Pairing.INTERLEAVED)
    return {move.tensor.name for move in plan.moves}


def test_every_place_of_the_text_decoder_is_found(llava: Path) -> None:
    """Checkpoints of several versions of transformers keep it under several names."""
    (here,) = {place for place in COMPOSITES["llava"].places if any(n.startswith(f"{place}.") for n in planned(llava))}
    moved = len(planned(llava))
    for place in COMPOSITES["llava"].places:
        renamed(llava, lambda name, here=here, place=place: name.replace(f"{here}.", f"{place}.", 1))
        assert len(planned(llava)) == moved == sum(name.startswith(f"{place}.") for name in planned(llava))
        here = place


def test_attention_in_no_known_part_is_refused(llava: Path) -> None:
    renamed(llava, lambda name: name.replace("vision_tower.", "second_eye."))
    with pytest.raises(UnclaimedTensorError, match=r"second_eye.*no known part of llava.*other parts are vision_tower"):
        planned(llava)


def test_a_text_decoder_elsewhere_is_refused(llava: Path) -> None:
    renamed(llava, lambda name: name.replace("language_model.", "lm."))
    with pytest.raises(UnclaimedTensorError, match=r"lm\..*its text decoder lies in .*language_model\.layers"):
        planned(llava)


def test_frequencies_saved_in_another_part_are_its_own(llava: Path) -> None:
    """A tower's table of frequencies is not held against the text decoder's base; the text decoder's own is."""
    for prefix, stale in (("vision_tower.", False), ("language_model.model.layers.0.self_attn.", True)):
        found = {**tensors(llava), f"{prefix}rotary_emb.inv_freq": torch.full((8,), 0.5)}
        save_file(found, llava / "model.safetensors", metadata={"format": "pt"})
        assert ("stale-inv-freq" in {w.code for w in detect.inspect(llava).warnings}) == stale


REFUSED = sorted(name for name, row in COMPOSITES.items() if row.refusal and row.text_type in TABLE)


@pytest.mark.parametrize("name", REFUSED)
def test_a_type_with_several_rotary_models_is_read_and_refused(name: str, tmp_path: Path) -> None:
    try:
        tiny_composites.build(name).save_pretrained(tmp_path / name)
    except CannotBuild as reason:
        pytest.skip(str(reason))
    found = detect.inspect(tmp_path / name)
    assert found.moves is None
    assert "cannot-convert" in {warning.code for warning in found.warnings}
    with pytest.raises(UnsupportedError, match=f"{name} cannot be converted"):
        convert.plan(tmp_path / name, tmp_path / "out", Pairing(found.pairing).other)


def test_an_older_flat_config_is_read_alike(tmp_path: Path) -> None:
    """Qwen2-VL on the Hub has the keys of its text decoder at the top, and converts to the same tensors."""
    nested, flat = tmp_path / "nested", tmp_path / "flat"
    model = tiny_composites.build("qwen2_vl")
    model.save_pretrained(nested)
    model.save_pretrained(flat)
    text = read_json(flat / "config.json")["text_config"]
    edit_json(flat / "config.json", "text_config", **{k: v for k, v in text.items() if k != "model_type"})
    assert planned(nested) == planned(flat)
    assert detect.inspect(nested).rope[0].theta == detect.inspect(flat).rope[0].theta
    for path in (nested, flat):
        convert.apply(convert.plan(path, path.with_name(f"{path.name}-out"), Pairing.INTERLEAVED))
    after = tensors(tmp_path / "nested-out"), tensors(tmp_path / "flat-out")
    assert all(after[0][name].equal(after[1][name]) for name in after[0])
    assert marker(read_config(tmp_path / "flat-out"))["pairing"] == "interleaved"


@pytest.mark.parametrize("name", ["llava", "kimi_k25"])
def test_verify_reads_the_text_part_key_by_key(name: str, tmp_path: Path) -> None:
    """The key that the class obeys may differ within the text part; any other there, or in a tower, may not."""
    source, out = tmp_path / "a", tmp_path / "b"
    tiny_composites.build(name).save_pretrained(source)
    convert.apply(convert.plan(source, out, read_model(read_json(source / "config.json")).pairing.other))
    config = read_config(out)
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")  # without the guard, to be edited
    readings = tuple(read_model(read_config(path)) for path in (source, out))
    ignored = [key for key in (readings[0].family.pairing_key,) if key]

    def fault() -> str | None:
        return config_fault((source, out), tuple(map(read_config, (source, out))), *readings, *ignored)

    assert fault() is None
    for part in ("text_config", "vision_config"):
        edit_json(out / "config.json", **{part: {**config[part], "hidden_act": "silu_and_more"}})
        assert "hidden_act" in str(fault())
        edit_json(out / "config.json", **config)
