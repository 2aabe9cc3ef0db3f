"""How a long sequence is read: in chunks where that is right, seen on a prefix, and otherwise as the method needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoConfig, AutoModelForCausalLM, cache_utils
from transformers import PretrainedConfig as PreTrainedConfig

from ropetool.models import stream, tiny
from ropetool.models.load import Runner
from ropetool.models.losses import Meter, text_losses
from ropetool.models.stream import Way
from ropetool.models.trial import How, Passes, _window, choose

TOKENS, CHUNK, TRAINED = 230, 37, 64
LAYERS = {"num_hidden_layers": 2, "max_position_embeddings": TRAINED}
# What follows the number of tokens in play, by the model type that has it.
BY_LENGTH: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
    "longrope": {
        "rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": TRAINED,
        "short_factor": [1.0] * 8, "long_factor": [1.0 + pair for pair in range(8)],
    },
}  # fmt: skip
IN_CHUNKS = (
    "llama", "mistral", "gemma2", "gemma3_text", "cohere", "cohere2", "gpt_neox", "deepseek_v3", "gpt_oss", "qwen3_moe",
    "phi3", "glm4", "falcon", "llama4_text",
)  # fmt: skip


def runner_of(model_type: str, dtype: torch.dtype = torch.float32, **changes: Any) -> Runner:
    return Runner(tiny.build(model_type, **changes).model.to(dtype).eval(), torch.device("cpu"))


def some_ids(runner: Runner, tokens: int = TOKENS) -> torch.Tensor:
    vocabulary = runner.model.get_input_embeddings().weight.shape[0]
    return torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(5))


def plain_losses(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        logits = model(input_ids=ids[None], use_cache=False).logits[0].float()
    return cross_entropy(logits[:-1], ids[1:], reduction="none").double()


def losses(runner: Runner, ids: torch.Tensor, passes: Passes, stops: tuple[int, ...] = (TOKENS,)) -> torch.Tensor:
    return text_losses(runner, ids, stops, passes, Meter(lambda done, total: None), lambda said: None)[0]


@pytest.mark.parametrize("model_type", IN_CHUNKS)
def test_what_has_a_sound_cache_is_read_in_chunks_and_right(model_type: str) -> None:
    runner = runner_of(model_type)
    ids = some_ids(runner)
    passes = choose(runner, ids, chunk_tokens=CHUNK)
    assert (passes.how, passes.way) == (How.CACHED, Way.CACHED), passes.why
    assert passes.difference is not None
    assert passes.bound is not None
    assert 0 <= passes.difference <= passes.bound < 1e-4
    assert torch.allclose(losses(runner, ids, passes), plain_losses(runner.model, ids), atol=1e-4)


@pytest.mark.parametrize("key", ["sliding_window", "index_topk"])
def test_what_a_class_does_past_a_number_of_tokens_is_tried_past_it(key: str) -> None:
    model = SimpleNamespace(config=PreTrainedConfig(**{key: 100}))
    assert (_window(model, 100), _window(model, 101)) == (None, 100)
    blocks = SimpleNamespace(config=PreTrainedConfig(index_block_size=8, index_topk_blocks=5, sliding_window=None))
    assert _window(blocks, 99) == 40


@pytest.mark.parametrize("model_type", ["bamba", "deepseek_v32"])
def test_what_has_no_sound_cache_is_read_whole_and_right(model_type: str) -> None:
    """A recurrent state that chunks do not hand on, and an indexer whose mask forgets the past (transformers 5.24)."""
    runner = runner_of(model_type)
    ids = some_ids(runner)
    passes = choose(runner, ids, chunk_tokens=CHUNK)
    assert passes.how is How.WHOLE
    assert "do not give what one pass gives" in passes.why
    assert torch.allclose(losses(runner, ids, passes), plain_losses(runner.model, ids), atol=1e-4)


# Types whose cache does not give in transformers 5.24 what one pass gives, and what it is that chunks lose.
NOT_IN_CHUNKS = {
    **dict.fromkeys(
        ("axk2", "deepseek_v32", "dots3_note_text", "glm_moe_dsa", "hy_v4"), "the indexer's mask of the past"
    ),
    "bamba": "the recurrent state of a chunk",
    "blt": "bytes become patches",
    "deepseek_v4": "the compressed keys",
    "dory": "its layers run in loops",
    "moshi": "what slides out of its cache, and is not hidden by its mask",
    "recurrent_gemma": "it gives no cache",
}
# What has no plain forward on token ids, or a table of fewer positions than are read here.
NOT_READ = {"blt_patcher", "codegen", "gptj", "roformer"}


def _types() -> list[str]:
    return [model_type for model_type in tiny.rope_model_types() if model_type not in NOT_READ]


@pytest.mark.parametrize("model_type", _types())
def test_every_class_is_read_right_and_in_chunks_where_its_cache_is(model_type: str) -> None:
    runner = runner_of(model_type)
    if runner.model.get_output_embeddings() is None:
        pytest.skip("it has no head that predicts tokens")
    vocabulary = runner.model.get_output_embeddings().weight.shape[0]
    ids = some_ids(runner) % vocabulary
    passes = choose(runner, ids, chunk_tokens=CHUNK)
    assert (passes.how is How.CACHED) == (model_type not in NOT_IN_CHUNKS), passes.why
    assert torch.allclose(losses(runner, ids, passes), plain_losses(runner.model, ids), atol=1e-4)


def test_rounding_in_bfloat16_is_not_taken_for_a_fault() -> None:
    runner = runner_of("llama", torch.bfloat16, num_hidden_layers=8)
    passes = choose(runner, some_ids(runner))
    assert passes.how is How.CACHED, passes.why
    assert passes.difference is not None
    assert passes.difference > 1e-4


# --- planted faults -------------------------------------------------------------------------------------------------


def _forgets(layer: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    return keys[..., 0:0, :], values[..., 0:0, :]


def _loses_one(layer: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    return keys[..., 1:, :], values[..., 1:, :]


def _swaps_two(layer: Any, keys: Any, values: Any) -> tuple[Any, Any]:
    order = [1, 0, *range(2, keys.shape[-2])]
    return keys[..., order, :], values


@contextmanager
def planted(monkeypatch: pytest.MonkeyPatch, fault: Callable[..., Any], kind: str) -> Iterator[None]:
    """Within, what a cache hands out of the past is damaged; what it was just given is not."""
    layer = getattr(cache_utils, kind)
    sound = layer.update

    def update(self: Any, keys: Any, values: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        new = keys.shape[-2]
        all_keys, all_values = sound(self, keys, values, *args, **kwargs)
        past = all_keys.shape[-2] - new
        if past < 2:
            return all_keys, all_values
        old = fault(self, all_keys[..., :past, :], all_values[..., :past, :])
        padding = past - old[0].shape[-2]
        blank = [torch.zeros_like(t[..., :padding, :]) for t in (all_keys, all_values)]
        return (
            torch.cat([blank[0], old[0], all_keys[..., past:, :]], -2),
            torch.cat([blank[1], old[1], all_values[..., past:, :]], -2),
        )

    with monkeypatch.context() as patch:
        patch.setattr(layer, "update", update)
        yield


@pytest.mark.parametrize("fault", [_forgets, _loses_one, _swaps_two])
def test_a_damaged_cache_is_seen_and_not_used(fault: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of("llama")
    ids = some_ids(runner)
    with planted(monkeypatch, fault, "DynamicLayer"):
        passes = choose(runner, ids)
        assert passes.how is How.WHOLE
        assert torch.allclose(losses(runner, ids, passes), plain_losses(runner.model, ids), atol=1e-4)


def test_a_fault_past_the_window_is_seen_although_a_short_prefix_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is longer than the prefix that is tried first, and the fault begins where it slides."""
    window, tokens = 250, 400
    runner = runner_of("mistral", sliding_window=window)
    ids = some_ids(runner, tokens)
    assert choose(runner, ids).how is How.CACHED

    def only_when_full(layer: Any, keys: Any, values: Any) -> tuple[Any, Any]:
        return _swaps_two(layer, keys, values) if keys.shape[-2] >= window - 1 else (keys, values)

    with planted(monkeypatch, only_when_full, "DynamicSlidingWindowLayer"):
        passes = choose(runner, ids)
        assert (passes.how, f"past its window of {window} tokens" in passes.why) == (How.WHOLE, True), passes.why


