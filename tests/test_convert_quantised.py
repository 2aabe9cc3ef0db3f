"""Converting quantised checkpoints: what is read back from the result is the conversion of what was read before."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

import ropetool
from ropetool import convert, verify
from ropetool.checkpoint import in_place
from ropetool.checkpoint.folder import open_checkpoint
from ropetool.detect import inspect
from ropetool.errors import UnsupportedError
from ropetool.families.plan import plan_conversion
from ropetool.families.reading import read_model
from ropetool.rope.pairing import Pairing
from tests import quantised, tiny
from tests.quantised import WAYS, Way
from tests.tiny import edit_json, raw_tensors

# Separate and fused, whole and partial rotary, norms, MLA; inputs that every way of packing can fill words with.
MODELS = {
    "llama": {},
    "qwen3": {},
    "phi3": {},
    "gpt_neox": {},
    "deepseek_v3": {"q_lora_rank": 32, "v_head_dim": 12, "qk_nope_head_dim": 8},
}


def converted(source: Path, destination: Path) -> Path:
    to = read_model(open_checkpoint(source).config).pairing.other
    convert.apply(convert.plan(source, destination, to))
    return destination


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The floating-point checkpoint of a model."""
    built: dict[str, Path] = {}

    def build(name: str) -> Path:
        if name not in built:
            directory = tmp_path_factory.mktemp("plain") / name
            built[name] = tiny.save(tiny.model_of(name, num_hidden_layers=1, **MODELS[name]), directory)
        return built[name]

    return build


@pytest.fixture(scope="module")
def source_of(plain, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Way], Path]:
    """A model quantised in one way."""
    built: dict[tuple[str, str], Path] = {}

    def build(model: str, way: Way) -> Path:
        if (model, way.name) not in built:
            directory = tmp_path_factory.mktemp("quantised") / way.name
            built[model, way.name] = quantised.quantise(plain(model), way, directory)
        return built[model, way.name]

    return build


def differing(a: Path, b: Path) -> list[str]:
    """Names of the tensors that differ in a bit."""
    (_, data_a, entries_a), (_, data_b, entries_b) = (raw_tensors(d / "model.safetensors") for d in (a, b))
    assert {n: (e["dtype"], e["shape"]) for n, e in entries_a.items()} == {
        n: (e["dtype"], e["shape"]) for n, e in entries_b.items()
    }
    return [name for name in data_a if data_a[name] != data_b[name]]


