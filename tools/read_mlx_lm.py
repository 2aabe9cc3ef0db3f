"""Write ropetool/engines/mlx_lm.json: how each model class of mlx-lm rotates, read from its source without running it.

Usage: python tools/read_mlx_lm.py SITE_PACKAGES/mlx_lm    (0.32.2; `pip install --no-deps mlx-lm==0.32.2` is enough)

Per model type: ``key`` is the config key that decides (true: interleaved) with its ``default``, or ``pairing`` is a
constant of the class; ``flat_keys`` tells that the class reads the version-4 keys (rope_theta, rope_scaling) only. A
file whose rotary calls disagree, or give no literal and no config key, gets no row: it is not known.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
# Callables that make a rotation, with the place of `traditional` among their positional arguments.
MAKERS = {"RoPE": 1, "initialize_rope": 2}
# models/rope_utils.py: SuScaledRoPE passes traditional=False whatever the config says.
HALF_ALWAYS = ("SuScaledRoPE",)


def rotary_calls(tree: ast.Module) -> Iterator[ast.expr | None]:
    """The `traditional` argument of every call that makes a rotation; None where it is left to its default, False."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in MAKERS:
            named = [word.value for word in node.keywords if word.arg == "traditional"]
            place = MAKERS[name]
            yield named[0] if named else node.args[place] if len(node.args) > place else None


def fields(tree: ast.Module) -> dict[str, Any]:
    """The fields of the config classes, with the literal default of each; ``...`` where it has none."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for entry in node.body:
                if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
                    literal = isinstance(entry.value, ast.Constant)
                    found[entry.target.id] = entry.value.value if literal else ...
    return found


def decided_by(argument: ast.expr | None, known: dict[str, Any]) -> tuple[str, Any] | None:
    """(key, default) for a config key, ("", value) for a constant; None where neither can be read."""
    if argument is None:
        return "", False
    if isinstance(argument, ast.Constant) and isinstance(argument.value, bool):
        return "", argument.value
    if isinstance(argument, ast.Attribute) and isinstance(known.get(argument.attr), bool):
        return argument.attr, known[argument.attr]
    return None


def row(source: str) -> dict[str, Any] | None:
    """The row of one model file; None if it makes no rotation or cannot be read."""
    tree = ast.parse(source)
    known = fields(tree)
    decisions = {decided_by(argument, known) for argument in rotary_calls(tree)}
    own_rotation = any("mx.fast.rope" in ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call))
    if not decisions and any(name in source for name in HALF_ALWAYS) and not own_rotation:
        decisions = {("", False)}
    if len(decisions) != 1 or None in decisions:
        return None
    ((key, value),) = decisions  # type: ignore[misc]  # None was excluded
    pairing = "interleaved" if value else "half"
    flat = "rope_parameters" not in source
    return ({"key": key, "default": pairing} if key else {"pairing": pairing}) | {"flat_keys": flat}


def main(package: Path) -> None:
    """Read every model file, apply mlx_lm's own renaming of model types, and write the rows."""
    rows = {file.stem: found for file in sorted((package / "models").glob("*.py")) if (found := row(file.read_text()))}
    tree = ast.parse((package / "utils.py").read_text())
    (renaming,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MODEL_REMAPPING"
    )
    rows |= {model_type: rows[name] for model_type, name in renaming.items() if name in rows}
    version = ast.unparse(ast.parse((package / "_version.py").read_text()).body[-1]).split("'")[1]
    text = json.dumps({"version": version, "rows": dict(sorted(rows.items()))}, indent=1)
    (HERE / "ropetool" / "engines" / "mlx_lm.json").write_text(text + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(rows)} model types of mlx-lm {version}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
