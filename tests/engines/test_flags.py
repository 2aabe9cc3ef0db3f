"""The flags that extend prints: they can be passed as they are, say the plan's numbers, and are given where right."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from ropetool import extend
from ropetool.checkpoint.config import Style
from ropetool.engines.flags import EngineFlags, engine_flags
from ropetool.engines.heard import Case
from ropetool.engines.listeners import LISTENERS
from ropetool.engines.llama_cpp_flags import scaling_flags
from ropetool.engines.names import Origin
from ropetool.families.decoder import with_text_keys
from ropetool.families.methods import EXTENDING, Method, Weights
from ropetool.families.reading import read_model
from ropetool.rope.frequencies import Default, Dynamic, Linear, Llama3, Scaling, Yarn

LENGTH = 16384
METHODS = list(EXTENDING)
SETTINGS: dict[Method, dict[str, Any]] = {
    Method.LONGROPE: {"short_factor": [1.0] * 8, "long_factor": [1.0 + pair for pair in range(8)]},
    Method.ABF: {"base": 5e6},
}
BASE = {
    "vocab_size": 100, "hidden_size": 128, "intermediate_size": 64, "num_hidden_layers": 4, "rope_theta": 10000.0,
    "num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 4096,
}  # fmt: skip
LLAMA = {**BASE, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen3": {**BASE, "model_type": "qwen3", "head_dim": 16},
    "phi3": {**BASE, "model_type": "phi3", "original_max_position_embeddings": 4096},
    "gemma3": {
        **BASE, "model_type": "gemma3_text", "head_dim": 16, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "sliding_window": 512, "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    "gpt_neox": {
        **BASE, "model_type": "gpt_neox", "num_key_value_heads": 8, "rotary_pct": 1.0, "rotary_emb_base": 10000,
    },
    "llava": {"model_type": "llava", "text_config": LLAMA, "vision_config": {"model_type": "clip_vision_model"}},
}  # fmt: skip


class Planned:
    """An extension that was planned, and the source's config."""

    def __init__(
        self, directory: Path, config: dict[str, Any], method: Method, style: Style, length: int = LENGTH, **more: Any
    ) -> None:
        source = directory / "source"
        source.mkdir()
        (source / "config.json").write_text(json.dumps(config), encoding="utf-8")
        self.config = config
        self.extension = extend.plan(
            source, directory / "out", method, to=length, style=style, weights=Weights.NONE,
            settings=SETTINGS.get(method), **more,
        )  # fmt: skip
        self.engines = self.extension.result.engines
        self.reading = self.extension.reading


# What the class of a type can take, where that is not every method.
METHODS_OF = {"phi3": [Method.NTK, Method.LONGROPE, Method.ABF]}
EXTENSIONS = [(name, method, style) for name in CONFIGS for method in METHODS_OF.get(name, METHODS) for style in Style]


@pytest.fixture(params=EXTENSIONS, ids=str)
def planned(request: pytest.FixtureRequest, tmp_path: Path) -> Planned:
    return Planned(tmp_path, CONFIGS[request.param[0]], *request.param[1:])


def words(flags: str) -> dict[str, str]:
    """Flags as a shell takes them, each with its value."""
    parts = shlex.split(flags)
    assert len(parts) % 2 == 0
    assert all(flag.startswith("-") for flag in parts[::2])
    return dict(zip(parts[::2], parts[1::2], strict=True))


LENGTH_FLAGS = ("--max-model-len", "--context-length", "-c", "-l")
OVERRIDES = {"vllm": "--hf-overrides", "sglang": "--json-model-override-args"}


def test_every_engine_has_a_line_with_its_origin(planned: Planned) -> None:
    assert [(line.engine, line.part) for line in planned.engines] == [(row.engine.value, row.part) for row in LISTENERS]
    for line in planned.engines:
        assert line.version
        assert line.origin in tuple(Origin)
        assert line.flags or line.note


def test_every_flag_says_the_numbers_of_the_plan(planned: Planned) -> None:
    scaling = planned.reading.rotations[0].scaling
    for line in planned.engines:
        for flag, value in (words(line.flags) | words(line.without_rewriting)).items():
            if flag in LENGTH_FLAGS:
                assert int(value) == LENGTH
            elif flag in ("--rope-scale", "--yarn-orig-ctx", "--rope-freq-base"):
                meant = {"--rope-scale": "factor", "--yarn-orig-ctx": "original_length", "--rope-freq-base": "theta"}
                assert float(value) == pytest.approx(getattr(scaling, meant[flag]), rel=1e-9)
            elif flag == "--rope-scaling":
                assert value == scaling.name
            else:
                assert flag in OVERRIDES.values() or flag.startswith("--yarn-beta")


