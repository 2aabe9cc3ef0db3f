"""Write ropetool/engines/known.json: the model types that vLLM, SGLang, llama.cpp and exllamav2 know, by which code.

Usage: python tools/read_registries.py VLLM SGLANG LLAMA_CPP EXLLAMAV2
(the unpacked wheels of vllm 0.33.0, sglang 0.5.23 and exllamav2 0.3.2, and thirdparty/llama.cpp of the source package
xllamacpp 2026.10.11549: `pip download --no-deps` is enough). Read without running them; transformers tells the names
of its classes for each model type, by which all four look a checkpoint up.

vLLM and SGLang: ``native`` maps a type to the file of its class; ``backend`` are types without one that are served by
transformers' own class. llama.cpp: ``gguf`` is the architecture that the converter writes, ``pairing`` the layout of
the checkpoint that it takes, ``llama3`` and ``longrope`` whether it writes those factors, ``unscaled`` that it writes
no scaling whatever the config says. exllamav2: the pairing of the class.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto import modeling_auto

from ropetool.families.decoder import COMPOSITES
from ropetool.families.table import TABLE

OUT = Path(__file__).resolve().parent.parent / "ropetool" / "engines" / "known.json"
MAPPINGS = ("CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MULTIMODAL_LM", "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "")
HEAD = "MODEL_FOR_{}_MAPPING_NAMES"


def class_names(model_type: str) -> Iterator[str]:
    """The names of transformers' classes for a model type, those of a whole language model first."""
    for kind in MAPPINGS:
        name = HEAD.format(kind) if kind else "MODEL_MAPPING_NAMES"
        found = getattr(modeling_auto, name, {}).get(model_type, ())
        yield from (found,) if isinstance(found, str) else found


def first_known(known: Mapping[str, Any]) -> dict[str, Any]:
    """What ``known`` has by class name, for every model type of the table that it has."""
    found: dict[str, Any] = {}
    for model_type in (*TABLE, *COMPOSITES):
        hits = [known[name] for name in class_names(model_type) if name in known]
        if hits:
            found[model_type] = hits[0]
    return dict(sorted(found.items()))


def backend_types(native: Mapping[str, Any]) -> list[str]:
    """Types without a class of the engine's own whose class in transformers can take another's attention."""
    found = []
    for model_type in (*TABLE, *COMPOSITES):
        name = next(class_names(model_type), None)
        cls = getattr(transformers, name, None) if name and model_type not in native else None
        if cls is not None and cls.is_backend_compatible():
            found.append(model_type)
    return sorted(found)


def vllm_classes(package: Path) -> dict[str, str]:
    """Class name to file, from the dictionaries of registry.py."""
    tree = ast.parse((package / "vllm/model_executor/models/registry.py").read_text())
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and len(value.elts) == 2:
                module = ast.literal_eval(value.elts[0])
                if module != "transformers":
                    found[key.value] = module
    return found


