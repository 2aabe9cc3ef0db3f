"""The memory of a KV cache: bytes that one sequence takes for keys and values, by what every layer keeps of a token.

Per layer and token that is k and v of every key-value head; with MLA the latent and the one rotary key beside it
(DeepSeek-V2, arXiv:2405.04434, section 2.1.2), as transformers 5.24.0, vLLM and SGLang keep it; with an indexer, its
key too. A layer with a window keeps at most the window, one that takes another layer's k and v nothing, and the state
of a linear or recurrent mixer does not grow. Blocks, scales and padding of a server come on top.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ropetool.checkpoint.config import count
from ropetool.errors import ConfigError
from ropetool.families.geometry import Geometry
from ropetool.families.layer_types import (
    FILLED_IN,
    WINDOWED,
    WITHOUT_TOKENS,
    LayerTypes,
    layer_types,
    unknown_types,
    window_tokens,
)
from ropetool.families.reading import INDEXER, Reading

BYTES_OF: Mapping[str, int] = {"bf16": 2, "fp8": 1}
ENCODERS = frozenset(
    (
        *("clvp_encoder", "dia_encoder", "embedding_gemma2_text", "esm", "esmc", "eurobert", "gte"),
        *("jina_embeddings_v3", "modernbert", "neomme", "nomic_bert", "openai_privacy_filter", "roformer"),
        *("t5gemma2_text", "ultrabert", "blt_local_encoder"),
    )
)
UNCOUNTED: Mapping[str, str] = {
    "deepseek_v4": "it keeps compressed keys at rates that differ by layer, which are not counted here",
    "dory": "its inner layers run in loops, each of which may keep keys of its own",
    **dict.fromkeys(
        ("blt", "blt_local_decoder", "blt_patcher"),
        "its layers keep bytes or patches of bytes, whose number depends on the text",
    ),
}
# Types whose values have a width of their own without MLA, and its key.
VALUE_WIDTH: Mapping[str, str] = {"mimo_v2_flash": "v_head_dim"}
INDEXED = frozenset(("indexed_attention", "minimax_m3_sparse"))


@dataclass(frozen=True)
class KvCache:
    """Bytes of one sequence by the dtype of the cache.

    ``bytes`` are those at ``length`` tokens, ``bytes_per_token`` what one more token takes there: layers whose window
    is full take none, so the two agree by ``bytes = bytes_per_token * length`` only where no layer has a window.
    ``expanded_bytes`` are those at ``length`` where an engine keeps k and v of every head though the model has MLA
    (transformers 4). The mappings are empty where the note says why there is no figure.
    """

    length: int
    bytes_per_token: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    expanded_bytes: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class KeptByLayer:
    """What a layer keeps of a token, in values: as MLA compresses it, and with k and v of every head.

    ``window``: of at most so many tokens.
    """

    values: int
    expanded: int
    window: int | None = None

    def tokens(self, length: int) -> int:
        """How many of ``length`` tokens are kept."""
        return length if self.window is None else min(length, self.window)


def kv_cache(reading: Reading, length: int) -> KvCache:
    """The KV cache of one sequence of ``length`` tokens; where there is no figure, its note says why."""
    model_type = reading.family.model_type
    if model_type in ENCODERS and not reading.config.get("is_decoder"):
        return KvCache(length, note="an encoder keeps no cache")
    if model_type in UNCOUNTED:
        return KvCache(length, note=UNCOUNTED[model_type])
    try:
        layers, notes = kept_by_layers(reading)
    except ConfigError as error:
        return KvCache(length, note=error.message)
    growing = sum(layer.values for layer in layers if layer.tokens(length + 1) > layer.tokens(length))
    kept = sum(layer.values * layer.tokens(length) for layer in layers)
    expanded = sum(layer.expanded * layer.tokens(length) for layer in layers)
    return KvCache(
        length,
        _bytes(growing),
        _bytes(kept),
        _bytes(expanded) if expanded > kept else {},
        "; ".join((*notes, *_windows(layers, length))),
    )


def _bytes(values: int) -> dict[str, int]:
    return {dtype: size * values for dtype, size in BYTES_OF.items()}


def kept_by_layers(reading: Reading) -> tuple[tuple[KeptByLayer, ...], tuple[str, ...]]:
    """What each layer keeps, and what a person must know; raises `ConfigError` where a layer is not known."""
    found = layer_types(reading)
    unknown = unknown_types(found.types)
    if unknown:
        raise ConfigError(
            f"what layers of type {' and '.join(unknown)} keep of a token is not known",
            key="layer_types",
            types=unknown,
        )
    elsewhere = _elsewhere(reading, len(found.types))
    layers = tuple(
        KeptByLayer(0, 0) if kind in WITHOUT_TOKENS or index in elsewhere else _kept(reading, index, kind)
        for index, kind in enumerate(found.types)
    )
    return layers, tuple(_notes(reading, found, len(elsewhere)))


def _kept(reading: Reading, index: int, kind: str) -> KeptByLayer:
    geometry = reading.layers[index] if index < len(reading.layers) else reading.geometry
    values, expanded = _attention(reading, index, geometry)
    indexer = _indexer(reading, index) if kind in INDEXED else 0
    times = _attentions(reading)
    window = window_tokens(reading, kind) if kind in WINDOWED else None
    return KeptByLayer(times * values + indexer, times * expanded + indexer, window)


def _attention(reading: Reading, index: int, geometry: Geometry) -> tuple[int, int]:
    """Values per token of one attention, as it is kept and expanded."""
    if not geometry.latent_dim:
        key = VALUE_WIDTH.get(reading.family.model_type)
        width = (count(reading.config, key) if key else None) or geometry.value_dim
        values = geometry.kv_heads * (geometry.head_dim + width)
        return values, values
    nope = reading.family.nope
    still = nope is not None and nope.unmoved and index in reading.nope_layers
    values = geometry.latent_dim + (0 if still else geometry.rotary_dim)
    width = count(reading.config, "v_head_dim") or int(reading.family.defaults.get("v_head_dim", 0))
    return values, geometry.heads * (geometry.head_dim + width) if width else values


def _attentions(reading: Reading) -> int:
    """How many attentions a layer has that keep keys of their own."""
    own = (site for site in reading.family.others if not _is_indexer(site.module) and not site.within)
    return 1 + sum(1 for _ in own)


def _is_indexer(module: str) -> bool:
    return module.rpartition(".")[2] == INDEXER


def _indexer(reading: Reading, index: int) -> int:
    """The width of the one key that an indexer keeps of a token; layers that share another's keep none."""
    shared = reading.config.get("indexer_types")
    if isinstance(shared, list) and index < len(shared) and shared[index] == "shared":
        return 0
    widths = (
        count(reading.config, "indexer_head_dim") or rotation.geometry.head_dim
        for site, rotation in zip(reading.family.others, reading.others, strict=True)
        if _is_indexer(site.module)
    )
    return next(widths, 0)


