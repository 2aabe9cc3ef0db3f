"""The house: ranks, sizes and heavy imports, each with a violation planted to see the check fail."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "ropetool"
VERBS = ("detect", "convert", "extend", "verify", "evaluate", "diff", "doctor", "served", "report", "search")
# Public as they are, and no verb: the reference encodings, which answer with torch where they are given tensors.
PUBLIC = (*VERBS, "encodings")
RANKS: tuple[tuple[str, ...], ...] = (
    ("errors",), ("rope", "checkpoint"), ("families",), ("engines",), ("models",), PUBLIC, ("views",), ("cli",),
)  # fmt: skip
RANK = {name: rank for rank, names in enumerate(RANKS) for name in names}
# The two verbs that run models: they hold tensors, so they import torch, inside the functions that do.
VERBS_WITH_TORCH = ("verify", "evaluate")
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60


def modules(package: Path) -> Iterator[tuple[str, ast.Module, str]]:
    """Every module as (dotted name below the package, tree, source)."""
    for file in sorted(package.rglob("*.py")):
        if file.name not in ("__init__.py", "__main__.py"):
            source = file.read_text(encoding="utf-8")
            yield ".".join(file.relative_to(package).with_suffix("").parts), ast.parse(source), source


def imports(tree: ast.Module, package: Path) -> Iterator[str]:
    """What a module imports, anywhere in it: dotted names, ``from a import b`` as a.b where that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                path = package.parent.joinpath(*inner.split("."))
                is_module = path.with_suffix(".py").exists() or path.is_dir()
                yield inner if is_module else str(node.module)


def rank_faults(package: Path) -> list[str]:
    """Imports that do not go down the ranks."""
    faults = []
    for name, tree, _ in modules(package):
        here = name.split(".")[0]
        if here not in RANK:
            faults.append(f"{name} has no rank")
            continue
        for target in imports(tree, package):
            parts = target.split(".")
            if parts[0] != "ropetool" or len(parts) == 1:
                continue
            there, same_folder = parts[1], parts[1] == here and "." in name
            if there not in RANK or not (same_folder or RANK[there] < RANK[here]):
                faults.append(f"{name} imports {target}")
    return faults


def cycle_faults(package: Path) -> list[str]:
    """Modules that import themselves through others."""
    graph = {
        name: {t.removeprefix("ropetool.") for t in imports(tree, package) if t.startswith("ropetool.")}
        for name, tree, _ in modules(package)
    }
    while True:  # take away whatever imports nothing that is left; a cycle never goes
        free = {name for name, targets in graph.items() if not targets & (graph.keys() - {name})}
        if not free:
            return sorted(graph)
        graph = {name: targets - free for name, targets in graph.items() if name not in free}


# Libraries that one module alone imports, inside its functions: by its absence nothing else is slower or fails.
SOLE_IMPORTER = {"huggingface_hub": "checkpoint.hub", "httpx2": "engines.client"}
# Whoever opens a shard for its data asks `Shard.data`, which says no where only the header is here.
DATA_BY_PATH = re.compile(
    r"\bshard\w*\.path\.(open|read)|(copy_file|link|safe_open|read_tensor|memmap)\(shard\w*\.path\b"
)


