"""Adapters: converted beside their base and merged by PEFT, they are the merged model converted."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file

from ropetool import convert
from ropetool.checkpoint.adapter import open_adapter
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.detect import inspect
from ropetool.errors import (
    AlreadyConvertedError,
    ConfigError,
    HalfConvertedError,
    MissingFileError,
    ShapeError,
    UnclaimedTensorError,
    UnsupportedError,
    UsageError,
)
from ropetool.families.adapter import METHODS, plan_adapter, read_adapter
from ropetool.families.reading import read_model
from ropetool.rope.pairing import Pairing
from tests import tiny
from tests.tiny import edit_json, read_json, snapshot

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
QK = ["q_proj", "k_proj"]
ATTENTION = [*QK, "v_proj", "o_proj"]
RANK = 4

# Name: the tiny model, the PEFT config, and the parameters that must be among those that move.
CASES: dict[str, tuple[str, Callable[[], Any], tuple[str, ...]]] = {
    "lora": ("llama", lambda: LoraConfig(r=RANK, target_modules=ATTENTION), ("lora_B",)),
    "lora-ranks": (
        "llama",
        lambda: LoraConfig(
            r=RANK, target_modules=ATTENTION, rank_pattern={"q_proj": 2}, layers_to_transform=[1], use_rslora=True
        ),
        ("lora_B",),
    ),
    # The base itself is changed on loading: by the SVD and the QR of its weights, which follow a permutation of rows.
    "lora-pissa": ("llama", lambda: LoraConfig(r=RANK, target_modules=QK, init_lora_weights="pissa"), ("lora_B",)),
    "lora-olora": ("llama", lambda: LoraConfig(r=RANK, target_modules=QK, init_lora_weights="olora"), ("lora_B",)),
    "lora-interleaved": ("glm4", lambda: LoraConfig(r=RANK, target_modules=QK), ("lora_B",)),
    "lora-biases": ("qwen2", lambda: LoraConfig(r=RANK, target_modules=QK, bias="lora_only"), ("lora_B", "base_layer")),
    "lora-all-linear": ("llama", lambda: LoraConfig(r=RANK, target_modules="all-linear"), ("lora_B",)),
    "lora-all-biases": ("qwen2", lambda: LoraConfig(r=RANK, target_modules=QK[:1], bias="all"), ("lora_B", "k_proj")),
    "lora-own-bias": ("qwen2", lambda: LoraConfig(r=RANK, target_modules=QK, lora_bias=True), ("lora_B",)),
    "lora-fused": ("phi3", lambda: LoraConfig(r=RANK, target_modules=["qkv_proj", "o_proj"]), ("lora_B",)),
    "lora-per-head": ("gpt_neox", lambda: LoraConfig(r=RANK, target_modules=["query_key_value"]), ("lora_B",)),
    "lora-mla": (
        "deepseek_v3",
        lambda: LoraConfig(r=RANK, target_modules=["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"]),
        ("lora_B",),
    ),
    "lora-and-a-norm": (
        "qwen3",
        lambda: LoraConfig(r=RANK, target_modules=QK, modules_to_save=["q_norm", "k_norm"]),
        ("lora_B", "q_norm"),
    ),
    "lora-and-a-projection": (
        "olmo2",
        lambda: LoraConfig(r=RANK, target_modules=["q_proj"], modules_to_save=["k_proj", "q_norm"]),
        ("lora_B", "k_proj", "q_norm"),
    ),
    "dora": (
        "qwen2", lambda: LoraConfig(r=RANK, target_modules=ATTENTION, use_dora=True), ("lora_B", "lora_magnitude"),
    ),
    "dora-fused": (
        "phi3", lambda: LoraConfig(r=RANK, target_modules=["qkv_proj"], use_dora=True), ("lora_B", "lora_magnitude"),
    ),
    "adalora": ("llama", lambda: peft.AdaLoraConfig(init_r=RANK, target_modules=QK, total_step=9), ("lora_B",)),
    "loha": ("llama", lambda: peft.LoHaConfig(r=RANK, target_modules=ATTENTION), ("hada_w1_a", "hada_w2_a")),
    "hira": ("llama", lambda: peft.HiraConfig(r=RANK, target_modules=QK), ("hira_B",)),
    "delora": ("llama", lambda: peft.DeloraConfig(r=RANK, target_modules=QK), ("delora_B",)),
    "ia3": (
        "qwen2",
        lambda: peft.IA3Config(target_modules=["k_proj", "v_proj", "q_proj"], feedforward_modules=["q_proj"]),
        ("k_proj",),
    ),
    "oft": ("qwen2", lambda: peft.OFTConfig(oft_block_size=8, target_modules=QK, bias="oft_only"), ("base_layer",)),
    "boft": ("llama", lambda: peft.BOFTConfig(boft_block_size=8, target_modules=QK), ("boft_s",)),
    "hra": ("qwen2", lambda: peft.HRAConfig(r=RANK, target_modules=QK, bias="hra_only"), ("base_layer",)),
    "ln-tuning": ("qwen3", lambda: peft.LNTuningConfig(target_modules=["q_norm", "input_layernorm"]), ("q_norm",)),
}  # fmt: skip


def trained(base: Path, config: Any, directory: Path) -> Path:
    """An adapter of ``base`` in which every saved tensor is random, saved as PEFT does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(tiny.load(base), config)
        model.save_pretrained(directory)
    tensors, generator = load_file(directory / WEIGHTS), torch.Generator().manual_seed(3)
    noise = {name: torch.randn(t.shape, generator=generator, dtype=t.dtype) for name, t in tensors.items()}
    small = {name: t + 0.3 * noise[name] if "_R" not in name else 0.1 * noise[name] for name, t in tensors.items()}
    save_file(small, directory / WEIGHTS, metadata={"format": "pt"})
    edit_json(directory / CONFIG, base_model_name_or_path=str(base))
    return directory


