"""The main job on a real trained model. Figures were measured here; the bars are those of the project."""

import hashlib

import pytest
import torch

from ropetool import convert, evaluate, extend, verify
from ropetool.checkpoint.bundled import TEXT, bundled
from ropetool.models.emulated import emulates
from ropetool.models.options import DType
from ropetool.rope.layout import Pairing

pytestmark = pytest.mark.real

EDGES = (1024, 8192, 14336, 16384)


def digest(path):
    return hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def interleaved(smollm2, tmp_path_factory):
    path = tmp_path_factory.mktemp("converted") / "interleaved"
    convert.apply(convert.plan(smollm2, path, Pairing.INTERLEAVED))
    return path


@pytest.fixture(scope="module")
def losses(smollm2, tmp_path_factory):
    if emulates(torch.bfloat16):
        pytest.skip("this processor only emulates bfloat16: two readings of 16,384 tokens take half an hour")
    path = tmp_path_factory.mktemp("extended") / "yarn-16k"
    extend.apply(extend.plan(smollm2, path, extend.Method.YARN, to=16384))
    text = bundled(TEXT).read_text(encoding="utf-8")
    result = evaluate.evaluate(path, text, edges=EDGES, against=smollm2, dtype=DType.BFLOAT16)
    return {(b.start, b.stop): b for b in result.lengths}


def test_round_trip_is_bit_identical(smollm2, interleaved, tmp_path):
    back = tmp_path / "back"
    convert.apply(convert.plan(interleaved, back, Pairing.HALF))
    assert digest(interleaved) != digest(smollm2)
    assert digest(back) == digest(smollm2)


def test_verify_passes_and_the_control_fails(smollm2, interleaved):
    """In float64: processors differ in how 30 layers of float32 sums are rounded, by as much as the bar."""
    result = verify.verify(smollm2, interleaved, dtype=DType.FLOAT64)
    assert result.passed, [check for check in result.checks if not check.passed]
    assert result.tokens == 512
    assert result.max_abs_diff <= 1e-3
    assert result.control["failed_as_it_must"]
    assert result.control["max_abs_diff"] > 1.0


def test_a_copy_that_was_not_permuted_fails(smollm2, interleaved, tmp_path):
    """The fault this tool exists for: weights of one layout under the name of the other."""
    from safetensors.torch import load_file, save_file

    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for file in interleaved.iterdir():
        if file.name != "model.safetensors":
            (wrong / file.name).write_bytes(file.read_bytes())
    save_file(load_file(smollm2 / "model.safetensors"), wrong / "model.safetensors", metadata={"format": "pt"})
    result = verify.verify(smollm2, wrong)
    assert not result.passed
    assert {check.name for check in result.checks if not check.passed} >= {"tensors-moved", "logits"}


def test_yarn_serves_beyond_the_trained_length(losses):
    beyond = losses[(14336, 16384)]
    assert beyond.loss < 3.6
    assert beyond.against_loss > 5.5


def test_yarn_costs_little_within_the_first_1k(losses):
    short = losses[(0, 1024)]
    assert abs(short.loss - short.against_loss) < 0.05
