"""The engines, one row each: how they read the layout of a Hugging Face checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool.engines.engine import Engine, Way, Ways, by_key, constant
from ropetool.engines.known import EXLLAMAV2
from ropetool.engines.names import EngineName, Origin
from ropetool.families.reading import Reading
from ropetool.rope.frequencies import LongRope
from ropetool.rope.pairing import Pairing

HALF, INTERLEAVED = Pairing.HALF, Pairing.INTERLEAVED


def _transformers(reading: Reading) -> Ways:
    key, load = reading.family.pairing_key, "from_pretrained"
    if key is not None:
        return by_key(key, INTERLEAVED, reading.family.pairing, load)
    return constant(reading.family.pairing, load)


# Written by tools/read_mlx_lm.py from mlx-lm's source.
MLX_LM: Mapping[str, Any] = json.loads(Path(__file__).with_name("mlx_lm.json").read_text("utf-8"))


def _mlx_lm(reading: Reading) -> Ways:
    row, load = MLX_LM["rows"].get(reading.model_type), "mlx_lm.load"
    if row is None:
        return {}
    # mlx_lm/models/rope_utils.py: SuScaledRoPE passes traditional=False whatever the config says.
    if "key" in row and any(isinstance(rotation.scaling, LongRope) for rotation in reading.rotations):
        return constant(HALF, load)
    if "key" in row:
        return by_key(row["key"], INTERLEAVED, Pairing(row["default"]), load)
    return constant(Pairing(row["pairing"]), load)


def _mlx_reads_flat_keys(reading: Reading) -> bool:
    return bool(MLX_LM["rows"].get(reading.model_type, {}).get("flat_keys"))


# python/sglang/srt/models/: llama.py (mistral.py subclasses it), granite.py, arcee.py, apertus.py, exaone_moe.py read
# rope_is_neox_style with default True, ernie4.py with default False. gemma3_causal.py passes the key to get_rope, but
# off the CPU it rotates by a rotate-half of its own, so gemma3 is a constant. deepseek_v2.py reads rope_interleave.
SGLANG_NEOX_KEY = ("llama", "mistral", "granite", "arcee", "apertus", "exaone_moe", "ernie4_5", "ernie4_5_moe")
SGLANG_MLA_KEY = ("deepseek_v3",)


def _sglang(reading: Reading) -> Ways:
    load, family = "sglang.launch_server --model-path", reading.family
    if reading.model_type in SGLANG_NEOX_KEY:
        return by_key("rope_is_neox_style", HALF, family.pairing, load)
    if reading.model_type in SGLANG_MLA_KEY and family.pairing_key:
        return by_key(family.pairing_key, INTERLEAVED, family.pairing, load)
    return constant(family.pairing, load)


def _vllm(reading: Reading) -> Ways:
    """vllm/model_executor/models/: is_neox_style is a literal in each class; deepseek_v2.py has False for MLA."""
    return constant(reading.family.pairing, "vllm serve")


def _llama_cpp(reading: Reading) -> Ways:
    return constant(reading.family.pairing, "convert_hf_to_gguf.py")


# ctranslate2/converters/transformers.py: the classes registered with register_loader. GPTJLoader and CodeGenLoader call
# permute_for_sliced_rotary, every other one sets rotary_interleave=False and takes the rows as they are. PhiLoader is
# for the older remote code (transformer.h), not for the class that transformers has.
CTRANSLATE2_TYPES = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3", "gpt_neox", "gptj", "codegen",
)  # fmt: skip


def _ctranslate2(reading: Reading) -> Ways:
    known = reading.model_type in CTRANSLATE2_TYPES
    return constant(reading.family.pairing, "ct2-transformers-converter --model") if known else {}


def _exllamav2(reading: Reading) -> Ways:
    """exllamav2/architecture.py: rope_style is set by the name of the architecture."""
    pairing = EXLLAMAV2.get(reading.model_type)
    return constant(Pairing(pairing), "ExLlamaV2Config(model_dir)") if pairing else {}


# torchtune/modules/position_embeddings.py: RotaryPositionalEmbeddings takes adjacent pairs; models/qwen2 and phi3 have
# a rotate-half of their own, and their *_hf_to_tune permutes nothing.
TORCHTUNE_ADJACENT = ("llama", "mistral", "gemma", "gemma2")
TORCHTUNE_HALF = ("qwen2", "phi3")
TORCHTUNE_CHECKPOINTER = "torchtune.training.FullModelHFCheckpointer"


def _torchtune(reading: Reading) -> Ways:
    if reading.model_type in TORCHTUNE_HALF:
        return constant(HALF, TORCHTUNE_CHECKPOINTER)
    if reading.model_type not in TORCHTUNE_ADJACENT:
        return {}
    return {
        HALF: Way(f"{TORCHTUNE_CHECKPOINTER}, which permutes q and k itself"),
        INTERLEAVED: Way(
            "load_state_dict of torchtune's model, after renaming by torchtune.models.convert_weights.get_mapped_key "
            "alone (not FullModelHFCheckpointer or hf_to_tune, which would permute q and k a second time)",
            by_default=False,
        ),
    }


_BY_CLASS = "its layout is a constant of the model class"

ROWS: tuple[Engine, ...] = (
    Engine(EngineName.TRANSFORMERS, "5.24.0", "models/*/modeling_*.py", Origin.RAN, _BY_CLASS, _transformers),
    Engine(
        EngineName.MLX_LM, MLX_LM["version"], "mlx_lm/models/*.py", Origin.READ,
        f"{_BY_CLASS} there, or under this scaling", _mlx_lm, flat_keys=_mlx_reads_flat_keys,
    ),
    Engine(
        EngineName.SGLANG, "0.5.23", "python/sglang/srt/models/*.py", Origin.READ,
        f"{_BY_CLASS} there", _sglang, lists_types=False,
    ),
    Engine(
        EngineName.TORCHTUNE, "0.6.1", "torchtune/modules/position_embeddings.py", Origin.READ,
        "its class for this type has a rotate-half of its own", _torchtune,
    ),
    Engine(
        EngineName.CTRANSLATE2, "4.8.5", "ctranslate2/converters/transformers.py", Origin.READ,
        "its converter takes the layout that transformers has", _ctranslate2,
    ),
    Engine(
        EngineName.VLLM, "0.2x and 0.3x", "vllm/model_executor/models/*.py", Origin.READ,
        _BY_CLASS, _vllm, lists_types=False,
    ),
    Engine(
        EngineName.LLAMA_CPP, "2026-10", "convert_hf_to_gguf.py", Origin.READ,
        "its converter takes the layout that transformers has, and permutes q and k itself where GGUF has the other",
        _llama_cpp, lists_types=False,
    ),
    Engine(
        EngineName.EXLLAMAV2, "0.3.2", "exllamav2/architecture.py", Origin.READ,
        "its layout is a constant of the architecture", _exllamav2, flat_keys=lambda reading: True,
    ),
)  # fmt: skip
BY_NAME: Mapping[EngineName, Engine] = {row.name: row for row in ROWS}
