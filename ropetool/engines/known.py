"""Which model types vLLM, SGLang, llama.cpp and exllamav2 know, and by which code of theirs.

Written by tools/read_registries.py from their sources, versions as in their rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_FILE: Mapping[str, Any] = json.loads(Path(__file__).with_name("known.json").read_text("utf-8"))


@dataclass(frozen=True)
class Server:
    """What a server knows: ``native`` has the file of its own class by type, ``backend`` the types that it serves by
    transformers' class.
    """

    native: Mapping[str, str]
    backend: frozenset[str]


@dataclass(frozen=True)
class Gguf:
    """What llama.cpp's converter makes of a type.

    ``gguf`` is the architecture that it writes, ``pairing`` the layout of the checkpoint that it takes. ``llama3`` and
    ``longrope`` tell that it writes those factors, ``unscaled`` that it writes no scaling whatever the config says.
    """

    gguf: str
    pairing: str
    llama3: bool = False
    longrope: bool = False
    unscaled: bool = False


def _server(name: str) -> Server:
    return Server(_FILE[name]["native"], frozenset(_FILE[name]["backend"]))


VLLM, SGLANG = _server("vllm"), _server("sglang")
LLAMA_CPP: Mapping[str, Gguf] = {model_type: Gguf(**row) for model_type, row in _FILE["llama.cpp"].items()}
# The layout that the class of each type rotates; any other architecture is taken for a Llama, with a warning.
EXLLAMAV2: Mapping[str, str] = _FILE["exllamav2"]
