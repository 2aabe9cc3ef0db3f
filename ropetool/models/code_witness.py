"""The model's own class as a witness: a tiny random model of the checkpoint's config is asked what it rotates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ropetool.errors import RopetoolError
from ropetool.families.family import Moved, Site
from ropetool.families.geometry import Geometry
from ropetool.families.reading import Evidence, Reading, read_model
from ropetool.models import catalog, own_code, probe, tiny
from ropetool.models.own_code import OwnClass
from ropetool.models.report import AttentionReport, ProbeReport
from ropetool.models.rotations import Unreadable
from ropetool.rope.pairing import Head, Pairing, Span, index_map, rows_of

UNKNOWN, MIXED = "unknown", "mixed"


def code_evidence(
    path: Path, config: Mapping[str, Any], reading: Reading, *, trust_remote_code: bool = False
) -> Evidence:
    """What the class of the checkpoint at ``path`` does with a tiny model of its ``config``.

    ``figures`` has the class, the version, and by projection which rows of a head turn; ``differs`` where that is not
    what the family table says. Code in the checkpoint is run only with ``trust_remote_code``. Where the class cannot be
    built or read, the witness says unknown, with the reason.
    """
    try:
        with own_code.subdued():
            subject = _subject(path, config, reading, trust_remote_code=trust_remote_code)
            built = tiny.build_like(subject.config, subject.kind)
            report = probe.probe_model(built.model, built.inputs)
            return _evidence(reading, _row(reading, built.config), report)
    except (Unreadable, tiny.CannotBuild) as reason:
        return Evidence("code", UNKNOWN, f"the class cannot be read by the probe: {reason}")


def _subject(path: Path, config: Mapping[str, Any], reading: Reading, *, trust_remote_code: bool) -> OwnClass:
    """The class, and its config object; of a composite those of the text decoder."""
    if not reading.decoder.path:
        return own_code.load(path, config.get("auto_map") or {}, trust_remote_code=trust_remote_code)
    text = own_code.config_of(path, trust_remote_code=trust_remote_code).get_text_config()
    kind = catalog.class_of(text)
    if kind is None:
        raise Unreadable(f"transformers has no class for its text decoder, {text.model_type}")
    return OwnClass(kind.__name__, text, kind)


def _row(reading: Reading, config: Any) -> Reading:
    """What the table says of the tiny model itself."""
    try:
        return read_model({**config.to_dict(), "model_type": config.model_type})
    except RopetoolError as error:
        raise Unreadable(f"the config of its tiny model, {reading.model_type}, is refused: {error.message}") from error


def _evidence(reading: Reading, row: Reading, report: ProbeReport) -> Evidence:
    if report.unread:
        raise Unreadable(report.unread)
    turning = [a for a in report.attentions if a.pairing is not None]
    rotated = [a for a in turning if _site(row, a)[0].module == row.family.attention]
    unread = next((a for a in report.attentions if a.unread), None)
    if not rotated:
        raise Unreadable(unread.unread if unread and unread.unread else "no row of its q or k turns")
    pairings = {str(a.pairing.value) for a in rotated if a.pairing is not None}
    says = pairings.pop() if len(pairings) == 1 else MIXED
    rows = dict(line for attention in rotated for line in _spans(attention))
    known = not (reading.family.probed or row.refusal)  # what moves in a type that is refused is not told by its row
    differs = sorted({said for a in rotated for said in _differences(row, a)}) if known else []
    layers = sorted({layer for attention in rotated for layer in attention.layers})
    turned = "; ".join(f"{name}: {said}" for name, said in rows.items())
    detail = f"a tiny {report.class_name} of this config turns {says} pairs ({turned})"
    detail += f", but the family table says otherwise of {', '.join(differs)}" if differs else ""
    figures = {
        "class": report.class_name, "transformers": _version(), "rows": rows, "layers": layers, "differs": differs,
    }  # fmt: skip
    return Evidence("code", says, detail, figures=figures)


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def _site(row: Reading, attention: AttentionReport) -> tuple[Site, Geometry]:
    """The row's site that a probed module is: the main one, unless another one's name fits."""
    sites = row.family.sites
    geometries = (row.geometry, *(other.geometry for other in row.others))
    for site, geometry in list(zip(sites, geometries, strict=True))[1:]:
        if f".{attention.paths[0]}".endswith(f".{site.module}") or attention.kind == site.module.rpartition(".")[2]:
            return site, geometry
    known = attention.layers and attention.layers[0] >= 0
    return sites[0], row.geometry_of_layer(f"layers.{attention.layers[0]}") if known else row.geometry


def _spans(attention: AttentionReport) -> Iterator[tuple[str, str]]:
    """By projection: how many rows of which heads turn."""
    for projection in attention.projections:
        heads = [part for part in projection.parts if part.rope_dim]
        if heads:
            head, count = heads[0], len(heads)
            of = f"each of {count} heads" if count > 1 else "its one head"
            yield projection.name, f"{head.rope_dim} of {head.rows} rows of {of}"


def _differences(row: Reading, attention: AttentionReport) -> Iterator[str]:
    """The projections whose rows move otherwise in the class than in the row."""
    site, geometry = _site(row, attention)
    probed = {projection.name: projection.spans for projection in attention.projections}
    for moved in site.moves:
        parts = moved.loaded_as or (moved.module,)
        if moved.feeds and set(parts) <= probed.keys():
            spans = tuple(span for part in parts for span in probed.pop(part))
            if not _alike(spans, geometry, moved):
                yield moved.module
    yield from (name for name, spans in probed.items() if any(isinstance(span, Head) for span in spans))


def _alike(spans: tuple[Span, ...], geometry: Geometry, moved: Moved) -> bool:
    expected = geometry.spans(moved.rows)
    return rows_of(spans) == rows_of(expected) and _moves(spans) == _moves(expected)


def _moves(spans: tuple[Span, ...]) -> list[int]:
    moves: list[int] = index_map(spans, Pairing.HALF, Pairing.INTERLEAVED).tolist()
    return moves