def hub_faults(package: Path) -> list[str]:
    """Imports of a library of one module anywhere but inside its functions, and shards read past `Shard.data`."""
    faults = []
    for name, tree, source in modules(package):
        inside = {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.FunctionDef)
            or (isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING")
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for library in {n.split(".")[0] for n in names} & SOLE_IMPORTER.keys():
                if name != SOLE_IMPORTER[library] or id(node) not in inside:
                    faults.append(f"{name}:{node.lineno} imports {library}")
        faults += [f"{name} reads a shard by {found[0]}" for found in DATA_BY_PATH.finditer(source)]
    return faults


def torch_faults(package: Path) -> list[str]:
    """Imports of torch or transformers outside models/, other than inside functions of the verbs that run models."""
    faults = []
    for name, tree, _ in modules(package):
        if name.startswith("models."):
            continue
        inside = {
            id(node)
            for function in ast.walk(tree)
            if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
            for node in ast.walk(function)
        }
        typing_only = {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            if not isinstance(node, (ast.Import, ast.ImportFrom)):
                continue
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            heavy = [n for n in names if n.split(".")[0] in ("torch", "transformers", "accelerate")]
            allowed = name in VERBS_WITH_TORCH and heavy == ["torch"] and id(node) in inside | typing_only
            if heavy and not allowed and id(node) not in typing_only:
                faults.append(f"{name}:{node.lineno} imports {heavy[0]}")
    return faults


def size_faults(package: Path) -> list[str]:
    """Files and functions that are too long."""
    faults = []
    for name, tree, source in modules(package):
        lines = source.count("\n")
        if lines > MAX_FILE_LINES:
            faults.append(f"{name} has {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = int(node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION_LINES:
                    faults.append(f"{name}.{node.name} has {length} lines")
    return faults


def branch_faults(package: Path) -> list[str]:
    """Comparisons of something called model_type with a literal: families are rows, not branches."""
    faults = []
    for name, tree, _ in modules(package):
        if name == "families.table":
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Compare):
                continue
            sides = [node.left, *node.comparators]
            about_type = any(re.search(r"\bmodel_type\b['\")\]]*$", ast.unparse(side)) for side in sides)
            literals = [leaf for side in sides for leaf in ast.walk(side) if isinstance(leaf, ast.Constant)]
            if about_type and any(isinstance(leaf.value, str) and leaf.value != "model_type" for leaf in literals):
                faults.append(f"{name}:{node.lineno} asks for a model type by name")
    return faults


CHECKS: tuple[Callable[[Path], list[str]], ...] = (
    rank_faults, cycle_faults, torch_faults, hub_faults, size_faults, branch_faults,
)  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_package_is_in_order(check: Callable[[Path], list[str]]) -> None:
    assert check(PACKAGE) == []


PLANTED: tuple[tuple[Callable[[Path], list[str]], str, str, str], ...] = (
    (rank_faults, "rope/pairing.py", "from ropetool.families.table import TABLE\n", "rope.pairing imports"),
    (rank_faults, "rope/pairing.py", "import ropetool.checkpoint.config\n", "rope.pairing imports"),
    (rank_faults, "checkpoint/config.py", "from ropetool.rope.layout import Pairing\n", "checkpoint.config imports"),
    (rank_faults, "convert.py", "def f():\n    from ropetool import verify\n", "convert imports ropetool.verify"),
    (rank_faults, "views/jsons.py", "from ropetool.cli.sink import Sink\n", "views.jsons imports"),
    (rank_faults, "models/run.py", "from ropetool.verify import verify\n", "models.run imports"),
    (rank_faults, "encodings.py", "from ropetool import convert\n", "encodings imports ropetool.convert"),
    (rank_faults, "rope/rotary.py", "from ropetool import encodings\n", "rope.rotary imports ropetool.encodings"),
    (torch_faults, "encodings.py", "def f():\n    import torch\n", "encodings"),
    (torch_faults, "rope/rotary.py", "import torch\n", "rope.rotary"),
    (rank_faults, "helpers.py", "pass\n", "helpers has no rank"),
    (cycle_faults, "rope/layout.py", "from ropetool.rope.frequencies import Default\n"
     "from ropetool.rope.pairing import Head\n", "rope.layout"),
    (torch_faults, "families/plan.py", "import torch\n", "families.plan"),
    (torch_faults, "extend.py", "def f():\n    import torch\n", "extend"),
    (torch_faults, "verify.py", "import torch.nn\n", "verify"),
    (torch_faults, "verify.py", "def f():\n    from transformers import AutoModel\n", "verify"),
    (hub_faults, "detect.py", "def f():\n    from huggingface_hub import HfApi\n", "detect"),
    (hub_faults, "checkpoint/hub.py", "import huggingface_hub.errors\n", "checkpoint.hub"),
    (hub_faults, "engines/client.py", "import httpx2\n", "engines.client"),
    (hub_faults, "served.py", "def f():\n    import httpx2\n", "served"),
    (hub_faults, "checkpoint/compare.py", "with shard_a.path.open('rb') as file: pass\n", "checkpoint.compare reads"),
    (hub_faults, "convert.py", "copy_file(shard.path, target)\n", "convert reads"),
    (size_faults, "errors.py", "pass\n" * 400, "errors has"),
    (size_faults, "errors.py", "def f():\n" + "    pass\n" * 60, "errors.f has 61 lines"),
    (branch_faults, "families/plan.py", "x = family.model_type == 'llama'\n", "families.plan"),
    (branch_faults, "convert.py", "y = config['model_type'] in ('llama', 'qwen2')\n", "convert"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("check", "file", "code", "said"), PLANTED, ids=lambda value: getattr(value, "__name__", str(value)[:40])
)
def test_each_check_sees_a_planted_fault(
    check: Callable[[Path], list[str]], file: str, code: str, said: str, tmp_path: Path
) -> None:
    copy = tmp_path / "ropetool"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "bundled"))
    with (copy / file).open("a", encoding="utf-8") as target:
        target.write("\n" + code)
    assert any(said in fault for fault in check(copy)), check(copy)


# A finder that refuses the heavy packages, in a file that python imports on start.
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "huggingface_hub", "httpx2"):
            raise RuntimeError("imported: " + name)
