"""``ropetool families``."""

from __future__ import annotations

from typing import Annotated

import typer

from ropetool.cli.options import Json, Quiet
from ropetool.cli.sink import Sink

ModelType = Annotated[str | None, typer.Argument(metavar="MODEL_TYPE", help="One type; by default all.")]


def families(model_type: ModelType = None, json: Json = False, quiet: Quiet = False) -> None:
    """List the model types that ropetool knows: their layout, the tensors that move, and the source of each row.

    A multimodal type is listed with the type of its text decoder, whose row is the one that counts.

    Example: ropetool families qwen3
    """
    from ropetool.families.decoder import COMPOSITES, rows_of
    from ropetool.families.table import TABLE

    rows, composites = (TABLE.values(), COMPOSITES.values()) if model_type is None else rows_of(model_type)
    Sink(json, quiet).result("families", tuple(rows), composites=tuple(composites))
