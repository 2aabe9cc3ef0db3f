"""From rows seen at two small geometries to the rows at any: the row grammar that fits both, or nothing.

The sizes of the two are chosen so that no count or width is to another what it is in the other geometry
(`tiny_cases.OTHER_SIZES`). Whatever could be meant by more than one key or pattern is decided by what they would mean
for the checkpoint itself: where that differs, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ropetool.checkpoint.config import RopeBlock
from ropetool.errors import ConfigError
from ropetool.families.family import ONE_HEAD, K, Moved, Q
from ropetool.families.geometry import Each, Geometry, GeometryKeys, Part, Rows, read_geometry
from ropetool.models.rotations import Unreadable
from ropetool.rope.pairing import Head, Keep, Span

# What rows repeat by; CodeGen's four blocks only where nothing else fits.
COUNTS = (("heads", "kv_heads", "group"), ("heads", "kv_heads", "group", "four", "quarter"))
HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_KEYS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv")
WIDTH_KEYS = ("hidden_size", "n_embd", "d_model")
HEAD_DIM_KEYS = (("head_dim",), ("kv_channels",), ("attention_head_dim",), ("qk_nope_head_dim", "qk_rope_head_dim"), ())
ROTARY_KEYS = (
    "partial_rotary_factor",
    "rotary_pct",
    "rope_pct",
    "rotary_emb_fraction",
    "rotary_dim",
    "qk_rope_head_dim",
)
THETA_KEYS = ("rope_theta", "rotary_emb_base", "rope_base", "rotary_base")
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
GEOMETRY_KEYS = {
    *HEAD_KEYS, *KV_KEYS, *WIDTH_KEYS, *(key for keys in HEAD_DIM_KEYS for key in keys), *ROTARY_KEYS, *LENGTH_KEYS,
    "kv_lora_rank",
}  # fmt: skip

Tokens = tuple[Part, ...]


@dataclass(frozen=True)
class Sight:
    """What one tiny model showed: the rows of each projection that moves, and the size of each norm over q or k."""

    config: Mapping[str, Any]
    block: RopeBlock
    projections: Mapping[str, tuple[Span, ...]]
    norms: Mapping[str, int]


@dataclass(frozen=True)
class Pattern:
    """The keys of the geometry, and what moves."""

    keys: GeometryKeys
    moves: tuple[Moved, ...]


def generalise(
    sights: tuple[Sight, Sight],
    feeds: Mapping[str, str],
    norm_feeds: Mapping[str, str],
    config: Mapping[str, Any],
    block: RopeBlock,
    defaults: Mapping[str, float],
) -> Pattern:
    """The pattern that fits both sights; ``config``, ``block`` and ``defaults`` are the checkpoint's own.

    ``feeds`` says for each projection, ``norm_feeds`` for each norm, whether q or k comes of it. Raises `Unreadable`
    where nothing fits, or where what fits means different rows for the checkpoint.
    """
    found: dict[Any, Pattern] = {}
    for keys in _candidates(sights[0].config):
        try:
            small = [read_geometry(sight.config, sight.block, keys, {}) for sight in sights]
            own = read_geometry(config, block, keys, defaults)
        except ConfigError:
            continue
        ways = [_projection(name, kind, sights, (small[0], small[1], own)) for name, kind in feeds.items()]
        ways += [_norm(name, kind, sights, small) for name, kind in norm_feeds.items()]
        for moves in product(*ways):
            found.setdefault(tuple((move.module, own.spans(move.rows)) for move in moves), Pattern(keys, moves))
    if not found:
        raise Unreadable("its rows follow no pattern of heads that the sizes in its config explain")
    if len(found) > 1:
        read = [pattern.keys for pattern in found.values()]
        raise Unreadable(
            f"its rows can be read in {len(found)} ways, and its config does not tell which is right: {_said(read)}"
        )
    return next(iter(found.values()))


def _said(keys: Sequence[GeometryKeys]) -> str:
    return "; or ".join(
        f"{k.heads}, {k.kv_heads}, {' + '.join(k.head_dim) or k.hidden}, {k.rotary or 'the whole head'}" for k in keys
    )


def _candidates(config: Mapping[str, Any]) -> Iterator[GeometryKeys]:
    """Every way to read a geometry from the keys that a config has."""

    def there(names: Sequence[str]) -> list[str]:
        return [name for name in names if config.get(name) is not None]

    head_dims = [names for names in HEAD_DIM_KEYS if len(there(names)) == len(names)]
    rotaries = [(), *((name,) for name in there(ROTARY_KEYS))]
    latents = [None, *there(("kv_lora_rank",))]
    value = "v_head_dim" if latents[1:] and there(("v_head_dim",)) else None
    length = next(iter(there(LENGTH_KEYS)), "max_position_embeddings")
    for heads, kv_heads, hidden, head_dim, rotary, latent, at_end, in_block in product(
        there(HEAD_KEYS), [*there(KV_KEYS), None], there(WIDTH_KEYS), head_dims, rotaries, latents,
        (False, True), (False, True),
    ):  # fmt: skip
        yield GeometryKeys(
            heads, kv_heads, hidden, head_dim, rotary, latent, value, length,
            rope_at_end=at_end, share_in_block=in_block,
        )  # fmt: skip


def _projection(name: str, feeds: str, sights: Sequence[Sight], geometries: Sequence[Geometry]) -> list[Moved]:
    """The shortest rows in the grammar that fit a projection: one, none, or several of which none is simpler."""
    spans = [sight.projections[name] for sight in sights]
    for counts in COUNTS:
        found: dict[tuple[Span, ...], tuple[Rows, ...]] = {}
        for kept in (Part.PLAIN, Part.VALUE, Part.LATENT):
            tokens = [_tokens(s, g, kept) for s, g in zip(spans, geometries[:2], strict=True)]
            if None not in tokens:
                for rows in _Parser(counts, geometries).shortest(tokens[0] or (), tokens[1] or ()):
                    found.setdefault(geometries[2].spans(rows), rows)
        least = min(map(_size, found.values()), default=0)
        if found:
            return [Moved(name, rows, feeds) for rows in found.values() if _size(rows) == least]
    return []


def _norm(name: str, feeds: str, sights: Sequence[Sight], geometries: Sequence[Geometry]) -> list[Moved]:
    """A norm over one head, or over all heads of q or of k."""
    candidates: tuple[tuple[Rows, ...], ...] = (ONE_HEAD, Q if feeds == "q" else K, (Part.ROTARY_ONLY,))
    for rows in candidates:
        sizes = [sum(span.rows for span in geometry.spans(rows)) for geometry in geometries]
        if sizes == [sight.norms[name] for sight in sights]:
            return [Moved(name, rows)]
    return []


def _tokens(spans: Sequence[Span], geometry: Geometry, kept: Part) -> Tokens | None:
    """Spans as parts of the grammar, rows that stay as so many of ``kept``; None where that does not come out."""
    rows = {Part.PLAIN: geometry.head_dim, Part.VALUE: geometry.value_dim, Part.LATENT: geometry.latent_dim}[kept]
    found: list[Part] = []
    for span in _joined(spans):
        if isinstance(span, Keep):
            if not rows or span.rows % rows:
                return None
            found += [kept] * (span.rows // rows)
        elif span == Head(geometry.head_dim, geometry.rope_start, geometry.rotary_dim):
            found.append(Part.ROTARY)
        elif span == Head(geometry.rotary_dim, 0, geometry.rotary_dim):
            found.append(Part.ROTARY_ONLY)
        else:
            return None
    return tuple(found)


def _joined(spans: Sequence[Span]) -> list[Span]:
    """Spans with neighbours that stay as one: where one head of v ends moves nothing."""
    joined: list[Span] = []
    for span in spans:
        if isinstance(span, Keep) and joined and isinstance(joined[-1], Keep):
            joined[-1] = Keep(joined[-1].rows + span.rows)
        else:
            joined.append(span)
    return joined


class _Parser:
    """All rows of the grammar that give one sequence at the first geometry and another at the second.

    Kept by what they give at the checkpoint's own geometry, the shortest of each.
    """

    def __init__(self, counts: Sequence[str], geometries: Sequence[Geometry]) -> None:
        self.times = [(count, tuple(geometry.times(count) for geometry in geometries)) for count in counts]
        self.memo: dict[tuple[Tokens, Tokens], dict[Tokens, tuple[Rows, ...]]] = {}

    def shortest(self, a: Tokens, b: Tokens) -> list[tuple[Rows, ...]]:
        """The shortest rows; more than one where they differ at the checkpoint's geometry."""
        found = list(self.all(a, b).values())
        least = min(map(_size, found), default=0)
        return [rows for rows in found if _size(rows) == least]

    def all(self, a: Tokens, b: Tokens) -> dict[Tokens, tuple[Rows, ...]]:
        if (a, b) not in self.memo:
            found: dict[Tokens, tuple[Rows, ...]] = {} if a or b else {(): ()}
            self.memo[a, b] = found
            for given, rows in self._starts(a, b):
                if given not in found or _size(rows) < _size(found[given]):
                    found[given] = rows
        return self.memo[a, b]

    def _starts(self, a: Tokens, b: Tokens) -> Iterator[tuple[Tokens, tuple[Rows, ...]]]:
        """Every way to take a first part, or a repetition, off both sequences."""
        if a and b and a[0] is b[0]:
            for given, rows in self.all(a[1:], b[1:]).items():
                yield (a[0], *given), (a[0], *rows)
        for count, (times_a, times_b, own) in self.times:
            if times_a == times_b == 1:
                continue
            for block_a, block_b in product(_repeated(a, times_a), _repeated(b, times_b)):
                rest = self.all(a[len(block_a) * times_a :], b[len(block_b) * times_b :])
                inner = self.all(block_a, block_b) if rest else {}
                for (given, rows), (after, behind) in product(inner.items(), rest.items()):
                    yield given * own + after, (Each(count, rows), *behind)


def _repeated(tokens: Tokens, times: int) -> Iterator[Tokens]:
    """The blocks that ``tokens`` begins with ``times`` times over."""
    for length in range(1, len(tokens) // times + 1):
        if tokens[: length * times] == tokens[:length] * times:
            yield tokens[:length]


def _size(rows: Sequence[Rows]) -> int:
    return sum(1 + (_size(row.parts) if isinstance(row, Each) else 0) for row in rows)