def test_an_override_makes_the_original_mean_what_the_extension_does(planned: Planned) -> None:
    """Laid over the source's config key by key, and read by ropetool: the same rotation of every kind of layer."""
    path = planned.reading.decoder.path
    for line in planned.engines:
        override = words(line.without_rewriting).get(OVERRIDES.get(line.engine, ""))
        assert (override is None) == (not line.without_rewriting)
        if override is None:
            continue
        keys = json.loads(override)
        for key in path:
            (name, keys), = keys.items()  # fmt: skip
            assert name == key
        gone = dict.fromkeys(("rope_scaling", "rope_theta", "rope_local_base_freq", "rotary_emb_base"))
        reading = read_model(with_text_keys(planned.config, path, **gone, **keys))
        assert [rotation.scaling for rotation in reading.rotations] == [
            rotation.scaling for rotation in planned.reading.rotations
        ]
        assert reading.length == planned.reading.length


def lines(planned: Planned) -> dict[str, EngineFlags]:
    """The lines by engine, and part where there are two."""
    return {f"{line.engine} {line.part}".strip(): line for line in planned.engines}


# type, method, style, engine, flags (empty: none), words of the note.
SAID = (
    ("llama", Method.YARN, Style.DUAL, "vllm", "--max-model-len 16384", "as written"),
    ("llama", Method.LINEAR, Style.DUAL, "vllm", "--max-model-len 16384", "derives 65536 tokens"),
    ("llama", Method.LINEAR, Style.DUAL, "sglang", "--context-length 16384", "derives 65536 tokens"),
    ("llama", Method.DYNAMIC, Style.DUAL, "vllm", "", "no scaling instead of dynamic"),
    ("llama", Method.DYNAMIC, Style.DUAL, "llama.cpp converter", "", "no scaling instead of dynamic"),
    ("llama", Method.YARN, Style.DUAL, "llama.cpp runtime",
     "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 4096 -c 16384", "made before the extension"),
    ("llama", Method.LINEAR, Style.V5, "llama.cpp runtime", "--rope-scaling linear --rope-scale 4 -c 16384", "before"),
    ("llama", Method.NTK, Style.DUAL, "llama.cpp runtime", "--rope-freq-base 48760.54617 -c 16384", "before"),
    ("llama", Method.LONGROPE, Style.DUAL, "llama.cpp runtime", "", "no scaling instead of longrope"),
    ("llama", Method.YARN, Style.V5, "exllamav2", "", "instead of yarn"),
    ("llama", Method.LLAMA3, Style.DUAL, "exllamav2", "-l 16384", "as written"),
    ("llama", Method.LLAMA3, Style.V5, "exllamav2", "", 'set "rope_scaling"'),
)  # fmt: skip


@pytest.mark.parametrize(("name", "method", "style", "engine", "flags", "note"), SAID)
def test_what_is_said(
    name: str, method: Method, style: Style, engine: str, flags: str, note: str, tmp_path: Path
) -> None:
    line = lines(Planned(tmp_path, CONFIGS[name], method, style))[engine]
    assert line.flags == flags
    assert note in line.note


def test_a_multimodal_override_lies_under_the_text_config(tmp_path: Path) -> None:
    planned = Planned(tmp_path, CONFIGS["llava"], Method.YARN, Style.DUAL)
    for engine, flag in OVERRIDES.items():
        (keys,) = json.loads(words(lines(planned)[engine].without_rewriting)[flag]).items()
        assert keys[0] == "text_config"


def test_no_flag_is_given_for_a_config_that_an_engine_reads_wrongly(tmp_path: Path) -> None:
    """The same plan with the base lost on the way: what was right is then said to be wrong."""
    planned = Planned(tmp_path, CONFIGS["llama"], Method.YARN, Style.DUAL)
    broken = with_text_keys(planned.extension.config, (), rope_parameters=None, rope_scaling=None)
    told = {line.engine: line for line in engine_flags(Case(broken, planned.reading), broken, LENGTH) if not line.part}
    assert told["vllm"].flags == ""
    assert "no scaling instead of yarn" in told["vllm"].note


@pytest.mark.parametrize("method", METHODS)
def test_a_length_that_is_no_multiple_is_said_to_the_token(method: Method, tmp_path: Path) -> None:
    config = {**CONFIGS["llama"], "max_position_embeddings": 3000}
    planned = Planned(tmp_path, config, method, Style.DUAL, length=10007, original=3000)
    given = [words(f"{line.flags} {line.without_rewriting}") for line in planned.engines]
    lengths = {value for flags in given for flag, value in flags.items() if flag in LENGTH_FLAGS}
    assert lengths == ({"10007"} if any(given) else set())


LLAMA_CPP = (
    (Yarn(1e4, 2.5, 4096), "--rope-scaling yarn --rope-scale 2.5 --yarn-orig-ctx 4096 -c 10240"),
    (Linear(1e4, 2.5), "--rope-scaling linear --rope-scale 2.5 -c 10240"),
    (Default(48760.54616817902), "--rope-freq-base 48760.54617 -c 10240"),
    (Dynamic(1e4, 2.5, 4096), ""),
    (Llama3(1e4, 2.5, 1.0, 4.0, 4096), ""),
)


@pytest.mark.parametrize(("scaling", "flags"), LLAMA_CPP)
def test_llama_cpp_has_flags_for_three_methods(scaling: Scaling, flags: str) -> None:
    assert scaling_flags(scaling, 10240) == flags
