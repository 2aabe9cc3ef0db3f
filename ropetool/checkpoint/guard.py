"""The guard: a config.json that no stock class can load by mistake, and back; JSON in, JSON out.

For weights in a layout that the model class would not rotate. transformers passes over keys that it does not know, and
loads the class without a word; so the values that it needs have to go. They lie in the marker, and in their place
stands a sentence, which transformers prints in its error. Which key stops whom, run on transformers 5.24.0 and 4.57.6:

* ``model_type``: the Auto classes ("has model type `...` but Transformers does not recognize this architecture"), and
  with them every engine that reads its config so; mlx-lm too ("Model type ... not supported");
* ``architectures``: readers that go by the name of the architecture, llama.cpp's converter for one;
* ``hidden_size`` (``n_embd``, ``d_model``): an explicit class, Qwen3ForCausalLM say, in version 5 (a typed field:
  "expected int, got str");
  torchtune's HF checkpointer, which permutes q and k itself, needs the number too;
* ``problem_type``: an explicit class in version 4 ("was not understood: received ..."; cohere2 and granitemoehybrid
  stumble over the width before, right after the sentence was logged);
* ``tie_word_embeddings``: an explicit class in version 5 whose config has no width of the whole (blt);
* ``auto_map``: the Auto classes again, with ``trust_remote_code``: they would take config and model from the code that
  it names, whatever the type. Its other entries, a tokenizer's for one, stay.

Tokenizers still load: theirs is the untyped base config, which checks neither of the two. What cannot be stopped: a
caller who builds a config himself and passes it as ``config=``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ropetool.checkpoint.config import MARKER, marker, with_marker
from ropetool.errors import ConfigError

GUARD = "guard"
KEYS = ("model_type", "architectures", "problem_type", "hidden_size", "tie_word_embeddings")
# The model's width where a class calls it otherwise; covered where it is there.
OTHER_WIDTHS = ("n_embd", "d_model", "dim", "embedding_size")
CODE = "auto_map"
CODE_OF_MODELS = ("AutoConfig", "AutoModel")
NOT_PARTS = frozenset((*KEYS, *OTHER_WIDTHS, CODE))


def guarded(config: Mapping[str, Any], sentence: str, text_path: Sequence[str] = ()) -> dict[str, Any]:
    """A copy of ``config`` with ``sentence`` in the place of what a class needs to load; the true values in the marker.

    The parts of a composite config along ``text_path``, the keys that lead to its text model, are guarded alike: their
    classes can be loaded on their own.
    """
    covered, kept = _covered(config, sentence, text_path)
    return with_marker(covered, **{GUARD: kept})


def _covered(config: Mapping[str, Any], sentence: str, path: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    keys = (*KEYS, *(key for key in OTHER_WIDTHS if key in config))
    said: dict[str, Any] = {key: [sentence] if key == "architectures" else sentence for key in keys}
    code = config.get(CODE)
    if isinstance(code, dict):
        said[CODE] = {entry: place for entry, place in code.items() if not entry.startswith(CODE_OF_MODELS)}
    covered, kept = {**config, **said}, {key: config[key] for key in said if key in config}
    if path:
        covered[path[0]], kept[path[0]] = _covered(config[path[0]], sentence, path[1:])
    return covered, kept


def is_guarded(config: Mapping[str, Any]) -> bool:
    """Whether ``config`` was made by `guarded`."""
    return isinstance(config.get(MARKER), dict) and GUARD in config[MARKER]


def unguarded(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config that was guarded, key for key and in its order; a config without a guard as it is.

    Raises `ConfigError` for a marker whose guard was damaged.
    """
    if not is_guarded(config):
        return dict(config)
    bare = _uncovered(config, marker(config)[GUARD])
    bare[MARKER] = {key: value for key, value in marker(config).items() if key != GUARD}
    return bare


def _uncovered(config: Any, kept: Any) -> dict[str, Any]:
    if not isinstance(kept, dict) or not isinstance(config, dict):
        raise ConfigError(f"the marker's {GUARD} is {kept!r}; it was damaged", key=f"{MARKER}.{GUARD}")
    true = {key: value if key in NOT_PARTS else _uncovered(config.get(key), value) for key, value in kept.items()}
    said = (config.get("model_type"), [config.get("model_type")])
    return {
        key: true.get(key, value)
        for key, value in config.items()
        if key in true or key not in KEYS or value not in said
    }
