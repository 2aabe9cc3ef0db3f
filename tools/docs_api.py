"""The pages of the Python API: which modules are public, and in which order they are read."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

FOLDER = "api"


@dataclass(frozen=True)
class Public:
    """A page: its title, what it is about, and the modules and names on it."""

    title: str
    about: str
    names: tuple[str, ...]


PUBLIC = {
    "inspect": Public("Inspect", "What a checkpoint's RoPE is, and which witness says so.", ("ropetool.detect",)),
    "convert": Public("Convert", "The same model with the rows of q and k in the other order.", ("ropetool.convert",)),
    "extend": Public("Extend", "A longer context, by the config alone.", ("ropetool.extend",)),
    "verify": Public("Verify", "Proof that two checkpoints are one model.", ("ropetool.verify", "ropetool.served")),
    "evaluate": Public("Evaluate", "Loss by position, and passkeys found.", ("ropetool.evaluate",)),
    "diff": Public("Diff", "What two checkpoints differ in.", ("ropetool.diff",)),
    "doctor": Public("Doctor", "What each engine makes of a config.", ("ropetool.doctor",)),
    "report": Public("Report", "A checkpoint's RoPE on one page.", ("ropetool.report",)),
    "search": Public(
        "Search", "An extension found by measuring.", ("ropetool.search", "ropetool.models.searched")
    ),
    "encodings": Public("Encodings", "Reference implementations of positional encodings.", ("ropetool.encodings",)),
    "choices": Public(
        "Choices",
        "The values that options take.",
        (
            "ropetool.rope.layout.Pairing", "ropetool.families.methods", "ropetool.checkpoint.config.Style",
            "ropetool.engines.names", "ropetool.models.options",
        ),
    ),
    "errors": Public("Errors", "Every error that is raised on purpose.", ("ropetool.errors",)),
}  # fmt: skip


def is_there(public: Public) -> bool:
    """Whether this version has what the page is about."""
    first = public.names[0]
    return find_spec(first) is not None if first.count(".") == 1 else True


def _block(path: str, **options: bool) -> str:
    lines = [f"      {name}: {str(value).lower()}" for name, value in options.items()]
    return "\n".join([f"::: {path}", *(["    options:", *lines] if lines else [])])


def blocks(path: str) -> list[str]:
    """What mkdocstrings is told of a name; of a module that gathers others' names, each where it is defined."""
    module = _module(path)
    if module is None or not hasattr(module, "__all__"):
        return [_block(path)]
    names = sorted(module.__all__, key=lambda name: inspect.isclass(getattr(module, name)))
    each = [_block(_defined(module, name), show_root_full_path=False) for name in names]
    return [_block(path, members=False), *each]


def _defined(module: ModuleType, name: str) -> str:
    """Where a name of a module comes from: functions and classes say it; all else is taken for the module's own."""
    real = inspect.unwrap(getattr(module, name))
    home, own = getattr(real, "__module__", None), getattr(real, "__qualname__", None)
    return f"{home}.{own}" if home and own else f"{module.__name__}.{name}"


def _module(path: str) -> ModuleType | None:
    """The module of that name, None where it is something inside of one."""
    try:
        return import_module(path)
    except ModuleNotFoundError:
        return None


def pages() -> dict[str, str]:
    """The Markdown of each page, for mkdocstrings."""
    made = {}
    for name, public in PUBLIC.items():
        if is_there(public):
            body = "\n\n".join(block for path in public.names for block in blocks(path))
            made[f"{FOLDER}/{name}.md"] = f"# {public.title}\n\n{public.about}\n\n{body}\n"
    return made