sys.meta_path.insert(0, Refuse())
"""


@pytest.fixture
def without_torch(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs the command line where importing torch, transformers, the Hub's library or httpx2 is an error."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(REFUSE, encoding="utf-8")
    path = os.pathsep.join([str(tmp_path / "site"), str(ROOT)])

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ropetool", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    return run


def test_light_commands_never_import_torch(without_torch, checkpoint, tmp_path: Path) -> None:
    source = checkpoint("llama")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": str(source)}
    (adapter / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    rows = {"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": np.ones((128, 4), np.float32)}
    save_file(rows, adapter / "adapter_model.safetensors")
    commands = (
        ("--help",), ("--version",), ("inspect", "--help"), ("verify", "--help"), ("families",),
        ("inspect", source), ("inspect", source, "--json"), ("inspect", source, "--weights"),
        ("convert", source, tmp_path / "a", "--to", "interleaved", "--dry-run"),
        ("convert", source, tmp_path / "b", "--to", "interleaved", "--json"),
        ("inspect", adapter), ("convert", adapter, tmp_path / "e", "--to", "interleaved"),
        ("extend", source, tmp_path / "c", "--method", "yarn", "--to", "128"),
        ("extend", source, tmp_path / "d", "--method", "ntk", "--factor", "2", "--json"),
        ("diff", source, source),
        ("verify", source, tmp_path / "b", "--quick"), ("verify", adapter, adapter, "--quick", "--json"),
        ("verify", source, tmp_path / "c", "--quick"),
        ("doctor", "--help"), ("doctor", source, "--engine", "ctranslate2"),
        ("doctor", source, "--engine", "torchtune", "--json"),
        ("report", "--help"), ("report", source, "--json"), ("report", source, "--against", tmp_path / "c"),
        ("report", source, "--out", tmp_path / "page.html"),
    )  # fmt: skip
    for command in commands:
        done = without_torch(*command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    assert (tmp_path / "b" / "model.safetensors").is_file()


def test_the_refusal_of_torch_can_fail(without_torch, checkpoint) -> None:
    source = checkpoint("llama")
    for command in (("verify", source, source), ("inspect", source, "--code")):
        done = without_torch(*command)
        assert done.returncode != 0
        assert "imported: " in done.stderr


def test_a_hub_id_alone_imports_the_library_of_the_hub(without_torch) -> None:
    done = without_torch("inspect", "org/name")
    assert done.returncode != 0
    assert "imported: huggingface_hub" in done.stderr


def test_errors_import_no_torch_either(without_torch, tmp_path: Path) -> None:
    done = without_torch("inspect", tmp_path / "nothing")
    assert done.returncode == 2
    assert "imported" not in done.stderr


def test_every_error_class_is_drawn_and_has_its_own_code() -> None:
    from ropetool import errors

    classes = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.RopetoolError)]
    assert len({c.code for c in classes}) == len(classes)
    for c in classes:
        assert c.__name__ in str(errors.__doc__)
        assert c.exit_code == (1 if c is errors.NotVerifiedError else 2)
