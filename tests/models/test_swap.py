"""A live model that takes another config gives what one gives that was loaded with it: to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ropetool import extend
from ropetool.checkpoint.folder import read_config
from ropetool.errors import MethodError, UnsupportedError, UsageError
from ropetool.families.methods import EXTENDING, Method
from ropetool.families.reading import read_model
from ropetool.models import placement
from ropetool.models.load import load_right
from ropetool.models.options import EACH
from ropetool.models.swap import Swappable, check_turns, differences
from ropetool.models.tables import table_modules
from tests import tiny

TYPES = ("llama", "qwen3", "glm4", "gpt_neox", "ernie4_5", "cohere", "gemma2", "phi3", "deepseek_v3")
CPU = torch.device("cpu")
LONG = 3 * tiny.LENGTH


def logits(model) -> torch.Tensor:
    return tiny.logits(model, LONG)


def swappable(path: Path) -> Swappable:
    return Swappable(load_right(path, CPU, None), path, read_config(path))


def extensions(path: Path, where: Path) -> list[tuple[str, extend.Extension]]:
    found = []
    for method in EXTENDING:
        try:
            settings = tiny.needed(path, method)
            made = extend.plan(path, where / method.value, method, to=4 * tiny.LENGTH, settings=settings)
        except (MethodError, UsageError):
            continue
        found.append((method.value, made))
    return found


@pytest.mark.oldest
@pytest.mark.parametrize("model_type", TYPES)
def test_a_swap_is_as_good_as_loading(model_type: str, tmp_path: Path) -> None:
    path = tiny.save(tiny.model_of(model_type), tmp_path / "model")
    live, config = swappable(path), read_config(path)
    first = logits(live.runner.model)
    made = extensions(path, tmp_path)
    assert made
    for name, extension in [*made, *reversed(made)]:
        live.to(extension.config, extension.reading, LONG)
        swapped = logits(live.runner.model)
        written = tmp_path / name
        if not written.exists():
            extend.apply(extension)
        loaded = logits(load_right(written, CPU, None).model)
        assert torch.equal(swapped, loaded), name
        assert not torch.equal(swapped, first), name
    live.to(config, read_model(config), LONG)
    assert torch.equal(logits(live.runner.model), first)


def test_a_table_that_did_not_follow_is_seen(tmp_path: Path) -> None:
    path = tiny.save(tiny.model_of("llama"), tmp_path / "model")
    live = swappable(path)
    yarn = extend.plan(path, tmp_path / "yarn", Method.YARN, to=4 * tiny.LENGTH)
    live.to(yarn.config, yarn.reading, LONG)
    check_turns(live.runner.model, yarn.reading, LONG)
    table = next(iter(table_modules(live.runner.model).values()))
    table.inv_freq.mul_(1.001)
    with pytest.raises(UnsupportedError, match="other frequencies than its new config means"):
        check_turns(live.runner.model, yarn.reading, LONG)
    table.inv_freq.div_(1.001)
    table.attention_scaling *= 1.01
    with pytest.raises(UnsupportedError, match="multiplies cos and sin by"):
        check_turns(live.runner.model, yarn.reading, LONG)


def test_a_config_of_another_size_is_refused(tmp_path: Path) -> None:
    path = tiny.save(tiny.model_of("llama"), tmp_path / "model")
    live, config = swappable(path), read_config(path)
    with pytest.raises(UnsupportedError, match="other weights under the new config"):
        live.to({**config, "num_hidden_layers": 3}, read_model(config), LONG)


def test_a_config_that_the_class_refuses_is_told(tmp_path: Path) -> None:
    path = tiny.save(tiny.model_of("llama"), tmp_path / "model")
    live, config = swappable(path), read_config(path)
    with pytest.raises(UnsupportedError, match="cannot be built of the new config"):
        live.to({**config, "hidden_act": "no-such"}, read_model(config), LONG)


def test_only_what_differs_is_touched(tmp_path: Path) -> None:
    path = tiny.save(tiny.model_of("llama"), tmp_path / "model")
    live = swappable(path)
    before = {name: value.data_ptr() for name, value in live.runner.model.named_parameters()}
    ntk = extend.plan(path, tmp_path / "ntk", Method.NTK, to=4 * tiny.LENGTH)
    live.to(ntk.config, ntk.reading, LONG)
    assert {name: value.data_ptr() for name, value in live.runner.model.named_parameters()} == before
    assert not any(name for _, name, _ in differences(live._now, live._now).buffers)


def test_nothing_of_longrope_stays_behind(tmp_path: Path) -> None:
    """transformers keeps the long frequencies once it has made them: those of another list must not be taken."""
    path = tiny.save(tiny.model_of("llama"), tmp_path / "model")
    live, pairs = swappable(path), read_model(read_config(path)).geometry.rotary_dim // 2
    given = []
    for factor in (2.0, 3.0):
        lists = {"short_factor": [1.0] * pairs, "long_factor": [factor] * pairs}
        made = extend.plan(path, tmp_path / "x", Method.LONGROPE, to=4 * tiny.LENGTH, settings=lists)
        live.to(made.config, made.reading, LONG)
        given.append(logits(live.runner.model))
        meant = made.reading.rotations[0].scaling.inv_freq(2 * pairs, LONG)
        table = next(iter(table_modules(live.runner.model).values()))
        assert np.allclose(table.inv_freq.double().numpy(), meant, rtol=1e-5)
    assert not torch.equal(*given)


def test_a_model_whose_weights_stay_on_disk_takes_it_too(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(placement, "_room", lambda need, max_memory, with_gpus: 0)
    path = tiny.save(tiny.model_of("llama"), tmp_path / "model")
    runner = load_right(path, CPU, None, max_memory={EACH: 1 << 50})
    assert any(parameter.is_meta for parameter in runner.model.parameters())
    live = Swappable(runner, path, read_config(path))
    yarn = extend.plan(path, tmp_path / "yarn", Method.YARN, to=4 * tiny.LENGTH)
    live.to(yarn.config, yarn.reading, LONG)
    swapped = logits(runner.model)
    extend.apply(yarn)
    assert torch.equal(swapped, logits(load_right(tmp_path / "yarn", CPU, None).model))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_model_on_a_gpu_takes_it_too(tmp_path: Path) -> None:
    gpu = torch.device("cuda")
    path = tiny.save(tiny.model_of("llama"), tmp_path / "model")
    live = Swappable(load_right(path, gpu, None), path, read_config(path))
    yarn = extend.plan(path, tmp_path / "yarn", Method.YARN, to=4 * tiny.LENGTH)
    live.to(yarn.config, yarn.reading, LONG)
    ids = torch.randint(tiny.VOCAB, (1, LONG), device=gpu)
    extend.apply(yarn)
    loaded = load_right(tmp_path / "yarn", gpu, None).model
    with torch.no_grad():
        assert torch.equal(*(model(input_ids=ids, use_cache=False).logits for model in (live.runner.model, loaded)))