def test_a_head_that_does_not_run_apart_is_run_with_its_body(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of("llama")
    ids = some_ids(runner)
    sound = stream._head
    monkeypatch.setattr(stream, "_head", lambda *args: sound(*args) * 1.01)
    passes = choose(runner, ids)
    assert (passes.how, passes.way) == (How.WHOLE, Way.PLAIN)
    assert torch.allclose(losses(runner, ids, passes), plain_losses(runner.model, ids), atol=1e-4)


def test_a_trial_that_cannot_tell_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose attention adds nothing: what came before makes no difference, so agreement proves nothing."""
    runner = runner_of("llama")
    with torch.no_grad():
        for name, parameter in runner.model.named_parameters():
            if "o_proj" in name:
                parameter.zero_()
    passes = choose(runner, some_ids(runner))
    assert (passes.how, "could not tell" in passes.why) == (How.WHOLE, True)


# --- frequencies by length ------------------------------------------------------------------------------------------


def extended(method: str) -> Runner:
    config = AutoConfig.for_model(
        "llama", vocab_size=64, hidden_size=64, intermediate_size=48, num_attention_heads=8, num_key_value_heads=2,
        head_dim=16, num_hidden_layers=2, max_position_embeddings=TRAINED, rope_parameters=BY_LENGTH[method],
    )  # fmt: skip
    if method == "longrope":
        config.max_position_embeddings = 4 * TRAINED
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        parameter.data.mul_(4.0) if parameter.ndim > 1 else None
    return Runner(model.eval(), torch.device("cpu"))


@pytest.mark.parametrize("method", BY_LENGTH)
def test_a_bin_is_read_off_a_pass_over_as_many_tokens_as_its_end(method: str) -> None:
    runner, stops = extended(method), (32, TRAINED, 100, TOKENS)
    ids = some_ids(runner)
    passes = choose(runner, ids, chunk_tokens=CHUNK)
    assert passes.how is How.PER_LENGTH
    found = losses(runner, ids, passes, stops)
    whole = plain_losses(extended(method).model, ids)
    for start, stop in zip((0, *stops), stops, strict=False):
        want = plain_losses(extended(method).model, ids[:stop])[start:]
        assert torch.allclose(found[start : start + len(want)], want, atol=1e-4)
        if stop <= TRAINED:
            assert (
                float((want - whole[start:stop][: len(want)]).abs().max()) > 0.02
            )  # a pass over all of it is another model


def test_a_longer_pass_before_leaves_no_trace() -> None:
    """transformers keeps the frequencies of the longest pass until one is shorter than the trained length."""
    runner = extended("dynamic")
    ids = some_ids(runner)
    passes = choose(runner, ids, chunk_tokens=CHUNK)
    fresh = losses(extended("dynamic"), ids[:100], passes, (100,))
    losses(runner, ids, passes, (TOKENS,))
    assert torch.equal(losses(runner, ids[:100], passes, (100,)), fresh)


# --- memory ---------------------------------------------------------------------------------------------------------


def test_neither_layers_nor_head_hold_more_than_a_chunk() -> None:
    runner, seen = runner_of("llama"), {"layer": 0, "head": 0}
    ids = some_ids(runner)
    passes = choose(runner, ids, chunk_tokens=CHUNK)

    def count(name: str) -> Callable[..., None]:
        def hook(module: Any, args: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            seen[name] = max(seen[name], states.shape[-2])

        return hook

    runner.model.model.layers[0].register_forward_hook(count("layer"))
    runner.model.lm_head.register_forward_hook(count("head"))
    losses(runner, ids, passes)
    assert seen == {"layer": CHUNK, "head": CHUNK}


def test_a_wide_vocabulary_has_its_scores_in_smaller_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of("llama")
    ids, want = some_ids(runner), plain_losses(runner.model, some_ids(runner))
    passes = choose(runner, ids, chunk_tokens=CHUNK)
    monkeypatch.setattr(stream, "HEAD_VALUES", 5 * runner.model.lm_head.weight.shape[0])
    sizes = [scores.shape[1] for _, scores in stream.scores(runner, ids[None], Way.CACHED, CHUNK)]
    assert max(sizes) == 5
    assert sum(sizes) == TOKENS
    assert torch.allclose(losses(runner, ids, passes), want, atol=1e-4)
