"""The page: one HTML file that asks nothing of any network, made of a template, a style, scripts and a report.

Names and values in a report are strangers'. Static parts are escaped as they are written (`elements`); the rest is JSON
that no parser of HTML can take for an end of its element, and scripts put it into texts alone. The policy lets nothing
else be run or fetched: style and scripts are known by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html as escaping
import json
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from ropetool import __version__
from ropetool.views.report import sections
from ropetool.views.report.elements import clean, html

ASSETS = "assets"
# In this order: what a later one needs, an earlier one has.
SCRIPTS = ("dom", "plot", "state", "controls", "bands", "clocks", "pairing", "drag", "encoding", "decay", "measured",
           "search", "start")  # fmt: skip
NOTHING_MEASURED = (
    '<p class="note">No result was given: <code>ropetool verify A B --out verify.json</code> and <code>ropetool '
    "evaluate CKPT --out loss.json</code> make them, and <code>ropetool extend SRC DST --method auto --out search.json"
    "</code> a search; <code>--verify</code>, <code>--evaluate</code> and <code>--search</code> show them here.</p>"
)
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def page(report: Mapping[str, Any]) -> str:
    """The page of a report in its JSON form."""
    style, script = asset("page.css"), _script()
    return _filled(
        asset("page.html"),
        title=escaping.escape(clean(report["checkpoint"])),
        version=__version__,
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=_data(report),
        verdict=html(*sections.verdict(report)),
        figures=_figures(report),
        measured=_measured(report),
        engines=html(*sections.engines(report)),
    )


def asset(name: str) -> str:
    """A file that comes with this package."""
    return (resources.files(__package__) / ASSETS / name).read_text(encoding="utf-8")


def _script() -> str:
    """All scripts as one: a line of strict mode, and no name of theirs outside."""
    parts = "\n".join(asset(f"{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();\n'


def _hash(text: str) -> str:
    """As a policy names what it lets run (CSP level 3, section 2.3.1)."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _data(report: Mapping[str, Any]) -> str:
    """JSON in ASCII whose every ``<``, ``>`` and ``&`` is an escape."""
    text = json.dumps(_plain(report), allow_nan=False, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _plain(value: Any) -> Any:
    """What is drawn: texts without invisible characters, and null for a number that JSON has not."""
    if isinstance(value, Mapping):
        return {clean(str(key)): _plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    if isinstance(value, str):
        return clean(value)
    return None if isinstance(value, float) and value - value != 0 else value


def _figures(report: Mapping[str, Any]) -> str:
    if report["rope"] and report["rope"]["layers"]:
        return asset("figures.html")
    why = report["no_rope"] or "its heads are too wide to be drawn"
    beside = report["against"]
    if beside and beside["rope"]:
        why += f". For those of {beside['checkpoint']}, make the report of that one"
    return f'<p class="note" id="no-figures">No figures of a rotation: {escaping.escape(clean(why))}</p>'


def _measured(report: Mapping[str, Any]) -> str:
    verified, evaluated = report["verify"], report["evaluate"]
    parts: list[str] = []
    if verified:
        parts.append(_filled(asset("verify.html"), verdict=html(*sections.verification(verified))))
        figure = _filled(asset("stretches.html"), table=html(*sections.stretches(verified)))
        parts += [figure] if verified["by_position"] else []
    if evaluated:
        said, table = html(*sections.names(evaluated)), html(*sections.losses(evaluated))
        parts.append(_filled(asset("loss.html"), names=said, table=table))
        grids = _filled(asset("passkeys.html"), grids=html(*sections.passkeys(evaluated)))
        parts += [grids] if evaluated["passkey"] else []
    if report["search"]:
        parts.append(_search(report["search"]))
    return "\n".join(parts) or NOTHING_MEASURED


def _search(found: Mapping[str, Any]) -> str:
    return _filled(
        asset("search.html"),
        verdict=html(*sections.searched(found)),
        bins=html(*sections.search_bins(found)),
        pairs=html(*sections.search_pairs(found)),
        trials=html(*sections.search_trials(found)),
    )


def _filled(template: str, **slots: str) -> str:
    """The template with its slots filled at once, so that nothing filled in is taken for a slot."""
    return _SLOT.sub(lambda slot: slots[slot[1]], template)