def _elsewhere(reading: Reading, layers: int) -> frozenset[int]:
    """The layers that keep nothing of the text: they take k and v of another layer, or look at another input."""
    cross, sources = (_integers(reading.config, key) for key in ("cross_attention_layers", "kv_source_layers"))
    borrowing = (index for index, source in enumerate(sources) if source != index)
    default = FILLED_IN.get(reading.family.model_type, {}).get("shared", 0)
    shared = reading.config.get("num_kv_shared_layers", default)
    last = range(layers - shared, layers) if isinstance(shared, int) and 0 < shared < layers else ()
    return frozenset(index for index in (*cross, *borrowing, *last) if 0 <= index < layers)


def _integers(config: Mapping[str, Any], key: str) -> list[int]:
    value = config.get(key)
    return [entry for entry in value if isinstance(entry, int)] if isinstance(value, list) else []


def _notes(reading: Reading, found: LayerTypes, elsewhere: int) -> Iterator[str]:
    types, layers = found.types, len(found.types)
    if found.unstated:
        yield f"at most: {found.unstated}, so all are counted as keeping every token"
    if reading.geometry.latent_dim:
        yield "MLA keeps one latent and one rotary key for all heads"
    if any(kind in INDEXED for kind in types) and _indexer(reading, layers):
        yield "the keys of the indexers are counted"
    state = sum(kind in WITHOUT_TOKENS for kind in types)
    if state:
        yield f"{state} of {layers} layers keep a state that does not grow, or nothing; it is not counted"
    if elsewhere:
        yield f"{elsewhere} of {layers} layers keep no keys of the text themselves"
    for kind in sorted({kind for kind in types if kind in WINDOWED and window_tokens(reading, kind) is None}):
        yield f"at most: config.json names no window for {kind} layers ({' or '.join(WINDOWED[kind])})"


def _windows(layers: Sequence[KeptByLayer], length: int) -> Iterator[str]:
    full = [layer for layer in layers if layer.values]
    windows = sorted({layer.window for layer in full if layer.window is not None and layer.window < length})
    if windows:
        narrow = sum(1 for layer in full if layer.window in windows)
        said = " or ".join(map(str, windows))
        yield f"{narrow} of {len(full)} layers keep at most {said} tokens"