def kind_of(name: str) -> str:
    """The kind of a projection's tensor: what follows the projection's name."""
    return next((name.partition(f"{p}.")[2] for p in quantised.PROJECTIONS if f".{p}." in name), "")


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_reading_and_converting_commute(model: str, way: Way, source_of, tmp_path: Path) -> None:
    source = source_of(model, way)
    floats = quantised.dequantise(source, way, tmp_path / "floats")
    there = converted(source, tmp_path / "there")
    want = converted(floats, tmp_path / "want")
    assert differing(quantised.dequantise(there, way, tmp_path / "got"), want) == []
    assert differing(floats, want), "something moves"
    back = converted(there, tmp_path / "back")
    assert (back / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    changed = {kind_of(name) for name in differing(source, there)} - {"", "bias"}
    assert changed == way.moves


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_in_place_is_what_a_copy_is_cut_off_and_ended_either_way(
    way: Way, source_of, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_of("llama", way)
    old = files(source)
    new = files(converted(source, tmp_path / "copy"))
    assert new["model.safetensors"] != old["model.safetensors"]
    monkeypatch.setattr(in_place, "BATCH_BYTES", 512)
    for module in ("shards", "fields"):
        monkeypatch.setattr(f"ropetool.checkpoint.{module}.BUFFER_BYTES", 1024)
    real, ends = in_place._change, {"resume": convert.resume, "undo": convert.undo}
    for end, ended in ends.items():
        for batches in (1, 4, 7):
            directory = Path(shutil.copytree(source, tmp_path / f"{end}-{batches}"))
            left = iter(range(batches))

            def stop(*arguments: Any, left: Iterator[int] = left) -> int:
                moved = real(*arguments)
                if next(left, None) is None:
                    raise KeyboardInterrupt
                return moved

            plan = convert.plan(directory, None, read_model(open_checkpoint(source).config).pairing.other)
            with monkeypatch.context() as patch:
                patch.setattr(in_place, "_change", stop)
                with pytest.raises(KeyboardInterrupt):
                    convert.apply(plan, sync=False)
            ended(directory)
            assert files(directory) == (new if end == "resume" else old)


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_stock_class_gives_the_same_logits(way: Way, source_of, tmp_path: Path) -> None:
    """DeepSeek's class turns either layout by a key of its config; left in the old one, the result is far off."""
    source = source_of("deepseek_v3", way)
    there = converted(source, tmp_path / "there")
    before = tiny.logits(tiny.load(quantised.dequantise(source, way, tmp_path / "before")))
    after = quantised.dequantise(there, way, tmp_path / "after")
    assert float((tiny.logits(tiny.load(after)) - before).abs().max()) < 2e-4
    edit_json(after / "config.json", rope_interleave=True)
    assert float((tiny.logits(tiny.load(after)) - before).abs().max()) > 0.1


@pytest.mark.parametrize("model", MODELS)
def test_an_independent_rotation_gives_the_same_logits(model: str, source_of, tmp_path: Path) -> None:
    way = WAYS["gptq-4"]
    source = source_of(model, way)
    there = converted(source, tmp_path / "there")
    result = verify.verify(
        quantised.dequantise(source, way, tmp_path / "before"), quantised.dequantise(there, way, tmp_path / "after")
    )
    assert result.passed, [check for check in result.checks if not check.passed]
    assert result.relation == "converted"


@pytest.mark.parametrize("name", ["fp8-blocks", "fp8-tensor"])
def test_the_librarys_own_reading_gives_the_same_logits(name: str, source_of, tmp_path: Path) -> None:
    """transformers dequantises these on the CPU itself, so the quantised checkpoints go through verify as they are."""
    source = source_of("deepseek_v3", WAYS[name])
    result = verify.verify(source, converted(source, tmp_path / "there"))
    assert result.passed, [check for check in result.checks if not check.passed]
    assert result.max_abs_diff < 2e-4


# --- planted faults -------------------------------------------------------------------------------------------------


def failed(a: Path, b: Path) -> set[str]:
    """Those of verify's checks of the files that fail."""
    sides = verify._side(a), verify._side(b)
    return {check.name for check in verify.file_checks(*sides, None) if not check.passed}


def replant(directory: Path, change: Callable[[str, Tensor], Tensor]) -> None:
    file = directory / "model.safetensors"
    tensors = {name: change(name, tensor).contiguous() for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


FAULTY = [(way, kind) for way in WAYS.values() for kind in sorted(way.moves)]


@pytest.mark.parametrize(("way", "kind"), FAULTY, ids=[f"{way.name}-{kind}" for way, kind in FAULTY])
def test_a_companion_left_behind_is_seen(way: Way, kind: str, source_of, tmp_path: Path) -> None:
    source = source_of("llama", way)
    there = converted(source, tmp_path / "there")
    assert not failed(source, there)
    right = quantised.dequantise(there, way, tmp_path / "right")
    before = load_file(source / "model.safetensors")
    replant(there, lambda name, tensor: before[name] if kind_of(name) == kind else tensor)
    assert failed(source, there) == {"tensors-moved"}
    wrong = differing(quantised.dequantise(there, way, tmp_path / "wrong"), right)
    assert {name.split(".")[-2] for name in wrong} == {"q_proj", "k_proj"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("gptq-4", "g_idx"), ("packed-4", "weight_g_idx"), ("fp8-blocks", "weight_scale_inv"), ("int8-channel", "k_scale"),
     ("fp8-tensor", "weight_scale_inv"), ("nvfp4", "weight_global_scale"), ("bitsandbytes-8", "weight_format")],
)  # fmt: skip
def test_a_companion_that_must_stay_and_moved_is_seen(name: str, kind: str, source_of, tmp_path: Path) -> None:
    source = source_of("llama", WAYS[name])
    there = converted(source, tmp_path / "there")

    def spoil(tensor_name: str, tensor: Tensor) -> Tensor:
        if kind_of(tensor_name) != kind or ".q_proj." not in tensor_name:
            return tensor
        return tensor.flip(0) if tensor.numel() > 1 else tensor + 1

    replant(there, spoil)
    assert {"tensors-kept"} <= failed(source, there) <= {"tensors-kept", "v-kept"}


@pytest.mark.parametrize("name", ["gptq-3", "gptq-4", "packed-3", "packed-4"])
def test_one_wrong_value_in_one_word_is_seen(name: str, source_of, tmp_path: Path) -> None:
    source = source_of("llama", WAYS[name])
    there = converted(source, tmp_path / "there")
    layer = "model.layers.0.self_attn.k_proj."
    kind = "qzeros" if name.startswith("gptq") else "weight_zero_point"

    def flip_a_bit(tensor_name: str, tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        if tensor_name == f"{layer}{kind}":
            changed.view(-1)[-1] ^= 1 << 30
        return changed

    replant(there, flip_a_bit)
    sides = verify._side(source), verify._side(there)
    faulty = next(check for check in verify.file_checks(*sides, None) if not check.passed)
    assert faulty.name == "tensors-moved"
    assert f"{layer}{kind}: row" in faulty.detail


def test_the_readers_undo_the_quantisers(plain) -> None:
    """The oracle itself: what is read back is close to what was quantised, by each way's own precision."""
    weight = load_file(plain("llama") / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    for way in WAYS.values():
        error = (way.read(way.quantise(weight)) - weight).abs().max() / weight.abs().max()
        bits = int(way.name[-1]) if way.name[-1].isdigit() else 4
        assert error < {2: 0.3, 3: 0.15, 4: 0.2, 8: 0.05}[bits], way.name


def test_a_loader_that_refuses_is_not_promised(source_of, tmp_path: Path) -> None:
    source = source_of("llama", WAYS["gptq-4"])
    result = convert.apply(convert.plan(source, tmp_path / "there", Pairing.INTERLEAVED, written_as="same"))
    with pytest.raises(UnsupportedError, match="do not move in memory"):
        ropetool.load(tmp_path / "there")
    assert result.loads_in == ()
    said = [w.message for w in (*result.warnings, *inspect(tmp_path / "there").warnings) if "guarded" in w.message]
    assert len(said) == 2
    for message in (*said, (tmp_path / "there" / "config.json").read_text(encoding="utf-8")):
        assert "runs it right" not in message
        assert "load them with" not in message
    assert all("convert it back" in message for message in said)


def test_inspect_counts_what_moves(source_of, tmp_path: Path) -> None:
    for name in ("gptq-4", "int8-channel", "fp8-blocks"):
        way = WAYS[name]
        source = open_checkpoint(source_of("llama", way))
        reading = read_model(source.config)
        plan = plan_conversion(source, reading, reading.pairing, reading.pairing.other)
        kinds = {kind_of(move.tensor.name) for move in plan.moves}
        assert kinds == way.moves | {"bias"}
        assert plan.size_bytes == sum(
            tensor.size_bytes
            for n, tensor in source.tensors.items()
            if kind_of(n) in kinds and ("q_proj" in n or "k_proj" in n)
        )
