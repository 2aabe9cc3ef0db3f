"""A config with another extension: the new rope block where its class reads it, every length, and what undoes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropetool import __version__
from ropetool.checkpoint.config import MARKER, Style, earlier_extension, marker, with_marker
from ropetool.checkpoint.styles import says_flat, with_nested_blocks, with_rope_block
from ropetool.errors import MethodError
from ropetool.families.decoder import text_part, with_text
from ropetool.families.lengths import Change, other_length_keys
from ropetool.families.methods import Method
from ropetool.families.native import Native
from ropetool.families.reading import OWN_BLOCK, Reading, Rotation, Warn
from ropetool.families.recipes import BASE, ORIGINAL, RECIPES, Planned

SHARE = "partial_rotary_factor"
EXTENSION = "extension"


@dataclass(frozen=True)
class New:
    """The extension as it will be written: factor, length in tokens, the block of the scaled layers.

    ``settings`` are the numbers of the method that were set, by a person or for the class.
    """

    method: Method
    factor: float
    length: int
    block: Planned
    style: Style
    settings: Mapping[str, Any]

    @property
    def configured_length(self) -> int | None:
        """What max_position_embeddings becomes; None where the method takes the trained length from it."""
        return self.length if RECIPES[self.method].raises_length else None


def rewritten_text(
    text: Mapping[str, Any], reading: Reading, native: Native, new: New
) -> tuple[dict[str, Any], tuple[Warn, ...]]:
    """The text decoder's part of the config, extended; and a warning where a style cannot say all of it."""
    family, recipe = reading.family, RECIPES[new.method]
    written, warnings = _nested(text, reading, new) if family.kinds else (_flat(text, reading, new), ())
    length = new.configured_length or native.length
    written[family.keys.length] = length
    if ORIGINAL in text or recipe.tells_original_twice:
        written[ORIGINAL] = native.length
    written.update(dict.fromkeys(other_length_keys(text, reading.length), length))
    if text.get(family.theta_list):
        written[family.theta_list] = [theta and new.block.theta for theta in text[family.theta_list]]
    return written, warnings


def _flat(text: Mapping[str, Any], reading: Reading, new: New) -> dict[str, Any]:
    family, rotation = reading.family, reading.rotations[0]
    # A share that the class ignores must go: the scaling functions of transformers would read it.
    share = rotation.block.values.get(SHARE) if family.keys.share else None
    kept = {key: value for key, value in text.items() if family.keys.share or key != SHARE}
    block = {key: value for key, value in new.block.values.items() if key != SHARE or family.keys.share_in_block}
    if family.keys.scales_by_share:
        block[SHARE] = rotation.geometry.rotary_dim / rotation.geometry.head_dim
    ratio = new.length / block[ORIGINAL] if "long_factor" in block else 0
    if "long_factor" in family.only_keys and block.get("factor") == ratio:
        del block["factor"]  # its class computes it from the two lengths
    return with_rope_block(
        kept, block, new.block.theta, new.style, share,
        theta_key=family.theta_keys[0], share_key=family.keys.share or SHARE,
        null_is_default=OWN_BLOCK.keys().isdisjoint(family.defaults), only_keys=family.only_keys,
    )  # fmt: skip


def _nested(text: Mapping[str, Any], reading: Reading, new: New) -> tuple[dict[str, Any], tuple[Warn, ...]]:
    family = reading.family
    scaled, *others = reading.rotations
    blocks = {scaled.layers: {**new.block.values, "rope_theta": new.block.theta}}
    blocks |= {rotation.layers: _as_it_is(rotation) for rotation in others}
    theta_keys = {kind.layer_type: kind.theta_key for kind in family.kinds}
    if new.style is Style.V4:
        lost = {kind.layer_type: kind.default["rope_theta"] for kind in family.kinds if kind.theta_lost}
        theta_keys |= {layers: "" for layers, theta in lost.items() if blocks[layers]["rope_theta"] != theta}
    by_flat = frozenset(kind.layer_type for kind in family.kinds if kind.scaled_by_flat)
    warnings: tuple[Warn, ...] = ()
    if new.style is not Style.V5 and not says_flat(blocks, theta_keys, by_flat):
        said = (
            f"{reading.model_type} has a block for each kind of layer ({', '.join(blocks)}), and the keys of version 4 "
            f"cannot say that {scaled.layers} layers alone are scaled, and by what base each kind turns"
        )
        if new.style is Style.V4:
            raise MethodError(f"{said}; write it by --style v5", model_type=reading.model_type, style=Style.V4.value)
        warnings = (Warn("v5-only", f"{said}: only rope_parameters was written, which transformers 5 reads"),)
    return with_nested_blocks(text, blocks, new.style, theta_keys, by_flat), warnings


