"""Rows seen at two geometries give the rows at a third: for every row of the table, and refused where they cannot."""

from __future__ import annotations

from typing import Any

import pytest

from ropetool.checkpoint.config import ALL_LAYERS, RopeBlock
from ropetool.families.family import PLAIN, ROTARY, K, Moved, Q
from ropetool.families.geometry import Each, Geometry, read_geometry
from ropetool.families.table import TABLE
from ropetool.models.generalise import Sight, generalise
from ropetool.models.rotations import Unreadable
from ropetool.models.tiny_cases import OTHER_SIZES, SIZES
from ropetool.rope.pairing import Keep

BLOCK = RopeBlock(ALL_LAYERS, {}, {})
# A checkpoint that is neither of the two: no count or width of it is one of theirs.
OWN = {
    "num_attention_heads": 28, "num_key_value_heads": 7, "hidden_size": 1000, "head_dim": 40, "kv_lora_rank": 100,
    "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 36, "partial_rotary_factor": 0.5, "rotary_dim": 16,
}  # fmt: skip
HALF_OF_IT = {"partial_rotary_factor": 0.5}
# Experts stacked in one weight are refused (`site`), so no pattern of theirs is looked for.
PATTERNS = {
    f"{row.model_type}.{m.module}": (row, m)
    for row, m in {
        m.rows: (row, m) for row in TABLE.values() for m in row.moves if m.feeds and not row.keys.experts
    }.values()
}


def canonical(row: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """A config of the row's own keys, with the sizes of the canonical names."""
    keys, config = row.keys, {k: sizes[k] for k in OWN if k in sizes}
    config[keys.heads], config[keys.hidden] = config["num_attention_heads"], sizes["hidden_size"]
    config["partial_rotary_factor"], config["rotary_dim"] = 0.5, 8
    if len(keys.head_dim) == 0:
        config["hidden_size"] = config[keys.hidden] = 2 * sizes["head_dim"] * sizes["num_attention_heads"]
        config.pop("head_dim", None)
    wanted = {keys.heads, keys.kv_heads, keys.hidden, *keys.head_dim, *keys.rotary, keys.latent, keys.value}
    return {key: value for key, value in config.items() if key in wanted}


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_of_the_table_is_found_again(name: str) -> None:
    row, moved = PATTERNS[name]
    small = [canonical(row, dict(sizes)) for sizes in (SIZES, OTHER_SIZES)]
    own = canonical(row, OWN)
    geometries = [read_geometry(config, BLOCK, row.keys, {}) for config in (*small, own)]
    sights = [
        Sight(config, BLOCK, {"p": geometry.spans(moved.rows)}, {})
        for config, geometry in zip(small, geometries, strict=False)
    ]
    found = generalise((sights[0], sights[1]), {"p": moved.feeds}, {}, own, BLOCK, {})
    again = read_geometry(own, BLOCK, found.keys, {})
    assert again.spans(found.moves[0].rows) == geometries[2].spans(moved.rows)


def sight(config: dict[str, Any], rows: Any, norm: int = 0) -> Sight:
    geometry = Geometry(
        heads=config["num_attention_heads"], kv_heads=config["num_key_value_heads"], head_dim=config["head_dim"],
        rope_start=0, rotary_dim=config["head_dim"], latent_dim=0, value_dim=0, experts=0, class_defaults={},
    )  # fmt: skip
    return Sight(config, BLOCK, {"p": geometry.spans(rows)}, {"n": norm} if norm else {})


def configs(**own: int) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    keys = ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size")
    small = [{key: sizes[key] for key in keys} for sizes in (SIZES, OTHER_SIZES)]
    return small[0], small[1], {key: OWN[key] for key in keys} | own


def test_norms_of_one_head_and_of_all_heads() -> None:
    first, second, own = configs()
    for width in ("head", "all q heads"):
        sizes = [c["head_dim"] * (1 if width == "head" else c["num_attention_heads"]) for c in (first, second)]
        sights = (sight(first, Q, sizes[0]), sight(second, Q, sizes[1]))
        found = generalise(sights, {"p": "q"}, {"n": "q"}, own, BLOCK, {})
        assert Moved("n", Q if width != "head" else (ROTARY,)) in found.moves


def test_what_was_seen_at_as_many_kv_heads_as_heads_says_nothing_of_fewer() -> None:
    first, second, own = configs()
    for config in (first, second):
        config["num_key_value_heads"] = config["num_attention_heads"]
    sights = (sight(first, K), sight(second, K))
    with pytest.raises(Unreadable, match="can be read in 2 ways"):
        generalise(sights, {"p": "k"}, {}, own, BLOCK, {})
    own["num_key_value_heads"] = own["num_attention_heads"]
    assert generalise(sights, {"p": "k"}, {}, own, BLOCK, {}).moves


def test_rows_without_a_pattern_and_norms_of_another_width_are_refused() -> None:
    first, second, own = configs()
    odd = (Each("heads", (ROTARY,)), PLAIN, PLAIN, PLAIN)
    sights = (sight(first, Q), sight(second, odd))
    with pytest.raises(Unreadable, match="no pattern"):
        generalise(sights, {"p": "q"}, {}, own, BLOCK, {})
    with pytest.raises(Unreadable, match="no pattern"):
        generalise((sight(first, Q, 7), sight(second, Q, 9)), {"p": "q"}, {"n": "q"}, own, BLOCK, {})
    broken = Sight(first, BLOCK, {"p": (Keep(5),)}, {})
    with pytest.raises(Unreadable, match="no pattern"):
        generalise((broken, broken), {"p": "q"}, {}, own, BLOCK, {})
