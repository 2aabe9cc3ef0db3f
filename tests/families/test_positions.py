"""What configs without RoPE say, read through the table of other schemes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import transformers

from ropetool.errors import NoRotaryError
from ropetool.families.decoder import COMPOSITES, family_of
from ropetool.families.positions import INSTEAD_OF_ROPE, OTHER, claims_of, positions_of, said
from ropetool.families.reading import read_model
from ropetool.families.schemes import Grid, Product, Sum, When, Window
from ropetool.families.table import TABLE

SCHEMES = {"learned", "sinusoidal", "alibi", "relative-bias", "relative-vectors", "none"}
MODELS = Path(transformers.__file__).parent


def test_the_table_is_wide_and_apart_from_the_families() -> None:
    assert len(OTHER) > 200
    assert not OTHER.keys() & (TABLE.keys() | COMPOSITES.keys())
    assert INSTEAD_OF_ROPE.keys() <= TABLE.keys()


@pytest.mark.parametrize("row", OTHER.values(), ids=OTHER)
def test_a_row_is_complete(row: Any) -> None:
    assert bool(row.places) is not bool(row.parts)
    assert {place.scheme.name for place in row.places} <= SCHEMES
    for place in row.places:
        re.compile(place.tensor)
        assert place.scheme.sentence({}).strip()
    file = row.source.partition(", ")[2]
    if not row.parts and row.source.startswith("transformers 5.24.0") and transformers.__version__ == "5.24.0":
        assert (MODELS / file).is_file()


@pytest.mark.parametrize("row", OTHER.values(), ids=OTHER)
def test_every_key_is_one_of_the_class(row: Any) -> None:
    """A key that the config class lacks would be a number that nobody ever reads."""
    if row.parts or row.model_type not in transformers.CONFIG_MAPPING:
        return
    config = transformers.CONFIG_MAPPING[row.model_type]()
    own = {*config.to_dict(), *config.attribute_map, *dir(config)}
    keys = [key for place in row.places for ways in place.numbers.values() for way in ways for key in _keys(way)]
    keys += [when.key for place in row.places for when in place.when]
    assert [key for key in keys if key.partition(".")[0] not in own | READ_BY_OLD] == []


def _keys(way: Any) -> tuple[str, ...]:
    return getattr(way, "keys", None) or (way.key,)


# In checkpoints as they are published, and unread: BERT's switch of transformers 4, and the length of BLOOM.
READ_BY_OLD = {"position_embedding_type", "seq_length", "max_relative_positions", "position_buckets"}


def test_the_ways_of_a_number() -> None:
    assert Sum(("a", "b"), 2, 1).of({"a": 3, "b": 4}) == 15
    assert Sum(("a", "b")).of({"a": 3}) is None
    assert Sum(("a",)).of({"a": -1}) is None
    assert Grid(1).of({"image_size": 24, "patch_size": 4}) == 37
    assert Grid().of({"image_size": [24, 32], "patch_size": [4, 8]}) == 24
    assert Grid().of({"image_size": 24}) is None
    assert Window().of({"window_size": 7}) == 169
    assert Product("sizes").of({"sizes": [4, 7]}) == 28
    assert Product("sizes").of({}) is None
    assert When("a.b", (False,), True).holds({"a": {"b": False}})
    assert not When("a.b", (False,), True).holds({"a": None})


def test_numbers_are_said_only_when_they_are_known() -> None:
    (known,) = positions_of({"model_type": "gpt2", "n_positions": 1024})
    (unknown,) = positions_of({"model_type": "gpt2"})
    assert "with 1024 rows, a hard ceiling at 1024 tokens" in known.sentence
    assert "rows" not in unknown.sentence
    assert "a hard ceiling: more needs" in unknown.sentence


# What Hub configs say, and what it comes to: the ceilings are those of the models' papers and cards.
KNOWN: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "roberta-base": ({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}, {"positions": 512}),
    "opt-125m": ({"model_type": "opt", "max_position_embeddings": 2048}, {"rows": 2050, "positions": 2048}),
    "t5-small": ({"model_type": "t5", "relative_attention_num_buckets": 32}, {"buckets": 32}),
    "deberta-v3-base": (
        {"model_type": "deberta-v2", "relative_attention": True, "position_buckets": 256, "max_relative_positions": -1,
         "max_position_embeddings": 512, "position_biased_input": False}, {"vectors": 512, "clip": 512}),
    "bloom": ({"model_type": "bloom", "seq_length": 2048}, {"trained": 2048}),
    "mpt-7b": ({"model_type": "mpt", "max_seq_len": 2048, "attn_config": {"alibi": True}}, {"positions": 2048}),
    "vit-base": ({"model_type": "vit", "image_size": 224, "patch_size": 16}, {"rows": 197}),
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN)
def test_published_configs(name: str) -> None:
    config, numbers = KNOWN[name]
    (position,) = positions_of(config)
    assert numbers.items() <= position.numbers.items()
    with pytest.raises(NoRotaryError) as caught:
        family_of(config)
    assert position.sentence in caught.value.message


def test_whisper_has_two() -> None:
    places = positions_of({"model_type": "whisper", "max_source_positions": 1500, "max_target_positions": 448})
    assert [(p.where, p.scheme) for p in places] == [("encoder", "sinusoidal"), ("decoder", "learned")]
    assert re.search("encoder: .*1500 rows.*; decoder: .*a hard ceiling at 448 tokens", said(places))


def test_parts_are_read_by_their_own_type() -> None:
    config: dict[str, Any] = {"model_type": "vision-encoder-decoder", "encoder": {"model_type": "vit"}}
    assert not claims_of({**config, "decoder": {"model_type": "llama"}})
    assert not claims_of(config)
    decoder = {"model_type": "gpt2", "n_positions": 64}
    assert [p.where for p in positions_of({**config, "decoder": decoder})] == ["encoder", "decoder"]


# Types that have RoPE in some configs: what those without it say.
WITHOUT: dict[str, tuple[dict[str, Any], str, str]] = {
    "esm": ({"position_embedding_type": "absolute", "max_position_embeddings": 1026, "pad_token_id": 1}, "learned",
            "a hard ceiling at 1024 tokens"),
    "falcon": ({"alibi": True, "max_position_embeddings": 2048}, "alibi", "2048 tokens"),
    "zamba2": ({"use_mem_rope": False}, "none", "nothing to scale"),
    "granitemoehybrid": ({"position_embedding_type": "nope"}, "none", "nothing to scale"),
}  # fmt: skip


@pytest.mark.parametrize("model_type", WITHOUT)
def test_a_config_that_asks_for_no_rope_is_refused_with_what_it_has(model_type: str) -> None:
    config, scheme, sentence = WITHOUT[model_type]
    with pytest.raises(NoRotaryError) as caught:
        read_model({"model_type": model_type, **config})
    assert caught.value.fields["scheme"] == scheme
    assert sentence in caught.value.message
    assert model_type in INSTEAD_OF_ROPE


@pytest.mark.parametrize("model_type", ["wav2vec2-bert", "wav2vec2-conformer"])
def test_a_switch_to_rope_is_not_taken_for_another_scheme(model_type: str) -> None:
    assert claims_of({"model_type": model_type})
    assert not claims_of({"model_type": model_type, "position_embeddings_type": "rotary"})
