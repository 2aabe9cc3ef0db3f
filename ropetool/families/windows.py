"""What of a model's rotation a longer context can reach: layers that look back a window of tokens never see it."""

from __future__ import annotations

from ropetool.errors import MethodError
from ropetool.families.reading import Reading, Warn

SLIDING = "sliding_attention"


def rotating_types(reading: Reading) -> list[str]:
    """The types of the layers that rotate, in order; none where config.json does not tell them."""
    types = reading.config.get("layer_types")
    if not isinstance(types, list):
        return []
    still = reading.nope_layers | reading.still_layers
    return [str(kind) for index, kind in enumerate(types) if index not in still]


def local_layers(reading: Reading, length: int) -> tuple[Warn, ...]:
    """A warning where one block turns local layers too; raises `MethodError` where it turns no others.

    Local is what does not look back ``length`` tokens. Layers with a block of their own are left as they are, and need
    neither.
    """
    rotating = rotating_types(reading)
    if reading.family.kinds and SLIDING not in (kind.layer_type for kind in reading.family.kinds[:1]):
        return ()
    window = reading.config.get("sliding_window")
    if isinstance(window, int) and window >= length:
        return ()
    if rotating and set(rotating) == {SLIDING} and reading.nope_layers:
        raise MethodError(
            f"every layer of this {reading.model_type} that rotates looks back {window} tokens and no further, and the "
            f"others have no rotation: there is none to scale. Raise {reading.family.keys.length} by hand, and measure "
            f"it with `ropetool evaluate`",
            model_type=reading.model_type,
            window=window,
        )
    if SLIDING not in rotating or set(rotating) == {SLIDING}:
        return ()
    message = (
        f"the class of {reading.model_type} has one rope block for all layers, so the {rotating.count(SLIDING)} layers "
        f"that look back {window} tokens only are scaled as well"
    )
    return (Warn("local-layers-scaled", message),)
