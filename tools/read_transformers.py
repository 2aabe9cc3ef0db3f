"""Write ropetool/engines/transformers4.json or transformers5.json: how each class takes its rope keys, by asking it.

Usage: PYTHONPATH=. PYTHON tools/read_transformers.py    (a python that has transformers 4.57.6, or one that has 5.24.0)

Per model type of the family table that this version has, each read off the frequencies that its rotary module makes:

* ``theta``: the base that the class uses where config.json has none (version 4);
* ``names``: the keys of the rope type in a block, the stronger first; empty where the class passes over any type, null
  where it takes none, or has no rotary module that can be asked; ``unnamed``: the type of a block without either, null
  where that raises;
* ``spelled``: other names of rope types that the class takes, and what for;
* ``fails``: rope types that fail where config.json has no head_dim;
* ``block``: the class's own block, ``original`` its own top-level original_max_position_embeddings.

``composites`` are the multimodal types that this version has.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from ropetool.families.decoder import COMPOSITES
from ropetool.families.family import Family
from ropetool.families.table import TABLE

HERE = Path(__file__).resolve().parent.parent
MAJOR = int(transformers.__version__.split(".")[0])
FACTOR = 2.0
OTHER_BASE = 12345.0
OTHER_PARTS = ("Vision", "Audio", "Encoder", "DepthDecoder")
SPELLINGS = {"su": "longrope", "yarn": "longrope", "mrope": "default"}


def rotary_classes(kind: Any) -> Iterator[Any]:
    """The classes that make a table of frequencies from a config, in the modeling file of the type's model."""
    own = kind.__module__.replace(".configuration_", ".modeling_")
    if importlib.util.find_spec(own) is None:  # the type takes another's classes
        own = getattr(transformers, str(MODEL_MAPPING_NAMES[kind.model_type])).__module__
    modeling = importlib.import_module(own)
    for name, found in vars(modeling).items():
        if "Rotary" not in name or not isinstance(found, type) or any(part in name for part in OTHER_PARTS):
            continue
        if "config" in inspect.signature(found).parameters:
            yield found


class Asked:
    """A rotary class with its config class: what they make of a block."""

    def __init__(self, rotary: Any, kind: Any) -> None:
        self.rotary, self.kind = rotary, kind

    def table(self, block: dict[str, Any] | None, **keys: Any) -> list[float] | None:
        """The frequencies; None where the classes raise."""
        try:
            module = self.rotary(config=self.kind(**({} if block is None else {"rope_scaling": dict(block)}), **keys))
            found = getattr(module, "inv_freq", None)
            return (module.full_attention_inv_freq if found is None else found).tolist()
        except Exception:  # noqa: BLE001  whatever it raises, it does not take this block
            return None

    def scales(self, **names: str) -> bool:
        """Whether a linear block with the type under these names is taken for one."""
        plain, found = self.table(None), self.table({**names, "factor": FACTOR})
        return plain is not None and found is not None and found[0] == plain[0] / FACTOR

    def names(self) -> tuple[list[str] | None, str | None]:
        """The keys of the rope type, the stronger first, and the type of a block without either."""
        plain = self.table({"type": "default", "rope_type": "default"})
        alone = [name for name in ("rope_type", "type") if self.scales(**{name: "linear"})]
        if len(alone) == 2 and self.scales(type="linear", rope_type="default"):
            alone.reverse()
        linear = self.table({"type": "linear", "rope_type": "linear", "factor": FACTOR})
        passed_over = plain is not None and plain == linear
        unnamed = self.table({"factor": FACTOR})
        return alone if alone or passed_over else None, "default" if unnamed and unnamed == plain else None

    def blocks(self) -> dict[str, dict[str, Any]]:
        """A block of each scaled type that fits the class."""
        lists = [FACTOR] * len(self.table(None) or ())
        original, factor = {"original_max_position_embeddings": 64}, {"factor": FACTOR}
        return {
            "linear": factor,
            "dynamic": factor,
            "yarn": factor | original,
            "longrope": factor | original | {"short_factor": lists, "long_factor": lists},
            "llama3": factor | original | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
        }

    def spelled(self) -> dict[str, str]:
        """What the older names of rope types are taken for."""
        found = {}
        for name, means in SPELLINGS.items():
            block = self.blocks().get(means, {})
            made, meant = (self.table({"type": n, "rope_type": n, **block}) for n in (name, means))
            found |= {name: means} if made is not None and made == meant else {}
        return found

    def fails(self) -> list[str]:
        """The rope types that raise without a head_dim in the config, and not with it."""
        config = self.kind().to_dict()
        if config.get("head_dim") or not config.get("hidden_size") or not config.get("num_attention_heads"):
            return []
        head_dim = config["hidden_size"] // config["num_attention_heads"]
        blocks = {name: {"type": name, "rope_type": name, **block} for name, block in self.blocks().items()}
        return [
            name
            for name, block in blocks.items()
            if self.table(block) is None and self.table(block, head_dim=head_dim) is not None
        ]


