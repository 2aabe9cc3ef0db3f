"""``ropetool families``."""

from __future__ import annotations

from typing import Annotated

import typer

from ropetool.cli.options import Json, Quiet
from ropetool.cli.sink import Sink

ModelType = Annotated[str | None, typer.Argument(metavar="MODEL_TYPE", help="One type; by default all.")]


def families(model_type: ModelType = None, json: Json = False, quiet: Quiet = False) -> None:
    """List the model types that ropetool knows: their layout, the tensors that move, and the source of each row.

    Example: ropetool families qwen3
    """
    from ropetool.families.decoder import family_of
    from ropetool.families.table import TABLE

    rows = tuple(TABLE.values()) if model_type is None else (family_of({"model_type": model_type}),)
    Sink(json, quiet).result("families", rows)
