"""The witness of the weights: a position scheme by the names and shapes of its tensors, whatever the type is called.

The names are those of transformers 4 and 5 and of the codes they were ported from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ropetool.families.schemes import (
    BOUNDED,
    BUCKETED,
    CLIPPED,
    COMPUTED_BIAS,
    CONVOLVED,
    LEARNED,
    PROJECTED,
    WINDOWED,
    Scheme,
)

_TABLE_NAMES = (
    "wpe|embed_positions|position_embeddings?|positions_embed|pos_embed|pos_emb|position_embeds_layer|pos_embedding|"
    "positional_embedding|position_embedding_table|char_position_embeddings|pos_encoder|position_encoding"
)
# Most telling first: each tensor is one of the first that fits its name.
PATTERNS: tuple[tuple[re.Pattern[str], Scheme], ...] = tuple(
    (re.compile(rf"(^|\.)({names})$"), scheme)
    for names, scheme in (
        (r"distance_embedding\.weight", BOUNDED),
        (r"emb_rel_k|pe_k\.weight|rel_pos_emb\.weight|rel_pos_h|rel_embeddings\.weight", CLIPPED),
        (r"r_r_bias|pos_bias_u|bias_u|linear_pos\.weight|relative_k_proj\.weight|rel_attn\.r|r_net\.weight|r_kernel",
         PROJECTED),
        (r"relative_attention_bias(\.weight)?|rel_attn_embed\.weight", BUCKETED),
        (r"rel_pos_bias\.weight", replace(BUCKETED, axis=-1)),
        (r"relative_position_bias_table", WINDOWED),
        (r"continuous_position_bias_mlp\.0\.weight|cpb_mlp\.0\.weight", COMPUTED_BIAS),
        (rf"({_TABLE_NAMES})(\.embedding)?(\.weights?)?", LEARNED),
        (r"pos_conv_embed\.conv\.(weight|weight_v|parametrizations\.weight\.original1)", CONVOLVED),
    )
)  # fmt: skip
ROTARY = re.compile(r"(^|\.)(rotary\w*|rope\w*|freqs_cis|freqs_cos|cos_cached|sin_cached)(\.|$)")
# A word in a tensor's name says that it belongs to a part beside the text decoder.
BESIDE = re.compile(r"(^|[._])(vision|visual|image|img|audio|speech|video|vit|patch|pixel|projector|perceiver)")


@dataclass(frozen=True)
class Table:
    """Tensors of one scheme with one shape."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    scheme: Scheme

    @property
    def name(self) -> str:
        """The first of them."""
        return self.names[0]

    @property
    def number(self) -> int | None:
        """The number that the shape tells, None where it tells none."""
        scheme = self.scheme
        return self.shape[scheme.axis] if scheme.number and len(self.shape) >= -scheme.axis else None

    @property
    def numbers(self) -> dict[str, int]:
        """What the shape tells."""
        return {} if self.number is None else {self.scheme.number: self.number}

    def __str__(self) -> str:
        more = f" and {len(self.names) - 1} alike" if len(self.names) > 1 else ""
        return f"{self.name} {list(self.shape)}{more}"


def tables(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Table, ...]:
    """Every tensor whose name is one of a position scheme, alike ones together."""
    found: dict[tuple[str, tuple[int, ...]], Table] = {}
    for name, shape in shapes.items():
        scheme = next((scheme for pattern, scheme in PATTERNS if pattern.search(name)), None)
        if scheme is not None and (scheme is not LEARNED or len(shape) > 1):
            _add(found, re.sub(r"\.\d+\.", ".", name), name, shape, scheme)
    return tuple(found.values())


def matching(shapes: Mapping[str, tuple[int, ...]], pattern: str, scheme: Scheme, word: str = "") -> tuple[Table, ...]:
    """The tensors that a row of the table says are a scheme's; with ``word``, those of that part alone."""
    found: dict[tuple[str, tuple[int, ...]], Table] = {}
    for name, shape in shapes.items():
        if re.search(pattern, name) and (not word or word in name.split(".")):
            _add(found, "", name, shape, scheme)
    return tuple(found.values())


def _add(found: dict[tuple[str, tuple[int, ...]], Table], group: str, name: str, shape: tuple[int, ...],
         scheme: Scheme) -> None:  # fmt: skip
    before = found.get((group, shape))
    found[group, shape] = Table((*(before.names if before else ()), name), shape, scheme)


def rotary(names: Iterable[str]) -> str | None:
    """The first tensor that only a rotary embedding has."""
    return next((name for name in names if ROTARY.search(name)), None)