def keeps_its_base(kind: Any, key: str) -> bool:
    """Whether a base at the top level of config.json is lost on the class where there is no block."""
    return kind(**{key: OTHER_BASE}).rope_parameters.get("rope_theta") != OTHER_BASE


def row(family: Family, kind: Any) -> dict[str, Any]:
    """What one class takes."""
    config = kind().to_dict()
    asked = [a for a in (Asked(c, kind) for c in rotary_classes(kind)) if a.table(None) is not None]
    answers = [(a.names(), a.spelled(), a.fails()) for a in asked] or [((None, None), {}, [])]
    if any(answer != answers[0] for answer in answers):
        raise SystemExit(f"the rotary classes of {family.model_type} differ: {answers}")
    (names, unnamed), spelled, fails = answers[0]
    spelled = {} if names == [] else spelled
    theta_keys = (*(first.theta_key for first in family.kinds[:1]), *family.theta_keys, "rope_theta")
    theta = next((config[key] for key in theta_keys if key in config), None)
    own = config.get("rope_scaling" if MAJOR == 4 else "rope_parameters")
    flat = isinstance(own, dict) and not any(isinstance(value, dict) for value in own.values())
    keeps_base = flat and MAJOR == 5 and keeps_its_base(kind, (*family.theta_keys, "rope_theta")[0])
    if flat and MAJOR == 5 and not keeps_base:
        own.pop("rope_theta", None)
    own = own if flat and (keeps_base or own.get("rope_type", "default") != "default") else None
    found = {
        "theta": theta if MAJOR == 4 and isinstance(theta, (int, float)) else None,
        "names": names,
        "unnamed": unnamed,
        "spelled": spelled,
        "fails": fails,
        "block": own,
        "original": config.get("original_max_position_embeddings"),
    }
    return {key: value for key, value in found.items() if value or key in ("names", "unnamed")}


def main() -> None:
    """Ask every class and write the rows."""
    transformers.logging.set_verbosity(100)
    rows = {name: row(family, CONFIG_MAPPING[name]) for name, family in sorted(TABLE.items()) if name in CONFIG_MAPPING}
    composites = sorted(name for name in COMPOSITES if name in CONFIG_MAPPING)
    lines = [f'  "{name}": {json.dumps(found)}' for name, found in rows.items()]
    head = f' "version": "{transformers.__version__}",\n "composites": {json.dumps(composites)},\n "rows": '
    target = HERE / "ropetool" / "engines" / f"transformers{MAJOR}.json"
    target.write_text("{\n" + head + "{\n" + ",\n".join(lines) + "\n }\n}\n", encoding="utf-8")
    sys.stdout.write(f"{len(rows)} model types and {len(composites)} composites of {transformers.__version__}\n")


if __name__ == "__main__":
    main()
