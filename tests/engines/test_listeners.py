"""The rows of vLLM, SGLang, llama.cpp and exllamav2, by what their sources say: a config, an engine, what doctor says.

Each expectation is a fact of a source that the row's module names, with the numbers worked out by hand.
"""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import numpy as np
import pytest

from ropetool import doctor
from ropetool.doctor import Verdict
from ropetool.engines import exllamav2, llama_cpp, llama_cpp_runtime, sglang, vllm
from ropetool.engines.heard import Heard, Listener
from ropetool.engines.listeners import LISTENERS
from ropetool.errors import RopetoolError
from ropetool.families.geometry import SHARE
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.models.tiny import tiny_config, tiny_values
from ropetool.rope.frequencies import METHODS, plain_inv_freq

ROWS = {
    "vllm": vllm.ROW, "sglang": sglang.ROW, "converter": llama_cpp.ROW, "runtime": llama_cpp_runtime.ROW,
    "exllamav2": exllamav2.ROW,
}  # fmt: skip
THETA, ORIGINAL, LENGTH = 5e5, 4096, 16384
LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": LENGTH,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 4.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8,
    "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
ABOVE = {"original_max_position_embeddings": ORIGINAL}
YARN_ATTENTION = "1.1386294"  # 0.1 ln 4 + 1


def v5(block: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**LLAMA, "rope_parameters": {**block, "rope_theta": THETA}, **more}


def v4(block: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**LLAMA, "rope_scaling": block, "rope_theta": THETA, **more}


def dual(block: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**v5(block), **v4(block), **more}


def composite(config: dict[str, Any], model_type: str, text_type: str) -> dict[str, Any]:
    """The config of a multimodal model with ``config`` as its text part."""
    return {"model_type": model_type, "text_config": {**config, "model_type": text_type}}


