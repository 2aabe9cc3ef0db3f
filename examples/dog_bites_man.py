"""Who bites whom? Attention alone cannot tell; each encoding of position can. Run it: python examples/dog_bites_man.py.

One head of attention reads "dog bites man ." and "man bites dog .", and what it makes of a word is compared between the
two. Where that is the same, the head cannot know which sentence it reads.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ropetool import encodings

D = 16
SENTENCES = (("dog", "bites", "man", "."), ("man", "bites", "dog", "."))
T = len(SENTENCES[0])
RNG = np.random.default_rng(0)
EMBEDDING = {word: RNG.normal(size=D) for word in ("dog", "bites", "man", ".")}
W_Q, W_K, W_V = (RNG.normal(size=(D, D)) / D**0.5 for _ in range(3))
# What would be learned is drawn at random here: rows for 8 positions, Shaw's vectors for distances from -2 to 2, and
# T5's numbers for 8 buckets and one head. ALiBi's head is the first of eight.
LEARNED = encodings.LearnedPositions(8, D, RNG.normal(size=(8, D)))
SHAW = RNG.normal(size=(5, D))
T5 = RNG.normal(size=(8, 1))
COS, SIN = encodings.rope_cache(T, D, 10000.0)

Array = np.ndarray
Scores = Callable[[Array, Array], Array]


def plain(q: Array, k: Array) -> Array:
    """Attention's own scores."""
    return q @ k.T


def rope(pairing: str) -> Scores:
    """The scores of q and k, each turned by its position."""

    def scores(q: Array, k: Array) -> Array:
        q, k = (encodings.apply_rope(x, COS, SIN, pairing=pairing) for x in (q, k))
        return q @ k.T

    return scores


def biased(bias: Array) -> Scores:
    """Scores with a bias [T, T], which is added after the division by sqrt(D)."""
    return lambda q, k: q @ k.T + bias * D**0.5


# A scheme: what it adds to the embeddings, and how it makes scores of q and k.
SCHEMES: dict[str, tuple[Array | float, Scores]] = {
    "no positions": (0.0, plain),
    "sinusoidal": (encodings.sinusoidal(T, D), plain),
    "learned": (LEARNED(np.arange(T)), plain),
    "Shaw": (0.0, lambda q, k: encodings.shaw_scores(q, k, SHAW)),
    "T5": (0.0, biased(encodings.t5_bias(T, T5, bidirectional=True, max_distance=16)[0])),
    "ALiBi": (0.0, biased(encodings.alibi_bias(T, 8)[0])),
    "RoPE, half": (0.0, rope("half")),
    "RoPE, interleaved": (0.0, rope("interleaved")),
}


def attention(words: tuple[str, ...], added: Array | float, scores: Scores, causal: bool) -> Array:
    """The output of the head for each word, [T, D]."""
    x = np.stack([EMBEDDING[word] for word in words]) + added
    score = scores(x @ W_Q, x @ W_K) / D**0.5
    if causal:
        score = np.where(np.tri(T, dtype=bool), score, -np.inf)
    weights = np.exp(score - score.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ (x @ W_V)


def difference(word: str, scheme: str, causal: bool = False) -> float:
    """How far the outputs for a word, which has the same place in both sentences, are apart."""
    first, second = (attention(words, *SCHEMES[scheme], causal)[words.index(word)] for words in SENTENCES)
    return float(np.abs(first - second).max())


def main() -> None:
    """Print the table."""
    print('How far apart attention puts a word of "dog bites man ." and "man bites dog ."\n')
    print(f"{'':20}{'bites':>10}{'bites, causal':>18}{'., causal':>14}")
    for scheme in SCHEMES:
        found = (difference("bites", scheme), difference("bites", scheme, True), difference(".", scheme, True))
        bites, causal, last = ("same" if apart < 1e-12 else f"{apart:.3f}" for apart in found)
        print(f"{scheme:20}{bites:>10}{causal:>18}{last:>14}")
    print(
        "\nWithout positions, and with all words in sight, the two sentences are the same. A causal mask is a clue by\n"
        "itself (bites has seen the dog, or the man), but not for the last word, which has seen all. ALiBi knows how\n"
        "far a word is and not on which side: dog and man are both next to bites. It was made for a causal mask."
    )


if __name__ == "__main__":
    main()
