"""What a checkpoint in another maker's format says of itself: its layout, as evidence, and the numbers beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropetool.checkpoint.config import count, number
from ropetool.checkpoint.folder import Checkpoint
from ropetool.checkpoint.foreign import UNKNOWN, Format, format_of
from ropetool.errors import UnsupportedError
from ropetool.families.joined import FORMAT
from ropetool.families.reading import Evidence, Reading, Warn

NATIVE_NAMES = "native-names"
# Keys of params.json that scale the rotation: Meta's llama 3.1 (factors in its code), and Mistral's.
SCALED_BY = ("use_scaled_rope", "yarn")


def foreign_format(checkpoint: Checkpoint, reading: Reading) -> Format | None:
    """The format that the tensors have their names from, beside a Hugging Face config; None for names of its class.

    Some classes call their own tensors so.
    """
    files = [shard.path.name for shard in checkpoint.shards]
    found = format_of(checkpoint.weight_map, files)
    own = {site.module for site in reading.family.sites}
    return None if found is None or found.attention in own else found


def refuse_foreign(checkpoint: Checkpoint, reading: Reading) -> None:
    """Raises `UnsupportedError` for a checkpoint whose tensors its class does not know by their names."""
    found = foreign_format(checkpoint, reading)
    if found is not None:
        raise UnsupportedError(
            f"{checkpoint.directory} cannot be converted as it is: {found.sentence}",
            format=found.name,
            pairing=found.layout(reading.model_type),
        )


def names_evidence(form: Format, model_type: str | None) -> Evidence:
    """The evidence that the names of the tensors are."""
    layout = form.layout(model_type)
    tells = f"{layout} always"
    if form.by_type:
        tells = "its classes differ" if layout == UNKNOWN else f"its class for {model_type} turns {layout} pairs"
    detail = f"the tensors have {form.title} ({form.source}): {tells}"
    return Evidence("config", layout, detail, figures={FORMAT: form.name})


def format_warning(form: Format) -> Warn:
    """What to do with such a checkpoint."""
    return Warn(NATIVE_NAMES, form.sentence)


@dataclass(frozen=True)
class NativeNumbers:
    """What params.json says; ``theta`` is None where it says none, or where the rotation is scaled besides."""

    heads: Mapping[str, int]
    head_dim: int | None
    theta: float | None
    length: int | None
    warnings: tuple[Warn, ...]


def native_numbers(params: Mapping[str, Any]) -> NativeNumbers:
    """Heads, rows of a head, base and length in tokens by params.json.

    Without n_kv_heads k has as many heads as q (llama3, llama/model.py: ModelArgs); ``head_dim`` is Mistral's, and
    ``dim`` over the heads without it. Raises `ConfigError` for a number that is none.
    """
    heads, width, theta = count(params, "n_heads"), count(params, "dim"), number(params, "rope_theta")
    head_dim = count(params, "head_dim") or (width // heads if heads and width else None)
    both = {"query": heads, "key_value": count(params, "n_kv_heads") or heads} if heads else {}
    warnings = []
    if params and theta is None:
        said = (
            "params.json has no rope_theta, and the reference codes differ in what they then take (10000 in Llama 2's, "
            "500000 in Llama 3's)"
        )
        warnings.append(Warn("theta-default", said))
    scaled = next((key for key in SCALED_BY if params.get(key)), None)
    if scaled:
        said = f"params.json has {scaled}: the rotation is scaled, in a way that the code which reads it knows"
        warnings.append(Warn("native-scaling", said))
    length = count(params, "max_position_embeddings")
    return NativeNumbers(both, head_dim, None if scaled else theta, length, tuple(warnings))