GEMMA3 = {
    **LLAMA, "model_type": "gemma3_text", "head_dim": 16, "layer_types": ["full_attention", "sliding_attention"],
    "num_hidden_layers": 2, "sliding_window": 1024,
}  # fmt: skip
FULL = {**LINEAR, "rope_theta": 1e6}
NESTED = {**GEMMA3, "rope_parameters": {"full_attention": FULL, "sliding_attention": {"rope_theta": 2e4}}}
GPT_OSS = {
    **LLAMA, "model_type": "gpt_oss", "head_dim": 64,
    "rope_parameters": {**YARN, "rope_theta": 150000.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
}  # fmt: skip
PHI3 = {**v4({"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}, **ABOVE), "model_type": "phi3"}
RIGHT, WRONG, NOT, UNKNOWN = Verdict.RIGHT, Verdict.WRONG, Verdict.LOADS_NOT, Verdict.UNKNOWN

# What it is about, config, engine, verdict, a part of the reason, a part of the fix.
FACTS: tuple[tuple[str, dict[str, Any], str, Verdict, str, str], ...] = (
    ("length twice", v5(LINEAR), "vllm", WRONG, "counted twice: 65536 instead of 16384", f"--max-model-len {LENGTH}"),
    ("length twice", v5(LINEAR), "sglang", WRONG, "counted twice: 65536 instead of 16384",
     f"--context-length {LENGTH}"),
    ("length once", v5(YARN), "vllm", RIGHT, "", ""),
    ("length once", v5(YARN), "sglang", RIGHT, "", ""),
    ("a table of original x factor rows", v5(YARN, max_position_embeddings=2 * LENGTH), "vllm", RIGHT, "",
     f"--max-model-len {LENGTH}"),
    ("length as it is", v5(LLAMA3), "vllm", RIGHT, "", ""),
    ("length as it is", v5(LLAMA3), "sglang", RIGHT, "", ""),
    ("length as it is", v5(LINEAR), "runtime", RIGHT, "", ""),
    ("attention factor", v5({**YARN, "attention_factor": 1.5}), "vllm", RIGHT, "", ""),
    ("attention factor", v5({**YARN, "attention_factor": 1.5}), "sglang", WRONG,
     f"attention factor {YARN_ATTENTION} instead of 1.5", '"attn_factor": 1.317'),
    ("attention factor", v5({**YARN, "attention_factor": 1.5}), "converter", RIGHT, "", ""),
    ("attention factor", v5({**YARN, "attention_factor": 1.5}), "runtime", WRONG,
     f"attention factor {YARN_ATTENTION} instead of 1.5", "serve it with"),
    ("attention factor", dual({**YARN, "attention_factor": 1.5}), "exllamav2", WRONG,
     f"attention factor {YARN_ATTENTION} instead of 1.5", "serve it with"),
    ("mscale", v5({**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}), "vllm", RIGHT, "", ""),
    ("mscale", v5({**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}), "sglang", RIGHT, "", ""),
    ("mscale", v5({**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}), "runtime", WRONG,
     f"attention factor {YARN_ATTENTION} instead of 1", ""),
    ("betas", v5({**YARN, "beta_fast": 16.0}), "sglang", RIGHT, "", ""),
    ("betas", v5({**YARN, "beta_fast": 16.0}), "converter", RIGHT, "", ""),
    ("betas", v5({**YARN, "beta_fast": 16.0}), "runtime", WRONG, "beta fast 32 instead of 16", "--yarn-beta-fast 16"),
    ("truncate", v5({**YARN, "truncate": False}), "vllm", RIGHT, "", ""),
    ("truncate", v5({**YARN, "truncate": False}), "sglang", RIGHT, "", ""),
    ("truncate", v5({**YARN, "truncate": False}), "converter", WRONG, "truncate True instead of False", ""),
    ("two names", v4({"type": "linear", "rope_type": "dynamic", "factor": 2.0}), "vllm", NOT, "rope_type 'dynamic'",
     "make the keys agree"),
    ("two names", v4({"type": "linear", "rope_type": "linear", "factor": 4.0}), "exllamav2", NOT,
     "both type and rope_type", "rope_scaling"),
    ("dynamic", v4(DYNAMIC), "vllm", WRONG, "no scaling instead of dynamic", ""),
    ("dynamic", v4(DYNAMIC), "sglang", WRONG, "dynamic as one table", ""),
    ("dynamic", v4(DYNAMIC), "converter", WRONG, "no scaling instead of dynamic", ""),
    ("dynamic", v4(DYNAMIC), "exllamav2", WRONG, "no scaling instead of dynamic", ""),
    ("version-5 keys", v5(YARN), "converter", RIGHT, "", ""),
    ("version-5 keys", v5({"rope_type": "default"}), "exllamav2", WRONG, "theta 10000 instead of 500000",
     '"rope_theta": 500000.0'),
    ("version-5 keys", v5(LLAMA3), "exllamav2", WRONG, "no scaling instead of llama3", '"rope_scaling": {'),
    ("version-4 keys", v4(LLAMA3), "exllamav2", RIGHT, "", ""),
    ("version-4 keys", v4(LLAMA3), "runtime", RIGHT, "", ""),
    ("ramp", dual(YARN), "exllamav2", WRONG, f"trained length {LENGTH} instead of {ORIGINAL}", "serve it with"),
    ("longrope", dual(LONG), "exllamav2", NOT, "at the top level", ""),
    ("longrope", dual(LONG, **ABOVE), "exllamav2", WRONG, "the long factors for short prompts too", ""),
    ("longrope", v5(LONG), "vllm", WRONG, "the long factors for short prompts too", ""),
    ("longrope", v5(LONG), "sglang", RIGHT, "", ""),
    ("longrope", v5(LONG), "converter", WRONG, "no scaling instead of longrope", ""),
    ("longrope", PHI3, "vllm", WRONG, f"length {ORIGINAL} instead of {LENGTH}", f"--max-model-len {LENGTH}; serving"),
    ("longrope", PHI3, "converter", RIGHT, "", ""),
    ("longrope", PHI3, "runtime", WRONG, "the long factors for short prompts too", ""),
    ("llama3, original above", v4({**LLAMA3, "original_max_position_embeddings": None}, **ABOVE), "runtime", RIGHT, "",
     ""),
    ("llama3 in another class", {**v5(LLAMA3), "model_type": "qwen2"}, "converter", WRONG, "no scaling", ""),
    ("llama3 in another class", {**v5(LLAMA3), "model_type": "smollm3", "no_rope_layers": [1]}, "runtime", NOT,
     "llama3's factors", ""),
    ("a class that takes the base alone", {**v5(YARN), "model_type": "mixtral"}, "sglang", WRONG, "no scaling", ""),
    ("a class that takes the base alone", {**v5(YARN), "model_type": "mixtral"}, "vllm", RIGHT, "", ""),
    ("a base cut to a whole number", {**LLAMA, "model_type": "starcoder2", "rope_theta": 40889.942}, "sglang", WRONG,
     "theta 40889 instead of 40889.942", ""),
    ("a base never read", {**LLAMA, "model_type": "exaone4", "rope_theta": 5e5, "sliding_window": None}, "sglang",
     WRONG, "theta 1000000 instead of 500000", ""),
    ("kinds of layers", NESTED, "vllm", RIGHT, "", ""),
    ("kinds of layers", NESTED, "sglang", RIGHT, "", ""),
    ("kinds of layers", NESTED, "runtime", RIGHT, "", ""),
    ("kinds of layers", composite(NESTED, "gemma3", "gemma3_text"), "exllamav2", WRONG, "sliding_attention layers: ",
     ""),
    ("a type that transformers renames", {**GEMMA3, "rope_scaling": {"type": "linear", "factor": 8.0}}, "vllm", NOT,
     "raises on both", ""),
    ("gpt-oss", GPT_OSS, "vllm", RIGHT, "", ""),
    ("gpt-oss", GPT_OSS, "sglang", RIGHT, "", ""),
    ("gpt-oss", GPT_OSS, "runtime", WRONG, "truncate True instead of False", ""),
    ("gpt-oss unscaled", {**GPT_OSS, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}, "vllm", NOT,
     "no factor", ""),
    ("no class", {**LLAMA, "model_type": "falcon", "new_decoder_architecture": True, "alibi": False}, "sglang", NOT,
     "no class for falcon", ""),
    ("no class", {**LLAMA, "model_type": "olmo2"}, "exllamav2", UNKNOWN, "takes it for a Llama", ""),
    ("not read", {**LLAMA, "model_type": "hunyuan_v1_dense", "head_dim": 16}, "converter", UNKNOWN, "not read", ""),
)  # fmt: skip


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: f"{fact[0]}, {fact[2]}")
def test_a_fact_of_the_source(fact: tuple[str, dict[str, Any], str, Verdict, str, str], tmp_path: Any) -> None:
    _, config, engine, verdict, why, fix = fact
    (tmp_path / "config.json").write_text(json.dumps(config))
    findings = doctor.diagnose(tmp_path, engine=ROWS[engine].engine).findings
    found = next(finding for finding in findings if finding.listener is ROWS[engine])
    assert (found.verdict, why in found.why, fix in found.fix) == (verdict, True, True), (found.why, found.fix)


def heard(row: Listener, config: dict[str, Any]) -> Heard:
    return row.hears(doctor.open_case(config))


def test_sglang_computes_dynamic_once_for_the_longest_context() -> None:
    scale = 2.0 * 2.0 - (2.0 - 1.0)  # factor * longest / trained - (factor - 1)
    expected = plain_inv_freq(THETA * scale ** (16 / 14), 16)
    turn = heard(sglang.ROW, v4(DYNAMIC)).turns[0]
    for length in (8, LENGTH, 2 * LENGTH):
        np.testing.assert_allclose(turn.scaling.inv_freq(16, length), expected, rtol=1e-12)


def test_deepseek_takes_any_block_for_yarn() -> None:
    mla = {
        "model_type": "deepseek_v3", "num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 1,
        "q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "max_position_embeddings": LENGTH, "rope_theta": THETA,
    }  # fmt: skip
    linear = {**mla, "rope_scaling": {**LINEAR, **ABOVE}}
    assert heard(vllm.ROW, linear).turns[0].scaling.name == heard(sglang.ROW, linear).turns[0].scaling.name == "yarn"
    assert "original" in heard(vllm.ROW, {**mla, "rope_scaling": LINEAR}).refusal
    one = heard(vllm.ROW, {**mla, "rope_scaling": {**YARN, "mscale_all_dim": 1.0}}).turns[0].scaling
    assert one.attention_factor == pytest.approx(1.0)  # (0.1 ln 4 + 1) over itself
    assert heard(vllm.ROW, {**mla, "rope_scaling": YARN}).turns[0].scaling.attention_factor == pytest.approx(
        0.1 * math.log(4) + 1
    )


def test_an_override_lands_under_the_text_config() -> None:
    case = doctor.open_case(composite(v5({**YARN, "attention_factor": 1.5}), "mistral3", "mistral"))
    assert sglang.flags(case).startswith("""--json-model-override-args '{"text_config": {"rope_parameters": {""")


def test_flags_of_the_runtime_are_those_that_it_takes() -> None:
    case = doctor.open_case(v5({**YARN, "beta_fast": 16.0, "beta_slow": 2.0}))
    assert llama_cpp_runtime.flags(case) == (
        "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 4096 -c 16384 --yarn-beta-fast 16 --yarn-beta-slow 2"
    )


def test_the_converter_writes_the_runtime_s_own_base_where_there_is_none() -> None:
    bare = {**GEMMA3, "rope_parameters": {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}}}
    assert [turn.scaling.theta for turn in heard(llama_cpp.ROW, bare).turns] == [1e6, 1e4]


def blocks(pairs: int) -> dict[str, dict[str, Any]]:
    """A block of every rope type that ropetool knows, for a rotation of ``pairs`` pairs."""
    lists = {"short_factor": [1.0] * pairs, "long_factor": [2.0] * pairs}
    made = {"default": {"rope_type": "default"}, "linear": LINEAR, "dynamic": DYNAMIC, "yarn": YARN, "llama3": LLAMA3,
            "longrope": {**LONG, **lists}, "proportional": {"rope_type": "proportional"}}  # fmt: skip
    assert made.keys() == METHODS.keys()
    return {name: {**block, "rope_theta": THETA} for name, block in made.items()}


JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 1e9, "2", "yarn", "su", "", [], {}, {"a": 1}, [1.0] * 8, "longrope", LENGTH,
)  # fmt: skip
KEYS = (
    *("rope_type", "type", "attn_factor", "rope_theta", SHARE, "full_attention", "sliding_attention", "mrope_section"),
    *{key: None for block in (*blocks(8).values(), YARN) for key in block},
    *("attention_factor", "beta_fast", "mscale_all_dim", "truncate"),
)
TOP = ("rope_theta", "original_max_position_embeddings", "model_max_length", SHARE, "architectures", "text_config")
ODD_CLASSES = ("llama", "phi3", "gemma3_text", "mixtral", "gpt_oss", "olmo3", "deepseek_v3", "exaone4", "minicpm3")


def junk(random: Random) -> dict[str, Any]:
    """A config with keys of both styles, a few of them nonsense."""

    def block() -> dict[str, Any]:
        made = dict(random.choice([*blocks(8).values()]))
        return made | {random.choice(KEYS): random.choice(JUNK) for _ in range(random.randint(0, 2))}

    nested = {"full_attention": block(), "sliding_attention": block()}
    config = {**LLAMA, "model_type": random.choice(ODD_CLASSES), "rope_parameters": random.choice([block(), nested])}
    if random.random() < 0.5:
        config["rope_scaling"] = block()
    return config | ({random.choice(TOP): random.choice(JUNK)} if random.random() < 0.5 else {})


def test_no_row_fails_on_nonsense() -> None:
    random, opened = Random(7), 0
    for _ in range(1000):
        config = junk(random)
        try:
            case = doctor.open_case(config)
        except RopetoolError:
            continue  # nothing is asked of any engine then
        opened += 1
        for row in LISTENERS:
            assert isinstance(row.hears(case), Heard), (row.source, config)
    assert opened > 200


@pytest.mark.parametrize("model_type", TABLE)
def test_no_row_fails_on_a_config_that_is_read(model_type: str, tmp_path: Any) -> None:
    plain = json.loads(tiny_config(model_type, tiny_values(model_type)).to_json_string(use_diff=False))
    reading = read_model(plain)
    kinds = [kind.layer_type for kind in reading.family.kinds]
    share = {key: value for key, value in reading.rotations[0].block.values.items() if key == SHARE}
    for name, block in blocks(reading.geometry.rotary_dim // 2).items():
        config = {**plain, "rope_parameters": {kind: {**block, **share} for kind in kinds} or {**block, **share}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        for finding in doctor.diagnose(tmp_path).findings:
            said = finding.heard
            told = len(said.turns) == len(reading.rotations) or said.refusal or said.unknown
            assert told, (name, finding.listener.source)
            assert finding.verdict is not WRONG or (finding.why and finding.fix), (name, finding)