def merged(base: Path, adapter: Path) -> Any:
    """The model that PEFT makes of base and adapter, as they are stored."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.PeftModel.from_pretrained(tiny.load_stored(base), adapter).merge_and_unload()


def other(path: Path) -> Pairing:
    return read_model(open_checkpoint(path).config).pairing.other


def to(target: Pairing, source: Path, destination: Path, **options: Any) -> Path:
    convert.apply(convert.plan(source, destination, target, **options))
    return destination


@pytest.fixture(scope="module")
def built(checkpoint, tmp_path_factory) -> Callable[[str], tuple[Path, Path, Path, Path]]:
    """By case: base, adapter, and both converted."""
    done: dict[str, tuple[Path, Path, Path, Path]] = {}

    def build(case: str) -> tuple[Path, Path, Path, Path]:
        if case not in done:
            name, config, _ = CASES[case]
            base, place = checkpoint(name), tmp_path_factory.mktemp(case)
            adapter = trained(base, config(), place / "adapter")
            target = other(base)
            done[case] = base, adapter, to(target, base, place / "base-to"), to(target, adapter, place / "adapter-to")
        return done[case]

    return build


def distance(a: Any, b: Any) -> float:
    """The largest difference of any two tensors of two models."""
    first, second = a.state_dict(), b.state_dict()
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def converted_merge(case: str, built, tmp_path: Path) -> Any:
    """The yardstick: merged first, then converted like any checkpoint."""
    base, adapter, *_ = built(case)
    whole = merged(base, adapter)
    assert distance(whole, tiny.load(base)) > 0.05
    return tiny.load_stored(to(other(base), tiny.save(whole, tmp_path / "whole"), tmp_path / "whole-to"))


@pytest.mark.parametrize("case", CASES)
def test_converting_then_merging_is_merging_then_converting(case: str, built, tmp_path: Path) -> None:
    _, adapter, base_to, adapter_to = built(case)
    yardstick = converted_merge(case, built, tmp_path)
    assert distance(merged(base_to, adapter_to), yardstick) < 1e-5
    assert distance(merged(base_to, adapter), yardstick) > 0.01
    before, after = load_file(adapter / WEIGHTS), load_file(adapter_to / WEIGHTS)
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    for parameter in CASES[case][2]:
        assert any(parameter in name for name in moved), parameter
    assert not [name for name in moved if "lora_A" in name or ".v_proj" in name or "o_proj" in name]


@pytest.mark.parametrize("case", CASES)
def test_the_way_back_is_bit_identical(case: str, built, tmp_path: Path) -> None:
    base, adapter, _, adapter_to = built(case)
    before = snapshot(adapter_to)
    back = to(read_model(open_checkpoint(base).config).pairing, adapter_to, tmp_path / "back")
    assert (back / WEIGHTS).read_bytes() == (adapter / WEIGHTS).read_bytes()
    assert {k: v for k, v in read_json(back / CONFIG).items() if k != "ropetool"} == read_json(adapter / CONFIG)
    assert {p.name for p in back.iterdir()} == {p.name for p in adapter.iterdir()}
    assert snapshot(adapter_to) == before


def test_the_stock_class_gives_the_same_logits_where_it_obeys_a_key(built) -> None:
    base, adapter, base_to, adapter_to = built("lora-mla")
    want = tiny.logits(merged(base, adapter))
    assert float((tiny.logits(merged(base_to, adapter_to)) - want).abs().max()) < 2e-4
    assert float((tiny.logits(merged(base_to, adapter)) - want).abs().max()) > 0.1


def left(word: str) -> Callable[[dict, dict], None]:
    """What a converter that forgot the tensors called ``word`` would write."""

    def plant(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
        names = [n for n in before if word in n and not torch.equal(before[n], after[n])]
        assert names
        after.update({name: before[name] for name in names})

    return plant


def also_moved(word: str) -> Callable[[dict, dict], None]:
    def plant(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
        after.update({name: t.roll(1, 0) for name, t in before.items() if word in name})

    return plant


FAULTS = {
    "lora_B left": ("lora", left("lora_B")),
    "lora_B of k left": ("lora", left("k_proj.lora_B")),
    "lora_A moved": ("lora", also_moved("q_proj.lora_A")),
    "v moved": ("lora", also_moved("v_proj.lora_B")),
    "magnitude left": ("dora", left("lora_magnitude_vector")),
    "bias left": ("lora-biases", left("base_layer.bias")),
    "bias of lora_B left": ("lora-own-bias", left("lora_B.bias")),
    "norm left": ("lora-and-a-norm", left("q_norm")),
    "one factor left": ("loha", left("hada_w1_a")),
    "input scales moved": ("ia3", also_moved("q_proj.ia3_l")),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_planted_fault_is_seen(fault: str, built, tmp_path: Path) -> None:
    case, plant = FAULTS[fault]
    _, adapter, base_to, adapter_to = built(case)
    wrong = shutil.copytree(adapter_to, tmp_path / "wrong")
    after = load_file(wrong / WEIGHTS)
    plant(load_file(adapter / WEIGHTS), after)
    if "ia3" in case:  # one row cannot be rolled along its rows
        after = {name: t.roll(1, 1) if "q_proj" in name else t for name, t in after.items()}
    save_file(after, wrong / WEIGHTS, metadata={"format": "pt"})
    assert distance(merged(base_to, wrong), converted_merge(case, built, tmp_path)) > 0.01


# --- layout and base ------------------------------------------------------------------------------------------------


@pytest.fixture
def adapter(built, tmp_path: Path) -> Path:
    """An adapter of the tiny llama that the test may change."""
    return Path(shutil.copytree(built("lora")[1], tmp_path / "adapter"))


@pytest.mark.parametrize("end", ["whole", "resume", "undo"])
def test_in_place_is_what_a_copy_is(end: str, adapter: Path, tmp_path: Path, monkeypatch) -> None:
    def contents(directory: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in directory.iterdir()}

    old, target = contents(adapter), other(read_adapter(open_adapter(adapter)).base)
    new = contents(to(target, adapter, tmp_path / "copy"))
    assert new != old
    plan = convert.plan(adapter, None, target)
    if end == "whole":
        convert.apply(plan)
    else:
        with monkeypatch.context() as patch:
            patch.setattr("ropetool.checkpoint.in_place._change", raise_interrupt)
            with pytest.raises(KeyboardInterrupt):
                convert.apply(plan)
        with pytest.raises(HalfConvertedError):
            open_adapter(adapter)
        with pytest.raises(Exception, match="half converted in place"):
            peft.PeftConfig.from_pretrained(adapter)
        (convert.resume if end == "resume" else convert.undo)(adapter)
    assert contents(adapter) == (old if end == "undo" else new)


def raise_interrupt(*arguments: object, **options: object) -> None:
    raise KeyboardInterrupt


def codes(warned: Any) -> set[str]:
    return {warning.code for warning in warned.warnings}


def test_the_marker_tells_the_layout_and_peft_reads_past_it(built, tmp_path: Path) -> None:
    base, adapter, _, adapter_to = built("lora")
    written = read_json(adapter_to / CONFIG)
    assert written["ropetool"]["pairing"] == "interleaved"
    assert peft.PeftConfig.from_pretrained(adapter_to).r == RANK
    with pytest.raises(AlreadyConvertedError, match="marked by ropetool"):
        convert.plan(adapter_to, tmp_path / "x", INTERLEAVED)
    with pytest.raises(AlreadyConvertedError, match=f"its base, {base}"):
        convert.plan(adapter, tmp_path / "x", HALF)
    with pytest.raises(ConfigError, match=r"--from says half, but adapter_config\.json was marked interleaved"):
        convert.plan(adapter_to, tmp_path / "x", INTERLEAVED, HALF)


def test_a_result_names_its_base_only_where_that_has_its_layout(built, adapter: Path, tmp_path: Path) -> None:
    base, _, base_to, adapter_to = built("lora")
    written = read_json(adapter_to / CONFIG)
    assert (written["base_model_name_or_path"], written["ropetool"]["base"]) == (None, str(base))
    plan = convert.plan(adapter, tmp_path / "x", INTERLEAVED)
    assert f"only with {base} converted to interleaved" in plan.warnings[0].message
    fitting = to(INTERLEAVED, adapter, tmp_path / "y", declared=HALF, base=base_to)
    assert read_json(fitting / CONFIG)["base_model_name_or_path"] == str(base_to)
    assert (fitting / WEIGHTS).read_bytes() == (adapter_to / WEIGHTS).read_bytes()


def test_an_adapter_trained_on_a_converted_base_has_its_layout(built, adapter: Path, tmp_path: Path) -> None:
    *_, base_to, adapter_to = built("lora")
    edit_json(adapter / CONFIG, base_model_name_or_path=str(base_to))
    with pytest.raises(AlreadyConvertedError):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)
    shutil.copy(adapter_to / WEIGHTS, adapter / WEIGHTS)
    back = to(HALF, adapter, tmp_path / "back")
    assert (back / WEIGHTS).read_bytes() == (built("lora")[1] / WEIGHTS).read_bytes()


def test_a_converted_base_given_by_hand_leaves_the_layout_open(built, adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="trained before or after; give the layout of the adapter by --from"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED, base=built("lora")[2])


def test_the_base_is_found_from_the_adapter_or_given(built, adapter: Path, tmp_path: Path, monkeypatch) -> None:
    base = shutil.copytree(built("lora")[0], tmp_path / "base")
    edit_json(adapter / CONFIG, base_model_name_or_path="../base")
    assert len(convert.plan(adapter, tmp_path / "x", INTERLEAVED).plan.moves) == 4
    assert read_adapter(open_adapter(adapter), None, None).base.resolve() == base
    edit_json(adapter / CONFIG, base_model_name_or_path="org/not-here")
    with pytest.raises(MissingFileError, match=r"'org/not-here'.* give the base by --base CKPT, or put its directory"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)
    assert len(convert.plan(adapter, tmp_path / "x", INTERLEAVED, base=base).plan.moves) == 4
    edit_json(adapter / CONFIG, "base_model_name_or_path")
    with pytest.raises(MissingFileError, match="no base_model_name_or_path"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)
    twice = tmp_path / "cwd" / "base"
    shutil.copytree(base, twice)
    shutil.copytree(base, adapter / "base")
    edit_json(adapter / CONFIG, base_model_name_or_path="base")
    monkeypatch.chdir(twice.parent)
    with pytest.raises(UsageError, match="say which by --base"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)
    with pytest.raises(UsageError, match="--base is for an adapter"):
        convert.plan(base, tmp_path / "x", INTERLEAVED, base=base)


def test_inspect_shows_the_layout_the_base_and_what_moves(built, adapter: Path) -> None:
    base, *_, base_to, adapter_to = built("lora")
    result = inspect(adapter)
    assert (result.pairing, result.model_type, result.evidence[0].source) == ("half", "llama", "family")
    assert result.moves.tensors == 4
    tensors = load_file(adapter / WEIGHTS)
    assert result.moves.share * sum(t.nbytes for t in tensors.values()) == pytest.approx(result.moves.bytes)
    assert "base-of-other-layout" not in codes(result)
    result = inspect(adapter_to)
    assert (result.pairing, result.evidence[0].source) == ("interleaved", "marker")
    assert "base-of-other-layout" in codes(result)
    assert "base-of-other-layout" not in codes(inspect(adapter_to, base=base_to))
    with pytest.raises(UsageError, match="--base is for an adapter"):
        inspect(base, base=base_to)


def test_converting_a_base_names_its_adapters(own, adapter: Path, tmp_path: Path) -> None:
    base = own("llama")
    edit_json(adapter / CONFIG, base_model_name_or_path=str(base))
    shutil.copytree(adapter, base / "checkpoint-7")
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / CONFIG).write_text("{", encoding="utf-8")
    for name in (CONFIG, WEIGHTS):
        shutil.copy(adapter / name, base / name)
    plan = convert.plan(base, tmp_path / "out", INTERLEAVED)
    named = [warning.message.split(" is an adapter")[0] for warning in plan.warnings if warning.code == "adapter"]
    assert named == [str(base), str(base / "checkpoint-7"), str(adapter)]
    convert.apply(plan)
    assert not list((tmp_path / "out").rglob("adapter_*"))


# --- refused --------------------------------------------------------------------------------------------------------


REFUSED = [kind for kind, method in METHODS.items() if method.refused]


def test_every_method_that_peft_knows_is_converted_or_refused_by_name() -> None:
    assert set(METHODS) <= {kind.value for kind in peft.PeftType}
    covered = {config().peft_type.value for _, config, _ in CASES.values()}
    assert covered == {kind for kind, method in METHODS.items() if not method.refused}


@pytest.mark.parametrize("kind", [*REFUSED, "PROMPT_TUNING", "SOMETHING_NEW"])
def test_methods_that_cannot_be_exact_are_refused_with_the_reason(kind: str, adapter: Path, tmp_path: Path) -> None:
    edit_json(adapter / CONFIG, peft_type=kind)
    with pytest.raises(UnsupportedError, match=r"merge it into its base|as it is with either base"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)
    assert not (tmp_path / "x").exists()


def rewritten(adapter: Path, change: Callable[[dict], dict]) -> None:
    save_file(change(load_file(adapter / WEIGHTS)), adapter / WEIGHTS, metadata={"format": "pt"})


def test_block_diagonal_lora_is_refused(adapter: Path, tmp_path: Path) -> None:
    edit_json(adapter / CONFIG, use_bdlora={"target_modules_bd_b": ["q_proj"], "nblocks": 2})
    with pytest.raises(UnsupportedError, match="block-diagonal"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)


@pytest.mark.parametrize("module", ["q_proj.lora_X.weight", "w_proj.lora_B.weight", "q_proj.lora_B.a.b.weight"])
def test_an_attention_tensor_that_nothing_explains_is_named(module: str, adapter: Path, tmp_path: Path) -> None:
    name = f"base_model.model.model.layers.0.self_attn.{module}"
    rewritten(adapter, lambda tensors: {**tensors, name: torch.ones(128, 4)})
    with pytest.raises(UnclaimedTensorError, match=name.replace(".", r"\.")) as raised:
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)
    assert raised.value.fields["tensor"] == name


def test_attention_under_other_names_than_the_bases_is_not_taken_for_nothing(adapter: Path, tmp_path: Path) -> None:
    rewritten(adapter, lambda tensors: {name.replace("self_attn", "attention"): t for name, t in tensors.items()})
    with pytest.raises(UnclaimedTensorError, match="lies in an attention called attention"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)


def test_names_with_the_adapters_name_in_them_are_read_alike(adapter: Path, built, tmp_path: Path) -> None:
    rewritten(adapter, lambda tensors: {n.replace(".weight", ".default.weight"): t for n, t in tensors.items()})
    named = load_file(to(INTERLEAVED, adapter, tmp_path / "x") / WEIGHTS)
    plain = load_file(built("lora")[3] / WEIGHTS)
    assert all(torch.equal(named[name.replace(".weight", ".default.weight")], t) for name, t in plain.items())


def test_rows_that_do_not_fit_the_base_are_named(adapter: Path, tmp_path: Path) -> None:
    rewritten(adapter, lambda tensors: {n: t[:-1] if "k_proj.lora_B" in n else t for n, t in tensors.items()})
    with pytest.raises(ShapeError, match=r"k_proj\.lora_B\.weight has shape \[31, 4\], which is not 32 rows"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)


@pytest.mark.parametrize("modules", [["v_proj", "up_proj"], ["post_attention_layernorm"]], ids="-".join)
def test_an_adapter_that_no_layout_reaches_needs_no_conversion(modules: list[str], built, tmp_path: Path) -> None:
    config = (
        LoraConfig(r=RANK, target_modules=modules) if len(modules) > 1 else peft.LNTuningConfig(target_modules=modules)
    )
    adapter = trained(built("lora")[0], config, tmp_path / "adapter")
    with pytest.raises(UnsupportedError, match="depends on the layout: use it as it is with either base"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)
    assert inspect(adapter).moves.tensors == 0


def test_layers_numbered_anew_are_refused_where_they_differ(adapter: Path, tmp_path: Path) -> None:
    edit_json(adapter / CONFIG, layer_replication=[[0, 1], [0, 2]])
    alike = read_adapter(open_adapter(adapter), None, None)
    assert len(plan_adapter(alike, INTERLEAVED).moves) == 4
    differing = replace(alike, reading=replace(alike.reading, layers=(alike.reading.geometry,)))
    with pytest.raises(UnsupportedError, match="layer_replication numbers the layers anew"):
        plan_adapter(differing, INTERLEAVED)


def test_config_faults_are_named(adapter: Path, tmp_path: Path) -> None:
    edit_json(adapter / CONFIG, ropetool={"pairing": "sideways"})
    with pytest.raises(ConfigError, match="sideways"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)
    edit_json(adapter / CONFIG, "peft_type", "ropetool")
    with pytest.raises(ConfigError, match="not written by PEFT"):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)
    (adapter / WEIGHTS).unlink()
    with pytest.raises(MissingFileError, match=WEIGHTS):
        convert.plan(adapter, tmp_path / "x", INTERLEAVED)
