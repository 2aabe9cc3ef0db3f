"""The parts of a multimodal checkpoint beside its text decoder: found, named, and left alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from ropetool.checkpoint.folder import Checkpoint
from ropetool.errors import UnclaimedTensorError
from ropetool.families.decoder import Decoder
from ropetool.families.reading import Warn


def check_stray(decoder: Decoder, tensor: str) -> None:
    """Refuse an attention tensor of a multimodal model that lies in no known part: it might be the text decoder's."""
    composite = decoder.composite
    if composite is None or decoder.tower_of(tensor) or not re.search(r"attn|attention", tensor):
        return
    raise UnclaimedTensorError(
        f"{tensor} is an attention tensor in no known part of {composite.model_type}: its text decoder lies in "
        f"{', '.join(composite.places)}, its other parts are {', '.join(composite.towers) or 'none'}; whether it must "
        f"move is not known, and nothing was written",
        tensor=tensor,
        model_type=composite.model_type,
    )


def towers_of(checkpoint: Checkpoint, decoder: Decoder) -> dict[str, int]:
    """How many tensors of each other part of a multimodal model a checkpoint holds."""
    names = {name for shard in checkpoint.shards for name in shard.tensors}
    return dict(Counter(tower for name in sorted(names) if (tower := decoder.tower_of(name))))


def tower_warnings(towers: Mapping[str, int]) -> tuple[Warn, ...]:
    """That the other parts of a multimodal model stay as they are."""
    if not towers:
        return ()
    held = ", ".join(f"{name} ({count} tensors)" for name, count in towers.items())
    said = (
        f"only the text decoder is read and converted; left alone: {held}. If one of them rotates, it keeps the "
        f"layout of its own class"
    )
    return (Warn("tower-left-alone", said),)
