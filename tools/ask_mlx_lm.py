"""Write ropetool/engines/mlx_lm_keys.json: which rope keys each model class of mlx-lm takes, found by building it.

Usage: PYTHONPATH=. PYTHON tools/ask_mlx_lm.py    (a python that has mlx-lm 0.32.2 and transformers 5)

Per model type of the family table whose layers all turn alike, read off the rotary modules of a tiny model:

* ``theta_key``: the key of the base at the top level, ``theta_default`` what the class takes without (null: it raises);
* ``theta``: where it looks for the base, the stronger first: ``TOP`` (that key) or ``BLOCK``;
* ``blocks``: the keys of the block that it scales by, the stronger first; ``names``: those of the type, likewise;
* ``types``: the rope types that it computes, ``plain`` those that it passes over; all others raise (a block that it
  does not scale by is in ``blocks`` where some types raise);
* ``share``: where it looks for the rotary share, ``turns``: how many of the rows turn that turn in transformers, where
  config.json tells no share; ``needs``: keys of the share that it will not load without.

``model_types`` are all that mlx-lm has.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.nn as nn
import numpy as np
import transformers
from mlx_lm import __version__
from mlx_lm.models import rope_utils
from mlx_lm.utils import MODEL_REMAPPING, _get_classes

from ropetool.engines.rows import MLX_LM
from ropetool.families.family import Family
from ropetool.families.reading import read_model
from ropetool.families.table import TABLE
from ropetool.models.tiny import tiny_config, tiny_values

HERE = Path(__file__).resolve().parent.parent
NO_MODELS = {
    "__init__", "activations", "base", "bitlinear_layers", "cache", "gated_delta", "mla", "pipeline", "rope_utils",
    "ssm", "switch_layers",
}  # fmt: skip
BASE, OTHER, FACTOR = 12345.0, 54321.0, 2.0
BLOCKS = ("rope_scaling", "rope_parameters")
SHARES = ("partial_rotary_factor", "rotary_pct")
ROPE_KEYS = ("rope_theta", "rotary_emb_base", "rope_local_base_freq", *SHARES, *BLOCKS)
NUMBERS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 2]}
LISTS = ("original_max_position_embeddings", "short_factor", "long_factor")
TYPES: dict[str, tuple[str, ...]] = {
    "linear": (),
    "dynamic": (),
    "yarn": LISTS[:1],
    "longrope": LISTS,
    "su": LISTS,
    "llama3": (*LISTS[:1], "low_freq_factor", "high_freq_factor"),
    "proportional": ("partial_rotary_factor",),
    "mrope": ("mrope_section",),
}
LINEAR = {"type": "linear", "rope_type": "linear", "factor": FACTOR}


def filling(kind: Any) -> Any:
    """A value for a field that the class requires, and that transformers does not write."""
    return {int: 2, float: 1.0, bool: False, str: "", list: []}.get(kind, None if "Optional" in str(kind) else 2)


class Rotation:
    """The rotary module of the first layer: its width, the frequencies, and what q and k are multiplied by."""

    def __init__(self, module: Any) -> None:
        self.dims = getattr(module, "dims", None) or module.dim
        plain = np.arange(0, self.dims, 2) / self.dims
        if hasattr(module, "_freqs"):
            self.inv_freq = 1 / np.array(module._freqs, dtype=np.float64)
        else:
            self.inv_freq = getattr(module, "scale", 1.0) * module.base**-plain
        self.mscale = float(getattr(module, "mscale", getattr(module, "_scale", 1.0)))

    @property
    def theta(self) -> float:
        """The base of an unscaled rotation."""
        if len(self.inv_freq) < 2:
            return 0.0
        return float((self.inv_freq[1] / self.inv_freq[0]) ** (-self.dims / 2))

    def same(self, other: Rotation | None) -> bool:
        """Whether two rotations are one."""
        return other is not None and self.dims == other.dims and np.allclose(self.inv_freq, other.inv_freq, rtol=1e-6)


def module_of(config: dict[str, Any]) -> Any:
    """The rotary module of the first layer of a model; raises whatever mlx-lm raises."""
    model_class, arguments = _get_classes(config)
    model = model_class(arguments.from_dict(copy.deepcopy(config)))
    rotary = (
        nn.RoPE,
        *(found for name, found in vars(rope_utils).items() if inspect.isclass(found) and "RoPE" in name),
    )
    found = sorted((name, module) for name, module in model.named_modules() if isinstance(module, rotary))
    return found[0][1]


class Asked:
    """One class, with a tiny config without any rope key."""

    def __init__(self, family: Family, config: dict[str, Any]) -> None:
        _, self.arguments = _get_classes(config)
        required = {
            name: parameter.annotation
            for name, parameter in inspect.signature(self.arguments).parameters.items()
            if parameter.default is inspect.Parameter.empty and config.get(name) is None
        }
        heads = config.get("num_attention_heads") or 1
        head_dim = config.get("head_dim") or config.get("hidden_size", 0) // heads
        sizes = {"hidden_size": head_dim * heads, "head_dim": head_dim} if head_dim else {}
        filled = {name: filling(kind) for name, kind in required.items() if name not in ROPE_KEYS}
        lists = {"is_moe_layer": [False, False], "layer_types": ["full_attention"] * 2}
        filled |= {name: value for name, value in lists.items() if name in required}
        bare = {key: value for key, value in config.items() if key not in (*ROPE_KEYS, *family.theta_keys)}
        self.config = bare | filled | sizes
        self.required = [name for name in required if name in SHARES]
        self.nulls = dict.fromkeys([name for name in required if name in BLOCKS]) | dict.fromkeys(self.required, 1.0)
        block = {"rope_parameters": {"rope_type": "default", "rope_theta": BASE}}
        self.rotary_dim = read_model({**self.config, **block, **dict.fromkeys(self.required, 1.0)}).geometry.rotary_dim

    def turns(self, **keys: Any) -> Rotation | None:
        """The rotation with these keys; None where it raises."""
        try:
            return Rotation(module_of({**self.config, **self.nulls, **keys}))
        except BaseException:  # noqa: BLE001  one file leaves the interpreter where a package is missing
            return None


def in_block(theta: float, **more: Any) -> dict[str, Any]:
    """The base in a block of the version-5 style."""
    return {"rope_parameters": {"type": "default", "rope_type": "default", "rope_theta": theta, **more}}


def places(asked: Asked, key: str) -> list[str]:
    """Where the base is looked for, ``key`` being its name at the top level."""

    def takes(theta: float, **keys: Any) -> bool:
        made = asked.turns(**keys)
        return made is not None and bool(np.isclose(made.theta, theta))

    top, block = takes(BASE, **{key: BASE}), takes(OTHER, **in_block(OTHER))
    both = ["BLOCK", "TOP"] if takes(OTHER, **in_block(OTHER), **{key: BASE}) else ["TOP", "BLOCK"]
    return both if top and block else ["TOP"] * top + ["BLOCK"] * block


def scaled_by(asked: Asked, base: dict[str, Any]) -> list[str]:
    """The blocks that a class scales by."""
    plain = asked.turns(**base)
    found = []
    for where in BLOCKS:
        made = asked.turns(**{**base, where: {**LINEAR, "rope_theta": BASE}})
        if made is not None and plain is not None and np.isclose(made.inv_freq[0], plain.inv_freq[0] / FACTOR):
            found.append(where)
    if len(found) == 2:
        twice = {**LINEAR, "factor": 2 * FACTOR, "rope_theta": BASE}
        both = asked.turns(**{**base, found[0]: {**LINEAR, "rope_theta": BASE}, found[1]: twice})
        if both is not None and np.isclose(both.inv_freq[0], 1 / (2 * FACTOR)):
            found.reverse()
    return found


def names(asked: Asked, base: dict[str, Any], where: str) -> list[str]:
    """The keys of the rope type, the stronger first."""

    def scales(**block: str) -> bool:
        made = asked.turns(**{**base, where: {**block, "factor": FACTOR, "rope_theta": BASE}})
        return made is not None and bool(np.isclose(made.inv_freq[0], 1 / FACTOR))

    alone = [name for name in ("rope_type", "type") if scales(**{name: "linear"})]
    if len(alone) == 2 and scales(type="linear", rope_type="default"):
        alone.reverse()
    return alone


def types(asked: Asked, base: dict[str, Any], where: str) -> tuple[list[str], list[str]]:
    """The rope types that are computed, and those that are passed over."""
    plain = asked.turns(**base)
    if plain is None:
        return [], []
    original = {"original_max_position_embeddings": 64}
    lists = dict.fromkeys(("short_factor", "long_factor"), [FACTOR] * (plain.dims // 2))
    computed, passed_over = [], []
    for name, keys in TYPES.items():
        block = {key: value for key, value in {**original, **lists, **NUMBERS}.items() if key in keys}
        said = {"type": name, "rope_type": name, "factor": FACTOR, "rope_theta": BASE, **block}
        config = {**asked.config, **asked.nulls, **base, where: said, **original}
        try:
            module = module_of(config)
        except BaseException:  # noqa: BLE001  as above
            continue
        made = Rotation(module)
        dynamic = type(module) is rope_utils.DynamicNTKScalingRoPE
        (passed_over if plain.same(made) and made.mscale == 1 and not dynamic else computed).append(name)
    return computed, passed_over


def row(family: Family, asked: Asked) -> dict[str, Any] | None:
    """What one class takes; None where it cannot be asked."""
    key = next((k for k in (*family.theta_keys, "rope_theta") if "TOP" in places(asked, k)), "rope_theta")
    where, default = places(asked, key), asked.turns()
    if not where and default is None:
        return None
    base = {} if not where else {key: BASE} if "TOP" in where else in_block(BASE)
    plain = asked.turns(**base)
    blocks = scaled_by(asked, base)
    computed, passed_over = types(asked, base, blocks[0] if blocks else BLOCKS[0])
    if not blocks and len(computed) + len(passed_over) < len(TYPES):
        blocks = [BLOCKS[0]]
    share = family.keys.share or "partial_rotary_factor"
    whole = asked.turns(**base, **{share: 1.0})
    halves = {"TOP": {share: 0.5}, "BLOCK": {share: None, **in_block(BASE, partial_rotary_factor=0.5)}}
    widths = {place: made.dims for place, keys in halves.items() if (made := asked.turns(**{**base, **keys}))}
    return {
        "theta_key": key,
        "theta_default": None if default is None else round(default.theta, 3),
        "theta": where,
        "blocks": blocks,
        "names": names(asked, base, blocks[0]) if blocks and computed else [],
        "types": computed,
        "plain": passed_over,
        "share": [place for place, width in widths.items() if whole and 2 * width == whole.dims],
        "turns": plain.dims / asked.rotary_dim if plain else None,
        "needs": asked.required,
    }


def rows() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every type of the table that mlx-lm has, and that can be asked."""
    for name in sorted(MLX_LM["rows"].keys() & TABLE.keys()):
        family = TABLE[name]
        if family.kinds:
            continue
        config = json.loads(tiny_config(name, tiny_values(name)).to_json_string(use_diff=False))
        try:
            found = row(family, Asked(family, config))
        except (Exception, SystemExit) as error:  # noqa: BLE001  no row then; one file leaves where a package is missing
            sys.stderr.write(f"{name}: {error}\n")
            continue
        sys.stderr.write(f"{name}: {found}\n")
        if found is not None:
            yield name, found


def main() -> None:
    """Ask every class and write the rows."""
    transformers.logging.set_verbosity(100)
    lines = [f'  "{name}": {json.dumps(found)}' for name, found in rows()]
    renamed = {*MODEL_REMAPPING, *(file.stem for file in Path(rope_utils.__file__).parent.glob("*.py"))}
    head = f' "version": "{__version__}",\n "model_types": {json.dumps(sorted(renamed - NO_MODELS))},\n "rows": {{\n'
    text = "{\n" + head + ",\n".join(lines) + "\n }\n}\n"
    (HERE / "ropetool" / "engines" / "mlx_lm_keys.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
