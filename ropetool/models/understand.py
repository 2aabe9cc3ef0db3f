"""What a checkpoint's config means: by the family table, else by what the probe reads from the class itself.

The one seam between the two. For a type of the table nothing heavy is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ropetool.errors import UnknownFamilyError
from ropetool.families.reading import Reading, read_model


def understand(path: Path, config: Mapping[str, Any], *, trust_remote_code: bool = False) -> Reading:
    """The reading of the checkpoint at ``path``, whose config.json holds ``config``.

    A type outside the table is probed on a tiny model of its class. Code that lies in the checkpoint (``auto_map``) is
    run only with ``trust_remote_code``: then a type outside the table is read from it, and for a type of the table it
    is held against the row. Raises as `read_model` does, and `UnknownFamilyError` with the probe's own reason where the
    class cannot be read.
    """
    try:
        reading = read_model(config)
    except UnknownFamilyError as unknown:
        from ropetool.models.fallback import read_by_probe

        return read_by_probe(path, config, unknown, trust_remote_code=trust_remote_code)
    if trust_remote_code and config.get("auto_map"):
        from ropetool.models.fallback import held_against_own_code

        return held_against_own_code(path, config, reading)
    return reading
