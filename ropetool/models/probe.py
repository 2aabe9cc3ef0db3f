"""The probe: read from a model's own code which rows turn together, where, and how fast.

Nothing is taken from a name. Each row of each projection is followed into q and k (`capture`), at five positions.
At position 0 RoPE is the identity, so the row's own slot shows; at position p a rotated row also shows in its
partner's slot, and the two values are (cos, sin) of the angle. What does not fit that picture is reported as unread,
with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ropetool.models import analysis, tiny
from ropetool.models.report import (
    AttentionReport,
    NormReport,
    Part,
    ProbeReport,
    ProjectionReport,
    Role,
    merged,
)

__all__ = [
    "AttentionReport",
    "NormReport",
    "Part",
    "ProbeReport",
    "ProjectionReport",
    "Role",
    "merged",
    "probe_like",
    "probe_model",
    "probe_model_type",
]


def probe_model(
    model: Any, inputs: Callable[[int], Mapping[str, Any]] | None = None, merge: bool = True
) -> ProbeReport:
    """Probe a built model. It should be tiny: the batch has one sample for each row of each attention projection.

    Args:
        model: a transformers model (or one with custom code), on any device; its weights do not matter, and it
            is left as it was.
        inputs: the forward's arguments for a batch size; token ids of a text model if it is None.
        merge: whether layers that were read the same share one report.

    Returns:
        the report; what could not be read carries the reason in ``unread``.
    """
    attentions, unread = analysis.read(model, inputs)
    config = getattr(model, "config", None)
    return ProbeReport(
        model_type=str(getattr(config, "model_type", "")),
        class_name=type(model).__name__,
        attentions=merged(attentions) if merge else tuple(attentions),
        unread=unread,
    )


def probe_like(config: Any, model_class: Any = None) -> ProbeReport:
    """Probe a tiny random model of a checkpoint's own config: its switches are kept, its sizes are shrunk.

    ``model_class`` is the class of the checkpoint's custom code; loading that code, and the user's consent to it, is
    the caller's business.
    """
    try:
        built = tiny.build_like(config, model_class)
    except tiny.CannotBuild as error:
        return ProbeReport(str(getattr(config, "model_type", "")), "", unread=str(error))
    return probe_model(built.model, built.inputs)


def probe_model_type(model_type: str, **overrides: Any) -> ProbeReport:
    """Probe a tiny random model of ``model_type``; ``overrides`` are config values. Cached.

    The cache holds for one installed transformers, whose version is part of the key.
    """
    import transformers

    return _probe_model_type(model_type, transformers.__version__, _frozen(overrides))


@cache
def _probe_model_type(model_type: str, _version: str, overrides: Any) -> ProbeReport:
    try:
        built = tiny.build(model_type, **_thawed(overrides))
    except tiny.CannotBuild as error:
        return ProbeReport(model_type, "", unread=str(error))
    return replace(probe_model(built.model, built.inputs), model_type=model_type)


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ("map", tuple((k, _frozen(v)) for k, v in sorted(value.items())))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(_frozen(v) for v in value))
    return value


def _thawed(value: Any) -> Any:
    if isinstance(value, tuple):
        kind, items = value
        return {k: _thawed(v) for k, v in items} if kind == "map" else [_thawed(v) for v in items]
    return value