def _as_it_is(rotation: Rotation) -> dict[str, Any]:
    values = {key: value for key, value in rotation.block.values.items() if key != "rope_theta"}
    return {"rope_type": rotation.block.rope_type, **values, "rope_theta": rotation.scaling.theta}


def marked(
    config: Mapping[str, Any], text: Mapping[str, Any], written: Mapping[str, Any], reading: Reading,
    native: Native, new: New, side_files: tuple[Change, ...],
) -> dict[str, Any]:  # fmt: skip
    """The whole config around the text part ``written``, with a marker that holds what an undo needs.

    The undo of an earlier extension stays what it was: it leads back to the config before the first.
    """
    earlier = earlier_extension(config)
    before, added = dict(earlier.get("undo") or {}), list(earlier.get("added") or ())
    touched = [key for key in {**text, **written} if key not in text or key not in written or text[key] != written[key]]
    for key in touched:
        if key in (MARKER, *before, *added):
            continue
        if key in text:
            before[key] = text[key]
        else:
            added.append(key)
    files = {file: dict(keys) for file, keys in (earlier.get("files") or {}).items()}
    for change in side_files:
        files.setdefault(change.file, {}).setdefault(change.key, change.old)
    extension = {
        "method": new.method.value, "factor": new.factor, "original_length": native.length, "length": new.length,
        "original_theta": native.theta, "settings": _settings(earlier, new), "undo": before, "added": added,
    } | ({"files": files} if files else {})  # fmt: skip
    whole = with_text(config, reading.decoder.path, written)
    return with_marker(whole, version=__version__, **{EXTENSION: extension})


def _settings(earlier: Mapping[str, Any], new: New) -> dict[str, Any]:
    """What was set, now or in an earlier extension by the same method, as far as it holds."""
    before = earlier.get("settings") or {} if earlier.get("method") == new.method.value else {}
    kept = {key: value for key, value in before.items() if new.block.values.get(key) == value}
    return {key: value for key, value in {**kept, **new.settings}.items() if key == BASE or key in new.block.values}


def restored(config: Mapping[str, Any], reading: Reading) -> dict[str, Any]:
    """The config before every extension, by what the marker kept; raises `MethodError` where it kept nothing."""
    earlier = earlier_extension(config)
    if not earlier:
        raise MethodError(
            "this checkpoint was not extended by ropetool: its marker keeps no block to give back",
            model_type=reading.model_type,
        )
    undo, added = earlier.get("undo") or {}, earlier.get("added") or ()
    text = text_part(config, reading.decoder.path)
    back = {key: undo.get(key, value) for key, value in text.items() if key not in added}
    back |= {key: value for key, value in undo.items() if key not in back}
    whole = with_text(config, reading.decoder.path, back)
    kept = {key: value for key, value in marker(config).items() if key != EXTENSION}
    bare = {key: value for key, value in whole.items() if key != MARKER}
    return bare | ({MARKER: kept} if kept.keys() - {"version", "hub"} else {})


def changes_of(
    old: Mapping[str, Any], new: Mapping[str, Any], file: str, path: tuple[str, ...] = ()
) -> tuple[Change, ...]:
    """Every key whose value differs, with both values; ``path`` leads to the part of the file that has them."""
    prefix = "".join(f"{key}." for key in path)
    keys = [key for key in {**old, **new} if key != MARKER and old.get(key) != new.get(key)]
    return tuple(Change(file, prefix + key, old.get(key), new.get(key)) for key in keys)