def sglang_classes(package: Path) -> dict[str, str]:
    """Class name to file, from the EntryClass of every model file."""
    models = package / "sglang/srt/models"
    found = {}
    for file in sorted(models.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
                names = [name.id for name in ast.walk(node.value) if isinstance(name, ast.Name)]
                found |= dict.fromkeys(names, file.relative_to(models).with_suffix("").as_posix())
    return found


# What the source of a class, or of one that it derives from, says.
PERMUTES = re.compile(r"undo_permute = True|LlamaModel\.permute\(|_unpermute_for_rope\(")
KEEPS = re.compile(r"undo_permute = False|^(?!.*super\(\)\.modify_tensors).*ModelBase\.modify_tensors\(self", re.DOTALL)
LLAMA3, LONGROPE = re.compile(r"llama3"), re.compile(r"ROPE_FACTORS_LONG")
UNSCALED = re.compile(r"add_rope_scaling_type\(gguf\.RopeScalingType\.NONE\)|add_rope_scaling_factor\(1\.0\)")
ARCH = re.compile(r"model_arch = gguf\.MODEL_ARCH\.(\w+)")


class Converter:
    """The classes of llama.cpp's converter: the source of each, and of all that it derives from."""

    def __init__(self, top: Path) -> None:
        self.source: dict[str, str] = {}
        self.bases: dict[str, list[str]] = {}
        self.registered: dict[str, list[str]] = {}
        for file in sorted((top / "conversion").glob("*.py")):
            text = file.read_text()
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    self._take(node, ast.get_source_segment(text, node) or "")
        self.turns = dict(rope_types(top))

    def _take(self, node: ast.ClassDef, source: str) -> None:
        self.source[node.name] = source
        self.bases[node.name] = [ast.unparse(base).split(".")[-1] for base in node.bases]
        names = [
            ast.literal_eval(name)
            for decorator in node.decorator_list
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "ModelBase.register"
            for name in decorator.args
        ]
        self.registered.setdefault(node.name, []).extend(names)

    def chain(self, name: str) -> list[str]:
        """The sources of a class and of its bases, the nearest first; not those that every class has."""
        if name not in self.source or name in ("TextModel", "ModelBase"):
            return []
        # A class that only hands on to one inside it is that one.
        inner = [base for base in re.findall(r"class \w+\((\w+)\):", self.source[name]) if base != "TextModel"]
        return [self.source[name], *(text for base in (*self.bases[name], *inner[:1]) for text in self.chain(base))]

    def rows(self) -> dict[str, dict[str, Any]]:
        """What is written for the text part of every class of transformers that is registered."""
        found = {}
        for name, registered in self.registered.items():
            row = self.row(name) if registered else {"gguf": "MMPROJ"}
            if row["gguf"] != "MMPROJ":
                found |= dict.fromkeys(registered, row)
        return found

    def row(self, name: str) -> dict[str, Any]:
        """What the class writes into a GGUF."""
        chain = self.chain(name)
        arch = next(found[1] for text in chain if (found := ARCH.search(text)))
        permutes = next((bool(PERMUTES.search(text)) for text in chain if PERMUTES.search(text) or KEEPS.search(text)),
                        False)  # fmt: skip
        adjacent = self.turns.get(arch, [""])[-1] == "NORM"
        row: dict[str, Any] = {"gguf": arch, "pairing": "interleaved" if adjacent and not permutes else "half"}
        for key, pattern in (("llama3", LLAMA3), ("longrope", LONGROPE), ("unscaled", UNSCALED)):
            row |= {key: True} if any(pattern.search(text) for text in chain) else {}
        return row


def rope_types(top: Path) -> Iterator[tuple[str, list[str]]]:
    """The converter's name of every architecture, and the kinds of rotation that the runtime has for it."""
    python = (top / "gguf-py/gguf/constants.py").read_text()
    named = {said: arch for arch, said in re.findall(r'MODEL_ARCH\.(\w+):\s+"([^"]+)"', python)}
    said = dict(re.findall(r'{ (LLM_ARCH_\w+),\s+"([^"]+)"', (top / "src/llama-arch.cpp").read_text()))
    source = (top / "src/llama-model.cpp").read_text()
    body = source[source.index("llama_rope_type llama_model_rope_type(") :]
    waiting: list[str] = []
    for line in body[: body.index("unknown architecture")].splitlines():
        waiting += re.findall(r"case (LLM_ARCH_\w+):", line)
        kinds = re.findall(r"LLAMA_ROPE_TYPE_(\w+)", line) if "return" in line else []
        if kinds:
            yield from ((named[said[arch]], kinds) for arch in waiting if said.get(arch) in named)
            waiting = []


def exllamav2_classes(package: Path) -> dict[str, str]:
    """Class name to pairing, from the branches of architecture.py; one without a word on it is NeoX."""
    text = (package / "exllamav2/architecture.py").read_text()
    found = {"LlamaForCausalLM": "half"}
    for block in re.split(r"\n        if ", text)[1:]:
        head = block.split(":", 1)[0]
        if "arch_string" in head and "!=" not in head:
            style = re.search(r"self\.lm\.rope_style = RopeStyle\.(\w+)", block)
            pairing = {"GPTJ": "interleaved", "NONE": "none"}.get(style[1] if style else "", "half")
            found |= dict.fromkeys(re.findall(r'"(\w+)"', head), pairing)
    return found


def main(vllm: Path, sglang: Path, llama_cpp: Path, exllamav2: Path) -> None:
    """Read the four, and write what they know."""
    known: dict[str, Any] = {}
    for engine, classes in (("vllm", vllm_classes(vllm)), ("sglang", sglang_classes(sglang))):
        native = first_known(classes)
        known[engine] = {"native": native, "backend": backend_types(native)}
    known["llama.cpp"] = first_known(Converter(llama_cpp).rows())
    known["exllamav2"] = first_known(exllamav2_classes(exllamav2))
    OUT.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write("".join(f"{engine}: {len(rows)}\n" for engine, rows in known.items()))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
