"""The encodings of position beside RoPE, small and exact: sinusoidal, learned, Shaw's, T5's and ALiBi's.

Attention alone cannot tell an order: permute the words, and every output is what it was, permuted. Each scheme brings
the order in at another place:

* into the input: `sinusoidal` and `LearnedPositions` are added to the embeddings, once, below the first layer;
* into the keys: `shaw_scores` adds a vector to each key, by its distance from the query (q . (k + a));
* into the scores: `t5_bias` and `alibi_bias` add a number to each score, by the distance;
* into q and k: RoPE turns both by their positions (`ropetool.rope.rotary`).

Positions are counted in tokens, from 0. A score is q . k, not yet divided by sqrt(d); biases are added to what goes
into the softmax. Everything is numpy, computed in float64 unless it is given in another type; the torch forms are in
`ropetool.models.rotary`. Shapes: T tokens, d width, H heads; Tq queries and Tk keys.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ropetool.errors import EncodingError
from ropetool.rope.arguments import (
    AnyFloats,
    Indices,
    Shape,
    array,
    even,
    fits,
    floating,
    places,
    ranked,
    whole,
    whole_numbers,
)
from ropetool.rope.frequencies import Floats, plain_inv_freq

# The base of the sinusoidal table (Vaswani et al., arXiv:1706.03762, section 3.5): part of the definition, no setting.
SINUSOIDAL_BASE = 10000.0
# The spread of GPT-2's first rows (openai/gpt-2, src/model.py, `wpe`).
FIRST_SPREAD = 0.01
LEARNED = "the learned table"
IN_TORCH = ". LearnedPositions of ropetool.models.rotary takes tensors"
# The largest distance of which int64 has the negative too.
FARTHEST = 2**63 - 1


def sinusoidal(seq_len: int, d: int) -> Floats:
    """The fixed table of "Attention Is All You Need": shape [T, d], added to the embeddings of T tokens.

    PE(pos, 2i) = sin(pos / 10000^(2i/d)) and PE(pos, 2i+1) = cos(pos / 10000^(2i/d)): coordinates 2i and 2i + 1 are
    the hand of a clock that turns by 10000^(-2i/d) radians with each token (Vaswani et al., arXiv:1706.03762,
    section 3.5). Numbers are from -1 to 1, without unit.

    The wavelength of pair i, the tokens of one turn, is 2 pi 10000^(2i/d). The first is 2 pi; the paper says that the
    last is 10000 x 2 pi, and by its formula it is 2 pi 10000^(1 - 2/d): that short of it by the factor 10000^(2/d),
    which is 1.037 at d = 512 and 10 at d = 8. (The authors' own code, tensor2tensor, and M2M100 with it, divides by
    d/2 - 1 and reaches 10000 x 2 pi exactly; and it stores all sines before all cosines, as RoFormer and Marian do
    with the paper's wavelengths. A table belongs to the code that its model was trained with.)

    Raises `EncodingError` for an odd ``d``, or no tokens.
    """
    positions_T1 = np.arange(whole("seq_len", seq_len, least=1), dtype=np.float64)[:, None]
    angles_rad = positions_T1 * plain_inv_freq(SINUSOIDAL_BASE, even("d", d))
    return _interleaved(np.sin(angles_rad), np.cos(angles_rad))


def sinusoidal_shift(k: int, d: int) -> Floats:
    """The matrix M_k, shape [d, d], that moves every row of the sinusoidal table by k positions.

    PE(pos + k) = M_k PE(pos), with PE(pos) a column, whatever pos is: this is why the authors expected that a model
    can learn to attend by relative position (arXiv:1706.03762, section 3.5). M_k turns each pair of coordinates by
    its own angle, k / 10000^(2i/d) radians, so it is a rotation: M_j M_k = M_(j+k), and M_(-k) is both the inverse and
    the transpose. RoPE takes this matrix from the table and applies it to q and k themselves.

    ``k`` may be negative. Raises `EncodingError` for an odd ``d``, or a ``k`` that is no whole number.
    """
    angles_rad = whole("k", k) * plain_inv_freq(SINUSOIDAL_BASE, even("d", d))
    cos, sin, sines = np.cos(angles_rad), np.sin(angles_rad), np.arange(0, d, 2)
    shift = np.zeros((d, d))
    shift[sines, sines] = shift[sines + 1, sines + 1] = cos
    # sin(a + b) = sin a cos b + cos a sin b;  cos(a + b) = cos a cos b - sin a sin b
    shift[sines, sines + 1], shift[sines + 1, sines] = sin, -sin
    return shift


def _interleaved(even_columns: Floats, odd_columns: Floats) -> Floats:
    return np.stack((even_columns, odd_columns), axis=-1).reshape(len(even_columns), -1)


class LearnedPositions:
    """One learned row for each position up to a maximum, as in GPT-2: called with positions, it gives their rows.

    ``max_len`` rows of width ``d`` (GPT-2: 1024 rows of 768). ``table`` [max_len, d] are the trained rows; without
    them, rows as GPT-2's are before training, drawn with a fixed seed from a normal distribution of spread 0.01
    (Radford et al., "Language Models are Unsupervised Multitask Learners"; openai/gpt-2, src/model.py). Rows are added
    to the embeddings.

    Nothing says what row ``max_len`` would be, and no two rows are related by their positions: the table is a hard
    ceiling. A position beyond it, or below 0, is a `PositionError`, never another position's row. Raises
    `EncodingError` for a table of another shape, and for a tensor that is no array (in bfloat16, on a GPU, learning).
    """

    def __init__(self, max_len: int, d: int, table: npt.ArrayLike | None = None) -> None:
        self.max_len, self.d = whole("max_len", max_len, least=1), whole("d", d, least=1)
        fresh = np.random.default_rng(0).normal(scale=FIRST_SPREAD, size=(self.max_len, self.d))
        self.table: AnyFloats = fresh if table is None else array("table", table, IN_TORCH)
        fits("table", self.table.shape, (self.max_len, self.d))

    def __call__(self, positions: npt.ArrayLike) -> AnyFloats:
        """The rows of ``positions`` (whole numbers of any shape [...]), shape [..., d]."""
        return np.asarray(self.table[places(positions, self.max_len, LEARNED)])

    def __repr__(self) -> str:
        return f"LearnedPositions(max_len={self.max_len}, d={self.d})"


def shaw_scores(q: AnyFloats, k: AnyFloats, vectors: AnyFloats, *, first_query: int | None = None) -> AnyFloats:
    """Scores with Shaw's relative vectors: q_i . (k_j + a_ij), shape [..., Tq, Tk], not divided by sqrt(d).

    ``q`` is [..., Tq, d] and ``k`` [..., Tk, d]. ``vectors`` [2K + 1, d] are learned, one for each distance from -K to
    K tokens, shared by all heads; a_ij is row clip(j - i, -K, K) + K, so that all keys farther than K share a vector:
    the model generalises to any length, and is blind to how far beyond K a key is (Shaw et al., arXiv:1803.02155,
    equations 2 and 4; the paper's d_z is d here, its k is K).

    As in the paper (section 3.3, equation 5), q . a is computed for the 2K + 1 vectors alone and then laid out, not
    for Tq x Tk of them. With a cache there are fewer queries than keys: ``first_query`` is the position of the first.

    Raises `EncodingError` for an even number of vectors (there is a middle one, for distance 0), widths that differ,
    whole numbers, or another number of keys than of queries without ``first_query``.
    """
    q, k, vectors = array("q", q), array("k", k), array("vectors", vectors)
    for name, given in (("q", q), ("k", k), ("vectors", vectors)):
        floating(name, given.dtype.kind == "f", given.dtype)
    index = shaw_index(q.shape, k.shape, vectors.shape, first_query)
    by_vector = q @ vectors.T
    queries = np.arange(q.shape[-2])[:, None]
    return np.asarray(q @ np.swapaxes(k, -1, -2) + by_vector[..., queries, index])


def shaw_index(q: Shape, k: Shape, vectors: Shape, first_query: int | None = None) -> Indices:
    """Which vector each query has for each key, [Tq, Tk], by the shapes of q, k and the vectors (see `shaw_scores`)."""
    ranked("q", q, 2, "[..., queries, d]")
    ranked("k", k, 2, "[..., keys, d]")
    if len(vectors) != 2 or vectors[0] % 2 == 0:
        raise EncodingError(
            f"vectors have the shape {list(vectors)}; they must be [2K + 1, d], one for each distance from -K to K",
            vectors=list(vectors),
        )
    if not q[-1] == k[-1] == vectors[-1]:
        raise EncodingError(
            f"q has the width {q[-1]}, k {k[-1]} and the vectors {vectors[-1]}; they must be the same",
            widths=[q[-1], k[-1], vectors[-1]],
        )
    try:
        np.broadcast_shapes(q[:-2], k[:-2])
    except ValueError:
        said = f"q has the shape {list(q)} and k {list(k)}; but for tokens they must be the same, or have 1"
        raise EncodingError(said, q=list(q), k=list(k)) from None
    if first_query is None and q[-2] != k[-2]:
        raise EncodingError(
            f"there are {q[-2]} queries and {k[-2]} keys: name the position of the first query (first_query; "
            f"{k[-2] - q[-2]} where the queries are the last tokens)",
            queries=q[-2],
            keys=k[-2],
        )
    clip = vectors[0] // 2
    # beyond the keys by K, all are as far: a number that int64 cannot hold is no other query's
    first = min(whole("first_query", first_query or 0, least=0), k[-2] + clip)
    queries = np.arange(q[-2]) + first
    return np.asarray(np.clip(np.arange(k[-2]) - queries[:, None], -clip, clip) + clip, dtype=np.int64)


def t5_buckets(distances: npt.ArrayLike, *, buckets: int, max_distance: int, bidirectional: bool) -> Indices:
    """The bucket of each distance, key position less query position: the shape of ``distances``, 0 to buckets - 1.

    With n = |distance| and B buckets for a direction: below B/2 each n has its own, n; beyond, n goes to bucket
    B/2 + floor(ln(n / (B/2)) / ln(max_distance / (B/2)) (B - B/2)), and from ``max_distance`` on to the last. In both
    directions (T5's encoder) each has half of the buckets, keys behind the query the upper half; in one (its decoder)
    a key behind the query has bucket 0, which a causal mask hides (Raffel et al., arXiv:1910.10683, section 2.1;
    Mesh TensorFlow, transformer_layers.py, `_relative_position_bucket`). T5 has 32 buckets and a max_distance of 128.

    Deviation: where the logarithm is a whole number, n is in the bucket that begins there; implementations in float32
    may round it into the one before (n = 30 with 36 buckets and a max_distance of 50, on some processors; no n with
    T5's numbers).

    Raises `EncodingError` for distances that are no whole numbers, buckets that do not divide in two, or a
    ``max_distance`` that the exact buckets already reach.
    """
    found = _in_int64(whole_numbers("distances", distances))
    each = _buckets_each(buckets, bidirectional)
    exact = each // 2
    if whole("max_distance", max_distance) <= exact:
        raise EncodingError(
            f"max_distance is {max_distance}, and the first {exact} distances have buckets of their own: it must be "
            f"above {exact}",
            max_distance=max_distance,
            exact=exact,
        )
    behind = found > 0
    apart = np.abs(found) if bidirectional else np.where(behind, 0, -found)
    steps = np.log(np.maximum(apart, exact) / exact) / math.log(max_distance / exact) * (each - exact)
    # 1e-9: what a logarithm that is whole may lose by rounding in float64, and far less than one that is not lacks.
    logarithmic = np.minimum(exact + np.floor(steps + 1e-9).astype(np.int64), each - 1)
    bucket = np.where(apart < exact, apart, logarithmic) + (each * behind if bidirectional else 0)
    return np.asarray(bucket, dtype=np.int64)


def _in_int64(distances: npt.NDArray[np.integer[Any]]) -> Indices:
    """Distances that int64 and their negatives cannot hold are the farthest that it can: in the same bucket."""
    if distances.dtype.kind == "u":
        return np.minimum(distances.astype(np.uint64), FARTHEST).astype(np.int64)
    return np.maximum(distances.astype(np.int64), -FARTHEST)


def _buckets_each(buckets: int, bidirectional: bool) -> int:
    directions = 2 if bidirectional else 1
    each, left = divmod(whole("buckets", buckets), directions)
    if each < 2 or left:
        least = "even, and 4 or more" if bidirectional else "2 or more"
        raise EncodingError(f"there are {buckets} buckets; their number must be {least}", buckets=buckets)
    return each


def t5_bias(seq_len: int, table: AnyFloats, *, bidirectional: bool, max_distance: int) -> AnyFloats:
    """T5's relative bias, shape [H, T, T]: what is added to the score of query i and key j of each head.

    ``table`` [buckets, H] is learned, one number for each bucket of distance and head, shared by all layers; which
    bucket a distance has, see `t5_buckets`. T5 does not divide its scores by sqrt(d) (arXiv:1910.10683, section 2.1).
    With a cache, the last rows are those of the last queries: ``t5_bias(...)[:, -new:]``.

    Raises `EncodingError` as `t5_buckets` does.
    """
    table = array("table", table)
    index = t5_index(seq_len, table.shape, bidirectional=bidirectional, max_distance=max_distance)
    return np.asarray(np.moveaxis(table[index], -1, 0))


def t5_index(seq_len: int, table: Shape, *, bidirectional: bool, max_distance: int) -> Indices:
    """The bucket of every query and key, [T, T], by the shape of the table."""
    if len(table) != 2:
        raise EncodingError(f"the table has the shape {list(table)}; it must be [buckets, heads]", table=list(table))
    return t5_buckets(distances(seq_len), buckets=table[0], max_distance=max_distance, bidirectional=bidirectional)


def distances(seq_len: int) -> Indices:
    """Key position less query position, [T, T]: row i is a query, column j a key, the number j - i tokens."""
    positions = np.arange(whole("seq_len", seq_len, least=1))
    return positions - positions[:, None]


def alibi_slopes(heads: int) -> Floats:
    """The slope of every head, shape [H], in score per token: 2^(-8/H), 2^(-16/H), ... 2^-8 for a power of two.

    So 8 heads have 1/2, 1/4, ... 1/256 (Press et al., arXiv:2108.12409, section 3). For another number of heads, as
    the authors' code has it (attention_with_linear_biases, fairseq/models/transformer.py, `get_slopes`): the slopes of
    the next lower power of two n, followed by the first, third, fifth ... of those of 2n. BLOOM (112 heads) does so.

    Raises `EncodingError` for no heads.
    """
    heads = whole("heads", heads, least=1)
    lower = 1 << (heads.bit_length() - 1)
    between = _slopes_of_power(2 * lower)[0::2]
    return np.concatenate((_slopes_of_power(lower), between[: heads - lower]))


def _slopes_of_power(heads: int) -> Floats:
    return np.asarray(2.0 ** (-8.0 * np.arange(1, heads + 1) / heads), dtype=np.float64)


def alibi_bias(seq_len: int, heads: int) -> Floats:
    """ALiBi, shape [H, T, T]: -slope |i - j| is added to the score of query i and key j, after the division by sqrt(d).

    Nothing is learned: the farther a key, the less it counts, by the slope of the head (Press et al.,
    arXiv:2108.12409, section 3, figure 3). The paper's models are causal, and so is its figure: mask the keys behind
    the query yourself. Without a mask this is the symmetric form, which knows how far a key is and not on which side.

    BLOOM adds slope * j to every row instead, which differs by a number for each row, and so not after the softmax.
    With a cache, the last rows are those of the last queries: ``alibi_bias(...)[:, -new:]``.

    Raises `EncodingError` for no heads, or no tokens.
    """
    return np.asarray(-alibi_slopes(heads)[:, None, None] * np.abs(distances(seq_len)), dtype=np.float64)
