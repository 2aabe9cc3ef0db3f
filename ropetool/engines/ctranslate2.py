"""CTranslate2: its converter loads by transformers, and reads the block that this makes; some loaders read none.

Read in ctranslate2/converters/transformers.py (`get_rotary_params` and the loader of each class) of version 4.8.5, and
run with transformers 5.24.0: tests/engines/test_ctranslate2.py converts and compares log-probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ropetool.engines.dialect import TypeRead
from ropetool.engines.heard import Case, Heard, Listener, Turn, meaningful, pairing_heard
from ropetool.engines.names import EngineName, Origin
from ropetool.engines.transformers5 import FLAT, NESTED, hear_by
from ropetool.engines.transformers5 import hear as hear_transformers
from ropetool.rope.frequencies import Default

# Of llama3 the converter passes on the factors, and no trained length: the runtime then scales nothing.
DROPPED = ("llama3",)
BLOCK_READ = replace(
    FLAT,
    names=("type", "rope_type"),
    types={
        **{name: FLAT.types[name] for name in ("default", "linear")},
        **{name: TypeRead("default") for name in DROPPED},
    },
)


@dataclass(frozen=True)
class Loader:
    """What a loader does: it reads the block, or has bases of its own (by kind of layer), or fails for a reason."""

    bases: tuple[float, ...] = ()
    fails: str = ""


READS_BLOCK = Loader()
# GemmaLoader and its like ask the config for rope_theta, which version 5 of transformers keeps in the block alone.
LOADERS: Mapping[str, Loader] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), READS_BLOCK),
    **dict.fromkeys(("gemma", "gemma2", "gptj", "codegen"), Loader(bases=(10000.0,))),
    "gemma3_text": Loader(bases=(1e6, 1e4)),
    "gpt_neox": Loader(fails="its loader asks for rotary_pct, which the config of transformers 5 does not have"),
    "phi3": Loader(fails="its loader asks for parts of the model that transformers 5 does not have"),
}


def hear(case: Case) -> Heard:
    """What CTranslate2's converter makes of a config."""
    reading = case.reading
    loader, pairing = LOADERS.get(reading.model_type), pairing_heard(EngineName.CTRANSLATE2, case)
    if loader is None:
        return Heard(unknown=f"no loader for {reading.model_type} was read", pairing=pairing)
    if loader.fails:
        return Heard(refusal=loader.fails, pairing=pairing)
    loaded = hear_transformers(case)
    if loaded.refusal or loaded.unknown:
        return replace(loaded, pairing=pairing)
    if loader.bases:
        turns = tuple(
            Turn(turn.layers, Default(base), turn.rotary_dim)
            for turn, base in zip(loaded.turns, loader.bases, strict=True)
        )
        known = meaningful(("rope_theta", "rope_local_base_freq", "rope_parameters", "rope_scaling"), case.text)
        return Heard(turns, pairing, reading.length, ignores=known)
    heard = hear_by(BLOCK_READ, NESTED, case)
    return replace(heard, pairing=pairing)


ROW = Listener(EngineName.CTRANSLATE2, "4.8.5", "ctranslate2/converters/transformers.py", Origin.RAN, hear)
