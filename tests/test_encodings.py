"""The public encodings: one name for arrays and tensors, and torch only where a tensor is."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from ropetool import encodings
from ropetool.errors import EncodingError
from ropetool.models import rotary

# The API as it is promised: names, and their first arguments in order.
PROMISED = {
    "sinusoidal": ["seq_len", "d"],
    "sinusoidal_shift": ["k", "d"],
    "LearnedPositions": ["max_len", "d"],
    "shaw_scores": ["q", "k", "vectors"],
    "t5_buckets": ["distances"],
    "t5_bias": ["seq_len", "table"],
    "alibi_slopes": ["heads"],
    "alibi_bias": ["seq_len", "heads"],
    "rope_cache": ["seq_len", "d_head", "base"],
    "apply_rope": ["x", "cos", "sin"],
    "shift_cached_keys": ["keys", "shift", "base"],
}
METHODS = {
    "AdjustedBase", "Default", "Dynamic", "Linear", "Llama3", "LongRope", "NtkAware", "Proportional", "Scaling", "Yarn",
}  # fmt: skip
RNG = np.random.default_rng(0)
X, COS, SIN = RNG.normal(size=(4, 8)), *encodings.rope_cache(6, 8, 1e4)
SHAW, T5 = RNG.normal(size=(3, 8)), RNG.normal(size=(32, 2))
CALLS: tuple[tuple[str, tuple[Any, ...], dict[str, Any]], ...] = (
    ("apply_rope", (X, COS, SIN), {"pairing": "half"}),
    ("shift_cached_keys", (X, 3, 1e4), {"pairing": encodings.Pairing.INTERLEAVED}),
    ("shaw_scores", (X, X, SHAW), {}),
    ("t5_bias", (5, T5), {"bidirectional": True, "max_distance": 128}),
    ("t5_buckets", (np.arange(-9, 9),), {"bidirectional": True, "max_distance": 128, "buckets": 32}),
)


@pytest.mark.parametrize("name", PROMISED)
@pytest.mark.parametrize("where", [encodings, rotary], ids=lambda module: module.__name__)
def test_the_names_and_arguments_are_the_promised_ones(name: str, where: Any) -> None:
    promised, found = PROMISED[name], list(inspect.signature(getattr(where, name)).parameters.values())
    assert [p.name for p in found[: len(promised)]] == promised
    needed = {p.name for p in found if p.default is p.empty}
    by_name = {
        "t5_bias": {"bidirectional", "max_distance"},
        "apply_rope": {"pairing"},
        "shift_cached_keys": {"pairing"},
    }
    by_name["t5_buckets"] = {"buckets", "max_distance", "bidirectional"}
    assert needed == {*promised, *by_name.get(name, set())}


def test_nothing_else_is_public() -> None:
    assert set(encodings.__all__) == {*PROMISED, *METHODS, "Pairing"}
    for name in PROMISED:
        said = str(getattr(encodings, name).__doc__)
        assert "arXiv" in said or "et al." in said, name
        assert "Raises" in said or "Error" in said, name


@pytest.mark.parametrize(("name", "given", "named"), CALLS, ids=lambda value: value if isinstance(value, str) else "")
def test_arrays_give_arrays_and_tensors_tensors(name: str, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    function = getattr(encodings, name)
    array = function(*given, **named)
    assert type(array) is np.ndarray
    at = [i for i, value in enumerate(given) if isinstance(value, np.ndarray)]
    for some in ({*at}, *({i} for i in at)):  # all of them are tensors, or any one
        mixed = [torch.from_numpy(value) if i in some else value for i, value in enumerate(given)]
        tensor = function(*mixed, **named)
        assert type(tensor) is torch.Tensor
        np.testing.assert_allclose(tensor, array, atol=1e-6)


def test_positions_may_be_a_tensor_alone() -> None:
    found = encodings.apply_rope(X, COS, SIN, pairing="half", positions=torch.tensor([5, 1, 0, 2]))
    assert type(found) is torch.Tensor
    np.testing.assert_array_equal(found, encodings.apply_rope(X, COS, SIN, pairing="half", positions=[5, 1, 0, 2]))


def test_lists_will_do() -> None:
    turned = encodings.apply_rope([[1.0, 0.0]] * 2, [[1.0], [0.0]], [[0.0], [1.0]], pairing="half")
    assert turned.tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert encodings.shaw_scores([[1.0]], [[2.0]], [[3.0]]).tolist() == [[5.0]]
    with pytest.raises(EncodingError, match="x is int64"):
        encodings.apply_rope([[1, 0]] * 2, [[1.0], [0.0]], [[0.0], [1.0]], pairing="half")


ALONE = """
import sys
import numpy as np
from ropetool.encodings import *
cos, sin = rope_cache(8, 4, Yarn(theta=1e4, factor=4.0, original_length=4096))
apply_rope(np.ones((8, 4)), cos, sin, pairing="half")
shift_cached_keys(np.ones((8, 4)), 2, 1e4, pairing="half")
LearnedPositions(4, 4)([0, 1]), sinusoidal(4, 4), alibi_bias(4, 4)
{more}
print(sorted({{"torch", "transformers"}} & {{name.split(".")[0] for name in sys.modules}}))
"""


@pytest.mark.parametrize(("more", "loaded"), [("", "[]"), ("import ropetool.models.rotary", "['torch']")])
def test_arrays_need_no_torch(more: str, loaded: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE.format(more=more)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == loaded
